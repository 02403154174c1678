"""Noise of all draws in one launch: the numbers of Philox, whatever the draws and rows of the launch.

Needs Triton, and a GPU or ``TRITON_INTERPRET=1``, which runs the kernel on a CPU.
"""

import os
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import dubio
from dubio._engine import noise
from networks import mlp

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
SEED = torch.tensor(7)


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_launches_at_once", lambda device: True)


def drawn(
    draws: Sequence[int],
    shape: Sequence[int],
    kind: str = "normal",
    antithetic: bool = False,
    by_row: bool = False,
    first_row: int = 0,
    key: int = 11,
) -> Tensor:
    index = torch.tensor(draws)
    return noise.seeded_noise(
        SEED, index, key, 0, list(shape), kind, torch.float32, DEVICE, antithetic, by_row, first_row
    ).cpu()


def philox(key: int, place: int, row: int) -> list[int]:
    """Four numbers of 32 bits, by the definition of Philox 4x32 with ten rounds."""
    counter, low, high = [place, row, 0, 0], key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ low,
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ high,
            first & 0xFFFFFFFF,
        ]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return counter


@pytest.mark.parametrize("draw", [0, 3])
def test_numbers_are_those_of_philox_by_box_and_muller(draw: int) -> None:
    result = drawn([draw], (2, 7), by_row=True, first_row=5)[0]
    digest = noise._digest("7/11/0", 0)
    key = ((digest >> 33) << 32) | ((digest + draw) & 0xFFFFFFFF)
    for row in (0, 1):
        calls = [philox(key, place, 5 + row) for place in range(2)]
        expected = np.zeros((4, 2))
        for place, bits in enumerate(calls):
            for pair in (0, 2):
                radius = np.sqrt(-2.0 * np.log((bits[pair] + 0.5) / 2**32))
                angle = 2.0 * np.pi * bits[pair + 1] / 2**32
                expected[pair : pair + 2, place] = radius * np.cos(angle), radius * np.sin(angle)
        np.testing.assert_allclose(result[row].numpy(), expected.reshape(-1)[:7], rtol=1e-4, atol=1e-5)


def test_philox_gives_its_reference_numbers() -> None:
    """The first vector of Random123's kat_vectors, counter and key of zeros, for the reference above."""
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
@pytest.mark.parametrize("by_row", [False, True])
def test_neither_draws_nor_rows_of_a_launch_change_a_number(kind: str, by_row: bool) -> None:
    whole = drawn(range(6), (5, 3, 3), kind, by_row=by_row)
    assert torch.equal(drawn([4, 1, 2], (5, 3, 3), kind, by_row=by_row), whole[[4, 1, 2]])
    assert torch.equal(drawn([3], (5, 3, 3), kind, by_row=by_row)[0], whole[3])
    if by_row:
        assert torch.equal(drawn(range(6), (2, 3, 3), kind, by_row=True, first_row=3), whole[:, 3:])
    assert len(whole.unique()) == (2 if kind == "sign" else whole.numel())


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (0,), (0, 4), (2048,)])
@pytest.mark.parametrize("by_row", [False, True])
def test_every_place_is_filled(shape: tuple[int, ...], by_row: bool) -> None:
    result = drawn([0, 1], shape, by_row=by_row)
    assert result.shape == (2, *shape)
    assert bool((result != 0.0).all())
    assert bool(result.isfinite().all())


def test_no_draws_give_no_noise() -> None:
    assert drawn([], (3,)).shape == (0, 3)


@pytest.mark.parametrize(("kind", "whole"), [("normal", 0.0), ("uniform", 1.0), ("sign", None)])
def test_pairs_mirror_each_other(kind: str, whole: float | None) -> None:
    result = drawn(range(4), (9,), kind, antithetic=True)
    assert torch.equal(result[1::2], result[::2] if whole is None else whole - result[::2])
    assert torch.equal(drawn([3], (9,), kind, antithetic=True)[0], result[3])
    assert torch.equal(result[::2], drawn([0, 1], (9,), kind))


def test_numbers_have_the_distributions_that_they_are_said_to_have() -> None:
    normal, uniform, sign = (drawn(range(4), (5000,), kind).flatten() for kind in ("normal", "uniform", "sign"))
    assert stats.kstest(normal.numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-3
    assert bool((uniform >= 0.0).all())
    assert bool((uniform < 1.0).all())
    assert set(sign.unique().tolist()) == {-1.0, 1.0}
    assert abs(sign.mean().item()) < 4.0 / 20_000**0.5


def test_draws_posteriors_and_neighbours_are_independent() -> None:
    first, second, third, fourth = drawn(range(4), (5000,))
    other = drawn([0], (5000,), key=12)[0]
    for one, two in [(first, second), (second, fourth), (third, fourth), (first, other), (first[1:], first[:-1])]:
        assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1].item()) < 4.0 / 5000**0.5
    quarters = first.reshape(4, -1)
    assert float((torch.corrcoef(quarters) - torch.eye(4)).abs().max()) < 4.0 / 1250**0.5


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
def test_frozen_draws_are_the_same_mapped_looped_and_in_chunks() -> None:
    model = dubio.Bayes().convert(mlp(4, 8, 3)).to(DEVICE)
    inputs = torch.randn(5, 4, device=DEVICE)
    results = [
        dubio.predict(model, inputs, 6, seed=1, executor=executor, chunk=chunk)
        for executor, chunk in (("vmap", None), ("loop", None), ("vmap", 4))
    ]
    for one in results[1:]:
        torch.testing.assert_close(one.samples, results[0].samples)
