"""``Members`` by themselves: any inputs and outputs, nested maps, parameters and modes."""

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.passes import attach
from dubio.nn.ensemble import Members
from dubio.nn.sources import noise_parameters
from networks import TwoInputs, mlp

LEFT, RIGHT = torch.randn(6, 5), torch.randn(6, 3)


def members(count: int = 3) -> nn.Module:
    return attach(Members([TwoInputs() for _ in range(count)]))


@pytest.mark.parametrize("inputs", [(LEFT, RIGHT), {"left": LEFT, "right": RIGHT}], ids=["tuple", "dict"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_inputs_go_to_every_member(inputs: object, executor: str) -> None:
    model = members()
    expected = torch.stack([member(LEFT, RIGHT) for member in model.members])
    torch.testing.assert_close(dubio.sample(model, inputs, 3, executor=executor), expected)  # type: ignore[arg-type]


def test_mapped_gradients_reach_each_member_alone() -> None:
    model = members()
    outputs = dubio.sample(model, (LEFT, RIGHT), 3, executor="vmap")
    outputs[1].square().sum().backward()
    for place, member in enumerate(model.members):
        (gradient, *_) = torch.autograd.grad(member(LEFT, RIGHT).square().sum(), list(member.parameters()))
        found = member.left.weight.grad
        torch.testing.assert_close(found, gradient if place == 1 else torch.zeros_like(gradient))


def test_a_map_over_a_map_gives_the_same_members() -> None:
    model = attach(Members([mlp(5, 4, 3) for _ in range(2)]))

    def draws(x: Tensor) -> Tensor:
        outputs: Tensor = dubio.sample(model, x, 2, executor="vmap")
        return outputs

    inputs = torch.randn(3, 6, 5)
    expected = torch.stack([draws(x) for x in inputs])
    torch.testing.assert_close(torch.func.vmap(draws)(inputs), expected)


def test_members_are_ordinary_networks() -> None:
    model = members()
    assert not noise_parameters(model)
    assert model.describe() == "3 members"
    assert not any(member.training for member in model.eval().members)
    assert not Members([mlp(5, 3).eval()]).training


def test_a_first_draw_beyond_the_members_goes_on_counting() -> None:
    model = members()
    outputs = [dubio._engine.run(model, (LEFT, RIGHT), 2, first_draw=first).outputs for first in (0, 2)]
    expected = torch.stack([model.members[place](LEFT, RIGHT) for place in (0, 1, 2, 0)])
    torch.testing.assert_close(torch.cat(outputs), expected)
