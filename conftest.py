"""One thread and one seed for every test, and shape checks that step aside for the compiler."""

import dataclasses
import functools
import gc
import inspect
import os
import tempfile
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)
# Compiled code of its own for each worker: two that write the same file at once may load half of it.
_compiled = tempfile.TemporaryDirectory(prefix="dubio-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _compiled.name
# Compiled code without vector instructions: a third less to compile, and no search for those that the machine has.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

_checked = jaxtyping.jaxtyped
_axes = _checked("context")


def _checked_unless_compiling(target: Any = None, *, typechecker: Any = None) -> Any:
    """Decorate as ``jaxtyping.jaxtyped`` does, but show the compiler the bare function: it cannot trace a check.

    A check is made at the first call of its function: most functions are not called by most tests.
    """
    if target == "context":  # the compiler imports this file once more
        return _checked(target)
    if target is None:
        return functools.partial(_checked_unless_compiling, typechecker=typechecker)
    if inspect.isclass(target):
        if dataclasses.is_dataclass(target):
            target.__init__ = _checked_when_called(target.__init__, typechecker)
        return target
    if inspect.isfunction(target) and target.__module__.endswith("_kernel"):
        return target  # Triton looks up names where a function was made
    if inspect.isfunction(target):
        return _checked_when_called(target, typechecker)
    return _checked(target, typechecker=typechecker)


def _checked_when_called(bare: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None

    @functools.wraps(bare)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if torch.compiler.is_compiling() or jaxtyping.config.jaxtyping_disable:
            return bare(*args, **kwargs)
        if checked is None:
            checked = _check_of(bare, typechecker)
        return checked(*args, **kwargs)

    return call


def _check_of(bare: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    """The checked function, by the cheapest check that its signature allows.

    Jaxtyping's own check looks at arguments twice: it is for classes by their names, which it looks up, and generators
    of tensors. Other signatures that name axes need a record of axes; those without axes need none.
    """
    hints = list(_hints(bare))
    has_names = any(isinstance(hint, str | typing.ForwardRef) for hint in hints)
    has_axes = any(getattr(hint, "__module__", "").startswith("jaxtyping") for hint in hints)
    if has_names or (has_axes and inspect.isgeneratorfunction(bare)):
        return _checked(bare, typechecker=typechecker)
    checked = typechecker(bare)
    if not has_axes:
        return checked

    def call(*args: Any, **kwargs: Any) -> Any:
        with _axes:
            return checked(*args, **kwargs)

    return call


def _hints(function: Callable[..., Any]) -> Iterator[Any]:
    """All annotations of a function and the parts that they are made of."""
    hints = list(function.__annotations__.values())
    while hints:
        hint = hints.pop()
        yield hint
        if typing.get_origin(hint) is not typing.Literal:
            hints.extend(hint if isinstance(hint, list) else typing.get_args(hint))


# For a device that is not there torch keeps every seed, with the stack of whoever set it: most of what seeding costs.
for _device in (torch.cuda, torch.xpu, torch.mtia):
    if not _device.is_available():
        _device.manual_seed_all = lambda seed: None
jaxtyping.jaxtyped = _checked_unless_compiling


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with tests that have a time limit of their own: one that takes long and comes last keeps a core idle."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection(session: pytest.Session) -> None:
    """Collect no garbage while modules are imported."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let collections of garbage pass over what was imported, and come seldom: tests make many objects."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that train or attack at length: as a user runs it, in half the time. Others check the shapes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def compiler() -> None:
    """For tests that compile: forget what was compiled before."""
    torch._dynamo.reset()


@pytest.fixture
def quick_compiler(compiler: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without torch's notes on itself, half of what it takes to compile so small a network."""
    monkeypatch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *args: 0.0, raising=False)
    with torch._dynamo.config.patch(side_effect_replay_policy="silent"):  # no record of where passes are opened
        yield
