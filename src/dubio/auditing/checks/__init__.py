"""The checks of an audit, in the order in which they run.

Attacks come first, then checks of all that they left. ``docs/audit.md`` explains each check in the words of this
table (``tests/auditing/test_auditing.py``).
"""

from collections.abc import Callable

from dubio.auditing.checks import attacks, randomness
from dubio.auditing.checks.randomness import frozen_draws_accuracy as frozen_draws_accuracy
from dubio.auditing.session import AuditSession, Check, CheckResult

__all__ = ["CHECKS", "Check", "CheckResult"]

_Head = tuple[str, str, Callable[[AuditSession], CheckResult], *tuple[bool, ...]]
_TABLE: tuple[tuple[_Head, str, str], ...] = (
    (
        ("C1", "Is it random?", randomness.is_random, True),
        "What is attacked must be what was declared: a network that should be random is, and one that should not be "
        "is not.",
        "It is random where it says so, and only there.",
    ),
    (
        ("C5", "Enough steps?", attacks.steps_converged, True),
        "An attack climbs a hill in steps. If more steps still leave less, it was stopped on the way up.",
        "The last doubling of the steps surely moves the accuracy by less than the resolution.",
    ),
    (
        ("C3", "Enough draws per step?", randomness.eot_converged, True),
        "The gradient of one draw points partly at noise. Averaging over K draws (expectation over transformation, "
        "EOT) shows the hill itself. If more draws still leave less, K was too small.",
        "The last doubling of K surely moves the accuracy by less than the resolution; a warning where one draw "
        "leaves 5 points more.",
    ),
    (
        ("C4", "Do gradients agree?", randomness.gradients_agree),
        "Two averages over different draws should point the same way; if not, the attack wanders.",
        "The median cosine is 0.9 or more.",
    ),
    (
        ("C6", "Does iterating help?", attacks.iterating_helps, True),
        "Many small steps must do at least as well as a single one, unless gradients are masked.",
        "Iterating is not worse, within noise.",
    ),
    (
        ("C7", "Do other starts agree?", attacks.restarts_agree),
        "Other step sizes, momenta and starting points should find about the same.",
        "The best variant leaves less than 3 points less than their mean.",
    ),
    (
        ("C8", "Do other objectives agree?", attacks.objectives_agree, True),
        "One can average probabilities, losses or logits over draws, raise several losses, and aim at any other "
        "class. A defence often holds against one of them only.",
        "All together surely leave at most the resolution less than the best alone.",
    ),
    (
        ("C9", "Is the noise only a veil?", attacks.no_better_without_noise, True),
        "Images made on the network with its noise off should do no better than direct attacks. If they do, the noise "
        "hid the gradient and the network behind it is as weak as ever.",
        "They are not stronger than all direct attacks together, within noise.",
    ),
    (
        ("C14", "Are gradients masked?", attacks.no_better_without_gradients),
        "A search without gradients, or images made on another network, should do no better than attacks by the "
        "network's own gradients.",
        "They are not stronger than all attacks by gradients together, within noise.",
    ),
    (
        ("C15", "Better than chance?", attacks.beats_noise, True),
        "An attack must leave clearly less than random noise of the same size.",
        "Noise leaves at least 5 points more than the attack.",
    ),
    (
        ("C12", "What does AutoAttack say?", attacks.autoattack_agrees),
        "A well known set of attacks by others, run on the mean over fixed draws and scored on fresh ones.",
        "It leaves at most 1 point less than our own attacks together, within noise.",
    ),
    (
        ("C11", "Do the draws have to be secret?", randomness.frozen_draws),
        "An attacker may get to know the draws that answer, from a fixed seed or by asking again and again.",
        "Knowing the draws costs at most 10 points.",
    ),
    (
        ("C10", "Stronger than without noise?", attacks.beats_twin),
        "The noise must not pay for a weaker network: its mean is compared with one trained without noise.",
        "It is not more than 1 point behind, within noise.",
    ),
    (
        ("C16", "Nothing left at any distance?", attacks.nothing_left_at_one, True),
        "Where the attacker may turn an image into any other, no accuracy can be left.",
        "At most 1 % is left.",
    ),
    (
        ("C17", "Less left the further it may go?", attacks.grows_with_distance),
        "Accuracy must fall with the distance; a rise or a plateau is a sign of a broken attack.",
        "It never rises within noise, and once it falls does not stop above chance.",
    ),
    (
        ("C18", "Are the rules kept?", attacks.nothing_moves_at_zero, True),
        "At distance zero nothing may change, and no image may leave the distance or the bounds.",
        "Exactly.",
    ),
    (
        ("C19", "Are gradients alive?", attacks.gradients_live, True),
        "Gradients that are exactly zero show nothing, and the loss should rise all the way that an attack goes.",
        "None is zero, and on 90 % of the images the loss is largest at the end.",
    ),
    (
        ("C20", "Do gradients tell the truth?", attacks.differences_agree),
        "Small changes of single pixels must move the loss as the gradient says.",
        "The signs agree in 80 % of the cases or more.",
    ),
    (
        ("C24", "Does the attack work at all?", attacks.twin_falls, True, True),
        "The same code must break an ordinary network, trained in the ordinary way.",
        "At most 2 % is left.",
    ),
    (
        ("C2", "Enough draws to answer?", randomness.draws_enough),
        "Twice as many draws should not change the accuracy.",
        "The accuracy moves by at most 0.25 points, or by one image.",
    ),
    (
        ("C23", "Is it more than luck?", attacks.seeds_agree, True),
        "Other seeds of the attack and other draws must give about the same headline.",
        "The standard error over draws is below 0.2 points (1 point in quick).",
    ),
    (
        ("C25", "Too good to be true?", attacks.plausible),
        "A figure beyond the best that is published needs more than an audit.",
        "It is not beyond what is published.",
    ),
)
"""Id, name and function of a check, whether it is required and may be skipped; its question; when it passes."""
CHECKS: tuple[Check, ...] = tuple(
    Check(id, name, question, passes_when, function, *flags)
    for (id, name, function, *flags), question, passes_when in _TABLE
)
