"""``evaluate``: what is judged, by which draws, and what it remembers."""

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio.data.examples import Examples
from dubio.evaluation.comparison import metric_curve
from dubio.evaluation.judge import SCORES, judge
from dubio.evaluation.records import Evaluation
from dubio.prediction.predictive import ClassificationPredictive


def network(init_std: float = 0.3, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=init_std).convert(nn.Linear(4, classes))


def data(count: int = 60, classes: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(classes, (count,), generator=generator)


def test_numbers_are_those_of_the_prediction_with_the_seed() -> None:
    model, (inputs, targets) = network(), data()
    result = dubio.evaluate(model, (inputs, targets), num_samples=30, num_resamples=0, seed=5)
    expected = dubio.predict(model, inputs, 30, seed=5)
    assert isinstance(expected, ClassificationPredictive)
    assert result.metrics["accuracy"].value == pytest.approx((expected.label == targets).double().mean().item())
    assert result.metrics["mutual_information"].value == pytest.approx(expected.mutual_information.mean().item())
    single = (expected.samples.argmax(-1) == targets).double().mean().item()  # type: ignore[union-attr]
    assert result.metrics["single_draw_accuracy"].value == pytest.approx(single)
    assert (result.num_samples, result.seed, result.data.num_examples) == (30, 5, 60)


def test_twice_the_draws_are_new_draws() -> None:
    model, (inputs, targets) = network(), data()
    result = dubio.evaluate(model, (inputs, targets), num_samples=20, num_resamples=0)
    nll = result.metrics["nll"]
    assert nll.doubled is not None
    assert nll.doubled != nll.value
    assert result.draws is not None
    # With few draws the mean of 2S is nearer to that of very many than the mean of S, on average over the examples.
    exact = dubio.evaluate(model, (inputs, targets), num_samples=4000, num_resamples=0, double=False, seed=9)
    assert abs(nll.doubled - exact.metrics["nll"].value) < 3 * (nll.draw_error or 0.0)


def test_the_error_over_draws_is_how_far_seeds_differ() -> None:
    model, both = network(), data(300)
    result = [
        dubio.evaluate(model, both, num_samples=50, num_resamples=0, double=False, seed=seed).metrics["nll"]
        for seed in range(20)
    ]
    spread = torch.tensor([estimate.value for estimate in result]).std().item()
    reported = sum(estimate.draw_error or 0.0 for estimate in result) / 20
    assert reported == pytest.approx(spread, rel=0.5)  # 20 seeds tell a spread to 16 %


def test_the_draws_are_judged_by_the_interval() -> None:
    sure, unsure = (dubio.evaluate(network(std), data(200), num_samples=20) for std in (0.01, 3.0))
    assert sure.draws is not None
    assert unsure.draws is not None
    assert sure.draws.enough
    assert not unsure.draws.enough


def test_without_noise_there_is_nothing_to_double() -> None:
    torch.manual_seed(0)
    plain = dubio.evaluate(nn.Linear(4, 3), data(), num_samples=20)
    ensemble = dubio.Ensemble(members=3).convert(nn.Linear(4, 3))
    members = dubio.evaluate(ensemble, data(), num_samples=20)
    assert plain.draws is None
    assert members.draws is None
    assert members.num_samples == 3
    assert plain.metrics["mutual_information"].value == 0.0


def test_unseen_data_are_the_positives() -> None:
    model = network()
    inputs, targets = data(100)
    result = dubio.evaluate(model, (inputs, targets), ood={"far": 1.5 * inputs}, num_samples=50, num_resamples=50)
    scores = result.unseen["far"].scores
    assert set(scores) == {*SCORES}
    known, far = (dubio.predict(model, x, 50, seed=0) for x in (inputs, 1.5 * inputs))
    assert isinstance(known, ClassificationPredictive)
    assert isinstance(far, ClassificationPredictive)
    expected = functional.uncertainty.auroc(known.mutual_information, far.mutual_information).item()
    estimate = scores["mutual_information"].auroc
    assert estimate.value == pytest.approx(expected)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < estimate.value < estimate.high
    counts = scores["entropy"].histogram.counts
    assert (sum(counts["known"]), sum(counts["unseen"])) == (100, 100)
    assert result.uncertainty["far"].mutual_information > result.uncertainty["all"].mutual_information


def test_energy_is_that_of_the_logits_and_absent_without_them() -> None:
    model, (inputs, targets) = network(), data()
    with dubio._engine.Using(estimator="weight"):
        logits = dubio.sample(model, inputs, 8, seed=3)
    result = dubio.predict(model, inputs, 8, seed=3)
    assert isinstance(result, ClassificationPredictive)
    assert result.energy is not None
    torch.testing.assert_close(result.energy, -logits.logsumexp(-1).mean(0))
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=-1))
    calm = dubio.Bayes().convert(net, dubio.Categorical("log_probs"))
    judged = dubio.evaluate(calm, (inputs, targets), ood={"same": -inputs}, num_samples=4, num_resamples=0)
    assert "energy" not in judged.unseen["same"].scores


def test_the_class_table_counts() -> None:
    log_probs = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]]).log()
    targets = torch.tensor([0, 1, 1, 1])
    result = judge(predictive(log_probs), targets, classes=("cat", "dog", "owl"), num_resamples=0)
    cat, dog, owl = result.classes
    assert (cat.num_examples, cat.recall, cat.precision, cat.taken_for) == (1, 1.0, 1 / 3, None)
    assert (dog.num_examples, dog.recall, dog.precision, dog.taken_for) == (3, pytest.approx(1 / 3), 1.0, "cat")
    assert (owl.num_examples, owl.recall, owl.precision, owl.confidence) == (0, None, None, None)
    assert dog.nll == pytest.approx(-(math.log(0.3) + math.log(0.7) + math.log(0.4)) / 3, rel=1e-6)


def test_notable_examples_are_the_extremes() -> None:
    log_probs = torch.tensor([[0.98, 0.02], [0.51, 0.49], [0.1, 0.9], [0.3, 0.7]]).log()
    result = judge(predictive(log_probs), torch.tensor([0, 0, 0, 0]), num_resamples=0)
    assert [example.index for example in result.notable["most uncertain"]] == [1, 3, 2, 0]
    assert [example.index for example in result.notable["most confidently wrong"]] == [2, 3]
    assert result.notable["most confidently wrong"][0].probs == pytest.approx({"1": 0.9, "0": 0.1})


def test_corruption_curves_begin_with_the_data_themselves() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes().convert(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    test = dubio.data.load("digits").test
    assert test is not None
    result = dubio.evaluate(model, test, corruptions=("noise",), num_samples=5, num_resamples=0)
    points = result.corruptions["noise"]
    assert [point.strength for point in points] == [0, 1, 2, 3, 4, 5]
    assert points[0].nll == pytest.approx(result.metrics["nll"].value)
    assert points[5].nll != points[0].nll


def test_targets_in_a_column_are_judged_as_those_in_a_row() -> None:
    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), dubio.Gaussian(0.1))
    inputs, targets = torch.randn(30, 5), torch.randn(30)
    row, column = (dubio.evaluate(model, (inputs, part), num_samples=3) for part in (targets, targets[:, None]))
    assert row.metrics == column.metrics


def test_regression_is_judged_by_its_intervals() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=1e-4).convert(nn.Linear(1, 1), dubio.Gaussian(0.5))
    inputs = torch.randn(4000, 1)
    with torch.no_grad(), dubio.noise_off():
        targets = model(inputs) + 0.5 * torch.randn(4000, 1)
    result = dubio.evaluate(model, (inputs, targets), num_samples=20, num_resamples=50)
    assert result.kind == "regression"
    assert result.metrics["rmse"].value == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(8000))
    for row in result.intervals:
        error = math.sqrt(row.level * (1 - row.level) / 4000)
        assert row.coverage.value == pytest.approx(row.level, abs=4 * error)
    assert result.intervals[-1].width.value == pytest.approx(2 * 1.96 * 0.5, rel=0.01)
    assert Evaluation.from_json(result.to_json()) == result


def test_yes_or_no_is_two_classes() -> None:
    torch.manual_seed(0)
    model = dubio.Bayes().convert(nn.Linear(4, 1), dubio.Bernoulli())
    inputs, _ = data(30)
    targets = (inputs[:, :1] > 0).float()
    result = dubio.evaluate(model, (inputs, targets), num_samples=20, num_resamples=0)
    yes = dubio.predict(model, inputs, 20, seed=0)
    assert isinstance(yes, ClassificationPredictive)
    expected = (yes.label == targets).double().mean().item()
    assert result.metrics["accuracy"].value == pytest.approx(expected)
    assert len(result.classes) == 2


def test_the_network_remembers_what_it_was_judged_on() -> None:
    model, (inputs, targets) = network(), data()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    dubio.evaluate(model, (inputs, targets), num_samples=2, num_resamples=0)
    dubio.evaluate(model, (inputs[order], targets[order]), num_samples=2, num_resamples=0)
    assert len(dubio.spec(model).evaluated) == 1


def test_a_loader_and_tensors_are_judged_alike() -> None:
    model, (inputs, targets) = network(), data()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=7)
    one, other = (
        dubio.evaluate(model, given, num_samples=20, num_resamples=10) for given in (loader, (inputs, targets))
    )
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


def test_a_curve_is_over_the_same_data() -> None:
    result = {strength: dubio.evaluate(network(strength), data(), num_samples=2) for strength in (0.2, 0.1)}
    points = metric_curve(result, "nll")
    assert [point.x for point in points] == [0.1, 0.2]
    assert points[0].estimate == result[0.1].metrics["nll"]
    other = dubio.evaluate(network(), data(seed=4), num_samples=2)
    with pytest.raises(ValueError, match="must be of the same data to make a curve, got 2 different sets"):
        metric_curve({**result, 0.3: other})
    with pytest.raises(ValueError, match=r"metric must be one of accuracy, .* got 'rmse'"):
        metric_curve(result, "rmse")


def test_what_was_decided_is_judged_too() -> None:
    model = network()

    def milder(count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Labels as often right as half the network's log-probabilities say."""
        inputs, _ = data(count, seed=seed)
        result = dubio.predict(model, inputs, 20, seed=0)
        assert isinstance(result, ClassificationPredictive)
        odds = (result.log_probs / 2.0).softmax(dim=-1)
        return inputs, torch.multinomial(odds, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)

    validation, test = milder(2000, 1), milder(500, 2)
    before = dubio.evaluate(model, test, num_samples=20, num_resamples=0)
    dubio.calibrate(model, validation, num_samples=20)
    dubio.abstain(model, validation, coverage=0.5, num_samples=20)
    dubio.conformal(model, validation, coverage=0.8, num_samples=20)
    result = dubio.evaluate(model, test, num_samples=20, num_resamples=20)
    metrics = {name: estimate.value for name, estimate in result.metrics.items()}
    assert set(result.decided) == {"calibration", "threshold", "sets"}
    assert metrics["nll"] < before.metrics["nll"].value
    assert 0.0 < (result.metrics["nll"].draw_error or 0.0) < (before.metrics["nll"].draw_error or 0.0)
    assert result.metrics["nll"].doubled == pytest.approx(metrics["nll"], abs=0.05)
    assert metrics["accepted_share"] == pytest.approx(0.5, abs=0.1)
    assert metrics["set_coverage"] == pytest.approx(0.8, abs=0.1)
    expected = dubio.predict(model, test[0], 20, seed=0)
    assert isinstance(expected, ClassificationPredictive)
    wrong = (expected.label != test[1])[expected.accepted].double().mean().item()
    assert metrics["accepted_error"] == pytest.approx(wrong)
    assert metrics["set_size"] == pytest.approx(expected.sets.sum(1).double().mean().item())


def test_judging_by_what_decided_is_warned_of() -> None:
    model, both = network(), data()
    with pytest.warns(dubio.DecisionWarning, match="60 validation examples are few to calibrate by"):
        dubio.calibrate(model, both, num_samples=5)
    with pytest.warns(dubio.DecisionWarning, match="the calibration of this network was found on these very data"):
        dubio.evaluate(model, both, num_samples=5, num_resamples=0)
    with pytest.raises(ValueError, match="judge"):
        dubio.abstain(model, both, coverage=0.5, num_samples=5)


@pytest.mark.feature("10,000 predictions are evaluated in a second")
def test_ten_thousand_predictions_take_at_most_a_second() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(10_000, 10, generator=generator).log_softmax(dim=-1)
    targets = torch.randint(10, (10_000,), generator=generator)
    result = predictive(log_probs)
    seconds = []
    for _ in range(3):
        began = time.process_time()
        judge(result, targets, num_resamples=0)
        seconds.append(time.process_time() - began)
    assert min(seconds) <= 1.0


def predictive(log_probs: Tensor) -> ClassificationPredictive:
    """One draw's prediction."""
    probs = log_probs.exp()
    return ClassificationPredictive(
        num_samples=1,
        seed=0,
        samples=None,
        log_probs=log_probs,
        expected_entropy=functional.uncertainty.entropy(probs),
        votes=nn.functional.one_hot(log_probs.argmax(-1), log_probs.shape[-1]).float(),
        class_variance=torch.zeros_like(probs),
        energy=None,
    )


def test_the_nll_of_classes_adds_up_where_probabilities_underflow() -> None:
    model, both = network(), data(80)
    with torch.no_grad():
        model.weight_posterior.mean.mul_(1e4)  # type: ignore[union-attr]
    result = dubio.evaluate(model, both, num_samples=2, num_resamples=0)
    assert result.metrics["nll"].value > 200.0
    total = sum((row.nll or 0.0) * row.num_examples for row in result.classes) / 80
    assert total == pytest.approx(result.metrics["nll"].value)


def test_intervals_of_shares_stay_shares() -> None:
    log_probs = torch.tensor([[0.9, 0.1]]).log().expand(300, 2)
    targets = torch.zeros(300, dtype=torch.int64)
    targets[0] = 1
    accuracy = judge(predictive(log_probs), targets).metrics["accuracy"]
    assert accuracy.high is not None
    assert accuracy.low is not None
    assert accuracy.low <= accuracy.value <= accuracy.high <= 1.0


def test_among_none_accepted_there_is_no_error() -> None:
    model, both = network(), data()
    dubio.convert.change_spec(model, threshold=dubio.Threshold("confidence", 2.0))
    metrics = dubio.evaluate(model, both, num_samples=2, num_resamples=0).metrics
    assert metrics["accepted_share"].value == 0.0
    assert "accepted_error" not in metrics


def test_one_draw_of_a_random_network_is_too_few() -> None:
    result = dubio.evaluate(network(), data(), num_samples=1)
    assert result.draws is not None
    assert not result.draws.enough


def test_a_network_that_rules_the_truth_out_cannot_be_judged() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=-1), nn.Threshold(-1.5, -torch.inf))
    model = dubio.Bayes().convert(net, dubio.Categorical("log_probs"))
    with pytest.raises(ValueError, match="nll is not finite: the network gives some target a probability of zero"):
        dubio.evaluate(model, data(), num_samples=2)


def test_unseen_data_need_a_name_and_inputs_of_their_own() -> None:
    model, (inputs, targets) = network(), data()
    with pytest.raises(ValueError, match="ood must not be named 'wrong', which is a group of the examples themselves"):
        dubio.evaluate(model, (inputs, targets), ood={"wrong": -inputs}, num_samples=2)
    with pytest.warns(UserWarning, match="ood 'same' holds the very inputs that are judged"):
        dubio.evaluate(model, (inputs, targets), ood={"same": inputs}, num_samples=2, num_resamples=0)
    with pytest.raises(ValueError, match=r"each by its own name, got a name twice in \('a', 'a', 'b'\)"):
        dubio.evaluate(model, (inputs, targets), classes=("a", "a", "b"), num_samples=2)


def test_thumbnails_keep_their_shape() -> None:
    images = torch.cat([torch.rand(4, 1, 32, 128), torch.full((1, 1, 32, 128), 3.0)])
    model = dubio.Bayes().convert(nn.Sequential(nn.Flatten(), nn.Linear(32 * 128, 3)))
    result = dubio.evaluate(model, (images, torch.zeros(5, dtype=torch.int64)), num_samples=2, num_resamples=0)
    shapes = {example.image.shape for example in result.notable["most uncertain"] if example.image is not None}
    assert shapes == {(1, 16, 64)}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1, got 0"),
        ({"num_resamples": -1}, ValueError, "num_resamples must be a whole number of at least 0, got -1"),
        ({"corruptions": ("fog",)}, ValueError, r"corruptions must name some of noise, blur, .* got \('fog',\)"),
        ({"corruptions": "noise"}, ValueError, "corruptions must name some of .*, got 'noise'"),
        ({"corruptions": ("noise",)}, TypeError, "corruptions need data as dubio.data.Examples of images, got tuple"),
        ({"classes": ("a", "b")}, ValueError, "classes must name all 3 classes of the predictions, .* got 2 names"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        dubio.evaluate(network(), data(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "kind", "message"),
    [
        (torch.full((60,), 3), ValueError, "targets must name classes from 0 to 2, got 3"),
        (torch.zeros(60, 2), ValueError, r"targets must be one label for each of 60 examples, got \(60, 2\)"),
        (torch.full((60,), 0.5), TypeError, "targets must be whole numbers that name classes, got torch.float32"),
    ],
)
def test_bad_targets_are_refused(targets: Tensor, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        dubio.evaluate(network(), (data()[0], targets), num_samples=2)


def test_weights_of_examples_are_refused() -> None:
    inputs, targets = data()
    with pytest.raises(ValueError, match="data must have no weights of examples"):
        dubio.evaluate(network(), [(inputs, targets, torch.ones(60))], num_samples=2)


def test_unseen_data_are_for_classes() -> None:
    model = dubio.Bayes().convert(nn.Linear(1, 1), dubio.Gaussian(0.5))
    inputs = torch.randn(8, 1)
    with pytest.raises(ValueError, match="ood and corruptions are for classes, and this network predicts numbers"):
        dubio.evaluate(model, (inputs, inputs), ood={"far": 9 * inputs}, num_samples=2)


def test_dense_predictions_are_refused() -> None:
    examples = Examples(torch.rand(4, 1, 3, 3), torch.zeros(4, dtype=torch.int64), ("a", "b"))
    model = dubio.Bayes().convert(nn.Conv2d(1, 2, 1), dubio.Categorical(class_axis=1))
    with pytest.raises(
        ValueError, match=r"must be of one class per example .* got probabilities of shape \(4, 3, 3, 2\)"
    ):
        dubio.evaluate(model, examples, num_samples=2)
