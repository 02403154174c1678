"""What is left of a network's accuracy, seen by draws that had no part in the attack.

Three accuracies: of the mean over T draws (``predictive``), of one draw (``single``), and of being right on all of m
queries (``retry``). An image that a few draws have selected, because they were fooled by it, says nothing about other
draws: so scores come from draws of their own, never from the flags of an attack.

Transfer tables: images made on some networks, tried on others, one draw at a time (methods, sections 5.3 and 5.4).

Every source is attacked on its own; images that it takes for something else already stay as they are. Each evaluated
network then reads all images with one set of drawn weights, and again with the next: accuracies are those of single
draws, not of an ensemble. Draw number i of a network is the same for every source, so that differences between sources
are paired.

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
from dubio._engine import Using, check_num_samples, noise_key, seeded, seeded_run, stream
from dubio.attacks.attack import Attack, AttackResult, check_count
from dubio.attacks.target import AttackTarget, Model, check_classifier, untouched
from dubio.codec import RecordError, dump_json, parse_json, read_value, write_atomically
from dubio.functional.adversarial import AttackLoss, AttackObjective
from dubio.likelihoods import Categorical, likelihood_of
from dubio.version import versions


@dataclass(frozen=True)
class Accuracy:
    """A share of examples, with an interval at 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True, eq=False)
class Score:
    """How a network does on given inputs."""

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


@torch.no_grad()
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
        inputs: what to classify.
        targets: the true labels.
        num_samples: T, how many draws.
        num_tries: m, how many queries must all be right.
        seed: makes the draws repeatable; they are not those of an attack with the same seed.
        batch_size: examples at a time.
    """
    check_classifier(model)
    check_num_samples(num_samples)
    check_count("batch_size", batch_size)
    if not 1 <= num_tries <= num_samples:
        raise ValueError(f"num_tries must be from 1 to num_samples = {num_samples}, got {num_tries}")
    if targets.shape != inputs.shape[:1] or len(inputs) == 0:
        raise ValueError(
            f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
        )

    def look() -> tuple[Tensor, Tensor]:
        target = AttackTarget(model, num_samples, "predictive", "cross_entropy", "fresh", 0)
        predicted, right = [], []
        target.check(inputs, targets, batch_size)
        for first in range(0, len(inputs), batch_size):
            part = slice(first, first + batch_size)
            log_probs = target.log_probs(inputs[part])
            target.check_logits(log_probs, targets[part])
            predicted.append(functional.uncertainty.predictive_log_probs(log_probs).argmax(dim=-1) == targets[part])
            hits = log_probs.argmax(dim=-1) == targets[part]
            # One draw of a network without noise, or the members of an ensemble, stand for as many as were asked for.
            right.append(hits.repeat(-(-num_samples // len(hits)), 1)[:num_samples])
        return torch.cat(predicted), torch.cat(right, dim=1)

    with untouched(model):
        return _summary(*seeded_run(_own_seed(seed, "score"), inputs.device, look), num_tries)


@torch.no_grad()
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
    """For each example the worst of several attacks, chosen by draws of their own: inputs, and which attack's.

    Score what comes back with ``score``, on other draws.
    """
    if not results:
        raise ValueError("results must hold at least one attack's result, got none")
    check_classifier(model)
    check_count("batch_size", batch_size)
    inputs = torch.stack([result.inputs for result in results])
    if targets.shape != inputs.shape[1:2]:
        raise ValueError(
            f"targets must be one label per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape[1:])}"
        )

    def look() -> Tensor:
        target = AttackTarget(model, num_samples, objective, loss, "fresh", 0)
        target.check(inputs[0], targets, batch_size)
        pieces = zip(inputs.split(batch_size, dim=1), targets.split(batch_size), strict=True)
        values = [torch.stack([target.values(one, labels) for one in piece]) for piece, labels in pieces]
        return torch.cat(values, dim=1)

    with untouched(model):
        chosen = seeded_run(_own_seed(seed, "strongest"), targets.device, look).argmax(dim=0)
    return inputs[chosen, torch.arange(len(chosen), device=chosen.device)], chosen


def _own_seed(seed: int | None, purpose: str) -> int | None:
    """Another seed for each purpose: an attack of the same seed must not have seen the draws."""
    return None if seed is None else noise_key(f"{purpose}/{seed}")


def _summary(predicted: Bool[Tensor, " batch"], right: Bool[Tensor, "sample batch"], num_tries: int) -> Score:
    num_samples, count = right.shape
    single = right.double().mean(dim=0)
    retry = functional.statistics.retry_probability(right.sum(dim=0), num_samples, num_tries)
    held = int(predicted.sum())
    return Score(
        Accuracy(held / count, *functional.statistics.clopper_pearson(held, count)),
        _two_way(single, functional.statistics.retry_influence(right, 1)),
        _two_way(retry, functional.statistics.retry_influence(right, num_tries)),
        num_samples,
        num_tries,
        predicted,
        single.float(),
        retry.float(),
    )


def _two_way(per_example: Float[Tensor, " batch"], per_draw: Float[Tensor, " sample"]) -> Accuracy:
    """A mean over examples whose error comes from the choice of examples and of draws, which all examples may share."""
    mean = per_example.mean().item()
    return Accuracy(
        mean,
        *functional.statistics.normal_interval(
            mean, functional.statistics.two_way_standard_error(per_example, per_draw)
        ),
    )


FORMAT = "dubio-transfer-1"


@dataclass(frozen=True, eq=False)
class TransferTable:
    """Accuracies of single draws of some networks on images that were made on others."""

    sources: tuple[str, ...]
    evaluated: tuple[str, ...]
    accuracy: Float[Tensor, "source evaluated draw"]
    clean: Float[Tensor, "evaluated draw"]
    """Accuracies on the images as they were."""
    distortion: Float[Tensor, " source"]
    """E-27, over all images; those that a source had wrong already add nothing."""
    failures: Int[Tensor, " source"]
    """Images that a source still has right after the attack."""
    wrong_before: Int[Tensor, " source"]
    """Images that a source had wrong before, which therefore stay as they are."""
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
        path = Path(path)
        tensors = {name: getattr(self, name).cpu().contiguous() for name in _TENSORS}
        said = {"format": FORMAT, "sources": self.sources, "evaluated": self.evaluated, "provenance": self.provenance}
        said["sha256"] = _hash(*tensors.values())
        write_atomically(path, to_bytes(tensors, {"dubio": dump_json(said)}))

    @classmethod
    def load(cls, path: str | Path) -> "TransferTable":
        """Read a table that ``save`` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            with safe_open(path, framework="pt") as content:
                said = parse_json((content.metadata() or {}).get("dubio", "{}"), str(path))
                found = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise RecordError(f"{path} is not a whole safetensors file: {error}") from error
        format = said.get("format") if isinstance(said, dict) else None
        if format != FORMAT:
            raise RecordError(f"{path} has format {format!r}, and a transfer table has {FORMAT!r}")
        said = read_value(_Said, said, str(path))
        if lacking := [name for name in _TENSORS if name not in found]:
            raise RecordError(f"{path} is no whole transfer table: it lacks {', '.join(lacking)}")
        tensors = {name: found[name] for name in _TENSORS}
        if said.sha256 != _hash(*tensors.values()):
            raise RecordError(f"{path} is damaged: its contents do not match their hash")
        return cls(said.sources, said.evaluated, **tensors, provenance=said.provenance)


@dataclass(frozen=True)
class _Said:
    """What the file of a table says beside its tensors."""

    format: str
    sources: tuple[str, ...]
    evaluated: tuple[str, ...]
    provenance: dict[str, Any]
    sha256: str


_TENSORS = ("accuracy", "clean", "distortion", "failures", "wrong_before", "adversarial")


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
    """Attack every source, and try its images on every evaluated network.

    Args:
        sources: networks to attack, by name.
        attack: how; its seed is set by ``seed``.
        evaluated: networks to try, by name; a source may be among them.
        inputs: images as they are.
        targets: their labels.
        num_draws: how many draws of each evaluated network, one at a time.
        seed: of the attack and, apart from it, of the draws that look at its images.
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
    made = [_make(model, attack, inputs, targets, seeds) for model in sources.values()]

    def accuracies(images: Tensor) -> Tensor:
        found = [_single(model, images, targets, num_draws, seeds["draws"], batch_size) for model in evaluated.values()]
        return torch.stack(found)

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
    """Images made on one source, how many of them it still has right, and how many it had wrong before."""

    def right(images: Tensor, seed: int) -> Tensor:
        looked = score(model, images, targets, num_samples=attack.num_samples, num_tries=1, seed=seed)
        return looked.predictive_per_example

    known = right(inputs, seeds["before"])
    images = inputs.clone()
    if bool(known.any()):
        images[known] = attack(model, inputs[known], targets[known]).inputs
    return images, int((right(images, seeds["after"]) & known).sum()), int((~known).sum())


@torch.no_grad()
def _single(
    model: Model, inputs: Tensor, targets: Tensor, num_draws: int, seed: int, batch_size: int
) -> Float[Tensor, " draw"]:
    """Accuracy of each of many draws, one set of weights for all inputs (5.4)."""
    right = torch.zeros(num_draws, dtype=torch.long)
    if not isinstance(model, nn.Module):
        with seeded(seed, inputs.device, lend=True):  # nobody knows where a function draws from
            for draw in range(num_draws):
                right[draw] = (model(inputs).argmax(dim=-1) == targets).sum()
        return right / len(inputs)
    likelihood = likelihood_of(model)
    assert isinstance(likelihood, Categorical)
    parts, done = targets.split(batch_size), [0] * -(-len(inputs) // batch_size)
    with untouched(model), Using(estimator="weight"):
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
