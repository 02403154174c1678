"""The numbers of the first page: those of each paper that say most, published beside ours, from the records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dubio_lab import ExperimentSpec, Row, load_results, load_spec, spec_names, tabulate
from dubio_lab.markdown import markdown_table
from dubio_lab.tables import EARLIER

__all__ = ["HEADLINES", "Headline", "headlines_table"]


@dataclass(frozen=True)
class Headline:
    """One number of a paper, by the place where its records are."""

    paper: str
    what: str
    spec: str
    cell: str
    metric: str


HEADLINES = (
    Headline(
        "Blundell et al. 2015",
        "MNIST test error in percent, 2 x 1200 units, mixture prior, 600 epochs",
        "bbb-error",
        "mixture-1200-600-epochs",
        "test_error",
    ),
    Headline(
        "Blundell et al. 2015",
        "the same after 120 epochs, with 95 % of the weights removed",
        "bbb-pruning",
        "removed-95",
        "test_error",
    ),
    Headline(
        "Project Machine Learning, Milestone 3",
        "regression: width of the band far from the data over that among them",
        "bbb-regression",
        "local",
        "ratio",
    ),
    Headline(
        "Bayesian Weight Sampling",
        "accuracy in percent on images perturbed for twelve other networks, up to the boundary, rho = -3",
        "bws-transfer",
        "rho-3",
        "average",
    ),
    Headline(
        "Li and Gal 2017",
        "MNIST accuracy in percent, alpha = 1, ten draws in training",
        "alpha-samples",
        "10-draws",
        "accuracy",
    ),
    Headline(
        "Normalizing-flow implicit networks",
        "calibration error in the plane, stochastic network",
        "flow-2d",
        "stochastic",
        "ece",
    ),
    Headline(
        "Inductive Wasserstein Embeddings",
        "MNIST accuracy in percent where 0.4 of the training labels are wrong",
        "label-noise",
        "wasserstein-0.4",
        "accuracy",
    ),
)


def headlines_table(folder: Path, headlines: Sequence[Headline] = HEADLINES) -> str:
    """The table of all headlines that have records under a folder; without any, that there are none."""
    specs = {name: load_spec(name) for name in spec_names()}
    rows = [row for one in headlines if one.spec in specs for row in _rows(one, specs[one.spec], folder)]
    if not rows:
        return "Not run yet: `dubio reproduce --all` does it."
    headings = ("paper", "what", "published", "ours", "difference", "attempts", "command")
    return markdown_table(headings, rows)


def _rows(headline: Headline, spec: ExperimentSpec, folder: Path) -> Iterable[tuple[str, ...]]:
    """Its row, or none where there is no record of it."""
    for row in tabulate(spec, load_results(spec, folder)):
        if (row.cell, row.metric) == (headline.cell, headline.metric):
            numbers = (row.reported, ours_marked(row), row.difference, row.tries)
            yield (headline.paper, headline.what, *numbers, f"`dubio reproduce {spec.name}`")


def ours_marked(row: Row) -> str:
    """Our number, and whether it was made before the spec was changed."""
    return f"{row.ours} ({EARLIER})" if row.earlier else row.ours
