"""A memory limit holds for requested chunks, one draw, other inputs, and trials themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.memory import Footprint
from dubio._engine.planner import plans
from networks import mlp

KIB, MIB = 2**10, 2**20
SLACK = 64 * KIB
"""What comes on top of a limit, however many draws there are: losses, statistics and generators."""
INPUTS = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))


def network(estimator: str = "local", width: int = 100) -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=0.1).convert(mlp(20, width, width, 5))


@pytest.mark.parametrize("gradients", [False, True])
def test_a_requested_chunk_does_not_lift_the_limit(gradients: bool) -> None:
    model = network()
    with torch.set_grad_enabled(gradients), dubio.memory_limit("2 MiB"):
        for requested in (50, 2):
            with Footprint() as footprint:
                draws = dubio.sample(model, INPUTS, 60, chunk=requested)
                if gradients:
                    draws.sum().backward()
            assert footprint.peak <= 2 * MIB + 64 * KIB
            (plan,) = plans(model).values()
            assert plan.chunk == requested if requested == 2 else 2 < plan.chunk < requested
            assert ("as requested" in plan.reason) == (requested == 2)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("executor", ["auto", "vmap", "loop"])
def test_one_draw_has_a_limit(executor: str, gradients: bool) -> None:
    model = network()
    with torch.set_grad_enabled(gradients), dubio.memory_limit("20 KiB"):
        with pytest.raises(ValueError, match=r"must leave room for one draw, [0-9.]+ KiB at 64 rows.* got 20\.0 KiB"):
            dubio.sample(model, INPUTS, executor=executor)
        assert plans(model) == {}
    with torch.set_grad_enabled(gradients), dubio.memory_limit("1 MiB"):
        assert dubio.sample(model, INPUTS, executor=executor).shape == (1, 64, 5)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("executor", ["auto", "loop"])
@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.BatchNorm2d(64)], ids=["plain", "batch norm"])
def test_trials_keep_to_the_limit_and_tell_what_it_would_take(norm: Any, executor: Any, gradients: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), norm(), nn.ReLU(), nn.Conv2d(64, 3, 3), nn.Flatten())
    model, images = dubio.Bayes().convert(net), torch.rand(128, 3, 16, 16)
    with torch.set_grad_enabled(gradients), Footprint() as footprint, dubio.memory_limit("3 MiB"):
        with pytest.raises(ValueError, match="must leave room for one draw") as raised:
            dubio.sample(model, images, 10, executor=executor)
        assert footprint.peak <= 3 * MIB
    stated = float(str(raised.value).split("one draw, ")[1].split(" MiB")[0])
    needed = dubio.plan(model, images, 1, memory="1 GiB", gradients=gradients).bytes_in_all
    assert stated == pytest.approx(needed / MIB, rel=0.1 if executor == "auto" else 0.5)


def test_a_limit_that_fits_is_not_refused_for_what_few_rows_tell() -> None:
    model = network("weight", width=300)  # weights take far more than activations
    needed = dubio.plan(model, INPUTS, 1, memory="1 GiB").bytes_in_all
    assert dubio.plan(network("weight", width=300), INPUTS, 1, memory=needed).bytes_in_all == needed


class Attending(nn.Module):
    """Takes memory by the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.keys, self.last = nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        result = self.embedding(tokens)
        weights = (self.keys(result) @ result.mT).softmax(dim=-1)
        return self.last((weights @ result).mean(dim=1))


def test_other_inputs_of_the_same_size_are_tried_for_themselves() -> None:
    model = dubio.Bayes().convert(Attending()).eval()
    short, long = torch.randint(50, (128, 2)), torch.randint(50, (1, 256))
    with torch.no_grad(), dubio.memory_limit("2 MiB"):
        for tokens in (short, long):
            with Footprint() as footprint:
                dubio.sample(model, tokens, 20)
            assert footprint.peak <= 2 * MIB + SLACK
    with Footprint() as footprint, dubio.memory_limit("2 MiB"):
        dubio.predict(model, iter([short, long]), 20, keep_samples=False)
    assert footprint.peak <= 2 * MIB + SLACK


def test_other_numbers_are_tried_for_themselves() -> None:
    model = network()
    chunks = []
    with torch.no_grad(), dubio.memory_limit("2 MiB"):
        for dtype in (torch.float32, torch.float64):
            dubio.sample(model.to(dtype), INPUTS.to(dtype), 50)
            (plan,) = plans(model).values()
            chunks.append(plan.chunk)
    assert chunks[1] <= -(-chunks[0] // 2)


def test_what_is_collected_counts() -> None:
    model = dubio.Bayes(prior=dubio.ScaleMixture(), init_std=0.1).convert(mlp(20, 200, 5))
    few = INPUTS[:4]
    plain = dubio.plan(model, few, 20, memory="2 MiB", gradients=True)
    collected = dubio.plan(model, few, 20, memory="2 MiB", gradients=True, collecting=("divergence",))
    assert collected.bytes_per_draw > plain.bytes_per_draw
    with Footprint() as footprint, dubio.memory_limit("2 MiB"):
        dubio.sample(model, few, 20).sum().backward()
        dubio.ELBO(num_data=100)(model, few, torch.arange(4), num_samples=20).total.backward()
    assert footprint.peak <= 2 * MIB + SLACK + 3 * sum(parameter.nbytes for parameter in model.parameters())
