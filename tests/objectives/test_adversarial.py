"""Adversarial training: its loss is that of clean and attacked inputs, and its attack leaves no trace."""

from dataclasses import replace

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.attacks.gradient import FGSM, PGD
from dubio.data.batches import Loader
from dubio.data.examples import Examples
from networks import mlp

INPUTS = torch.rand(40, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))
ATTACK = PGD(epsilon=0.1, steps=3, num_samples=2, noise="frozen", seed=4)


def make(net: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(init_std=0.1).convert(mlp(5, 8, 3) if net is None else net)


def test_the_loss_is_the_weighted_mean_of_clean_and_attacked() -> None:
    model, inner = make(), dubio.ELBO(40)
    attacked = ATTACK(model, INPUTS, TARGETS).inputs
    clean, hot = (inner(model, batch, TARGETS, 2, seed=3) for batch in (INPUTS, attacked))
    result = dubio.Adversarial(inner, ATTACK, weight=0.3, label="true")(model, INPUTS, TARGETS, 2, seed=3)
    torch.testing.assert_close(result.total, 0.3 * clean.total + 0.7 * hot.total)
    torch.testing.assert_close(result.nll, 0.3 * clean.nll + 0.7 * hot.nll)
    torch.testing.assert_close(result.terms["adversarial_nll"], hot.nll)
    torch.testing.assert_close(result.terms["divergence"], clean.terms["divergence"])
    assert torch.equal(result.log_probs, clean.log_probs)
    assert hot.nll > clean.nll


def test_without_clean_loss_it_is_min_max_training() -> None:
    model, inner = make(), dubio.ELBO(40)
    hot = inner(model, ATTACK(model, INPUTS, TARGETS).inputs, TARGETS, 2, seed=3)
    result = dubio.Adversarial(inner, ATTACK, weight=0.0, label="true")(model, INPUTS, TARGETS, 2, seed=3)
    assert torch.equal(result.total, hot.total)
    assert torch.equal(result.log_probs, hot.log_probs)


def test_inputs_that_were_attacked_before_are_not_attacked_again() -> None:
    model, objective = make(), dubio.Adversarial(dubio.ELBO(40), ATTACK)
    attacked = objective.attack_inputs(model, INPUTS, TARGETS)
    loss = objective(model, INPUTS, TARGETS, 2, seed=3, attacked=attacked)
    torch.testing.assert_close(loss.total, objective(model, INPUTS, TARGETS, 2, seed=3).total)
    for other in (dubio.ELBO(40), dubio.Alpha(num_data=40), dubio.BootstrapHard(inner=dubio.ELBO(40))):
        with pytest.raises(ValueError, match="attacked must be None for every objective but Adversarial, got a tensor"):
            other(model, INPUTS, TARGETS, 2, attacked=attacked)


def test_the_number_of_examples_is_that_of_the_inner_objective() -> None:
    objective = dubio.Adversarial(dubio.ELBO(40))
    assert objective.num_data == 40
    assert objective.with_num_data(7).inner == dubio.ELBO(7)


def test_own_labels_are_what_the_network_takes_clean_inputs_for() -> None:
    model = make()
    attacked: list[Tensor] = []

    class Watched(FGSM):
        def moved(self, net, inputs, labels, *options):  # type: ignore[no-untyped-def]
            attacked.append(labels)
            return super().moved(net, inputs, labels, *options)

    watched = Watched(epsilon=0.1, noise="off")
    dubio.Adversarial(dubio.ELBO(40), watched)(model, INPUTS, TARGETS)
    with torch.no_grad(), dubio.noise_off():
        assert torch.equal(attacked[0], model(INPUTS).argmax(dim=1))
    assert not torch.equal(attacked[0], TARGETS)


def test_gradients_of_parameters_are_those_of_the_loss_alone_and_batch_statistics_move_twice() -> None:
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    model = make(net).train()
    dubio.Adversarial(dubio.ELBO(40), ATTACK)(model, INPUTS, TARGETS, 1).total.backward()
    assert int(model.get_buffer("1.num_batches_tracked")) == 2  # the clean and the attacked pass, not the attack's
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in model.parameters())


@pytest.mark.slow
def test_training_against_an_attack_makes_a_network_robust_to_it() -> None:
    """Two clouds that touch along the first axis alone: robust training leaves the small differences of the others."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(2, (400,), generator=generator)
    signs = labels * 2.0 - 1.0
    inputs = 0.5 + 0.02 * torch.randn(400, 60, generator=generator)
    inputs[:, 0] += 0.3 * signs * (torch.rand(400, generator=generator) > 0.1)
    inputs[:, 1:] += 0.03 * signs.unsqueeze(1)
    inputs = inputs.clamp(0.0, 1.0)
    attack = PGD(epsilon=0.1, steps=5, num_samples=1)
    left = {}
    robust = dubio.Adversarial(attack=attack, weight=0.0, label="true")
    for name, objective in {"plain": None, "robust": robust}.items():
        torch.manual_seed(0)
        model = dubio.Bayes(init_std=0.01).convert(nn.Linear(60, 2))
        dubio.fit(model, (inputs, labels), objective=objective, epochs=15, lr=0.02, batch_size=100, progress=False)
        attacked = replace(attack, num_samples=10, seed=0)(model, inputs, labels).inputs
        left[name] = dubio.attacks.score(model, attacked, labels, seed=1).predictive.value
    assert left["robust"] > left["plain"] + 0.2, left


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"weight": 1.0}, ValueError, r"weight of the clean loss must be in \[0, 1\), got 1\.0"),
        ({"label": "mine"}, ValueError, "label must be 'true' or 'own', got 'mine'"),
        ({"attack": PGD(targeted=True)}, ValueError, "attack must not be targeted"),
    ],
    ids=["weight", "label", "targeted"],
)
def test_bad_fields_are_refused(
    fields: dict[str, object], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        dubio.Adversarial(**fields)  # type: ignore[arg-type]


def test_inputs_must_be_one_tensor() -> None:
    with pytest.raises(TypeError, match="inputs must be one tensor to be attacked, got tuple"):
        dubio.Adversarial(dubio.ELBO(40))(make(), (INPUTS,), TARGETS)


PIXELS = torch.randint(256, (8, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(8) % 3
BRIGHT = torch.cat([torch.rand(7, 4), torch.full((1, 4), 1.5)])
ONE_FAR_ROW = {
    "tensors": (BRIGHT, LABELS),
    "a list": [BRIGHT, LABELS],
    "arrays": (BRIGHT.numpy(), LABELS.numpy()),
    "examples": Examples(BRIGHT, LABELS),
    "a loader": Loader(Examples(BRIGHT, LABELS), 4),
}


def train_against(attack: FGSM, data: object) -> dubio.FitResult:
    model = dubio.Bayes().convert(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    objective = dubio.Adversarial(attack=attack)
    return dubio.fit(model, data, objective=objective, num_data=8, epochs=1, batch_size=4, progress=False)


@pytest.mark.parametrize("kind", ONE_FAR_ROW)
def test_one_row_beyond_the_bounds_is_refused_before_the_first_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FGSM, "_check_call", lambda *given: None)  # as in a recorded step
    with pytest.raises(ValueError, match=r"train must lie in the bounds of the attack, \[0, 1\], got .* to 1\.5; norm"):
        train_against(FGSM(epsilon=0.1), ONE_FAR_ROW[kind])
    train_against(FGSM(epsilon=0.1, bounds=(0.0, 1.5)), ONE_FAR_ROW[kind])


@pytest.mark.parametrize("data", [Examples(PIXELS, LABELS), Loader(Examples(PIXELS, LABELS), 4)])
def test_images_as_bytes_lie_in_the_bounds_of_what_they_become(data: object) -> None:
    assert train_against(FGSM(epsilon=0.1), data).history


def test_batches_beyond_the_bounds_are_refused_when_they_come() -> None:
    batches = list(zip(BRIGHT.split(4), LABELS.split(4), strict=True))
    with pytest.raises(ValueError, match=r"inputs must lie in bounds \[0, 1\]"):
        train_against(FGSM(epsilon=0.1), batches)
