"""Attention of mapped draws in one call equals that of each draw, whichever factors and masks are mapped."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

import dubio
from dubio._engine import vmap_rules
from dubio._engine.planner import plans
from dubio._engine.vmap_rules import attention
from dubio.training.steps import Step

DRAWS, ROWS, HEADS, QUERIES, KEYS, WIDTH = 3, 4, 2, 5, 6, 8
SHAPES = {2: (), 3: (ROWS,), 4: (ROWS, HEADS)}
"""Axes before positions and features, by the number of axes."""
MASKS: dict[int, list[tuple[int, ...]]] = {
    2: [(QUERIES, KEYS)],
    3: [(QUERIES, KEYS), (ROWS, QUERIES, KEYS), (1, QUERIES, KEYS), (ROWS, 1, KEYS)],
    4: [
        (QUERIES, KEYS),
        (HEADS, QUERIES, KEYS),
        (ROWS, 1, 1, KEYS),
        (1, 1, QUERIES, KEYS),
        (ROWS, HEADS, QUERIES, KEYS),
    ],
}


def cases() -> Iterator[tuple[int, tuple[bool, bool, bool], tuple[int, ...] | None, bool]]:
    for rank, mapped in product(SHAPES, product((True, False), repeat=3)):
        for mask, mask_mapped in [(None, False), *product(MASKS[rank], (True, False))]:
            if any((*mapped, mask_mapped)):
                yield rank, mapped, mask, mask_mapped


def tensors(
    rank: int, mapped: tuple[bool, ...], mask: tuple[int, ...] | None, mask_mapped: bool, boolean: bool
) -> tuple[list[Tensor], tuple[int | None, ...]]:
    """Query, key, value and mask, with the axis of draws where one is mapped."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for positions, has_draws in zip((QUERIES, KEYS, KEYS), mapped, strict=True):
        shape = (*((DRAWS,) if has_draws else ()), *SHAPES[rank], positions, WIDTH)
        made.append(torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_())
    if mask is not None:
        scores = torch.randn(((DRAWS,) if mask_mapped else ()) + mask, generator=generator, dtype=torch.float64)
        made.append(scores.index_fill(-1, torch.tensor(0), 1.0) > -0.5 if boolean else scores.requires_grad_())
    dims = [0 if has_draws else None for has_draws in (*mapped, *(() if mask is None else (mask_mapped,)))]
    return made, tuple(dims)


def each(function: Callable[..., Tensor], made: list[Tensor], dims: tuple[int | None, ...]) -> Tensor:
    """A function of one draw after another."""
    draws = range(DRAWS)
    return torch.stack([function(*(t if d is None else t[i] for t, d in zip(made, dims, strict=True))) for i in draws])


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize(("rank", "mapped", "mask", "mask_mapped"), list(cases()))
def test_attention_of_draws_is_that_of_each(
    rank: int, mapped: tuple[bool, ...], mask: tuple[int, ...] | None, mask_mapped: bool, boolean: bool
) -> None:
    made, dims = tensors(rank, mapped, mask, mask_mapped, boolean)
    result = torch.func.vmap(attention, in_dims=dims)(*made)
    expected = each(F.scaled_dot_product_attention, made, dims)
    weight = torch.randn_like(expected)
    trained = [tensor for tensor in made if tensor.requires_grad]
    gradients = [torch.autograd.grad((output * weight).sum(), trained) for output in (result, expected)]
    torch.testing.assert_close((result, gradients[0]), (expected, gradients[1]), rtol=1e-12, atol=1e-12)


OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "scale": {"scale": 0.5},
    "few keys for many queries": {"enable_gqa": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_are_passed_on(options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(DRAWS, ROWS, 4, QUERIES, WIDTH, generator=generator)
    heads = 2 if "enable_gqa" in options else 4
    key, value = (torch.randn(DRAWS, ROWS, heads, QUERIES, WIDTH, generator=generator) for _ in range(2))
    result = torch.func.vmap(lambda *factors: attention(*factors, **options))(query, key, value)
    plain = each(lambda *factors: F.scaled_dot_product_attention(*factors, **options), [query, key, value], (0, 0, 0))
    torch.testing.assert_close(result, plain)
    assert options == OPTIONS["few keys for many queries"] or not torch.allclose(
        plain, F.scaled_dot_product_attention(query, key, value)
    )


RANKS: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "queries without rows": (((5, 8), (3, 6, 8), (3, 6, 8)), {}),
    "queries without rows, one row": (((5, 8), (1, 6, 8), (1, 6, 8)), {}),
    "keys without rows": (((3, 5, 8), (6, 8), (6, 8)), {}),
    "keys without rows, heads": (((3, 2, 5, 8), (2, 6, 8), (2, 6, 8)), {}),
    "one row of keys": (((3, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)), {}),
    "heads without rows": (((4, 5, 8), (2, 6, 8), (2, 6, 8)), {"enable_gqa": True}),
    "more axes": (((2, 3, 2, 5, 8), (2, 3, 2, 6, 8), (2, 3, 2, 6, 8)), {}),
}


@pytest.mark.parametrize(("shapes", "options"), RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("mapped", [(0, 0, 0), (0, None, None), (None, 0, 0)])
def test_factors_of_any_rank_are_spread_as_torch_does(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], mapped: tuple[int | None, ...]
) -> None:
    """As many rows as draws among them, which must not be taken for each other."""
    generator = torch.Generator().manual_seed(1)
    axes = [(DRAWS,) if dim == 0 else () for dim in mapped]
    made = [torch.randn(more + shape, generator=generator) for more, shape in zip(axes, shapes, strict=True)]
    result = torch.func.vmap(lambda *factors: attention(*factors, **options), in_dims=mapped)(*made)
    expected = each(lambda *factors: F.scaled_dot_product_attention(*factors, **options), made, mapped)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("mask", [None, (QUERIES, KEYS), (ROWS, HEADS, QUERIES, KEYS)])
def test_many_rows_are_taken_in_pieces(mask: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made, dims = tensors(4, (True, True, True), mask, False, False)
    expected = torch.func.vmap(attention, in_dims=dims)(*made)
    monkeypatch.setattr(vmap_rules, "MOST_ROWS", 5)
    assert [len(piece) for piece in vmap_rules._pieces(torch.zeros(12), 12)] == [5, 5, 2]
    torch.testing.assert_close(torch.func.vmap(attention, in_dims=dims)(*made), expected)


def test_a_mask_that_attends_in_its_own_way_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.factors(x)[:, None].chunk(3, dim=-1)
            return F.scaled_dot_product_attention(query, key, value, attn_mask=causal_lower_right(4, 4))

    monkeypatch.setattr(vmap_rules, "ATTENDING_TOGETHER", ("cpu",))
    torch.manual_seed(0)
    model, inputs = dubio.Bayes(init_std=0.1).convert(Causal()), torch.randn(5, 4, 8)
    mapped, looped = (dubio.sample(model, inputs, 3, seed=1, executor=way) for way in ("vmap", "loop"))
    torch.testing.assert_close(mapped, looped)


def test_a_mask_of_more_axes_than_factors_is_refused() -> None:
    query, mask = torch.randn(DRAWS, QUERIES, WIDTH), torch.zeros(1, QUERIES, QUERIES)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(query[0], query[0], query[0], mask)
    with pytest.raises(ValueError, match="attn_mask must have at most the 2 axes of its factors, got 3"):
        torch.func.vmap(lambda q: attention(q, q, q, mask))(query)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_draws_drop_other_weights(masked: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    query, value = torch.zeros(200, ROWS, HEADS, QUERIES, WIDTH), torch.ones(200, ROWS, HEADS, QUERIES, WIDTH)
    mask = torch.zeros(ROWS, 1, 1, QUERIES) if masked else None

    def draws() -> Tensor:
        return torch.func.vmap(lambda q, v: attention(q, q, v, mask, 0.5), randomness="different")(query, value)

    run = torch.compile(draws, backend="aot_eager", fullgraph=True) if compiled else draws
    results, again = run(), run()
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results, again)
    error = (0.25 / 0.25 / QUERIES) ** 0.5 / (200 * ROWS * HEADS * QUERIES) ** 0.5  # of the mean of doubled Bernoullis
    assert abs(results.mean().item() - 1.0) < 5 * error


def test_a_map_around_draws_keeps_its_own_randomness() -> None:
    query = torch.randn(DRAWS, ROWS, HEADS, QUERIES, WIDTH)

    def draws(scale: Tensor) -> Tensor:
        return torch.func.vmap(lambda q: attention(q * scale, q, q, None, 0.5), randomness="different")(query)

    same = torch.func.vmap(draws, randomness="same")(torch.ones(2))
    torch.testing.assert_close(same[0], same[1])
    assert not torch.allclose(same[0, 0], same[0, 1])


@pytest.mark.parametrize("masked", [True, False])
def test_attention_under_autocast_is_in_its_type_and_so_are_gradients(masked: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(DRAWS, ROWS, HEADS, QUERIES, WIDTH, generator=generator).requires_grad_()
    mask = torch.zeros(ROWS, 1, 1, QUERIES) if masked else None
    with torch.autocast("cpu", torch.bfloat16):
        result = torch.func.vmap(lambda q: attention(q, q, q, mask))(query)
        looped = each(lambda q: F.scaled_dot_product_attention(q, q, q, mask), [query], (0,))
        assert torch.is_autocast_enabled("cpu")
    assert result.dtype == looped.dtype == torch.bfloat16
    torch.testing.assert_close(result, looped, rtol=0.02, atol=0.02)
    gradients = [torch.autograd.grad(output.float().square().sum(), query)[0] for output in (result, looped)]
    torch.testing.assert_close(*gradients, rtol=0.1, atol=0.1)


def test_parts_of_attention_are_out_of_the_sight_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it would compute the softmax in float32, and its gradient would not fit."""
    enabled = []

    def attend(*args: Any) -> Tensor:
        enabled.append(torch.is_autocast_enabled("cpu"))
        return args[0]

    monkeypatch.setattr(vmap_rules, "_attend", attend)
    query = torch.randn(DRAWS, ROWS, QUERIES, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.func.vmap(lambda q: attention(q, q, q))(query).dtype == torch.bfloat16
    assert enabled == [False]


class Own(nn.Module):
    """A custom attention module, as timm and others write it."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.factors, self.head, self.masked = nn.Linear(8, 24), nn.Linear(8, 3), masked

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.factors(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mask = x[:, None, None, :, 0] < 1.0 if self.masked else None
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.head(output.transpose(1, 2).flatten(2).mean(1))


def own(masked: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.1).convert(Own(masked)), torch.randn(5, 4, 8)


@pytest.mark.feature("Attention of mapped draws is one call for all of them, on a GPU in any module")
@pytest.mark.parametrize("masked", [True, False])
def test_attention_of_any_module_is_taken_in_hand(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that is made to do as a GPU must; compiled, too, where ``Tensor.unflatten`` is in the way of a mode."""
    calls = []

    def spied(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(kwargs)
        return attention(*args, **kwargs)

    model, inputs = own(masked)
    expected = dubio.sample(model, inputs, 3, seed=1, executor="loop")
    with monkeypatch.context() as patch:
        patch.setattr(vmap_rules, "ATTENDING_TOGETHER", ("cpu",))
        patch.setattr(vmap_rules, "attention", spied)
        result = dubio.sample(model, inputs, 3, seed=1, executor="vmap")
    assert len(calls) == 1
    torch.testing.assert_close(result, expected)
    monkeypatch.setattr(vmap_rules, "ATTENDING_TOGETHER", ("cpu",))
    compiled = torch.compile(
        lambda x: dubio.sample(model, x, 3, executor="vmap"), backend="aot_eager", fullgraph=True, dynamic=False
    )
    with dubio.frozen(seed=1):
        torch.testing.assert_close(compiled(inputs), expected)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["own", "own, masked", "encoder", "encoder, padded"])
def test_attention_on_a_gpu_is_mapped_and_its_steps_are_recorded(kind: str, precision: Any) -> None:
    class Encoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.encode, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            padding = x[..., 0] > 1.0 if "padded" in kind else None
            return self.head(self.encode(x, src_key_padding_mask=padding).mean(1))

    torch.manual_seed(0)
    net = Encoding() if "encoder" in kind else Own("masked" in kind)
    model, inputs = dubio.Bayes(init_std=0.1).convert(net).cuda(), torch.randn(16, 4, 8, device="cuda").clamp(max=2.0)
    inputs[:, 0] = 0.0  # of every row something is seen
    model.eval()
    mapped, looped = (dubio.sample(model, inputs, 3, seed=1, executor=way) for way in ("vmap", "loop"))
    torch.testing.assert_close(mapped, looped, rtol=1e-3, atol=1e-3)
    gradients = [
        torch.autograd.grad(draws.square().sum(), model.head.weight_posterior.mean) for draws in (mapped, looped)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-3)
    dubio.sample(model, inputs, 3)
    assert {plan.executor for plan in plans(model).values()} == {"vmap"}
    del mapped, looped, gradients  # a graph that is alive keeps its streams, and no step can be recorded beside it
    step = Step(
        model.train(), dubio.ELBO(100), torch.optim.Adam(model.parameters()), num_samples=3, precision=precision
    )
    targets = torch.randint(3, (16,), device="cuda")
    losses = [step(inputs, targets).total.item() for _ in range(8)]
    assert step.mode == "captured"
    assert all(torch.isfinite(torch.tensor(losses)))
