"""What ``dubio calibrate``, ``abstain`` and ``conformal`` share: a locked run, its validation data, and the result.

Decisions use only the validation data of the run. The data that it was evaluated on are passed on with the network, so
that the library can refuse to decide by them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from typer import Context

import dubio
from dubio.cli.errors import say
from dubio.cli.evaluate import FILE as EVALUATION
from dubio.cli.options import command_line
from dubio.cli.runs import MODEL, find_run, load_model, load_splits, read_config, read_encoder
from dubio.codec import Command, read_commands, write_commands
from dubio.convert import change_spec
from dubio.data import Examples
from dubio.evaluation import Evaluation
from dubio.functional.calibration import bin_sums, calibration_error, class_nll
from dubio.io import locked
from dubio.prediction import ClassificationPredictive


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run whose network gets a decision."""

    folder: Path
    model: nn.Module
    validation: Examples
    remark: str
    """A warning about the validation data; empty where there is none."""
    quiet: bool

    def decide(self, ctx: Context, function: Callable[..., object], **options: Any) -> None:
        """Call ``calibrate``, ``abstain`` or ``conformal``; save the network and the command, and print the decision.

        Args:
            ctx: the context of the command, which also has the options for the number and the seed of draws.
            function: the function of the library.
            options: its options; the command has options of the same names.
        """
        draws = {"num_samples": ctx.params["samples"], "seed": ctx.params["seed"]}
        decision = function(self.model, self.validation, **options, **draws)
        dubio.save(self.model, self.folder / MODEL)
        name = self.folder.resolve().name
        command = Command(command_line(ctx, name, *options, "samples", "seed"), name)
        write_commands(self.folder, (*read_commands(self.folder), command))
        say(str(decision) if self.quiet else f"{decision}; kept in {self.folder / MODEL}")
        if self.remark:
            say(f"warning: {self.remark}" if self.quiet else self.remark, err=self.quiet)

    def calibration_gain(self, samples: int, seed: int) -> str:
        """Negative log-likelihood and calibration error on the validation data before and after calibration."""
        targets, values = self.validation.targets, []
        for decisions in (False, True):
            pred = self._predict(samples, seed, decisions)
            error = calibration_error(bin_sums(pred.confidence, pred.label == targets))
            values.append((class_nll(pred.log_probs, targets).item(), error.item()))
        before, after = values
        return (
            f"on the {len(self.validation)} validation examples it was fitted on: "
            f"NLL {before[0]:.4f} -> {after[0]:.4f}, calibration error {before[1]:.4f} -> {after[1]:.4f}"
        )

    def set_sizes(self, samples: int, seed: int) -> str:
        """The mean and largest size of the prediction sets on the validation data."""
        sizes = self._predict(samples, seed, decisions=True).sets.sum(dim=-1).double()
        return (
            f"sets hold {sizes.mean():.2f} classes on average on the {len(self.validation)} validation examples, "
            f"{int(sizes.max())} at most"
        )

    def _predict(self, samples: int, seed: int, decisions: bool) -> ClassificationPredictive:
        pred = dubio.predict(self.model, self.validation, samples, seed=seed, keep_samples=False, decisions=decisions)
        assert isinstance(pred, ClassificationPredictive)
        return pred


@contextmanager
def open_run(named: str, runs: Path, data_dir: Path | None, quiet: bool) -> Iterator[OpenRun]:
    """A run with its network and validation data, locked against other writers."""
    folder = find_run(named, runs)
    config = read_config(folder) if data_dir is None else read_config(folder, data_dir=str(data_dir))
    with locked(folder):
        model = load_model(named, runs)
        if isinstance(dubio.spec(model).likelihood, dubio.Gaussian):
            raise ValueError(
                f"run {named!r} predicts numbers, and calibrate, abstain and conformal are for classes; "
                f"dubio evaluate {named} measures whether its intervals hold"
            )
        validation = load_splits(config, read_encoder(folder)).validation
        if validation is None:
            raise ValueError(f"{config.data}, which run {named!r} was trained on, has no validation part to decide by")
        if (folder / EVALUATION).is_file():
            evaluated = Evaluation.load(folder / EVALUATION).data.fingerprint
            change_spec(model, evaluated=tuple(dict.fromkeys((*dubio.spec(model).evaluated, evaluated))))
        noisy = f"validation labels have the noise of the training labels ({config.label_noise})"
        yield OpenRun(folder, model, validation, noisy if config.label_noise is not None else "", quiet)
