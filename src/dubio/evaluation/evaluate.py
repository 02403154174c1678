"""``evaluate``: metrics of a network on data, with intervals.

Metrics are those of ``num_samples`` draws. Intervals are over examples (bootstrap), ``draw_error`` is over draws
(jackknife over groups of them), and as many draws again show what more draws would change.

Invariants: the network, its buffers and the global generators are unchanged; the same seed gives the same numbers
(``tests/evaluation/test_evaluating.py``).
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import Precision, check_num_samples, noise_key
from dubio.calibrators import DecisionWarning, decisions_of
from dubio.checks import check_count
from dubio.convert import change_spec
from dubio.data import CORRUPTIONS, Examples, batches_from, corrupt, fingerprint_of, order_of
from dubio.evaluation.judge import in_rows, judge, judge_unseen
from dubio.evaluation.metrics import GROUPS, class_measures, uncertainty_of
from dubio.evaluation.records import CorruptionPoint, DataRecord, Evaluation
from dubio.prediction import ClassificationPredictive, Predictive, RegressionPredictive, predict
from dubio.version import versions

STRENGTHS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, eq=False)
class Judged:
    """Inputs and targets in memory, and their description."""

    inputs: Any
    targets: Tensor
    record: DataRecord


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    corruptions: Sequence[str] = (),
    num_samples: int = 100,
    num_resamples: int = 300,
    double: bool = True,
    batch_size: int | None = None,
    precision: Precision = "fp32",
    seed: int = 0,
    classes: Sequence[str] = (),
) -> Evaluation:
    """Judge a network on data that it was not trained on.

    The network keeps the fingerprint of the data; ``calibrate``, ``abstain`` and ``conformal`` refuse data that it was
    judged on.

    Args:
        model: a converted network, or any ``nn.Module`` (a classifier that gives logits).
        data: ``dubio.data.Examples``, ``(inputs, targets)``, a ``Dataset``, a ``DataLoader`` or an iterable of batches.
        ood: unseen (out-of-distribution) data by name; targets are not needed.
        corruptions: corruptions of the images, applied at strengths 1 to 5: ``noise``, ``blur``, ``contrast``,
            ``rotation``, ``inversion``.
        num_samples: number of draws; of an ensemble, at most its members.
        num_resamples: resamples for intervals over examples; 0 for none.
        double: draw as many again, and report what changes.
        batch_size: rows at a time; by default as many as fit into memory.
        precision: precision of the network, as for ``predict``.
        seed: the seed of draws and resamples.
        classes: names of the classes, if the data have none.
    """
    began = time.perf_counter()
    _check(data, num_samples, num_resamples, corruptions)
    judged = gather(data, classes=tuple(classes))
    unseen = {name: _gather_inputs(inputs, name) for name, inputs in (ood or {}).items()}
    _check_unseen(unseen, judged)
    fingerprint = judged.record.fingerprint
    for name, decision in decisions_of(model).made.items():
        if decision.fingerprint == fingerprint:
            warnings.warn(
                f"the {name} of this network was found on these very data, so its numbers here are better than they "
                "are elsewhere; judge it on other data",
                DecisionWarning,
                stacklevel=2,
            )

    def draw(inputs: Any, seed: int = seed, keep_samples: bool = False) -> Any:
        return predict(
            model, inputs, num_samples, keep_samples=keep_samples, batch_size=batch_size, precision=precision, seed=seed
        )

    pred: Predictive = draw(judged.inputs, keep_samples=True)
    if (unseen or corruptions) and not isinstance(pred, ClassificationPredictive):
        raise ValueError("ood and corruptions are for classes, and this network predicts numbers; leave them out")
    again = None
    if double and pred.num_samples == num_samples:  # an ensemble has no more members
        again = draw(judged.inputs, noise_key(f"again {seed}"), keep_samples=isinstance(pred, RegressionPredictive))
        again = None if torch.equal(_mean(pred), _mean(again)) else again
    judging = partial(judge, pred, judged.targets, again=again, inputs=judged.inputs, record=judged.record)
    evaluation = judging(num_resamples=num_resamples, seed=seed)
    if isinstance(pred, ClassificationPredictive):
        seen = in_rows(pred)
        preds = {name: in_rows(draw(inputs)) for name, (inputs, _) in unseen.items()}
        sets = {name: judge_unseen(seen, other, unseen[name][1], num_resamples, seed) for name, other in preds.items()}
        evaluation = replace(
            evaluation,
            unseen=sets,
            uncertainty=evaluation.uncertainty | {name: uncertainty_of(other) for name, other in preds.items()},
            corruptions={name: _corruption_curve(data, name, draw, seed) for name in corruptions},
        )
    record = getattr(model, "dubio_spec", None)
    if record is not None and fingerprint not in record.evaluated:
        change_spec(model, evaluated=(*record.evaluated, fingerprint))
    seconds = time.perf_counter() - began
    return replace(evaluation, decided=decisions_of(model).summary(), seconds=seconds, made_by=versions())


def gather(data: Any, name: str = "data", classes: tuple[str, ...] = ()) -> Judged:
    """Gather all inputs and targets of data in memory.

    Args:
        data: ``Examples``, ``(inputs, targets)``, a ``Dataset``, a ``DataLoader`` or an iterable of batches.
        name: name of the data; ``Examples`` have their own.
        classes: names of the classes, if the data have none.
    """
    if isinstance(data, Judged):
        return data
    if isinstance(data, Examples):
        inputs, targets = data.tensors
        name, classes = data.name, classes or data.classes
    else:
        inputs, targets = _joined(data, name)
    if targets.is_complex():
        raise TypeError(f"targets must be whole numbers that name classes, or real numbers, got {targets.dtype}")
    fingerprint, order = fingerprint_of(inputs, targets), order_of(inputs, targets)
    return Judged(inputs, targets, DataRecord(name, len(targets), fingerprint, tuple(classes), order))


def _gather_inputs(data: Any, name: str) -> tuple[Any, DataRecord]:
    """Inputs and their description; unseen data need no targets."""
    if isinstance(data, Tensor):
        none = torch.zeros(len(data), device="cpu")
        return data, DataRecord(name, len(data), fingerprint_of(data, none), order=order_of(data, none))
    gathered = gather(data, name)
    return gathered.inputs, gathered.record


def _joined(data: Any, name: str) -> tuple[Any, Tensor]:
    """All batches of data as one."""
    batches = list(batches_from(data, 1024, name=name).epoch(0))
    if not batches:
        raise ValueError(f"{name} must hold at least one example, got none")
    if any(batch.weight is not None for batch in batches):
        raise ValueError(f"{name} must have no weights of examples, to judge by it; leave them out")
    inputs = pytree.tree_map(
        lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0],
        *(batch.inputs for batch in batches),
    )
    return inputs, torch.cat([batch.targets for batch in batches])


def _corruption_curve(
    examples: Examples, name: str, draw: Callable[[Any], ClassificationPredictive], seed: int
) -> tuple[CorruptionPoint, ...]:
    """Metrics as a corruption grows, from strength 0 on."""
    points = []
    for strength in (0, *STRENGTHS):
        inputs, targets = corrupt(examples, name, strength=strength, seed=seed).tensors
        pred = in_rows(draw(inputs))
        metrics = class_measures(pred.log_probs, targets.cpu())
        values = {key: metrics[key].item() for key in ("accuracy", "nll", "ece", "entropy")}
        mutual_information = pred.mutual_information.double().mean().item()
        points.append(CorruptionPoint(strength, **values, mutual_information=mutual_information))
    return tuple(points)


def _mean(pred: Any) -> Tensor:
    mean: Tensor = pred.log_probs if isinstance(pred, ClassificationPredictive) else pred.mean
    return mean


def _check(data: Any, num_samples: int, num_resamples: int, corruptions: Sequence[str]) -> None:
    check_num_samples(num_samples)
    check_count("num_resamples", num_resamples, 0)
    if isinstance(corruptions, str) or not set(corruptions) <= set(CORRUPTIONS):
        raise ValueError(f"corruptions must name some of {', '.join(CORRUPTIONS)}, got {corruptions!r}")
    if corruptions and not isinstance(data, Examples):
        raise TypeError(f"corruptions need data as dubio.data.Examples of images, got {type(data).__name__}")


def _check_unseen(unseen: Mapping[str, tuple[Any, DataRecord]], judged: Judged) -> None:
    for name, (inputs, _) in unseen.items():
        if name in GROUPS:
            raise ValueError(f"ood must not be named {name!r}, which is a group of the examples themselves; rename it")
        same = isinstance(inputs, Tensor) and isinstance(judged.inputs, Tensor) and inputs.shape == judged.inputs.shape
        if same and torch.equal(inputs.cpu(), judged.inputs.cpu()):
            warnings.warn(f"ood {name!r} holds the very inputs that are judged, not unseen ones", stacklevel=3)
