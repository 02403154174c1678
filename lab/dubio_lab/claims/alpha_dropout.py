"""Claims of Li and Gal 2017, Dropout Inference in Bayesian Neural Networks with Alpha-divergences."""

from functools import partial

from dubio_lab.claims.claim import Claim, Number, Outcome, Records

__all__ = ["CLAIMS"]

PAPER = "Li and Gal 2017"
DROPOUT = ("alpha-0", "alpha-05", "alpha-1")
STEPS = ("0.1", "0.2", "0.3")
ACCURACY = 98.8  # published for every number of draws


def _entropy_rises(records: Records) -> Outcome:
    rises = [records.number("alpha-untargeted", cell, "entropy_rises") for cell in DROPOUT]
    return Outcome(", ".join(rise.signed for rise in rises), all(rise.above(0.0) for rise in rises))


def _plain_is_sure(records: Records) -> Outcome:
    entropies = [records.number("alpha-untargeted", cell, "entropy_at_0.3") for cell in ("plain", *DROPOUT)]
    leads = records.differences("alpha-untargeted", "plain", DROPOUT, "entropy_at_0.3")
    return Outcome(", ".join(map(str, entropies)), all(lead.below(0.0) for lead in leads))


def _above_plain(records: Records) -> Outcome:
    leads = [
        records.difference("alpha-untargeted", cell, "plain", f"accuracy_at_{step}")
        for cell in DROPOUT
        for step in STEPS
    ]
    return _smallest(leads)


def _alpha_one_most_robust(records: Records) -> Outcome:
    leads = [
        lead
        for step in STEPS
        for lead in records.differences("alpha-untargeted", "alpha-1", DROPOUT[:2], f"accuracy_at_{step}")
    ]
    return _smallest(leads)


def _smallest(leads: list[Number]) -> Outcome:
    """By the smallest of several leads; all of them must be beyond noise."""
    least = min(leads, key=lambda lead: lead.value)
    return Outcome(f"at least {least.signed}", all(lead.above(0.0) for lead in leads))


def _likelihood(records: Records, network: str) -> Outcome:
    half, one = (
        records.difference("alpha-mnist", f"{network}-{cell}", f"{network}-alpha-0", "test_ll") for cell in DROPOUT[1:]
    )
    return Outcome(f"{half.signed} at 0.5, {one.signed} at 1", half.above(0.0) or one.above(0.0))


def _order_on_the_cnn(records: Records) -> Outcome:
    half = records.difference("alpha-mnist", "cnn-alpha-05", "cnn-alpha-0", "test_ll")
    ones = records.differences("alpha-mnist", "cnn-alpha-1", ("cnn-alpha-0", "cnn-alpha-05"), "test_ll")
    same = not half.above(0.0) and not half.below(0.0)
    summary = f"{half.signed} at 0.5 and {ones[0].signed} at 1, both less that at 0"
    return Outcome(summary, same and all(one.below(0.0) for one in ones))


def _half_has_the_best_error(records: Records) -> Outcome:
    errors = [records.number("alpha-mnist", f"mlp-{cell}", "error") for cell in DROPOUT]
    leads = records.differences("alpha-mnist", "mlp-alpha-05", ("mlp-alpha-0", "mlp-alpha-1"), "error")
    return Outcome(", ".join(map(str, errors)), all(lead.below(0.0) for lead in leads))


def _draws(records: Records) -> Outcome:
    accuracies = [records.number("alpha-samples", cell, "accuracy") for cell in ("1-draw", "10-draws", "100-draws")]
    near = all(one.within(ACCURACY - 0.3, ACCURACY + 0.3) for one in accuracies)
    return Outcome(", ".join(map(str, accuracies)), near)


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
    *(
        Claim(
            f"alpha-likelihood-{network}",
            f"Alpha 0.5 or 1 has a higher test log-likelihood than alpha 0, {network.upper()}",
            f"{PAPER}, section 5.2",
            ("alpha-mnist",),
            published,
            partial(_likelihood, network=network),
        )
        for network, published in (("mlp", "alpha 0 worst"), ("cnn", None))
    ),
    Claim(
        "alpha-order-cnn",
        "On the CNN alpha 0 and 0.5 have the same test log-likelihood, within noise, and alpha 1 a lower one than both",
        f"{PAPER}, section 5.2",
        ("alpha-mnist",),
        "0 about equal to 0.5, 1 below",
        _order_on_the_cnn,
    ),
    Claim(
        "alpha-half-best-error",
        "Alpha 0.5 has the lowest error of all alphas on the MLP",
        f"{PAPER}, section 5.2",
        ("alpha-mnist",),
        "0.5 best",
        _half_has_the_best_error,
    ),
    Claim(
        "alpha-draws",
        "Training with 1, 10 and 100 draws ends at the same accuracy, within 0.3 points of that published",
        f"{PAPER}, section 5.3",
        ("alpha-samples",),
        "98.8, 98.8, 98.8",
        _draws,
    ),
)
