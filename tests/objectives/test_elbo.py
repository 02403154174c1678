"""The ELBO summed over an epoch is the free energy of the whole data, however the data are cut."""

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.settings import Using
from networks import mlp

PRIORS = {"normal": dubio.Normal(0.0, 0.5), "mixture": dubio.ScaleMixture()}
NUM_DATA = 45
INPUTS = torch.randn(NUM_DATA, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (NUM_DATA,), generator=torch.Generator().manual_seed(2))


def make(prior: object, estimator: str = "local") -> nn.Module:
    return dubio.Bayes(prior=prior, estimator=estimator, init_std=0.2).convert(mlp(5, 7, 4)).double()


def free_energy(model: nn.Module, num_samples: int) -> Tensor:
    """(E-1), written out."""
    draws = dubio.sample(model, INPUTS, num_samples, seed=1)
    nll = -draws.log_softmax(-1)[:, range(NUM_DATA), TARGETS].sum(dim=1).mean()
    return nll + dubio.divergence(model, num_samples, seed=1)


def epoch_sum(model: nn.Module, objective: dubio.ELBO, batch_size: int, num_samples: int) -> Tensor:
    batches = torch.arange(NUM_DATA).split(batch_size)
    total = torch.zeros((), dtype=torch.float64)
    for number, rows in enumerate(batches):
        with Using(first_row=int(rows[0]), num_rows=len(rows)):  # noise belongs to rows of the whole data
            loss = objective(
                model, INPUTS[rows], TARGETS[rows], num_samples, seed=1, batch_index=number, num_batches=len(batches)
            )
        total = total + loss.total * len(rows)
    return total


@pytest.mark.feature("The ELBO of an epoch's batches sums to the free energy of the whole data, for any batch size")
@pytest.mark.parametrize("scheme", ["uniform", "geometric"])
@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("batch_size", [1, 7, 128, NUM_DATA])
@pytest.mark.usefixtures("unchecked")
def test_t08_an_epoch_of_elbos_is_the_free_energy(prior: object, estimator: str, scheme: str, batch_size: int) -> None:
    model = make(prior, estimator)
    result = epoch_sum(model, dubio.ELBO(NUM_DATA, kl_weighting=scheme), batch_size, 3)
    torch.testing.assert_close(result, free_energy(model, 3), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_accumulated_gradients_are_those_of_the_joint_batch(prior: object, accumulate: int) -> None:
    """Micro-batches of uneven size, each weighted by its share of the rows."""
    model = make(prior)
    objective = dubio.ELBO(NUM_DATA)
    objective(model, INPUTS, TARGETS, 2, seed=1).total.backward()
    joint = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for rows in torch.arange(NUM_DATA).chunk(accumulate):
        with Using(first_row=int(rows[0]), num_rows=len(rows)):
            loss = objective(model, INPUTS[rows], TARGETS[rows], 2, seed=1)
        (loss.total * (len(rows) / NUM_DATA)).backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], joint, rtol=1e-9, atol=1e-12)


def test_sample_weights_count_examples() -> None:
    """A weight of two is an example seen twice; a weight of zero, one left out."""
    model = make(PRIORS["normal"], "weight")
    weights = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)
    weighted = dubio.ELBO(NUM_DATA)(model, INPUTS[:3], TARGETS[:3], 2, seed=1, sample_weight=weights)
    rows = torch.tensor([0, 0, 2])
    repeated = dubio.ELBO(NUM_DATA)(model, INPUTS[rows], TARGETS[rows], 2, seed=1)
    torch.testing.assert_close(weighted.total, repeated.total)


def test_beta_warmup_and_none_weight_the_divergence() -> None:
    model = make(PRIORS["normal"])

    def divergence_part(epoch: float | None = None, **fields: object) -> float:
        loss = dubio.ELBO(NUM_DATA, **fields)(model, INPUTS, TARGETS, seed=1, epoch=epoch)
        return ((loss.total - loss.nll) * NUM_DATA / loss.terms["divergence"]).item()

    assert divergence_part() == pytest.approx(1.0)
    assert divergence_part(beta=0.25) == pytest.approx(0.25)
    assert divergence_part(kl_weighting="none") == pytest.approx(0.0)
    assert [divergence_part(epoch, warmup=4) for epoch in (0, 1, 4, 9)] == pytest.approx([0.0, 0.25, 1.0, 1.0])


def test_the_loss_carries_log_probs_without_gradient_for_classes_only() -> None:
    loss = dubio.ELBO(NUM_DATA)(make(PRIORS["normal"]), INPUTS, TARGETS, 3)
    assert loss.log_probs.shape == (3, NUM_DATA, 4)
    assert not loss.log_probs.requires_grad
    real = dubio.Bayes().convert(nn.Linear(5, 1), dubio.Gaussian()).double()
    assert dubio.ELBO(NUM_DATA)(real, INPUTS, torch.zeros(NUM_DATA, 1)).log_probs is None


def test_noise_off_keeps_the_divergence() -> None:
    model = make(PRIORS["mixture"], "weight")
    with dubio.noise_off():
        loss = dubio.ELBO(NUM_DATA)(model, INPUTS, TARGETS, 2, seed=3)
    torch.testing.assert_close(loss.terms["divergence"], dubio.divergence(model, 2, seed=3))


def test_the_objective_compiles() -> None:
    model = make(PRIORS["normal"])
    objective = dubio.ELBO(NUM_DATA)
    compiled = torch.compile(lambda x, y: objective(model, x, y, 3).total, fullgraph=True, backend="aot_eager")
    with dubio.frozen(seed=1):
        torch.testing.assert_close(compiled(INPUTS, TARGETS), objective(model, INPUTS, TARGETS, 3).total)


def test_bayes_hands_out_its_objective() -> None:
    assert dubio.Bayes().objective(60_000) == dubio.ELBO(num_data=60_000, beta=0.03)
    assert dubio.Bayes(beta=1.0).objective(60_000) == dubio.ELBO(num_data=60_000)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: dubio.ELBO(0), "num_data must be at least 1, got 0"),
        (lambda: dubio.ELBO(beta=-1.0), "beta must be finite and at least 0, got -1.0"),
        (lambda: dubio.ELBO(warmup=-1), "warmup must be at least 0 epochs, got -1"),
        (lambda: dubio.ELBO()(make(PRIORS["normal"]), INPUTS, TARGETS), "num_data must be given"),
        (
            lambda: dubio.ELBO(9, kl_weighting="geometric")(make(PRIORS["normal"]), INPUTS, TARGETS),
            "geometric weights need batch_index and num_batches",
        ),
        (lambda: dubio.ELBO(9, warmup=2)(make(PRIORS["normal"]), INPUTS, TARGETS), "a warm-up needs the epoch"),
    ],
)
def test_refusals(work: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        work()


def test_an_unknown_weighting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match="kl_weighting must be 'uniform', 'geometric' or 'none', got 'linear'"):
        dubio.ELBO(kl_weighting="linear")
