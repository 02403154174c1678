"""Claims of Li and Gal 2017, Dropout Inference in Bayesian Neural Networks with Alpha-divergences; paper and slides."""

from collections.abc import Callable
from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, never_measured, outcome_of, part_of
from dubio_lab.claims.estimate import Estimate, Records, Value
from dubio_lab.claims.verdict import Verdict, difference, direction, within

__all__ = ["CLAIMS"]

PAPER = "Li and Gal 2017"
DROPOUT = {"alpha-0": "alpha 0", "alpha-05": "alpha 0.5", "alpha-1": "alpha 1"}
STEPS = ("0.1", "0.2", "0.3")
EVADE_WEIGHTS = ("0.1", "1", "10")
ACCURACY = 98.8  # published for every number of draws
LIKELIHOOD_GAIN = 100.0  # from -600 with one draw to -500 with ten and a hundred
DRAWS = {"1-draw": "1 draw", "10-draws": "10 draws", "100-draws": "100 draws"}


def _entropy_rises(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(words, partial(records.number, "alpha-untargeted", cell, "entropy_rises"), direction)
            for cell, words in DROPOUT.items()
        )
    )


def _plain_is_sure(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{words} less plain", _gap(records, "alpha-untargeted", cell, "plain", "entropy_at_0.3"), direction
            )
            for cell, words in DROPOUT.items()
        )
    )


def _above_plain(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{words} at {step}", _gap(records, "alpha-untargeted", cell, "plain", f"accuracy_at_{step}"), direction
            )
            for cell, words in DROPOUT.items()
            for step in STEPS
        )
    )


def _alpha_one_most_robust(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"over {words} at {step}",
                _gap(records, "alpha-untargeted", "alpha-1", cell, f"accuracy_at_{step}"),
                direction,
            )
            for cell, words in DROPOUT.items()
            if cell != "alpha-1"
            for step in STEPS
        )
    )


def _targeted(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(words, _gap(records, "alpha-targeted", cell, "plain", "original_middle"), direction)
            for cell, words in DROPOUT.items()
        )
    )


def _detection(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(f"{words} less plain", _gap(records, "dad-detection", cell, "plain", "auroc_fgsm"), direction)
            for cell, words in DROPOUT.items()
        )
    )


def _evaded(records: Records) -> Outcome:
    """How many more images pass, wrong, after the worst attack that knows the detector than after one that does not."""

    def more(value: Value, cell: str) -> float:
        passed = (value("dad-detection", cell, f"accepted_wrong_evade_{weight}") for weight in EVADE_WEIGHTS)
        return max(passed) - value("dad-detection", cell, "accepted_wrong_pgd")

    rule = partial(within, most=5.0)
    return outcome_of(
        *(part_of(words, partial(records.estimate, partial(more, cell=cell)), rule) for cell, words in DROPOUT.items())
    )


def _better_than_zero(
    records: Records, spec: str, metric: str, prefix: str = "", rule: Callable[[Estimate], Verdict] = direction
) -> Outcome:
    """Alpha 0.5 and 1 less alpha 0, in a metric of which more is better."""
    return outcome_of(
        *(
            part_of(words, _gap(records, spec, prefix + cell, f"{prefix}alpha-0", metric), rule)
            for cell, words in DROPOUT.items()
            if cell != "alpha-0"
        )
    )


def _regression(records: Records, metric: str) -> Outcome:
    """By how much alpha 0 is worse than 0.5 and 1, in a metric of which less is better."""
    return outcome_of(
        *(
            part_of(f"over {words}", _gap(records, "alpha-regression", "alpha-0", cell, metric), direction)
            for cell, words in DROPOUT.items()
            if cell != "alpha-0"
        )
    )


def _order_on_the_cnn(records: Records) -> Outcome:
    """About equal means by at most as much as alpha 1 is below."""
    gap = _gap(records, "alpha-mnist", "cnn-alpha-05", "cnn-alpha-0", "test_ll")
    lower = [
        part_of(
            f"{words} less alpha 1", _gap(records, "alpha-mnist", f"cnn-{cell}", "cnn-alpha-1", "test_ll"), direction
        )
        for cell, words in DROPOUT.items()
        if cell != "alpha-1"
    ]
    return outcome_of(part_of("alpha 0.5 less 0", gap, partial(within, least=-5.0, most=5.0)), *lower)


def _half_has_the_best_error(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"{words} less 0.5", _gap(records, "alpha-mnist", f"mlp-{cell}", "mlp-alpha-05", "error"), direction
            )
            for cell, words in DROPOUT.items()
            if cell != "alpha-05"
        )
    )


def _accuracies_by_draws(records: Records) -> Outcome:
    rule = partial(within, least=ACCURACY - 0.3)
    return outcome_of(
        *(
            part_of(words, partial(records.number, "alpha-samples", cell, "accuracy"), rule, signed=False)
            for cell, words in DRAWS.items()
        )
    )


def _likelihoods_by_draws(records: Records) -> Outcome:
    rule = partial(difference, published=LIKELIHOOD_GAIN)
    return outcome_of(
        *(
            part_of(words, _gap(records, "alpha-samples", cell, "1-draw", "test_ll"), rule)
            for cell, words in DRAWS.items()
            if cell != "1-draw"
        )
    )


def _gap(records: Records, spec: str, cell: str, other: str, metric: str) -> Callable[[], Estimate]:
    return partial(records.gap, spec, cell, other, metric)


CLAIMS = (
    Claim(
        "alpha-entropy-rises",
        "Entropy rises under the untargeted attack for alpha 0, 0.5 and 1, from no step to one of 0.3",
        f"{PAPER}, section 5.4",
        ("alpha-untargeted",),
        "rises",
        _entropy_rises,
    ),
    Claim(
        "alpha-plain-is-sure",
        "The plain network stays confident: at 0.3 its entropy is below those for alpha 0, 0.5 and 1",
        f"{PAPER}, section 5.4",
        ("alpha-untargeted",),
        "stays confident",
        _plain_is_sure,
    ),
    Claim(
        "alpha-detection",
        "Uncertainty detects attacks: by entropy, dropout networks tell images of one step from clean ones better "
        "than the plain network does",
        "slides, title of four of them",
        ("dad-detection",),
        "figures only",
        _detection,
    ),
    Claim(
        "alpha-above-plain",
        "Dropout networks keep more accuracy than the plain one, for each alpha at 0.1, 0.2 and 0.3",
        f"{PAPER}, section 5.4",
        ("alpha-untargeted",),
        "above",
        _above_plain,
    ),
    Claim(
        "alpha-one-most-robust",
        "Alpha 1 keeps the most accuracy of all alphas, at 0.1, 0.2 and 0.3",
        f"{PAPER}, section 5.4",
        ("alpha-untargeted",),
        "most robust",
        _alpha_one_most_robust,
    ),
    Claim(
        "alpha-targeted",
        "Dropout networks resist the targeted attack longer than the plain one: images still taken for what they are "
        "after 40 steps",
        f"{PAPER}, section 5.4",
        ("alpha-targeted",),
        "more robust",
        _targeted,
    ),
    Claim(
        "alpha-drifts-to-zeros",
        "Under the targeted attack, images made for dropout networks come to look like real zeros",
        f"{PAPER}, section 5.4",
        (),
        "pictures",
        never_measured,
        why_not="nothing measures it",
    ),
    Claim(
        "alpha-likelihood-mlp",
        "On the dense network alpha 0 has the lowest test log-likelihood on MNIST",
        f"{PAPER}, section 5.2",
        ("alpha-mnist",),
        "alpha 0 worst",
        partial(_better_than_zero, spec="alpha-mnist", metric="test_ll", prefix="mlp-"),
    ),
    Claim(
        "alpha-half-best-error",
        "Alpha 0.5 has the lowest test error of all alphas on the dense network",
        f"{PAPER}, section 5.2",
        ("alpha-mnist",),
        "0.5 best",
        _half_has_the_best_error,
    ),
    Claim(
        "alpha-order-cnn",
        "On the convolutional network alpha 0 and 0.5 have about the same test log-likelihood, within 5 nats, and "
        "alpha 1 a lower one than both",
        f"{PAPER}, section 5.2",
        ("alpha-mnist",),
        "0 about equal to 0.5, 1 below",
        _order_on_the_cnn,
    ),
    Claim(
        "alpha-draws",
        "Training with 1, 10 and 100 draws ends at the same accuracy; no more than 0.3 points below",
        f"{PAPER}, section 5.3",
        ("alpha-samples",),
        f"{ACCURACY} % each",
        _accuracies_by_draws,
    ),
    Claim(
        "alpha-draws-likelihood",
        "Training with 10 and with 100 draws ends at a higher test log-likelihood than with one",
        f"{PAPER}, section 5.3",
        ("alpha-samples",),
        f"{LIKELIHOOD_GAIN:+g} nats each",
        _likelihoods_by_draws,
    ),
    Claim(
        "alpha-regression",
        "In regression alpha 0.5 and 1 mostly have a better likelihood than alpha 0; here on a table of patients, "
        "which is none of the ten of the paper",
        f"{PAPER}, section 5.1",
        ("alpha-regression",),
        "better on most of ten tables",
        partial(_regression, metric="nll"),
    ),
    Claim(
        "alpha-regression-tables",
        "Errors and likelihoods of three alphas on ten tables of the UCI collection",
        f"{PAPER}, section 5.1",
        (),
        "60 numbers",
        never_measured,
        why_not="the tables are not part of dubio",
    ),
    Claim(
        "alpha-detection-evaded",
        "An attacker that knows the detector gets at most 5 percent more images past it, accepted and wrong, than one "
        "that does not, at 0.1",
        "slides, title of four of them",
        ("dad-detection",),
        None,
        _evaded,
    ),
    Claim(
        "alpha-regression-error",
        "On the table of patients, alpha 0.5 and 1 have a lower error than alpha 0",
        f"{PAPER}, section 5.1",
        ("alpha-regression",),
        None,
        partial(_regression, metric="rmse"),
    ),
    Claim(
        "alpha-likelihood-cnn",
        "On the convolutional network alpha 0.5 and 1 have a higher test log-likelihood than alpha 0",
        f"{PAPER}, section 5.2",
        ("alpha-mnist",),
        None,
        partial(_better_than_zero, spec="alpha-mnist", metric="test_ll", prefix="cnn-"),
    ),
)
