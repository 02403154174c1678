"""The sample axis and the noise: settings, passes, executors.

A network is written for one draw. The engine draws the noise, a layer is a pure function of its input and its noise,
and an executor gives many draws as one leading axis, ``sample``.
"""

from dubio.sampling.attending import attention as attention
from dubio.sampling.autocasting import autocast_dtype as autocast_dtype, lowered as lowered
from dubio.sampling.capturing import (
    Buffers as Buffers,
    Captured as Captured,
    Through as Through,
    as_it_is as as_it_is,
    signature as signature,
)
from dubio.sampling.choosing import DoesNotFitError as DoesNotFitError, Plan, Use as Use
from dubio.sampling.drawing import (
    Call as Call,
    Draws,
    Inputs,
    Numbers as Numbers,
    Perturbations,
    arguments,
    map_draws as map_draws,
    one_draw as one_draw,
)
from dubio.sampling.executors import run, sample, stream
from dubio.sampling.host_rng import (
    HOST as HOST,
    LOCK as LOCK,
    TORCH as TORCH,
    DrawsItselfError as DrawsItselfError,
    HostState as HostState,
    Stream as Stream,
    Watch as Watch,
    default_generator as default_generator,
    follows_host as follows_host,
    generator_state as generator_state,
    has_numbers_of_its_own as has_numbers_of_its_own,
    may_draw_on_host as may_draw_on_host,
    notice as notice,
    noticed as noticed,
    redirected as redirected,
    seeded as seeded,
    seeded_run as seeded_run,
    seeded_step as seeded_step,
    set_generator_state as set_generator_state,
)
from dubio.sampling.layout import (
    channels_last as channels_last,
    image_channels as image_channels,
    is_faster_channels_last as is_faster_channels_last,
)
from dubio.sampling.memory import (
    Footprint as Footprint,
    available_memory as available_memory,
    free_memory as free_memory,
    is_out_of_memory as is_out_of_memory,
    memory_in_words as memory_in_words,
    parse_memory,
    tensor_bytes as tensor_bytes,
)
from dubio.sampling.noise import (
    ROWS as ROWS,
    Kind as Kind,
    fresh_noise as fresh_noise,
    noise_key as noise_key,
    seeded_noise as seeded_noise,
)
from dubio.sampling.passes import (
    Pass,
    attach,
    attach_alone,
    checkpoint,
    current_pass,
    detach,
    is_mapped as is_mapped,
    is_plain as is_plain,
    is_transformed as is_transformed,
    joined_pass,
    name_sources,
    outside_passes as outside_passes,
    warn_of_plain as warn_of_plain,
)
from dubio.sampling.planning import memory_budget as memory_budget, plan, plan_for as plan_for, plans, shrink_chunks
from dubio.sampling.precision import Precision, check_precision, computing_in, rounding_products
from dubio.sampling.restoring import (
    Standing as Standing,
    eval_mode as eval_mode,
    same_numbers as same_numbers,
    statistics_of as statistics_of,
    unchanged as unchanged,
)
from dubio.sampling.settings import (
    STATE as STATE,
    Estimator,
    Settings,
    Using,
    antithetic,
    check_module as check_module,
    check_num_samples as check_num_samples,
    device_of as device_of,
    fresh,
    frozen,
    memory_limit,
    new_seed as new_seed,
    noise_off,
    seed_tensor,
    settings_for_run as settings_for_run,
)
from dubio.sampling.situations import circumstances as circumstances
from dubio.sampling.trying import Executor as Executor, ExecutorWarning, LoopOnlyError, row_lines as row_lines

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
