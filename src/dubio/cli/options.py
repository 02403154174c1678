"""The methods and their options, known without importing them: importing a method imports torch, which takes seconds.

``METHOD_OPTIONS`` is what help, completion and the refusal of a misspelled option need. Values are read by
``dubio.cli.fields``, from the types of the fields. ``tests/end_to_end/test_method_fields.py`` holds that this table is
what the dataclasses in ``dubio.methods`` say.

Arguments that several commands share.
"""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option
from typer.core import TyperCommand
from typer.exceptions import TyperException

from dubio.checks import did_you_mean

METHOD_OPTIONS: dict[str, dict[str, str | bool]] = {
    "bayes": {
        "--prior": "normal:0,1",
        "--estimator": "local",
        "--init-std": "0.005",
        "--bayesian-bias": True,
        "--norms": False,
        "--beta": "0.03",
        "--where": "none",
    },
    "dropout": {"--p": "none", "--alpha": "0", "--l2": "1e-06", "--where": "none"},
    "input-noise": {
        "--prior": "normal:1,0.3",
        "--components": "1",
        "--kl": "mc",
        "--per": "channel",
        "--init-std": "0.05",
        "--init-spread": "none",
        "--beta": "1",
        "--freeze-deterministic": False,
        "--where": "none",
    },
    "flow": {
        "--blocks": "none",
        "--prior": "normal:1,0.5",
        "--base": "none",
        "--spatial": "average",
        "--beta": "1",
        "--gamma": "0",
        "--freeze-deterministic": False,
        "--where": "none",
    },
    "se-snn": {"--margin": "0", "--weight": "0.1", "--at": "input", "--classes": "linear", "--where": "none"},
    "vib": {"--beta": "0.0001", "--at": "input", "--where": "none"},
    "pni": {"--per": "layer", "--init": "0.1", "--where": "none"},
    "wasserstein": {
        "--num-points": "8",
        "--dim": "64",
        "--noise-dim": "64",
        "--noise": "normal",
        "--hidden": "256",
        "--prototype": "generated",
        "--distance": "sliced",
        "--num-directions": "50",
        "--eval-redraws": "1",
        "--p": "2",
        "--root": False,
        "--trained-scale": True,
        "--margin": "2",
        "--feature-weight": "0.03",
        "--class-weight": "0.3",
        "--regularisation": "1",
        "--num-iterations": "20",
        "--where": "none",
    },
    "deterministic": {"--l2": "0"},
    "ensemble": {"--members": "5", "--bootstrap": False},
}
"""Of each method its options with their defaults as they are written; a flag has True or False."""


FIELDS = "--fields"


Fields = Annotated[dict[str, str | bool], Option(FIELDS, parser=json.loads, hidden=True)]
"""How a ``TakingFields`` command receives the fields of its method, as they were written."""


LONGEST = 76
"""Characters of an example, so that it stays on one line of a small screen."""


class TakingFields(TyperCommand):
    """A command that takes the fields of every method as options, wherever they stand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take out the options of methods, and leave the rest to typer."""
        options = _flags_and_fields()
        try:
            rest, given = _take_out(args, options)
            return super().parse_args(ctx, [FIELDS, json.dumps(given), *rest])
        except TyperException as error:
            name = getattr(error, "option_name", None)
            if name is not None and hasattr(error, "possibilities"):  # no such option
                own = [spelling for parameter in self.params for spelling in parameter.opts if spelling != FIELDS]
                error.possibilities = get_close_matches(name, [*own, *options])
            raise


def example(method: str, run: str) -> str:
    """A command that trains by a method with some options at their defaults, as many as fit on a line."""
    shown = f"Example:  dubio train {run} --method {method}"
    for option, default in METHOD_OPTIONS[method].items():
        longer = shown if isinstance(default, bool) or default == "none" else f"{shown} {option} {default}"
        shown = longer if len(longer) <= LONGEST else shown
    return shown


def _flags_and_fields() -> dict[str, tuple[str, bool | None]]:
    """The options of all methods: the field of each, and the value that a flag stands for."""
    meanings: dict[str, tuple[str, bool | None]] = {}
    for options in METHOD_OPTIONS.values():
        for option, default in options.items():
            field = option.removeprefix("--").replace("-", "_")
            if isinstance(default, bool):
                meanings[option] = (field, True)
                meanings[f"--no-{option.removeprefix('--')}"] = (field, False)
            else:
                meanings[option] = (field, None)
    return meanings


def _take_out(
    args: Sequence[str], options: dict[str, tuple[str, bool | None]]
) -> tuple[list[str], dict[str, str | bool]]:
    """Arguments that are no fields of methods, and the fields as they are written."""
    rest: list[str] = []
    given: dict[str, str | bool] = {}
    waiting = list(args)
    while waiting:
        argument = waiting.pop(0)
        option, equals, text = argument.partition("=")
        if argument == "--":
            return [*rest, argument, *waiting], given
        if option not in options:
            rest.append(argument)
            continue
        name, value = options[option]
        if value is not None:
            if equals:
                raise ValueError(f"{option} must stand alone, got {argument!r}")
            given[name] = value
        elif equals:
            given[name] = text
        elif waiting:
            given[name] = waiting.pop(0)
        else:
            raise ValueError(f"{option} must be followed by its value, got nothing")
    return rest, given


DEVICES = "cpu, cuda, cuda:1 ... or mps"


def _check_device(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", name):
        raise ValueError(f"--device must be {DEVICES}, got {name!r}{did_you_mean(name, ('cpu', 'cuda', 'mps'))}")
    return name


def _complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the names of the runs that are there."""
    runs = Path(context.params.get("runs") or "runs")
    return sorted(file.parent.name for file in runs.glob("*/config.json") if file.parent.name.startswith(incomplete))


# These three stand in packages that import torch too; test_start_up.py holds that they are the same.
Precision = Literal["fp32", "tf32", "bf16"]


BudgetName = Literal["tiny", "quick", "full"]


CORRUPTION_NAMES = ("noise", "blur", "contrast", "rotation", "inversion")


Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds the runs.")]


DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of all data (default: $DUBIO_DATA, else data).")
]


Named = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_FILE", autocompletion=_complete_run, help="A run's name or folder, or a .safetensors file."
    ),
]


RunName = Annotated[str, typer.Argument(metavar="RUN", autocompletion=_complete_run, help="A run's name or folder.")]


DecisionSamples = Annotated[int, typer.Option("--samples", help="Draws; predict with as many.")]


DecisionSeed = Annotated[int, typer.Option("--seed", help="Which draws.")]


Device = Annotated[
    str | None, typer.Option(callback=_check_device, help=f"{DEVICES} (default: cuda where there is one, else cpu).")
]


InPrecision = Annotated[
    Precision,
    typer.Option(
        "--precision", help="fp32: all digits; bf16: two or three digits, much faster on a GPU; tf32: between."
    ),
]


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and warnings alone: no progress and no remarks.")
]


SeveralRuns = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", autocompletion=_complete_run, help="Names or folders of one or more runs."),
]


def device_for(name: str | None) -> str:
    """The device to compute on: the one given, else a GPU where there is one."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name} is not there; cpu is")
    return name
