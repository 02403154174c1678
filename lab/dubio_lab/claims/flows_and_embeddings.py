"""Claims of Normalizing Flows for Implicit Bayesian Neural Networks, and of Inductive Wasserstein Embeddings."""

from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, Records

__all__ = ["CLAIMS", "EMBEDDING_CLAIMS"]

FLOWS = "Normalizing-flow implicit networks"
EMBEDDINGS = "Inductive Wasserstein Embeddings"
STEPS_UP = ("elbo-2-0", "elbo-4-2", "elbo-8-4", "elbo-12-8")
OTHERS = ("se-snn", "bootstrap-hard", "bootstrap-soft", "plain")
SHARES = ("0.4", "0.5", "0.6")


def _better(records: Records, cell: str) -> Outcome:
    """By the interval over paired seeds, which the record of the pair holds."""
    return Outcome(_interval(records, cell), records.number("flow-paired", cell, "low").above(0.0))


def _never_worse(records: Records) -> Outcome:
    summary = "; ".join(f"{cell.removeprefix('elbo-')}: {_interval(records, cell)}" for cell in STEPS_UP)
    return Outcome(summary, not any(records.number("flow-paired", cell, "high").below(0.0) for cell in STEPS_UP))


def _interval(records: Records, cell: str) -> str:
    mean, low, high = (records.number("flow-paired", cell, name) for name in ("difference", "low", "high"))
    return f"{mean.signed} ({low.signed} to {high.signed})"


def _above_deterministic(records: Records) -> Outcome:
    flow, none = (records.difference("flow-lenet", cell, "deterministic", "accuracy") for cell in ("flow", "no-flow"))
    return Outcome(f"flow {flow.signed}, no flow {none.signed}", flow.above(0.0) and none.above(0.0))


def _above_no_flow(records: Records, metric: str) -> Outcome:
    lead = records.difference("flow-lenet", "flow", "no-flow", metric)
    return Outcome(lead.signed, lead.above(0.0))


def _no_gain_by_dropout(records: Records) -> Outcome:
    gain = records.difference("flow-lenet", "dropout", "deterministic", "best_accuracy")
    return Outcome(gain.signed, not gain.above(0.0))


def _matching(records: Records) -> Outcome:
    share = records.number("flow-2d", "stochastic", "matching")
    return Outcome(str(share), share.above(80.0))


def _ahead_of_all(records: Records) -> Outcome:
    parts, held = [], True
    for share in SHARES:
        leads = {
            other: records.difference("label-noise", f"wasserstein-{share}", f"{other}-{share}", "accuracy")
            for other in OTHERS
        }
        nearest = min(leads, key=lambda name: leads[name].value)
        parts.append(f"{share}: {leads[nearest].signed} ({nearest})")
        held = held and all(lead.above(0.0) for lead in leads.values())
    return Outcome("; ".join(parts), held)


CLAIMS = (
    *(
        Claim(
            f"flow-ece{ending}",
            f"In the plane the stochastic network has the lower calibration error, beyond the interval; {words}",
            f"{FLOWS}, Figure 3",
            ("flow-paired",),
            "0.009 and 0.094",
            partial(_better, cell=f"ece-stochastic-deterministic{ending}"),
            in_our_way=bool(ending),
        )
        for ending, words in (("", "both trained until they settle"), ("-early", "the deterministic one stopped early"))
    ),
    Claim(
        "flow-longer-never-worse",
        "A longer flow never has a worse bound beyond the interval, for lengths 0, 2, 4, 8, 12",
        f"{FLOWS}, Figure 4",
        ("flow-paired",),
        "12 highest, 0 lowest",
        _never_worse,
    ),
    Claim(
        "flow-longest-best",
        "A flow of length 12 has a better bound than none, beyond the interval",
        f"{FLOWS}, Figure 4",
        ("flow-paired",),
        "12 highest, 0 lowest",
        partial(_better, cell="elbo-12-0"),
    ),
    Claim(
        "flow-matching",
        "In the plane more than 80 percent of points are classified with matching confidence",
        f"{FLOWS}, text to Figure 3",
        ("flow-2d",),
        "more than 80",
        _matching,
    ),
    Claim(
        "flow-above-deterministic",
        "Both stochastic LeNets are above the deterministic one in accuracy on FashionMNIST",
        f"{FLOWS}, Figure 5",
        ("flow-lenet",),
        "both above",
        _above_deterministic,
    ),
    *(
        Claim(
            f"flow-above-no-flow-{metric.replace('_', '-')}",
            f"LeNet with flows has a higher {words} than without",
            f"{FLOWS}, Figure 5",
            ("flow-lenet",),
            "higher",
            partial(_above_no_flow, metric=metric),
        )
        for metric, words in (("log_likelihood", "likelihood"), ("kl", "divergence"), ("elbo", "bound"))
    ),
    Claim(
        "flow-no-gain-by-dropout",
        "Dropout gains no accuracy on LeNet, by the best epoch of each",
        f"{FLOWS}, text to Figure 5",
        ("flow-lenet",),
        "no gain",
        _no_gain_by_dropout,
    ),
)

EMBEDDING_CLAIMS = (
    Claim(
        "iwe-ahead-of-all",
        "Above 0.3 wrong labels the Wasserstein network is ahead of all others, at 0.4, 0.5 and 0.6",
        f"{EMBEDDINGS}, Figure 3",
        ("label-noise",),
        "ahead above 0.3",
        _ahead_of_all,
    ),
)
