"""The commands of ``dubio``: what each takes, and what its help says.

Nothing here imports torch: ``dubio --help``, ``--version``, completion and a misspelled option answer at once
(``tests/end_to_end/test_start_up.py``). What a command needs is imported in its body, when it runs.
"""

import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dubio.checks import check_choice
from dubio.cli.errors import INTERRUPTED, Answering, say
from dubio.cli.options import (
    CORRUPTION_NAMES,
    METHOD_OPTIONS,
    BudgetName,
    DataDir,
    DecisionSamples,
    DecisionSeed,
    Device,
    Fields,
    InPrecision,
    Named,
    Precision,
    Quiet,
    RunName,
    Runs,
    SeveralRuns,
    TakingFields,
    device_for,
    example,
)
from dubio.version import VERSION

app = typer.Typer(
    name="dubio",
    cls=Answering,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXAMPLES = "\n\n".join(example(method, "first") for method in METHOD_OPTIONS)
TRAIN = f"""Train a stochastic network, keep it in a run folder, and test it.

The method is one of {", ".join(METHOD_OPTIONS)}.
dubio methods NAME lists a method's own options, which stand among those below.

Ctrl-C loses nothing: the run is saved, and --resume goes on; with --epochs it
trains longer.

Several processes train together under torchrun and share every batch:
torchrun --nproc-per-node 2 -m dubio train first

{EXAMPLES}

Example:  dubio train second --data mnist --model lenet --label-noise flip:0.3

Example:  dubio train shop --data customers.csv --target bought --drop id
"""


def main() -> None:
    """The console script ``dubio``."""
    try:
        app(prog_name="dubio")
    except (KeyboardInterrupt, SystemExit) as ended:
        # The command is over: from here on Ctrl-C ends the process at once, not by a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise SystemExit(ended.code if isinstance(ended, SystemExit) else INTERRUPTED) from None


def _version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        say(f"dubio {VERSION} (torch {version('torch')})")
        raise typer.Exit()
    return wanted


def _check_method(name: str | None) -> str | None:
    if name is not None:
        check_choice("--method", name, METHOD_OPTIONS)
    return name


def _complete_method(incomplete: str) -> list[str]:
    return [name for name in METHOD_OPTIONS if name.startswith(incomplete)]


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
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Only see that everything runs: three methods, one epoch, no audits.")
    ] = False,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Train a network on digits by every method, judge, attack and audit them, and write a report.

    Takes a few minutes on two cores, and ends with a table, what it means, what audits of three networks concluded, a
    page to open in a browser, and a run of each method to look at.

    Example:  dubio demo

    Example:  dubio demo --methods deterministic,bayes,ensemble

    Example:  dubio demo --tiny
    """
    from dubio.cli.demo import show_demo

    show_demo(runs, methods, epochs, tiny=tiny, quiet=quiet)


@app.command("data")
def list_data(
    data_dir: DataDir = None,
    download: Annotated[str | None, typer.Option(metavar="NAME", help="Fetch this dataset first.")] = None,
    quiet: Quiet = False,
) -> None:
    """List the datasets: what is there, what is missing, and where each goes.

    A folder of images by class, or a .npz, .csv or .parquet file, will do wherever a name is asked for.

    Example:  dubio data --download fashionmnist
    """
    from dubio.cli.fields import show_data

    show_data(data_dir, download, quiet)


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", autocompletion=_complete_method, help="Show this method and its options."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """List the methods, or show one: its options for dubio train, and how it is trained.

    Every option is a field of the method in Python: --init-std 0.1 is init_std=0.1.

    Example:  dubio methods flow
    """
    if name is not None:
        check_choice("NAME", name, METHOD_OPTIONS)
    from dubio.cli.fields import show_method, show_methods

    if name is None:
        show_methods(quiet)
    else:
        show_method(name, quiet)


@app.command(cls=TakingFields, help=TRAIN)
def train(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the run; its folder is DIR/NAME.")],
    fields: Fields,
    data: Annotated[
        str | None,
        typer.Option(help="A dataset (see dubio data), or path of a folder of images or table (default: digits)."),
    ] = None,
    data_dir: DataDir = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of a table to predict (default: target, label, class, y, or the last)."
        ),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="What the target is for (default: numbers with a fraction are for regression)."),
    ] = None,
    drop: Annotated[str | None, typer.Option(metavar="A,B", help="Columns of a table to leave out.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="What separates the cells of a .csv: ',', ';', tab or '|' (default: detected).")
    ] = None,
    standardise: Annotated[
        bool | None,
        typer.Option(
            "--standardise/--as-is", help="Standardise the inputs of a table by the first layer (default: yes)."
        ),
    ] = None,
    label_noise: Annotated[
        str | None,
        typer.Option(help="Wrong labels to train with: flip:P, symmetric:P, uniform-mix:P or mnist-asymmetric:P."),
    ] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Shift and mirror images while training.")] = False,
    resize: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Resize the images of a folder: 32, or 32x48 for height and width."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Network: fc:100-100, lenet, vgg16, resnet18, mlp:64-100-10 ... (default: fc:100-100)."),
    ] = None,
    likelihood: Annotated[
        str | None,
        typer.Option(
            help="Noise of numbers: gaussian (depends on the input; the default), gaussian:learned (one for all), "
            "gaussian:0.1 (known, in units of the target). For classes: categorical (default), bernoulli (two classes)."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            callback=_check_method,
            autocompletion=_complete_method,
            help=f"{', '.join(METHOD_OPTIONS)} (default: bayes).",
        ),
    ] = None,
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
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Train a network; ``TRAIN`` is what its help says."""
    from dubio.cli.runs import check_name
    from dubio.cli.train import train_run

    check_name(name)
    given: dict[str, Any] = {
        "data": data,
        "data_dir": None if data_dir is None else str(data_dir),
        "target": target,
        "task": task,
        "drop": drop,
        "delimiter": delimiter,
        "standardise": standardise,
        "label_noise": label_noise,
        "augment": augment or None,
        "resize": resize,
        "model": model,
        "likelihood": likelihood,
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
    train_run(name, runs, fields, given, resume, device_for(device), quiet)


@app.command("runs")
def show_runs(quiet: Quiet = False, runs: Runs = Path("runs")) -> None:
    """List the runs of a folder: epochs done, and the best one's validation NLL and accuracy.

    The names are what describe, predict, export and train --resume take.

    Example:  dubio runs
    """
    from rich.console import Console

    from dubio.cli.runs import Unreadable, list_runs
    from dubio.cli.terminal import PlainTable

    found = list_runs(runs)
    if not found:
        if not quiet:
            say(f"no runs in {runs}; train one: dubio train first")
        return
    table = PlainTable("name", "method", "epochs", "best val NLL", "its accuracy")
    for run in found:
        if isinstance(run, Unreadable):
            continue
        nll, accuracy = run.best.get("val_nll"), run.best.get("val_accuracy")
        shown = ("-" if value is None else f"{value:.4f}" for value in (nll, accuracy))
        table.add_row(run.name, run.method, f"{run.epochs_done}/{run.epochs}", *shown)
    if table.row_count:
        Console().print(table)
    for run in found:
        if isinstance(run, Unreadable):
            say(f"{run.name} cannot be read: {run.reason}")


@app.command()
def describe(named: Named, quiet: Quiet = False, runs: Runs = Path("runs")) -> None:
    """Say what is random in a network and what is not, layer by layer.

    Shows the method, the likelihood, and the prior and estimator of every layer.

    Example:  dubio describe first
    """
    from dubio.cli.runs import load_model
    from dubio.convert import describe

    say(str(describe(load_model(named, runs))))


@app.command()
def predict(
    named: Named,
    new: Annotated[
        Path | None,
        typer.Argument(
            metavar="[NEW_DATA]",
            help="Data without labels: a .csv, .parquet, .jsonl or .npz, an image, or a folder of them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the predictions of NEW_DATA: .csv, .jsonl, .parquet or .npz."),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability that the interval of a number holds.")] = 0.95,
    delimiter: Annotated[
        str | None, typer.Option(help="What separates the cells of a .csv (default: detected).")
    ] = None,
    quiet: Quiet = False,
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
    """Predict new data, or test examples: the label, how sure it is, and where the doubt comes from.

    NEW_DATA needs no labels. A table must have the columns that the run was trained on, in any order. It is read and
    written a few thousand rows at a time, so that its size does not matter.

    Entropy is all doubt, in nats; mutual information is the part that draws disagree about. What was decided with
    calibrate, abstain and conformal is applied, and shown.

    Example:  dubio predict churn new.csv --out predictions.csv

    Example:  dubio predict first --index 0..9 --samples 100

    Example:  dubio predict first --index 0.. --device cuda --precision bf16
    """
    from rich.console import Console

    from dubio.cli.predict import check_fits, order_of, parse_index, predict_new, tabulate, test_examples
    from dubio.cli.runs import class_names, folder_of, input_shape, load_model, parse_resize, read_encoder
    from dubio.prediction import predict

    model = load_model(named, runs).to(device_for(device))
    if new is not None:
        folder = folder_of(named, runs)
        encoder = read_encoder(folder)
        predict_new(
            model,
            new,
            out=out,
            encoder=encoder,
            classes=() if encoder else class_names(folder),
            shape=() if encoder else input_shape(folder),
            num_samples=samples,
            level=level,
            precision=precision,
            seed=seed,
            delimiter=delimiter,
            resize=parse_resize(order_of(named, runs).resize),
            quiet=quiet,
        )
        return
    if out is not None:
        raise ValueError(f"--out writes predictions of new data; name them: dubio predict {named} new.csv --out {out}")
    examples = test_examples(named, runs, data, data_dir)
    check_fits(model, examples)
    rows = parse_index(index, len(examples))
    found = predict(model, examples[rows], num_samples=samples, precision=precision, seed=seed)
    Console().print(tabulate(found, rows, examples.targets[rows], examples.classes))


@app.command()
def evaluate(
    named: Named,
    ood: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Data never seen: names (see dubio data), paths or noise (default: what fits); none."
        ),
    ] = None,
    corruptions: Annotated[
        str, typer.Option(metavar="A,B", help=f"Corrupt the images: {', '.join(CORRUPTION_NAMES)}; or all.")
    ] = "none",
    samples: Annotated[int, typer.Option(help="Draws; as many again tell whether they are enough.")] = 100,
    resamples: Annotated[int, typer.Option(help="Resamples for the intervals; 0 for none.")] = 300,
    data: Annotated[
        str | None, typer.Option(help="Whose test part (default: what the run was trained on, else digits).")
    ] = None,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Which draws and resamples.")] = 0,
    device: Device = None,
    precision: InPrecision = "fp32",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the file goes (default: the run).")] = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Judge a network on test data: how right it is, how sure, and whether it doubts what it has never seen.

    Writes evaluation.json, which dubio report and dubio compare read.

    Example:  dubio evaluate first

    Example:  dubio evaluate lenet --ood fashionmnist,noise --corruptions all
    """
    from dubio.cli.evaluate import evaluate_run

    evaluate_run(named, ood, corruptions, samples, resamples, data, data_dir, seed, device, precision, out, quiet, runs)


@app.command()
def calibrate(
    named: RunName,
    kind: Annotated[
        Literal["temperature", "vector"], typer.Option(help="One number for all classes, or two for each.")
    ] = "temperature",
    per_draw: Annotated[
        bool, typer.Option("--per-draw", help="Scale each draw before averaging, not the mean prediction.")
    ] = False,
    samples: DecisionSamples = 100,
    seed: DecisionSeed = 0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Make a run's predictions milder or sharper, as its validation data ask for.

    Keeps it with the network, so that predict applies it. A threshold or sets found before are dropped.

    Example:  dubio calibrate first
    """
    from dubio.cli.calibrate import calibrate as run

    run(named, kind, per_draw, samples, seed, data_dir, quiet, runs)


@app.command()
def abstain(
    named: RunName,
    error: Annotated[float | None, typer.Option(help="Largest error among accepted predictions.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Share of predictions to accept instead.")] = None,
    score: Annotated[
        Literal["confidence", "entropy", "mutual_information"], typer.Option(help="What sureness is measured by.")
    ] = "confidence",
    level: Annotated[float, typer.Option(help="Probability with which the error holds.")] = 0.9,
    samples: DecisionSamples = 100,
    seed: DecisionSeed = 0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Find when a prediction is sure enough to be accepted, for a wanted error or coverage.

    Keeps it with the network, so that predict tells what is accepted.

    Example:  dubio abstain first --error 0.05
    Example:  dubio abstain first --coverage 0.8
    """
    from dubio.cli.calibrate import abstain as run

    run(named, error, coverage, score, level, samples, seed, data_dir, quiet, runs)


@app.command()
def conformal(
    named: RunName,
    coverage: Annotated[float, typer.Option(help="Probability that the target is in its set.")] = 0.9,
    kind: Annotated[Literal["lac", "aps"], typer.Option(help="Smallest sets on average, or more even ones.")] = "lac",
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Let sets be empty.")] = False,
    samples: DecisionSamples = 100,
    seed: DecisionSeed = 0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Give every prediction a set of classes that holds the target with a wanted probability.

    Keeps it with the network, so that predict tells the sets.

    Example:  dubio conformal first --coverage 0.9
    """
    from dubio.cli.calibrate import conformal as run

    run(named, coverage, kind, allow_empty, samples, seed, data_dir, quiet, runs)


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
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Attack a network over many draws, and score what is left on fresh ones.

    R_pred is the accuracy of the mean over draws, R_1 of one draw, R_retry of ten in a row, all with intervals at 95 %.
    For each epsilon a record (.json), images (.safetensors) and a picture (.png) are kept in the run's folder, beside
    those of other attacks, distances and settings. Repeating an attack replaces its own files.

    Example:  dubio attack first --attack pgd --epsilon 8/255 --samples 20
    Example:  dubio attack first --attack pgd,transfer --epsilon 0.05,0.1
    """
    from rich.console import Console

    from dubio.cli.attack import choose_images, parse_attacks, parse_epsilons, picture, run_attacks, summarise, tabulate
    from dubio.cli.predict import check_fits, test_examples
    from dubio.cli.runs import folder_of, load_model, network_of

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
    found = run_attacks(model, chosen, names, epsilons, fields, num_draws=draws, seed=seed, progress=not quiet)
    folder = out or folder_of(named, runs)
    records = found.save(folder, {"model": named, "network": network_of(named, runs).tensors})
    Console().print(tabulate(found))
    pictures = [picture(model, part, folder / f"{part.file_name}.png") for part in found.by_epsilon()]
    if quiet:
        return
    say(summarise(found))
    for part, record, drawn in zip(found.by_epsilon(), records, pictures, strict=True):
        say(f"record: {record}, images: {part.file_name}.safetensors beside it")
        say(drawn)


@app.command()
def prune(
    named: RunName,
    fraction: Annotated[float | None, typer.Option(help="Share of all weights (or units) to remove.")] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(help="Remove as much as costs at most this accuracy (NLL for numbers) on the validation part."),
    ] = None,
    by: Annotated[
        Literal["snr", "magnitude"] | None, typer.Option(help="What ranks weights (default: snr where it can).")
    ] = None,
    what: Annotated[
        Literal["weights", "units"], typer.Option(help="Single weights, or whole units and channels.")
    ] = "weights",
    each_layer: Annotated[bool, typer.Option("--each-layer", help="The share is one of each layer's units.")] = False,
    samples: Annotated[int, typer.Option(help="Draws to judge with.")] = 100,
    seed: Annotated[int, typer.Option(help="Which draws.")] = 0,
    out: Annotated[str | None, typer.Option(metavar="NAME", help="The new run (default: RUN-pruned).")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Remove what a network can do without; without an amount, measure how much that is.

    Measuring prints accuracy and NLL on the validation part for growing shares, and writes pruning.json to the run.
    With --fraction or --max-loss the pruned network becomes a run of its own, which other commands take.

    Example:  dubio prune first

    Example:  dubio prune first --fraction 0.75

    Example:  dubio prune first --max-loss 0.01 --what units
    """
    from dubio.cli.prune import prune as run

    run(named, fraction, max_loss, by, what, each_layer, samples, seed, out, data_dir, quiet, runs)


@app.command()
def report(
    named: SeveralRuns,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Page to write, .html (default: report.html in the run, or beside the runs)."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="What stands at the top (default: the names of the runs).")] = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Write one page on some runs: numbers, figures, examples, and how to make each number again.

    The page works offline and needs nothing but itself; the same as JSON goes beside it. It is made from the files of
    the runs alone, and says which command would add what is missing.

    Example:  dubio report first

    Example:  dubio report demo-deterministic demo-bayes --out comparison.html
    """
    from dubio.cli.report import report as run

    run(named, out, title, quiet, runs)


@app.command()
def compare(
    named: SeveralRuns,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON instead.")] = False,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Show the headline numbers of some runs side by side.

    A number is best (*) where paired tests on the same examples find every other run worse; those that do not differ
    significantly from the best are tied (=). Numbers on different data are not compared.

    Example:  dubio compare demo-deterministic demo-bayes
    """
    from dubio.cli.report import compare as run

    run(named, as_json, quiet, runs)


@app.command()
def audit(
    named: Named,
    epsilon: Annotated[str, typer.Option(help="How far an image may move: 0.1 or 8/255.")] = "8/255",
    norm: Annotated[Literal["linf", "l2"], typer.Option(help="How distance is measured.")] = "linf",
    budget: Annotated[
        BudgetName, typer.Option(help="A taste, a first look, or the real thing, which takes far longer.")
    ] = "quick",
    images: Annotated[
        int | None, typer.Option(help="How many test images (default: 400, with full 1,000; at most all).")
    ] = None,
    require: Annotated[
        Literal["VALID"] | None, typer.Option(help="Leave with exit code 1 unless the audit is VALID.")
    ] = None,
    min_accuracy: Annotated[
        float | None,
        typer.Option(help="Leave with exit code 1 unless the headline's lower bound at 95 % is this or more."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Whose test part (default: what the run was trained on, else digits).")
    ] = None,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Which images, attacks and draws.")] = 0,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the file goes (default: the run).")] = None,
    quiet: Quiet = False,
    runs: Runs = Path("runs"),
) -> None:
    """Audit a network: attack it in every way there is, and say whether what is left can be believed.

    The headline is the accuracy under the worst attack on each image, seen by
    draws that had no part in choosing it.

    VALID: every required check passed; reservations, such as few images, are
    named beside it. UPPER BOUND ONLY: a required check failed, and the truth
    may be lower. EXTRAORDINARY: beyond all that is published.

    Writes audit.json. Ctrl-C loses nothing: the same command goes on.
    Exit code 1: a gate, --require or --min-accuracy, failed.

    Example:  dubio audit first --epsilon 8/255

    Example:  dubio audit first --epsilon 0.1 --require VALID --min-accuracy 0.4
    """
    from dubio.cli.attack import audit_run

    audit_run(
        named, epsilon, norm, budget, images, require, min_accuracy, data, data_dir, seed, device, out, quiet, runs
    )


@app.command()
def export(
    named: Named,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .pt2 for torch.export, or .onnx.")],
    noise: Annotated[
        Literal["off", "fresh", "frozen"], typer.Option(help="The mean network, new draws at each run, or fixed draws.")
    ] = "off",
    samples: Annotated[int | None, typer.Option(help="Draws, as a leading axis; not with noise off.")] = None,
    seed: Annotated[int, typer.Option(help="Which draws, where frozen.")] = 0,
    quiet: Quiet = False,
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
    import torch

    from dubio.cli.runs import load_model
    from dubio.convert import export
    from dubio.likelihoods import Gaussian, likelihood_of
    from dubio.models import sizes_of

    model = load_model(named, runs)
    sizes = sizes_of(model)
    if sizes is None or sizes.inputs is None:
        raise ValueError(f"{named} does not say what its inputs look like; use dubio.export in Python")
    shape = sizes.inputs
    format: Literal["torch", "onnx"] = "onnx" if out.suffix == ".onnx" else "torch"
    export(model, torch.zeros(2, *shape), out, format=format, noise=noise, num_samples=samples, seed=seed)
    if quiet:
        return
    weights = out.with_name(f"{out.name}.data")  # where torch puts the weights of an .onnx
    files = f"{out} and {weights.name}" if out.suffix == ".onnx" and weights.is_file() else str(out)
    say(f"wrote {files}: noise {noise}, inputs (batch, {', '.join(map(str, shape))})")
    likelihood = likelihood_of(model)
    if isinstance(likelihood, Gaussian) and likelihood.standardises:
        say(f"outputs are standardised: mean = {likelihood.target_mean} + {likelihood.target_std} * output")
