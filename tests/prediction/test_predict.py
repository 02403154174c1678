"""``predict``: which draws it makes, in which batches, and that it has no side effects."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.settings import STATE
from networks import CASES, Attention, Residual, TwoInputs, mlp

ESTIMATORS = ("weight", "local", "flipout")
ROWS = 40  # more than one block of noise, and no multiple of 16


def classifier(estimator: str = "local", init_std: float = 0.3) -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=init_std).convert(mlp(5, 8, 4))  # type: ignore[arg-type]


def summaries(pred: dubio.Predictive) -> dict[str, Tensor]:
    """All tensors that a prediction holds, but the single draws."""
    names = [field.name for field in fields(pred) if field.name not in ("samples", "sample_stds")]
    return {name: getattr(pred, name) for name in names if isinstance(getattr(pred, name), Tensor)}


def assert_same(a: dubio.Predictive, b: dubio.Predictive, atol: float = 1e-6) -> None:
    assert summaries(a).keys() == summaries(b).keys()
    for name, value in summaries(a).items():
        torch.testing.assert_close(
            value, summaries(b)[name], rtol=1e-5, atol=atol, msg=lambda text, n=name: f"{n}: {text}"
        )


# Streaming


LIKELIHOODS = (dubio.Categorical(), dubio.Gaussian(std=0.1), dubio.Gaussian(std="output"))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize(("chunk", "batch_size"), [(1, 256), (3, 7), (7, 13), (100, 1), (None, 5)])
def test_streaming_equals_all_draws_at_once(likelihood: Any, executor: Any, chunk: int | None, batch_size: int) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 4), likelihood)
    inputs = torch.randn(17, 5)
    kept = dubio.predict(model, inputs, 11, seed=3, executor="vmap", chunk=11)
    streamed = dubio.predict(
        model, inputs, 11, seed=3, keep_samples=False, executor=executor, chunk=chunk, batch_size=batch_size
    )
    assert kept.samples is not None
    assert streamed.samples is None
    assert streamed.num_samples == kept.num_samples == 11
    assert_same(kept, streamed)


def test_votes_are_counted_however_draws_are_cut() -> None:
    model = dubio.Bayes(init_std=0.2).convert(mlp(5, 8, 3)).double()
    inputs = torch.randn(40, 5, dtype=torch.float64)
    kept = dubio.predict(model, inputs, 7, seed=3)
    counts = torch.nn.functional.one_hot(kept.samples.argmax(dim=-1), 3).sum(dim=0)
    assert 0 < int((counts == 7).any(dim=-1).sum()) < 40
    for chunk in (7, 3, 2):
        result = dubio.predict(model, inputs, 7, seed=3, keep_samples=False, executor="vmap", chunk=chunk)
        assert torch.equal(result.votes, counts.double() / 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_all_votes_together_are_one() -> None:
    """A GPU divides by a number as it multiplies by its inverse: 41 of 41 were 0.99999994."""
    model = dubio.Bayes(init_std=1e-3).convert(mlp(5, 8, 3)).cuda()
    for count in (41, 47, 100):
        result = dubio.predict(model, torch.randn(40, 5).cuda(), count, seed=3, chunk=41)
        assert float((result.votes.amax(dim=-1) == 1.0).float().mean()) > 0.5


def test_quantiles_without_kept_samples_are_refused() -> None:
    model = dubio.Bayes().convert(mlp(5, 8, 1), dubio.Gaussian(std=0.1))
    pred = dubio.predict(model, torch.randn(4, 5), 3, keep_samples=False)
    with pytest.raises(ValueError, match=r"quantiles need the single draws: predict with keep_samples=True"):
        pred.quantile(0.5)
    with pytest.raises(ValueError, match=r"keep_samples=True"):
        pred.interval(0.9)


# Seeds and rows


@pytest.mark.feature("a prediction repeats from its seed, whatever the batch size")
@pytest.mark.parametrize("estimator", [*ESTIMATORS, None])
def test_a_seed_repeats_a_prediction_and_another_seed_does_not(estimator: Any) -> None:
    model, inputs = classifier(), torch.randn(6, 5)
    first, again, other = (dubio.predict(model, inputs, 5, seed=s, estimator=estimator) for s in (4, 4, 5))
    assert torch.equal(first.samples, again.samples)
    assert (first.samples - other.samples).abs().max() > 0.01
    assert first.seed == 4


def test_the_reported_seed_repeats_a_seedless_prediction() -> None:
    model, inputs = classifier(), torch.randn(6, 5)
    first, second = dubio.predict(model, inputs, 5), dubio.predict(model, inputs, 5)
    assert first.seed != second.seed
    assert not torch.equal(first.samples, second.samples)
    assert torch.equal(first.samples, dubio.predict(model, inputs, 5, seed=first.seed).samples)


def test_manual_seed_repeats_a_seedless_prediction() -> None:
    model, inputs = classifier(), torch.randn(6, 5)
    torch.manual_seed(7)
    first = dubio.predict(model, inputs, 5)
    torch.manual_seed(7)
    assert torch.equal(first.samples, dubio.predict(model, inputs, 5).samples)


def test_a_prediction_under_frozen_takes_its_seed() -> None:
    model, inputs = classifier(), torch.randn(6, 5)
    with dubio.frozen(seed=9):
        pred = dubio.predict(model, inputs, 5)
    assert pred.seed == 9
    assert torch.equal(pred.samples, dubio.predict(model, inputs, 5, seed=9).samples)


def test_more_draws_of_a_seed_begin_with_the_fewer() -> None:
    model, inputs = classifier(), torch.randn(6, 5)
    few, many = (dubio.predict(model, inputs, n, seed=1) for n in (3, 8))
    torch.testing.assert_close(few.samples, many.samples[:3])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("make", [lambda: mlp(5, 8, 4), Residual], ids=["mlp", "cnn"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.usefixtures("unchecked")
def test_rows_do_not_depend_on_the_batch_size(estimator: Any, make: Any, executor: Any) -> None:
    model = dubio.Bayes(init_std=0.3, estimator=estimator).convert(make())
    inputs = torch.randn(ROWS, 5) if isinstance(model, nn.Sequential) else torch.randn(ROWS, 3, 5, 5)
    options = {"seed": 2, "estimator": estimator, "executor": executor}
    whole = dubio.predict(model, inputs, 3, batch_size=256, **options)
    for batch_size in (1, 5, 7):
        part = dubio.predict(model, inputs, 3, batch_size=batch_size, **options)
        torch.testing.assert_close(part.samples, whole.samples, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_equal_rows_in_different_batches_have_noise_of_their_own(estimator: Any) -> None:
    pred = dubio.predict(classifier(), torch.ones(ROWS, 5), 1, seed=0, estimator=estimator, batch_size=4)
    distinct = torch.unique(pred.samples[0].round(decimals=5), dim=0)
    assert len(distinct) == ROWS


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_positions_folded_into_the_batch_keep_their_noise_for_any_batch_size(estimator: Any) -> None:
    class Folding(nn.Module):
        """Three positions per row, which the layer sees as three rows."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    model = dubio.Bayes(init_std=0.3).convert(Folding())
    inputs = torch.ones(ROWS, 3, 5)
    whole, parts = (dubio.predict(model, inputs, 2, seed=0, estimator=estimator, batch_size=size) for size in (256, 4))
    torch.testing.assert_close(parts.samples, whole.samples)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_weight_sampling_is_one_function_over_all_batches(executor: Any) -> None:
    row = torch.randn(1, 5)
    pred = dubio.predict(classifier(), row.expand(ROWS, 5), 4, seed=0, batch_size=7, executor=executor)
    torch.testing.assert_close(pred.samples, pred.samples[:, :1].expand(-1, ROWS, -1))
    assert pred.samples.std(dim=0).min() > 1e-3


def test_prediction_samples_weights_by_default_and_the_layers_way_on_request() -> None:
    model, inputs = classifier("local"), torch.ones(3, 5)
    by_default = dubio.predict(model, inputs, 2, seed=0).samples
    as_layers = dubio.predict(model, inputs, 2, seed=0, estimator=None).samples
    assert torch.equal(by_default, dubio.predict(model, inputs, 2, seed=0, estimator="weight").samples)
    assert torch.equal(as_layers, dubio.predict(model, inputs, 2, seed=0, estimator="local").samples)
    assert (by_default[:, 0] - by_default[:, 1]).abs().max() < 1e-6  # one function for all rows
    assert (as_layers[:, 0] - as_layers[:, 1]).abs().max() > 0.01


def test_predict_draws_what_sample_draws() -> None:
    model, inputs = classifier("weight").eval(), torch.randn(6, 5)
    with torch.no_grad():
        outputs = dubio.sample(model, inputs, 5, seed=8)
    torch.testing.assert_close(dubio.predict(model, inputs, 5, seed=8).samples, outputs.log_softmax(dim=-1))


# What predict leaves behind


@contextlib.contextmanager
def nothing_changed(model: nn.Module) -> Iterator[None]:
    """Everything a prediction could disturb is the same afterwards: object by object and bit by bit."""
    flags = {name: module.training for name, module in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    settings, running, grad_enabled = STATE.own.settings, STATE.own.current, torch.is_grad_enabled()
    yield
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name for name, p in model.named_parameters() if p.grad is not None} == gradients.keys()
    assert all(torch.equal(p.grad, gradients[n]) for n, p in model.named_parameters() if p.grad is not None)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert STATE.own.settings is settings
    assert STATE.own.current is running
    assert torch.is_grad_enabled() == grad_enabled


def disturbed_residual() -> nn.Module:
    """A network in training mode but for one layer, with gradients and moved batch statistics."""
    model = dubio.Bayes(where=("branch", "head")).convert(Residual()).train()
    model(torch.randn(6, 3, 8, 8)).sum().backward()
    model.get_submodule("stem").eval()
    return model


@pytest.mark.parametrize("executor", ["auto", "vmap", "loop"])
def test_predict_leaves_the_network_as_it_was(executor: Any) -> None:
    model = disturbed_residual()
    assert model.get_submodule("norm").num_batches_tracked == 1
    with nothing_changed(model), dubio.antithetic(), nothing_changed(model):
        dubio.predict(model, torch.randn(6, 3, 8, 8), 4, executor=executor)


@pytest.mark.parametrize("fails_at", [1, 5, 9])
def test_predict_leaves_the_network_as_it_was_when_it_raises(fails_at: int) -> None:
    model, calls = disturbed_residual(), [0]

    def break_down(module: nn.Module, args: Any) -> None:
        calls[0] += 1
        if calls[0] == fails_at:
            raise ArithmeticError("the network broke down")

    model.get_submodule("head").register_forward_pre_hook(break_down)
    with nothing_changed(model):
        with pytest.raises(ArithmeticError, match="broke down"):
            dubio.predict(model, torch.randn(6, 3, 8, 8), 4, batch_size=2, executor="loop")
        assert calls[0] == fails_at


def test_the_trial_run_of_a_network_leaves_batch_statistics_alone_in_a_part_that_trains() -> None:
    model = dubio.Bayes(where=("branch", "head")).convert(Residual()).eval()
    model.get_submodule("norm").train()
    dubio.sample(model, torch.randn(6, 3, 8, 8), 3)
    assert model.get_submodule("norm").num_batches_tracked == 1  # norm lies before the noise: one pass, one step


def test_predict_runs_in_eval_mode() -> None:
    model = dubio.Bayes(where="0").convert(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 4))).train()
    inputs = torch.randn(6, 5)
    in_training = dubio.predict(model, inputs, 4, seed=0)
    assert torch.equal(in_training.samples, dubio.predict(model.eval(), inputs, 4, seed=0).samples)


def test_a_prediction_with_a_seed_does_not_touch_the_global_generator() -> None:
    model, inputs = classifier("local"), torch.randn(6, 5)
    before = torch.get_rng_state()
    dubio.predict(model, inputs, 4, seed=0, estimator=None)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_prediction_holds_no_graph() -> None:
    inputs = torch.randn(6, 5, requires_grad=True)
    pred = dubio.predict(classifier(), inputs, 4)
    assert not any(value.requires_grad for value in (*summaries(pred).values(), pred.samples))


# Networks without noise


def test_noise_off_gives_one_deterministic_prediction() -> None:
    net = mlp(5, 8, 4)
    model, inputs = dubio.Bayes(init_std=0.5).convert(net), torch.randn(6, 5)
    with dubio.noise_off():
        pred = dubio.predict(model, inputs, 50)
    assert pred.num_samples == 1
    assert pred.seed is None
    assert torch.equal(pred.samples[0], net(inputs).log_softmax(dim=-1))
    assert pred.mutual_information.max() < 1e-6


def test_a_deterministic_network_has_equal_draws_and_no_mutual_information() -> None:
    net, inputs = mlp(5, 8, 4), torch.randn(6, 5)
    pred = dubio.predict(net, inputs, 5, batch_size=4)
    assert pred.samples.shape == (5, 6, 4)
    assert (pred.samples == pred.samples[:1]).all()
    torch.testing.assert_close(pred.probs, net(inputs).softmax(dim=-1))
    assert pred.mutual_information.max() < 1e-6
    assert pred.variation_ratio.max() == 0
    assert pred.top_std.max() < 1e-6
    assert pred.entropy.min() > 0.1


def test_a_network_without_parameters_predicts() -> None:
    inputs = torch.randn(6, 4)
    torch.testing.assert_close(dubio.predict(nn.Identity(), inputs, 3).probs, inputs.softmax(dim=-1))


# Forms of inputs and outputs


@pytest.mark.parametrize("case", ["two inputs", "dict inputs", "residual cnn", "dense concatenation"])
def test_tensors_tuples_and_dicts_are_cut_into_batches(case: str) -> None:
    model = dubio.Bayes(init_std=0.3).convert(CASES[case].make())
    inputs = CASES[case].inputs(9)
    whole = dubio.predict(model, inputs, 3, seed=0)
    parts = dubio.predict(model, inputs, 3, seed=0, batch_size=4)
    assert whole.samples.shape == (3, 9, 4)
    torch.testing.assert_close(parts.samples, whole.samples, rtol=1e-5, atol=2e-6)


def test_tuple_and_dict_inputs_predict_the_same() -> None:
    model = dubio.Bayes().convert(TwoInputs())
    left, right = torch.randn(6, 5), torch.randn(6, 3)
    by_position = dubio.predict(model, (left, right), 3, seed=0)
    by_name = dubio.predict(model, {"right": right, "left": left}, 3, seed=0)
    assert torch.equal(by_position.samples, by_name.samples)


@pytest.mark.parametrize("name", [1, "mask"])
def test_shared_inputs_go_to_every_batch_whole(name: int | str) -> None:
    model = dubio.Bayes().convert(Attention())
    x, mask = torch.randn(7, 3, 6), torch.randn(3, 3)
    inputs = (x, mask) if name == 1 else {"x": x, "mask": mask}
    whole = dubio.predict(model, inputs, 3, seed=0, shared=[name])
    parts = dubio.predict(model, inputs, 3, seed=0, shared=[name], batch_size=2)
    torch.testing.assert_close(parts.samples, whole.samples, rtol=1e-5, atol=2e-6)
    row = dubio.predict(model, (x[3:4], mask), 3, seed=0, shared=[1])
    torch.testing.assert_close(row.samples, whole.samples[:, 3:4], rtol=1e-5, atol=2e-6)


def test_a_mask_with_as_many_rows_as_the_inputs_is_shared_where_named() -> None:
    model = dubio.Bayes().convert(Attention())
    x, mask = torch.randn(6, 6, 6), torch.randn(6, 6)
    whole = dubio.predict(model, (x, mask), 3, seed=0)  # one batch: nothing is cut
    parts = dubio.predict(model, (x, mask), 3, seed=0, shared=[1], batch_size=4)
    torch.testing.assert_close(parts.samples, whole.samples, rtol=1e-5, atol=2e-6)


def test_an_output_object_with_logits_is_read_by_its_logits() -> None:
    @dataclass
    class Output:
        loss: Any
        logits: Tensor

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Output:
            return Output(loss=None, logits=self.head(x))

    net = Wrapped()
    model = dubio.Bayes(init_std=0.3).convert(net)
    inputs = torch.randn(6, 5)
    pred = dubio.predict(model, inputs, 8, seed=0)
    assert pred.samples.shape == (8, 6, 4)
    with dubio.noise_off():
        torch.testing.assert_close(dubio.predict(model, inputs).log_probs, net(inputs).logits.log_softmax(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_predictions_are_made_in_float32_at_least(dtype: torch.dtype) -> None:
    model = classifier().to(dtype)
    pred = dubio.predict(model, torch.randn(6, 5, dtype=dtype), 4, seed=0)
    expected_dtype = torch.promote_types(dtype, torch.float32)
    assert pred.probs.dtype == pred.samples.dtype == pred.mutual_information.dtype == expected_dtype
    torch.testing.assert_close(pred.probs.sum(dim=-1), torch.ones(6, dtype=expected_dtype))
    assert (pred.mutual_information > 0).all()


@pytest.mark.parametrize(
    "method", [dubio.Bayes(), dubio.Dropout(0.5), dubio.InputNoise()], ids=lambda m: type(m).__name__
)
def test_batches_meet_the_draws_of_all_rows_together(method: dubio.methods.Method) -> None:
    model, inputs = method.convert(mlp(6, 8, 3)).eval(), torch.rand(11, 6)
    whole = dubio.predict(model, inputs, 5, seed=3)
    parts = list(dubio.prediction.predict_batches(model, inputs.split([4, 1, 6]), 5, seed=3))
    assert [len(part.label) for part in parts] == [4, 1, 6]
    torch.testing.assert_close(dubio.prediction.joined(parts).probs, whole.probs)


def test_batches_without_a_seed_share_their_draws() -> None:
    model = dubio.Bayes().convert(mlp(6, 8, 3)).eval()
    inputs = torch.rand(1, 6)
    one, other = dubio.prediction.predict_batches(model, [inputs, inputs], 5)
    assert one.seed == other.seed
    torch.testing.assert_close(one.probs, other.probs)
