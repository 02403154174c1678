"""Claims of Blundell et al. 2015, and of Project Machine Learning, Milestone 3."""

from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, Records

__all__ = ["CLAIMS", "PROJECT_CLAIMS"]

PAPER = "Blundell et al. 2015"
PROJECT = "Project Machine Learning, Milestone 3"
UNSEEN = ("kmnist", "fashionmnist", "omniglot")


def _error(records: Records, cell: str, least: float, most: float) -> Outcome:
    error = records.number("bbb-error", cell, "test_error")
    return Outcome(str(error), error.within(least, most))


def _order_of_errors(records: Records) -> Outcome:
    cells = ("mixture-1200", "gaussian-1200", "mlp-1200")
    errors = [records.number("bbb-error", cell, "test_error") for cell in cells]
    dropout = records.number("bbb-error", "dropout-1200", "test_error_mean_weights")
    leads = records.differences("bbb-error", cells[0], cells[1:], "test_error")
    return Outcome(", ".join(map(str, [*errors, dropout])), all(lead.below(0.0) for lead in leads))


def _pruned(records: Records) -> Outcome:
    added = records.difference("bbb-pruning", "removed-95", "removed-0", "test_error")
    return Outcome(added.signed, not added.above(0.3))


def _separates(records: Records, cell: str, least: float) -> Outcome:
    area = records.number("bbb-ood", cell, "auroc_mutual_information")
    return Outcome(str(area), not area.below(least))


def _unanimous(records: Records) -> Outcome:
    same, sure = (records.number("bbb-ood", "gaussian-kmnist", name) for name in ("unanimous_known", "sure_known"))
    return Outcome(f"{same} % unanimous, {sure} % with 0.99 or more", same.above(50.0) and sure.above(50.0))


def _in_every_set(records: Records, metric: str, bar: float) -> Outcome:
    shares = {name: records.number("bbb-ood", f"gaussian-{name}", metric) for name in UNSEEN}
    summary = ", ".join(f"{share} % ({name})" for name, share in shares.items())
    return Outcome(summary, all(share.above(bar) for share in shares.values()))


def _few_spread(records: Records) -> Outcome:
    spread, wrong = (
        records.number("bbb-ood", "gaussian-kmnist", name) for name in ("spread_known", "wrong_among_spread")
    )
    return Outcome(f"{spread} % spread, {wrong} % of them wrong", spread.below(10.0) and wrong.above(50.0))


def _accuracy_unseen(records: Records) -> Outcome:
    cell, highest = records.best("bbb-ood", [f"gaussian-{name}" for name in UNSEEN], "accuracy_unseen")
    return Outcome(f"at most {highest} ({cell})", not highest.above(10.0))


def _attacked_bayesian(records: Records, ending: str) -> Outcome:
    gaussian, mixture, other = (
        records.number("bbb-fgsa", f"{net}-{ending}", "accuracy_015") for net in ("gaussian", "mixture", "mixture-sgd")
    )
    summary = f"{gaussian}; mixture prior {mixture}, trained as in bbb-error {other}"
    return Outcome(summary, gaussian.within(40.0, 60.0))


def _attacked_plain(records: Records) -> Outcome:
    plain, dropout = (records.number("bbb-fgsa", net, "accuracy_015") for net in ("mlp", "dropout-mean"))
    return Outcome(f"{plain}, with dropout {dropout}", plain.below(10.0) and dropout.below(10.0))


def _band(records: Records) -> Outcome:
    ratios = {cell: records.number("bbb-regression", cell, "ratio") for cell in ("local", "weight")}
    summary = ", ".join(f"{ratio} ({cell})" for cell, ratio in ratios.items())
    return Outcome(summary, all(ratio.above(3.0) for ratio in ratios.values()))


def _speed(records: Records, task: str, published: float) -> Outcome:
    slow, fast = (records.number("bbb-speed", f"{task}-{how}", "slope") for how in ("sequential", "vmap-lrt"))
    summary = f"{slow} s and {fast} s for each further draw"
    if fast.value <= 0:  # a draw that costs nothing that can be measured
        return Outcome(summary, True)
    return Outcome(f"{slow.value / fast.value:.3g} ({summary})", slow.value / fast.value >= published / 2)


CLAIMS = (
    *(
        Claim(
            f"bbb-{prior}-error{ending}",
            f"Error of 2 x 1200 units with {words}, {epochs}",
            f"{PAPER}, Table 1",
            ("bbb-error",),
            published,
            partial(_error, cell=f"{prior}-1200{ending}", least=least, most=most),
            in_our_way=not ending,
        )
        for prior, words, published, least, most in (
            ("mixture", "the mixture prior: at most 1.5 percent", "1.32", 0.0, 1.5),
            ("gaussian", "a Gaussian prior: near 2 percent, from 1.5 to 2.5", "2.04", 1.5, 2.5),
        )
        for ending, epochs in (("", "120 epochs"), ("-600-epochs", "600 epochs as in the paper"))
    ),
    Claim(
        "bbb-order-of-errors",
        "The mixture prior has a lower error than the Gaussian one and the plain network, all after 120 epochs; last, "
        "beside them, dropout",
        f"{PAPER}, Table 1",
        ("bbb-error",),
        "1.32, 2.04, 1.88, 1.36",
        _order_of_errors,
    ),
    Claim(
        "bbb-pruned",
        "95 percent of the weights can be removed for no more than 0.3 points of error, after 120 epochs",
        f"{PAPER}, Table 2",
        ("bbb-pruning",),
        "+0.05",
        _pruned,
    ),
)

PROJECT_CLAIMS = (
    *(
        Claim(
            f"m3-{prior}-{name}",
            f"Mutual information tells {words} from MNIST, {which}: area under the curve of at least {least}",
            f"{PROJECT}, Figures 3 to 6",
            ("bbb-ood",),
            "figures only",
            partial(_separates, cell=f"{prior}-{name}", least=least),
            in_our_way=prior != "gaussian",
        )
        for name, words, least in (("kmnist", "KMNIST", 0.95), ("fashionmnist", "FashionMNIST", 0.93))
        for prior, which in (
            ("gaussian", "Gaussian prior"),
            ("mixture", "mixture prior"),
            ("mixture-sgd", "mixture prior, trained as in bbb-error"),
        )
    ),
    Claim(
        "m3-unanimous",
        "Images of MNIST are predicted unanimously and with a score of 1: most of them",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "one image, all draws, 1.0",
        _unanimous,
    ),
    Claim(
        "m3-low-scores",
        "Many scores on unseen images are below 0.1: more than 10 percent of them in every set",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "many",
        partial(_in_every_set, metric="low_scores_unseen", bar=10.0),
    ),
    Claim(
        "m3-few-spread",
        "A few images of MNIST spread widely, less than 10 percent, and most of these are misclassified",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "a few, mostly wrong",
        _few_spread,
    ),
    Claim(
        "m3-sure-of-unseen",
        "Some unseen images are predicted with great confidence, in every set",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "some",
        partial(_in_every_set, metric="sure_unseen", bar=0.0),
    ),
    Claim(
        "m3-accuracy-unseen",
        "Accuracy on unseen images is never above 10 percent (labels differ, so that chance decides)",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "at most 10",
        _accuracy_unseen,
    ),
    *(
        Claim(
            f"m3-attacked-{ending}",
            f"The Bayesian network keeps about half at 0.15, from 40 to 60 percent; Gaussian prior, {words}",
            f"{PROJECT}, Figures 7 and 8",
            ("bbb-fgsa",),
            "near 50",
            partial(_attacked_bayesian, ending=ending),
        )
        for ending, words in (("1", "a gradient of one draw"), ("eot-10", "a gradient over ten draws"))
    ),
    Claim(
        "m3-attacked-plain",
        "The plain network and that with dropout keep less than 10 percent at 0.15",
        f"{PROJECT}, Figures 7 and 8",
        ("bbb-fgsa",),
        "below 10, below 10",
        _attacked_plain,
    ),
    Claim(
        "m3-band",
        "The regression band is at least 3 times as wide far from the data as among them",
        f"{PROJECT}, Figure 2",
        ("bbb-regression",),
        "wider; a figure",
        _band,
    ),
    *(
        Claim(
            f"m3-speed-{task}",
            f"So many times cheaper is a further draw with vmap and local noise than one after the other, half of what "
            f"was published or more: {task}",
            f"{PROJECT}, Table 1",
            ("bbb-speed",),
            f"{published:.1f}",
            partial(_speed, task=task, published=published),
        )
        for task, published in (("regression", 10.0), ("images", 11.0))
    ),
)
