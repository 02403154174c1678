"""Many draws at once are the same draws, one after another: T-18 and T-19."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubio
from dubio import _engine, functional
from networks import Attention, Residual, Tied, mlp

ESTIMATORS = ["weight", "local", "flipout"]
NETWORKS = {
    "mlp": (lambda: mlp(5, 7, 4), lambda: torch.randn(6, 5)),
    "residual cnn": (lambda: Residual(norm=False), lambda: torch.randn(6, 3, 8, 8)),
    "attention": (Attention, lambda: (torch.randn(6, 3, 6), torch.randn(3, 3))),
    "tied": (Tied, lambda: torch.randn(6, 5)),
}


def double(inputs):
    return tuple(part.double() for part in inputs) if isinstance(inputs, tuple) else inputs.double()


def terms_and_gradients(model: nn.Module, inputs, executor: str, num_samples: int = 3) -> dict[str, torch.Tensor]:
    """Losses and divergences of every draw, the cost made of them, and its gradients, from seed 3."""
    model.zero_grad()
    draws = _engine.run(model, inputs, num_samples, seed=3, executor=executor, collecting=("divergence",))
    targets = torch.arange(6) % draws.outputs.shape[-1]
    log_probs = draws.outputs.log_softmax(dim=-1)
    nll = torch.stack([F.nll_loss(draw, targets, reduction="none") for draw in log_probs])
    divergences = draws.terms.get("divergence", dubio.divergence(model, num_samples, seed=3))
    cost = functional.variational.minibatch_cost(nll, divergences.mean(), share=0.3)
    cost.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return {"cost": cost.detach(), "losses": nll.detach(), "divergences": divergences.detach(), **gradients}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.feature("Mapped and looped draws have the same losses, divergences and gradients")
def test_t18_loop_and_vmap_have_the_same_losses_and_gradients(kind, estimator):
    make, inputs = NETWORKS[kind]
    model = dubio.Bayes(prior=dubio.ScaleMixture(), estimator=estimator).convert(make()).double()
    inputs = double(inputs())

    looped = terms_and_gradients(model, inputs, "loop")
    mapped = terms_and_gradients(model, inputs, "vmap")

    assert looped["divergences"].shape == (3,)
    assert all(torch.any(value != 0) for value in looped.values())
    for name, value in looped.items():
        torch.testing.assert_close(mapped[name], value, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_t18_collected_divergences_are_those_of_the_drawn_weights(estimator, executor):
    model = dubio.Bayes(prior=dubio.ScaleMixture(), estimator=estimator).convert(mlp(5, 7, 4)).double()

    draws = _engine.run(model, torch.randn(6, 5).double(), 4, seed=3, executor=executor, collecting=("divergence",))

    # One value for each draw, and their mean is what `divergence` says for the same seed.
    assert draws.terms["divergence"].unique().numel() == 4
    expected = dubio.divergence(model, 4, seed=3)
    torch.testing.assert_close(draws.terms["divergence"].mean(), expected, rtol=1e-12, atol=0.0)


def test_t18_a_tied_posterior_is_collected_once():
    model = dubio.Bayes(prior=dubio.ScaleMixture(), estimator="weight").convert(Tied()).double()

    draws = _engine.run(model, torch.randn(6, 5).double(), 2, seed=3, executor="vmap", collecting=("divergence",))

    torch.testing.assert_close(draws.terms["divergence"].mean(), dubio.divergence(model, 2, seed=3))


def test_t18_nothing_is_collected_unasked_or_where_a_closed_form_exists():
    inputs = torch.randn(6, 5)
    mixture = dubio.Bayes(prior=dubio.ScaleMixture(), estimator="weight").convert(mlp(5, 7, 4))
    normal = dubio.Bayes(estimator="weight").convert(mlp(5, 7, 4))

    assert _engine.run(mixture, inputs, 2).terms == {}
    assert _engine.run(normal, inputs, 2, collecting=("divergence",)).terms == {}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_t19_fresh_draws_differ(executor, estimator):
    model = dubio.Bayes(estimator=estimator).convert(mlp(5, 7, 4))

    outputs = dubio.sample(model, torch.randn(6, 5), 8, executor=executor)

    for i in range(8):
        for j in range(i):
            assert (outputs[i] != outputs[j]).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_t19_chunks_give_the_draws_of_one_piece_under_a_seed(estimator, chunk):
    model = dubio.Bayes(estimator=estimator).convert(mlp(5, 7, 4)).double()
    inputs = torch.randn(6, 5).double()

    whole = dubio.sample(model, inputs, 8, seed=5, executor="vmap")
    chunked = dubio.sample(model, inputs, 8, seed=5, executor="vmap", chunk=chunk)

    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=1e-12)
    assert (whole[0] != whole[7]).all()


def test_t19_fresh_noise_is_drawn_inside_and_depends_on_the_chunks():
    model = dubio.Bayes(estimator="weight").convert(mlp(5, 7, 4))
    inputs = torch.randn(6, 5)

    torch.manual_seed(5)
    whole = dubio.sample(model, inputs, 8, executor="vmap")
    torch.manual_seed(5)
    chunked = dubio.sample(model, inputs, 8, executor="vmap", chunk=4)

    assert not torch.allclose(chunked, whole)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_t19_memory_kept_for_the_backward_pass_grows_linearly_in_draws(executor, estimator):
    model = dubio.Bayes(estimator=estimator).convert(mlp(20, 30, 10))
    inputs = torch.randn(16, 20)

    def kept_bytes(num_samples: int) -> int:
        storages = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = dubio.sample(model, inputs, num_samples, executor=executor)
        total = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
        assert outputs.shape == (num_samples, 16, 10)
        return total

    kept = {num_samples: kept_bytes(num_samples) for num_samples in (4, 8, 16, 32)}
    per_draw = (kept[8] - kept[4]) / 4

    # At least the noise of one draw: of the weights, or of the outputs.
    smallest = 16 * 40 if estimator == "local" else 20 * 30 + 30 * 10
    assert per_draw >= 4 * smallest
    assert kept[16] - kept[8] == pytest.approx(8 * per_draw, rel=0.02)
    assert kept[32] - kept[16] == pytest.approx(16 * per_draw, rel=0.02)


def test_t19_planned_chunks_shrink_in_proportion_to_the_memory_of_a_draw():
    def plan(width: int, rows: int) -> _engine.SamplingPlan:
        model = dubio.Bayes(estimator="local").convert(mlp(64, width, 10))
        return dubio.plan(model, torch.randn(rows, 64), 10**6)

    narrow, wide = plan(200, 128), plan(800, 128)

    # Noise, deviation and output of the hidden layer, at least, in float32.
    assert narrow.bytes_per_draw >= 3 * 4 * 128 * 200
    assert wide.bytes_per_draw == pytest.approx(4 * narrow.bytes_per_draw, rel=0.2)
    assert wide.chunk == pytest.approx(narrow.chunk / 4, rel=0.2)
    assert plan(800, 256).chunk == pytest.approx(wide.chunk / 2, rel=0.02)
