"""Transfer tables: images made on some networks, tried on others, one draw at a time (methods, sections 5.3 and 5.4).

Every source is attacked on its own; images that it takes for something else already stay as they are. Each evaluated
network then reads all images with one set of drawn weights, and again with the next: accuracies are those of single
draws, not of an ensemble. Draw number i of a network is the same for every source, so that differences between sources
are paired.

Invariants: a deterministic source is right on its own images exactly where its attack has failed, and failures are
counted (T-24); one draw serves the whole data, however they are cut into batches (``tests/attacks/test_harness.py``).
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Using, check_num_samples, seeded, stream
from dubio.attacks.attack import Attack
from dubio.attacks.scoring import score
from dubio.attacks.victims import Model, untouched
from dubio.codec import RecordError, dump_json, parse_json, read_value, write_atomically
from dubio.likelihoods import Categorical, likelihood_of
from dubio.version import versions

__all__ = ["TransferTable", "transfer_table"]

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
