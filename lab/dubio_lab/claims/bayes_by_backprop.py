"""Claims of Blundell et al. 2015, and of Project Machine Learning, Milestone 3."""

from collections.abc import Callable, Sequence
from functools import partial

from dubio_lab.claims.claim import Claim, Outcome, Part, outcome_of, part_of
from dubio_lab.claims.estimate import Estimate, Records, Value
from dubio_lab.claims.verdict import Verdict, difference, direction, factor, within

__all__ = ["CLAIMS", "PROJECT_CLAIMS"]

PAPER = "Blundell et al. 2015"
PROJECT = "Project Machine Learning, Milestone 3"
UNSEEN = {"kmnist": "KMNIST", "fashionmnist": "FashionMNIST", "omniglot": "Omniglot"}
LEAST_AREAS = {"kmnist": 0.95, "fashionmnist": 0.93, "omniglot": 0.93}
"""Bars of ours, set after a trial run; Omniglot had none and takes the lower of the two."""
TASKS = {"regression": "the regression network", "images": "the image network"}
FACTORS = (  # of Tables 1 and 2: what is slower, what is faster, the factor for each task
    ("vmap", "sequential", "vmap", {"regression": 7.0, "images": 2.15}),
    ("local", "vmap", "vmap-lrt", {"regression": 1.4, "images": 5.1}),
    ("both", "sequential", "vmap-lrt", {"regression": 10.0, "images": 11.0}),
)
WAYS = {"sequential": "one after the other", "vmap": "with vmap", "vmap-lrt": "with vmap and local reparameterisation"}
MOST_AHEAD = (
    0.1  # the share of epochs, or of spread, by which local reparameterisation may be ahead and not count as ahead
)


def _most(records: Records, spec: str, cell: str, metric: str, most: float) -> Outcome:
    """A number that may be lower than published, and at most a bar."""
    number = partial(records.number, spec, cell, metric)
    return outcome_of(part_of("", number, partial(within, most=most), signed=False))


def _order_of_errors(records: Records, others: Sequence[tuple[str, str, float]], cell: str) -> Outcome:
    return outcome_of(
        *(
            part_of(
                f"less {words}",
                partial(records.gap, "bbb-error", cell, other, "test_error"),
                partial(difference, published=published),
            )
            for other, words, published in others
        )
    )


def _like_dropout(records: Records) -> Outcome:
    def gap(value: Value) -> float:
        dropout = value("bbb-error", "dropout-1200", "test_error_mean_weights")
        return value("bbb-error", "mixture-1200", "test_error") - dropout

    return outcome_of(part_of("", partial(records.estimate, gap), partial(within, most=0.1)))


def _pruned(records: Records, share: int, most: float) -> Outcome:
    added = partial(records.gap, "bbb-pruning", f"removed-{share}", "removed-0", "test_error")
    return outcome_of(part_of("", added, partial(within, most=most)))


def _band(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                words,
                partial(records.number, "bbb-regression", cell, "ratio"),
                partial(within, least=3.0),
                signed=False,
            )
            for cell, words in (("local", "local reparameterisation"), ("weight", "drawn weights"))
        )
    )


def _separates(records: Records, cell: str, least: float) -> Outcome:
    area = partial(records.number, "bbb-ood", cell, "auroc_mutual_information")
    return outcome_of(part_of("", area, partial(within, least=least), signed=False))


def _shares(records: Records, *bars: tuple[str, str, str, Callable[[Estimate], Verdict]]) -> Outcome:
    """Percentages of bbb-ood: words, cell, metric and the rule for each."""
    return outcome_of(
        *(
            part_of(words, partial(records.number, "bbb-ood", cell, metric), rule, signed=False)
            for words, cell, metric, rule in bars
        )
    )


def _in_every_set(records: Records, metric: str, rule: Callable[[Estimate], Verdict]) -> Outcome:
    return _shares(records, *((words, f"gaussian-{name}", metric, rule) for name, words in UNSEEN.items()))


def _attacked(records: Records, metric: str, rule: Callable[[Estimate], Verdict], network: str = "gaussian") -> Outcome:
    """What attacks with one draw and with ten leave of a Bayesian network."""
    return outcome_of(
        *(
            part_of(words, partial(records.number, "bbb-fgsa", f"{network}-{ending}", metric), rule, signed=False)
            for ending, words in (("1", "gradient of one draw"), ("eot-10", "gradient over ten draws"))
        )
    )


def _best_of_three(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(words, partial(records.gap, "bbb-fgsa", "gaussian-eot-10", other, "accuracy_015"), direction)
            for other, words in (("mlp", "over the plain network"), ("dropout-mean", "over that with dropout"))
        )
    )


def _attacked_plain(records: Records) -> Outcome:
    return outcome_of(
        *(
            part_of(
                words,
                partial(records.number, "bbb-fgsa", cell, "accuracy_015"),
                partial(within, most=10.0),
                signed=False,
            )
            for cell, words in (("mlp", "plain"), ("dropout-mean", "dropout"))
        )
    )


def _plain_far_off(records: Records) -> Outcome:
    def loss(value: Value) -> float:
        return value("bbb-fgsa", "mlp", "accuracy_000") - value("bbb-fgsa", "mlp", "accuracy_005")

    return outcome_of(part_of("", partial(records.estimate, loss), partial(within, least=20.0)))


def _cheaper(records: Records, task: str, slow: str, fast: str, published: float) -> Outcome:
    """The ratio of what a further draw adds in two ways, with the interval of the ratio of two slopes."""
    slower, faster = (records.line("bbb-speed", f"{task}-{how}", "seconds_by_draws") for how in (slow, fast))
    ratio = slower.over(faster)
    slopes = f"{slower.slope:.2g} s against {faster.slope:.2g} s for each draw"
    shown = f"{slopes}; the second cannot be told from zero" if ratio.low is None else f"{ratio} times: {slopes}"
    return outcome_of(Part("", ratio, factor(ratio, published)), shown=shown)


def _straight_lines(records: Records) -> Outcome:
    """How much of the scatter the six lines explain: a property of these points, so without an interval."""
    shares = {
        f"{task}-{how}": records.number("bbb-speed", f"{task}-{how}", "r_squared").value
        for task in TASKS
        for how in WAYS
    }
    straight = [share > 0.99 for share in shares.values()]
    verdict = Verdict.REPRODUCED if all(straight) else Verdict.PARTLY if sum(straight) >= 3 else Verdict.NOT_REPRODUCED
    return Outcome(", ".join(f"{share:.2f}" for share in shares.values()), "one run", verdict)


def _no_better_by_local_noise(records: Records, metric: str) -> Outcome:
    """By which share local reparameterisation needs less than drawn weights; the paper says that it does not."""

    def share(value: Value) -> float:
        return 1.0 - value("m3-lrt-curve", "local", metric) / value("m3-lrt-curve", "weight", metric)

    return outcome_of(part_of("", partial(records.estimate, share), partial(within, most=MOST_AHEAD)))


def _steadier_gradients(records: Records) -> Outcome:
    cells = {"local": "network of local noise", "weight": "network of drawn weights"}
    return outcome_of(
        *(
            part_of(
                words,
                partial(records.number, "m3-lrt-curve", cell, "noise_ratio"),
                partial(within, least=1.0),
                signed=False,
            )
            for cell, words in cells.items()
        )
    )


CLAIMS = (
    Claim(
        "bbb-mixture-error",
        "With the mixture prior, 2 x 1200 units have a test error of 1.32 percent on MNIST, after 600 epochs; at most "
        "1.5",
        f"{PAPER}, Table 1",
        ("bbb-error",),
        "1.32 %",
        partial(_most, spec="bbb-error", cell="mixture-1200-600-epochs", metric="test_error", most=1.5),
    ),
    Claim(
        "bbb-gaussian-error",
        "With a Gaussian prior it is 2.04 percent, after 600 epochs; at most 2.5, and lower is better than published",
        f"{PAPER}, Table 1",
        ("bbb-error",),
        "2.04 %",
        partial(_most, spec="bbb-error", cell="gaussian-1200-600-epochs", metric="test_error", most=2.5),
    ),
    Claim(
        "bbb-order-of-errors",
        "The mixture prior has a lower error than the Gaussian prior and than the plain network, after 120 epochs",
        f"{PAPER}, Table 1",
        ("bbb-error",),
        "-0.72, -0.56 points",
        partial(
            _order_of_errors,
            cell="mixture-1200",
            others=(("gaussian-1200", "Gaussian prior", -0.72), ("mlp-1200", "plain network", -0.56)),
        ),
    ),
    Claim(
        "bbb-like-dropout",
        "The mixture prior reaches the error of dropout, after 120 epochs: at most 0.1 points above it",
        f"{PAPER}, Table 1",
        ("bbb-error",),
        "-0.04 points",
        _like_dropout,
    ),
    *(
        Claim(
            f"bbb-pruned-{share}",
            f"{share} percent of the weights can be removed for next to nothing, after 120 epochs: at most {most} "
            "points of error",
            f"{PAPER}, Table 2",
            ("bbb-pruning",),
            f"{published:+} points",
            partial(_pruned, share=share, most=most),
        )
        for share, published, most in ((95, 0.05, 0.3), (98, 0.15, 0.4))
    ),
    Claim(
        "bbb-band",
        "The band of a regression widens away from the data: at least 3 times as wide far from them as among them",
        f"{PAPER}, Figure 5, which an earlier milestone of the project repeats",
        ("bbb-regression",),
        "wider; a figure",
        _band,
    ),
    *(
        Claim(
            f"bbb-{prior}-error-120-epochs",
            f"The error with {words}, after 120 epochs; at most {most}",
            f"{PAPER}, Table 1",
            ("bbb-error",),
            published,
            partial(_most, spec="bbb-error", cell=f"{prior}-1200", metric="test_error", most=most),
            in_our_way=True,
        )
        for prior, words, published, most in (
            ("mixture", "the mixture prior", "1.32 %", 1.5),
            ("gaussian", "a Gaussian prior", "2.04 %", 2.5),
        )
    ),
    Claim(
        "bbb-order-of-priors-600-epochs",
        "The mixture prior has a lower error than the Gaussian prior, after 600 epochs",
        f"{PAPER}, Table 1",
        ("bbb-error",),
        "-0.72 points",
        partial(
            _order_of_errors,
            cell="mixture-1200-600-epochs",
            others=(("gaussian-1200-600-epochs", "Gaussian prior", -0.72),),
        ),
        in_our_way=True,
    ),
)

PROJECT_CLAIMS = (
    *(
        Claim(
            f"m3-{prior}-{name}",
            f"Draws disagree more about {UNSEEN[name]} than about MNIST: area under the curve of mutual information "
            f"of at least {LEAST_AREAS[name]}{which}",
            f"{PROJECT}, Figures 3 to 6",
            ("bbb-ood",),
            "figures only",
            partial(_separates, cell=f"{prior}-{name}", least=LEAST_AREAS[name]),
            in_our_way=prior != "gaussian",
        )
        for prior, which in (
            ("gaussian", ""),
            ("mixture", "; mixture prior"),
            ("mixture-sgd", "; mixture prior, trained as in bbb-error"),
        )
        for name in UNSEEN
    ),
    Claim(
        "m3-unanimous",
        "Images of MNIST are predicted unanimously and with a score of 1: most of them, with 0.99 or more",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "one image, all draws, 1.0",
        lambda records: _shares(
            records,
            ("% unanimous", "gaussian-kmnist", "unanimous_known", partial(within, least=50.0)),
            ("% with 0.99", "gaussian-kmnist", "sure_known", partial(within, least=50.0)),
        ),
    ),
    Claim(
        "m3-low-scores",
        "Many scores on unseen images are below 0.1: more than 10 percent of them in every set",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "many",
        partial(_in_every_set, metric="low_scores_unseen", rule=partial(within, least=10.0)),
    ),
    Claim(
        "m3-few-spread",
        "A few images of MNIST spread widely, less than 10 percent, and most of these are misclassified",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "a few, mostly wrong",
        lambda records: _shares(
            records,
            ("% spread", "gaussian-kmnist", "spread_known", partial(within, most=10.0)),
            ("% of them wrong", "gaussian-kmnist", "wrong_among_spread", partial(within, least=50.0)),
        ),
    ),
    Claim(
        "m3-sure-of-unseen",
        "Some unseen images are predicted with great confidence, in every set",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "some",
        partial(_in_every_set, metric="sure_unseen", rule=direction),
    ),
    Claim(
        "m3-accuracy-unseen",
        "Accuracy on unseen images is never above 10 percent (labels differ, so that chance decides)",
        f"{PROJECT}, text to Figures 3 to 6",
        ("bbb-ood",),
        "at most 10 %",
        partial(_in_every_set, metric="accuracy_unseen", rule=partial(within, most=10.0)),
    ),
    Claim(
        "m3-attacked",
        "Under the fast gradient sign attack the Bayesian network keeps about half at 0.15, from 40 to 60 percent",
        f"{PROJECT}, Figures 7 and 8",
        ("bbb-fgsa",),
        "near 50 %",
        partial(_attacked, metric="accuracy_015", rule=partial(within, least=40.0, most=60.0)),
    ),
    Claim(
        "m3-attacked-decent",
        "At 0.1 its accuracy is still decent: at least 70 percent",
        f"{PROJECT}, text to Figures 7 and 8",
        ("bbb-fgsa",),
        "still decent",
        partial(_attacked, metric="accuracy_010", rule=partial(within, least=70.0)),
    ),
    Claim(
        "m3-best-of-three",
        "At 0.15 the Bayesian network, attacked over ten draws, is ahead of the plain one and of that with dropout",
        f"{PROJECT}, Figures 7 and 8",
        ("bbb-fgsa",),
        "best of three",
        _best_of_three,
    ),
    Claim(
        "m3-attacked-plain",
        "The plain network and that with dropout keep less than 10 percent at 0.15",
        f"{PROJECT}, Figures 7 and 8",
        ("bbb-fgsa",),
        "below 10 %, below 10 %",
        _attacked_plain,
    ),
    Claim(
        "m3-plain-far-off",
        "The plain network is already far off at 0.05: it loses at least 20 points",
        f"{PROJECT}, text to Figures 7 and 8",
        ("bbb-fgsa",),
        "far off",
        _plain_far_off,
    ),
    *(
        Claim(
            f"m3-speed-{name}-{task}",
            f"A further draw is cheaper {WAYS[fast]} than {WAYS[slow]}: {words}",
            f"{PROJECT}, {'Table 1' if task == 'regression' else 'Table 2'}",
            ("bbb-speed",),
            f"{published[task]:g} times",
            partial(_cheaper, task=task, slow=slow, fast=fast, published=published[task]),
        )
        for name, slow, fast, published in FACTORS
        for task, words in TASKS.items()
    ),
    Claim(
        "m3-straight-lines",
        "The time of an epoch is a straight line in the number of draws: more than 0.99 of the variance explained, "
        "for both networks in three ways",
        f"{PROJECT}, Tables 1 and 2",
        ("bbb-speed",),
        "above 0.99, six times",
        _straight_lines,
    ),
    *(
        Claim(
            f"m3-local-{name}",
            f"Local reparameterisation {words} than drawn weights: by at most a tenth",
            f"{PROJECT}, Figure 2",
            ("m3-lrt-curve",),
            published,
            partial(_no_better_by_local_noise, metric=metric),
        )
        for name, words, published, metric in (
            ("no-faster", "learns no faster, in epochs to 3 percent of test error,", "no faster", "epochs_to_limit"),
            (
                "no-steadier",
                "has a test error that varies no less over the last epochs",
                "no less variance",
                "last_spread",
            ),
        )
    ),
    Claim(
        "m3-local-gradients",
        "Gradients of a batch scatter less with local noise than with drawn weights: the ratio of the two is above 1",
        f"{PROJECT}, section on local reparameterisation",
        ("m3-lrt-curve",),
        None,
        _steadier_gradients,
    ),
)
