"""Training learns, keeps the best, obeys its options, and refuses bad data before any work is lost."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import dubio
from dubio.data.batches import Loader, batches_from, shared_batches
from dubio.data.examples import Examples
from networks import Tied, TwoInputs, mlp

TRUTH = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
INPUTS = torch.randn(240, 5, generator=torch.Generator().manual_seed(1))
TARGETS = (INPUTS @ TRUTH).argmax(dim=1)


def make(**fields: object) -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(**{"init_std": 0.02, **fields}).convert(mlp(5, 20, 3))


def quick(model: nn.Module, *args: object, **options: object) -> dubio.FitResult:
    return dubio.fit(model, *args, **{"epochs": 3, "batch_size": 32, "lr": 0.01, "progress": False, **options})


DATA = {
    "tensors": lambda: (INPUTS, TARGETS),
    "examples": lambda: Examples(INPUTS, TARGETS, ("a", "b", "c")),
    "examples, loaded": lambda: Loader(Examples(INPUTS, TARGETS, ("a", "b", "c")), batch_size=32),
    "dataset": lambda: TensorDataset(INPUTS, TARGETS),
    "loader": lambda: DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=32, shuffle=True),
    "batches": lambda: list(zip(INPUTS.split(32), TARGETS.split(32), strict=True)),
}


@pytest.mark.feature("fit learns from tensors, datasets, loaders and iterables")
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.usefixtures("unchecked")
def test_every_kind_of_data_is_learned_from(data: object) -> None:
    model = make()
    run = quick(model, data(), (INPUTS, TARGETS), epochs=15, num_data=240)
    assert run.metrics["val_accuracy"] > 0.85
    assert (run.mode, run.reason) == ("eager", "")
    assert (dubio.predict(model, INPUTS, 20, seed=0).label == TARGETS).float().mean() > 0.85
    assert [metrics["epoch"] for metrics in run.history] == list(range(1, 16))
    assert not model.training


class Pairs(Dataset):
    """Examples with two inputs each."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (INPUTS[row], INPUTS[row, :3]), TARGETS[row]


@pytest.mark.parametrize("data", [Pairs(), DataLoader(Pairs(), batch_size=25)], ids=["dataset", "loader"])
def test_networks_of_two_inputs_are_used_with_datasets_and_loaders(data: object) -> None:
    """Which torch collates to lists; all is as with tensors."""
    together = (INPUTS[:60], INPUTS[:60, :3]), TARGETS[:60]
    torch.manual_seed(0)
    model = dubio.Bayes().convert(TwoInputs())
    run = quick(model, data, data)
    assert run.history[-1]["val_nll"] < run.history[0]["val_nll"]
    result, expected = (dubio.predict(model, inputs, 5, seed=0).log_probs for inputs in (data, together[0]))
    torch.testing.assert_close(result, expected)
    result, expected = (dubio.evaluate(model, given, num_samples=5, num_resamples=0) for given in (data, together))
    assert result.data.fingerprint == expected.data.fingerprint
    assert result.metrics["nll"] == expected.metrics["nll"]


def test_processes_share_batches_of_two_inputs() -> None:
    batch = next(shared_batches(Pairs(), 25, name="train", rank=1, num_ranks=2).epoch(0))
    left, right = batch.inputs
    assert isinstance(batch.inputs, tuple)
    assert torch.equal(left, INPUTS[1:25:2])
    assert torch.equal(right, INPUTS[1:25:2, :3])


@pytest.mark.usefixtures("unchecked")
def test_dict_inputs_and_real_targets_are_learned_from() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, *, values: Tensor) -> Tensor:
            return self.layer(values)

    model = dubio.Bayes(init_std=0.02).convert(Named(), dubio.Gaussian(0.1))
    run = quick(model, ({"values": INPUTS}, INPUTS @ TRUTH), ({"values": INPUTS}, INPUTS @ TRUTH), epochs=30, lr=0.05)
    assert run.history[-1]["val_nll"] < run.history[0]["val_nll"] - 10
    assert "accuracy" not in run.metrics


def test_the_best_epoch_is_kept_and_patience_ends_training() -> None:
    model = make()
    wrong = (TARGETS + 1) % 3  # learning makes this validation set worse
    run = quick(model, (INPUTS, TARGETS), (INPUTS, wrong), epochs=50, patience=3)
    assert run.stopped_early
    assert run.best_epoch == len(run.history) - 3
    values = [metrics["val_nll"] for metrics in run.history]
    assert run.best_epoch == 1 + values.index(min(values))


def test_the_same_seed_gives_the_same_network_and_leaves_the_callers_generator_alone() -> None:
    state = torch.get_rng_state()
    models = [make() for _ in range(3)]
    torch.set_rng_state(state)
    for model, seed in zip(models, (1, 1, 2), strict=True):
        quick(model, (INPUTS, TARGETS), seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = ([p.detach() for p in model.parameters()] for model in models)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


class Rates:
    """Keeps the learning rate of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def make(self, parameters: list[dict[str, object]]) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.SGD(parameters)
        return self.optimizer

    def on_step(self, step: int, loss: dubio.Loss) -> None:
        self.seen.append(self.optimizer.param_groups[0]["lr"])

    def on_epoch(self, metrics: dict[str, float]) -> None: ...

    def on_end(self, run: dubio.FitResult) -> None: ...


def test_accumulated_batches_are_one_step() -> None:
    """Batches of 70, 70, 70 and 30 as one step equal one step by hand over all 240 rows, noise off."""
    by_hand, whole, parts = make(), make(), make()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.01)
    with dubio.noise_off():
        quick(whole, (INPUTS, TARGETS), batch_size=240, optimizer=torch.optim.SGD)
        quick(parts, (INPUTS, TARGETS), batch_size=70, accumulate=4, optimizer=torch.optim.SGD)
        for _ in range(3):
            optimizer.zero_grad()
            dubio.Bayes().objective(num_data=240)(by_hand, INPUTS, TARGETS).total.backward()
            optimizer.step()
    for expected, a, b in zip(by_hand.parameters(), whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(b, expected, rtol=1e-4, atol=1e-6)


def test_weight_decay_leaves_scales_alone() -> None:
    model = make()
    groups: list[dict[str, object]] = []

    def watch(parameters: list[dict[str, object]]) -> torch.optim.Optimizer:
        groups.extend(parameters)
        return torch.optim.SGD(parameters)

    quick(model, (INPUTS, TARGETS), weight_decay=0.3, optimizer=watch)
    scales = {id(p) for name, p in model.named_parameters() if name.endswith("rho")}
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert {id(p) for p in groups[1]["params"]} == scales


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("constant", lambda done: 1.0),
        ("linear", lambda done: 1.0 - done),
        ("cosine", lambda done: 0.5 + 0.5 * math.cos(math.pi * done)),
        (lambda done: 1 - 0.5 * done, lambda done: 1 - 0.5 * done),
    ],
    ids=["constant", "linear", "cosine", "own"],
)
def test_schedules_go_by_the_share_that_is_done(schedule: object, factor: Callable[[float], float]) -> None:
    """The first step has the whole rate, and none has rate zero."""
    rates = Rates()
    quick(make(), (INPUTS, TARGETS), schedule=schedule, optimizer=rates.make, lr=0.02, callbacks=[rates])
    assert rates.seen == pytest.approx([0.02 * factor(step / 24) for step in range(24)], abs=1e-9)


def test_without_a_known_number_of_batches_schedules_go_by_epochs() -> None:
    class Endless:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(zip(INPUTS.split(120), TARGETS.split(120), strict=True))

    rates = Rates()
    quick(make(), Endless(), num_data=240, schedule="linear", optimizer=rates.make, lr=0.03, callbacks=[rates])
    assert rates.seen == pytest.approx([0.03, 0.03, 0.02, 0.02, 0.01, 0.01])


def test_clipping_bounds_the_step() -> None:
    model = make()
    before = [p.detach().clone() for p in model.parameters()]
    quick(model, (INPUTS, TARGETS), epochs=1, batch_size=240, clip_norm=1e-3, lr=1.0, optimizer=torch.optim.SGD)
    moved = sum((a - b).square().sum().item() for a, b in zip(model.parameters(), before, strict=True)) ** 0.5
    assert moved == pytest.approx(1e-3, rel=1e-3)


def test_callbacks_see_steps_epochs_and_the_end() -> None:
    seen: list[object] = []

    class Watch:
        def on_step(self, step: int, loss: dubio.Loss) -> None:
            seen.append(step)

        def on_epoch(self, metrics: dict[str, float]) -> None:
            seen.append(("epoch", metrics["epoch"]))

        def on_end(self, run: dubio.FitResult) -> None:
            seen.append(run)

    run = quick(make(), (INPUTS, TARGETS), epochs=2, batch_size=120, callbacks=[Watch()])
    assert seen == [1, 2, ("epoch", 1), 3, 4, ("epoch", 2), run]


def test_a_run_folder_holds_what_it_should(tmp_path: Path) -> None:
    model = dubio.Bayes().convert(dubio.models.mlp(5, 8, 3))
    quick(model, (INPUTS, TARGETS), folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoint",
    }
    assert json.loads((tmp_path / "config.json").read_text())["epochs"] == 3
    loaded = dubio.load(tmp_path / "model.safetensors")
    assert torch.equal(dubio.sample(loaded, INPUTS, 2, seed=1), dubio.sample(model, INPUTS, 2, seed=1))


def test_collapse_is_named_with_what_to_try() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(dubio.Normal(0.0, 0.1), init_std=0.1, beta=1.0).convert(mlp(5, 60, 60, 10))
    labels = torch.randint(10, (60,))
    with pytest.warns(dubio.CollapseWarning, match=r"gone back to the prior and accuracy is 0\.\d+.*Try a wider prior"):
        quick(model, (INPUTS[:60], labels), epochs=60, lr=0.02)


def test_bf16_runs_under_autocast() -> None:
    model = make()
    run = quick(model, (INPUTS, TARGETS), precision="bf16")
    assert math.isfinite(run.metrics["loss"])
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_layer(tmp_path: Path) -> None:
    model = make(estimator="weight")
    with torch.no_grad():
        model[2].weight_posterior.mean[0, 0] = math.nan
    with pytest.raises(
        FloatingPointError, match=r"loss is nan at step 1 of epoch 1, from parameter 2.weight_posterior.mean$"
    ):
        quick(model, (INPUTS, TARGETS), folder=tmp_path / "a")

    class Break:
        def on_step(self, step: int, loss: dubio.Loss) -> None:
            if step == 10:
                with torch.no_grad():
                    good[2].bias_posterior.mean.fill_(math.inf)

        def on_epoch(self, metrics: dict[str, float]) -> None: ...

        def on_end(self, run: dubio.FitResult) -> None: ...

    good = make(estimator="weight")
    with pytest.raises(
        FloatingPointError, match=r"step 11 of epoch 2.*the last good checkpoint is kept in .*step-0000000008"
    ):
        quick(good, (INPUTS, TARGETS), folder=tmp_path / "b", callbacks=[Break()])


def test_a_layer_that_gives_no_number_is_named() -> None:
    class Logarithm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.log()

    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 4), Logarithm(), nn.Linear(4, 3)))
    with pytest.raises(FloatingPointError, match=r"loss is nan at step 1 of epoch 1, from 1 \(Logarithm\)"):
        quick(model, (INPUTS, TARGETS))


def test_weights_that_the_last_step_broke_are_never_kept(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"(parameter .* is not finite|val_nll is nan) after epoch 1"):
        quick(make(), (INPUTS, TARGETS), (INPUTS, TARGETS), epochs=1, batch_size=240, lr=1e30, folder=tmp_path)
    assert not (tmp_path / "checkpoint").exists()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_tied_networks_are_kept_in_a_run_folder(tmp_path: Path) -> None:
    inputs = torch.randn(40, 5)
    model = dubio.Bayes().convert(Tied(), dubio.Gaussian(0.1))
    targets = model(inputs).detach()
    quick(model, (inputs, targets), (inputs, targets), folder=tmp_path, epochs=1)
    quick(model, (inputs, targets), (inputs, targets), folder=tmp_path, epochs=2, resume=True)
    loaded = dubio.load(tmp_path / "model.safetensors", net=Tied())
    assert torch.equal(dubio.sample(loaded, inputs, 2, seed=1), dubio.sample(model.eval(), inputs, 2, seed=1))


def test_the_number_of_examples_is_what_the_data_give_or_the_objective_says() -> None:
    """The divergence is divided by the examples that are trained on, not by those that a sampler leaves out."""
    dataset = TensorDataset(INPUTS, TARGETS)
    loaders = {
        20: DataLoader(dataset, 10, sampler=SubsetRandomSampler(range(20))),
        210: DataLoader(dataset, 70, drop_last=True),
        240: DataLoader(dataset, 70),
    }
    for count, loader in loaders.items():
        assert batches_from(loader, 1, name="train").num_data == count

    class Watch:
        def on_step(self, step: int, loss: dubio.Loss) -> None:
            terms.append((loss.total - loss.nll).item() / loss.terms["divergence"].item())

        def on_epoch(self, metrics: dict[str, float]) -> None: ...

        def on_end(self, run: dubio.FitResult) -> None: ...

    terms: list[float] = []
    stream = [(INPUTS, TARGETS)]
    quick(make(), stream, objective=dubio.ELBO(num_data=4800), epochs=1, callbacks=[Watch()])
    assert terms == pytest.approx([1 / 4800], rel=1e-3)


def test_arrays_and_streams_are_learned_from() -> None:
    class Stream(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(zip(INPUTS, TARGETS, strict=True))

    first = quick(make(), (INPUTS.double().numpy(), TARGETS.numpy()))
    assert first.metrics["loss"] == pytest.approx(quick(make(), (INPUTS, TARGETS)).metrics["loss"], rel=1e-5)
    assert quick(make(), Stream(), num_data=240).metrics["step"] == 24
    assert quick(make(), DataLoader(Stream(), 60), num_data=240).metrics["step"] == 12


@pytest.mark.slow
def test_collapse_is_named_also_where_better_weights_are_kept() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(dubio.Normal(0.0, 0.1), init_std=0.1, beta=1.0).convert(mlp(5, 60, 60, 10))
    labels = torch.randint(10, (60,))
    with pytest.warns(dubio.CollapseWarning):
        quick(model, (INPUTS[:60], labels), (INPUTS[:60], labels), epochs=60, lr=0.02)


REFUSALS = {
    "no data": ((INPUTS[:0], TARGETS[:0]), {}, ValueError, "train must hold at least one example"),
    "lengths": ((INPUTS, TARGETS[:5]), {}, ValueError, r"as many inputs as targets, got \(240, 5\) beside 5 targets"),
    "nan": ((INPUTS * math.nan, TARGETS), {}, ValueError, "train must be finite, got NaN or infinite values"),
    "float labels": ((INPUTS, TARGETS.float()), {}, TypeError, "targets must be whole numbers that name classes"),
    "labels out of range": ((INPUTS, TARGETS + 5), {}, ValueError, "targets must name classes from 0 to 2, got 7"),
    "negative labels": ((INPUTS, TARGETS - 1), {}, ValueError, "targets must name classes from 0 to 2, got -1"),
    "weights": ((INPUTS, TARGETS), {"sample_weight": torch.ones(239)}, ValueError, r"got \(239,\) beside 240 targets"),
    "a tensor": (INPUTS, {}, TypeError, r"train must be \(inputs, targets\), dubio\.data\.Examples, a Dataset"),
    "an iterator": (iter([(INPUTS, TARGETS)]), {}, TypeError, "must be iterable more than once"),
    "epochs": ((INPUTS, TARGETS), {"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
    "lr": ((INPUTS, TARGETS), {"lr": -1.0}, ValueError, r"lr must be positive and finite, got -1\.0"),
    "patience": ((INPUTS, TARGETS), {"patience": 0}, ValueError, "patience must be at least 1 epoch, got 0"),
    "monitor": ((INPUTS, TARGETS), {"monitor": "f1"}, ValueError, "monitor must be .*got 'f1'"),
    "resume": ((INPUTS, TARGETS), {"resume": True}, ValueError, "resume needs the folder"),
    "schedule": ((INPUTS, TARGETS), {"schedule": "cosin"}, ValueError, "schedule must be .* got 'cosin'"),
    "negative weights": ((INPUTS, TARGETS, -torch.ones(240)), {}, ValueError, "weights of train must be at least 0"),
    "weights in columns": ((INPUTS, TARGETS, torch.ones(240, 2)), {}, ValueError, "sample_weight must have one weight"),
    "no validation": ((INPUTS, TARGETS), {"validation": []}, ValueError, "validation must hold at least one example"),
    "optimizer": ((INPUTS, TARGETS), {"optimizer": torch.optim.SGD(make().parameters())}, TypeError, "optimizer must"),
    "optimizer of nothing": (
        (INPUTS, TARGETS),
        {"optimizer": lambda groups: None},
        TypeError,
        "optimizer must return a torch.optim.Optimizer made from the parameter groups it is given, got None",
    ),
    "optimizer of its own": (
        (INPUTS, TARGETS),
        {"optimizer": lambda groups: torch.optim.SGD(make().parameters(), lr=0.1)},
        ValueError,
        r"optimizer must make its optimizer from the parameter groups .* such as lambda groups: torch\.optim\.SGD",
    ),
    "callback": ((INPUTS, TARGETS), {"callbacks": [print]}, TypeError, "callbacks must have on_step"),
    "no examples": ((INPUTS, TARGETS), {"num_data": 0}, ValueError, "num_data must be at least 1, got 0"),
    "count": ([(INPUTS, TARGETS)], {}, ValueError, "num_data must be given for training data without"),
}


@pytest.mark.parametrize(("data", "options", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_bad_input_is_refused(
    data: object, options: dict[str, object], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        quick(make(), data, **options)


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        quick(make(), (INPUTS, TARGETS), folder=tmp_path / "file" / "run")


def test_examples_are_learned_from_as_their_tensors_are() -> None:
    """Bytes become numbers in [0, 1], in the same order and with the same weights."""
    images = torch.randint(256, (240, 5), dtype=torch.uint8)
    weights = torch.rand(240)
    models = [make(), make()]
    for model, train in zip(models, (Examples(images, TARGETS), (images / 255.0, TARGETS)), strict=True):
        quick(model, train, sample_weight=weights)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.feature("Bayes with its own defaults reaches 0.93 on the embedded digits")
def test_bayes_learns_digits_with_its_own_defaults() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 4], order[len(order) // 4 :]
    model = dubio.Bayes().convert(dubio.models.mlp(64, 100, 100, 10))
    dubio.fit(model, (inputs[train], targets[train]), seed=0, progress=False)
    accuracy = (dubio.predict(model, inputs[test], 100, seed=0).label == targets[test]).float().mean().item()
    assert accuracy >= 0.93
