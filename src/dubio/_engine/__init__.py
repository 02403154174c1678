"""The execution core: settings, noise, passes, probe, planner and executors.

A network is written for one draw. The engine draws the noise, a layer is a pure function of its input and its noise,
and an executor gives many draws as one leading axis, ``sample``. Other packages import from here.
"""

from dubio._engine.cuda_graphs import (
    Buffers as Buffers,
    Captured as Captured,
    Through as Through,
    as_it_is as as_it_is,
    signature as signature,
)
from dubio._engine.draws import (
    Call as Call,
    Draws as Draws,
    Inputs as Inputs,
    Numbers as Numbers,
    arguments as arguments,
    map_draws as map_draws,
    one_draw as one_draw,
)
from dubio._engine.execute import run as run, sample as sample, stream as stream
from dubio._engine.host_rng import (
    HOST as HOST,
    LOCK as LOCK,
    TORCH as TORCH,
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
    seeded_step as seeded_step,
    set_generator_state as set_generator_state,
)
from dubio._engine.kernels import (
    draw_each as draw_each,
    draw_weights as draw_weights,
    frozen_keys as frozen_keys,
    kernels_available as kernels_available,
    kernels_unavailable_reason as kernels_unavailable_reason,
    keyed_noise as keyed_noise,
    weight_divergence as weight_divergence,
)
from dubio._engine.memory import (
    Footprint as Footprint,
    available_memory as available_memory,
    channels_last as channels_last,
    free_memory as free_memory,
    image_channels as image_channels,
    is_faster_channels_last as is_faster_channels_last,
    is_out_of_memory as is_out_of_memory,
    map_tensors as map_tensors,
    mark_drawn as mark_drawn,
    memory_in_words as memory_in_words,
    tensor_bytes as tensor_bytes,
    tensors_in as tensors_in,
    with_less_memory as with_less_memory,
)
from dubio._engine.noise import (
    ROWS as ROWS,
    Kind as Kind,
    fresh_noise as fresh_noise,
    noise_key as noise_key,
    seeded_noise as seeded_noise,
)
from dubio._engine.passes import (
    Pass as Pass,
    attach as attach,
    attach_alone as attach_alone,
    checkpoint as checkpoint,
    current_pass as current_pass,
    detach as detach,
    is_mapped as is_mapped,
    is_plain as is_plain,
    is_transformed as is_transformed,
    joined_pass as joined_pass,
    name_sources as name_sources,
    outside_passes as outside_passes,
    warn_of_plain as warn_of_plain,
)
from dubio._engine.planner import (
    DoesNotFitError as DoesNotFitError,
    OutputUse as OutputUse,
    SamplingPlan as SamplingPlan,
    bytes_per_row as bytes_per_row,
    circumstances as circumstances,
    memory_budget as memory_budget,
    plan as plan,
    plan_for as plan_for,
    plans as plans,
    shrink_chunks as shrink_chunks,
)
from dubio._engine.precision import (
    Precision as Precision,
    check_precision as check_precision,
    computing_in as computing_in,
    rounding_products as rounding_products,
)
from dubio._engine.probe import (
    Executor as Executor,
    ExecutorWarning as ExecutorWarning,
    LoopOnlyError as LoopOnlyError,
    is_raised_by_user as is_raised_by_user,
    row_lines as row_lines,
)
from dubio._engine.settings import (
    STATE as STATE,
    Estimator as Estimator,
    Settings as Settings,
    Using as Using,
    antithetic as antithetic,
    check_module as check_module,
    check_num_samples as check_num_samples,
    device_of as device_of,
    fresh as fresh,
    frozen as frozen,
    memory_limit as memory_limit,
    new_seed as new_seed,
    noise_off as noise_off,
    seed_tensor as seed_tensor,
    settings_for_run as settings_for_run,
)
from dubio._engine.snapshot import (
    TensorSnapshot as TensorSnapshot,
    isolated as isolated,
    same_numbers as same_numbers,
    statistics_of as statistics_of,
)
from dubio._engine.vmap_rules import attention as attention, autocast_dtype as autocast_dtype, lowered as lowered
