"""What attacks refuse, by its wording. The shape checks of the test run are off: they would answer in dubio's place."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from attack_table import bayesian_net, examples, logits_function, plain_net
from dubio import attacks
from dubio.attacks.attack import Attack, AttackResult
from dubio.attacks.black_box import RandomNoise, Square, Transfer
from dubio.attacks.gradient import APGD, FGSM, PGD, Evade, TargetedFGSM
from dubio.attacks.minimum_norm import DDN, FMN, MinimumNorm


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


VALUES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: PGD(epsilon=8.0),
        ValueError,
        "epsilon must be in [0, 1] for inputs in [0, 1], got 8.0; did you mean 8/255?",
    ),
    (
        lambda: PGD(epsilon=1.5, bounds=(-1, 1)) and PGD(epsilon=3, bounds=(-1, 1)),
        ValueError,
        "epsilon must be in [0, 2] for inputs in [-1, 1], got 3",
    ),
    (lambda: PGD(epsilon=-0.1), ValueError, "epsilon must be in [0, 1] for inputs in [0, 1], got -0.1"),
    (
        lambda: PGD(epsilon=-0.1, norm="l2"),
        ValueError,
        "epsilon must be at least 0 and finite for inputs in [0, 1], got -0.1",
    ),
    (lambda: PGD(epsilon=float("nan")), ValueError, "epsilon must be in [0, 1] for inputs in [0, 1], got nan"),
    (lambda: PGD(epsilon=None), ValueError, "epsilon must be a number for PGD, which stays in a ball, got None"),
    (lambda: DDN(epsilon=0.5), ValueError, "epsilon must be None for DDN, which has no ball to stay in, got 0.5"),
    (lambda: FMN(epsilon=0.5), ValueError, "epsilon must be None for FMN, which has no ball to stay in, got 0.5"),
    (
        lambda: MinimumNorm(epsilon=0.5),
        ValueError,
        "epsilon must be None for MinimumNorm, which has no ball to stay in, got 0.5",
    ),
    (
        lambda: TargetedFGSM(epsilon=0.5),
        ValueError,
        "epsilon must be None for TargetedFGSM, which has no ball to stay in, got 0.5",
    ),
    (lambda: PGD(norm="l1"), ValueError, "norm must be one of 'linf', 'l2', got 'l1'"),
    (
        lambda: PGD(objective="mean"),
        ValueError,
        "objective must be one of 'predictive', 'expected', 'mean_logit', 'votes', got 'mean'",
    ),
    (lambda: PGD(loss="ce"), ValueError, "loss must be one of 'cross_entropy', 'margin', 'dlr', got 'ce'"),
    (lambda: PGD(noise="on"), ValueError, "noise must be one of 'fresh', 'frozen', 'off', got 'on'"),
    (lambda: PGD(num_samples=0), ValueError, "num_samples must be at least 1, got 0"),
    (lambda: PGD(num_samples=2.5), TypeError, "num_samples must be an int, got 2.5"),
    (
        lambda: PGD(bounds=(1, 0)),
        ValueError,
        "bounds must be two finite numbers, the smaller one first, got (1.0, 0.0)",
    ),
    (lambda: PGD(batch_size=0), ValueError, "batch_size must be a whole number of at least 1, got 0"),
    (lambda: PGD(seed="now"), TypeError, "seed must be an int, got 'now'"),
    (lambda: PGD(steps=0), ValueError, "steps must be a whole number of at least 1, got 0"),
    (lambda: APGD(steps=2.5), ValueError, "steps must be a whole number of at least 1, got 2.5"),
    (lambda: Square(steps=True), ValueError, "steps must be a whole number of at least 1, got True"),
    (lambda: PGD(step_size=0.0), ValueError, "step_size must be positive and finite, got 0.0"),
    (lambda: DDN(step_size=float("inf")), ValueError, "step_size must be positive and finite, got inf"),
    (lambda: PGD(restarts=0), ValueError, "restarts must be a whole number of at least 1, got 0"),
    (
        lambda: PGD(restarts=2, random_start=False),
        ValueError,
        "restarts from the same point would be equal; leave random_start=True",
    ),
    (
        lambda: APGD(restarts=2, random_start=False),
        ValueError,
        "restarts from the same point would be equal; leave random_start=True",
    ),
    (lambda: PGD(momentum=1.0), ValueError, "momentum must be in [0, 1), got 1.0"),
    (lambda: APGD(momentum=0.0), ValueError, "momentum must be in (0, 1], got 0.0"),
    (lambda: FGSM(label="mine"), ValueError, "label must be one of 'true', 'own', got 'mine'"),
    (
        lambda: FGSM(label="own", targeted=True),
        ValueError,
        "label must be 'true' for a targeted attack, which goes towards the targets, got 'own'",
    ),
    (
        lambda: TargetedFGSM(targeted=False),
        ValueError,
        "targeted must be True for TargetedFGSM; FGSM and PGD leave a class",
    ),
    (lambda: Evade(weight=-1.0), ValueError, "weight must be finite and at least 0, got -1.0"),
    (lambda: Evade(goal="hide"), ValueError, "goal must be one of 'accept', 'reject', got 'hide'"),
    (
        lambda: Evade(goal="reject", targeted=True),
        ValueError,
        "targeted must be False with goal='reject', which goes to no class, got True",
    ),
    (
        lambda: Evade(uncertainty="mutual_information", num_samples=1),
        ValueError,
        "num_samples must be at least 2 for uncertainty='mutual_information', which a single draw does not have, got "
        "1; use uncertainty='entropy'",
    ),
    (lambda: RandomNoise(tries=0), ValueError, "tries must be a whole number of at least 1, got 0"),
    (lambda: RandomNoise(kind="salt"), ValueError, "kind must be one of 'uniform', 'sign', got 'salt'"),
    (lambda: Square(share=0.0), ValueError, "share must be in (0, 1], got 0.0"),
    (lambda: Square(shape=(8, 8)), ValueError, "shape must be channel, height and width, each at least 1, got (8, 8)"),
    (lambda: DDN(norm="linf"), ValueError, "norm must be 'l2' for DDN, got 'linf'; FMN has both norms"),
    (lambda: DDN(gamma=1.0), ValueError, "gamma must be in (0, 1), got 1.0"),
    (lambda: DDN(radius=0.0), ValueError, "radius must be positive and finite, got 0.0"),
    (
        lambda: FMN(loss="cross_entropy"),
        ValueError,
        "loss must be 'margin' or 'dlr' for FMN, being zero at the boundary, got 'cross_entropy'",
    ),
    (lambda: FMN(last_gamma=0.5), ValueError, "last_gamma must be positive and at most gamma = 0.05, got 0.5"),
    (lambda: MinimumNorm(norm="linf"), ValueError, "norm must be 'l2' for MinimumNorm, got 'linf'; FMN has both norms"),
    (lambda: MinimumNorm(mode="away"), ValueError, "mode must be one of 'targeted', 'untargeted', got 'away'"),
    (
        lambda: MinimumNorm(target="any"),
        ValueError,
        "target must be one of 'runner_up', 'random', 'best_of_all', got 'any'",
    ),
    (lambda: MinimumNorm(solver="sgd"), ValueError, "solver must be one of 'adam', 'lbfgs', got 'sgd'"),
    (
        lambda: MinimumNorm(targeted=True, mode="untargeted"),
        ValueError,
        "mode must be 'targeted' where targeted=True, got 'untargeted'",
    ),
    (lambda: MinimumNorm(c=0.0), ValueError, "c must be positive and finite, got 0.0"),
    (lambda: MinimumNorm(bisections=0), ValueError, "bisections must be a whole number of at least 1, got 0"),
    (lambda: Transfer(attack="pgd"), TypeError, "attack must be an attack such as attacks.PGD(), got 'pgd'"),
    (
        lambda: Transfer(epsilon=0.3),
        ValueError,
        "epsilon belongs to the attack, as in Transfer(attack=PGD(epsilon=0.3))",
    ),
    (lambda: Transfer(attack=PGD(norm="l2")), ValueError, "norm must be that of the attack, 'l2', got 'linf'"),
    (lambda: Transfer(attack=PGD(targeted=True)), ValueError, "targeted must be that of the attack, True, got False"),
]


@pytest.mark.parametrize(("make", "kind", "message"), VALUES, ids=[message for *_, message in VALUES])
def test_values_that_make_no_attack_are_refused(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        make()


def call(model: Any = None, inputs: Any = None, labels: Any = None, attack: Attack | None = None) -> AttackResult:
    own = examples()
    return (attack or PGD(steps=2))(
        plain_net() if model is None else model,
        own[0] if inputs is None else inputs,
        own[1] if labels is None else labels,
    )


def onto_labels(inputs: Tensor) -> Tensor:
    return nn.functional.one_hot(plain_net()(inputs).argmax(dim=1), 4).float()


def nan_beside(point: float) -> Callable[[Tensor], Tensor]:
    """A function that gives NaN for inputs above a point."""
    return lambda inputs: torch.where(inputs.amax(dim=1, keepdim=True) > point, torch.nan, plain_net()(inputs))


def regression() -> nn.Module:
    return dubio.Bayes().convert(nn.Linear(6, 4), likelihood=dubio.Gaussian(0.1))


HALF = 0.5 * examples()[0]
NO_GRADIENT = (
    "the model's outputs must depend on its inputs through differentiable operations to be attacked by gradients; "
    "attacks.Square and attacks.RandomNoise need none"
)
STILL_RANDOM = (
    "noise='off' needs a model whose noise dubio draws; this one is random still, so choose noise='fresh' or 'frozen', "
    "or give Transfer a source"
)
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: call(attack=Attack()), TypeError, "Attack is what attacks share, not an attack; see dubio.attacks"),
    (
        lambda: call(inputs=examples()[0] * 255),
        ValueError,
        (
            "inputs must lie in bounds [0, 1], got values from 0 to 255; normalisation belongs to the model, "
            "or pass bounds=(low, high)"
        ),
    ),
    (
        lambda: call(inputs=examples()[0] * torch.nan),
        ValueError,
        (
            "inputs must lie in bounds [0, 1], got values from nan to nan; normalisation belongs to the "
            "model, or pass bounds=(low, high)"
        ),
    ),
    (
        lambda: call(inputs=(examples()[0] * 255).byte()),
        TypeError,
        "inputs must be a tensor of real numbers, got torch.uint8; dubio.data.scaled converts images",
    ),
    (
        lambda: call(inputs=[0.5] * 6),
        TypeError,
        "inputs must be a tensor of real numbers, got list; dubio.data.scaled converts images",
    ),
    (
        lambda: call(inputs=torch.rand(0, 6), labels=torch.zeros(0).long()),
        ValueError,
        "inputs must be (batch, ...) with one example or more, got shape (0, 6)",
    ),
    (
        lambda: call(inputs=torch.rand(6)),
        ValueError,
        "inputs must be (batch, ...) with one example or more, got shape (6,)",
    ),
    (
        lambda: call(labels=torch.zeros(3).long()),
        ValueError,
        "targets must be one label per input, got shapes (3,) and (7, 6)",
    ),
    (
        lambda: call(labels=torch.zeros(7)),
        TypeError,
        "targets must be a tensor of whole numbers that name classes, got torch.float32",
    ),
    (lambda: call(labels=[0] * 7), TypeError, "targets must be a tensor of whole numbers that name classes, got list"),
    (lambda: call(labels=torch.full((7,), 4)), ValueError, "targets must name classes from 0 to 3, got 4"),
    (lambda: call(labels=torch.full((7,), -1)), ValueError, "targets must name classes from 0 to 3, got -1"),
    (lambda: call(model="net"), TypeError, "model must be a torch.nn.Module or a function of inputs, got str"),
    (
        lambda: call(model=regression()),
        TypeError,
        "attacks need a classifier, got a network with likelihood Gaussian(std=0.1)",
    ),
    (lambda: call(model=onto_labels), ValueError, NO_GRADIENT),
    (lambda: call(model=onto_labels, attack=DDN()), ValueError, NO_GRADIENT),
    (lambda: call(model=lambda inputs: nn.Linear(6, 4).weight[:, 0].expand(len(inputs), 4)), ValueError, NO_GRADIENT),
    (
        lambda: call(model=lambda inputs: inputs * torch.nan),
        ValueError,
        "the model must give finite logits, got NaN or infinite ones",
    ),
    (
        lambda: call(model=nan_beside(0.501), inputs=HALF),
        ValueError,
        "the model must give finite logits, got NaN on inputs within the bounds of the attack",
    ),
    (
        lambda: call(model=lambda inputs: inputs[:, None, :].expand(-1, 2, -1)),
        ValueError,
        "the model must give one row of logits per input, got shape (7, 2, 6)",
    ),
    (
        lambda: call(model=lambda inputs: inputs[:, :2], labels=torch.zeros(7).long(), attack=APGD(loss="dlr")),
        ValueError,
        "loss 'dlr' needs three classes or more, being constant for two; use 'margin'",
    ),
    (lambda: call(model=logits_function(), attack=PGD(noise="off")), ValueError, STILL_RANDOM),
    (lambda: call(model=logits_function(), attack=Transfer()), ValueError, STILL_RANDOM),
    (
        lambda: call(inputs=torch.rand(7, 6, 6), model=nn.Flatten(), attack=Square()),
        ValueError,
        (
            "inputs must be images (batch, channel, height, width) or flat (batch, features) for Square, got "
            "shape (7, 6, 6)"
        ),
    ),
    (
        lambda: call(attack=Square(shape=(1, 2, 2))),
        ValueError,
        "shape must have as many pixels as an input, 6, got (1, 2, 2)",
    ),
    (
        lambda: attacks.score(regression(), *examples()),
        TypeError,
        "attacks need a classifier, got a network with likelihood Gaussian(std=0.1)",
    ),
    (
        lambda: attacks.score(plain_net(), examples()[0], torch.full((7,), 9)),
        ValueError,
        "targets must name classes from 0 to 3, got 9",
    ),
    (
        lambda: attacks.score(plain_net(), examples()[0], torch.zeros(3).long()),
        ValueError,
        "targets must be one label per input, got shapes (3,) and (7, 6)",
    ),
    (
        lambda: attacks.score(lambda inputs: inputs * torch.nan, *examples()),
        ValueError,
        "the model must give finite logits, got NaN or infinite ones",
    ),
    (
        lambda: attacks.score(plain_net(), *examples(), num_samples=5),
        ValueError,
        "num_tries must be from 1 to num_samples = 5, got 10",
    ),
    (
        lambda: attacks.score(plain_net(), *examples(), batch_size=0),
        ValueError,
        "batch_size must be a whole number of at least 1, got 0",
    ),
    (
        lambda: attacks.strongest(plain_net(), [], examples()[1]),
        ValueError,
        "results must hold at least one attack's result, got none",
    ),
    (
        lambda: attacks.strongest(plain_net(), [call()], torch.zeros(3).long()),
        ValueError,
        "targets must be one label per input, got shapes (3,) and (7, 6)",
    ),
    (
        lambda: attacks.strongest(regression(), [call()], examples()[1]),
        TypeError,
        "attacks need a classifier, got a network with likelihood Gaussian(std=0.1)",
    ),
]


@pytest.mark.parametrize(("do", "kind", "message"), CALLS, ids=[f"{i}: {row[2]}" for i, row in enumerate(CALLS)])
def test_calls_that_make_no_sense_are_refused(do: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        do()


def test_an_output_of_labels_is_refused_by_its_shape() -> None:
    with pytest.raises(ValueError, match=re.escape("got shape (7,) for one draw")):
        call(model=lambda inputs: plain_net()(inputs).argmax(dim=1))


def test_noise_off_is_fine_where_there_is_none_to_switch_off() -> None:
    net = plain_net()
    found = [call(model=model, attack=PGD(noise="off", seed=1)).inputs for model in (net, net.forward)]
    assert torch.equal(*found)


def test_the_base_is_refused_for_every_model() -> None:
    with pytest.raises(TypeError, match="is what attacks share"):
        replace(Attack(), seed=1)(bayesian_net("local"), *examples())
