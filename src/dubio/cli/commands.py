"""The commands of ``dubio``: those about data and training are here, the others in files of their own."""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import dubio
from dubio.cli.answers import Answering
from dubio.cli.arguments import DataDir, Device, InPrecision, Named, Runs, device_for
from dubio.cli.attacking import assail, choose_images, parse_attacks, parse_epsilons, summarise
from dubio.cli.attacking import tabulate as tabulate_attacks
from dubio.cli.audit_command import audit_run
from dubio.cli.data_command import show_data
from dubio.cli.decide_command import abstain, calibrate, conformal
from dubio.cli.evaluate_command import evaluate_run
from dubio.cli.fields import Fields, TakingFields
from dubio.cli.folders import check_name, folder_of, list_runs, load_model, network_of
from dubio.cli.methods_command import examples, show_method, show_methods
from dubio.cli.picturing import picture
from dubio.cli.predicting import check_fits, parse_index, tabulate, test_examples
from dubio.cli.prune_command import prune
from dubio.cli.report_command import compare, report
from dubio.cli.reproduce_command import reproduce_experiment
from dubio.cli.showing import show_demo
from dubio.cli.train_command import train_run
from dubio.methods import METHODS
from dubio.models import sizes_of
from dubio.sampling import Precision

__all__ = ["app", "main"]

app = typer.Typer(
    name="dubio",
    cls=Answering,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRAIN = f"""Train a stochastic network, keep it in a run folder, and test it.

The method is one of {", ".join(METHODS)}.
dubio methods NAME lists a method's own options, which stand among those below.

Ctrl-C loses nothing: the run is saved, and --resume goes on; with --epochs it
trains longer.

Several processes train together under torchrun and share every batch:
torchrun --nproc-per-node 2 -m dubio train first

{examples("first")}

Example:  dubio train second --data mnist --model lenet --label-noise flip:0.3
"""


def main() -> None:
    """The console script ``dubio``."""
    app(prog_name="dubio")


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"dubio {dubio.__version__} (torch {torch.__version__})")
        raise typer.Exit()
    return wanted


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Stochastic neural networks: train one, and see what it does not know.

    Begin with:  dubio demo  or  dubio train first  and then  dubio predict first

    Exit codes: 0 fine, 1 a gate or a part failed, 2 bad arguments, 3 interrupted and resumable.
    """


@app.command()
def demo(
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these methods (default: all; see dubio methods).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs for each network (default: the method's own).")] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Train a network on digits by every method, judge, attack and audit them, and write a report.

    Takes a minute or two on two cores, and ends with a table, what it means, a page to open in a browser, and a run of
    each method to look at. Three of them are audited.

    Example:  dubio demo

    Example:  dubio demo --methods deterministic,bayes,ensemble
    """
    show_demo(runs, methods, epochs)


@app.command("data")
def list_data(
    data_dir: DataDir = None,
    download: Annotated[str | None, typer.Option(metavar="NAME", help="Fetch this dataset first.")] = None,
) -> None:
    """List the datasets: what is there, what is missing, and where each goes.

    A folder of images by class, or a .npz, .csv or .parquet file, will do wherever a name is asked for.

    Example:  dubio data --download fashionmnist
    """
    show_data(data_dir, download)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this method and its options.")] = None,
) -> None:
    """List the methods, or show one: its options for dubio train, and how it is trained.

    Every option is a field of the method in Python: --init-std 0.1 is init_std=0.1.

    Example:  dubio methods flow
    """
    if name is None:
        show_methods()
    else:
        show_method(name)


@app.command(cls=TakingFields, help=TRAIN)
def train(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the run; its folder is DIR/NAME.")],
    fields: Fields,
    data: Annotated[
        str | None,
        typer.Option(help="A dataset (see dubio data), or path of a folder of images or table (default: digits)."),
    ] = None,
    data_dir: DataDir = None,
    label_noise: Annotated[
        str | None,
        typer.Option(help="Wrong labels to train with: flip:P, symmetric:P, uniform-mix:P or mnist-asymmetric:P."),
    ] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Shift and mirror images while training.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Network: fc:100-100, lenet, vgg16, resnet18, mlp:64-100-10 ... (default: fc:100-100)."),
    ] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)} (default: bayes).")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often the data are run through.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    noise_lr: Annotated[float | None, typer.Option(help="That of the noise's own parameters.")] = None,
    schedule: Annotated[
        Literal["constant", "cosine", "linear"] | None, typer.Option(help="How the rate falls (default: constant).")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples in a batch (default: 128).")] = None,
    samples: Annotated[int | None, typer.Option(help="Draws for each step.")] = None,
    seed: Annotated[int | None, typer.Option(help="First weights, order of the data, and noise (default: 0).")] = None,
    device: Device = None,
    precision: Annotated[
        Precision | None, typer.Option(help="tf32 and bf16 round factors of products (default: fp32).")
    ] = None,
    fast: Annotated[
        bool | None,
        typer.Option("--fast/--eager", help="Insist on a compiled step, or on a plain one (default: what suits)."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="What a step's draws may take: '2 GiB' (default: what there is).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run, with the options it had.")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Train a network; ``TRAIN`` is what its help says."""
    check_name(name)
    given: dict[str, Any] = {
        "data": data,
        "data_dir": None if data_dir is None else str(data_dir),
        "label_noise": label_noise,
        "augment": augment or None,
        "model": model,
        "method": method,
        "schedule": schedule,
        "epochs": epochs,
        "lr": lr,
        "noise_lr": noise_lr,
        "batch_size": batch_size,
        "samples": samples,
        "seed": seed,
        "precision": precision,
        "fast": fast,
        "memory": memory,
    }
    given = {option: value for option, value in given.items() if value is not None}
    train_run(name, runs, fields, given, resume, device_for(device))


@app.command("runs")
def show_runs(runs: Runs = Path("runs")) -> None:
    """List the runs of a folder: epochs done, and the best one's validation NLL and accuracy.

    The names are what describe, predict, export and train --resume take.

    Example:  dubio runs
    """
    found = list_runs(runs)
    if not found:
        typer.echo(f"no runs in {runs}; train one: dubio train first")
        return
    table = Table("name", "method", "epochs", "best val NLL", "its accuracy")
    for run in found:
        nll, accuracy = run.best.get("val_nll"), run.best.get("val_accuracy")
        shown = ("-" if value is None else f"{value:.4f}" for value in (nll, accuracy))
        table.add_row(escape(run.name), run.method, f"{run.epochs_done}/{run.epochs}", *shown)
    Console().print(table)


@app.command()
def describe(named: Named, runs: Runs = Path("runs")) -> None:
    """Say what is random in a network and what is not, layer by layer.

    Shows the method, the likelihood, and the prior and estimator of every layer.

    Example:  dubio describe first
    """
    typer.echo(str(dubio.describe(load_model(named, runs))))


@app.command()
def predict(
    named: Named,
    index: Annotated[str, typer.Option(help="Which test examples: 3, 0..9, 40.. or 1,5,7.")] = "0..9",
    data: Annotated[
        str | None, typer.Option(help="Whose test part (default: what the run was trained on, else digits).")
    ] = None,
    data_dir: DataDir = None,
    samples: Annotated[int, typer.Option(help="Draws.")] = 100,
    seed: Annotated[int, typer.Option(help="Which draws.")] = 0,
    device: Device = None,
    precision: InPrecision = "fp32",
    runs: Runs = Path("runs"),
) -> None:
    """Predict test examples: the label, how sure it is, and where the doubt comes from.

    Entropy is all doubt, in nats; mutual information is the part that draws disagree about. What was decided with
    calibrate, abstain and conformal is applied, and shown.

    Example:  dubio predict first --index 0..9 --samples 100

    Example:  dubio predict first --index 0.. --device cuda --precision bf16
    """
    model = load_model(named, runs).to(device_for(device))
    examples = test_examples(named, runs, data, data_dir)
    check_fits(model, examples)
    rows = parse_index(index, len(examples))
    found = dubio.predict(model, examples[rows], num_samples=samples, precision=precision, seed=seed)
    Console().print(tabulate(found, rows, examples.targets[rows], examples.classes))


app.command("evaluate")(evaluate_run)
for decide in (calibrate, abstain, conformal):
    app.command()(decide)


@app.command()
def attack(
    named: Named,
    attack: Annotated[
        str,
        typer.Option(help="fgsm, pgd, apgd, square, random_noise or transfer (from noise off); several with commas."),
    ] = "pgd",
    epsilon: Annotated[
        str, typer.Option(help="How far an input may move: 0.1 or 8/255; several with commas.")
    ] = "8/255",
    norm: Annotated[
        Literal["linf", "l2"] | None, typer.Option(help="How distance is measured (default: linf).")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps along the gradient (default: 20).")] = None,
    restarts: Annotated[int | None, typer.Option(help="How often it starts anew (default: 1).")] = None,
    samples: Annotated[int | None, typer.Option(help="K: draws that each gradient averages (default: 20).")] = None,
    draws: Annotated[int, typer.Option(help="T: fresh draws to score with.")] = 100,
    objective: Annotated[
        Literal["predictive", "expected", "mean_logit", "votes"] | None,
        typer.Option(help="What is averaged over draws; votes for square and random_noise."),
    ] = None,
    loss: Annotated[Literal["cross_entropy", "margin", "dlr"] | None, typer.Option(help="What is raised.")] = None,
    noise: Annotated[
        Literal["fresh", "frozen", "off"] | None, typer.Option(help="New draws at each step, the same ones, or none.")
    ] = None,
    images: Annotated[int, typer.Option(help="How many test images; always the same ones.")] = 500,
    data: Annotated[
        str | None, typer.Option(help="Whose test part (default: what the run was trained on, else digits).")
    ] = None,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Which draws.")] = 0,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where files go (default: the run's folder).")] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Attack a network over many draws, and score what is left on fresh ones.

    R_pred is the accuracy of the mean over draws, R_1 of one draw, R_retry of ten in a row, all with intervals at 95 %.
    Writes attack.json, attack.safetensors (the images) and attack.png over those of an attack before.

    Example:  dubio attack first --attack pgd --epsilon 8/255 --samples 20
    Example:  dubio attack first --attack pgd,transfer --epsilon 0.05,0.1
    """
    names, epsilons = parse_attacks(attack), parse_epsilons(epsilon)
    chosen_fields = {
        "norm": norm,
        "steps": steps,
        "restarts": restarts,
        "num_samples": samples,
        "objective": objective,
        "loss": loss,
        "noise": noise,
    }
    fields = {field: value for field, value in chosen_fields.items() if value is not None}
    model = load_model(named, runs).to(device_for(device))
    examples = test_examples(named, runs, data, data_dir)
    check_fits(model, examples)
    chosen = choose_images(examples, images)
    found = assail(model, chosen, names, epsilons, fields, num_draws=draws, seed=seed)
    folder = out or folder_of(named, runs)
    found.save(folder, {"model": named, "network": network_of(named, runs).tensors})
    Console().print(tabulate_attacks(found))
    typer.echo(summarise(found))
    typer.echo(f"images: {folder / 'attack.safetensors'}, record: {folder / 'attack.json'}")
    typer.echo(picture(model, found, folder / "attack.png"))


app.command()(prune)
app.command()(report)
app.command()(compare)
app.command("audit")(audit_run)
app.command("reproduce")(reproduce_experiment)


@app.command()
def export(
    named: Named,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .pt2 for torch.export, or .onnx.")],
    noise: Annotated[
        Literal["off", "fresh", "frozen"], typer.Option(help="The mean network, new draws at each run, or fixed draws.")
    ] = "off",
    samples: Annotated[int | None, typer.Option(help="Draws, as a leading axis; not with noise off.")] = None,
    seed: Annotated[int, typer.Option(help="Which draws, where frozen.")] = 0,
    runs: Runs = Path("runs"),
) -> None:
    """Write a network to a file that runs without dubio: .pt2 or .onnx.

    The batch size stays free; .onnx needs the export extra, pip install 'dubio\\[export]'.

    Example:  dubio export first first.onnx --noise frozen --samples 10
    """
    if out.suffix not in (".pt2", ".onnx"):
        raise ValueError(f"OUT must end in .pt2 or .onnx, got {str(out)!r}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent} to write {out.name} to")
    model = load_model(named, runs)
    sizes = sizes_of(model)
    if sizes is None or sizes.inputs is None:
        raise ValueError(f"{named} does not say what its inputs look like; use dubio.export in Python")
    shape = sizes.inputs
    format: Literal["torch", "onnx"] = "onnx" if out.suffix == ".onnx" else "torch"
    dubio.export(model, torch.zeros(2, *shape), out, format=format, noise=noise, num_samples=samples, seed=seed)
    weights = out.with_name(f"{out.name}.data")  # where torch puts the weights of an .onnx
    files = f"{out} and {weights.name}" if out.suffix == ".onnx" and weights.is_file() else str(out)
    typer.echo(f"wrote {files}: noise {noise}, inputs (batch, {', '.join(map(str, shape))})")
