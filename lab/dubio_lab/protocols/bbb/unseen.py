"""Images that the network has never seen: what its draws say of them, beside the images that it knows.

A draw is one set of weights. The score of a draw is the probability that it gives to the answer, which is the class
with the largest mean probability; scores that spread widely are doubt.

Reference: Project Machine Learning, Milestone 3, Figures 3 to 6.
"""

from typing import Any

import torch
from torch import Tensor

from dubio import functional
from dubio.data import Examples
from dubio.plots import draw_votes
from dubio.prediction import ClassificationPredictive
from dubio_lab.protocols.bbb.networks import Trained, train_network
from dubio_lab.protocols.images import load_unseen
from dubio_lab.protocols.measuring import mean_of, predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Findings, Measured

__all__ = ["claims", "ood"]

DOUBTS = ("entropy", "mutual_information", "top_std")


def ood(trial: Trial) -> Findings:
    """Doubt on known and on unseen images, how well it tells them apart, and what was said of them, as numbers.

    Settings: those of ``train_network``, ``draws``, ``unseen`` (which images), ``pictures`` (whether to draw some),
    and those of ``claims``.
    """
    trained = train_network(trial)
    ood_set = load_unseen(trial)[trial.settings["unseen"]]
    in_dist, unseen = (
        predict_classes(trial, trained.model, examples.tensors[0], keep=True) for examples in (trained.test, ood_set)
    )
    metrics: dict[str, Measured] = {}
    for doubt in DOUBTS:
        low, high = getattr(in_dist, doubt).double(), getattr(unseen, doubt).double()
        metrics |= {f"{doubt}_known": mean_of(low), f"{doubt}_unseen": mean_of(high)}
        metrics[f"auroc_{doubt}"] = Measured(functional.uncertainty.auroc(low, high).item(), n=len(low) + len(high))
    metrics |= claims(in_dist, trained.test.targets, unseen, ood_set.targets, trial.settings)
    if trial.settings["pictures"]:
        _draw(trial, trained, in_dist, ood_set, unseen)
    return Findings(metrics)


def claims(
    in_dist: ClassificationPredictive,
    labels: Tensor,
    unseen: ClassificationPredictive,
    ood_labels: Tensor,
    limits: dict[str, Any],
) -> dict[str, Measured]:
    """What the source says in words of its figures, in percent.

    Settings: ``low_score``, below which a score is low; ``wide_std``, from which on scores spread widely; and
    ``sure``, the mean score from which on a prediction is very confident.
    """
    spread, wrong = in_dist.top_std >= limits["wide_std"], in_dist.label != labels
    shares = {
        "unanimous_known": share(in_dist.votes.amax(dim=-1) == 1.0),
        "sure_known": share(in_dist.confidence >= limits["sure"]),
        "low_scores_unseen": share(_scores(unseen) < limits["low_score"]),
        "spread_known": share(spread),
        "spread_unseen": share(unseen.top_std >= limits["wide_std"]),
        "sure_unseen": share(unseen.confidence >= limits["sure"]),
        "accuracy_unseen": share(unseen.label == ood_labels),
    }
    # Of nothing there is no share: where no scores spread, none of those is wrong.
    shares["wrong_among_spread"] = share(wrong[spread]) if bool(spread.any()) else Measured(0.0, n=0)
    return shares


def _scores(pred: ClassificationPredictive) -> Tensor:
    """The score of every draw."""
    assert pred.samples is not None
    answer = pred.label.expand(pred.samples.shape[:-1]).unsqueeze(-1)
    return pred.samples.gather(-1, answer).squeeze(-1).exp()


def _draw(
    trial: Trial, trained: Trained, in_dist: ClassificationPredictive, ood: Examples, unseen: ClassificationPredictive
) -> None:
    """Votes and scores of one image of each kind, of the known one that spreads most and the unseen one that least."""
    name = trial.settings["unseen"]
    rows = (0, int(in_dist.top_std.argmax()), 0, int(unseen.confidence.argmax()))
    sources = (trained.test, trained.test, ood, ood)
    images = torch.cat([source[row].tensors[0] for source, row in zip(sources, rows, strict=True)])
    names = ("known", "widest known", name, f"surest {name}")
    trial.draw(
        "votes",
        lambda file: draw_votes(
            trained.model,
            images,
            file,
            classes=trained.test.classes,
            names=names,
            num_samples=trial.settings["draws"],
            seed=trial.judging_seed,
        ),
    )
