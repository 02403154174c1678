"""One thread and one seed for every test, and shape checks that step aside for the compiler."""

import functools
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)
# Compiled code of its own for each worker: two that write the same file at once may load half of it.
_compiled = tempfile.TemporaryDirectory(prefix="dubio-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _compiled.name

_checked = jaxtyping.jaxtyped


def _checked_unless_compiling(target: Any = None, *, typechecker: Any) -> Any:
    """Decorate as ``jaxtyping.jaxtyped`` does, but show the compiler the bare function: it cannot trace a check."""
    if target is None:
        return functools.partial(_checked_unless_compiling, typechecker=typechecker)
    if inspect.isclass(target):
        bare = target.__init__
        if _checked(target, typechecker=typechecker).__init__ is not bare:  # a dataclass
            target.__init__ = _either(bare, target.__init__)
        return target
    checked = _checked(target, typechecker=typechecker)
    return _either(target, checked) if inspect.isfunction(target) else checked


def _either(bare: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bare)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return bare(*args, **kwargs)
        return checked(*args, **kwargs)

    return call


jaxtyping.jaxtyped = _checked_unless_compiling


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


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
