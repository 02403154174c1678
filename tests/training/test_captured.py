"""Steps recorded as CUDA graphs: their numbers, what moves from replay to replay, and what happens when they fail.

These need a GPU. Random numbers are torch's own here (``fallback_random``), so that noise is the same in both ways.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.cuda_graphs import Captured
from dubio.attacks.gradient import APGD, PGD
from dubio.training.steps import Step

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ROWS, STEPS = 16, 8
ATTACK = PGD(epsilon=0.1, steps=3, num_samples=2)
SETTINGS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "deterministic": (dubio.Deterministic(l2=1e-3), lambda method: method.objective(100)),
    "bayes": (dubio.Bayes(), lambda method: method.objective(100)),
    "bayes, drawn weights": (dubio.Bayes(estimator="weight"), lambda method: method.objective(100)),
    "bayes, flipout": (dubio.Bayes(estimator="flipout"), lambda method: method.objective(100)),
    "bayes, mixture": (dubio.Bayes(prior=dubio.ScaleMixture(0.25, 1.0, 0.02)), lambda method: method.objective(100)),
    "bayes, warm-up": (dubio.Bayes(), lambda method: dubio.ELBO(100, warmup=3, kl_weighting="geometric")),
    "bayes, adversarial": (dubio.Bayes(), lambda method: dubio.Adversarial(dubio.ELBO(100), ATTACK)),
    "deterministic, adversarial": (
        dubio.Deterministic(),
        lambda method: dubio.Adversarial(dubio.ELBO(100), ATTACK, weight=0.0, label="true"),
    ),
    "dropout, alpha": (dubio.Dropout(), lambda method: dubio.Alpha(0.5, num_data=100)),
    "input noise": (dubio.InputNoise(), lambda method: method.objective(100)),
    "flow": (dubio.Flow(), lambda method: method.objective(100)),
    "se-snn": (dubio.SESNN(), lambda method: method.objective(100)),
    "vib": (dubio.VIB(), lambda method: method.objective(100)),
    "pni": (dubio.PNI(), lambda method: method.objective(100)),
    "wasserstein": (dubio.Wasserstein(), lambda method: method.objective(100)),
    "ensemble": (dubio.Ensemble(2), lambda method: method.objective(100)),
    "deterministic, batch norm": (dubio.Deterministic(), lambda method: method.objective(100)),
    "bayes, batch norm": (dubio.Bayes(), lambda method: method.objective(100)),
    "ensemble, batch norm": (dubio.Ensemble(2), lambda method: method.objective(100)),
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(ROWS, 3, 12, 12, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def make(method: Any, normed: bool = False) -> nn.Module:
    torch.manual_seed(0)
    norms = (nn.BatchNorm2d(4), nn.BatchNorm2d(4)) if normed else (nn.Identity(), nn.Identity())
    # A bias before a batch norm would learn from rounding alone.
    first, second = (nn.Conv2d(channels, 4, 3, bias=not normed) for channels in (3, 4))
    images = (first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU(), nn.Flatten())
    net = nn.Sequential(*images, nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 3))
    return method.convert(net).cuda().train()


def train(name: str, fast: Any, num_steps: int = STEPS) -> tuple[nn.Module, Step, list[float]]:
    method, objective = SETTINGS[name]
    model = make(method, normed=name.endswith("batch norm"))
    step = Step(
        model, objective(method), torch.optim.Adam(model.parameters(), lr=1e-2), num_samples=2, clip_norm=1.0, fast=fast
    )
    inputs, targets = (tensor.cuda() for tensor in data())
    torch.manual_seed(5)
    losses = []
    for number in range(num_steps):
        place: Any = {"batch_index": number % 4, "num_batches": 4, "epoch": number / 4}
        losses.append(float(step(inputs.roll(number, 0), targets.roll(number, 0), **place).total))
    return model, step, losses


def check_equals_eager(name: str) -> None:
    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = False
    with torch._inductor.config.patch(fallback_random=True):
        slow, eager, expected = train(name, fast=False)
        quick, captured, result = train(name, fast=True)
    assert (eager.mode, captured.mode) == ("eager", "captured"), captured.reason
    assert captured.capture_seconds > 0.0
    worst = max(abs(a - b) / (abs(a) + 1e-6) for a, b in zip(expected, result, strict=True))
    assert worst < 2e-3, (expected, result)
    torch.testing.assert_close(dict(quick.named_buffers()), dict(slow.named_buffers()), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", SETTINGS)
def test_recorded_steps_equal_eager_ones(name: str) -> None:
    check_equals_eager(name)


class Viewing(nn.Module):
    """Wants its images in one piece."""

    def __init__(self, has_view: bool) -> None:
        super().__init__()
        self.convolution, self.head, self.has_view = nn.Conv2d(3, 4, 3), nn.Linear(400, 3), has_view

    def forward(self, images: Tensor) -> Tensor:
        maps = self.convolution(images).relu()
        return self.head(maps.view(len(maps), -1) if self.has_view else maps.flatten(1))


@pytest.mark.parametrize("has_view", [True, False])
def test_images_lie_channels_last_where_the_network_takes_it(has_view: bool) -> None:
    model = dubio.Bayes().convert(Viewing(has_view)).cuda()
    step = Step(model, dubio.ELBO(100), torch.optim.Adam(model.parameters()), num_samples=2)
    inputs, targets = (tensor.cuda() for tensor in data())
    for _ in range(6):
        step(inputs, targets)
    assert step.mode == "captured"
    assert model.convolution.weight_posterior.mean.is_contiguous() is has_view
    for executor in ("vmap", "loop", "auto"):
        assert dubio.predict(model, inputs, 4, executor=executor).probs.isfinite().all()


def test_what_is_set_later_is_obeyed() -> None:
    model = make(dubio.Bayes())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = Step(model, dubio.ELBO(100), optimizer, num_samples=2)
    inputs, targets = (tensor.cuda() for tensor in data())
    for _ in range(6):
        step(inputs, targets)
    assert step.mode == "captured"
    optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(model.state_dict())
    step(inputs, targets)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with dubio.noise_off():
        losses = {float(step(inputs, targets).nll) for _ in range(3)}
    assert len(losses) == 1


def test_noise_is_drawn_anew_at_every_replay() -> None:
    model = make(dubio.Bayes(init_std=0.3))
    step = Step(model, dubio.ELBO(100), torch.optim.SGD(model.parameters(), lr=1e-12), num_samples=2)
    inputs, targets = (tensor.cuda() for tensor in data())
    losses = {float(step(inputs, targets).nll) for _ in range(10)}
    assert step.mode == "captured"
    assert len(losses) == 10


def test_fit_is_the_same_captured_and_eager_with_short_batches_and_schedules() -> None:
    inputs, targets = data()
    histories = {}
    with torch._inductor.config.patch(fallback_random=True):
        for fast in (False, True):
            model = make(dubio.Bayes())
            options: Any = {"epochs": 4, "batch_size": 6, "schedule": "cosine", "num_samples": 2, "progress": False}
            run = dubio.fit(model, (inputs, targets), (inputs, targets), fast=fast, **options)
            histories[fast] = run.history
    assert run.mode == "captured"
    for one, other in zip(histories[False], histories[True], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=2e-3)
        assert other["val_nll"] == pytest.approx(one["val_nll"], rel=2e-3)


def test_a_run_is_resumed_whichever_way_its_steps_were_taken(tmp_path: Any) -> None:
    inputs, targets = data()
    for first, second in ((True, False), (False, True), (True, True)):
        folder = tmp_path / f"{first} {second}"
        options: Any = {"batch_size": 8, "num_samples": 2, "progress": False, "folder": folder}
        dubio.fit(make(dubio.Bayes()), (inputs, targets), epochs=3, fast=first, **options)
        run = dubio.fit(make(dubio.Bayes()), (inputs, targets), epochs=6, fast=second, resume=True, **options)
        losses = [epoch["loss"] for epoch in run.history]
        assert len(losses) == 6
        assert losses[3] < losses[2] < losses[0]  # with what the optimiser had kept


def test_a_loss_that_is_not_finite_leaves_the_parameters_as_they_were() -> None:
    model = make(dubio.Bayes())
    step = Step(model, dubio.ELBO(100), torch.optim.Adam(model.parameters(), lr=1e-2), num_samples=2, fast=True)
    inputs, targets = (tensor.cuda() for tensor in data())
    for _ in range(6):
        step(inputs, targets)
    before = copy.deepcopy(model.state_dict())
    step(inputs * torch.nan, targets)
    step(inputs, targets)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(FloatingPointError, match="loss is nan") as caught:
        step.check()
    assert caught.value.num_steps == 6


class Asking(nn.Module):
    """A network whose forward asks the device for a value while it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(432, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(1)) if inputs.sum().item() > -1.0 else inputs


def test_what_cannot_be_recorded_runs_otherwise_and_says_why() -> None:
    model = dubio.Bayes().convert(Asking()).cuda().train()
    step = Step(model, dubio.ELBO(100), torch.optim.Adam(model.parameters()), num_samples=2)
    inputs, targets = (tensor.cuda() for tensor in data())
    losses = [float(step(inputs, targets).total) for _ in range(6)]
    assert step.mode == "eager"
    assert step.reason
    assert all(loss < 1e9 for loss in losses)
    with pytest.raises(ValueError, match="the step cannot be recorded, since a Adagrad has no fused form"):
        Step(model, dubio.ELBO(100), torch.optim.Adagrad(model.parameters()), fast=True)


@pytest.mark.parametrize(
    "attack", [PGD(epsilon=0.1, steps=20, num_samples=4, seed=3), APGD(epsilon=0.1, steps=20, seed=3)]
)
def test_recorded_attacks_equal_eager_ones(attack: Any) -> None:
    model = make(dubio.Bayes(init_std=0.1)).eval()
    inputs, targets = (tensor.cuda() for tensor in data())
    recorded = attack(model, inputs, targets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dubio.attacks.attack.STEPS_TO_RECORD", 10**9)
        eager = attack(model, inputs, targets)
    assert (recorded.forwards, recorded.backwards) == (eager.forwards, eager.backwards)
    torch.testing.assert_close(recorded.loss, eager.loss, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_changes_little(precision: Any) -> None:
    losses = {}
    for kind in ("fp32", precision):
        model = make(dubio.Bayes())
        step = Step(model, dubio.ELBO(100), torch.optim.Adam(model.parameters()), num_samples=64, precision=kind)
        inputs, targets = (tensor.cuda() for tensor in data())
        torch.manual_seed(2)
        losses[kind] = sum(float(step(inputs, targets).total) for _ in range(6)) / 6
    assert losses[precision] == pytest.approx(losses["fp32"], rel=2e-2)


def test_a_recording_that_fails_leaves_generator_and_stream_as_they_were() -> None:
    device = torch.device("cuda", 0)
    stream = torch.cuda.current_stream()

    def asks() -> float:
        return torch.randn(3, device=device).sum().item()

    captured = Captured(asks, device, warm_ups=1)
    captured()
    with pytest.raises(RuntimeError):
        captured()
    assert torch.cuda.current_stream() == stream
    assert torch.isfinite(torch.randn(4, device=device)).all()
    again = Captured(lambda: torch.randn(4, device=device), device, warm_ups=1)
    draws = [again().clone() for _ in range(3)]
    assert not torch.equal(draws[1], draws[2])


def wide() -> nn.Module:
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3))
    return dubio.Bayes(estimator="local").convert(net).cuda().train()


def peak_of_a_step(num_samples: int) -> int:
    """Most bytes that a step takes beyond what is there already, once everything is warm."""
    model = wide()
    step = Step(
        model, dubio.ELBO(100), torch.optim.SGD(model.parameters(), lr=0.1), num_samples=num_samples, fast=False
    )
    inputs, targets = torch.rand(512, 64, device="cuda"), torch.randint(3, (512,), device="cuda")
    for _ in range(2):
        step(inputs, targets)
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(inputs, targets)
    return torch.cuda.max_memory_allocated() - before


def test_steps_keep_within_a_memory_limit_and_grow_linearly_without() -> None:
    without = {number: peak_of_a_step(number) for number in (8, 16, 32)}
    assert without[32] - without[16] <= 2.1 * (without[16] - without[8])
    limit = without[32] // 3
    with dubio.memory_limit(limit):
        assert peak_of_a_step(32) <= 1.1 * limit + 3 * 4 * 600_000  # and the gradients of the parameters


def test_a_step_goes_on_with_fewer_draws_where_a_gpu_runs_out_of_memory() -> None:
    model = wide()
    step = Step(model, dubio.ELBO(100), torch.optim.SGD(model.parameters(), lr=0.1), num_samples=256, fast=False)
    inputs, targets = torch.rand(512, 64, device="cuda"), torch.randint(3, (512,), device="cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    taken = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((taken + 2**30) / total)  # 256 draws want more than two
    try:
        losses = [float(step(inputs, targets).total) for _ in range(3)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(loss < 1e9 for loss in losses)
    assert "running out of memory" in str(dubio.describe(model))


def test_a_recording_is_kept_for_the_next_run() -> None:
    inputs, _ = data()
    labels = [torch.randint(3, (ROWS,), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    options: Any = {"epochs": 6, "batch_size": 6, "num_samples": 2, "progress": False, "fast": True}
    steps, place = dubio.StepCache(), make(dubio.Bayes())
    start = copy.deepcopy(place.state_dict())
    with torch._inductor.config.patch(fallback_random=True):
        for seed, targets in enumerate(labels):
            place.load_state_dict(start)
            kept = dubio.fit(place, (inputs, targets), seed=seed, steps=steps, **options)
            alone = dubio.fit(make(dubio.Bayes()), (inputs, targets), seed=seed, **options)
            assert kept.mode == alone.mode == "captured"
            assert kept.history[-1]["loss"] == pytest.approx(alone.history[-1]["loss"], rel=2e-3)
            assert (kept.capture_seconds == 0.0) == (seed > 0)
    assert steps.num_made == 1
