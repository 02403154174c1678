"""dubio beside bayesian-torch, torch-uncertainty, torchbayesian and blitz, in one run on one machine.

For every network: a training step for several numbers of draws, its slope per further draw and its peak memory, and a
prediction. Contestants take turns after five warm-ups, and medians are compared. What a library cannot do is in the
record, with the first line of its error.
"""

import gc
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import alternating_times_ms

from peers import of_torch_uncertainty
from peers.contestants import LEARNING_RATE, Contestant, Peer, version_of
from peers.entries import PREDICTION_DRAWS, Entry, default_draws, entries
from peers.gradients import gradient_error
from peers.line import fitted
from peers.memory import RUNS, built_and_peaks
from peers.nets import NETS, TINY, Net
from peers.predicting import TRIES, best_prediction, rows_in_words

WARM_UPS = 5
STEP_SECONDS = {"cuda": 0.3, "cpu": 1.5}
"""How long the repetitions of one contestant may take for one number of draws, unless three take longer."""
PREDICTION_SECONDS = {"cuda": 1.0, "cpu": 3.0}
SLOW_SECONDS = 1.0
"""Predictions slower than this take turns among themselves, warmed up by what chose their rows."""


def measure(
    device: torch.device,
    nets: Sequence[str] = (),
    draws: Sequence[int] = (),
    commit: str | None = None,
    tiny: bool = False,
    earlier: dict[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """The records of some networks.

    Args:
        device: where everyone runs.
        nets: names of networks; by default those that suit the device.
        draws: numbers of draws; by default those that suit the device and the network.
        commit: what is measured, kept with each network, since others may be added at another one.
        tiny: take small networks and repeat little, to see that everything runs.
        earlier: a record of other networks, which stay in this one.
        keep: called with the record after each network, so that what is finished is not lost.
    """
    known = TINY if tiny else NETS
    chosen = [known[name] for name in nets or default_nets(device, tiny)]
    seconds = 0.0 if tiny else 1.0
    record = _empty(device, tiny)
    if earlier:
        _check_alike(earlier["settings"], record["settings"], "settings")
        record = _without(earlier, [net.name for net in chosen])
    with warnings.catch_warnings(), empty_compiler_cache():
        warnings.simplefilter("ignore")  # the peers' own
        for net in chosen:
            load = os.getloadavg()[0]
            numbers = tuple(draws or ((1, 2) if tiny else default_draws(net, device)))
            taking_part = entries(net, device, numbers)
            for one in (entry.contestant for entry in taking_part):
                described = _described(one)
                _check_alike(record["contestants"].get(_label(one), described), described, _label(one), ("version",))
                record["contestants"][_label(one)] = described
            steps = [row for n in numbers for row in _steps(net, taking_part, n, device, seconds)]
            record["steps"] += steps
            record["slopes"] += _slopes(net, steps)
            record["predictions"] += _predictions(net, taking_part, 2 if tiny else None, device, seconds)
            sizes = {"commit": commit, "batch": net.batch, "num_data": net.num_data, "draws": list(numbers)}
            record["settings"]["nets"][net.name] = {**sizes, "load_before": load, "load_after": os.getloadavg()[0]}
            if keep is not None:
                keep(record)
    return record


@contextmanager
def empty_compiler_cache() -> Iterator[None]:
    """Let the compiler find nothing that an earlier run left on disk: building takes what it takes the first time."""
    name, former = "TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            os.environ.pop(name)
            if former is not None:
                os.environ[name] = former


def default_nets(device: torch.device, tiny: bool = False) -> list[str]:
    """All of them; on a CPU without the ResNet, whose steps take seconds there."""
    return list(TINY) if tiny else [name for name in NETS if device.type == "cuda" or "resnet" not in name]


def _steps(
    net: Net, taking_part: Sequence[Entry], num_samples: int, device: torch.device, seconds: float
) -> list[dict[str, Any]]:
    works: dict[str, Callable[[], object]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for entry in (entry for entry in taking_part if num_samples in entry.draws):
        one = entry.contestant
        label = _label(one)
        rows[label] = {"net": net.name, "contestant": label, "num_samples": num_samples}
        began = time.perf_counter()
        try:
            build = partial(one.training_step, net, num_samples, device)
            works[label], peaks = built_and_peaks(build, device, is_compiled=bool(getattr(one, "fast", False)))
            rows[label] |= {"peak_mib": peaks.steps, "peak_mib_to_build": peaks.building}
            rows[label] |= {"seconds_to_build": time.perf_counter() - began}
            rows[label] |= {"how": getattr(works[label], "how", "eager")}
        except Exception as error:
            rows[label] |= {"error": _first_line(error)}
    warm_ups = WARM_UPS if device.type == "cpu" else WARM_UPS - RUNS  # these were run as memory was measured
    times = alternating_times_ms(works, device, seconds * STEP_SECONDS[device.type], warm_ups)
    return _finished(rows, works, times, f"{net.name}, a step with {num_samples} draws")


def _predictions(
    net: Net, taking_part: Sequence[Entry], draws: int | None, device: torch.device, seconds: float
) -> list[dict[str, Any]]:
    num_samples = draws or PREDICTION_DRAWS[device.type]
    images = net.images(device)
    quick: dict[str, Callable[[], object]] = {}
    slow: dict[str, Callable[[], object]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for one in (entry.contestant for entry in taking_part if entry.predicts):
        label = _label(one)
        rows[label] = {"net": net.name, "contestant": label, "num_samples": num_samples, "num_images": len(images)}
        try:
            best = best_prediction(one, net, num_samples, images)
            rows[label] |= {"shape": list(best.shape), "rows_at_a_time": best.rows}
            (quick if best.milliseconds < SLOW_SECONDS * 1e3 else slow)[label] = best.work
        except Exception as error:
            rows[label] |= {"error": _first_line(error)}
    limit = seconds * PREDICTION_SECONDS[device.type]
    times = alternating_times_ms(quick, device, limit, WARM_UPS)
    times |= alternating_times_ms(slow, device, limit, warm_ups=0)
    return _finished(rows, quick | slow, times, f"{net.name}, {len(images):,} predictions with {num_samples} draws")


def _finished(
    rows: dict[str, dict[str, Any]], works: dict[str, Callable[[], object]], times: dict[str, list[float]], title: str
) -> list[dict[str, Any]]:
    """The rows with their medians, printed; what was built is let go."""
    print(title)
    for label, row in rows.items():
        if label in times:
            own = sorted(times[label])
            row |= _spread(own)
            peak = row.get("peak_mib")
            memory = "" if peak is None else f"   {peak:9.1f} MiB"
            print(f"  {label:<34} {row['milliseconds']:10.3f} ms{memory}   {row.get('how', '')}", flush=True)
        else:
            print(f"  {label:<34} {row['error']}", flush=True)
    works.clear()
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return list(rows.values())


def _spread(times: list[float]) -> dict[str, Any]:
    """The median of sorted times, their quartiles, the fastest, and how many there are."""
    quarter, median, three_quarters = statistics.quantiles(times, n=4, method="inclusive")
    found = {"milliseconds": median, "quarter": quarter, "three_quarters": three_quarters}
    return {**found, "fastest": times[0], "repetitions": len(times)}


def _slopes(net: Net, steps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    times: dict[str, dict[int, float]] = {}
    for row in steps:
        if "milliseconds" in row:
            times.setdefault(row["contestant"], {})[row["num_samples"]] = row["milliseconds"]
    lines = {label: fitted(own) for label, own in times.items()}
    return [{"net": net.name, "contestant": label, **asdict(line)} for label, line in lines.items() if line]


def _label(contestant: Contestant) -> str:
    return f"{contestant.name}, {contestant.precision}"


def _described(contestant: Contestant) -> dict[str, Any]:
    described = {
        "kind": contestant.kind,
        "name": contestant.name,
        "precision": contestant.precision,
        "library": contestant.library,
        "version": version_of(contestant.library),
        "runs": contestant.runs,
        "divergence": contestant.divergence,
    }
    if contestant.library == "torch-uncertainty" and described["version"]:
        whole = of_torch_uncertainty.imported_whole()
        described["runs"] += "" if whole else "; imported without its packages' __init__, which need what is not here"
    if isinstance(contestant, Peer) and contestant.kind == "peer":
        try:
            described["gradient_error"] = gradient_error(contestant)
        except Exception as error:
            described["gradient_error"] = _first_line(error)
    return described


def _empty(device: torch.device, tiny: bool) -> dict[str, Any]:
    settings = {
        "device": device.type,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "nets": {},
        "warm_ups": WARM_UPS,
        "warm_ups_of_slow_predictions": 1 + TRIES,
        "compiler_cache": "empty",
        "rows_tried": rows_in_words(device),
        "optimizer": f"fused Adam, learning rate {LEARNING_RATE:g}",
        "tiny": tiny,
    }
    return {"settings": settings, "contestants": {}, "steps": [], "slopes": [], "predictions": []}


def _check_alike(earlier: dict[str, Any], now: dict[str, Any], what: str, names: Sequence[str] = ()) -> None:
    """Refuse to add to what was measured otherwise."""
    for name in names or [name for name in now if name != "nets"]:
        if earlier.get(name) != now[name]:
            raise SystemExit(f"--add needs the same {name} of {what}: had {earlier.get(name)!r}, now {now[name]!r}")


def _without(record: dict[str, Any], nets: Sequence[str]) -> dict[str, Any]:
    """A record less what it has of some networks."""
    kept = {
        name: [row for row in record[name] if row["net"] not in nets] for name in ("steps", "slopes", "predictions")
    }
    sizes = {name: own for name, own in record["settings"]["nets"].items() if name not in nets}
    return {**record, **kept, "settings": {**record["settings"], "nets": sizes}}


def _processor() -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return None
    names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
    return names[0] if names else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
