"""A module looped at the leaf of a mapped network: each draw is computed apart, with its own weights and noise."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.passes import current_pass, is_mapped
from dubio.nn.vmappable import call_outside_vmap, loop_inside_vmap


class Looped(nn.Module):
    """Any module, run draw by draw where it is mapped."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = current_pass()
        if run is None or not run.mapped:
            return self.inner(*args, **kwargs)
        return loop_inside_vmap(self, self.inner, *args, **kwargs)


class Spread(nn.Module):
    """Decides by the value of a number, which no map can do, and returns a container with more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, *, mask: Tensor, scale: float = 1.0) -> dict[str, Any]:
        chosen = self.left if x.sum() > 0 else self.right
        return {"values": (chosen(x) * mask * scale, x.amax(dim=0)), "note": "as it was", "scale": scale}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 6)
        self.leaf = Looped(Spread())
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.leaf(self.embed(x), mask=torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 2.0]).to(x), scale=0.5)
        assert outputs["note"] == "as it was"
        return self.head(outputs["values"][0] * outputs["scale"] + outputs["values"][1])


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize("where", [None, "embed", "leaf.*"])
def test_draws_and_gradients_of_a_looped_leaf_are_those_of_the_loop(where: str | None, estimator: Any) -> None:
    model = dubio.Bayes(where=where, estimator=estimator, init_std=0.5).convert(Net()).double()
    inputs = torch.randn(3, 5).double()
    found = []
    for executor in ("vmap", "loop"):
        model.zero_grad()
        outputs = dubio.sample(model, inputs, 8, seed=2, executor=executor)
        outputs.square().sum().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        found.append((outputs.detach(), gradients))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
    assert found[0][0].std(dim=0).min() > 0  # no draw stands for the others


def test_a_leaf_in_front_of_the_noise_runs_once() -> None:
    model = dubio.Bayes(where="head").convert(Net())
    calls = []
    model.leaf.inner.register_forward_hook(lambda module, args, output: calls.append(is_mapped(args)))
    dubio.sample(model, torch.randn(3, 5), 8, executor="vmap")
    assert calls == [False]


def test_a_looped_leaf_leaves_the_pass_of_the_network_in_place() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 6), Looped(Fails())))
    with pytest.raises(ZeroDivisionError):
        dubio.sample(model, torch.randn(3, 5), 2, executor="vmap")
    assert current_pass() is None


def test_collected_terms_of_a_looped_leaf_are_counted_once_a_draw() -> None:
    model = dubio.Bayes(prior=dubio.ScaleMixture(), estimator="weight").convert(
        nn.Sequential(nn.Linear(5, 6), Looped(nn.Linear(6, 4)))
    )
    inputs = torch.randn(3, 5)
    terms = [
        dubio._engine.run(model, inputs, 4, seed=1, executor=executor, collecting=("divergence",)).terms["divergence"]
        for executor in ("vmap", "loop")
    ]
    torch.testing.assert_close(*terms)
    torch.testing.assert_close(terms[0].mean(), dubio.divergence(model, 4, seed=1))


def test_a_rule_sees_the_draws_apart_and_shared_tensors_whole() -> None:
    shared, many = torch.randn(3), torch.randn(4, 3)
    seen: list[Any] = []

    def rule(num_samples: int, tensors: Any, axes: Any) -> tuple[Tensor, ...]:
        seen.append((num_samples, [tuple(tensor.shape) for tensor in tensors], list(axes), is_mapped(*tensors)))
        return (tensors[0] + tensors[1],)

    def one(row: Tensor) -> Tensor:
        assert is_mapped(row)
        assert not is_mapped(shared)
        return call_outside_vmap(rule, [row, shared])[0]

    torch.testing.assert_close(torch.func.vmap(one)(many), many + shared)
    assert seen == [(4, [(4, 3), (3,)], [0, None], False)]
