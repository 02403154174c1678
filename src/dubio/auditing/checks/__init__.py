"""The questions of an audit, in the order in which they are asked."""

from dubio.attacks.victims import Model
from dubio.auditing.checks import outside, randomness, sanity, strength
from dubio.auditing.checks.check import Check, Finding

__all__ = ["Check", "Finding", "checks_for"]


def checks_for(data: str, twin: Model | None = None) -> tuple[Check, ...]:
    """All checks, those that attack before those that look at what all attacks left."""
    return (
        Check(
            "C1",
            "Is it random?",
            True,
            "A network that is declared random must be so when it is attacked, and the other way round: an audit of "
            "the wrong thing proves nothing.",
            randomness.is_random,
        ),
        Check(
            "C5",
            "Enough steps?",
            True,
            "An attack climbs a hill in steps. If more steps still leave less, it was stopped on the way up.",
            strength.steps_converged,
        ),
        Check(
            "C3",
            "Enough draws per step?",
            True,
            "The gradient of one draw points partly at noise. Averaging over K draws (expectation over transformation, "
            "EOT) shows the hill itself. If more draws still leave less, K was too small.",
            randomness.eot_converged,
        ),
        Check(
            "C4",
            "Do gradients agree?",
            False,
            "Two averages over different draws should point the same way; if not, the attack wanders.",
            randomness.gradients_agree,
        ),
        Check(
            "C6",
            "Does iterating help?",
            True,
            "Many small steps must do at least as well as a single one, unless gradients are masked.",
            strength.iterating_helps,
        ),
        Check(
            "C7",
            "Do other starts agree?",
            False,
            "Other step sizes, momenta and starting points should find about the same.",
            strength.restarts_agree,
        ),
        Check(
            "C8",
            "Do other objectives agree?",
            True,
            "One can average probabilities, losses or logits over draws, and raise several losses. A defence often "
            "holds against one of them only.",
            strength.objectives_agree,
        ),
        Check(
            "C9",
            "Is the noise only a veil?",
            True,
            "Images made on the network with its noise off should do no better than direct attacks. If they do, the "
            "noise hid the gradient and the network behind it is as weak as ever.",
            strength.no_better_without_noise,
        ),
        Check(
            "C14",
            "Are gradients masked?",
            False,
            "A search without gradients should do no better than attacks with them.",
            strength.no_better_without_gradients,
        ),
        Check(
            "C15",
            "Better than chance?",
            True,
            "An attack must leave clearly less than random noise of the same size.",
            strength.beats_noise,
        ),
        Check(
            "C11",
            "Do the draws have to be secret?",
            False,
            "An attacker may get to know the draws that answer, from a fixed seed or by asking again and again.",
            randomness.frozen_draws,
        ),
        Check(
            "C12",
            "What does AutoAttack say?",
            False,
            "A well known set of attacks by others, run on the mean over fixed draws and scored on fresh ones.",
            outside.autoattack_agrees,
        ),
        Check(
            "C10",
            "Stronger than without noise?",
            False,
            "The noise must not pay for a weaker network: its mean is compared with one trained without noise.",
            outside.beats_twin(twin),
        ),
        Check(
            "C16",
            "Nothing left at any distance?",
            True,
            "Where the attacker may turn an image into any other, no accuracy can be left.",
            sanity.nothing_left_at_one,
        ),
        Check(
            "C17",
            "Less left the further it may go?",
            False,
            "Accuracy must fall with the distance; a rise or a plateau is a sign of a broken attack.",
            sanity.grows_with_distance,
        ),
        Check(
            "C18",
            "Are the rules kept?",
            True,
            "At distance zero nothing may change, and no image may leave the distance or the bounds.",
            sanity.nothing_moves_at_zero,
        ),
        Check(
            "C19",
            "Are gradients alive?",
            True,
            "Gradients that are exactly zero show nothing, and the loss should rise all the way that an attack goes.",
            sanity.gradients_live,
        ),
        Check(
            "C20",
            "Do gradients tell the truth?",
            False,
            "Small changes of single pixels must move the loss as the gradient says.",
            sanity.differences_agree,
        ),
        Check(
            "C24",
            "Does the attack work at all?",
            True,
            "The same code must break an ordinary network, trained in the ordinary way.",
            outside.twin_falls,
        ),
        Check(
            "C2",
            "Enough draws to answer?",
            False,
            "Twice as many draws should not change the accuracy.",
            randomness.draws_enough,
        ),
        Check(
            "C23",
            "Is it more than luck?",
            True,
            "Other seeds of the attack and other draws must give about the same headline.",
            sanity.seeds_agree,
        ),
        Check(
            "C25",
            "Too good to be true?",
            False,
            "A figure beyond the best that is published needs more than an audit.",
            outside.plausible(data),
        ),
    )
