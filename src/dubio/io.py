"""``save`` and ``load``: a stochastic network in one safetensors file.

The metadata say how the network was made (method, likelihood, which layers), which architecture it has where dubio
built it, and hashes: one of everything, and one of the tensors alone. Hashes find damage, not forgery: whoever can
change the tensors can change the hash. No code runs on loading. The hashes also tell which network a file holds, before
its tensors are read: ``identity_of``.

Methods, priors, likelihoods and what was decided since as JSON, and back.

A value is written as its class's name and its fields. Only the classes listed here are ever made from a file.

Pruned tensors as a file holds them: the weights that are left, and one bit for every weight that there was.

One mask serves all tensors of a parameter: mean, scale, centre. Tensors that were not pruned stay as they are.

Invariant: what was packed comes back bit for bit, zero where weights were removed (``tests/io``).

Tensors as a file can hold them: each once, on the CPU, sharing no memory.

A lock on a run folder, so that two processes never write the same run.

The lock is an ``flock`` on the file ``.lock`` in the folder. The operating system releases it when its process ends,
however it ends, so a stale lock file blocks nothing. The file holds the number of the process and its host, for the
message that another process gets. It is removed when the lock is released.

Where the system has no ``flock`` (Windows), nothing is locked; a file system without locks gives a warning.

Invariants: ``tests/io/test_lock.py``.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import calibrators, flows
from dubio._engine import available_memory, is_out_of_memory, memory_in_words, tensor_bytes
from dubio.calibrators import Calibration, PredictionSets, Threshold
from dubio.codec import (
    RecordError,
    check_regular,
    current_names,
    dump_json,
    fits,
    parse_json,
    read_value,
    write_atomically,
)
from dubio.convert import change_spec, consists_of, is_norm, random_names, spec
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.methods import METHODS
from dubio.models import architecture_of, build
from dubio.nn import Removed, masked_tensors, rebuild
from dubio.priors import CentredNormal, Normal, ScaleMixture

FORMAT = "dubio-1"


LATER: dict[str, Any] = {
    "calibration": Calibration | None,
    "threshold": Threshold | None,
    "sets": PredictionSets | None,
    "pruning": Removed | None,
    "evaluated": tuple[str, ...],
}
"""Fields of the record that come after conversion, with their types."""


COUNTED = ("members", "num_planar", "num_mixing")
"""Fields of methods and of their parts that say how many modules there are, each with tensors of its own."""


FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


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
    return to_bytes(tensors, {"dubio": dump_json(described)})


def identity_of(path: str | Path) -> Identity | None:
    """Which network a file holds, from what stands at its beginning; None where it is no file of a network."""
    try:
        check_regular(Path(path))
        with safe_open(path, framework="pt") as content:
            described = parse_json((content.metadata() or {})["dubio"], str(path))
        hashes = {"network": described["sha256"], "tensors": described.get("sha256_of_tensors")}
        return read_value(Identity, hashes)
    except (OSError, SafetensorError, KeyError, TypeError, AttributeError, ValueError):
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
    if net is None and described.architecture is None:
        raise ValueError(f"{path} holds a network that dubio did not build; pass one of its kind: load(path, net=...)")
    try:
        parts = _Parts.of(described)
        _check_counts(described, parts, len(tensors))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise RecordError(f"{path} describes its network in a way that this version cannot read: {error}") from error
    if net is None:
        _check_before_building(path, described, parts, tensors)
    try:
        model = parts.model(build(str(described.architecture)) if net is None else net)
        tensors = with_ties(_complete(model, described, tensors), described.tied)
        _check_fit(model, tensors)
    except MemoryError as error:
        raise RecordError(f"{path} does not fit into memory: {error}") from error
    except (ValueError, TypeError, RuntimeError) as error:
        what = "into memory" if is_out_of_memory(error) else "this network"
        raise RecordError(f"{path} does not fit {what}: {error}") from error
    model.load_state_dict(tensors, assign=True)
    return model.eval()


@dataclasses.dataclass(frozen=True)
class _Described:
    """What the metadata of a file say of its network, with values as JSON."""

    format: str
    method: dict[str, Any]
    likelihood: dict[str, Any]
    architecture: str | None
    tied: dict[str, str]
    sha256: str
    later: dict[str, Any] = dataclasses.field(default_factory=dict)
    sha256_of_tensors: str | None = None


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What a network is made of, beside an ordinary one and tensors."""

    method: Any
    likelihood: Any
    later: dict[str, Any]

    @classmethod
    def of(cls, described: _Described) -> "_Parts":
        """From the metadata of a file."""
        parts = cls(
            from_json(described.method),
            from_json(described.likelihood),
            {name: from_json(value) for name, value in described.later.items()},
        )
        if unknown := sorted(set(parts.later) - set(LATER)):
            raise ValueError(f"unknown fields {unknown}; was the file written by a newer version?")
        if not isinstance(parts.method, tuple(METHODS.values())):
            raise ValueError(f"method must be one of dubio's, got {parts.method!r}")
        if not isinstance(parts.likelihood, Likelihood):
            raise ValueError(f"likelihood must be one of dubio's, got {parts.likelihood!r}")
        for name, value in parts.later.items():
            if not fits(LATER[name], value):
                raise ValueError(f"{name} has a value of the wrong kind, {value!r}")
        return parts

    def model(self, net: nn.Module) -> nn.Module:
        """The network that ``net`` becomes, with tensors of its own yet."""
        model: nn.Module = self.method.convert(net, self.likelihood, strict=False)
        change_spec(model, **self.later)
        return model


def _check_counts(described: _Described, parts: _Parts, num_tensors: int) -> None:
    """Refuse more layers, members or steps than tensors: each has one at least, and making them takes time."""
    counts = {"layers": (described.architecture or "").count("-")}
    values = [parts.method, getattr(parts.method, "blocks", None)]
    for value in [*values, *(values[1] if isinstance(values[1], tuple) else ())]:
        counts |= {name: getattr(value, name) for name in COUNTED if hasattr(value, name)}
    for name, count in counts.items():
        if count > num_tensors:
            raise ValueError(f"it has {count} {name.removeprefix('num_')}, but only {num_tensors} tensors")


def _check_before_building(path: Path, described: _Described, parts: _Parts, tensors: dict[str, Tensor]) -> None:
    """Compare the sizes of a network with a file's tensors before any memory is taken for it."""
    try:
        with torch.device("meta"):
            model = parts.model(build(str(described.architecture)))
    except (ValueError, TypeError, OverflowError) as error:
        raise RecordError(f"{path} describes its network in a way that this version cannot read: {error}") from error
    except ImportError:
        raise
    except Exception:  # a network of torchvision or timm that cannot be made without values
        return
    needed, there = tensor_bytes(model.state_dict()), available_memory()
    try:
        complete = _complete(model, described, tensors)
        _check_fit(model, with_ties(complete, described.tied))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise RecordError(f"{path} does not fit this network: {error}") from error
    if there is not None and needed > there:
        amounts = f"{memory_in_words(needed)} of memory to build, and {memory_in_words(there)} are there"
        raise RecordError(f"{path} holds a network that takes {amounts}")


def _complete(model: nn.Module, described: _Described, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors with what pruning removed filled in; ``model`` is cut down as pruning left it."""
    if isinstance(removed := spec(model).pruning, Removed):
        rebuild(model, removed)
    tensors = unpacked(model, tensors)
    tied = described.tied if _is_meta(model) else without_ties(model.state_dict())[1]
    if tied != described.tied:
        differing = sorted(set(tied.items()) ^ set(described.tied.items()))[0]
        names = f"{differing[0]} is tied to {differing[1]}"
        raise ValueError(f"{names} in one of them and not in the other")
    if lacking := [name for name in tied.values() if name not in tensors]:
        raise ValueError(f"it lacks {lacking[:3]}")
    return tensors


def _is_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in model.state_dict().values())


def _read(path: Path) -> tuple[_Described, dict[str, Tensor]]:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as content:
            metadata = content.metadata() or {}
            # Copies, since in a file tensors begin anywhere, and sums over them may then differ in the last digit.
            tensors = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RecordError(f"{path} is not a whole safetensors file: {error}") from error
    if "dubio" not in metadata:
        raise RecordError(f"{path} is a safetensors file, but holds no network that dubio saved")
    data = parse_json(metadata["dubio"], str(path))
    format = data.get("format") if isinstance(data, dict) else None
    if format != FORMAT:
        raise RecordError(f"{path} has format {format!r}, and this version reads {FORMAT!r}")
    whole, alone = _hashes(data, tensors)
    if data.get("sha256") != whole or data.get("sha256_of_tensors", alone) != alone:
        raise RecordError(f"{path} is damaged: its contents do not match their hash")
    try:
        return read_value(_Described, data, "its description"), tensors
    except RecordError as error:
        raise RecordError(f"{path} describes its network in a way that this version cannot read: {error}") from error


def _check_fit(model: nn.Module, stored: dict[str, Tensor]) -> None:
    """Refuse tensors that are not those of a network: by name, shape, type, and values that are no numbers."""
    wanted, parameters = model.state_dict(), dict(model.named_parameters(remove_duplicate=False))
    missing, unknown = sorted(set(wanted) - set(stored)), sorted(set(stored) - set(wanted))
    if missing or unknown:
        parts = [f"it lacks {missing[:3]}"] if missing else []
        parts += [f"it has {unknown[:3]}, which the network has not"] if unknown else []
        raise ValueError(" and ".join(parts))
    norms = tuple(f"{name}." for name, module in model.named_modules() if is_norm(module))
    types: dict[torch.dtype, tuple[str, torch.dtype]] = {}
    for name, tensor in wanted.items():
        own = stored[name]
        if tensor.shape != own.shape:
            raise ValueError(
                f"{name} has shape {tuple(own.shape)} in the file and {tuple(tensor.shape)} in the network"
            )
        if tensor.dtype != own.dtype and not {tensor.dtype, own.dtype} <= FLOATS:
            raise ValueError(f"{name} has type {own.dtype} in the file and {tensor.dtype} in the network")
        if own.is_floating_point() and not name.startswith(norms):  # those may be kept in more digits
            first, usual = types.setdefault(tensor.dtype, (name, own.dtype))
            if usual != own.dtype:
                raise ValueError(f"{name} has type {own.dtype} in the file, and {first} has {usual}")
        if own.is_floating_point() and bool((own.isnan() if name not in parameters else ~own.isfinite()).any()):
            raise ValueError(f"{name} must hold finite numbers, got NaN or infinity; was training interrupted?")


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


LIKELIHOODS = (Bernoulli, Categorical, Gaussian)


PRIORS = (CentredNormal, Normal, ScaleMixture)


SINCE = (*calibrators.VALUES, Removed)
"""What comes after conversion."""


VALUES = {kind.__name__: kind for kind in (*METHODS.values(), *LIKELIHOODS, *PRIORS, *flows.VALUES, *SINCE)}


BEFORE: dict[str, dict[str, Any]] = {"Bayes": {"beta": 1.0}}
"""What stood for fields that files of earlier versions do not have, where the default is another now."""


def to_json(value: Any) -> Any:
    """A value as JSON."""
    if dataclasses.is_dataclass(value) and type(value).__name__ in VALUES:
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"value": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot write {value!r} to a file")


def from_json(data: Any) -> Any:
    """The value that JSON stands for."""
    if isinstance(data, list):
        return tuple(from_json(part) for part in data)
    if not isinstance(data, dict):
        return data
    name = data.get("value")
    kind = VALUES.get(current_names(name)) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"unknown value {name!r}; was the file written by a newer version?")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = set(data) - known - {"value"}
    if unknown:
        raise RecordError(f"unknown fields {sorted(unknown)} of {name}; was the file written by a newer version?")
    hints = get_type_hints(kind)
    values = {field: from_json(part) for field, part in data.items() if field != "value"}
    for field, value in values.items():
        if not fits(hints[field], value):
            raise RecordError(f"{field} of {name} has a value of the wrong kind, {value!r}")
    return kind(**BEFORE.get(kind.__name__, {}) | values)


def packed(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network, those that have a mask without what was removed."""
    small = dict(tensors)
    for _, mask, names in masked_tensors(model):
        removed = tensors[mask].numpy()
        small[mask] = torch.from_numpy(np.packbits(removed))
        small |= {name: tensors[name][~tensors[mask]] for name in names}
    return small


def unpacked(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors in the shapes that the network wants; refuses masks that do not fit it or what is left."""
    wanted = model.state_dict()
    whole = dict(tensors)
    for parameter, mask, names in masked_tensors(model):
        removed = _unpacked_mask(parameter, tensors.get(mask), wanted[mask].shape)
        whole[mask] = removed
        for name in names:
            whole[name] = _filled(name, tensors.get(name), removed)
    return whole


def _unpacked_mask(parameter: str, bits: Tensor | None, shape: torch.Size) -> Tensor:
    count = shape.numel()
    if bits is None or bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-count // 8),):
        found = "none" if bits is None else f"{bits.dtype} of shape {tuple(bits.shape)}"
        raise ValueError(f"the mask of {parameter} must have one bit for each of {count} weights, got {found}")
    flat = np.unpackbits(bits.numpy())
    if flat[count:].any():
        raise ValueError(f"the mask of {parameter} must have one bit for each of {count} weights, got more")
    return torch.from_numpy(flat[:count].astype(bool)).reshape(shape)


def _filled(name: str, left: Tensor | None, removed: Tensor) -> Tensor:
    count = removed.numel() - int(removed.sum())
    if left is None or tuple(left.shape) != (count,):
        found = "none" if left is None else f"shape {tuple(left.shape)}"
        raise ValueError(f"{name} must hold the {count} weights that its mask leaves, got {found}")
    whole = torch.zeros(removed.shape, dtype=left.dtype)
    whole[~removed] = left
    return whole


def without_ties(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and for tied names the one it is kept under."""
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            tied[name] = first[key]
            continue
        first[key] = name
        alone = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        own = tensor.detach().cpu().contiguous()
        kept[name] = own if alone else own.clone()  # a view of another tensor, or of a part of one
    return kept, tied


def with_ties(tensors: dict[str, Tensor], tied: dict[str, str]) -> dict[str, Tensor]:
    """All names again."""
    return tensors | {name: tensors[original] for name, original in tied.items()}


try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass
class _Held:
    """A lock that a thread of this process holds."""

    descriptor: int
    thread: int
    depth: int = 1
    """How many blocks of the thread are inside it."""


_HELD: dict[Path, _Held] = {}


_GUARD = threading.Lock()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; refuse a folder that another process or thread holds.

    A thread that holds the lock may take it again. The folder is created where it is missing, and removed again if it
    is still empty at the end.
    """
    if fcntl is None:  # pragma: no cover - Windows
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    key = Path(os.path.realpath(folder))
    with _GUARD:
        held = _HELD.get(key)
        if held is not None and held.thread != threading.get_ident():
            raise BlockingIOError(f"{folder} is in use by another thread of this process; wait until it has finished")
        is_new = held is None and not folder.exists()
        if held is None:
            folder.mkdir(parents=True, exist_ok=True)
            _HELD[key] = _Held(_acquire(folder), threading.get_ident())
        else:
            held.depth += 1
    try:
        yield
    finally:
        with _GUARD:
            _leave(key)
        if is_new:
            with contextlib.suppress(OSError):  # it holds a run now
                folder.rmdir()


def _acquire(folder: Path) -> int:
    """The descriptor of the locked file."""
    file = folder / LOCK
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, file):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
                return descriptor
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise BlockingIOError(f"{folder} is in use by {holder}; wait until it has finished, or stop it") from None
        except OSError as error:
            if error.errno in NO_LOCKS:
                warnings.warn(f"{folder} is not locked, {error}: do not train this run twice at once", stacklevel=4)
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)  # the process that held it has removed the file meanwhile: lock the new one


def _leave(key: Path) -> None:
    held = _HELD.get(key)
    if held is None:  # a forked child, which has forgotten its parent's locks
        return
    held.depth -= 1
    if held.depth:
        return
    del _HELD[key]
    if _is_at(held.descriptor, key / LOCK):  # removed first: once it is unlocked, it may be another's
        with contextlib.suppress(OSError):
            (key / LOCK).unlink()
    os.close(held.descriptor)


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether an open file is the one that stands under its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Who holds the lock, as the file says."""
    number, _, host = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    if not number.isdigit():
        return "another process"
    return f"process {number}" + (f" on {host}" if host and host != socket.gethostname() else "")


def _forget_locks() -> None:
    """Close a parent's locks in a forked child, such as the worker of a loader, which may outlive the parent."""
    global _GUARD
    _GUARD = threading.Lock()  # another thread may have held it
    for held in _HELD.values():
        os.close(held.descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
