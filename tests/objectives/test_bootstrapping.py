"""``BootstrapHard`` and ``BootstrapSoft`` as objectives: T-69, T-70, and what they refuse."""

import math
from typing import Any

import jaxtyping
import pytest
import torch
from torch import nn

import dubio
from dubio.objectives import EnsembleLoss
from networks import mlp

INPUTS = torch.rand(20, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (20,), generator=torch.Generator().manual_seed(2))
BOTH = [dubio.BootstrapSoft, dubio.BootstrapHard]


def opinion(*probs: float) -> nn.Module:
    """A network that gives these probabilities whatever it sees."""
    layer = nn.Linear(5, len(probs))
    nn.init.zeros_(layer.weight)
    layer.bias.data = torch.tensor(probs).log()
    return dubio.Deterministic().convert(layer)


@pytest.mark.parametrize(
    ("objective", "expected"), [(dubio.BootstrapSoft(), 1.5690569), (dubio.BootstrapHard(), 1.3588853)]
)
def test_t69_values_are_those_of_the_specification(objective: Any, expected: float) -> None:
    targets = torch.ones(20, dtype=torch.int64)
    loss = objective.with_num_data(20)(opinion(0.7, 0.2, 0.1), INPUTS, targets, 2)
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    assert loss.nll.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("weighted", [False, True])
def test_t70_with_beta_one_it_is_the_inner_objective(kind: Any, weighted: bool) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3))
    inner = dubio.ELBO(20, beta=0.5, l2=0.1, warmup=4)
    options: Any = {"seed": 3, "epoch": 2.0, "sample_weight": torch.rand(20) if weighted else None}
    result = kind(beta=1.0, inner=inner)(model, INPUTS, TARGETS, 3, **options)
    expected = inner(model, INPUTS, TARGETS, 3, **options)
    torch.testing.assert_close(result.total, expected.total)
    torch.testing.assert_close(result.nll, expected.nll)
    assert result.terms == expected.terms
    assert torch.equal(result.log_probs, expected.log_probs)


@pytest.mark.parametrize("kind", BOTH)
def test_t70_members_of_an_ensemble_still_add_up(kind: Any) -> None:
    model = dubio.Ensemble(3).convert(mlp(5, 8, 3))
    inner = EnsembleLoss(20)
    expected = inner(model, INPUTS, TARGETS, 3)
    torch.testing.assert_close(kind(beta=1.0, inner=inner)(model, INPUTS, TARGETS, 3).total, expected.total)
    torch.testing.assert_close(expected.total, 3 * expected.nll)


@pytest.mark.parametrize("kind", BOTH)
def test_a_share_of_the_own_opinion_changes_the_loss_and_nothing_else(kind: Any) -> None:
    model = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3))
    result = kind(beta=0.5, inner=dubio.ELBO(20))(model, INPUTS, TARGETS, 3, seed=1)
    expected = dubio.ELBO(20)(model, INPUTS, TARGETS, 3, seed=1)
    assert result.terms == expected.terms
    assert result.nll < expected.nll  # the own opinion agrees more than the labels do
    torch.testing.assert_close(result.total - result.nll, expected.total - expected.nll)


def test_a_detached_opinion_is_no_penalty_on_entropy() -> None:
    model = opinion(0.7, 0.2, 0.1)
    gradients = []
    for detach in (False, True):
        model.zero_grad()
        loss = dubio.BootstrapSoft(0.0, detach, dubio.ELBO(20))(model, INPUTS, TARGETS)
        loss.total.backward()
        gradients.append(model.bias.grad.clone())
    assert gradients[0].abs().max() > 0.1
    torch.testing.assert_close(gradients[1], torch.zeros(3), rtol=0, atol=1e-6)  # its mean score is zero


def test_fit_fills_the_number_of_examples_in() -> None:
    model = dubio.Dropout().convert(mlp(5, 8, 3))
    for objective in (dubio.BootstrapHard(), dubio.BootstrapSoft()):
        assert objective.num_data is None
        assert objective.with_num_data(7).num_data == 7
        run = dubio.fit(model, (INPUTS, TARGETS), objective=objective, epochs=1, progress=False)
        assert math.isfinite(run.history[0]["loss"])


@pytest.mark.parametrize("kind", BOTH)
def test_what_cannot_be_bootstrapped_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match=r"beta, the share of the label, must be in \[0, 1\], got 1\.5"):
        kind(beta=1.5)
    with pytest.raises(TypeError, match=r"inner must be an ELBO, got Alpha\("):
        kind(inner=dubio.Alpha(0.5))
    model = dubio.Bayes().convert(mlp(5, 3), dubio.Gaussian())
    with pytest.raises(TypeError, match=r"bootstrapping needs classes, a Categorical likelihood, got Gaussian\("):
        kind(inner=dubio.ELBO(20))(model, INPUTS, torch.zeros(20, 3))


def test_targets_of_the_likelihoods_own_are_refused() -> None:
    model = dubio.Deterministic().convert(mlp(5, 3), dubio.Categorical(label_smoothing=0.1))
    with pytest.raises(ValueError, match="class_weight and label_smoothing of the likelihood must be left out beside"):
        dubio.BootstrapHard(inner=dubio.ELBO(10))(model, torch.randn(4, 5), torch.zeros(4, dtype=torch.int64))
