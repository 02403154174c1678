"""Products of many draws with their biases: what runs draw by draw gives what torch maps, in any company."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import vmap

import dubio
from dubio.nn import bayesian as module
from dubio.nn.bayesian import affine
from networks import mlp

SAMPLES, ROWS, INPUTS, UNITS = 4, 5, 3, 2
WEIGHTS, BIASES = torch.randn(SAMPLES, UNITS, INPUTS), torch.randn(SAMPLES, UNITS)
DRAWN = torch.randn(SAMPLES, ROWS, INPUTS)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Draw by draw, as on a GPU with large products; the numbers of draws that ran so."""
    seen: list[int] = []

    def noted(num_samples: int, *rest: object) -> tuple[Tensor]:
        seen.append(num_samples)
        return one_by_one(num_samples, *rest)

    one_by_one = module._one_by_one
    monkeypatch.setattr(module, "DEVICES", ("cpu",))
    monkeypatch.setattr(module, "LARGE_PRODUCT", 1)
    monkeypatch.setattr(module, "MANY_OUTPUTS", 1)
    monkeypatch.setattr(module, "_one_by_one", noted)
    return seen


@pytest.mark.parametrize(
    ("leading", "input_axis"),
    [(leading, axis) for leading in [(), (ROWS,), (2, ROWS)] for axis in (None, 0, 1) if leading or axis != 1],
)
def test_draw_by_draw_equals_the_map(launched: list[int], leading: tuple[int, ...], input_axis: int | None) -> None:
    inputs = torch.randn(SAMPLES, *leading, INPUTS)
    inputs = inputs[0] if input_axis is None else inputs.movedim(0, input_axis)
    with torch.no_grad():
        found = vmap(affine, in_dims=(input_axis, 0, 0))(inputs, WEIGHTS, BIASES)
    expected = vmap(torch.nn.functional.linear, in_dims=(input_axis, 0, 0))(inputs, WEIGHTS, BIASES)
    assert launched == [SAMPLES]
    torch.testing.assert_close(found, expected)


def test_a_bias_may_be_the_same_for_all_draws(launched: list[int]) -> None:
    with torch.no_grad():
        found = vmap(affine, in_dims=(0, 0, None))(DRAWN, WEIGHTS, BIASES[0])
    assert launched == [SAMPLES]
    torch.testing.assert_close(found, DRAWN @ WEIGHTS.mT + BIASES[0])


def test_under_autocast_draw_by_draw_computes_in_its_type(launched: list[int]) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = vmap(affine)(DRAWN, WEIGHTS, BIASES)
        expected = vmap(torch.nn.functional.linear)(DRAWN, WEIGHTS, BIASES.bfloat16())
    assert launched == [SAMPLES]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("mixed", [False, True])
def test_under_autocast_other_types_give_what_torch_gives(launched: list[int], dtype: torch.dtype, mixed: bool) -> None:
    inputs, weights, biases = DRAWN.to(dtype), WEIGHTS.to(dtype), BIASES if mixed else BIASES.to(dtype)

    def outcome(function: Callable[..., Tensor], bias: Tensor) -> torch.dtype | None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            try:
                return vmap(function)(inputs, weights, bias).dtype
            except RuntimeError:
                return None

    lowers = mixed or dtype == torch.float16
    expected = outcome(torch.nn.functional.linear, biases.bfloat16() if lowers else biases)
    assert outcome(affine, biases) == expected


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, for tangents
def test_a_map_around_and_tangents_pass_through(launched: list[int]) -> None:
    """Neither sees what is written into a tensor behind its back."""
    twice = torch.stack([DRAWN, DRAWN + 1])
    with torch.no_grad():
        found = vmap(lambda inputs: vmap(affine)(inputs, WEIGHTS, BIASES))(twice)
        torch.testing.assert_close(found, twice @ WEIGHTS.mT + BIASES[:, None])
        with forward_ad.dual_level():
            moving = forward_ad.make_dual(DRAWN, torch.ones_like(DRAWN))
            tangent = forward_ad.unpack_dual(vmap(affine)(moving, WEIGHTS, BIASES)).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, torch.ones_like(DRAWN) @ WEIGHTS.mT)
    assert launched == [SAMPLES, SAMPLES]


def test_predictions_are_the_same(launched: list[int]) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 20, 3))
    inputs = torch.randn(7, 5)
    looped = dubio.predict(model, inputs, 6, seed=0, executor="loop")
    assert not launched
    mapped = dubio.predict(model, inputs, 6, seed=0, executor="vmap")
    assert launched == [6, 6]
    torch.testing.assert_close(mapped.probs, looped.probs)


def test_draws_are_launched_on_a_gpu_for_large_products_without_gradients(
    launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_PRODUCT", ROWS * INPUTS * UNITS)
    vmap(affine)(DRAWN, WEIGHTS, BIASES)
    with torch.no_grad():
        vmap(affine)(DRAWN[:, 1:], WEIGHTS, BIASES)
        monkeypatch.setattr(module, "MANY_OUTPUTS", ROWS * UNITS + 1)
        vmap(affine)(DRAWN, WEIGHTS, BIASES)
        monkeypatch.setattr(module, "MANY_OUTPUTS", ROWS * UNITS)
        vmap(affine, in_dims=(0, None, None))(DRAWN, WEIGHTS[0], BIASES[0])
        vmap(lambda inputs, weight: affine(inputs, weight, None))(DRAWN, WEIGHTS)
        assert launched == []
        vmap(affine)(DRAWN, WEIGHTS, BIASES)
        assert launched == [SAMPLES]
        monkeypatch.setattr(module, "DEVICES", ("cuda",))
        vmap(affine)(DRAWN, WEIGHTS, BIASES)
        assert launched == [SAMPLES]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_large_products_are_launched_draw_by_draw() -> None:
    """The decision itself, and numbers beside the map."""
    inputs = torch.randn(4096, 1024, device="cuda")
    weights, biases = torch.randn(3, 1024, 1024, device="cuda"), torch.randn(3, 1024, device="cuda")
    decisions = []

    def watched(weight: Tensor, bias: Tensor) -> Tensor:
        decisions.append(module._is_worth_a_launch(inputs, weight))
        return affine(inputs, weight, bias)

    with torch.no_grad():
        found = vmap(watched)(weights, biases)
        vmap(watched)(weights[:, :512], biases[:, :512])
    vmap(watched)(weights, biases)
    assert decisions == [True, False, False]
    torch.testing.assert_close(found, inputs @ weights.mT + biases[:, None], rtol=1e-3, atol=1e-3)
