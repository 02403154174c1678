"""Bayes by Backprop: settings reach networks, networks are shared, and numbers are those of networks that are known."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio.auditing.records import BUDGETS
from dubio.data.examples import Examples, Splits
from dubio.data.registry import OOD_PAIRS
from dubio.models.networks import Normalise
from dubio.nn.sources import GaussianPosterior
from dubio.prediction.predictive import ClassificationPredictive
from dubio_lab import Curve, load_spec, reproduce
from dubio_lab.protocols import Trial
from dubio_lab.protocols.bbb import attacking, errors, estimators, networks, timing, unseen
from dubio_lab.protocols.bbb.estimators import gradient_scatter
from dubio_lab.protocols.bbb.networks import TRAINING, Trained, make_network, train_network

NAMES = tuple("0123456789")


def settings_of(spec_name: str, cell_name: str, variant: Any = "full") -> dict[str, Any]:
    spec = load_spec(spec_name)
    cell = next(cell for cell in spec.cells if cell.name == cell_name)
    return spec.settings_of(cell, variant)


def trial_with(settings: dict[str, Any], folder: Path, seed: int = 0) -> Trial:
    return Trial(settings, seed, torch.device("cpu"), folder / "shared", folder / "cell")


class Reader(nn.Module):
    """Reads the class off the brightest of ten pixels, and is sure of it."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.bias.fill_(0.0)[7] = bias
            self.linear.weight.copy_(200.0 * torch.eye(10, 64))

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.flatten(1))


def examples(num_wrong: int, value: float = 0.15) -> Examples:
    """A hundred images, ten of a class, of which the first so many have a wrong label."""
    labels = torch.arange(10).repeat(10)
    pixels = torch.zeros(100, 1, 8, 8)
    pixels.view(100, 64)[torch.arange(100), labels] = value
    labels[:num_wrong] = (labels[:num_wrong] + 1) % 10
    return Examples(pixels, labels, NAMES)


def known(model: nn.Module, num_wrong: int = 0, held_out_wrong: int = 0) -> Trained:
    test = examples(num_wrong)
    splits = Splits(examples(0), examples(held_out_wrong), test)
    return Trained(model, splits, test, Curve((1.0, 2.0), (40.0, 60.0)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("bbb-pruning", "removed-95"), ("bbb-error", "mixture-1200")),
        (("bbb-ood", "mlp-kmnist"), ("bbb-error", "mlp-800")),
        (("bbb-ood", "dropout-omniglot"), ("bbb-error", "dropout-800")),
        (("bbb-fgsa", "dropout-mean"), ("bbb-error", "dropout-800")),
        (("bbb-fgsa", "gaussian-1"), ("bbb-ood", "gaussian-fashionmnist")),
        (("bbb-honest", "gaussian"), ("bbb-ood", "gaussian-kmnist")),
        (("bbb-honest", "mixture"), ("bbb-fgsa", "mixture-eot-10")),
        (("bbb-ood", "mixture-sgd-kmnist"), ("bbb-error", "mixture-800")),
        (("bbb-fgsa", "mixture-sgd-1"), ("bbb-error", "mixture-800")),
        (("bbb-honest", "mixture-sgd"), ("bbb-error", "mixture-800")),
    ],
)
def test_specs_share_their_networks(one: tuple[str, str], other: tuple[str, str]) -> None:
    ours, theirs = settings_of(*one), settings_of(*other)
    assert {name: ours[name] for name in TRAINING} == {name: theirs[name] for name in TRAINING}


def test_every_cell_can_be_built_and_judged_in_full() -> None:
    names = ("bbb-error", "bbb-search", "bbb-pruning", "bbb-ood", "bbb-fgsa", "bbb-honest")
    every = [spec.settings_of(cell) for spec in map(load_spec, names) for cell in spec.cells]
    for own in every:
        small = own | {"model": "fc:4"}
        make_network(small, (1, 28, 28), 10)
        dubio.ELBO(beta=own["beta"], kl_weighting=own["kl_weighting"], warmup=own["warmup"])
        assert own["optimiser"] in ("adam", "sgd")
        assert own.get("unseen", "kmnist") in OOD_PAIRS["mnist"]
        assert own.get("audit_budget", "quick") in BUDGETS


def test_the_gaussian_and_the_mixture_differ_by_the_prior_alone() -> None:
    for units in (400, 800, 1200):
        gaussian, mixture = (settings_of("bbb-error", f"{kind}-{units}") for kind in ("gaussian", "mixture"))
        assert {name for name in TRAINING if gaussian[name] != mixture[name]} == {"network"}


def test_settings_reach_the_network() -> None:
    settings = settings_of("bbb-error", "mixture-400") | {
        "model": "fc:12-8",
        "init_std": 0.07,
        "estimator": "weight",
        "mixture_weight": 0.75,
        "minus_log_wide": 2.0,
        "minus_log_narrow": 8.0,
        "prior_std": 0.3,
    }

    def make_with_seed(seed: int = 0, **own: object) -> nn.Module:
        torch.manual_seed(seed)
        return make_network(settings | own, (1, 8, 8), 10)

    model = make_with_seed()
    assert isinstance(next(model.children()), Normalise)
    posterior = next(module for module in model.modules() if isinstance(module, GaussianPosterior))
    assert posterior.prior == dubio.ScaleMixture(0.75, math.exp(-2.0), math.exp(-8.0))
    assert torch.allclose(posterior.std, torch.tensor(0.07))
    assert dubio.spec(model).method.estimator == "weight"

    gaussian = make_with_seed(network="gaussian")
    assert dubio.spec(gaussian).method.prior == dubio.Normal(0.0, 0.3)
    masked = make_with_seed(network="dropout", input_dropout=0.1)
    assert [module.p for module in masked.modules() if hasattr(module, "p")] == [0.1, 0.5, 0.5]
    inputs = torch.rand(5, 1, 8, 8)
    plain = make_with_seed(network="mlp")
    with dubio.noise_off():
        assert all(torch.allclose(net(inputs), plain(inputs), atol=1e-5) for net in (model, gaussian, masked))
    other = make_with_seed(1, network="mlp")
    assert not torch.allclose(other(inputs), plain(inputs))
    with pytest.raises(ValueError, match="network must be one of mlp, dropout, gaussian, mixture, got 'tree'"):
        make_with_seed(network="tree")


def test_a_network_is_trained_once_with_its_settings_and_keeps_its_learning_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def spy(model: nn.Module, train: Examples, **arguments: Any) -> None:
        asked.append({"num": len(train), **arguments})
        for epoch in range(1, arguments["epochs"] + 1):
            if epoch == 5:
                nn.utils.vector_to_parameters(
                    torch.zeros(sum(p.numel() for p in model.parameters())), model.parameters()
                )
            arguments["callbacks"][0].on_epoch({"epoch": epoch})

    monkeypatch.setattr(networks, "fit", spy)
    settings = settings_of("bbb-error", "mlp-400", "tiny") | {"epochs": 5, "curve_every": 2, "train_draws": 3}
    settings |= {"beta": 0.5, "kl_weighting": "geometric", "warmup": 3, "momentum": 0.7, "noise_lr": 0.5}
    first, second = (train_network(trial_with(settings, tmp_path)) for _ in range(2))
    assert len(asked) == 1
    assert first.learning_curve == second.learning_curve
    assert first.learning_curve.x == (2.0, 4.0, 5.0)
    share_of_zeros = (first.test.targets == 0).double().mean().item()
    assert first.learning_curve.y[-1] == pytest.approx(100.0 * (1.0 - share_of_zeros))  # all logits equal: class 0
    assert not any(bool(parameter.any()) for parameter in second.model.parameters())
    own = asked[0]
    assert own["objective"] == dubio.ELBO(beta=0.5, kl_weighting="geometric", warmup=3)
    assert (own["num"], own["noise_lr"], own["num_samples"], own["seed"]) == (128, 0.5, 3, 0)
    optimiser = own["optimizer"]([{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1}])
    assert (type(optimiser), optimiser.defaults["momentum"]) == (torch.optim.SGD, 0.7)

    train_network(trial_with(settings, tmp_path, seed=1))
    train_network(trial_with(settings | {"optimiser": "adam", "draws": 5}, tmp_path))
    train_network(trial_with(settings | {"draws": 9}, tmp_path))  # has no part in training
    assert len(asked) == 3
    assert asked[2]["optimizer"] is None


def test_errors_are_of_the_draws_and_of_the_mean_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    surely = dubio.Deterministic().convert(Reader())
    monkeypatch.setattr(errors, "train_network", lambda trial: known(surely, num_wrong=30, held_out_wrong=10))
    found = errors.error(trial_with({"draws": 3}, tmp_path))
    assert found.metrics["test_error"].value == pytest.approx(30.0)
    assert found.metrics["lowest_error"].value == 40.0
    assert found.curves["test_error_by_epoch"].y == (40.0, 60.0)

    noisy = dubio.Bayes(init_std=500.0).convert(Reader())
    monkeypatch.setattr(errors, "train_network", lambda trial: known(noisy, num_wrong=30, held_out_wrong=10))
    found = errors.error(trial_with({"draws": 3}, tmp_path))
    assert found.metrics["test_error"].value > 50.0
    assert found.metrics["test_error_mean_weights"].value == pytest.approx(30.0)


def test_the_search_looks_at_held_out_images_and_not_at_the_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dubio.Bayes(prior=dubio.Normal(0.0, 1.0), init_std=1e-3).convert(Reader())
    monkeypatch.setattr(errors, "train_network", lambda trial: known(model, num_wrong=30, held_out_wrong=10))
    found = errors.search(trial_with({"draws": 3}, tmp_path)).metrics
    assert found["validation_error"].value == pytest.approx(10.0)
    assert found["validation_nll"].value == pytest.approx(0.1 * 30.0, rel=0.01)  # a tenth is off by 200 * 0.15 nats
    assert found["divergence_per_example"].value == pytest.approx(dubio.divergence(model).item() / 100)


def test_pruning_takes_a_share_of_all_weights_and_leaves_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prune(percent: float) -> Any:
        model = dubio.Bayes(init_std=1e-3).convert(Reader(bias=1.0))
        monkeypatch.setattr(errors, "train_network", lambda trial: known(model))
        return errors.pruning(trial_with({"draws": 2, "removed_percent": percent}, tmp_path))

    some, everything = prune(50.0), prune(100.0)
    assert some.metrics["weights_left"].value == 320
    assert some.metrics["test_error"].value == 0.0  # the ten weights that count have the highest ratios
    assert everything.metrics["weights_left"].value == 0
    assert everything.metrics["test_error"].value == pytest.approx(90.0)  # the bias alone says 7
    assert everything.metrics["test_error_mean_weights"].value == pytest.approx(90.0)
    assert sum(some.curves["weights_by_db"].y) == pytest.approx(100.0)
    assert some.curves == everything.curves  # that of all weights, before
    assert max(some.curves["weights_by_db"].x) == pytest.approx(10.0 * math.log10(200.0 / 1e-3), abs=2.0)


def predictive(probs: list[list[list[float]]]) -> ClassificationPredictive:
    """A prediction from the probabilities of each draw."""
    samples = torch.tensor(probs).log()
    mean = functional.uncertainty.predictive_log_probs(samples)
    counts = functional.uncertainty.vote_counts(samples.argmax(dim=-1), samples.shape[-1])
    votes = functional.uncertainty.shares_of_counts(counts).float()
    variance = samples.exp().var(dim=0, unbiased=False)
    return ClassificationPredictive(
        len(samples), 0, samples, mean, functional.uncertainty.expected_entropy(samples), votes, variance, None
    )


def test_what_was_said_of_unseen_images_is_counted() -> None:
    # Two draws. Of four known images one is sure, one spreads and is wrong, one spreads and is right, one is calm.
    seen = predictive(
        [[[0.999, 0.001], [0.95, 0.05], [0.9, 0.1], [0.6, 0.4]], [[0.999, 0.001], [0.15, 0.85], [0.2, 0.8], [0.7, 0.3]]]
    )
    strange = predictive([[[0.995, 0.005], [0.98, 0.02]], [[0.995, 0.005], [0.05, 0.95]]])
    limits = {"low_score": 0.1, "wide_std": 0.2, "sure": 0.99}
    found = unseen.claims(seen, torch.tensor([0, 1, 0, 0]), strange, torch.tensor([0, 5]), limits)
    values = {name: measured.value for name, measured in found.items()}
    assert values == {
        "unanimous_known": 50.0,
        "sure_known": 25.0,
        "spread_known": 50.0,
        "wrong_among_spread": 50.0,
        "low_scores_unseen": 25.0,
        "spread_unseen": 50.0,
        "sure_unseen": 50.0,
        "accuracy_unseen": 50.0,
    }
    calm = unseen.claims(strange, torch.tensor([0, 0]), strange, torch.tensor([0, 5]), limits | {"wide_std": 0.9})
    assert (calm["wrong_among_spread"].value, calm["wrong_among_spread"].n) == (0.0, 0)


@pytest.mark.feature("published tables and figures of Bayes by Backprop can be run again from their specs")
def test_doubt_is_larger_where_the_network_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes(init_std=5.0).convert(Reader())  # logits of known images are 30 and 0, with a noise of about 5
    monkeypatch.setattr(unseen, "train_network", lambda trial: known(model))
    settings = settings_of("bbb-ood", "gaussian-kmnist", "digits") | {"draws": 20}
    found = unseen.ood(trial_with(settings, tmp_path)).metrics
    for doubt in ("entropy", "mutual_information", "top_std"):
        assert found[f"{doubt}_unseen"].value > found[f"{doubt}_known"].value + 0.05, doubt
        assert found[f"auroc_{doubt}"].value > 0.9, doubt
    assert (found["entropy_known"].n, found["entropy_unseen"].n) == (100, 449)
    assert (tmp_path / "cell-votes.png").stat().st_size > 1000


def test_accuracy_falls_where_the_attack_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Deterministic().convert(Reader())
    monkeypatch.setattr(attacking, "train_network", lambda trial: known(model))
    settings = settings_of("bbb-fgsa", "mlp") | {"draws": 2}
    found = attacking.fgsa(trial_with(settings, tmp_path))
    # The class's pixel of 0.15 falls by epsilon, all others rise to it: they meet at 0.075.
    assert [found.metrics[f"accuracy_{name}"].value for name in ("000", "005", "010", "015", "020")] == [
        *(100.0, 100.0, 0.0, 0.0, 0.0)
    ]
    assert found.curves["accuracy_by_epsilon"] == Curve((0.0, 0.05, 0.1, 0.15, 0.2), (100.0, 100.0, 0.0, 0.0, 0.0))
    assert (tmp_path / "cell-attacked.png").stat().st_size > 1000


@pytest.mark.parametrize(("cell", "draws", "noise"), [("gaussian-1", 1, "fresh"), ("gaussian-eot-10", 10, "fresh")])
def test_the_attack_averages_over_as_many_draws_as_a_cell_says(
    cell: str, draws: int, noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def spy(*values: Any, **fields: Any) -> Any:
        made.append(dubio.attacks.FGSM(*values, **fields))
        return made[-1]

    monkeypatch.setattr(attacking, "FGSM", spy)
    monkeypatch.setattr(attacking, "train_network", lambda trial: known(dubio.Bayes().convert(Reader())))
    attacking.fgsa(trial_with(settings_of("bbb-fgsa", cell) | {"draws": 2, "pictures": False}, tmp_path))
    assert [(attack.epsilon, attack.num_samples, attack.noise) for attack in made] == [
        (epsilon, draws, noise) for epsilon in (0.0, 0.05, 0.1, 0.15, 0.2)
    ]
    assert not [*tmp_path.iterdir()]


def test_without_noise_the_mean_network_is_attacked_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacking, "train_network", lambda trial: known(dubio.Bayes(init_std=500.0).convert(Reader())))
    settings = settings_of("bbb-fgsa", "dropout-mean") | {"draws": 2, "pictures": False}
    left = attacking.fgsa(trial_with(settings, tmp_path)).metrics
    assert [left["accuracy_005"].value, left["accuracy_010"].value] == [100.0, 0.0]
    noisy = attacking.fgsa(trial_with(settings | {"noise": "fresh"}, tmp_path)).metrics
    assert noisy["accuracy_000"].value < 60.0


def test_the_line_is_that_of_least_squares_and_published_slopes_follow_from_published_seconds() -> None:
    assert timing.line({1: 3.0, 2: 5.0, 4: 9.0}) == pytest.approx((2.0, 1.0))
    assert timing.line({1: 0.0, 2: 1.0, 3: 0.0})[1] == pytest.approx(0.0)
    for cell in load_spec("bbb-speed").cells:
        slope, explained = timing.line({count: cell.published[f"seconds_{count}"] for count in range(1, 11)})
        assert slope == pytest.approx(cell.published["slope"], rel=0.06), cell.name
        assert explained > 0.99, cell.name


@pytest.mark.parametrize(
    ("cell", "estimator", "executor"),
    [
        ("images-sequential", "weight", "loop"),
        ("images-vmap", "weight", "vmap"),
        ("regression-vmap-lrt", "local", "vmap"),
    ],
)
def test_epochs_are_timed_eagerly_in_the_way_of_a_cell_and_scaled(
    cell: str, estimator: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def spy(model: nn.Module, train: Examples, **arguments: Any) -> None:
        ran.append((model, train, arguments))
        draws = arguments["num_samples"]
        times.extend([0.0, 50.0, 90.0, 90.0 + draws, 90.0 + 2 * draws])
        for epoch in range(1, 6):
            arguments["callbacks"][0].on_epoch({"epoch": epoch})

    times: list[float] = []
    monkeypatch.setattr(timing, "fit", spy)
    monkeypatch.setattr(timing, "_now", lambda device: {"time": times.pop(0)})
    changes = {"timed": 2, "warmups": 3, "data": "digits", "num_train": 100, "draw_counts": [1, 3]}
    changes |= {"epoch_examples": 1000, "num_data": 100}
    found = timing.speed(trial_with(settings_of("bbb-speed", cell) | changes, tmp_path)).metrics
    assert (found["seconds_1"].value, found["seconds_3"].value) == (10.0, 30.0)  # a tenth of an epoch was timed
    assert (found["slope"].value, found["r_squared"].value) == pytest.approx((10.0, 1.0))
    model, train, arguments = ran[0]
    assert dubio.spec(model).method.estimator == estimator
    assert (arguments["objective"].executor, arguments["fast"], arguments["epochs"]) == (executor, False, 5)
    assert [more["num_samples"] for _, _, more in ran] == [1, 3]
    assert len(train) == 100
    with pytest.raises(ValueError, match="warmups must be at least 1, since a first epoch is slower, got 0"):
        timing.speed(trial_with(settings_of("bbb-speed", cell) | changes | {"warmups": 0}, tmp_path))


def test_an_objective_runs_its_draws_through_the_executor_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    whole = dubio.ELBO.__call__

    def spy(self: dubio.ELBO, *values: Any, **arguments: Any) -> Any:
        asked.append((self.num_data, arguments["executor"]))
        return whole(self, *values, **arguments)

    monkeypatch.setattr(dubio.ELBO, "__call__", spy)
    model = dubio.Bayes().convert(nn.Linear(3, 2))
    objective = timing.Through(dubio.ELBO(), "loop").with_num_data(20)
    dubio.fit(model, (torch.rand(8, 3), torch.randint(2, (8,))), objective=objective, epochs=1, progress=False)
    assert asked == [(20, "loop")]


def test_a_spec_runs_on_digits_and_error_falls_on_the_way(tmp_path: Path) -> None:
    spec = load_spec("bbb-error")
    spec = dataclasses.replace(spec, digits={**spec.digits, "model": "fc:32", "epochs": 25})
    (found,) = reproduce(spec, tmp_path, variant="digits", cells="mlp-400", seeds=[0])
    curve = found.curves["test_error_by_epoch"]
    assert found.metrics["test_error"].value == curve.y[-1] < 10.0
    assert found.metrics["lowest_error"].value == min(curve.y)
    assert curve.x == (10.0, 20.0, 25.0)
    assert curve.y[0] > curve.y[-1]


def gradients_of(model: nn.Module, batch: tuple[Tensor, Tensor], seeds: range, num_data: int) -> Tensor:
    """One row for each seed."""
    rows = []
    for seed in seeds:
        model.zero_grad()
        dubio.ELBO(num_data)(model, *batch, 1, seed=seed).total.backward()
        rows.append(torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None]))
    return torch.stack(rows).double()


@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_the_scatter_of_gradients_is_the_trace_of_their_covariance(estimator: str) -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.3, estimator=estimator).convert(nn.Linear(5, 3))
    batches = [(torch.rand(16, 5), torch.randint(3, (16,))) for _ in range(3)]
    draws = 6
    rows = [gradients_of(model, batch, range(6 * i, 6 * i + 6), 48) for i, batch in enumerate(batches)]
    noise = sum(own.var(dim=0).sum().item() for own in rows) / 3
    between = torch.stack([own.mean(dim=0) for own in rows]).var(dim=0).sum().item() - noise / draws
    found = gradient_scatter(model, batches, dubio.ELBO(48), draws)
    assert found == pytest.approx((noise, between), rel=1e-4)


def test_without_noise_gradients_scatter_over_batches_alone_and_local_noise_scatters_less_t16() -> None:
    torch.manual_seed(0)
    batches = [(torch.rand(32, 5), torch.randint(3, (32,))) for _ in range(4)]
    plain = nn.Linear(5, 3)
    noise, between = gradient_scatter(dubio.Deterministic().convert(plain), batches, dubio.ELBO(128), 2)
    assert noise == pytest.approx(0.0, abs=1e-9)
    assert between > 1e-4
    local, weight = (
        gradient_scatter(dubio.Bayes(init_std=0.3, estimator=name).convert(plain), batches, dubio.ELBO(128), 200)[0]
        for name in ("local", "weight")
    )
    assert local < 0.5 * weight


def test_learning_curves_differ_by_the_estimator_alone() -> None:
    for name in ("m3-lrt-curve", "m3-lrt-curve-600"):
        spec = load_spec(name)
        kinds = {cell.name: spec.settings_of(cell) for cell in spec.cells}
        for local, weight in ((key, key.replace("local", "weight")) for key in kinds if key.startswith("local")):
            differing = {key for key in kinds[local] if kinds[local][key] != kinds[weight][key]}
            assert differing == {"estimator"}
        assert all(max(own["scatter_epochs"]) == own["epochs"] for own in kinds.values())
        of_ood = settings_of("bbb-ood", "gaussian-kmnist")
        same = {*TRAINING} - {"estimator", "schedule", "epochs", "curve_every", "train_draws", "momentum"}
        same -= {"input_dropout", "hidden_dropout", "mixture_weight", "minus_log_wide", "minus_log_narrow"}
        assert all(own[key] == of_ood[key] for own in kinds.values() for key in same)


def test_a_learning_curve_says_when_it_falls_below_the_limit_and_how_calm_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter((9.0, 3.0, 2.0, 5.0, 1.0))
    monkeypatch.setattr(estimators, "error_percent", lambda *given: next(errors))
    own = {"epochs": 5, "last_epochs": 3, "scatter_epochs": [2, 5]}
    settings = settings_of("m3-lrt-curve", "weight", "tiny") | own
    found = estimators.learning_curve(trial_with(settings, tmp_path))
    assert found.curves["test_error_by_epoch"].y == (9.0, 3.0, 2.0, 5.0, 1.0)
    assert found.metrics["epochs_to_limit"].value == 2.0
    assert found.metrics["last_mean"].value == pytest.approx(8 / 3)
    assert found.metrics["last_spread"].value == pytest.approx(math.sqrt(26 / 9))
    assert found.curves["scatter_noise_weight"].x == (2.0, 5.0)
    ratios = [
        weight / local
        for weight, local in zip(
            *(found.curves[f"scatter_noise_{name}"].y for name in ("weight", "local")), strict=True
        )
    ]
    assert found.metrics["noise_ratio"].value == pytest.approx(math.sqrt(math.prod(ratios)))
    assert found.metrics["noise_share_weight"].value > found.metrics["noise_share_local"].value > 0.0
