"""Several processes that train one network together; with one process, every method does nothing.

Each process has a copy of the network, its rows of every batch, and its own noise. After the backward pass the
gradients are summed over the processes in one flat tensor, each weighted by its number of rows, and divided by the
number of all rows. So parts of unequal size are exact, a process without rows adds nothing, and a divergence, which
each process adds to the mean over its rows, counts once.

Networks are not wrapped in torch's ``DistributedDataParallel``: its reducer expects one forward pass of the wrapped
module in each step, while here the network is mapped over draws, called several times (adversarial training), and its
parameters are used outside of any forward pass (a divergence in closed form).

Gradients are sent by the backend of their device, nccl or gloo. Everything else is small, stays on the CPU and is sent
by gloo, which notices at once when another process has ended. Invariants: ``tests/training/test_processes.py``.
"""

import importlib
import itertools
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dubio._engine import noise_key

T = TypeVar("T")
CLOSING = timedelta(seconds=10)
"""For so long a process waits at most until the first one has left a group, too."""
WAIT = timedelta(minutes=30)
"""Timeout for a process that neither answers nor ends: the first one may be busy with a callback."""
CHECK_LAUNCHER_EVERY = 0.5
"""Seconds between two checks that the launcher still runs."""
GRACE = 30.0
"""Seconds that a process has to save the run and end after its launcher has ended; the same as for torchrun."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
NOTE = "raised in every process"
_GROUPS = itertools.count()


class LostProcessError(RuntimeError):
    """Another process has ended, or cannot be reached."""


@dataclass(frozen=True)
class Processes:
    """The processes that train together, from the view of one of them. With one, every method does nothing."""

    rank: int
    """Index of this process, from 0."""
    count: int
    device: torch.device
    """Device of this process."""

    @classmethod
    def here(cls, device: torch.device) -> "Processes":
        """The processes of torch's process group, or else those that ``torchrun`` has started."""
        if dist.is_available() and dist.is_initialized():
            rank, count = dist.get_rank(), dist.get_world_size()
        else:
            rank, count = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
        if count == 1:
            return cls(0, 1, device)
        if device.type not in BACKENDS:
            raise ValueError(f"device must be cpu or cuda for several processes, got {device}")
        return cls(rank, count, _own_gpu(device) if device.type == "cuda" else device)

    @contextmanager
    def joined(self) -> Iterator["Processes"]:
        """Join the process group; it is opened where there is none, and then closed at the end."""
        several_gpus = self.count > 1 and self.device.type == "cuda"
        with torch.cuda.device(self.device) if several_gpus else nullcontext(), _ending_with_launcher():
            if self.count == 1 or dist.is_initialized():
                if self.count > 1:
                    _check_backends(self.device)
                yield self
                return
            store = _open_group(self.device)
            lost = False
            try:
                yield self
            except LostProcessError:
                lost = True
                raise
            finally:
                if not (lost and self.device.type == "cuda"):  # nccl would wait for the lost process
                    dist.destroy_process_group()
                if self.rank and "TORCHELASTIC_RUN_ID" not in os.environ:
                    # Without torchrun the first process holds the store: another group must not meet in that one.
                    with suppress(RuntimeError):
                        store.wait(["the first process has left"], CLOSING)

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files, shows progress and runs callbacks: the first one does."""
        return self.rank == 0

    def own_seed(self, seed: int) -> int:
        """A seed for the noise of this process; the first one uses the given seed."""
        return seed if self.rank == 0 else noise_key(f"seed {seed} of rank {self.rank}")

    def sum_gradients(self, parameters: Iterable[nn.Parameter], rows: int) -> Tensor | int:
        """Sum gradients over all processes, in place; return the number of their rows.

        A parameter that has a gradient in some process gets one in all; one without any gradient gets none.
        """
        if self.count == 1:
            return rows
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        counts = torch.ones(1 + len(trained), dtype=torch.float64, device=self.device)
        counts[0].fill_(rows)  # fills on the device: copying a number to a GPU would wait for it
        for place, parameter in enumerate(trained, start=1):
            if parameter.grad is None:
                counts[place].fill_(0)
        by_dtype = [[p for p in trained if p.dtype == dtype] for dtype in dict.fromkeys(p.dtype for p in trained)]
        flats = [(same, _flat(same)) for same in by_dtype]  # memory is allocated before anything is sent
        self._sum(counts)
        with_gradient = {id(parameter) for parameter in trained if parameter.grad is not None}
        if len(with_gradient) < len(trained):  # read only then, since it waits for the GPU
            with_gradient = {id(p) for p, count in zip(trained, counts[1:].tolist(), strict=True) if count}
        for same, flat in flats:
            self._sum(flat)
            for parameter, part in zip(same, flat.split([each.numel() for each in same]), strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view(parameter.shape))
                elif id(parameter) in with_gradient:  # in the same layout: norms are summed in the order of memory
                    parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))
        return counts[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in some process."""
        if self.count == 1:
            return flag
        count = torch.tensor(int(flag), device="cpu")
        self._sum(count)
        return bool(count)

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order; they should be small, since each is pickled."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with _communicating():
            dist.all_gather_object(values, value)
        return values

    def check_alike(self, values: dict[str, Any]) -> None:
        """Refuse processes with different options: they would wait for each other forever."""
        for rank, others in enumerate(self.gather(values)):
            for name, value in values.items():
                if value != others.get(name):
                    raise ValueError(
                        f"every process must train alike: {name} is {value!r} in process {self.rank} and "
                        f"{others.get(name)!r} in process {rank}"
                    )

    def together(self, act: Callable[[], T]) -> T:
        """Call a function in every process; where one raises, all raise the same error."""
        if self.count == 1:
            return act()
        value: T | None = None
        raised: Exception | None = None
        try:
            value = act()
        except Exception as error:
            raised = error
        for rank, received in enumerate(self.gather(_sendable(raised))):
            if received is not None:
                common = raised if rank == self.rank and raised is not None else received
                common.add_note(NOTE)
                raise common
        return cast(T, value)

    def by_writer(self, act: Callable[[], T]) -> T:
        """Call a function in the first process only; all return its result, or raise its error."""
        if self.count == 1:
            return act()
        value = self.together(lambda: act() if self.is_writer else None)
        return cast(T, self.gather(value)[0])

    @torch.no_grad()
    def broadcast(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""
        if self.count == 1:
            return
        tensors = [*model.named_parameters(), *model.named_buffers()]
        shapes = {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors}
        for rank, others in enumerate(self.gather(shapes)):
            if others != shapes:
                name = next(name for name in {**shapes, **others} if shapes.get(name) != others.get(name))
                here, there = (each.get(name, "not there") for each in (shapes, others))
                raise ValueError(
                    f"every process must train the same network: {name} is {here} in process {self.rank} "
                    f"and {there} in process {rank}"
                )
        for _, tensor in tensors:
            tensor.copy_(self._of_first(tensor))

    @torch.no_grad()
    def average_buffers(self, model: nn.Module) -> None:
        """Set each floating-point buffer to its mean over the processes, and others to that of the first process."""
        if self.count == 1:
            return
        for buffer in model.buffers():
            value = self._of_first(buffer)
            if buffer.is_floating_point():  # by differences: equal values stay exact, also infinities
                offset = torch.where(buffer == value, torch.zeros_like(buffer), buffer - value).contiguous()
                self._sum(offset)
                value = value + offset / self.count
            buffer.copy_(value)

    @torch.no_grad()
    def own_buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """Buffers that differ from those of the first process, such as statistics of the rows of this one."""
        if self.count == 1:
            return {}
        first = {name: self._of_first(buffer) for name, buffer in model.named_buffers()}
        return {name: buffer for name, buffer in model.named_buffers() if not torch.equal(buffer, first[name])}

    def _sum(self, tensor: Tensor) -> None:
        with _communicating():
            dist.all_reduce(tensor)

    def _of_first(self, tensor: Tensor) -> Tensor:
        """The tensor of the first process, sent as bytes, which every backend supports."""
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        if sent.numel():
            with _communicating():
                dist.broadcast(sent.view(-1).view(torch.uint8), src=0)
        return sent


ALONE = Processes(0, 1, torch.device("cpu"))
"""The value for a single process."""


def is_raised_by_all(error: BaseException) -> bool:
    """Whether every process raises this error, so that one of them can report it for all."""
    return NOTE in getattr(error, "__notes__", ())


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name)
    if value is not None and not value.isdigit():
        raise ValueError(f"{name} in the environment must be a whole number, as torchrun sets it, got {value!r}")
    return default if value is None else int(value)


def chosen_device(model: nn.Module) -> torch.device:
    """The device to train on where none is given: that of the network.

    The first GPU means any GPU: ``model.cuda()`` moves the network there in every process.
    """
    device = next(model.parameters()).device
    local_rank = _from_environment("LOCAL_RANK", 0)
    is_first = device.type == "cuda" and device.index == 0
    return torch.device("cuda") if is_first and 0 < local_rank < torch.cuda.device_count() else device


def _own_gpu(device: torch.device) -> torch.device:
    """The chosen GPU, or by default one for each process of a machine."""
    if (number := device.index) is None:  # last, since ``current_device`` takes memory on the GPU
        number = _from_environment("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else torch.cuda.current_device()
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"device must be another GPU for each process of a machine, got cuda:{number} where there are "
            f"{torch.cuda.device_count()}; start as many processes, or take device cpu"
        )
    return torch.device("cuda", number)


def _check_backends(device: torch.device) -> None:
    backends = dist.get_backend_config(dist.group.WORLD)
    if not all(f"{kind}:" in backends for kind in ("cpu", device.type)):
        raise ValueError(
            f"the process group must have backends for cpu and {device.type}, got {backends!r}; open it with "
            f"init_process_group({BACKENDS[device.type]!r}), or leave that to fit"
        )


def _open_group(device: torch.device) -> Any:
    """Open the process group, and return the store that its processes meet in."""
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ValueError(f"WORLD_SIZE is set but {' and '.join(missing)} not; start several processes with torchrun")
    # First, since the compiler keeps a group that is open when it is imported (the first optimizer imports it): the
    # threads of the group would outlive it, and sometimes abort a process that ends.
    importlib.import_module("torch._dynamo")
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    with _communicating():
        # torchrun's store outlives a group: a prefix keeps the next group from reading the keys of this one.
        store, rank, count = next(iter(rendezvous("env://", timeout=WAIT)))
        store = PrefixStore(f"dubio, meeting {next(_GROUPS)}", store)
        dist.init_process_group(BACKENDS[device.type], store=store, rank=rank, world_size=count, timeout=WAIT)
    return store


@contextmanager
def _ending_with_launcher() -> Iterator[None]:
    """End this process when the ``torchrun`` that started it is killed, which would leave it running.

    It gets SIGTERM, after which ``fit`` saves the run and stops, and SIGKILL where that takes too long.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, done = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == launcher:
            if done.wait(CHECK_LAUNCHER_EVERY):
                return
        os.kill(os.getpid(), signal.SIGTERM)
        if not done.wait(GRACE):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="dubio-launcher", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def _communicating() -> Iterator[None]:
    """Raise errors of the communication between processes as a ``LostProcessError``."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise LostProcessError(f"another process ended, or cannot be reached ({reason})") from error


def _sendable(error: Exception | None) -> Exception | None:
    """The error if it can be pickled, otherwise a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    """The gradients of parameters in one flat tensor, with zeros where there is no gradient."""
    gradients = (torch.zeros_like(each) if each.grad is None else each.grad for each in parameters)
    return torch.cat([gradient.reshape(-1) for gradient in gradients])
