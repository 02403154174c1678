"""The picture of ``dubio attack``: images, what was added to them, and what the network then takes them for."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dubio.cli.attacking import Assault, Row
from dubio.codec import printable
from dubio.prediction import ClassPredictive, predict

__all__ = ["picture"]

MOST = 8
RIGHT, WRONG = "#1b7837", "#b2182b"


def picture(model: nn.Module, assault: Assault, path: Path) -> str:
    """Draw some images of the last row of an assault; says where the picture is, or why there is none."""
    shape = assault.examples.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        return f"no picture: inputs of shape {shape} are not images"
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture: it needs matplotlib, pip install 'dubio[plots]'"
    row = assault.rows[-1]
    shown = _choose(assault, row)
    before, targets = (tensor[shown] for tensor in assault.examples.tensors)
    after = row.inputs[shown]
    magnified = 1.0 / (after - before).abs().max().clamp_min(1e-6).item()

    figure = Figure(figsize=(1.25 * max(len(shown), 4) + 0.4, 4.7), layout="constrained")
    axes = figure.subplots(3, len(shown), squeeze=False)
    names = tuple(map(printable, assault.examples.classes))
    truths = [names[target] for target in targets.tolist()]
    found = [_labels(model, inputs, names, assault) for inputs in (before, after)]
    for column, truth in enumerate(truths):
        _draw(axes[0][column], before[column], found[0][column], truth)
        _draw(axes[1][column], 0.5 + 0.5 * magnified * (after - before)[column], None, truth)
        _draw(axes[2][column], after[column], found[1][column], truth)
    for side, text in zip(axes[:, 0], ("clean", f"added, x {magnified:.3g}", "adversarial"), strict=True):
        side.set_ylabel(text)
    figure.suptitle(f"{row.attack}, epsilon {row.epsilon}: images that it turns come first", fontsize="medium")
    figure.savefig(path, dpi=110)
    return f"picture: {path}"


def _choose(assault: Assault, row: Row) -> Tensor:
    """Images that were right and are wrong now, then the others, each in their order."""
    turned = assault.clean.predictive_per_example & ~row.score.predictive_per_example
    return (~turned).int().argsort(stable=True)[:MOST].cpu()


def _labels(model: nn.Module, inputs: Tensor, names: tuple[str, ...], assault: Assault) -> list[tuple[str, float]]:
    found = predict(  # as the attack saw and scored them
        model, inputs, num_samples=assault.clean.num_samples, seed=assault.seeds["scoring"], decisions=False
    )
    assert isinstance(found, ClassPredictive)
    return [(names[label], sure) for label, sure in zip(found.label.tolist(), found.confidence.tolist(), strict=True)]


def _draw(axes: Any, image: Tensor, found: tuple[str, float] | None, truth: str) -> None:
    pixels = image.detach().cpu().clamp(0.0, 1.0).permute(1, 2, 0)
    axes.imshow(pixels.squeeze(-1).numpy(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    if found is not None:
        label, sure = found
        axes.set_title(
            f"{label}  {sure:.0%}", fontsize="small", color=RIGHT if label == truth else WRONG, parse_math=False
        )
