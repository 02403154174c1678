"""Options that several commands share, and the options of methods, none of which imports torch.

Importing a method imports torch, which takes seconds; help, completion and the error for a misspelled option need only
``METHOD_OPTIONS``. ``tests/end_to_end/test_method_fields.py`` holds that this table agrees with the dataclasses in
``dubio.methods``; ``dubio.cli.fields`` reads the values by the types of the fields.
"""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option
from typer.core import TyperCommand, TyperOption

from dubio.checks import did_you_mean


def _parse(line: str) -> tuple[str, dict[str, str | bool]]:
    """A method, and its values by option; a flag has True, or False where it is written as ``--no-NAME``."""
    options = re.findall(r"--(no-)?(\S+)(?: (?!--)(\S+))?", line)
    return line.split()[0], {f"--{name}": text or not negation for negation, name, text in options}


DEFAULTS = """\
bayes --prior normal:0,1 --estimator local --init-std 0.005 --bayesian-bias --no-norms --beta 0.03 --where none
dropout --p none --alpha 0 --l2 1e-06 --where none
input-noise --prior normal:1,0.3 --components 1 --kl mc --per channel --init-std 0.05 --init-spread none --beta 1 \
--no-freeze-deterministic --where none
flow --blocks none --prior normal:1,0.5 --base none --spatial average --beta 1 --gamma 0 \
--no-freeze-deterministic --where none
se-snn --margin 0 --weight 0.1 --at input --classes linear --where none
vib --beta 0.0001 --at input --where none
pni --per layer --init 0.1 --where none
wasserstein --num-points 8 --dim 64 --noise-dim 64 --noise normal --hidden 256 --prototype generated \
--distance sliced --num-directions 50 --eval-redraws 1 --p 2 --no-root --trained-scale --margin 2 \
--feature-weight 0.03 --class-weight 0.3 --regularisation 1 --num-iterations 20 --where none
deterministic --l2 0
ensemble --members 5 --no-bootstrap
"""
METHOD_OPTIONS = dict(map(_parse, DEFAULTS.splitlines()))
"""The options of each method with their defaults as they are written; the value of a flag is True or False."""
LONGEST = 76
"""Characters of an example, which fits on one line of 80 columns."""
DEVICES = "cpu, cuda, cuda:1 ... or mps"

# The following three are defined in packages that import torch too; test_start_up.py holds that they agree.
Precision = Literal["fp32", "tf32", "bf16"]
BudgetName = Literal["tiny", "quick", "full"]
CORRUPTION_NAMES = ("noise", "blur", "contrast", "rotation", "inversion")


class MethodOptionsCommand(TyperCommand):
    """A command that also takes the options of every method; ``ctx.obj`` has the given ones, unparsed, by field."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        defaults = {option: default for values in METHOD_OPTIONS.values() for option, default in values.items()}
        for option, default in defaults.items():
            is_flag = isinstance(default, bool)
            spelling = f"{option}/--no-{option.removeprefix('--')}" if is_flag else option
            param = TyperOption(
                param_decls=[spelling], is_flag=is_flag, hidden=True, expose_value=False, callback=_keep_field
            )
            self.params.append(param)


def _keep_field(ctx: Context, param: Any, value: str | bool | None) -> None:
    fields = ctx.ensure_object(dict)
    if value is not None:
        fields[param.name] = value


def example(method: str, run: str) -> str:
    """A command that trains by a method with some options at their defaults, as many as fit on a line."""
    line = f"Example:  dubio train {run} --method {method}"
    for option, default in METHOD_OPTIONS[method].items():
        longer = line if isinstance(default, bool) or default == "none" else f"{line} {option} {default}"
        line = longer if len(longer) <= LONGEST else line
    return line


def command_line(ctx: Context, run: str, *names: str, **changed: str) -> str:
    """The command of a context on a run, with those of the named options whose value is not the default.

    Records store the line, and reports show it. ``changed`` are options whose value is not that of the context.
    """
    options = {param.name: param for param in ctx.command.params}
    words = ["dubio", str(ctx.info_name), run]
    for name, value in {**{name: ctx.params[name] for name in names}, **changed}.items():
        if value != options[name].default:
            words += [options[name].opts[0], *([] if value is True else [str(value)])]
    return shlex.join(words)


def device_for(name: str | None) -> str:
    """The device to compute on: the given one, else a GPU where there is one."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name} is not available; use --device cpu")
    return name


def _check_device(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", name):
        raise ValueError(f"--device must be {DEVICES}, got {name!r}{did_you_mean(name, ('cpu', 'cuda', 'mps'))}")
    return name


def _complete_run(context: Context, incomplete: str) -> list[str]:
    runs = Path(context.params.get("runs") or "runs")
    return sorted(file.parent.name for file in runs.glob("*/config.json") if file.parent.name.startswith(incomplete))


Named = Annotated[
    str,
    Argument(
        metavar="RUN_OR_FILE", autocompletion=_complete_run, help="Name or folder of a run, or .safetensors file."
    ),
]
RunName = Annotated[str, Argument(metavar="RUN", autocompletion=_complete_run, help="Name or folder of a run.")]
SeveralRuns = Annotated[
    list[str], Argument(metavar="RUN...", autocompletion=_complete_run, help="Names or folders of one or more runs.")
]
Runs = Annotated[Path, Option("--runs", metavar="DIR", help="Folder of the runs.")]
DataDir = Annotated[
    Path | None, Option(metavar="DIR", help="Folder of the datasets (default: $DUBIO_DATA, else data).")
]
TestData = Annotated[
    str | None, Option("--data", help="Data whose test part is used (default: those of the run, else digits).")
]
OutDir = Annotated[Path | None, Option("--out", metavar="DIR", help="Folder to write to (default: that of the run).")]
Samples = Annotated[int, Option("--samples", help="Number of draws.")]
DecisionSamples = Annotated[int, Option("--samples", help="Number of draws; predict with as many.")]
Seed = Annotated[int, Option("--seed", help="Seed of the draws.")]
Device = Annotated[
    str | None, Option(callback=_check_device, help=f"{DEVICES} (default: cuda where there is a GPU, else cpu).")
]
InPrecision = Annotated[
    Precision,
    Option("--precision", help="fp32: full precision; bf16: 2 to 3 digits, much faster on a GPU; tf32: between."),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print only results and warnings.")]
