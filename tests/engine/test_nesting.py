"""Passes inside passes, compiled roots, and networks that treat inputs, outputs and attributes in unusual ways."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn

import dubio
from networks import mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


class Root(nn.Module):
    """Holds a parameter itself, and one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.layer = nn.Linear(5, 5, bias=False)
        self.again = self.layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x * self.scale), self.again(x * self.scale)


@pytest.mark.feature(
    "A compiled network draws its own parameters, keeps ties, and equals the eager one under frozen noise"
)
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_compiled_root_draws_its_own_parameters_and_keeps_ties(fullgraph: bool) -> None:
    model = dubio.Bayes(init_std=0.5).convert(Root())
    compiled = torch.compile(model, fullgraph=fullgraph, backend="aot_eager")
    first, again = compiled(INPUTS)
    torch.testing.assert_close(first, again)
    assert not torch.equal(first, compiled(INPUTS)[0])
    with dubio.frozen(seed=1):
        torch.testing.assert_close(compiled(INPUTS), model(INPUTS))
    seen = []
    model.register_forward_pre_hook(lambda module, args: seen.append(module.scale))
    model(INPUTS)
    assert not torch.equal(seen[0], torch.ones(5))


def test_a_network_called_inside_another_joins_its_pass() -> None:
    """Though it is not registered there; and a network may call itself."""

    class Student(nn.Module):
        def __init__(self, teacher: nn.Module) -> None:
            super().__init__()
            self.teacher = [teacher]
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.teacher[0](x).detach() * 0 + self.scale

    student = dubio.Bayes(init_std=0.5).convert(Student(mlp(5, 4)))
    student.teacher[0] = dubio.Bayes().convert(mlp(5, 4))
    assert not torch.equal(student(INPUTS), torch.ones(6, 4))

    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            inner = self(x, depth - 1) if depth else x * 0 + self.scale
            return torch.stack([inner.flatten()[:5], self.scale]) if depth == 2 else inner

    inner, outer = dubio.Bayes(init_std=0.5).convert(Recursive())(INPUTS)
    torch.testing.assert_close(inner, outer)
    assert not torch.equal(outer, torch.ones(5))


def test_settings_opened_inside_a_forward_are_obeyed() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with dubio.noise_off():
                mean = self.layer(x)
            return mean, self.layer(x)

    net = Half()
    model = dubio.Bayes(init_std=0.5).convert(net)
    for mean, noisy in (model(INPUTS), [part[0] for part in dubio.sample(model, INPUTS, 2)]):
        torch.testing.assert_close(mean, net.layer(INPUTS))
        assert not torch.equal(mean, noisy)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_weights_first_read_without_gradients_still_get_them(estimator: str, executor: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.layer(x)
            return self.layer(x) - 0 * target

    model = dubio.Bayes(estimator=estimator).convert(Twice())
    dubio.sample(model, INPUTS, 2, seed=1, executor=executor).square().sum().backward()
    assert model.layer.weight_posterior.rho.grad.abs().sum() > 0


def test_a_network_that_changes_its_inputs_is_refused_several_draws() -> None:
    class Standardising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.sub_(0.5))

    model = dubio.Bayes().convert(Standardising())
    for work in (lambda: dubio.sample(model, INPUTS.clone(), 3), lambda: dubio.predict(model, INPUTS.clone(), 3)):
        with pytest.raises(RuntimeError, match="changes its inputs in place"):
            work()


def test_names_of_a_users_module_are_left_alone() -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(5))
            self.estimator = nn.Linear(5, 3)
            self.noise_key = "mine"

        def _value(self, x: Tensor) -> Tensor:
            return self.estimator(x) + 1

        def _posterior(self) -> str:
            return self.noise_key

        def forward(self, x: Tensor) -> Tensor:
            assert self._posterior() == "mine"
            return self._value(x * self.gain)

    net = Critic()
    model = dubio.Bayes().convert(net)
    with dubio.noise_off():
        assert torch.equal(model(INPUTS), net(INPUTS))
    assert dubio.sample(model, INPUTS, 3, seed=1).std(dim=0).mean() > 0

    class Taken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(5))
            self.gain_posterior = nn.Linear(5, 5)

    with pytest.raises(ValueError, match="it has a gain_posterior of its own"):
        dubio.Bayes().convert(Taken())


def test_a_module_that_keeps_tensors_of_the_forward_runs_looped_and_can_be_copied() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.layer(x).detach()
            self.count += 1
            return self.layer(x)

    model = dubio.Bayes(estimator="weight").convert(Keeps()).eval()
    with pytest.warns(dubio.ExecutorWarning, match="keeps a tensor of the forward on itself"):
        dubio.sample(model, INPUTS, 3)
    assert int(model.count) == 3  # the trials left no trace
    copy.deepcopy(model)
    pickle.dumps(model.state_dict())


def test_predictions_in_several_threads_all_run_in_eval_mode() -> None:
    modes: list[bool] = []
    slow = threading.Barrier(2, timeout=20)

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return self.layer(x)

    model = dubio.Bayes().convert(Watching()).train()

    def work(times: int) -> None:
        slow.wait()
        for _ in range(times):
            dubio.predict(model, INPUTS, 2, executor="loop")

    threads = [threading.Thread(target=work, args=(times,)) for times in (2, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(modes)
    assert model.training


def test_a_part_keeps_its_draws_when_it_joins_a_larger_network() -> None:
    part, twin = (dubio.Bayes(estimator="weight").convert(mlp(5, 5)) for _ in range(2))
    twin.load_state_dict(part.state_dict())
    before = dubio.sample(part, INPUTS, 2, seed=3)
    both = dubio._engine.attach(nn.Sequential(part, twin))
    dubio.sample(both, INPUTS, 2, seed=3)
    torch.testing.assert_close(dubio.sample(part, INPUTS, 2, seed=3), before)
    assert (dubio.sample(twin, INPUTS, 2, seed=3) - before).abs().max() > 1e-3
    assert not torch.equal(part(INPUTS), part(INPUTS))  # it still draws when called by itself


def test_outputs_without_tensors_are_carried_or_refused() -> None:
    class Pair(nn.Module):
        def __init__(self, second: object) -> None:
            super().__init__()
            self.layer, self.second = nn.Linear(5, 4), second

        def forward(self, x: Tensor) -> object:
            return self.layer(x), self.second() if callable(self.second) else self.second

    with pytest.warns(dubio.ExecutorWarning):
        outputs, nothing = dubio.sample(dubio.Bayes().convert(Pair(None)), INPUTS, 3)
    assert outputs.shape == (3, 6, 4)
    assert nothing is None
    model = dubio.Bayes().convert(Pair(object))
    with pytest.raises(TypeError, match="outputs must be tensors"):
        dubio.sample(model, INPUTS, 3, executor="loop")
