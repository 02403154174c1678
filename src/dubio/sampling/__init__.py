"""The sample axis and the noise: settings, passes, executors.

A network is written for one draw. The engine draws the noise, a layer is a pure function of its input and its noise,
and an executor gives many draws as one leading axis, ``sample``.
"""

from dubio.sampling.drawing import Draws, Inputs, Perturbations, arguments
from dubio.sampling.executors import run, sample, stream
from dubio.sampling.memory import parse_memory
from dubio.sampling.passes import (
    Pass,
    attach,
    attach_alone,
    checkpoint,
    current_pass,
    detach,
    joined_pass,
    name_sources,
)
from dubio.sampling.planning import ExecutorWarning, LoopOnlyError, Plan, plan, plans, shrink_chunks
from dubio.sampling.precision import Precision, check_precision, computing_in, rounding_products
from dubio.sampling.settings import (
    Estimator,
    Settings,
    Using,
    antithetic,
    fresh,
    frozen,
    memory_limit,
    noise_off,
    seed_tensor,
)

__all__ = [
    "Perturbations",
    "Draws",
    "Estimator",
    "ExecutorWarning",
    "Inputs",
    "LoopOnlyError",
    "Pass",
    "Plan",
    "Precision",
    "Settings",
    "Using",
    "antithetic",
    "arguments",
    "attach",
    "attach_alone",
    "check_precision",
    "checkpoint",
    "computing_in",
    "current_pass",
    "detach",
    "fresh",
    "frozen",
    "joined_pass",
    "memory_limit",
    "name_sources",
    "noise_off",
    "parse_memory",
    "plan",
    "plans",
    "rounding_products",
    "run",
    "sample",
    "seed_tensor",
    "shrink_chunks",
    "stream",
]
