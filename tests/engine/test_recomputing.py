"""Draws that are recomputed in the backward pass are the same draws, with the same gradients."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine import planner
from dubio._engine.planner import plans
from dubio._engine.settings import Using
from networks import Residual, mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
METHODS = {
    "weight": dubio.Bayes(estimator="weight", init_std=0.2),
    "local": dubio.Bayes(estimator="local", init_std=0.2),
    "flipout": dubio.Bayes(estimator="flipout", init_std=0.2),
    "dropout": dubio.Dropout(p=0.3),
}


def small(method: str = "local") -> nn.Module:
    return METHODS[method].convert(mlp(5, 7, 4)).double()


@contextmanager
def scarce() -> Iterator[None]:
    """A limit into which one chunk fits, however large, and never all draws."""
    with pytest.MonkeyPatch.context() as patch, dubio.memory_limit("1 GiB"):
        patch.setattr(planner._MemoryCost, "at_once", lambda self, draws: 2**40 if draws > 3 else 1)
        patch.setattr(planner._MemoryCost, "fitting", lambda self, limit: 3)
        yield


@contextmanager
def plenty() -> Iterator[None]:
    """A limit into which everything fits."""
    with dubio.memory_limit("1 GiB"):
        yield


def step(
    model: nn.Module, inputs: Tensor = INPUTS, num_samples: int = 7, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """Draws, and the gradients of a loss that weighs each draw differently."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    draws = dubio.sample(model, inputs, num_samples, **options)
    weights = torch.arange(draws.numel(), dtype=draws.dtype).reshape(draws.shape).cos()
    result = torch.autograd.grad((draws.square() * weights).sum(), parameters, allow_unused=True)
    return draws.detach(), [gradient for gradient in result if gradient is not None]


def step_anew(model: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The same where memory is scarce: chunks as requested, and recomputed."""
    with scarce():
        outcome = step(model, *args, **options)
    assert list(plans(model).values())[-1].recompute
    return outcome


@pytest.mark.parametrize("executor", ["vmap", "loop", "auto"])
@pytest.mark.parametrize("method", METHODS)
def test_values_and_gradients_are_those_of_all_draws_at_once(method: str, executor: str) -> None:
    model = small(method)
    draws, gradients = step(model, seed=1, executor=executor)
    for chunk in (1, 3):
        result, result_gradients = step_anew(model, seed=1, executor=executor, chunk=chunk)
        torch.testing.assert_close(result, draws, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(result_gradients, gradients, rtol=1e-10, atol=1e-12)
    assert draws.std(dim=0).mean() > 1e-3


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("method", METHODS)
def test_fresh_noise_comes_back_and_the_generator_goes_on_as_ever(method: str, executor: str) -> None:
    model = small(method)
    chunk = 1 if executor == "loop" else 3
    for run in (step_anew, step):  # the first runs also plan
        run(model, executor=executor, chunk=chunk)
    outcomes = []
    for run in (step, step_anew):
        torch.manual_seed(3)
        outcomes.append((*run(model, executor=executor, chunk=chunk), torch.rand(3)))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_running_statistics_move_once(executor: str) -> None:
    """Batch norm in training pools over the draws of a chunk: chunks that keep their graph are what to compare with."""
    outcomes = []
    for run in (step, step_anew):
        torch.manual_seed(0)
        model = dubio.Bayes(init_std=0.3).convert(Residual()).double().train()
        inputs = torch.randn(6, 3, 8, 8, dtype=torch.float64)
        outcomes.append((run(model, inputs, 6, seed=1, executor=executor, chunk=2), dict(model.named_buffers())))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-9, atol=1e-11)
    assert int(outcomes[1][1]["norm.num_batches_tracked"]) == (3 if executor == "vmap" else 6)


class Counting(nn.Module):
    """Its output depends on how often it was called before, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)
        self.register_buffer("calls", torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.layer(x) * self.calls.clone()


def test_what_moves_and_matters_is_set_back_for_the_second_run() -> None:
    outcomes = []
    for run in (step, step_anew):
        torch.manual_seed(0)
        model = dubio.Bayes(init_std=0.3).convert(Counting()).double()
        outcomes.append((run(model, seed=1, chunk=3), model.calls))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-10, atol=1e-12)
    assert model.calls == 1 + 3


def test_the_second_run_has_the_modes_of_the_first() -> None:
    model = dubio.Bayes(init_std=0.3).convert(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))).double().eval()
    _, gradients = step(model, seed=1)
    with scarce():
        result = dubio.sample(model, INPUTS, 7, seed=1, chunk=3)
        model.train()
        weights = torch.arange(result.numel(), dtype=result.dtype).reshape(result.shape).cos()
        (result.square() * weights).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients, rtol=1e-10, atol=1e-12)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_gradients_reach_inputs_and_what_lies_before_them(executor: str) -> None:
    model, before = small(), nn.Linear(5, 5).double()
    results = []
    for memory in (plenty, scarce):
        inputs = INPUTS.clone().requires_grad_()
        with memory():
            draws = dubio.sample(model, (before(inputs),), 5, seed=1, executor=executor, chunk=2)
        results.append(torch.autograd.grad(draws.square().sum(), [inputs, *before.parameters(), model[0].weight]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


def test_terms_of_the_layers_are_differentiated_too() -> None:
    """The divergence from a mixture is estimated from the draws, inside the pass."""
    model = dubio.Bayes(prior=dubio.ScaleMixture(), init_std=0.2).convert(mlp(5, 7, 4)).double()
    targets = torch.arange(6) % 4
    results = []
    for limit in ("1 GiB", "130 KiB"):
        model.zero_grad()
        with dubio.memory_limit(limit):
            loss = dubio.ELBO(num_data=10)(model, INPUTS, targets, num_samples=200, seed=1)
            loss.total.backward()
        results.append((loss.total.detach(), [p.grad.clone() for p in model.parameters()]))
    (plan,) = plans(model).values()
    assert plan.recompute
    assert 1 < plan.chunk < 200
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


def test_autocast_is_that_of_the_forward() -> None:
    model = dubio.Bayes(estimator="weight", init_std=0.2).convert(mlp(5, 7, 4))
    results = []
    for memory in (plenty, scarce):
        with memory(), torch.autocast("cpu", torch.bfloat16):
            draws = dubio.sample(model, INPUTS.float(), 7, seed=1, executor="vmap", chunk=3)
        results.append(torch.autograd.grad(draws.square().sum(), list(model.parameters())))
    assert not torch.equal(draws, dubio.sample(model, INPUTS.float(), 7, seed=1, executor="vmap"))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_the_second_run_needs_nothing_of_the_thread_of_the_first(method: str) -> None:
    """On a GPU the backward pass runs in another thread."""
    model = small(method)
    parameters = list(model.parameters())
    with scarce(), dubio.antithetic(), Using(estimator="weight" if method == "local" else None):
        loss = dubio.sample(model, INPUTS, 6, seed=1, chunk=2).square().sum()
        expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    results: list[tuple[Tensor, ...]] = []
    thread = threading.Thread(target=lambda: results.append(torch.autograd.grad(loss, parameters)))
    thread.start()
    thread.join()
    torch.testing.assert_close(results, [expected], rtol=0, atol=0)


def test_a_network_may_recompute_parts_of_itself_as_well() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, checkpoint: Callable[..., Any]) -> None:
            super().__init__()
            self.inner, self.checkpoint = mlp(5, 7, 4), checkpoint

        def forward(self, x: Tensor) -> Tensor:
            return self.checkpoint(self.inner, x)

    outcomes = []
    for checkpoint, run in ((lambda function, x: function(x), step), (dubio.checkpoint, step_anew)):
        torch.manual_seed(0)
        model = dubio.Bayes(init_std=0.2).convert(Checkpointed(checkpoint)).double()
        outcomes.append(run(model, seed=1, executor="loop", chunk=1))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-10, atol=1e-12)


def test_outputs_of_any_form_come_back_in_it() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> dict[str, Any]:
            scores = self.layer(x)
            return {"scores": scores, "best": scores.argmax(dim=-1), "name": "two", "rest": (scores.detach(), None)}

    model = dubio.Bayes(init_std=0.2).convert(Two()).double()
    with scarce():
        result = dubio.sample(model, INPUTS, 5, seed=1, executor="loop", chunk=1)
    assert (result["name"], result["rest"][1]) == ("two", None)
    assert torch.equal(result["best"], result["scores"].argmax(dim=-1))
    assert [result["scores"].requires_grad, result["rest"][0].requires_grad] == [True, False]
    assert torch.equal(result["rest"][0], result["scores"])


def test_a_network_without_anything_to_learn_runs_as_it_is() -> None:
    model = small().requires_grad_(False)
    with scarce():
        assert not dubio.sample(model, INPUTS, 4, seed=1, chunk=2).requires_grad


def test_gradients_of_gradients_are_refused() -> None:
    model = small()
    with scarce():
        draws = dubio.sample(model, INPUTS, 4, seed=1, chunk=2)
    (gradient,) = torch.autograd.grad(draws.square().sum(), [model[0].weight_posterior.mean], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_weights_that_changed_before_the_backward_pass_are_noticed() -> None:
    model = small()
    with scarce():
        loss = dubio.sample(model, INPUTS, 4, seed=1, chunk=2).sum()
    with torch.no_grad():
        model[0].weight_posterior.mean += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_moving_tensors_are_probed_again_when_the_mode_of_a_part_changes() -> None:
    net = nn.Sequential(nn.Linear(5, 200), nn.BatchNorm1d(200), nn.Linear(200, 4))
    model = dubio.Bayes(init_std=0.1, estimator="local").convert(net).double()
    norm = model[1].eval()
    with dubio.memory_limit("200 KiB"):
        for moves in (False, True):
            norm.train(moves)
            draws = dubio.sample(model, INPUTS, 16, seed=1)
            (plan,) = plans(model).values()
            assert plan.recompute
            moved = int(norm.num_batches_tracked)
            draws.sum().backward()
            assert int(norm.num_batches_tracked) == moved == (-(-16 // plan.chunk) if moves else 0)


def test_a_hidden_tensor_that_asks_for_a_gradient_later_is_not_forgotten() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.hidden = mlp(5, 200, 4), [torch.ones(())]

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) * self.hidden[0]

    model = dubio.Bayes(estimator="local", init_std=0.1).convert(Tempered()).double()
    with dubio.memory_limit("200 KiB"):
        dubio.sample(model, INPUTS, 16).sum().backward()
        (plan,) = plans(model).values()
        assert plan.recompute
        model.hidden[0].requires_grad_()
        with pytest.raises(ValueError, match=r"cannot be recomputed: it uses a tensor with a gradient that is nei"):
            dubio.sample(model, INPUTS, 16)
    with dubio.memory_limit("1 GiB"):
        dubio.sample(model, INPUTS, 16).sum().backward()
    assert model.hidden[0].grad is not None


def test_a_parameter_that_learns_later_gets_its_gradient() -> None:
    model = dubio.Bayes(estimator="local", init_std=0.1).convert(mlp(5, 200, 4)).double()
    model[0].requires_grad_(False)
    with dubio.memory_limit("200 KiB"):
        for learns in (False, True):
            model[0].requires_grad_(learns)
            dubio.sample(model, INPUTS, 16, seed=1).square().sum().backward()
            (plan,) = plans(model).values()
            assert plan.recompute
            assert (model[0].weight_posterior.mean.grad is not None) == learns


@pytest.mark.parametrize("named", [False, True], ids=["a tensor", "by name"])
def test_inputs_that_changed_before_the_backward_pass_are_noticed(named: bool) -> None:
    model, inputs = small(), INPUTS.clone()
    with dubio.memory_limit("16 KiB"):
        loss = dubio.sample(model, {"input": inputs} if named else inputs, 7, seed=1).sum()
        (plan,) = plans(model).values()
    assert plan.recompute
    inputs += 1.0  # as a buffer that the next batch is read into
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inputs_from_inference_mode_can_be_computed_anew() -> None:
    model = small()
    with torch.inference_mode():
        inputs = INPUTS.clone()
    draws, gradients = step(model, INPUTS, seed=1)
    torch.testing.assert_close(step_anew(model, inputs, seed=1, chunk=3), (draws, gradients), rtol=1e-10, atol=1e-12)
