"""A step of training: the numbers are the same whichever way it runs; what stands in the way of one is said."""

import copy
import dataclasses
import json
from types import SimpleNamespace
from typing import Any, cast

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine import STATE, Stream
from dubio.attacks.gradient import APGD, PGD
from dubio.data.batches import Batch
from dubio.training import batch_loss
from dubio.training.batch_loss import MOST_CHANGES, OTHERS_TO_CHANGE, Place, Shapes, metric_names, metric_sums
from dubio.training.diagnosis import BrokenLossError
from dubio.training.optimizers import load_optimizer_state, make_capturable, match_layouts, set_learning_rates
from dubio.training.processes import ALONE
from dubio.training.steps import TRIALS, CapturedStep, CompileTrial, Step, choose_step, why_not_captured
from networks import mlp

INPUTS = torch.rand(12, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (12,), generator=torch.Generator().manual_seed(2))
ATTACK = PGD(epsilon=0.1, steps=2, num_samples=2)

OBJECTIVES: dict[str, tuple[Any, Any]] = {
    "bayes": (dubio.Bayes(), dubio.ELBO(40)),
    "bayes, drawn weights": (dubio.Bayes(estimator="weight"), dubio.ELBO(40)),
    "dropout, alpha": (dubio.Dropout(), dubio.Alpha(0.5, num_data=40)),
    "flow": (dubio.Flow(), dubio.ELBO(40)),
    "ensemble": (dubio.Ensemble(2), dubio.Ensemble(2).objective(40)),
    "bayes, adversarial": (dubio.Bayes(), dubio.Adversarial(dubio.ELBO(40), ATTACK)),
    "bayes, warm-up and geometric": (dubio.Bayes(), dubio.ELBO(40, warmup=2, kl_weighting="geometric")),
}
QUICK = ("bayes", "bayes, warm-up and geometric")


@pytest.fixture
def traced(quick_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without writing code: what is traced is what inductor would get."""
    monkeypatch.setattr(batch_loss, "BACKEND", "aot_eager")


def make(method: Any = None) -> nn.Module:
    torch.manual_seed(0)
    return (method or dubio.Bayes()).convert(mlp(6, 8, 3)).train()


def steps_of(model: nn.Module, objective: Any, **options: Any) -> Step:
    return Step(model, objective, torch.optim.Adam(model.parameters(), lr=0.05), num_samples=2, **options)


def train(model: nn.Module, objective: Any, fast: Any, num_steps: int = 3) -> tuple[Step, list[float]]:
    step = steps_of(model, objective, fast=fast)
    torch.manual_seed(5)
    losses = []
    for number in range(num_steps):
        with torch._dynamo.config.patch(error_on_recompile=number > 0):  # once is enough
            loss = step(INPUTS, TARGETS, batch_index=number, num_batches=4, epoch=number / 4)
        losses.append(float(loss.total))
    return step, losses


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in OBJECTIVES]
)
def test_compiled_steps_equal_eager_ones(name: str, traced: None) -> None:
    method, objective = OBJECTIVES[name]
    models = [make(method) for _ in range(2)]
    (eager, expected), (compiled, losses) = (
        train(model, objective, fast) for model, fast in zip(models, (False, True), strict=True)
    )
    assert (eager.mode, compiled.mode) == ("eager", "compiled")
    assert losses == pytest.approx(expected, rel=1e-5)
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.feature("Compiled training steps give the numbers of eager ones")
def test_steps_compiled_by_inductor_equal_eager_ones(compiler: None) -> None:
    # With torch 2.11, compiled code may draw the noise of two layers' activations in the other order.
    estimator: Any = "weight" if torch.__version__.startswith("2.11.") else "local"
    models = [make(dubio.Bayes(estimator=estimator)) for _ in range(2)]
    (_, expected), (step, losses) = (
        train(model, dubio.ELBO(40), fast) for model, fast in zip(models, (False, True), strict=True)
    )
    assert step.mode == "compiled"
    assert losses == pytest.approx(expected, rel=1e-4)


def test_a_step_is_the_objective_its_gradient_and_the_update() -> None:
    model = make()
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    loss = Step(model, dubio.ELBO(40), torch.optim.SGD(model.parameters(), lr=0.1), num_samples=2)(INPUTS, TARGETS)
    torch.manual_seed(3)
    expected = dubio.ELBO(40)(twin, INPUTS, TARGETS, 2)
    expected.total.backward()
    torch.testing.assert_close(loss.total, expected.total.detach())
    for moved, before in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(moved, before - 0.1 * before.grad)
    assert not any(tensor.requires_grad for tensor in (loss.total, loss.nll, *loss.terms.values()))


def test_gradients_are_clipped() -> None:
    model = make()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    Step(model, dubio.ELBO(40), torch.optim.SGD(model.parameters(), lr=1.0), clip_norm=0.01)(INPUTS, TARGETS)
    moves = torch.cat([(new - old).flatten() for new, old in zip(model.parameters(), before, strict=True)])
    assert float(moves.detach().norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_fastest_step_without_an_obstacle_is_chosen() -> None:
    model = make()
    step = steps_of(model, dubio.ELBO(40))
    eager, compiled = step._eager, step._compiled
    captured = CapturedStep(compiled, "several processes share each step")
    assert choose_step([captured, compiled, eager]) == (compiled, "several processes share each step")
    assert choose_step([compiled, eager]) == (compiled, "")
    compiled.give_up("the compiler gave up")
    assert choose_step([captured, compiled, eager]) == (eager, "the compiler gave up")
    assert CapturedStep(compiled, "").obstacle == "the compiler gave up"


def test_the_mode_of_a_run_is_a_value_that_equals_its_word() -> None:
    data = INPUTS, TARGETS
    run = dubio.fit(make(), data, epochs=1, progress=False)
    assert run.mode is dubio.StepMode.EAGER
    assert run.mode == "eager"
    assert json.dumps({"mode": run.mode}) == '{"mode": "eager"}'
    assert f"{run.mode}" == "eager"


def test_batches_of_another_shape_are_not_compiled_anew(traced: None) -> None:
    step = steps_of(make(), dubio.ELBO(40), fast=True)
    step(INPUTS, TARGETS)
    with torch._dynamo.config.patch(error_on_recompile=True):
        step(INPUTS[:5], TARGETS[:5])
        step(INPUTS, TARGETS)
    assert step.mode == "compiled"


class Asking(nn.Module):
    """A network that a compiler cannot follow: it asks for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) if inputs.sum().item() > -1e9 else inputs


def test_what_cannot_be_compiled_runs_eagerly_and_says_why_once(traced: None) -> None:
    model = dubio.Bayes().convert(Asking()).train()
    step = steps_of(model, dubio.ELBO(40))
    step._use([step._compiled, step._eager])  # as on a GPU
    assert step.mode == "compiled"
    step(INPUTS, TARGETS)
    assert step.mode == "eager"
    assert step.reason.startswith("the compiler gave up: ")
    assert step.message() == f"steps run eager, since {step.reason}"
    assert step.message() == ""
    step(INPUTS, TARGETS)


def test_who_insists_on_speed_hears_what_stands_in_the_way(traced: None) -> None:
    model = dubio.Bayes().convert(Asking()).train()
    with pytest.raises(Exception, match="item"):
        steps_of(model, dubio.ELBO(40), fast=True)(INPUTS, TARGETS)


def test_what_is_wrong_with_a_batch_is_said_as_in_eager_steps(traced: None) -> None:
    with pytest.raises(ValueError, match="input of a Linear must have 6 features"):
        steps_of(make(), dubio.ELBO(40), fast=True)(INPUTS[:, :4], TARGETS)


def test_a_loss_that_is_not_finite_is_refused_before_it_does_harm() -> None:
    model = make()
    step = steps_of(model, dubio.ELBO(40))
    step(INPUTS, TARGETS)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BrokenLossError, match="loss is nan, from 0") as caught:
        step(INPUTS * torch.nan, TARGETS)
    assert caught.value.num_steps == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_sums_count_examples_and_metrics() -> None:
    model = make()
    step = steps_of(model, dubio.ELBO(40))
    loss = step.learn(Batch(INPUTS, TARGETS), Place()).loss
    assert metric_names(loss) == ("loss", "nll", "divergence", "accuracy")
    labels = loss.log_probs.exp().mean(dim=0).argmax(dim=1)
    right = float((labels == TARGETS).float().mean())
    expected = [1.0, float(loss.total), float(loss.nll), float(loss.terms["divergence"]), right]
    assert metric_sums(loss, TARGETS).tolist() == pytest.approx([12 * value for value in expected], rel=1e-6)


def test_another_shape_is_compiled_for_when_it_comes_again_and_again() -> None:
    shapes = Shapes()
    assert shapes.notice(("short",))  # a run taken up just before the last batch of an epoch
    assert [shapes.notice(("full",)) for _ in range(OTHERS_TO_CHANGE)] == [False] * (OTHERS_TO_CHANGE - 1) + [True]
    assert shapes.chosen == ("full",)
    for _ in range(10):  # now and then a short one changes nothing
        assert not shapes.notice(("short",))
        assert not shapes.notice(("full",))
    changes = sum(shapes.notice((number // OTHERS_TO_CHANGE,)) for number in range(100))
    assert changes == MOST_CHANGES - 1  # data of ever other shapes are not compiled for each of them


@pytest.mark.slow
def test_many_networks_are_compiled_in_one_process(traced: None) -> None:
    kept = []
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(3):  # more than torch compiles one function for
            step = steps_of(make(), dubio.ELBO(40), fast=True)
            step(INPUTS, TARGETS)
            kept.append(step)
    assert {(step.mode, step.reason) for step in kept} == {("compiled", "")}


class Failing(torch.optim.SGD):
    """Changes the parameters, and finds no memory then."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        raise torch.OutOfMemoryError("no memory for the rest of the update")


def test_an_update_that_runs_out_of_memory_is_not_made_twice() -> None:
    model = make()
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    with pytest.raises(torch.OutOfMemoryError, match="the rest of the update"):
        Step(model, dubio.ELBO(40), Failing(model.parameters(), lr=0.1), num_samples=2)(INPUTS, TARGETS)
    torch.manual_seed(3)
    Step(twin, dubio.ELBO(40), torch.optim.SGD(twin.parameters(), lr=0.1), num_samples=2)(INPUTS, TARGETS)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_members_with_batch_norm_learn_the_same_compiled_and_eagerly(traced: None) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    fast, eager = (dubio.Ensemble(2).convert(net).train() for _ in range(2))
    eager.load_state_dict(fast.state_dict())
    for model, mode in ((fast, "compiled"), (eager, "eager")):
        step = steps_of(model, dubio.Ensemble(2).objective(40), fast=mode == "compiled")
        for _ in range(3):
            step(INPUTS, TARGETS)
        assert step.mode == mode
    assert int(fast.members[1][1].num_batches_tracked) == 3
    torch.testing.assert_close(dict(fast.state_dict()), dict(eager.state_dict()), rtol=1e-4, atol=1e-5)


def test_inputs_that_cannot_be_attacked_are_refused_in_words() -> None:
    step = steps_of(make(), dubio.Adversarial(dubio.ELBO(40), ATTACK))
    with pytest.raises(TypeError, match="inputs must be one tensor to be attacked, got tuple"):
        step((INPUTS,), TARGETS)


def test_what_an_optimiser_keeps_is_laid_out_like_its_parameters() -> None:
    weight = nn.Parameter(torch.randn(4, 3, 2, 2))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    kept = optimizer.state[weight]["exp_avg"].clone()
    weight.data = weight.data.to(memory_format=torch.channels_last)
    match_layouts(optimizer)
    assert optimizer.state[weight]["exp_avg"].stride() == weight.stride()
    assert torch.equal(optimizer.state[weight]["exp_avg"], kept)


class Scaled(dubio.ELBO):
    """An objective with a parameter of its own."""

    def __call__(self, model: nn.Module, *args: Any, **options: Any) -> dubio.Loss:
        loss = super().__call__(model, *args, **options)
        return dataclasses.replace(loss, total=loss.total * self.scale)


def test_parameters_of_an_objective_learn_from_the_mean_over_rows_too() -> None:
    model, scale = make(), nn.Parameter(torch.tensor(1.5))
    objective = Scaled(40)
    object.__setattr__(objective, "scale", scale)
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    loss = Step(model, objective, optimizer)(INPUTS, TARGETS)
    assert float(scale.detach()) == pytest.approx(1.5 - 0.1 * float(loss.total) / 1.5, rel=1e-5)


def test_gradients_of_what_is_not_updated_do_not_add_up() -> None:
    model = make()
    updated, left = list(model.parameters())[-2:], next(model.parameters())
    step = Step(model, dubio.ELBO(40), torch.optim.SGD(updated, lr=0.0), num_samples=2)
    with dubio.noise_off():
        gradients = [(step(INPUTS, TARGETS), left.grad.clone())[1] for _ in range(2)]
    torch.testing.assert_close(gradients[0], gradients[1])


class OnlyForward(nn.Module):
    """A network whose compiled backward pass fails, and whose statistics move before it does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return one_way(self.layer(self.norm(inputs)), torch.compiler.is_compiling())


@torch.library.custom_op("dubio_tests::one_way", mutates_args=())
def one_way(input: Tensor, fails: bool) -> Tensor:
    return input.clone()


@one_way.register_fake
def _(input: Tensor, fails: bool) -> Tensor:
    return torch.empty_like(input)


@torch.library.custom_op("dubio_tests::way_back", mutates_args=())
def way_back(gradient: Tensor, fails: bool) -> Tensor:
    if fails:
        raise NotImplementedError("no compiled backward pass")
    return gradient.clone()


@way_back.register_fake
def _(gradient: Tensor, fails: bool) -> Tensor:
    return torch.empty_like(gradient)


def _go_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return way_back(gradient, ctx.fails), None


one_way.register_autograd(_go_back, setup_context=lambda ctx, inputs, output: setattr(ctx, "fails", inputs[1]))


def test_a_compiled_step_that_fails_is_taken_eagerly_and_moves_statistics_once(traced: None) -> None:
    model = dubio.Deterministic().convert(OnlyForward()).train()
    step = steps_of(model, dubio.ELBO(40))
    step(INPUTS, TARGETS)
    step._use([step._compiled, step._eager])  # other code than what has just worked
    step(INPUTS, TARGETS)
    assert step.mode == "eager"
    assert step.reason.startswith("the compiler gave up")
    assert int(model.norm.num_batches_tracked) == 2


def test_a_trial_whose_compiled_steps_fail_ends_with_eager_ones(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubio.training.steps.LONG", 0.0)
    model = dubio.Deterministic().convert(OnlyForward()).train()
    step = Step(model, dubio.ELBO(40), torch.optim.SGD(model.parameters(), lr=0.1), num_steps=100)
    for _ in range(3 * TRIALS):
        step(INPUTS, TARGETS)
    assert step.settled is False
    assert step.mode == "eager"
    assert step.reason.startswith("the compiler gave up")
    assert int(model.norm.num_batches_tracked) == 3 * TRIALS


def test_draws_that_would_share_other_statistics_are_not_tried_compiled() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = dubio.Bayes().convert(net).train()
    several, one = (
        Step(model, dubio.ELBO(40), torch.optim.SGD(model.parameters()), num_samples=number, num_steps=10**9)
        for number in (2, 1)
    )
    assert several._trial is None
    assert one._trial is not None


def test_batches_of_ever_other_shapes_are_told(traced: None) -> None:
    step = steps_of(make(dubio.Deterministic()), dubio.ELBO(40), fast=True)
    for number in range(12):
        rows = 3 + number % 7
        step(INPUTS[:rows], TARGETS[:rows])
    assert (step.mode, step.reason) == ("eager", "most batches have other shapes")
    assert step.message() == "steps run eager, since most batches have other shapes"


def test_what_would_train_nothing_is_refused() -> None:
    model, other = make(), make()
    with pytest.raises(ValueError, match="optimizer must update parameters of the model"):
        Step(model, dubio.ELBO(40), torch.optim.SGD(other.parameters()))
    with pytest.raises(ValueError, match=r"clip_norm must be positive, got -1\.0"):
        Step(model, dubio.ELBO(40), torch.optim.SGD(model.parameters()), clip_norm=-1.0)
    with pytest.raises(ValueError, match="model must have parameters to train, got a ReLU without any"):
        Step(nn.ReLU(), dubio.ELBO(40), torch.optim.SGD(other.parameters()))


# Memory


class Crowded(nn.Linear):
    """A layer that finds no memory for more than some draws at a time, or in a backward pass."""

    most, in_backward = 2, False

    def forward(self, input: Tensor) -> Tensor:
        return crowded(super().forward(input), self.most, self.in_backward)


@torch.library.custom_op("dubio_tests::crowded", mutates_args=())
def crowded(input: Tensor, most: int, in_backward: bool) -> Tensor:
    if not in_backward and len(input) > most * len(INPUTS):
        raise torch.OutOfMemoryError("no memory for so many draws")
    return input.clone()


def _mapped(info: Any, dims: Any, input: Tensor, most: int, in_backward: bool) -> tuple[Tensor, int]:
    rows = input.movedim(dims[0], 0)
    return crowded(rows.flatten(0, 1), most, in_backward).unflatten(0, rows.shape[:2]), 0


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    if ctx.in_backward and gradient.numel() > ctx.most * ctx.size:
        raise torch.OutOfMemoryError("no memory for so many gradients")
    return gradient, None, None


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.most, ctx.in_backward, ctx.size = inputs[1], inputs[2], len(INPUTS) * 3


crowded.register_vmap(_mapped)
crowded.register_autograd(_backward, setup_context=_keep)


@pytest.mark.slow
@pytest.mark.parametrize("in_backward", [False, True])
def test_a_step_that_runs_out_of_memory_is_taken_with_fewer_draws_at_a_time(in_backward: bool) -> None:
    torch.manual_seed(0)
    last = Crowded(8, 3)
    last.in_backward = in_backward
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), last)
    model = dubio.Bayes(where="0").convert(net).train()
    step = Step(model, dubio.ELBO(40), torch.optim.SGD(model.parameters(), lr=0.1), num_samples=8)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = step(INPUTS, TARGETS)
    assert loss.log_probs.shape[0] == 8
    assert any(not torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True))
    assert "after running out of memory" in str(dubio.describe(model))


class Interrupted(dubio.ELBO):
    """An objective that finds no memory at its first call, and is interrupted at its second one."""

    num_calls = 0

    def __call__(self, model: nn.Module, *args: Any, **options: Any) -> dubio.Loss:
        loss = super().__call__(model, *args, **options)
        Interrupted.num_calls += 1
        if Interrupted.num_calls == 1:
            raise torch.OutOfMemoryError("no memory for the rest of the loss")
        if Interrupted.num_calls == 2:
            raise KeyboardInterrupt
        return loss


def test_an_interrupt_while_a_step_is_repeated_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupted, "num_calls", 0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    model = dubio.Bayes().convert(net).train()
    model[3].eval()
    step = steps_of(model, Interrupted(40), precision="tf32")

    def around() -> list[Any]:
        modes = [module.training for module in model.modules()]
        hooks = [list(module._forward_hooks) + list(module._forward_pre_hooks) for module in model.modules()]
        switches = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
        return [modes, hooks, switches, STATE.own.settings, STATE.own.current, STATE.own.stream, step.num_rows]

    before, weights = around(), [parameter.detach().clone() for parameter in model.parameters()]
    with Stream(3).in_use() as stream:
        during = around()
        with pytest.raises(KeyboardInterrupt):
            step(INPUTS, TARGETS)
        assert around() == during
        assert not stream.is_lent
    assert around() == before
    assert Interrupted.num_calls == 2
    assert int(model[1].num_batches_tracked) == 2  # of the draws of the second attempt: those of the first are undone
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), weights, strict=True))
    step(INPUTS, TARGETS)
    assert not any(torch.equal(*pair) for pair in zip(model.parameters(), weights, strict=True))


def test_what_no_forward_changes_is_not_copied_before_a_step() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = dubio.Bayes(prior=dubio.CentredNormal(1.0)).convert(net).train()
    dubio.prune(model, 0.5)
    assert any(name.endswith("centre") for name, _ in model.named_buffers())
    assert any(name.endswith("removed") for name, _ in model.named_buffers())
    step = steps_of(model.train(), dubio.ELBO(40))
    step(INPUTS, TARGETS)
    copied = {name for _, name, _ in step._eager._statistics._tensors}
    assert copied == {"running_mean", "running_var", "num_batches_tracked"}


def test_a_memory_limit_leaves_the_compiler_out_where_all_draws_do_not_fit(traced: None) -> None:
    models = [make() for _ in range(2)]
    with dubio.memory_limit("12 KiB"):
        small = Step(models[0], dubio.ELBO(40), torch.optim.SGD(models[0].parameters(), lr=0.1), num_samples=20)
        small._use([small._compiled, small._eager])
        small(INPUTS, TARGETS)
    assert (small.mode, small.reason) == ("eager", "the memory limit leaves no room for all draws at once")
    with dubio.memory_limit("1 GiB"):
        trying = Step(models[0], dubio.ELBO(40), torch.optim.SGD(models[0].parameters(), lr=0.1), num_steps=10**9)
        assert trying._trial is None  # what a trial would choose might not fit
        large = Step(models[1], dubio.ELBO(40), torch.optim.SGD(models[1].parameters(), lr=0.1), fast=True)
        large(INPUTS, TARGETS)
    assert large.mode == "compiled"


@pytest.mark.slow
def test_a_step_that_falls_back_lets_go_of_its_recording(traced: None) -> None:
    step = steps_of(make(), dubio.ELBO(40), fast=True)
    step(INPUTS, TARGETS)
    step._captured = CapturedStep(step._compiled, "")  # as on a GPU
    step._captured.recording = cast(Any, SimpleNamespace(is_ready=True, captured=SimpleNamespace(seconds=1.0)))
    step._use([step._captured, step._compiled, step._eager])
    assert (step.mode, step.capture_seconds) == ("captured", 1.0)
    with pytest.raises(ValueError, match="cannot be recorded, since several batches make up a step"):
        step.learn(Batch(INPUTS, TARGETS, None), Place(0, 4, 0.0), complete=False)
    step._compiled.is_required = False
    step.learn(Batch(INPUTS, TARGETS, None), Place(0, 4, 0.0), complete=False)
    assert (step.mode, step.reason) == ("compiled", "several batches make up a step")
    assert step.capture_seconds == 0.0


# The trial on a CPU


def times(trial: CompileTrial, eager: float, compiled: float, num_steps: int = 40) -> CompileTrial:
    for _ in range(num_steps):
        trial.note(compiled if trial.compiled_next else eager)
        if trial.choice is not None:
            break
    return trial


@pytest.mark.parametrize(
    ("num_steps", "eager", "compiled", "choice"),
    [(100, 1.0, 0.5, False), (100_000, 1.0, 0.5, True), (100_000, 1.0, 1.5, False)],
    ids=["too short to try", "faster", "slower"],
)
def test_a_long_run_on_a_cpu_compiles_where_that_measures_faster(
    num_steps: int, eager: float, compiled: float, choice: bool
) -> None:
    assert times(CompileTrial(num_steps), eager, compiled).choice is choice


def test_the_trial_takes_turns_and_leaves_out_what_warms_up() -> None:
    trial, ways = CompileTrial(10**6), []
    while trial.choice is None:
        ways.append(trial.compiled_next)
        first = ways.count(ways[-1]) == 1
        trial.note(100.0 if first else 1.0 if not ways[-1] else 0.9)
    assert trial.choice is True
    assert ways.count(True) == TRIALS + 1
    assert True not in ways[: TRIALS + 1]


def test_a_step_on_trial_learns_from_every_batch_and_settles(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubio.training.steps.LONG", 0.0)
    models = [make() for _ in range(2)]
    _, expected = train(models[0], dubio.ELBO(40), False, num_steps=20)
    step = Step(
        models[1], dubio.ELBO(40), torch.optim.Adam(models[1].parameters(), lr=0.05), num_samples=2, num_steps=99
    )
    torch.manual_seed(5)
    losses = [float(step(INPUTS, TARGETS, batch_index=i, num_batches=4, epoch=i / 4).total) for i in range(20)]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert step.settled in (True, False)
    assert step.mode == ("compiled" if step.settled else "eager")


def test_what_an_earlier_trial_has_settled_is_kept() -> None:
    step = steps_of(make(), dubio.ELBO(40), num_steps=10)
    step.settle(True)
    assert (step.mode, step.settled) == ("compiled", True)
    without = steps_of(make(), dubio.ELBO(40), fast=False)
    without.settle(True)
    assert (without.mode, without.settled) == ("eager", None)


# Optimisers


def test_learning_rates_are_moved_where_they_are() -> None:
    model = make()
    optimizer = torch.optim.Adam([{"params": list(model.parameters()), "lr": 0.2, "initial_lr": 0.2}])
    set_learning_rates(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.1
    make_capturable(optimizer, torch.device("cpu"))
    rate = optimizer.param_groups[0]["lr"]
    assert isinstance(rate, Tensor)
    set_learning_rates(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)


def test_a_state_is_loaded_without_the_way_its_updates_were_made() -> None:
    model = make()
    one, other = (torch.optim.Adam([{"params": list(model.parameters()), "lr": 0.2}]) for _ in range(2))
    steps = Step(model, dubio.ELBO(40), one)
    steps(INPUTS, TARGETS)
    make_capturable(other, torch.device("cpu"))
    rate = other.param_groups[0]["lr"]
    one.param_groups[0]["lr"] = 0.3
    load_optimizer_state(other, one.state_dict())
    group = other.param_groups[0]
    assert (group["fused"], group["capturable"], group["foreach"]) == (True, True, False)
    assert group["lr"] is rate
    assert float(rate) == pytest.approx(0.3)
    assert all("exp_avg" in state for state in other.state.values())


@pytest.mark.parametrize(
    ("optimizer", "objective", "why"),
    [
        (torch.optim.Adagrad, dubio.ELBO(40), "a Adagrad has no fused form: Adam, AdamW and SGD have"),
        (torch.optim.Adam, dubio.Adversarial(dubio.ELBO(40), APGD(steps=2)), "APGD asks for values while it runs"),
        (
            torch.optim.Adam,
            dubio.Adversarial(dubio.ELBO(40), PGD(seed=1)),
            "PGD asks for values while it runs, or has a seed of its own",
        ),
    ],
    ids=["optimiser", "attack", "seed"],
)
def test_what_stands_in_the_way_of_a_recording_is_known_before(optimizer: Any, objective: Any, why: str) -> None:
    assert why in why_not_captured(objective, optimizer(make().parameters(), lr=0.1), ALONE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fast": "yes"}, "fast must be True, False or 'auto', got 'yes'"),
        ({"precision": "fp8"}, "precision must be 'fp32', 'tf32' or 'bf16', got 'fp8'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        steps_of(make(), dubio.ELBO(40), **options)


@pytest.mark.slow
def test_fit_gives_the_same_numbers_fast_and_slow(traced: None) -> None:
    data = INPUTS.repeat(4, 1)[:40], TARGETS.repeat(4)[:40]
    runs = {}
    for fast in (False, True):
        model = make()
        options: Any = {"epochs": 3, "batch_size": 16, "progress": False, "schedule": "cosine", "num_samples": 2}
        runs[fast] = dubio.fit(model, data, data, fast=fast, **options)
    assert (runs[False].mode, runs[True].mode) == ("eager", "compiled")
    for one, other in zip(runs[False].history, runs[True].history, strict=True):
        for name in ("loss", "nll", "accuracy", "val_nll"):
            assert other[name] == pytest.approx(one[name], rel=1e-4), name
