"""The commands of ``dubio``: their options, their help, and the order of their steps.

Nothing at the top of this module imports torch, so that ``dubio --help``, ``--version``, completion and the error for a
misspelled option take less than half a second (``tests/end_to_end/test_start_up.py``). A command imports what it needs
in its body.
"""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Context, Exit, Option, Typer

from dubio.checks import check_choice
from dubio.cli import options
from dubio.cli.errors import INTERRUPTED, CommandGroup, say
from dubio.version import VERSION

HELP = {"help_option_names": ["-h", "--help"]}
app = Typer(name="dubio", cls=CommandGroup, pretty_exceptions_enable=False, context_settings=HELP)
EXAMPLES = "\n\n".join(options.example(method, "first") for method in options.METHOD_OPTIONS)
TRAIN = f"""Train a stochastic network, save it in a run folder, and test it.

The method is one of {", ".join(options.METHOD_OPTIONS)}.
dubio methods NAME lists the options of a method, which this command takes too.

Ctrl-C saves the run, and --resume continues it; with --epochs it trains longer.

torchrun trains with several processes, which share every batch:
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
        # The command is over: from here on Ctrl-C ends the process at once, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise SystemExit(ended.code if isinstance(ended, SystemExit) else INTERRUPTED) from None


def _version(is_given: bool) -> bool:
    if is_given:
        from importlib.metadata import version

        built = "built" if (Path(__file__).parents[1] / "_engine" / "libkernels.so").is_file() else "not built"
        kernels = "switched off" if os.environ.get("DUBIO_KERNELS") == "0" else built
        say(f"dubio {VERSION} (torch {version('torch')}, kernels for CPUs {kernels})")
        raise Exit()
    return is_given


def _check_method(name: str | None) -> str | None:
    if name is not None:
        check_choice("--method", name, options.METHOD_OPTIONS)
    return name


def _complete_method(incomplete: str) -> list[str]:
    return [name for name in options.METHOD_OPTIONS if name.startswith(incomplete)]


@app.callback()
def root(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Stochastic neural networks: train them and measure their uncertainty.

    Begin with:  dubio demo  or  dubio train first  and then  dubio predict first

    Exit codes: 0 success, 1 a gate or a part failed, 2 bad arguments, 3 interrupted and resumable.
    """


@app.command()
def demo(
    methods: Annotated[
        str | None, Option(metavar="A,B", help="Methods to train (default: all; see dubio methods).")
    ] = None,
    epochs: Annotated[int | None, Option(help="Epochs of each network (default: those of the method).")] = None,
    tiny: Annotated[bool, Option("--tiny", help="Only check that everything runs: 3 methods, 1 epoch.")] = False,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Train a network on digits by every method, evaluate and attack it, and write a report.

    Takes a few minutes on two cores. Prints a table with an explanation and the
    results of three audits, and writes a report to open in a browser and a run
    of each method.

    Example:  dubio demo

    Example:  dubio demo --methods deterministic,bayes,ensemble

    Example:  dubio demo --tiny
    """
    from dubio.cli.demo import show_demo

    show_demo(runs, methods, epochs, tiny=tiny, quiet=quiet)


@app.command("data")
def list_data(
    data_dir: options.DataDir = None,
    download: Annotated[str | None, Option(metavar="NAME", help="Download this dataset first.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """List the datasets: which are complete, which are missing, and where they are stored.

    Commands that take the name of a dataset also take the path of a .npz, .csv
    or .parquet file, or of a folder of images with one folder per class.

    Example:  dubio data --download fashionmnist
    """
    from dubio.cli.fields import show_data

    show_data(data_dir, download, quiet)


@app.command()
def methods(
    name: Annotated[
        str | None, Argument(metavar="[NAME]", autocompletion=_complete_method, help="Method to show with its options.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """List the methods, or show one: its options for dubio train and how it is trained.

    Every option is a field of the method in Python: --init-std 0.1 is init_std=0.1.

    Example:  dubio methods flow
    """
    if name is not None:
        check_choice("NAME", name, options.METHOD_OPTIONS)
    from dubio.cli.fields import show_method, show_methods

    if name is None:
        show_methods(quiet)
    else:
        show_method(name, quiet)


@app.command(cls=options.MethodOptionsCommand, help=TRAIN)
def train(
    ctx: Context,
    name: Annotated[str, Argument(metavar="NAME", help="Name of the run; its folder is DIR/NAME.")],
    data: Annotated[
        str | None, Option(help="Dataset (see dubio data), or path of a table or folder of images (default: digits).")
    ] = None,
    data_dir: options.DataDir = None,
    target: Annotated[
        str | None,
        Option(metavar="COLUMN", help="Column of a table to predict (default: target, label, class, y, or the last)."),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        Option(help="Task of a table (default: regression for targets with fractions)."),
    ] = None,
    drop: Annotated[str | None, Option(metavar="A,B", help="Columns of a table to leave out.")] = None,
    delimiter: Annotated[
        str | None, Option(help="Separator of the cells of a .csv: ',', ';', tab or '|' (default: detected).")
    ] = None,
    standardise: Annotated[
        bool | None,
        Option("--standardise/--as-is", help="Standardise the inputs of a table in the first layer (default: yes)."),
    ] = None,
    label_noise: Annotated[
        str | None, Option(help="Corrupt training labels: flip:P, symmetric:P, uniform-mix:P or mnist-asymmetric:P.")
    ] = None,
    augment: Annotated[bool | None, Option("--augment", help="Shift and flip images in training.")] = None,
    resize: Annotated[
        str | None, Option(metavar="HxW", help="Size of the images of a folder: 32, or 32x48 for height and width.")
    ] = None,
    model: Annotated[
        str | None, Option(help="Network: fc:100-100, lenet, vgg16, resnet18, mlp:64-100-10 ... (default: fc:100-100).")
    ] = None,
    likelihood: Annotated[
        str | None,
        Option(
            help="For numbers: gaussian (std depends on the input; default), gaussian:learned (one std), gaussian:0.1 "
            "(fixed std, in units of the target). For classes: categorical (default), bernoulli (two classes)."
        ),
    ] = None,
    method: Annotated[
        str | None,
        Option(
            callback=_check_method,
            autocompletion=_complete_method,
            help=f"{', '.join(options.METHOD_OPTIONS)} (default: bayes).",
        ),
    ] = None,
    epochs: Annotated[int | None, Option(help="Number of epochs (default: that of the method).")] = None,
    lr: Annotated[float | None, Option(help="Learning rate (default: that of the method).")] = None,
    noise_lr: Annotated[float | None, Option(help="Learning rate of the parameters of the noise.")] = None,
    schedule: Annotated[
        Literal["constant", "cosine", "linear"] | None,
        Option(help="Schedule of the learning rate (default: constant)."),
    ] = None,
    batch_size: Annotated[int | None, Option(help="Batch size (default: 128).")] = None,
    samples: Annotated[int | None, Option(help="Draws per training step (default: that of the method).")] = None,
    seed: Annotated[int | None, Option(help="Seed of weights, data order and noise (default: 0).")] = None,
    device: options.Device = None,
    precision: Annotated[
        options.Precision | None, Option(help="tf32 and bf16 round the factors of products (default: fp32).")
    ] = None,
    fast: Annotated[
        bool | None, Option("--fast/--eager", help="Require a compiled or an eager training step (default: automatic).")
    ] = None,
    memory: Annotated[
        str | None, Option(help="Memory for the draws of a step, such as '2 GiB' (default: what is free).")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue a run with the options it was trained with.")] = False,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Train a network; ``TRAIN`` is the help of this command."""
    from dubio.cli.runs import TrainConfig, check_name
    from dubio.cli.train import train_run

    check_name(name)
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    given = {name: value for name, value in ctx.params.items() if name in fields and value is not None}
    train_run(name, runs, ctx.obj, given, resume, options.device_for(device), quiet)


@app.command("runs")
def show_runs(quiet: options.Quiet = False, runs: options.Runs = Path("runs")) -> None:
    """List the runs of a folder with the metrics of their best epoch.

    Shows the number of epochs, the lowest validation NLL, and the accuracy of
    that epoch. Other commands take the names of the runs.

    Example:  dubio runs
    """
    from rich.console import Console

    from dubio.cli.runs import list_runs
    from dubio.cli.terminal import PlainTable

    summaries, errors = list_runs(runs)
    if not summaries and not errors and not quiet:
        say(f"no runs in {runs}; train one: dubio train first")
    table = PlainTable("name", "method", "epochs", "best val NLL", "its accuracy")
    for run in summaries:
        values = (run.best.get(name) for name in ("val_nll", "val_accuracy"))
        metrics = ("-" if value is None else f"{value:.4f}" for value in values)
        table.add_row(run.name, run.method, f"{run.epochs_done}/{run.epochs}", *metrics)
    if summaries:
        Console().print(table)
    for error in errors:
        say(error)


@app.command()
def describe(named: options.Named, quiet: options.Quiet = False, runs: options.Runs = Path("runs")) -> None:
    """Show which layers of a network are random, and how.

    Shows the method, the likelihood, and the prior and estimator of every layer.

    Example:  dubio describe first
    """
    from dubio.cli.runs import load_model
    from dubio.convert import describe

    say(str(describe(load_model(named, runs))))


@app.command()
def predict(
    named: options.Named,
    new: Annotated[
        Path | None,
        Argument(
            metavar="[NEW_DATA]",
            help="Data without labels: a .csv, .parquet, .jsonl or .npz, an image, or a folder of images.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write the predictions of NEW_DATA to a .csv, .jsonl, .parquet or .npz."),
    ] = None,
    level: Annotated[float, Option(help="Coverage of the intervals of numbers.")] = 0.95,
    delimiter: Annotated[str | None, Option(help="Separator of the cells of a .csv (default: detected).")] = None,
    quiet: options.Quiet = False,
    index: Annotated[str, Option(help="Test examples to predict: 3, 0..9, 40.. or 1,5,7.")] = "0..9",
    data: options.TestData = None,
    data_dir: options.DataDir = None,
    samples: options.Samples = 100,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.InPrecision = "fp32",
    runs: options.Runs = Path("runs"),
) -> None:
    """Predict new data or test examples, with the uncertainty of each prediction.

    NEW_DATA needs no labels. A table must have the columns that the run was
    trained on, in any order. Data of any size are read and written in chunks of
    a few thousand rows.

    Entropy is the total uncertainty in nats; mutual information is the part due
    to disagreement between draws. The decisions of dubio calibrate, abstain and
    conformal are applied and shown.

    Example:  dubio predict churn new.csv --out predictions.csv

    Example:  dubio predict first --index 0..9 --samples 100

    Example:  dubio predict first --index 0.. --device cuda --precision bf16
    """
    from rich.console import Console

    from dubio.cli.predict import load_to_test, parse_index, predict_new, tabulate
    from dubio.cli.runs import load_model
    from dubio.prediction import predict

    if new is not None:
        model = load_model(named, runs).to(options.device_for(device))
        predict_new(
            model, new, named, runs, out, delimiter, quiet, samples=samples, level=level, precision=precision, seed=seed
        )
        return
    if out is not None:
        raise ValueError(f"--out writes predictions of new data; name them: dubio predict {named} new.csv --out {out}")
    model, examples = load_to_test(named, runs, device, data, data_dir)
    rows = parse_index(index, len(examples))
    pred = predict(model, examples[rows], num_samples=samples, precision=precision, seed=seed)
    Console().print(tabulate(pred, rows, examples.targets[rows], examples.classes))


@app.command()
def evaluate(
    ctx: Context,
    named: options.Named,
    ood: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Out-of-distribution data: names (see dubio data), paths, noise or none (default: what fits).",
        ),
    ] = None,
    corruptions: Annotated[
        str, Option(metavar="A,B", help=f"Corruptions of the images: {', '.join(options.CORRUPTION_NAMES)}; or all.")
    ] = "none",
    samples: Annotated[
        int, Option(help="Number of draws; a second set of as many checks whether they are enough.")
    ] = 100,
    resamples: Annotated[int, Option(help="Bootstrap resamples for the intervals; 0 for no intervals.")] = 300,
    data: options.TestData = None,
    data_dir: options.DataDir = None,
    seed: Annotated[int, Option(help="Seed of the draws and resamples.")] = 0,
    device: options.Device = None,
    precision: options.InPrecision = "fp32",
    out: options.OutDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Evaluate a network on test data: accuracy, calibration and out-of-distribution detection.

    Writes evaluation.json, which dubio report and dubio compare read.

    Example:  dubio evaluate first

    Example:  dubio evaluate lenet --ood fashionmnist,noise --corruptions all
    """
    from dubio.cli.evaluate import FILE, ood_sets, parse_names, show
    from dubio.cli.predict import config_of, load_to_test
    from dubio.cli.runs import folder_of, network_of, parse_resize
    from dubio.evaluation import evaluate

    model, examples = load_to_test(named, runs, device, data, data_dir)
    resize = parse_resize(config_of(named, runs).resize)
    evaluation = evaluate(
        model,
        examples,
        ood=ood_sets(ood, examples, data_dir, resize) if examples.classes else {},
        corruptions=parse_names(corruptions, "--corruptions", list(options.CORRUPTION_NAMES)),
        num_samples=samples,
        num_resamples=resamples,
        precision=precision,
        seed=seed,
    )
    line = options.command_line(ctx, named, "ood", "corruptions", "data", "samples", "resamples", "seed", "precision")
    origin = {"command": line, "network": network_of(named, runs).network}
    evaluation = dataclasses.replace(evaluation, made_by=evaluation.made_by | origin)
    folder = out or folder_of(named, runs)
    folder.mkdir(parents=True, exist_ok=True)
    evaluation.save(folder / FILE)
    show(evaluation, named, quiet)
    if not quiet:
        say(f"record: {folder / FILE}")


@app.command()
def calibrate(
    ctx: Context,
    named: options.RunName,
    kind: Annotated[
        Literal["temperature", "vector"], Option(help="One parameter for all classes, or two for each class.")
    ] = "temperature",
    per_draw: Annotated[
        bool, Option("--per-draw", help="Scale each draw before averaging instead of the mean prediction.")
    ] = False,
    samples: options.DecisionSamples = 100,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Calibrate the predictions of a run on its validation data.

    Saves the calibration with the network, and dubio predict applies it. Removes
    an acceptance threshold and prediction sets that were chosen before.

    Example:  dubio calibrate first
    """
    from dubio.calibration import calibrate
    from dubio.cli.evaluate import open_run

    with open_run(named, runs, data_dir, quiet) as run:
        run.decide(ctx, calibrate, kind=kind, per_draw=per_draw)
        say(run.calibration_gain(samples, seed))


@app.command()
def abstain(
    ctx: Context,
    named: options.RunName,
    error: Annotated[float | None, Option(help="Largest error rate among accepted predictions.")] = None,
    coverage: Annotated[float | None, Option(help="Share of predictions to accept, instead of --error.")] = None,
    score: Annotated[
        Literal["confidence", "entropy", "mutual_information"], Option(help="Score that the threshold applies to.")
    ] = "confidence",
    level: Annotated[float, Option(help="Confidence level of the bound on the error.")] = 0.9,
    samples: options.DecisionSamples = 100,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Choose the threshold at which predictions are accepted, for an error rate or a coverage.

    Saves the threshold with the network, and dubio predict shows which
    predictions are accepted.

    Example:  dubio abstain first --error 0.05

    Example:  dubio abstain first --coverage 0.8
    """
    from dubio.calibration import abstain
    from dubio.cli.evaluate import open_run

    with open_run(named, runs, data_dir, quiet) as run:
        run.decide(ctx, abstain, error=error, coverage=coverage, score=score, level=level)


@app.command()
def conformal(
    ctx: Context,
    named: options.RunName,
    coverage: Annotated[float, Option(help="Probability that the set contains the target.")] = 0.9,
    kind: Annotated[
        Literal["lac", "aps"], Option(help="lac: smallest sets on average; aps: more even coverage.")
    ] = "lac",
    allow_empty: Annotated[bool, Option("--allow-empty", help="Allow empty sets.")] = False,
    samples: options.DecisionSamples = 100,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Predict sets of classes that contain the target with a given probability.

    Saves the conformal predictor with the network, and dubio predict shows the
    sets.

    Example:  dubio conformal first --coverage 0.9
    """
    from dubio.calibration import conformal
    from dubio.cli.evaluate import open_run

    with open_run(named, runs, data_dir, quiet) as run:
        run.decide(ctx, conformal, coverage=coverage, kind=kind, allow_empty=allow_empty)
        say(run.set_sizes(samples, seed))


@app.command()
def attack(
    ctx: Context,
    named: options.Named,
    attack: Annotated[
        str, Option(help="fgsm, pgd, apgd, square, random_noise or transfer (from noise off); several with commas.")
    ] = "pgd",
    epsilon: Annotated[
        str, Option(help="Largest perturbation of an input: 0.1 or 8/255; several with commas.")
    ] = "8/255",
    norm: Annotated[Literal["linf", "l2"] | None, Option(help="Norm of the perturbation (default: linf).")] = None,
    steps: Annotated[int | None, Option(help="Gradient steps (default: 20).")] = None,
    restarts: Annotated[int | None, Option(help="Random restarts (default: 1).")] = None,
    samples: Annotated[int | None, Option(help="K: draws that each gradient averages (default: 20).")] = None,
    draws: Annotated[int, Option(help="T: fresh draws to score with.")] = 100,
    objective: Annotated[
        Literal["predictive", "expected", "mean_logit", "votes"] | None,
        Option(help="What is averaged over draws; votes for square and random_noise."),
    ] = None,
    loss: Annotated[
        Literal["cross_entropy", "margin", "dlr"] | None, Option(help="Loss that the attack maximises.")
    ] = None,
    noise: Annotated[
        Literal["fresh", "frozen", "off"] | None, Option(help="New draws at each step, the same draws, or none.")
    ] = None,
    images: Annotated[int, Option(help="Number of test images; the same images every time.")] = 500,
    data: options.TestData = None,
    data_dir: options.DataDir = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    out: options.OutDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Attack a network over many draws, and score the adversarial images on fresh draws.

    R_pred is the accuracy of the mean over draws, R_1 of one draw, R_retry of ten
    draws in a row, each with a 95 % interval.

    Writes a record (.json), the images (.safetensors) and a picture (.png) for
    each epsilon into the folder of the run. Other attacks, norms and settings
    have other files; repeating an attack replaces its files.

    Example:  dubio attack first --attack pgd --epsilon 8/255 --samples 20

    Example:  dubio attack first --attack pgd,transfer --epsilon 0.05,0.1
    """
    from rich.console import Console

    from dubio.cli.attack import choose_images, parse_attacks, parse_epsilons, picture, run_attacks, summarise, tabulate
    from dubio.cli.predict import load_to_test
    from dubio.cli.runs import folder_of, network_of

    names, epsilons = parse_attacks(attack), parse_epsilons(epsilon)
    given = {name: ctx.params[name] for name in ("norm", "steps", "restarts", "objective", "loss", "noise")}
    given["num_samples"] = samples
    fields = {field: value for field, value in given.items() if value is not None}
    model, examples = load_to_test(named, runs, device, data, data_dir)
    chosen = choose_images(examples, images)
    report = run_attacks(model, chosen, names, epsilons, fields, num_draws=draws, seed=seed, progress=not quiet)
    folder = out or folder_of(named, runs)
    parts, origin = report.by_epsilon(), {"model": named, "network": network_of(named, runs).tensors}
    records = [part.save(folder, origin) for part in parts]
    Console().print(tabulate(report))
    pictures = [picture(model, part, folder / f"{part.file_name}.png") for part in parts]
    if quiet:
        return
    say(summarise(report))
    for part, record, drawn in zip(parts, records, pictures, strict=True):
        say(f"record: {record}, images: {part.file_name}.safetensors beside it")
        say(drawn)


@app.command()
def prune(
    ctx: Context,
    named: options.RunName,
    fraction: Annotated[float | None, Option(help="Share of all weights (or units) to remove.")] = None,
    max_loss: Annotated[
        float | None, Option(help="Largest loss of validation accuracy (NLL for numbers) that pruning may cost.")
    ] = None,
    by: Annotated[
        Literal["snr", "magnitude"] | None, Option(help="Score that ranks weights (default: snr where available).")
    ] = None,
    what: Annotated[
        Literal["weights", "units"], Option(help="Remove single weights, or whole units and channels.")
    ] = "weights",
    each_layer: Annotated[bool, Option("--each-layer", help="Remove the share of units from each layer.")] = False,
    samples: options.Samples = 100,
    seed: options.Seed = 0,
    out: Annotated[str | None, Option(metavar="NAME", help="Name of the new run (default: RUN-pruned).")] = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Prune a network; without --fraction or --max-loss, measure what pruning would cost.

    Measuring prints validation accuracy and NLL for growing shares, and writes
    pruning.json into the run. With --fraction or --max-loss the pruned network
    is written as a new run, which other commands take.

    Example:  dubio prune first

    Example:  dubio prune first --fraction 0.75

    Example:  dubio prune first --max-loss 0.01 --what units
    """
    from dubio import pruning
    from dubio.cli.prune import TIMED_ROWS, check_options, measure, save_measured, validation_of, write_run
    from dubio.cli.runs import check_name, find_run, load_model

    check_options(fraction, max_loss, what, each_layer)
    folder = find_run(named, runs)
    name = out or f"{folder.name}-pruned"
    check_name(name)
    is_measured = fraction is None and max_loss is None
    if not is_measured and (runs / name).exists():
        raise FileExistsError(f"{runs / name} exists already; choose another name with --out NAME")
    model = load_model(named, runs)
    validation = validation_of(folder, data_dir)
    source, given = folder.resolve().name, ("fraction", "max_loss", "by", "what", "each_layer", "samples", "seed")
    if is_measured:
        record = measure(model, validation, by, what, each_layer, samples, seed)
        save_measured(record, options.command_line(ctx, source, *given), folder, what, quiet)
        return
    record = pruning.prune(
        model,
        fraction,
        by=by,
        what=what,
        max_loss=max_loss,
        validation=validation,
        each_layer=each_layer,
        example=validation.tensors[0][:TIMED_ROWS],
        num_samples=samples,
        seed=seed,
    )
    write_run(model, record, options.command_line(ctx, source, *given, out=name), folder, runs / name)
    say(str(record))
    if not quiet:
        say(f"{runs / name}: try dubio describe {name}")


@app.command()
def report(
    named: options.SeveralRuns,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="Page to write, .html (default: report.html in the run, or beside the runs)."),
    ] = None,
    title: Annotated[str | None, Option(help="Title of the page (default: the names of the runs).")] = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Write one HTML page about some runs: numbers, figures, examples, and the commands behind them.

    The page is one file that works offline; a .json with the same content is
    written beside it. It is made from the files of the runs only, and names the
    commands that would add what is missing.

    Example:  dubio report first

    Example:  dubio report demo-deterministic demo-bayes --out comparison.html
    """
    from dubio.cli.report import report as run

    run(named, out, title, quiet, runs)


@app.command()
def compare(
    named: options.SeveralRuns,
    as_json: Annotated[bool, Option("--json", help="Print all numbers as JSON.")] = False,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Compare the main metrics of some runs side by side.

    A number is best (*) if paired tests on the same examples show that every
    other run is worse; those that do not differ significantly from the best are
    tied (=). Numbers on different data are not compared.

    Example:  dubio compare demo-deterministic demo-bayes
    """
    from dubio.cli.report import compare as run

    run(named, as_json, quiet, runs)


@app.command()
def audit(
    named: options.Named,
    epsilon: Annotated[str, Option(help="Largest perturbation of an image: 0.1 or 8/255.")] = "8/255",
    norm: Annotated[Literal["linf", "l2"], Option(help="Norm of the perturbation.")] = "linf",
    budget: Annotated[
        options.BudgetName, Option(help="tiny checks that it runs, quick is a first look, full takes far longer.")
    ] = "quick",
    images: Annotated[int | None, Option(help="Number of test images (default: 400, with budget full 1,000).")] = None,
    require: Annotated[Literal["VALID"] | None, Option(help="Exit with code 1 unless the audit is VALID.")] = None,
    min_accuracy: Annotated[
        float | None,
        Option(help="Exit with code 1 unless the lower end of the headline's 95 % interval is at least this."),
    ] = None,
    data: options.TestData = None,
    data_dir: options.DataDir = None,
    seed: Annotated[int, Option(help="Seed of the images, attacks and draws.")] = 0,
    device: options.Device = None,
    out: options.OutDir = None,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Audit the robustness of a network: run all attacks, and check whether they can be trusted.

    The headline is the accuracy under the worst attack on each image, scored on
    draws that did not select it.

    VALID: every required check passed; reservations, such as few images, are
    listed. UPPER BOUND ONLY: a required check failed, and the true accuracy may
    be lower. EXTRAORDINARY: the headline exceeds all published results.

    Writes audit.json. After Ctrl-C the same command continues the audit.
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
    named: options.Named,
    out: Annotated[Path, Argument(metavar="OUT", help="File to write: .pt2 for torch.export, or .onnx.")],
    noise: Annotated[
        Literal["off", "fresh", "frozen"], Option(help="The mean network, new draws at each call, or fixed draws.")
    ] = "off",
    samples: Annotated[int | None, Option(help="Number of draws, a leading axis; not with noise off.")] = None,
    seed: Annotated[int, Option(help="Seed of frozen draws.")] = 0,
    quiet: options.Quiet = False,
    runs: options.Runs = Path("runs"),
) -> None:
    """Export a network to a file that runs without dubio: .pt2 or .onnx.

    The batch size is dynamic. .onnx needs the export extra:
    pip install 'dubio\\[export]'.

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
        raise ValueError(f"the shape of the inputs of {named} is not stored; use dubio.export in Python")
    format: Literal["torch", "onnx"] = "onnx" if out.suffix == ".onnx" else "torch"
    export(model, torch.zeros(2, *sizes.inputs), out, format=format, noise=noise, num_samples=samples, seed=seed)
    if quiet:
        return
    weights = out.with_name(f"{out.name}.data")  # where torch puts the weights of an .onnx
    files = f"{out} and {weights.name}" if format == "onnx" and weights.is_file() else str(out)
    say(f"wrote {files}: noise {noise}, inputs (batch, {', '.join(map(str, sizes.inputs))})")
    likelihood = likelihood_of(model)
    if isinstance(likelihood, Gaussian) and likelihood.standardises:
        say(f"outputs are standardised: mean = {likelihood.target_mean} + {likelihood.target_std} * output")
