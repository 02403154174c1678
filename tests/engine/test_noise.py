"""Seeded noise is a function of its arguments, has the right distribution, and differs between rows and draws."""

import hashlib

import pytest
import torch
from scipy import stats

from dubio._engine.noise import ROWS, noise_key, seeded_noise


def draw(
    draws: list[int],
    shape: tuple[int, ...],
    kind: str = "normal",
    *,
    key: int = 1,
    call: int = 0,
    seed: int = 0,
    **options,
) -> torch.Tensor:
    arguments = {"antithetic": False, "by_row": False, "first_row": 0, **options}
    return seeded_noise(
        torch.tensor(seed),
        torch.tensor(draws),
        key,
        call,
        list(shape),
        kind,
        torch.float32,
        torch.device("cpu"),
        arguments["antithetic"],
        arguments["by_row"],
        arguments["first_row"],
    )


def test_every_argument_matters() -> None:
    base = draw([0], (50,))
    for other in (draw([1], (50,)), draw([0], (50,), key=2), draw([0], (50,), call=1), draw([0], (50,), seed=1)):
        assert (base != other).float().mean() > 0.9
    assert torch.equal(base, draw([0], (50,)))


@pytest.mark.parametrize("shape", [(3, 5), (70, 3)])
def test_each_draw_has_a_generator_seeded_by_name_and_draw(shape: tuple[int, ...]) -> None:
    digest = int.from_bytes(hashlib.blake2b(b"9/1/2/0", digest_size=8).digest(), "big")  # seed, key, call, block
    result = draw([4, 7, 2], shape, seed=9, key=1, call=2)
    for position, index in enumerate((4, 7, 2)):
        generator = torch.Generator().manual_seed((digest + index) & 0xFFFFFFFF)
        assert torch.equal(result[position], torch.empty(shape).normal_(generator=generator))


def test_draws_are_independent_of_their_company() -> None:
    together = draw([4, 7, 2], (3, 5))
    for position, index in enumerate((4, 7, 2)):
        assert torch.equal(together[position], draw([index], (3, 5))[0])


@pytest.mark.parametrize("rows", [1, 5, 7, 8, 31, 33, 70])
def test_rows_do_not_depend_on_the_batch_they_are_in(rows: int) -> None:
    """torch.randn itself gives this only where the number of elements is a multiple of 16."""
    whole = draw([0, 1], (100, 3), by_row=True)
    for first in range(0, 100, rows):
        part = draw([0, 1], (min(rows, 100 - first), 3), by_row=True, first_row=first)
        assert torch.equal(part, whole[:, first : first + rows])
    assert not torch.equal(whole[:, :ROWS], whole[:, ROWS : 2 * ROWS])


@pytest.mark.parametrize(("kind", "law"), [("normal", "norm"), ("uniform", "uniform")])
def test_noise_has_the_law_it_is_named_after(kind: str, law: str) -> None:
    values = draw(list(range(20)), (500,), kind).flatten().numpy()
    assert stats.kstest(values, law).pvalue > 0.01


def test_signs_are_fair() -> None:
    signs = draw(list(range(20)), (500,), "sign")
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(signs.mean().item()) < 4 / 10_000**0.5


def test_draws_are_uncorrelated() -> None:
    values = draw(list(range(50)), (2000,))
    correlation = torch.corrcoef(values) - torch.eye(50)
    assert correlation.abs().max() < 5 / 2000**0.5


def test_antithetic_draws_mirror_normal_and_uniform_and_share_signs() -> None:
    for kind in ("normal", "uniform", "sign"):
        even, odd = draw([6, 7], (40,), kind, antithetic=True)
        expected = {"normal": -even, "uniform": 1 - even, "sign": even}[kind]
        torch.testing.assert_close(odd, expected)
        assert not torch.equal(even, draw([4], (40,), kind, antithetic=True)[0])


def test_keys_are_stable_and_distinct() -> None:
    assert noise_key("fc.weight_posterior") == noise_key("fc.weight_posterior")
    assert len({noise_key(f"layer{i}") for i in range(10_000)}) == 10_000
    assert noise_key("fc") == 4524469121487279813  # a change here changes every seeded result


def test_scalar_draws_and_empty_shapes() -> None:
    one = seeded_noise(
        torch.tensor(0), torch.tensor(3), 1, 0, [], "normal", torch.float64, torch.device("cpu"), False, True, 0
    )
    assert one.shape == ()
    assert one.dtype == torch.float64


def test_mapping_over_seeds_is_refused() -> None:
    with pytest.raises(RuntimeError, match="cannot be mapped over seeds"):
        torch.func.vmap(
            lambda seed: seeded_noise(
                seed, torch.tensor(0), 1, 0, [3], "normal", torch.float32, torch.device("cpu"), False, False, 0
            )
        )(torch.arange(3))
