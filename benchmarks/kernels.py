"""Where the time of a training step or a prediction goes on a GPU: kernels in groups, and what is left between them.

The networks, batches and steps are those that ``peers`` compares. A step is timed as training takes it, several in a
row, and then looked at by torch's profiler; what the GPU did not work in that time is the way from launch to launch.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from peers.nets import NETS
from peers.ours import Ours
from timing import alternating_times_ms
from torch.profiler import ProfilerActivity, profile

from dubio._engine.precision import Precision

GROUPS = {
    "matrix products of the compiler": r"^triton_tem",
    "reductions": r"^triton_(red|per)",
    "elementwise": r"^triton_(poi|for)",
    "noise": r"noise_kernel|philox|normal_kernel|distribution_",
    "layouts": r"nchwToNhwc|nhwcToNchw|transpose_readWrite",
    "convolutions": r"conv|fprop|dgrad|wgrad|cudnn|winograd",
    "matrix products": r"gemm|gemv|cutlass|nvjet|cublas|splitK",
    "updates": r"multi_tensor_apply|FusedAdam",
    "reductions by torch": r"reduce_kernel|softmax|batch_norm",
    "copies": r"^Mem(cpy|set)|copy|CatArray",
    "elementwise by torch": r"elementwise_kernel",
}
"""Which kernels are of which group, by their names; the first that fits. The compiler's are named after all they do."""
OTHER = "other"
LONGEST = 12
"""How many kernels a record names."""
REPETITIONS = 10


class Case(NamedTuple):
    """What is looked at."""

    net: str
    estimator: Literal["local", "weight"]
    precision: Precision
    num_samples: int
    what: Literal["step", "prediction"] = "step"


CASES = (
    Case("784-1200-1200-10", "local", "tf32", 10),
    Case("784-1200-1200-10", "local", "bf16", 100),
    Case("784-1200-1200-10", "weight", "tf32", 10),
    Case("784-1200-1200-10", "local", "bf16", 100, "prediction"),
    Case("resnet18", "local", "tf32", 10),
    Case("resnet18", "local", "bf16", 10),
    Case("resnet18", "local", "bf16", 100, "prediction"),
)


def measure(device: torch.device, nets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Records of all cases, or of those with these networks."""
    if device.type != "cuda":
        raise SystemExit("kernels needs a GPU: there are none on a CPU")
    known = {case.net for case in CASES}
    if not known.issuperset(nets):
        raise SystemExit(f"kernels looks at {', '.join(sorted(known))}, got {', '.join(sorted(set(nets) - known))}")
    return [look_at(case, device) for case in CASES if not nets or case.net in nets]


def look_at(case: Case, device: torch.device) -> dict[str, Any]:
    """How long it takes, and which kernels take how much of it, in milliseconds and launches for each time."""
    work = work_of(case, device)
    times = alternating_times_ms({"work": work}, device, seconds=1.0)["work"]
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(REPETITIONS):
            work()
        torch.cuda.synchronize(device)
    kernels = [
        (event.key, event.self_device_time_total / 1e3 / REPETITIONS, event.count / REPETITIONS)
        for event in found.key_averages()
        if event.self_device_time_total > 0
    ]
    record = {**case._asdict(), "milliseconds": statistics.median(times), **summary(kernels)}
    print(told(record), flush=True)
    return record


def work_of(case: Case, device: torch.device) -> Callable[[], object]:
    """The step or the prediction itself."""
    net, ours = NETS[case.net], Ours(case.estimator, case.precision)
    if case.what == "step":
        return ours.training_step(net, case.num_samples, device)
    return ours.prediction(net, case.num_samples, net.images(device))


def summary(kernels: Iterable[tuple[str, float, float]]) -> dict[str, Any]:
    """Kernels by group, and the longest by name."""
    kernels = sorted(kernels, key=lambda kernel: -kernel[1])
    groups: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, milliseconds, launches in kernels:
        own = groups[group_of(name)]
        own[0], own[1] = own[0] + milliseconds, own[1] + launches
    return {
        "busy": sum(milliseconds for _, milliseconds, _ in kernels),
        "groups": dict(sorted(groups.items(), key=lambda item: -item[1][0])),
        "longest": [[name[:120], milliseconds, launches] for name, milliseconds, launches in kernels[:LONGEST]],
    }


def group_of(name: str) -> str:
    """What a kernel does, as far as its name tells."""
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, name)), OTHER)


def told(record: dict[str, Any]) -> str:
    """A record in words."""
    case = Case(*(record[field] for field in Case._fields))
    total, busy = record["milliseconds"], record["busy"]
    lines = [
        f"{case.net}, {case.estimator}, S = {case.num_samples}, {case.precision}, {case.what}: "
        f"{total:.3f} ms, busy for {busy:.3f} ms"
    ]
    lines += [
        f"  {spent:9.3f} ms  {launches:6.1f} launches  {group}" for group, (spent, launches) in record["groups"].items()
    ]
    lines += [f"    {spent:7.3f} ms  {launches:6.1f}  {name}" for name, spent, launches in record["longest"]]
    return "\n".join(lines)
