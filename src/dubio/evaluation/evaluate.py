"""``evaluate``: how far a network can be trusted on some data, with how sure that is.

Numbers are those of ``num_samples`` draws. Intervals are over examples (bootstrap), ``draw_error`` is over draws
(jackknife over groups of them), and as many draws again tell what more draws would change.

Data to judge by: what ``fit`` takes, gathered in memory, with a name and a fingerprint.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import Precision, check_num_samples, noise_key
from dubio.calibrators import DecisionWarning, decisions_of
from dubio.convert import change_spec
from dubio.data import CORRUPTIONS, Examples, batches_from, corrupt, fingerprint_of, order_of
from dubio.evaluation.judge import in_rows, judge, judge_unseen
from dubio.evaluation.metrics import GROUPS, class_measures, uncertainty_of
from dubio.evaluation.records import CorruptionPoint, DataRecord, Evaluation
from dubio.prediction import ClassificationPredictive, Predictive, RegressionPredictive, predict
from dubio.version import versions

STRENGTHS = (1, 2, 3, 4, 5)


Drawing = Callable[[Any], ClassificationPredictive]


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
    """Judge a network on data that had no part in its training.

    The fingerprint of the data is kept with the network: ``calibrate``, ``abstain`` and ``conformal`` refuse data
    that it was judged on.

    Args:
        model: a converted network, or any ``nn.Module`` (a classifier that gives logits).
        data: ``dubio.data.Examples``, ``(inputs, targets)``, a ``Dataset``, a ``DataLoader`` or an iterable of batches.
        ood: data that the network has never seen, by name; inputs alone will do.
        corruptions: which corruptions of the images to try at strengths 1 to 5: ``noise``, ``blur``, ``contrast``,
            ``rotation``, ``inversion``.
        num_samples: draws; of an ensemble, at most its members.
        num_resamples: resamples for intervals over examples; 0 for none.
        double: draw as many again, and tell what changes.
        batch_size: rows at a time; by default as many as memory allows.
        precision: in which the network computes, as for ``predict``.
        seed: which draws and which resamples.
        classes: names of the classes, where the data have none.
    """
    began = time.perf_counter()
    _check(data, num_samples, num_resamples, corruptions)
    judged = gather(data, classes=tuple(classes))
    unseen = {name: gather_inputs(inputs, name) for name, inputs in (ood or {}).items()}
    _check_unseen(unseen, judged)
    _warn_if_used(model, judged)

    def draw(inputs: Any, seed: int = seed, keep_samples: bool = False) -> Any:
        return predict(
            model, inputs, num_samples, keep_samples=keep_samples, batch_size=batch_size, precision=precision, seed=seed
        )

    found: Predictive = draw(judged.inputs, keep_samples=True)
    if (unseen or corruptions) and not isinstance(found, ClassificationPredictive):
        raise ValueError("ood and corruptions are for classes, and this network predicts numbers; leave them out")
    again = None
    if double and found.num_samples == num_samples:  # an ensemble has no more members
        again = draw(judged.inputs, noise_key(f"again {seed}"), keep_samples=isinstance(found, RegressionPredictive))
        again = again if _differ(found, again) else None
    evaluation = judge(
        found,
        judged.targets,
        again=again,
        inputs=judged.inputs,
        record=judged.record,
        num_resamples=num_resamples,
        seed=seed,
    )
    if isinstance(found, ClassificationPredictive):
        evaluation = _with_unseen(evaluation, in_rows(found), unseen, draw, num_resamples, seed)
        curves = {name: _corruption_curve(data, name, draw, seed) for name in corruptions}
        evaluation = replace(evaluation, corruptions=curves)
    _keep_fingerprint(model, judged)
    seconds = time.perf_counter() - began
    return replace(evaluation, decided=decisions_of(model).summary(), seconds=seconds, made_by=versions())


def _with_unseen(
    evaluation: Evaluation,
    known: ClassificationPredictive,
    unseen: Mapping[str, tuple[Any, DataRecord]],
    draw: Drawing,
    num_resamples: int,
    seed: int,
) -> Evaluation:
    found = {name: in_rows(draw(inputs)) for name, (inputs, _) in unseen.items()}
    judged = {
        name: judge_unseen(known, strange, unseen[name][1], num_resamples, seed) for name, strange in found.items()
    }
    uncertainties = {name: uncertainty_of(strange) for name, strange in found.items()}
    return replace(evaluation, unseen=judged, uncertainty=evaluation.uncertainty | uncertainties)


def _corruption_curve(examples: Examples, name: str, draw: Drawing, seed: int) -> tuple[CorruptionPoint, ...]:
    """How the network does as a corruption grows, from strength 0 on."""
    points = []
    for strength in (0, *STRENGTHS):
        inputs, targets = corrupt(examples, name, strength=strength, seed=seed).tensors
        found = in_rows(draw(inputs))
        measured = class_measures(found.log_probs, targets.cpu())
        own = {key: measured[key].item() for key in ("accuracy", "nll", "ece", "entropy")}
        uncertainty = found.mutual_information.double().mean().item()
        points.append(CorruptionPoint(strength, **own, mutual_information=uncertainty))
    return tuple(points)


def _check(data: Any, num_samples: int, num_resamples: int, corruptions: Sequence[str]) -> None:
    check_num_samples(num_samples)
    if isinstance(num_resamples, bool) or not isinstance(num_resamples, int) or num_resamples < 0:
        raise ValueError(f"num_resamples must be a whole number of at least 0, got {num_resamples!r}")
    unknown = [name for name in corruptions if name not in CORRUPTIONS]
    if isinstance(corruptions, str) or unknown:
        raise ValueError(f"corruptions must name some of {', '.join(CORRUPTIONS)}, got {corruptions!r}")
    if corruptions and not isinstance(data, Examples):
        raise TypeError(f"corruptions need data as dubio.data.Examples of images, got {type(data).__name__}")


@dataclass(frozen=True, eq=False)
class Judged:
    """Inputs and targets in memory, and what is written down about them."""

    inputs: Any
    targets: Tensor
    record: DataRecord


def _check_unseen(unseen: Mapping[str, tuple[Any, DataRecord]], judged: Judged) -> None:
    for name, (inputs, _) in unseen.items():
        if name in GROUPS:
            raise ValueError(f"ood must not be named {name!r}, which is a group of the examples themselves; rename it")
        same = isinstance(inputs, Tensor) and isinstance(judged.inputs, Tensor) and inputs.shape == judged.inputs.shape
        if same and torch.equal(inputs.cpu(), judged.inputs.cpu()):
            warnings.warn(f"ood {name!r} holds the very inputs that are judged, not unseen ones", stacklevel=3)


def _differ(found: Predictive, again: Predictive) -> bool:
    """Whether other draws say anything else."""
    one, other = (
        part.log_probs if isinstance(part, ClassificationPredictive) else part.mean  # type: ignore[attr-defined]
        for part in (found, again)
    )
    return not torch.equal(one, other)


def _warn_if_used(model: nn.Module, judged: Judged) -> None:
    for name, decision in decisions_of(model).made.items():
        if decision.fingerprint == judged.record.fingerprint:
            warnings.warn(
                f"the {name} of this network was found on these very data, so its numbers here are better than they "
                "are elsewhere; judge it on other data",
                DecisionWarning,
                stacklevel=3,
            )


def _keep_fingerprint(model: nn.Module, judged: Judged) -> None:
    record = getattr(model, "dubio_spec", None)
    own = judged.record.fingerprint
    if record is not None and own not in record.evaluated:
        change_spec(model, evaluated=(*record.evaluated, own))


def gather(data: Any, name: str = "data", classes: tuple[str, ...] = ()) -> Judged:
    """All inputs and targets of some data: ``Examples``, ``(inputs, targets)``, a ``Dataset`` or a ``DataLoader``."""
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
    record = DataRecord(name, len(targets), fingerprint, tuple(classes), order)
    return Judged(inputs, targets, record)


def gather_inputs(data: Any, name: str) -> tuple[Any, DataRecord]:
    """Inputs alone and what is written down about them; what never was seen needs no targets."""
    if isinstance(data, Tensor):
        none = torch.zeros(len(data), device="cpu")
        return data, DataRecord(name, len(data), fingerprint_of(data, none), order=order_of(data, none))
    found = gather(data, name)
    return found.inputs, found.record


def _joined(data: Any, name: str) -> tuple[Any, Tensor]:
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
