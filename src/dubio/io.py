"""``save`` and ``load``: a stochastic network in one safetensors file; and the lock of a run folder.

The metadata hold, as JSON, the method, the likelihood, what was decided since (calibration, threshold, sets, pruning),
the architecture where dubio built the network, and two hashes: one of everything, and one of the tensors alone. The
hashes detect damage, not forgery: a change of the tensors can come with a new hash. ``identity_of`` reads them before
any tensor. No code runs on loading: a value is its class's name and its fields, of the classes in ``VALUES`` alone.

Tensors are stored once each, on the CPU, sharing no memory; names of tied tensors are in the metadata. Of a pruned
parameter the file holds the weights that are left, and one bit for every weight as a mask; one mask serves all tensors
of a parameter (mean, scale, centre). What was packed comes back bit for bit, zero where weights were removed.

``locked`` keeps two processes from writing the same run. The lock is an ``flock`` on the file ``.lock`` in the folder,
which the operating system releases when its process ends, so a stale file blocks nothing. The file holds the process
number and the host, for the message that another process gets. Where the system has no ``flock`` (Windows), nothing is
locked; a file system without locks gives a warning.

Invariants: ``tests/io``.
"""

import contextlib
import errno
import hashlib
import json
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import calibrators, codec, flows
from dubio._engine import available_memory, is_out_of_memory, memory_in_words, tensor_bytes
from dubio.calibrators import Decisions
from dubio.codec import RecordError, read_value
from dubio.convert import change_spec, consists_of, is_norm, random_names, spec
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.methods import METHODS
from dubio.models import architecture_of, build
from dubio.nn import Removed, masked_tensors, rebuild
from dubio.priors import CentredNormal, Normal, ScaleMixture

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = "dubio-1"
LATER: dict[str, Any] = get_type_hints(Decisions) | {"pruning": Removed | None, "evaluated": tuple[str, ...]}
"""Fields of the record that are set after conversion, with their types."""
PLAIN = (Bernoulli, Categorical, Gaussian, CentredNormal, Normal, ScaleMixture, Removed)
VALUES = {kind.__name__: kind for kind in (*METHODS.values(), *PLAIN, *flows.VALUES, *calibrators.VALUES)}
FORMER_DEFAULTS: dict[str, dict[str, Any]] = {"Bayes": {"beta": 1.0}}
"""Values of fields that files of earlier versions lack, where the default was another."""
COUNTED = ("members", "num_planar", "num_mixing")
"""Fields of methods and of their parts that count modules, each with its own tensors."""
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
HASHES = ("sha256", "sha256_of_tensors")
LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Identity:
    """Which network a file holds."""

    network: str
    """The hash of everything: it changes with the tensors, and with a calibration, too."""
    tensors: str | None
    """The hash of the tensors alone; None in files of older versions."""


def save(model: nn.Module, path: str | Path) -> None:
    """Write a converted network to a file, whole or not at all.

    Args:
        model: the network; of weights that were removed, the file holds one bit each.
        path: the file.
    """
    codec.write_atomically(Path(path), file_content(model))


def file_content(model: nn.Module) -> bytes:
    """What ``save`` writes."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    record = spec(model)
    method = record.method
    if not consists_of(getattr(method, "where", None), str):
        method = replace(method, where=random_names(model))
    tensors, tied = without_ties(model.state_dict())
    tensors = packed(model, tensors)
    described: dict[str, Any] = {
        "format": FORMAT,
        "method": to_json(method),
        "likelihood": to_json(record.likelihood),
        "architecture": architecture_of(model),
        "tied": tied,
        "later": {name: to_json(getattr(record, name)) for name in LATER if getattr(record, name)},
    }
    described |= dict(zip(HASHES, _hashes(described, tensors), strict=True))
    return to_bytes(tensors, {"dubio": codec.dump_json(described)})


def identity_of(path: str | Path) -> Identity | None:
    """Which network a file holds, from its metadata; None for a file that holds none."""
    try:
        codec.check_regular(Path(path))
        with safe_open(path, framework="pt") as content:
            described = codec.parse_json((content.metadata() or {})["dubio"], str(path))
        return read_value(Identity, {"network": described["sha256"], "tensors": described.get("sha256_of_tensors")})
    except (OSError, SafetensorError, KeyError, TypeError, AttributeError, ValueError):
        return None


def load(path: str | Path, net: nn.Module | None = None) -> nn.Module:
    """Read a network from a file, in eval mode.

    Args:
        path: a file that ``save`` wrote.
        net: a network of the architecture that was converted; not needed where dubio built it (``dubio.models``). Its
            weights are not used, and it is not changed.
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
        place = "into memory" if is_out_of_memory(error) else "this network"
        raise RecordError(f"{path} does not fit {place}: {error}") from error
    model.load_state_dict(tensors, assign=True)
    return model.eval()


@dataclass(frozen=True)
class _Described:
    """The metadata of a file, with values as JSON."""

    format: str
    method: dict[str, Any]
    likelihood: dict[str, Any]
    architecture: str | None
    tied: dict[str, str]
    sha256: str
    later: dict[str, Any] = field(default_factory=dict)
    sha256_of_tensors: str | None = None


@dataclass(frozen=True)
class _Parts:
    """The method, the likelihood and later decisions of a stored network."""

    method: Any
    likelihood: Any
    later: dict[str, Any]

    @classmethod
    def of(cls, described: _Described) -> "_Parts":
        """From the metadata of a file."""
        later = {name: from_json(value) for name, value in described.later.items()}
        parts = cls(from_json(described.method), from_json(described.likelihood), later)
        if unknown := sorted(set(parts.later) - set(LATER)):
            raise ValueError(f"unknown fields {unknown}; was the file written by a newer version?")
        if not isinstance(parts.method, tuple(METHODS.values())):
            raise ValueError(f"method must be one of dubio's, got {parts.method!r}")
        if not isinstance(parts.likelihood, Likelihood):
            raise ValueError(f"likelihood must be one of dubio's, got {parts.likelihood!r}")
        for name, value in parts.later.items():
            if not codec.fits(LATER[name], value):
                raise ValueError(f"{name} has a value of the wrong kind, {value!r}")
        return parts

    def model(self, net: nn.Module) -> nn.Module:
        """``net``, converted as the stored network was; its tensors are not loaded yet."""
        model: nn.Module = self.method.convert(net, self.likelihood, strict=False)
        change_spec(model, **self.later)
        return model


def _check_counts(described: _Described, parts: _Parts, num_tensors: int) -> None:
    """Refuse more layers, members or steps than tensors: each has at least one, and building them takes time."""
    counts = {"layers": (described.architecture or "").count("-")}
    values = [parts.method, getattr(parts.method, "blocks", None)]
    for value in [*values, *(values[1] if isinstance(values[1], tuple) else ())]:
        counts |= {name: getattr(value, name) for name in COUNTED if hasattr(value, name)}
    for name, count in counts.items():
        if count > num_tensors:
            raise ValueError(f"it has {count} {name.removeprefix('num_')}, but only {num_tensors} tensors")


def _check_before_building(path: Path, described: _Described, parts: _Parts, tensors: dict[str, Tensor]) -> None:
    """Compare the sizes of a network with a file's tensors before memory is allocated for it."""
    try:
        with torch.device("meta"):
            model = parts.model(build(str(described.architecture)))
    except (ValueError, TypeError, OverflowError) as error:
        raise RecordError(f"{path} describes its network in a way that this version cannot read: {error}") from error
    except ImportError:
        raise
    except Exception:  # a network of torchvision or timm that cannot be made without values
        return
    needed, available = tensor_bytes(model.state_dict()), available_memory()
    try:
        complete = _complete(model, described, tensors)
        _check_fit(model, with_ties(complete, described.tied))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise RecordError(f"{path} does not fit this network: {error}") from error
    if available is not None and needed > available:
        amounts = f"{memory_in_words(needed)} of memory to build, and {memory_in_words(available)} are available"
        raise RecordError(f"{path} holds a network that takes {amounts}")


def _complete(model: nn.Module, described: _Described, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors with zeros for removed weights; the layers of ``model`` become as small as pruning left them."""
    if isinstance(removed := spec(model).pruning, Removed):
        rebuild(model, removed)
    tensors = unpacked(model, tensors)
    is_meta = any(tensor.is_meta for tensor in model.state_dict().values())
    tied = described.tied if is_meta else without_ties(model.state_dict())[1]
    if tied != described.tied:
        differing = sorted(set(tied.items()) ^ set(described.tied.items()))[0]
        names = f"{differing[0]} is tied to {differing[1]}"
        raise ValueError(f"{names} in one of them and not in the other")
    if lacking := [name for name in tied.values() if name not in tensors]:
        raise ValueError(f"it lacks {lacking[:3]}")
    return tensors


def _read(path: Path) -> tuple[_Described, dict[str, Tensor]]:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    codec.check_regular(path)
    try:
        with safe_open(path, framework="pt") as content:
            metadata = content.metadata() or {}
            # Copies: tensors in a file are not aligned, and sums over them may then differ in the last digit.
            tensors = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RecordError(f"{path} is not a whole safetensors file: {error}") from error
    if "dubio" not in metadata:
        raise RecordError(f"{path} is a safetensors file, but holds no network that dubio saved")
    data = codec.parse_json(metadata["dubio"], str(path))
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
    """Refuse tensors that do not fit a network: by name, shape and type, and values that are not finite."""
    expected, parameters = model.state_dict(), dict(model.named_parameters(remove_duplicate=False))
    missing, unknown = sorted(set(expected) - set(stored)), sorted(set(stored) - set(expected))
    if missing or unknown:
        parts = [f"it lacks {missing[:3]}"] if missing else []
        parts += [f"it has {unknown[:3]}, which the network has not"] if unknown else []
        raise ValueError(" and ".join(parts))
    norms = tuple(f"{name}." for name, module in model.named_modules() if is_norm(module))
    types: dict[torch.dtype, tuple[str, torch.dtype]] = {}
    for name, tensor in expected.items():
        loaded = stored[name]
        if tensor.shape != loaded.shape:
            shapes = f"{tuple(loaded.shape)} in the file and {tuple(tensor.shape)} in the network"
            raise ValueError(f"{name} has shape {shapes}")
        if tensor.dtype != loaded.dtype and not {tensor.dtype, loaded.dtype} <= FLOATS:
            raise ValueError(f"{name} has type {loaded.dtype} in the file and {tensor.dtype} in the network")
        if not loaded.is_floating_point():
            continue
        if not name.startswith(norms):  # those may have a higher precision
            first, usual = types.setdefault(tensor.dtype, (name, loaded.dtype))
            if usual != loaded.dtype:
                raise ValueError(f"{name} has type {loaded.dtype} in the file, and {first} has {usual}")
        if bool((loaded.isnan() if name not in parameters else ~loaded.isfinite()).any()):
            raise ValueError(f"{name} must hold finite numbers, got NaN or infinity; was training interrupted?")


def _hashes(described: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[str, str]:
    """A hash of the tensors and of their description, and one of the tensors alone."""
    rest = {name: value for name, value in described.items() if name not in HASHES}
    whole, alone = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()), hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        content = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + to_bytes({"tensor": tensor})
        whole.update(content)
        alone.update(content)
    return whole.hexdigest(), alone.hexdigest()


def to_json(value: Any) -> Any:
    """A value as JSON."""
    if is_dataclass(value) and type(value).__name__ in VALUES:
        parts = {part.name: to_json(getattr(value, part.name)) for part in fields(value)}
        return {"value": type(value).__name__, **parts}
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
    kind = VALUES.get(codec.current_names(name)) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"unknown value {name!r}; was the file written by a newer version?")
    if unknown := set(data) - {part.name for part in fields(kind)} - {"value"}:
        raise RecordError(f"unknown fields {sorted(unknown)} of {name}; was the file written by a newer version?")
    hints = get_type_hints(kind)
    values = {key: from_json(part) for key, part in data.items() if key != "value"}
    for key, value in values.items():
        if not codec.fits(hints[key], value):
            raise RecordError(f"{key} of {name} has a value of the wrong kind, {value!r}")
    return kind(**FORMER_DEFAULTS.get(kind.__name__, {}) | values)


def packed(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network, those with a mask without the removed weights."""
    small = dict(tensors)
    for _, mask, names in masked_tensors(model):
        small[mask] = torch.from_numpy(np.packbits(tensors[mask].numpy()))
        small |= {name: tensors[name][~tensors[mask]] for name in names}
    return small


def unpacked(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors in the shapes of the network; refuses masks that do not fit it or the weights that are left."""
    expected = model.state_dict()
    whole = dict(tensors)
    for parameter, mask, names in masked_tensors(model):
        whole[mask] = _unpacked_mask(parameter, tensors.get(mask), expected[mask].shape)
        whole |= {name: _filled(name, tensors.get(name), whole[mask]) for name in names}
    return whole


def _unpacked_mask(parameter: str, bits: Tensor | None, shape: torch.Size) -> Tensor:
    count = shape.numel()
    if bits is None or bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-count // 8),):
        received = "none" if bits is None else f"{bits.dtype} of shape {tuple(bits.shape)}"
        raise ValueError(f"the mask of {parameter} must have one bit for each of {count} weights, got {received}")
    flat = np.unpackbits(bits.numpy())
    if flat[count:].any():
        raise ValueError(f"the mask of {parameter} must have one bit for each of {count} weights, got more")
    return torch.from_numpy(flat[:count].astype(bool)).reshape(shape)


def _filled(name: str, left: Tensor | None, removed: Tensor) -> Tensor:
    count = removed.numel() - int(removed.sum())
    if left is None or tuple(left.shape) != (count,):
        received = "none" if left is None else f"shape {tuple(left.shape)}"
        raise ValueError(f"{name} must hold the {count} weights that its mask leaves, got {received}")
    whole = torch.zeros(removed.shape, dtype=left.dtype)
    whole[~removed] = left
    return whole


def without_ties(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and for each tied name the name that its tensor is stored under."""
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            tied[name] = first[key]
            continue
        first[key] = name
        owns_storage = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        stored = tensor.detach().cpu().contiguous()
        kept[name] = stored if owns_storage else stored.clone()
    return kept, tied


def with_ties(tensors: dict[str, Tensor], tied: dict[str, str]) -> dict[str, Tensor]:
    """All tensors by all names, tied ones included."""
    return tensors | {name: tensors[original] for name, original in tied.items()}


@dataclass
class _Held:
    """A lock that a thread of this process holds."""

    descriptor: int
    thread: int
    depth: int = 1
    """How many ``with`` blocks of the thread hold it."""


_HELD: dict[Path, _Held] = {}


_GUARD = threading.Lock()


@contextlib.contextmanager
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
            _release(key)
        if is_new:
            with contextlib.suppress(OSError):  # the folder holds a run now
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
        os.close(descriptor)  # the previous holder removed the file meanwhile: lock the new one


def _release(key: Path) -> None:
    held = _HELD.get(key)
    if held is None:  # in a forked child, which closed its parent's locks
        return
    held.depth -= 1
    if held.depth:
        return
    del _HELD[key]
    if _is_at(held.descriptor, key / LOCK):  # removed first: once unlocked, it may belong to another process
        with contextlib.suppress(OSError):
            (key / LOCK).unlink()
    os.close(held.descriptor)


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """The holder of the lock, from the file."""
    number, _, host = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    if not number.isdigit():
        return "another process"
    return f"process {number}" + (f" on {host}" if host and host != socket.gethostname() else "")


def _close_locks() -> None:
    """Close a parent's locks in a forked child, such as a loader's worker, which may outlive the parent."""
    global _GUARD
    _GUARD = threading.Lock()  # another thread may have held it
    for held in _HELD.values():
        os.close(held.descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)
