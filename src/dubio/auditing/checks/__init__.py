"""The checks of an audit, in the order in which they run.

Attacks come first, then checks of all that they left. ``docs/audit.md`` explains each check in the words of this
table (``tests/auditing/test_auditing.py``).
"""

from dubio.auditing.checks import attacks, randomness
from dubio.auditing.checks.randomness import frozen_draws_accuracy as frozen_draws_accuracy
from dubio.auditing.session import Check, CheckResult

__all__ = ["CHECKS", "Check", "CheckResult"]

CHECKS: tuple[Check, ...] = (
    Check(
        "C1",
        "Is it random?",
        "What is attacked must be what was declared: a network that should be random is, and one that should not "
        "be is not.",
        "It is random where it says so, and only there.",
        randomness.is_random,
        required=True,
    ),
    Check(
        "C5",
        "Enough steps?",
        "An attack climbs a hill in steps. If more steps still leave less, it was stopped on the way up.",
        "The last doubling of the steps surely moves the accuracy by less than the resolution.",
        attacks.steps_converged,
        required=True,
    ),
    Check(
        "C3",
        "Enough draws per step?",
        "The gradient of one draw points partly at noise. Averaging over K draws (expectation over "
        "transformation, EOT) shows the hill itself. If more draws still leave less, K was too small.",
        "The last doubling of K surely moves the accuracy by less than the resolution; a warning where one draw "
        "leaves 5 points more.",
        randomness.eot_converged,
        required=True,
    ),
    Check(
        "C4",
        "Do gradients agree?",
        "Two averages over different draws should point the same way; if not, the attack wanders.",
        "The median cosine is 0.9 or more.",
        randomness.gradients_agree,
    ),
    Check(
        "C6",
        "Does iterating help?",
        "Many small steps must do at least as well as a single one, unless gradients are masked.",
        "Iterating is not worse, within noise.",
        attacks.iterating_helps,
        required=True,
    ),
    Check(
        "C7",
        "Do other starts agree?",
        "Other step sizes, momenta and starting points should find about the same.",
        "The best variant leaves less than 3 points less than their mean.",
        attacks.restarts_agree,
    ),
    Check(
        "C8",
        "Do other objectives agree?",
        "One can average probabilities, losses or logits over draws, raise several losses, and aim at any other "
        "class. A defence often holds against one of them only.",
        "All together surely leave at most the resolution less than the best alone.",
        attacks.objectives_agree,
        required=True,
    ),
    Check(
        "C9",
        "Is the noise only a veil?",
        "Images made on the network with its noise off should do no better than direct attacks. If they do, the "
        "noise hid the gradient and the network behind it is as weak as ever.",
        "They are not stronger than all direct attacks together, within noise.",
        attacks.no_better_without_noise,
        required=True,
    ),
    Check(
        "C14",
        "Are gradients masked?",
        "A search without gradients, or images made on another network, should do no better than attacks by the "
        "network's own gradients.",
        "They are not stronger than all attacks by gradients together, within noise.",
        attacks.no_better_without_gradients,
    ),
    Check(
        "C15",
        "Better than chance?",
        "An attack must leave clearly less than random noise of the same size.",
        "Noise leaves at least 5 points more than the attack.",
        attacks.beats_noise,
        required=True,
    ),
    Check(
        "C12",
        "What does AutoAttack say?",
        "A well known set of attacks by others, run on the mean over fixed draws and scored on fresh ones.",
        "It leaves at most 1 point less than our own attacks together, within noise.",
        attacks.autoattack_agrees,
    ),
    Check(
        "C11",
        "Do the draws have to be secret?",
        "An attacker may get to know the draws that answer, from a fixed seed or by asking again and again.",
        "Knowing the draws costs at most 10 points.",
        randomness.frozen_draws,
    ),
    Check(
        "C10",
        "Stronger than without noise?",
        "The noise must not pay for a weaker network: its mean is compared with one trained without noise.",
        "It is not more than 1 point behind, within noise.",
        attacks.beats_twin,
    ),
    Check(
        "C16",
        "Nothing left at any distance?",
        "Where the attacker may turn an image into any other, no accuracy can be left.",
        "At most 1 % is left.",
        attacks.nothing_left_at_one,
        required=True,
    ),
    Check(
        "C17",
        "Less left the further it may go?",
        "Accuracy must fall with the distance; a rise or a plateau is a sign of a broken attack.",
        "It never rises within noise, and once it falls does not stop above chance.",
        attacks.grows_with_distance,
    ),
    Check(
        "C18",
        "Are the rules kept?",
        "At distance zero nothing may change, and no image may leave the distance or the bounds.",
        "Exactly.",
        attacks.nothing_moves_at_zero,
        required=True,
    ),
    Check(
        "C19",
        "Are gradients alive?",
        "Gradients that are exactly zero show nothing, and the loss should rise all the way that an attack goes.",
        "None is zero, and on 90 % of the images the loss is largest at the end.",
        attacks.gradients_live,
        required=True,
    ),
    Check(
        "C20",
        "Do gradients tell the truth?",
        "Small changes of single pixels must move the loss as the gradient says.",
        "The signs agree in 80 % of the cases or more.",
        attacks.differences_agree,
    ),
    Check(
        "C24",
        "Does the attack work at all?",
        "The same code must break an ordinary network, trained in the ordinary way.",
        "At most 2 % is left.",
        attacks.twin_falls,
        required=True,
        may_be_skipped=True,
    ),
    Check(
        "C2",
        "Enough draws to answer?",
        "Twice as many draws should not change the accuracy.",
        "The accuracy moves by at most 0.25 points, or by one image.",
        randomness.draws_enough,
    ),
    Check(
        "C23",
        "Is it more than luck?",
        "Other seeds of the attack and other draws must give about the same headline.",
        "The standard error over draws is below 0.2 points (1 point in quick).",
        attacks.seeds_agree,
        required=True,
    ),
    Check(
        "C25",
        "Too good to be true?",
        "A figure beyond the best that is published needs more than an audit.",
        "It is not beyond what is published.",
        attacks.plausible,
    ),
)
