"""The two executors give the same draws, whatever the network and however the draws are cut."""

import pytest
import torch
from torch import nn

import dubio
from networks import CASES, Case, Residual, mlp

ESTIMATORS = ("weight", "local", "flipout")


@pytest.mark.feature("Mapped and looped draws are the same, on networks that break folding samples into the batch")
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_vmap_equals_loop_under_frozen_noise(case: Case, estimator: str) -> None:
    model = dubio.Bayes(estimator=estimator, init_std=0.2).convert(case.make()).eval()
    inputs = case.inputs(case.rows)
    with dubio.frozen(seed=3):
        looped = dubio.sample(model, inputs, 5, executor="loop")
        automatic = dubio.sample(model, inputs, 5)
    assert looped.std(dim=0).mean() > 1e-3  # the draws do differ
    torch.testing.assert_close(automatic, looped, rtol=1e-6, atol=1e-6)
    if case is not CASES["noise added in place"]:
        mapped = dubio.sample(model, inputs, 5, seed=3, executor="vmap")
        torch.testing.assert_close(mapped, looped, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_of_both_executors_agree(case: Case, estimator: str) -> None:
    model = dubio.Bayes(estimator=estimator, init_std=0.2).convert(case.make()).double().eval()
    inputs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.double, case.inputs(case.rows))
    gradients = []
    for executor in ("auto", "loop"):
        model.zero_grad()
        dubio.sample(model, inputs, 3, seed=1, executor=executor).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-11)


@pytest.mark.feature("A seed fixes every draw; chunk size and executor never change one")
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.usefixtures("unchecked")
def test_frozen_draws_do_not_depend_on_the_chunk_size(estimator: str, executor: str) -> None:
    model = dubio.Bayes(estimator=estimator).convert(mlp(5, 7, 4))
    inputs = torch.randn(6, 5)
    with torch.no_grad(), dubio.frozen(seed=5):
        cut = [dubio.sample(model, inputs, 100, executor=executor, chunk=chunk) for chunk in (1, 8, 100)]
    torch.testing.assert_close(cut[0], cut[2], rtol=0, atol=1e-6)
    torch.testing.assert_close(cut[1], cut[2], rtol=0, atol=1e-6)


def test_the_first_draws_are_the_same_however_many_follow() -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    inputs = torch.randn(6, 5)
    few, many = dubio.sample(model, inputs, 3, seed=2), dubio.sample(model, inputs, 11, seed=2)
    torch.testing.assert_close(few, many[:3], rtol=0, atol=1e-6)


def test_a_plain_call_is_draw_zero() -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    inputs = torch.randn(6, 5)
    with dubio.frozen(seed=2):
        torch.testing.assert_close(model(inputs), dubio.sample(model, inputs, 4)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_in_training_vmap_pools_batch_statistics_over_draws_and_loop_does_not(estimator: str) -> None:
    """The documented exception: agreement holds again where the statistics do not depend on the draw."""
    model = dubio.Bayes(estimator=estimator, init_std=0.3).convert(Residual()).train()
    inputs = torch.randn(6, 3, 8, 8)
    mapped = dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    assert int(model.norm.num_batches_tracked) == 1
    looped = dubio.sample(model, inputs, 4, seed=1, executor="loop")
    assert int(model.norm.num_batches_tracked) == 1 + 4
    assert (mapped - looped).abs().max() > 1e-3

    after_the_norm = (
        dubio.Bayes(estimator=estimator, init_std=0.3, where=("branch", "head")).convert(Residual()).train()
    )
    mapped = dubio.sample(after_the_norm, inputs, 4, seed=1, executor="vmap")
    looped = dubio.sample(after_the_norm, inputs, 4, seed=1, executor="loop")
    torch.testing.assert_close(mapped, looped, rtol=1e-6, atol=1e-6)


def test_what_comes_before_the_noise_runs_once() -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            calls.append(input.shape)
            return super().forward(input)

    model = dubio.Bayes(where="1").convert(nn.Sequential(Counted(5, 6), nn.Linear(6, 4)))
    dubio.sample(model, torch.randn(3, 5), 50, executor="vmap")
    assert calls == [(3, 5)]


def test_outputs_may_be_containers_or_carry_logits() -> None:
    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    class Two(nn.Module):
        def __init__(self, wrap: bool) -> None:
            super().__init__()
            self.body, self.wrap = nn.Linear(5, 4), wrap

        def forward(self, x: torch.Tensor) -> object:
            h = self.body(x)
            return Output(h) if self.wrap else {"logits": h, "features": (h.tanh(),)}

    inputs = torch.randn(3, 5)
    for executor in ("vmap", "loop"):
        assert dubio.sample(dubio.Bayes().convert(Two(True)), inputs, 7, executor=executor).shape == (7, 3, 4)
        outputs = dubio.sample(dubio.Bayes().convert(Two(False)), inputs, 7, executor=executor, chunk=2)
        assert outputs["features"][0].shape == (7, 3, 4)


def test_a_network_without_noise_gives_equal_draws() -> None:
    net = mlp(5, 7, 4)
    inputs = torch.randn(3, 5)
    draws = dubio.sample(net, inputs, 6)
    assert draws.shape == (6, 3, 4)
    for draw in draws:
        torch.testing.assert_close(draw, net(inputs))


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_terms_that_depend_on_the_noise_are_collected_per_draw(executor: str) -> None:
    model = dubio.Bayes(prior=dubio.ScaleMixture(), estimator="weight").convert(mlp(5, 7, 4))
    draws = dubio._engine.run(
        model, torch.randn(3, 5), 6, seed=1, executor=executor, chunk=4, collecting=("divergence",)
    )
    assert draws.terms["divergence"].shape == (6,)
    torch.testing.assert_close(draws.terms["divergence"].mean(), dubio.divergence(model, 6, seed=1))
    closed = dubio.Bayes(estimator="weight").convert(mlp(5, 7, 4))
    assert dubio._engine.run(closed, torch.randn(3, 5), 6, collecting=("divergence",)).terms == {}


def test_a_packed_sequence_is_one_input() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    assert dubio._engine.arguments(packed) == ((packed,), {})
