"""Write lab/RESULTS.md, whole, from the records under lab/results/ and the specs that they were made by.

    python lab/scripts/results_page.py [--check]

The statements of the papers come first, with their verdicts; then what training again has moved. Every spec has a
section: what it measures, published numbers beside ours, what the records say of their origin, and pictures, which go
to lab/images. The page is a function of specs and records: nothing in it tells the time. With ``--check`` nothing is
written, and the exit status is 1 when the page is out of date or a picture is missing; what pictures show is not
compared.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

from dubio_lab import (
    Earlier,
    ExperimentSpec,
    Result,
    Row,
    Variant,
    draw_curves,
    draw_heat_map,
    draw_sweep,
    load_results,
    load_spec,
    read_earlier,
    spec_names,
    tabulate,
)
from dubio_lab.claims_tables import claims_section
from dubio_lab.headlines import headlines_table
from dubio_lab.markdown import commit_in_words, markdown_table, short_commit
from dubio_lab.tables import EARLIER, ours_marked

ROOT = Path(__file__).resolve().parent.parent
MOST_METRICS, MOST_ROWS = 6, 48  # of a table with a row for each number; one of more has rows and columns
INTRODUCTION = """# Results

The published tables and figures that dubio can run again: what was published, and what came out. `make table` writes
this page from the records under `results/`; nobody types a number. [How to run one again](README.md).

- **published** is what the source says, and `-` where it gives no number.
- **ours** is the mean over seeds with its standard error; of a single seed, the standard error within it, where one
  was measured.
- **difference** is ours less what was published, and **seeds** says over how many ours is the mean.
- **attempts** says how often a cell was run with the same seed, the most for any seed, whatever changed in between.
  From 2 on, a number may have been seen before the one that is shown; `1, after SPEC` names the spec in which what the
  source leaves open is searched.

A number is traced by its record, `results/SPEC/CELL-SEED.json`: all settings, their digest, the commit, versions,
hardware and seconds. Check out that commit and run the command above the table. On a GPU the same seed need not give
the same number: sums may be taken in another order, and training carries the difference on
([how far](#training-again))."""
AGAIN = """## Training again

Some cells were run more than once with the same settings and the same seed, at different commits. For each spec, the
percentage that moved most from one training to another, before and now; `results/earlier.json` has the others, and the
commits. A seed that gave a number once may give another one: no difference of one seed means more than that."""
NOT_SHARED = """Specs that name the same network with the same settings and the same seed were not always run in one go.
Where they were not, each has a training of its own, and their numbers are of different networks:"""


@dataclass(frozen=True)
class Curves:
    """How curves of a spec are drawn, where not all cells share one panel: see ``draw_curves``."""

    groups: Mapping[str, Mapping[str, str]] | None = None
    heights: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    diagonal: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """How numbers of cells called NAME-NUMBER are drawn along the number: see ``draw_sweep``."""

    along: str
    metrics: tuple[str, ...]
    lines: Mapping[str, str] = field(default_factory=dict)
    less: str | None = None
    left_of: float | None = None


HEAT_MAPS = ("bws-ensembles", "bws-pruning", "bws-transfer")  # tables of one unit that are easier seen than read
NO_CURVES = ("flow-lengths",)  # whose curves coincide
NETWORKS = {"plain": "mlp", "dropout": "dropout", "Gaussian prior": "gaussian", "mixture prior": "mixture"}
ATTACKED = {
    "dropout": "dropout",
    "Gaussian prior": "gaussian",
    "mixture prior": "mixture",
    "mixture prior, small widths": "mixture-sgd",
}


def _attacked(ending: str) -> dict[str, str]:
    """Cells of networks that draw, by their names in words, after the two that do not."""
    still = {"plain": "mlp", "dropout, mean network": "dropout-mean"}
    return still | {words: f"{network}-{ending}" for words, network in ATTACKED.items()}


CURVES = {
    "bbb-error": Curves(
        groups={
            **{
                f"{width} units": {words: f"{network}-{width}" for words, network in NETWORKS.items()}
                for width in (400, 800, 1200)
            },
            "1200 units, trained otherwise": {
                "Gaussian, 600 epochs": "gaussian-1200-600-epochs",
                "mixture, 600 epochs": "mixture-1200-600-epochs",
                "mixture, a tenth of the KL": "mixture-1200-tenth-of-the-divergence",
            },
        },
        heights={"test_error_by_epoch": (1.0, 2.5)},
    ),
    "bbb-fgsa": Curves(groups={"gradient of one draw": _attacked("1"), "gradient over ten draws": _attacked("eot-10")}),
    "flow-2d": Curves(diagonal=("reliability",)),
    "flow-lenet": Curves(  # what all networks begin as is left out
        groups={"": {name: name for name in ("deterministic", "dropout", "no-flow", "flow")}},
        heights={"accuracy": (84.0, 91.0)},
    ),
}
SWEEPS = {
    "bbb-pruning": Sweep(
        "percent of weights left",
        ("test_error", "test_error_mean_weights"),
        lines={"removed": "mixture prior"},
        left_of=100.0,
    ),
    "bws-pruning": Sweep(
        "percent of weights left",
        ("test", "average", "test_one", "average_one"),
        lines={
            "snr": "Bayesian, by signal to noise",
            "magnitude": "Bayesian, by magnitude",
            "lambda-0": "deterministic, lambda 0",
            "lambda-1e-2": "deterministic, lambda 1e-2",
        },
        left_of=100.0,
    ),
    "flow-lengths": Sweep("length of the flow", ("elbo", "log_likelihood", "kl"), less="length-0"),
    "label-noise": Sweep("share of wrong labels", ("accuracy", "nll", "ece"), less="plain"),
}


@dataclass(frozen=True)
class SpecResults:
    """A spec and the records that there are of it."""

    spec: ExperimentSpec
    results: list[Result]
    num_left_out: int
    """Records of cells or seeds that the spec no longer has."""
    taken: tuple[Path, ...]
    """Pictures that the trials themselves have made."""

    @property
    def num_done(self) -> int:
        """How many cells have a record for every seed."""
        now = {cell.name: self.spec.digest_of(cell) for cell in self.spec.cells}
        of_now = [one.cell for one in self.results if one.digest == now.get(one.cell)]
        return sum(of_now.count(cell.name) == len(self.spec.seeds) for cell in self.spec.cells)


@dataclass(frozen=True)
class Picture:
    """A picture that is drawn from records."""

    file: Path
    words: str
    draw: Callable[[Path], Any]


def main() -> int:
    """Write the page and its pictures, or with ``--check`` compare the page, and return the exit status."""
    parser = argparse.ArgumentParser(description="Write lab/RESULTS.md from the records under lab/results/.")
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    check = parser.parse_args().check

    stored = find(ROOT / "results")
    page, after = ROOT / "RESULTS.md", write_page(stored)
    stale = not page.is_file() or page.read_text(encoding="utf-8") != after
    pictures = [picture for one in stored for picture in pictures_of(one)]
    missing = [picture.file for picture in pictures if not picture.file.is_file()]

    if check and (stale or missing):
        what = page if stale else missing[0]
        print(f"lab/{what.relative_to(ROOT)} is out of date or missing; run `make table`", file=sys.stderr)
        return 1
    if not check:
        for picture in pictures:
            picture.draw(picture.file)
        page.write_text(after, encoding="utf-8")
    print(f"lab/RESULTS.md is {'up to date' if not stale else 'written'} ({len(pictures)} pictures)")
    return 0


def find(folder: Path) -> list[SpecResults]:
    """All specs with what there is of them under a folder."""
    names = {*spec_names(), *get_args(Variant), "shared"}
    strangers = sorted(path.parent.name for path in folder.glob("*/*.json") if path.parent.name not in names)
    if strangers:
        _refuse(f"records must be of a spec, got lab/results/{strangers[0]}; remove it, or give it its spec back")
    return [_read(load_spec(name), folder) for name in spec_names()]


def write_page(stored: Sequence[SpecResults]) -> str:
    """The whole page."""
    headings = ("spec", "source", "cells done", "command")
    rows = [
        (
            f"[{one.spec.name}](#{one.spec.name})",
            one.spec.source,
            f"{one.num_done} of {len(one.spec.cells)}",
            _command(one.spec),
        )
        for one in stored
    ]
    about = "A cell is done when it has a record of the present spec for every seed."
    claims = ["## Main statements", headlines_table(ROOT / "results"), claims_section(ROOT / "results")]
    again = training_again(stored, read_earlier(ROOT / "results"))
    specs = ["## Specs", markdown_table(headings, rows), about]
    return "\n\n".join([INTRODUCTION, *claims, *again, *specs, *map(section, stored)]) + "\n"


def training_again(stored: Sequence[SpecResults], earlier: Sequence[Earlier]) -> list[str]:
    """What training with the same settings and the same seed has moved, and which networks are not shared."""
    rows = []
    for one in stored:
        own = [record for record in earlier if record.spec == one.spec.name]
        moves = _moves(one, own)
        if moves:
            _, words, before, now = max(moves)
            cells = len({(record.cell, record.seed) for record in own})
            rows.append((f"[{one.spec.name}](#{one.spec.name})", str(cells), words, f"{before:.4g}", f"{now:.4g}"))
    headings = ("spec", "cells and seeds trained again", "moved most", "before", "now")
    parts = [AGAIN, markdown_table(headings, rows)] if rows else []
    networks = networks_not_shared(stored)
    return [*parts, NOT_SHARED, markdown_table(("networks", "trained for, at commit"), networks)] if networks else parts


def networks_not_shared(stored: Sequence[SpecResults]) -> list[tuple[str, str]]:
    """How many networks were trained at several commits, and for which specs at which."""
    uses: dict[str, dict[str, set[str]]] = {}
    for one in stored:
        for result in one.results:
            for network, origin in result.origins.items():
                uses.setdefault(network, {}).setdefault(short_commit(origin.partition(",")[0]), set()).add(
                    one.spec.name
                )
    words = [
        "; ".join(f"{', '.join(sorted(names))} at {commit}" for commit, names in sorted(own.items()))
        for own in uses.values()
        if len(own) > 1
    ]
    return [(str(words.count(text)), text) for text in dict.fromkeys(words)]


def _moves(stored: SpecResults, earlier: Sequence[Earlier]) -> list[tuple[float, str, float, float]]:
    """How far percentages moved, with the cell, the seed and the metric in words, before and now."""
    present = {(one.cell, one.seed, one.digest): one for one in stored.results}
    moves = []
    for record in earlier:
        now = present.get((record.cell, record.seed, record.digest))
        if now is not None:
            for metric, before in record.metrics.items():
                if "percent" in stored.spec.metrics.get(metric, "") and metric in now.metrics:
                    value = now.metrics[metric].value
                    words = f"{record.cell}, seed {record.seed}, `{metric}`"
                    moves.append((abs(value - before), words, before, value))
    return moves


def section(stored: SpecResults) -> str:
    """What a spec measures, its table, its pictures, and where its records come from."""
    spec = stored.spec
    about = f"Source: {spec.source}."
    parts = [f"## {spec.name}", f"{spec.title}.", about]
    if not stored.results:
        return "\n\n".join([*parts, f"Not run yet: {_command(spec)} does it."])
    words = [*spec.metrics.items(), *((name, f"{said} (a curve)") for name, said in spec.curves.items())]
    parts += ["\n".join(f"- `{name}`: {said}" for name, said in words), f"```\n{_command(spec).strip('`')}\n```"]
    parts += [numbers_table(spec, tabulate(spec, stored.results))]
    parts += [f"![{picture.words}]({_from_page(picture.file)})" for picture in pictures_of(stored)]
    parts += [f"![{path.stem}]({_from_page(path)})" for path in stored.taken]
    parts += [part for part in (notes_list(stored.results), origins(stored)) if part]
    return "\n\n".join(parts)


def numbers_table(spec: ExperimentSpec, rows: Sequence[Row]) -> str:
    """A row for every number; where there are many, cells by metrics, with published numbers in brackets."""
    if len(spec.metrics) > MOST_METRICS or len(rows) > MOST_ROWS:
        return _wide_table(spec, rows)
    headings = ("cell", "metric", "published", "ours", "difference", "seeds", "attempts")
    numbers = ((row.reported, ours_marked(row), row.difference, str(row.num_seeds), row.tries) for row in rows)
    return markdown_table(
        headings, ((row.cell, f"`{row.metric}`", *own) for row, own in zip(rows, numbers, strict=True))
    )


def _wide_table(spec: ExperimentSpec, rows: Sequence[Row]) -> str:
    """Cells by metrics; the fewer of the two are columns, and seeds and attempts count as metrics."""
    entries = {(row.cell, row.metric): row for row in rows}
    own = {cell: [row for row in rows if row.cell == cell] for cell in dict.fromkeys(row.cell for row in rows)}
    lines = [("cell", *(f"`{metric}`" for metric in spec.metrics), "seeds", "attempts")]
    for cell, cell_rows in own.items():
        values = (_wide_entry(entries.get((cell, metric))) for metric in spec.metrics)
        name = f"{cell} ({EARLIER})" if any(row.earlier for row in cell_rows) else cell
        most = max(cell_rows, key=lambda row: row.attempts)
        lines.append((name, *values, str(max(row.num_seeds for row in cell_rows)), most.tries))
    head, *body = lines if len(own) >= len(spec.metrics) else [*zip(*lines, strict=True)]
    table = markdown_table(head, body)
    return f"{table}\n\nIn brackets: what was published." if any(row.published is not None for row in rows) else table


def _wide_entry(row: Row | None) -> str:
    if row is None:
        return "-"
    return row.ours if row.published is None else f"{row.ours}<br>({row.reported})"


def pictures_of(stored: SpecResults) -> list[Picture]:
    """The pictures that can be drawn of the records."""
    spec, results, place = stored.spec, stored.results, ROOT / "images" / stored.spec.name
    pictures = []
    drawn = [name for name in spec.curves if name.removesuffix("_error") not in {*spec.curves} - {name}]
    how = CURVES.get(spec.name, Curves())
    left_out = _left_out(spec, how)
    curves = [name for name in drawn if any(name in one.curves for one in results if one.cell not in left_out)]
    if curves and spec.name not in NO_CURVES:
        cells = f"cell but {', '.join(left_out)}" if left_out else "cell"
        lines = f"one line for each {cells}, the mean over seeds and its standard error"
        draw = partial(
            draw_curves, spec, results, curves, groups=how.groups, heights=how.heights, diagonal=how.diagonal
        )
        pictures.append(Picture(_png(place), f"{', '.join(curves)}: {lines}", draw))
    sweep = SWEEPS.get(spec.name)
    if sweep and results:
        words = f"{', '.join(sweep.metrics)} by {sweep.along}: means over seeds and their standard errors"
        words += f"; and the same less that of {sweep.less}, seed by seed" if sweep.less else ""
        numbers = partial(draw_sweep, spec, results, sweep.metrics, sweep.along)
        draw = partial(numbers, lines=sweep.lines, less=sweep.less, left_of=sweep.left_of)
        pictures.append(Picture(_png(place, "-sweep"), words, draw))
    if spec.name in HEAT_MAPS and results:
        published = [metric for metric in spec.metrics if any(metric in cell.published for cell in spec.cells)]
        draw = partial(draw_heat_map, spec, results, published or [*spec.metrics])
        pictures.append(Picture(_png(place, "-table"), "Numbers as fields, the darker the higher", draw))
    return pictures


def notes_list(results: Sequence[Result]) -> str:
    """What records say in words, the same words of several seeds once."""
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for one in results:
        for name, text in sorted(one.notes.items()):
            seeds.setdefault((one.cell, name, " ".join(text.split())), []).append(one.seed)
    return "\n".join(
        f"- {cell}, {name}: {text} (seed {', '.join(map(str, own))})" for (cell, name, text), own in seeds.items()
    )


def origins(stored: SpecResults) -> str:
    """Commits, hardware and seconds of the records."""
    groups: dict[str, list[float]] = {}
    for one in stored.results:
        groups.setdefault(f"{commit_in_words(one.commit)}, {one.hardware}, torch {one.versions['torch']}", []).append(
            one.seconds
        )
    said = [f"{len(own)} from {place}, {sum(own):,.0f} seconds" for place, own in sorted(groups.items())]
    text = f"Records: {'; '.join(said)}."
    left = f" {stored.num_left_out} more of cells or seeds that the spec no longer has are left out."
    return text + left if stored.num_left_out else text


def _read(spec: ExperimentSpec, folder: Path) -> SpecResults:
    results = load_results(spec, folder)
    pictures: list[Path] = []
    for cell in spec.cells:
        taken = (sorted(folder.glob(f"{spec.name}/{cell.name}-{seed}-[!0-9]*.png")) for seed in spec.seeds)
        pictures += next((own for own in taken if own), [])
    return SpecResults(spec, results, len([*folder.glob(f"{spec.name}/*.json")]) - len(results), tuple(pictures))


def _left_out(spec: ExperimentSpec, how: Curves) -> list[str]:
    """The cells without lines."""
    if how.groups is None:
        return []
    drawn = {cell for lines in how.groups.values() for cell in lines.values()}
    return [cell.name for cell in spec.cells if cell.name not in drawn]


def _png(place: Path, ending: str = "") -> Path:
    return place.with_name(f"{place.name}{ending}.png")


def _command(spec: ExperimentSpec) -> str:
    return f"`dubio reproduce {spec.name}`"


def _from_page(path: Path) -> str:
    """A path as links of the page write it."""
    return path.relative_to(ROOT).as_posix()


def _refuse(message: str) -> NoReturn:
    print(f"results_page: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
