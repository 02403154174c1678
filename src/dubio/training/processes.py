"""Several processes that train one network together; one process alone notices nothing of it.

Each process has a copy of the network, its rows of every batch, and noise of its own. After the backward pass the
gradients are summed over the processes in one flat row, each weighted by the rows it comes from, and divided by all
rows. So parts of unequal size are exact, a process without rows adds nothing, and a divergence, which each process
adds to the mean over its rows, counts once.

Networks are not wrapped in torch's ``DistributedDataParallel``: its reducer wants one forward of the wrapped module in
each step, while here the network is mapped over draws, called several times (adversarial training), and its parameters
are used outside of any forward (a divergence in closed form).

Gradients travel by the backend of their device, nccl or gloo; everything else is small, stays on the CPU and travels
by gloo, which notices at once when another process has ended. Held by ``tests/training/test_processes.py``.
"""

import importlib
import itertools
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dubio._engine import noise_key

T = TypeVar("T")
WAIT = timedelta(minutes=30)
"""How long processes wait for one that neither answers nor ends: the first may be busy with a callback."""
LOOK_EVERY = 0.5
"""Seconds between two looks whether the launcher still runs."""
GRACE = 30.0
"""Seconds that a process has to save the run and end, when its launcher has gone; as long as torchrun itself grants."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
NOTE = "raised in every process"
_MEETINGS = itertools.count()


class LostProcessError(RuntimeError):
    """Another process has ended, or cannot be reached."""


@dataclass(frozen=True)
class Processes:
    """The processes that train together, as one of them sees it. With one, every method does nothing."""

    rank: int
    """Which one this is, from 0."""
    count: int
    device: torch.device
    """Where this one computes."""

    @classmethod
    def here(cls, device: torch.device) -> "Processes":
        """This process and the others: those of torch's process group, else those that ``torchrun`` has started."""
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
        """Meet the other processes; what is opened for it is closed at the end."""
        several = self.count > 1 and self.device.type == "cuda"
        with torch.cuda.device(self.device) if several else nullcontext(), _ending_with_launcher():
            if self.count == 1:
                yield self
                return
            if dist.is_initialized():
                _check_backends(self.device)
                yield self
                return
            _meet(self.device)
            lost = False
            try:
                yield self
            except LostProcessError:
                lost = True
                raise
            finally:
                if not (lost and self.device.type == "cuda"):  # nccl would wait for the one that is lost
                    dist.destroy_process_group()

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files, shows progress and runs callbacks: the first does."""
        return self.rank == 0

    def own_seed(self, seed: int) -> int:
        """A seed for the noise of this process alone; the first keeps the one given."""
        return seed if self.rank == 0 else noise_key(f"seed {seed} of rank {self.rank}")

    def sum_gradients(self, parameters: Iterable[nn.Parameter], rows: int) -> Tensor | int:
        """Sum gradients over all processes, in place; the number of rows they come from.

        A parameter that has a gradient in some process gets one in all; one that has none anywhere gets none.
        """
        if self.count == 1:
            return rows
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        counts = torch.ones(1 + len(trained), dtype=torch.float64, device=self.device)
        counts[0].fill_(rows)  # filled there: what is copied to a GPU waits for it
        for place, parameter in enumerate(trained, start=1):
            if parameter.grad is None:
                counts[place].fill_(0)
        flats = [(same, _flat(same)) for same in _by_dtype(trained)]  # all memory is taken before anything is sent
        self._sum(counts)
        known = {id(parameter) for parameter in trained if parameter.grad is not None}
        if len(known) < len(trained):  # asked only then: a GPU would have to be waited for
            known = {id(parameter) for parameter, some in zip(trained, counts[1:].tolist(), strict=True) if some}
        for same, flat in flats:
            self._sum(flat)
            for parameter, part in zip(same, flat.split([each.numel() for each in same]), strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view(parameter.shape))
                elif id(parameter) in known:  # as it lies elsewhere: norms are summed in the order of memory
                    parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))
        return counts[0]

    def any(self, flag: bool) -> bool:
        """Whether some process says yes."""
        if self.count == 1:
            return flag
        said = torch.tensor(int(flag), device="cpu")
        self._sum(said)
        return bool(said)

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order; small ones, since each is pickled."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with _talking():
            dist.all_gather_object(values, value)
        return values

    def check_alike(self, own: dict[str, Any]) -> None:
        """Refuse processes that would train in different ways: they would wait for each other in vain."""
        for rank, other in enumerate(self.gather(own)):
            differing = [name for name in own if own[name] != other.get(name)]
            if differing:
                name = differing[0]
                raise ValueError(
                    f"every process must train alike: {name} is {own[name]!r} in process {self.rank} and "
                    f"{other.get(name)!r} in process {rank}"
                )

    def together(self, act: Callable[[], T]) -> T:
        """Act in every process; where one raises, all raise the same."""
        if self.count == 1:
            return act()
        value: T | None = None
        own: Exception | None = None
        try:
            value = act()
        except Exception as error:
            own = error
        for rank, received in enumerate(self.gather(_sendable(own))):
            if received is not None:
                raised = own if rank == self.rank and own is not None else received
                raised.add_note(NOTE)
                raise raised
        return cast(T, value)

    def by_writer(self, act: Callable[[], T]) -> T:
        """Act in the first process alone; all get what it returns, and raise what it raises."""
        if self.count == 1:
            return act()
        value = self.together(lambda: act() if self.is_writer else None)
        return cast(T, self.gather(value)[0])

    @torch.no_grad()
    def broadcast(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""
        if self.count == 1:
            return
        shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in _tensors(model)}
        for rank, others in enumerate(self.gather(shapes)):
            if others != shapes:
                name = next(name for name in {**shapes, **others} if shapes.get(name) != others.get(name))
                own, other = (_in_words(found.get(name)) for found in (shapes, others))
                raise ValueError(
                    f"every process must train the same network: {name} is {own} in process {self.rank} "
                    f"and {other} in process {rank}"
                )
        for _, tensor in _tensors(model):
            tensor.copy_(self._of_first(tensor))

    @torch.no_grad()
    def average_buffers(self, model: nn.Module) -> None:
        """Give every process the mean of each buffer of real numbers, and of others that of the first process."""
        if self.count == 1:
            return
        for buffer in model.buffers():
            value = self._of_first(buffer)
            if buffer.is_floating_point():  # by differences: what is equal everywhere stays as it is, infinities too
                offset = torch.where(buffer == value, torch.zeros_like(buffer), buffer - value).contiguous()
                self._sum(offset)
                value = value + offset / self.count
            buffer.copy_(value)

    @torch.no_grad()
    def own_buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """Buffers that are not as in the first process: statistics of rows that this one has seen."""
        if self.count == 1:
            return {}
        first = {name: self._of_first(buffer) for name, buffer in model.named_buffers()}
        return {name: buffer for name, buffer in model.named_buffers() if not torch.equal(buffer, first[name])}

    def _sum(self, tensor: Tensor) -> None:
        with _talking():
            dist.all_reduce(tensor)

    def _of_first(self, tensor: Tensor) -> Tensor:
        """The first process's tensor in the place of this one; as bytes, which every backend can send."""
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        if sent.numel():
            with _talking():
                dist.broadcast(sent.view(-1).view(torch.uint8), src=0)
        return sent


ALONE = Processes(0, 1, torch.device("cpu"))
"""One process, which is the rule."""


def is_raised_by_all(error: BaseException) -> bool:
    """Whether every process raises this error, so that one of them may tell it for all."""
    return NOTE in getattr(error, "__notes__", ())


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name)
    if value is not None and not value.isdigit():
        raise ValueError(f"{name} in the environment must be a whole number, as torchrun sets it, got {value!r}")
    return default if value is None else int(value)


def chosen_device(model: nn.Module) -> torch.device:
    """Where a network is to be trained that nobody has said a device for: where it is.

    The first GPU stands for any: that is where ``model.cuda()`` puts it in every process.
    """
    device = next(model.parameters()).device
    own = _from_environment("LOCAL_RANK", 0)
    is_first = device.type == "cuda" and device.index == 0
    return torch.device("cuda") if is_first and 0 < own < torch.cuda.device_count() else device


def _own_gpu(device: torch.device) -> torch.device:
    """The GPU of this process, where none was chosen: one for each process of a machine."""
    number = device.index
    if number is None:  # asked last: the answer takes memory on the GPU
        number = _from_environment("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else torch.cuda.current_device()
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"device must be another GPU for each process of a machine, got cuda:{number} where there are "
            f"{torch.cuda.device_count()}; start as many processes, or take device cpu"
        )
    return torch.device("cuda", number)


def _check_backends(device: torch.device) -> None:
    known = dist.get_backend_config(dist.group.WORLD)
    if not all(f"{kind}:" in known for kind in ("cpu", device.type)):
        raise ValueError(
            f"the process group must have backends for cpu and {device.type}, got {known!r}; open it with "
            f"init_process_group({BACKENDS[device.type]!r}), or leave that to fit"
        )


def _meet(device: torch.device) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"WORLD_SIZE is set but {' and '.join(missing)} not; start several processes with torchrun")
    # First, since the compiler keeps hold of a group that is open when it is imported, as the first optimiser does: the
    # threads of the group would outlive it, and now and then abort a process that ends.
    importlib.import_module("torch._dynamo")
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    with _talking():
        # torchrun's store outlives a group: names of one's own keep the next one from reading what this one wrote.
        store, rank, count = next(iter(rendezvous("env://", timeout=WAIT)))
        own = PrefixStore(f"dubio, meeting {next(_MEETINGS)}", store)
        dist.init_process_group(BACKENDS[device.type], store=own, rank=rank, world_size=count, timeout=WAIT)


@contextmanager
def _ending_with_launcher() -> Iterator[None]:
    """End this process when the ``torchrun`` that started it was killed: nothing else would end it.

    It gets SIGTERM, by which ``fit`` saves the run and stops, and SIGKILL where that does not end it in time.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, done = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == launcher:
            if done.wait(LOOK_EVERY):
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
def _talking() -> Iterator[None]:
    """What goes wrong while processes talk to each other is the end of one of them."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise LostProcessError(f"another process ended, or cannot be reached ({reason})") from error


def _sendable(error: Exception | None) -> Exception | None:
    """An error that other processes can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _in_words(found: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "not there" if found is None else f"{found[0]} of {found[1]}"


def _by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    kinds = {parameter.dtype: None for parameter in parameters}
    return [[parameter for parameter in parameters if parameter.dtype == kind] for kind in kinds]


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    """The gradients of some parameters in one row, with zeros where there are none."""
    gradients = (torch.zeros_like(each) if each.grad is None else each.grad for each in parameters)
    return torch.cat([gradient.reshape(-1) for gradient in gradients])
