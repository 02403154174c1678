"""``save`` and ``load``: a stochastic network in one safetensors file.

The metadata say how the network was made (method, likelihood, which layers), which architecture it has where dubio
built it, and hashes: one of everything, and one of the tensors alone. Hashes find damage, not forgery: whoever can
change the tensors can change the hash. No code runs on loading. The hashes also tell which network a file holds, before
its tensors are read: ``identity_of``.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio.conversion import Removed, change_spec, rebuild, spec
from dubio.conversion.choice import consists_of
from dubio.conversion.copying import random_names
from dubio.models import architecture_of, build
from dubio.persistence.atomic import write_atomically
from dubio.persistence.packing import packed, unpacked
from dubio.persistence.tensors import with_ties, without_ties
from dubio.persistence.values import from_json, to_json

__all__ = ["Identity", "file_content", "identity_of", "load", "save"]

FORMAT = "dubio-1"
LATER = ("calibration", "threshold", "sets", "pruning", "evaluated")
"""Fields of the record that come after conversion."""
HASHES = ("sha256", "sha256_of_tensors")


@dataclasses.dataclass(frozen=True)
class Identity:
    """Which network a file holds."""

    network: str
    """Changes with anything that is said of the network, so with what ``calibrate`` decides, too."""
    tensors: str | None
    """Changes with the tensors alone; None in files that older versions wrote."""


def save(model: nn.Module, path: str | Path) -> None:
    """Write a converted network to a file, whole or not at all; of weights that were removed, one bit each."""
    write_atomically(Path(path), file_content(model))


def file_content(model: nn.Module) -> bytes:
    """What ``save`` writes."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    record = spec(model)
    where = getattr(record.method, "where", None)
    tensors, tied = without_ties(model.state_dict())
    tensors = packed(model, tensors)
    described: dict[str, Any] = {
        "format": FORMAT,
        "method": to_json(
            record.method if consists_of(where, str) else dataclasses.replace(record.method, where=random_names(model))
        ),
        "likelihood": to_json(record.likelihood),
        "architecture": architecture_of(model),
        "tied": tied,
        "later": {name: to_json(getattr(record, name)) for name in LATER if getattr(record, name)},
    }
    described |= dict(zip(HASHES, _hashes(described, tensors), strict=True))
    return to_bytes(tensors, {"dubio": json.dumps(described)})


def identity_of(path: str | Path) -> Identity | None:
    """Which network a file holds, from what stands at its beginning; None where it is no file of a network."""
    try:
        with safe_open(path, framework="pt") as content:
            described = json.loads((content.metadata() or {})["dubio"])
        return Identity(described["sha256"], described.get("sha256_of_tensors"))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def load(path: str | Path, net: nn.Module | None = None) -> nn.Module:
    """Read a network from a file, in eval mode.

    Args:
        path: a file that ``save`` wrote.
        net: a network of the architecture that was converted; not needed where dubio built it (``dubio.models``). Its
            weights do not matter, and it is not changed.
    """
    path = Path(path)
    described, tensors = _read(path)
    if net is None:
        if described["architecture"] is None:
            raise ValueError(
                f"{path} holds a network that dubio did not build; pass one of its kind: load(path, net=...)"
            )
        net = build(described["architecture"])
    try:
        method, likelihood = from_json(described["method"]), from_json(described["likelihood"])
        later = {name: from_json(value) for name, value in described.get("later", {}).items()}
        if unknown := sorted(set(later) - set(LATER)):
            raise ValueError(f"unknown fields {unknown}; was the file written by a newer version?")
        make = method.convert
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} describes its network in a way that this version cannot read: {error}") from error
    model: nn.Module = make(net, likelihood, strict=False)
    change_spec(model, **later)
    try:
        if isinstance(removed := later.get("pruning"), Removed):
            rebuild(model, removed)
        tensors = unpacked(model, tensors)
    except ValueError as error:
        raise ValueError(f"{path} does not fit this network: {error}") from error
    tied = without_ties(model.state_dict())[1]
    if tied != described["tied"]:
        differing = sorted(set(tied.items()) ^ set(described["tied"].items()))[0]
        names = f"{differing[0]} is tied to {differing[1]}"
        raise ValueError(f"{path} does not fit this network: {names} in one of them and not in the other")
    tensors = with_ties(tensors, tied)
    _check_fit(path, model.state_dict(), tensors)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as content:
            metadata = content.metadata() or {}
            # Copies, since in a file tensors begin anywhere, and sums over them may then differ in the last digit.
            tensors = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
    try:
        described = json.loads(metadata["dubio"])
    except (KeyError, json.JSONDecodeError):
        raise ValueError(f"{path} is a safetensors file, but holds no network that dubio saved") from None
    if described.get("format") != FORMAT:
        raise ValueError(f"{path} has format {described.get('format')!r}, and this version reads {FORMAT!r}")
    whole, alone = _hashes(described, tensors)
    if described.get("sha256") != whole or described.get("sha256_of_tensors", alone) != alone:
        raise ValueError(f"{path} is damaged: its contents do not match their hash")
    return described, tensors


def _check_fit(path: Path, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    missing, unknown = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or unknown:
        parts = [f"it lacks {missing[:3]}"] if missing else []
        parts += [f"it has {unknown[:3]}, which the network has not"] if unknown else []
        raise ValueError(f"{path} does not fit this network: {' and '.join(parts)}")
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise ValueError(
                f"{path} does not fit this network: {name} has shape {tuple(found[name].shape)} in the file and "
                f"{tuple(tensor.shape)} in the network"
            )


def _hashes(described: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[str, str]:
    """A hash of the tensors and of what is said about them, and one of the tensors alone."""
    said = {name: value for name, value in described.items() if name not in HASHES}
    whole, alone = hashlib.sha256(json.dumps(said, sort_keys=True).encode()), hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        content = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + to_bytes({"tensor": tensor})
        whole.update(content)
        alone.update(content)
    return whole.hexdigest(), alone.hexdigest()
