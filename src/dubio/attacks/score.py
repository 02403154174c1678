"""Accuracy under attack, on draws that had no part in the attack, and tables of transfer between networks.

``score`` gives three accuracies: of the mean over T draws (``predictive``), of one draw (``single``), and of being
right on all of m queries (``retry``). Images that were selected because a few draws are fooled by them say nothing
about other draws. Therefore scores use draws of their own, never the flags of an attack.

``transfer_table`` attacks every source by itself and evaluates its images on other networks (methods, sections 5.3 and
5.4). Images that a source gets wrong already stay as they are. Each evaluated network reads all images with one set of
drawn weights, then with the next: accuracies are those of single draws, not of an ensemble. Draw number i of a network
is the same for every source, so that differences between sources are paired.

Invariants: a deterministic source is right on its own images exactly where its attack has failed, and failures are
counted (T-24); one draw serves the whole data, however they are cut into batches (``tests/attacks/test_harness.py``).
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Using, check_num_samples, isolated, noise_key, seeded, stream
from dubio.attacks.attack import Attack, AttackResult
from dubio.attacks.target import AttackTarget, Model, check_classifier
from dubio.checks import check_count
from dubio.codec import RecordError, dump_json, parse_json, read_value, write_atomically
from dubio.functional.adversarial import AttackLoss, AttackObjective
from dubio.likelihoods import Categorical, likelihood_of
from dubio.version import versions

FORMAT = "dubio-transfer-1"
_TENSORS = ("accuracy", "clean", "distortion", "failures", "wrong_before", "adversarial")


@dataclass(frozen=True)
class Accuracy:
    """A share of examples, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True, eq=False)
class Score:
    """Accuracies of a network on given inputs."""

    predictive: Accuracy
    """R_pred(T): the mean over all draws is right; interval of Clopper and Pearson over examples."""
    single: Accuracy
    """R_1: one draw is right; interval over examples and draws."""
    retry: Accuracy
    """R_retry(m): ``num_tries`` draws are all right."""
    num_samples: int
    num_tries: int
    predictive_per_example: Bool[Tensor, " batch"]
    single_per_example: Float[Tensor, " batch"]
    retry_per_example: Float[Tensor, " batch"]

    def __str__(self) -> str:
        return (
            f"R_pred({self.num_samples}) {self.predictive}, R_1 {self.single}, R_retry({self.num_tries}) {self.retry}"
        )


def score(
    model: Model,
    inputs: Float[Tensor, "batch ..."],
    targets: Int[Tensor, " batch"],
    *,
    num_samples: int = 100,
    num_tries: int = 10,
    seed: int | None = None,
    batch_size: int = 256,
) -> Score:
    """Score inputs, adversarial or not, on fresh draws.

    Args:
        model: a network, or a function from inputs to logits.
        inputs: inputs to classify.
        targets: the true labels.
        num_samples: T, the number of draws.
        num_tries: m, the number of queries that must all be right.
        seed: makes the draws repeatable; they are not those of an attack with the same seed.
        batch_size: examples at a time.
    """
    check_num_samples(num_samples)
    if not 1 <= num_tries <= num_samples:
        raise ValueError(f"num_tries must be from 1 to num_samples = {num_samples}, got {num_tries}")
    _check(model, inputs, targets, batch_size)

    predicted, right = [], []
    with AttackTarget(model, num_samples).ready(_seed_for(seed, "score"), inputs, targets, batch_size) as target:
        for part, labels in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
            log_probs = target.log_probs(part)
            target.check_logits(log_probs, labels)
            predicted.append(functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1) == labels)
            hits = log_probs.argmax(dim=-1) == labels
            # The one draw of a network without noise, or the members of an ensemble, are repeated.
            right.append(hits.repeat(-(-num_samples // len(hits)), 1)[:num_samples])
    return _summary(torch.cat(predicted), torch.cat(right, dim=1), num_tries)


def strongest(
    model: Model,
    results: Sequence[AttackResult],
    targets: Int[Tensor, " batch"],
    *,
    num_samples: int = 20,
    objective: AttackObjective = "predictive",
    loss: AttackLoss = "margin",
    seed: int | None = None,
    batch_size: int = 256,
) -> tuple[Float[Tensor, "batch ..."], Int[Tensor, " batch"]]:
    """For each example the worst of several attacks, chosen on draws of its own: inputs, and the number of the attack.

    Score the inputs with ``score``, on other draws.
    """
    if not results:
        raise ValueError("results must hold at least one attack's result, got none")
    inputs = torch.stack([result.inputs for result in results])
    _check(model, inputs[0], targets, batch_size)

    target, values = AttackTarget(model, num_samples, objective, loss), []
    with target.ready(_seed_for(seed, "strongest"), inputs[0], targets, batch_size):
        for piece, labels in zip(inputs.split(batch_size, dim=1), targets.split(batch_size), strict=True):
            values.append(torch.stack([target.evaluate(candidate, labels)[0] for candidate in piece]))
    chosen = torch.cat(values, dim=1).argmax(dim=0)
    return inputs[chosen, torch.arange(len(chosen), device=chosen.device)], chosen


def _check(model: Model, inputs: Tensor, targets: Tensor, batch_size: int) -> None:
    check_classifier(model)
    check_count("batch_size", batch_size)
    if targets.shape != inputs.shape[:1] or len(inputs) == 0:
        raise ValueError(
            f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
        )


def _seed_for(seed: int | None, purpose: str) -> int | None:
    """Another seed for each purpose: an attack of the same seed must not use the same draws."""
    return None if seed is None else noise_key(f"{purpose}/{seed}")


def _summary(predicted: Bool[Tensor, " batch"], right: Bool[Tensor, "sample batch"], num_tries: int) -> Score:
    num_samples, count = right.shape
    single = right.double().mean(dim=0)
    retry = functional.statistics.retry_probability(right.sum(dim=0), num_samples, num_tries)
    num_right = int(predicted.sum())
    of_all = Accuracy(num_right / count, *functional.statistics.clopper_pearson(num_right, count))
    of_one = _two_way(single, functional.statistics.retry_influence(right, 1))
    of_tries = _two_way(retry, functional.statistics.retry_influence(right, num_tries))
    return Score(of_all, of_one, of_tries, num_samples, num_tries, predicted, single.float(), retry.float())


def _two_way(per_example: Float[Tensor, " batch"], per_draw: Float[Tensor, " sample"]) -> Accuracy:
    """A mean over examples, with the error of the choice of examples and of draws, which all examples may share."""
    mean, error = per_example.mean().item(), functional.statistics.two_way_standard_error(per_example, per_draw)
    return Accuracy(mean, *functional.statistics.normal_interval(mean, error))


@dataclass(frozen=True, eq=False)
class TransferTable:
    """Accuracies of single draws of some networks on images that were made on others."""

    sources: tuple[str, ...]
    evaluated: tuple[str, ...]
    accuracy: Float[Tensor, "source evaluated draw"]
    clean: Float[Tensor, "evaluated draw"]
    """Accuracies on the images as they were."""
    distortion: Float[Tensor, " source"]
    """E-27, over all images; those that a source gets wrong without an attack add nothing."""
    failures: Int[Tensor, " source"]
    """Images that a source still gets right after the attack."""
    wrong_before: Int[Tensor, " source"]
    """Images that a source gets wrong without an attack, which therefore stay as they are."""
    adversarial: Float[Tensor, "source example ..."]
    provenance: dict[str, Any]
    """Attack, seeds, hash of the data, versions and seconds."""

    @property
    def mean(self) -> Float[Tensor, "source evaluated"]:
        """Mean accuracy over draws."""
        return self.accuracy.mean(dim=-1)

    @property
    def std(self) -> Float[Tensor, "source evaluated"]:
        """Standard deviation over draws; not a number where there is only one."""
        if self.accuracy.shape[-1] == 1:
            return torch.full_like(self.accuracy[..., 0], torch.nan)
        return self.accuracy.std(dim=-1)

    def save(self, path: str | Path) -> None:
        """Write the table to one safetensors file with JSON metadata, whole or not at all."""
        tensors = {name: getattr(self, name).cpu().contiguous() for name in _TENSORS}
        digest = _hash(*tensors.values())
        metadata = _Metadata(FORMAT, self.sources, self.evaluated, self.provenance, digest)
        write_atomically(Path(path), to_bytes(tensors, {"dubio": dump_json(vars(metadata))}))

    @classmethod
    def load(cls, path: str | Path) -> "TransferTable":
        """Read a table that ``save`` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            with safe_open(path, framework="pt") as content:
                values = parse_json((content.metadata() or {}).get("dubio", "{}"), str(path))
                tensors = {name: content.get_tensor(name) for name in _TENSORS if name in content.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise RecordError(f"{path} is not a whole safetensors file: {error}") from error
        format = values.get("format") if isinstance(values, dict) else None
        if format != FORMAT:
            raise RecordError(f"{path} has format {format!r}, and a transfer table has {FORMAT!r}")
        metadata = read_value(_Metadata, values, str(path))
        if missing := [name for name in _TENSORS if name not in tensors]:
            raise RecordError(f"{path} is not a whole transfer table: it lacks {', '.join(missing)}")
        if metadata.sha256 != _hash(*tensors.values()):
            raise RecordError(f"{path} is damaged: its contents do not match their hash")
        return cls(metadata.sources, metadata.evaluated, **tensors, provenance=metadata.provenance)


@dataclass(frozen=True)
class _Metadata:
    """JSON beside the tensors of a table."""

    format: str
    sources: tuple[str, ...]
    evaluated: tuple[str, ...]
    provenance: dict[str, Any]
    sha256: str


def transfer_table(
    sources: Mapping[str, Model],
    attack: Attack,
    evaluated: Mapping[str, Model],
    inputs: Float[Tensor, "batch ..."],
    targets: Int[Tensor, " batch"],
    num_draws: int = 100,
    seed: int = 0,
    batch_size: int = 1000,
) -> TransferTable:
    """Attack every source, and evaluate every network on its images.

    Args:
        sources: networks to attack, by name.
        attack: the attack; its seed is set by ``seed``.
        evaluated: networks to evaluate, by name; a source may be among them.
        inputs: images as they are.
        targets: their labels.
        num_draws: number of draws of each evaluated network, one at a time.
        seed: seed of the attack and, independently, of the draws that evaluate its images.
        batch_size: images at a time in evaluation; does not change a result.
    """
    check_num_samples(num_draws)
    if not sources or not evaluated:
        raise ValueError(
            f"sources and evaluated must name at least one network each, got {len(sources)} and {len(evaluated)}"
        )
    if attack.targeted:
        raise ValueError("attack must leave the labels given, not reach them; set targeted=False")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    began = time.perf_counter()
    seeds = {use: 4 * seed + number for number, use in enumerate(("attack", "before", "after", "draws"))}
    attack = replace(attack, seed=seeds["attack"])
    made = []
    for model in sources.values():
        made.append(_make(model, attack, inputs, targets, seeds))

    def accuracies(images: Tensor) -> Tensor:
        draws = num_draws, seeds["draws"], batch_size
        return torch.stack([_single(model, images, targets, *draws) for model in evaluated.values()])

    adversarial = torch.stack([images for images, _, _ in made])
    return TransferTable(
        tuple(sources),
        tuple(evaluated),
        torch.stack([accuracies(images) for images in adversarial]),
        accuracies(inputs),
        torch.stack([functional.adversarial.distortion(images - inputs).cpu() for images in adversarial]),
        torch.tensor([failures for _, failures, _ in made]),
        torch.tensor([wrong for _, _, wrong in made]),
        adversarial,
        {
            "attack": repr(attack),
            "seeds": seeds,
            "num_draws": num_draws,
            "num_examples": len(inputs),
            "inputs_sha256": _hash(inputs, targets),
            "versions": versions(),
            "device": str(inputs.device),
            "seconds": time.perf_counter() - began,
        },
    )


def _make(
    model: Model, attack: Attack, inputs: Tensor, targets: Tensor, seeds: dict[str, int]
) -> tuple[Tensor, int, int]:
    """Images made on one source, how many of them it still gets right, and how many it got wrong before."""

    options = {"num_samples": attack.num_samples, "num_tries": 1}
    rows = score(model, inputs, targets, seed=seeds["before"], **options).predictive_per_example
    images = inputs.clone()
    if bool(rows.any()):
        images[rows] = attack(model, inputs[rows], targets[rows], progress=False).inputs
    left = score(model, images, targets, seed=seeds["after"], **options).predictive_per_example
    return images, int((left & rows).sum()), int((~rows).sum())


@torch.no_grad()
def _single(
    model: Model, inputs: Tensor, targets: Tensor, num_draws: int, seed: int, batch_size: int
) -> Float[Tensor, " draw"]:
    """Accuracy of each of many draws, one set of weights for all inputs (5.4)."""
    right = torch.zeros(num_draws, dtype=torch.long)
    if not isinstance(model, nn.Module):
        with seeded(seed, inputs.device, lend=True):  # a function may draw from any generator
            for draw in range(num_draws):
                right[draw] = (model(inputs).argmax(dim=-1) == targets).sum()
        return right / len(inputs)
    likelihood = likelihood_of(model)
    assert isinstance(likelihood, Categorical)
    parts, done = targets.split(batch_size), [0] * -(-len(inputs) // batch_size)
    with isolated(model, training=False, trainable=False), Using(estimator="weight"):
        for number, outputs in stream(model, inputs.split(batch_size), num_draws, seed=seed):
            hits = (likelihood.log_probs(outputs).argmax(dim=-1) == parts[number]).sum(dim=-1).cpu()
            right[done[number] : done[number] + len(hits)] += hits
            done[number] += len(hits)
    return right / len(inputs)


def _hash(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
