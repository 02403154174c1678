"""Write the tables in README.md and the pages of docs/ and lab/ from stored records and from the methods themselves.

A page says which table it wants between two markers,

    <!-- figures: digits:bayes -->
    <!-- end -->

and this script fills in what is between them. A name is a table of ``TABLES`` and, after a colon, what it is of.
Figures come from ``benchmarks/results/*.json``, with the commit and the hardware they were measured on, and from the
records of experiments under ``lab/results``; nobody types them. Pictures of libraries side by side are drawn anew where
they are not those of their records. With ``--check`` nothing is written, and the exit status is 1 when a page or a
picture is out of date.
"""

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from peer_tables import PEER_TABLES, SHOWN
from peer_words import PEER_SENTENCES, commits_in_words, machine_in_words, missing
from plot_peers import draw_of, is_drawn_from
from speed_words import epoch_in_words, launches_in_words, loading_in_words

from dubio.auditing.checks import CHECKS
from dubio.cli.fields import fields_of, spell
from dubio.codec import current_names
from dubio.methods import METHODS
from dubio_lab import PAPERS
from dubio_lab.claims_tables import claims_counts, claims_summary, claims_table, records_summary
from dubio_lab.headlines import headlines_table
from dubio_lab.markdown import commit_in_words, markdown_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- figures:"
END = "<!-- end -->"
PLACE = re.compile(rf"(?P<begin>{BEGIN} (?P<name>\S+) -->\n).*?{END}", flags=re.DOTALL)
SUSPECTS = {
    "unbounded_scales": "unbounded scales",
    "actnorm_from_first_batch": "actnorm from the first batch",
    "coupling_not_identity": "coupling that is no identity at first",
    "permutation_trained": "trained permutation",
}


def main() -> int:
    """Write the tables of all pages, or with ``--check`` compare them, and return the exit status."""
    parser = argparse.ArgumentParser(description="Write the tables of the pages from stored records.")
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    check = parser.parse_args().check

    paths = sorted({*PAGES.rglob("*.md"), *ROOT.glob("lab/*.md"), *ROOT.glob("README.md")})
    pages = {path: path.read_text(encoding="utf-8") for path in paths}
    filled = {path: fill(text, str(path.relative_to(ROOT))) for path, text in pages.items()}
    changed = [path for path in pages if pages[path] != filled[path]]
    stale = _stale_pictures()
    names = ", ".join(str(path.relative_to(ROOT)) for path in (*changed, *stale))

    if not names:
        print("the figures in README.md, docs/ and lab/ are up to date")
        return 0
    if check:
        print(f"the figures in {names} are out of date; run `make table`", file=sys.stderr)
        return 1
    for path in changed:
        path.write_text(filled[path], encoding="utf-8")
    for picture, record in stale.items():
        draw_of(record, picture)
    print(f"wrote the figures in {names}")
    return 0


def _stale_pictures() -> dict[Path, Path]:
    """Pictures of libraries side by side that were not drawn from their records, and these."""
    pictures = sorted((PAGES / "images").glob("peers_*.png"))
    records = {picture: RESULTS / f"{picture.stem}.json" for picture in pictures}
    try:
        return {picture: record for picture, record in records.items() if not is_drawn_from(picture, record)}
    except ValueError as error:
        _refuse(str(error))


def fill(text: str, page: str) -> str:
    """The page with every table made anew."""
    if not text.count(BEGIN) == text.count(END) == len(PLACE.findall(text)):
        _refuse(f"{page}: every {BEGIN} NAME --> must be followed by its own {END}")
    return PLACE.sub(lambda place: f"{place['begin']}{table(place['name'], page)}\n{END}", text)


def table(name: str, page: str) -> str:
    """The table of a name such as ``digits:bayes``."""
    kind, _, choice = name.partition(":")
    if kind not in TABLES:
        _refuse(f"{page}: figures must be one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[kind](choice)


def fields(choice: str) -> str:
    """The fields of a method: name, default, meaning."""
    if choice not in METHODS:
        _refuse(f"fields must be those of one of {', '.join(METHODS)}, got {choice!r}")
    entries = fields_of(METHODS[choice]).values()
    return markdown_table(
        ("field", "default", "what it is"), ((f"`{f.name}`", spell(f.default), f.meaning) for f in entries)
    )


def digits(choice: str) -> str:
    """How methods do on digits with their defaults: all of them, or those named; methods not measured yet are told."""
    selected = choice.split(",") if choice else list(METHODS)
    for name in selected:
        if name not in METHODS:
            _refuse(f"digits must be of methods among {', '.join(METHODS)}, got {name!r}")
    stored = _load("methods")
    records = stored["records"]["methods"]["defaults"]
    measured = {record["method"] for record in records}
    missing = [name for name in selected if name not in measured]
    gap = f"Not measured yet: {', '.join(missing)}; `benchmarks/run.py methods` does it."
    if missing == selected:
        return gap
    rows = []
    for method in (name for name in selected if name in measured):
        own = [record for record in records if record["method"] == method]
        columns = ("accuracy", "nll", "entropy", "entropy_on_noise")
        means = (f"{statistics.mean(record[column] for record in own):.3f}" for column in columns)
        rows.append((method, *means, f"{max(record['seconds'] for record in own):.1f}"))
    headings = ("method", "accuracy", "NLL", "entropy", "entropy on noise", "seconds of `fit`, slowest")
    settings = stored["records"]["methods"]["settings"]
    about = f"Means over {len(own)} seeds; {settings['num_test']} test digits, {settings['test_draws']} draws."
    filled = f"{markdown_table(headings, rows)}\n\n{about} {_source('methods', stored)}"
    other = [name for name in selected if name in measured and not _has_defaults(name, records)]
    if other:
        filled += f"\n\nMeasured with defaults of an earlier version: {', '.join(other)}."
    return f"{filled}\n\n{gap}" if missing else filled


def _has_defaults(method: str, records: Sequence[dict[str, Any]]) -> bool:
    """Whether the defaults of a method are still those that were measured, as far as the record says them."""
    specs = [record["spec"] for record in records if record["method"] == method and "spec" in record]
    return all(current_names(spec) == repr(METHODS[method]()) for spec in specs)


def alpha(choice: str) -> str:
    """What alpha changes for dropout."""
    stored = _load("methods")
    records = stored["records"]["methods"]["alpha"]
    rows = []
    for value in dict.fromkeys(record["alpha"] for record in records):
        own = [record for record in records if record["alpha"] == value]
        likelihoods = [-record["nll"] for record in own]
        error = statistics.stdev(likelihoods) / math.sqrt(len(own))
        others = (f"{statistics.mean(record[c] for record in own):.3f}" for c in ("accuracy", "entropy_on_noise"))
        rows.append((f"{value:g}", f"{statistics.mean(likelihoods):.4f} +- {error:.4f}", *others))
    headings = ("alpha", "test log-likelihood", "accuracy", "entropy on noise")
    settings = stored["records"]["methods"]["settings"]
    draws = f"{settings['alpha_draws']} draws for each step, {settings['test_draws']} for the test"
    about = f"Mean and standard error over {len(own)} seeds; {draws}."
    return f"{markdown_table(headings, rows)}\n\n{about} {_source('methods', stored)}"


def recipes(choice: str) -> str:
    """Test NLL of methods with their defaults, and with those that they had before, beside the plain network."""
    stored = _load("recipes")
    settings, trials = stored["records"]["recipes"]["settings"], stored["records"]["recipes"]["trials"]
    rows = []
    for method in (choice, "deterministic") if choice else settings["after"]:
        kinds = {"": settings["after"][method]}
        if settings["before"][method] != settings["after"][method]:
            kinds = {", before": settings["before"][method], **kinds}
        for when, fields in kinds.items():
            own = [trial for trial in trials if trial["trial"]["method"] == method and _is(trial["trial"], fields)]
            rows.append((f"{method}{when}", *(_scores(own, data) for data in settings["sets"])))
    seeds = {data: len({t["trial"]["seed"] for t in trials if t["trial"]["data"] == data}) for data in settings["sets"]}
    headings = ("method", *(f"{data} ({count})" for data, count in seeds.items()))
    about = (
        "Test NLL, and accuracy and ECE or RMSE and the share of targets that intervals of 95 % hold; means over as "
        f"many seeds as the heading says, {settings['draws']} draws."
    )
    return f"{markdown_table(headings, rows)}\n\n{about} {_source('recipes', stored)}"


def recipe_search(choice: str) -> str:
    """What was tried of a method, or of all, with one seed: validation NLL."""
    stored = _load("recipes")
    settings, trials = stored["records"]["recipes"]["settings"], stored["records"]["recipes"]["trials"]
    tried: dict[tuple[str, str], dict[str, str]] = {}
    for trial in (trial for trial in trials if trial["trial"]["seed"] == 0):
        own = trial["trial"]
        if choice in ("", own["method"]) or own["method"] == "deterministic":
            named = ", ".join(f"{name} {value}" for name, value in (own["fields"] | own["options"]).items())
            tried.setdefault((own["method"], named), {})[own["data"]] = f"{trial['validation']['nll']:.3f}"
    rows = [(*key, *(nll.get(data, "-") for data in settings["sets"])) for key, nll in sorted(tried.items())]
    about = f"Validation NLL of seed 0, {settings['draws']} draws; - was not tried."
    return f"{markdown_table(('method', 'tried', *settings['sets']), rows)}\n\n{about} {_source('recipes', stored)}"


def _is(trial: dict[str, Any], fields: dict[str, str]) -> bool:
    return bool(trial["fields"] == fields and not trial["options"])


def _scores(trials: Sequence[dict[str, Any]], data: str) -> str:
    own = [trial["test"] for trial in trials if trial["trial"]["data"] == data]
    if not own:
        return "-"
    names = ("accuracy", "ece") if "accuracy" in own[0] else ("rmse", "coverage")
    nll, *others = (statistics.mean(test[name] for test in own) for name in ("nll", *names))
    return f"{nll:.3f} ({others[0]:.3f}, {others[1]:.3f})"


def steps(choice: str) -> str:
    """Time of a training step of LeNet, beside that of the plain network."""
    stored = _load("noise_h200")
    rows = [
        (record["method"], f"{record['milliseconds']:.3f}", f"{record['ratio']:.2f}")
        for record in stored["records"]["noise"]
    ]
    about = "LeNet, batch of 128, one draw; the whole step compiled and captured in a CUDA graph."
    headings = ("method", "milliseconds", "times plain")
    return f"{markdown_table(headings, rows)}\n\n{about} {_source('noise_h200', stored)}"


def glow(choice: str) -> str:
    """What becomes of the Glow step, for each set of suspects."""
    stored = _load("glow")
    sets: dict[str, list[dict[str, Any]]] = {}
    for record in stored["records"]["glow"]:
        sets.setdefault(_brought_back(record), []).append(record)
    rows = [
        (
            name,
            ", ".join(str(record["failed_at_step"] or "-") for record in own),
            _range(own, "least_divergence"),
            _range(own, "least_true_divergence"),
            _range(own, "largest_factor"),
        )
        for name, own in sets.items()
    ]
    headings = (
        *("brought back", "not finite at step (each seed)"),
        *("least divergence, as computed", "with log |det P| counted", "largest factor"),
    )
    about = "From the least to the most of the seeds; 1,000 steps unless numbers overflowed before."
    return f"{markdown_table(headings, rows)}\n\n{about} {_source('glow', stored)}"


def epochs(choice: str) -> str:
    """What an epoch takes through ``dubio.fit``, on the machine that is named."""
    name = f"fitting_{choice}"
    stored = _load(name)
    rows = [
        (epoch_in_words(record), f"{record['seconds']:.2f} s", f"{record['capture_seconds']:.0f} s", record["data"])
        for record in stored["records"]["fitting"]
    ]
    headings = ("training by `dubio.fit`", "an epoch", "to compile and record, once", "data")
    about = "Medians from the third epoch on."
    if any(record["data"] == "random images" for record in stored["records"]["fitting"]):
        about += " Where the data were not there, random images stood in, as many and as large."
    return f"{markdown_table(headings, rows)}\n\n{about} {_source(name, stored)}"


def kernels(choice: str) -> str:
    """What the GPU does in a step or a prediction, on the machine that is named."""
    name = f"kernels_{choice}"
    stored = _load(name)
    records = stored["records"]["kernels"]
    groups = sorted({group for record in records for group in record["groups"]})
    groups.sort(key=lambda group: -max(record["groups"].get(group, [0.0])[0] / record["busy"] for record in records))

    def cells(record: dict[str, Any]) -> list[str]:
        spans = [record["groups"].get(group) for group in groups]
        return ["-" if own is None else f"{own[0]:.3g} ({own[1]:.0f})" for own in spans]

    rows = [
        (
            f"{record['what']} of {record['net']}, {record['estimator']}, "
            f"S = {record['num_samples']}, {record['precision']}",
            f"{record['milliseconds']:.3g}",
            f"{record['busy']:.3g}",
            *cells(record),
        )
        for record in records
    ]
    about = (
        "Milliseconds, and launches of kernels in brackets; the compiler's kernels are named after what ends in them."
    )
    headings = ("what", "in all", "the GPU works", *groups)
    return f"{markdown_table(headings, rows)}\n\n{about} {_source(name, stored)}"


def launches(choice: str) -> str:
    """What draws of a ResNet-18 took one by one and mapped, on the machine that is named."""
    name, peers = f"engine_{choice}", f"peers_{choice}"
    stored, beside = _load(name), _load(peers)["records"]["peers"]
    return f"{launches_in_words(stored['records']['engine'], beside)} {_source(name, stored)}"


def loading(choice: str) -> str:
    """How fast data are cut into batches, beside a ``DataLoader``."""
    stored = _load("loading")
    return f"{loading_in_words(stored['records']['loading'])} {_source('loading', stored)}"


def checks(choice: str) -> str:
    """The checks of an audit, in the order of their numbers."""
    rows = [
        (f"{check.id}{'*' if check.required else ''} {check.name}", check.question, check.passes_when)
        for check in sorted(CHECKS, key=lambda check: int(check.id[1:]))
    ]
    return markdown_table(("check", "what it asks, and why", "it passes when"), rows)


def audits(choice: str) -> str:
    """What audits of networks found, on digits or on ``mnist``."""
    name = f"audits_{choice}" if choice else "audits"
    stored = _load(name)
    settings, records = stored["records"][name]["settings"], stored["records"][name]["networks"]
    rows = [
        (
            record["network"],
            f"{record['clean']:.1%}",
            f"{record['headline']:.1%} ({record['low']:.1%} to {record['high']:.1%})",
            f"{record['r_1']:.1%}",
            f"{record['r_retry']:.1%}",
            "-" if record["r_frozen"] is None else f"{record['r_frozen']:.1%}",
            f"{record['fgsm']:.1%}",
            record["status"] + (f": {', '.join(record['failed'])}" if record["failed"] else ""),
            ", ".join(record["warned"]) or "-",
            f"{record['seconds']:.0f}",
        )
        for record in records
    ]
    headings = (
        *("network", "clean", "headline, R_pred", "R_1", "R_retry(10)", "R_frozen", "left by FGSM", "status"),
        *("warnings", "seconds"),
    )
    data = {"digits": "Digits", "mnist": "MNIST"}[settings["data"]]
    about = f"{data}, {settings['num_images']} test images, {settings['model']}, Linf {settings['epsilon']:g}, "
    about += f"budget `{settings['budget']}`, {settings['draws']} draws."
    return f"{markdown_table(headings, rows)}\n\n{about} {_source(name, stored)}"


def autoattack(choice: str) -> str:
    """What AutoAttack left of controls on MNIST, beside what our attacks did."""
    stored = _load("autoattack")
    settings, records = stored["records"]["autoattack"]["settings"], stored["records"]["autoattack"]["networks"]
    rows = [(record["network"], record["status"], record["words"]["C12"]) for record in records]
    about = f"MNIST, {settings['num_images']} test images, {settings['model']}, Linf {settings['epsilon']:g}, "
    about += f"budget `{settings['budget']}`."
    return f"{markdown_table(('network', 'status', 'C12'), rows)}\n\n{about} {_source('autoattack', stored)}"


def beside_peers(kind: str, choice: str) -> str:
    """A table or sentence of dubio beside others; of ``MACHINE`` or ``MACHINE/NETWORK``. Records not made are told."""
    machine, _, net = choice.partition("/")
    name = f"peers_{machine}"
    place = f"benchmarks/results/{name}.json"
    stored = _load(name) if (RESULTS / f"{name}.json").is_file() else None
    record = None if stored is None else stored["records"]["peers"]
    shown = (net,) if net else SHOWN.get(kind, ())
    gap = missing(record, place, shown[0] if len(shown) == 1 else "")
    if gap or stored is None or record is None:
        return gap
    about = stored | {"hardware": machine_in_words(stored["hardware"], record, shown)}
    source = _source(name, about, commits_in_words(record, shown))
    if kind in PEER_SENTENCES:
        return f"{PEER_SENTENCES[kind](record)} {source}"
    table = PEER_TABLES[kind](record, net)
    return f"{markdown_table(table.headings, table.rows)}\n\n{table.about} {source}"


def peer_picture(choice: str) -> str:
    """The picture of steps over draws on a machine, where it was drawn."""
    picture = f"images/peers_{choice}.png"
    if not (PAGES / picture).is_file():
        record = f"benchmarks/results/peers_{choice}.json"
        return f"Not drawn yet: `.venv/bin/python scripts/plot_peers.py {record} docs/{picture}` does it."
    return f"![Time of a training step over the number of draws, for every library]({picture})"


def results(choice: str) -> str:
    """An effect or two of every paper, published and ours, and how many statements were reproduced."""
    folder = ROOT / "lab" / "results"
    return f"{headlines_table(folder, 'lab/')}\n\n{claims_summary(folder)}: [which, and why](lab/FINDINGS.md)."


def counts(choice: str) -> str:
    """How many published statements have which verdict, the main ones of each paper, and what was run."""
    folder = ROOT / "lab" / "results"
    parts = (
        f"{claims_summary(folder)}.",
        claims_counts(folder),
        headlines_table(folder),
        f"{records_summary(folder)}.",
    )
    return "\n\n".join(parts)


def claims(choice: str) -> str:
    """The statements of a paper, and their verdicts."""
    if choice not in PAPERS:
        _refuse(f"claims must be those of one of {', '.join(PAPERS)}, got {choice!r}")
    return claims_table(ROOT / "lab" / "results", choice)


TABLES: dict[str, Callable[[str], str]] = {
    "fields": fields,
    "digits": digits,
    "alpha": alpha,
    "recipes": recipes,
    "recipe-search": recipe_search,
    "steps": steps,
    "glow": glow,
    "epochs": epochs,
    "kernels": kernels,
    "launches": launches,
    "loading": loading,
    "checks": checks,
    "audits": audits,
    "autoattack": autoattack,
    **{kind: partial(beside_peers, kind) for kind in (*PEER_TABLES, *PEER_SENTENCES)},
    "peer-picture": peer_picture,
    "results": results,
    "claims": claims,
    "counts": counts,
}


def _brought_back(record: dict[str, Any]) -> str:
    back = [words for name, words in SUSPECTS.items() if record[name]]
    kept = [words for name, words in SUSPECTS.items() if not record[name]]
    if not kept:
        return "all four"
    return f"all but the {kept[0]}" if len(kept) == 1 else ", ".join(back) or "nothing: as it is here"


def _range(records: Sequence[dict[str, Any]], column: str) -> str:
    values = sorted(record[column] for record in records)
    return " to ".join(f"{value:.3g}" for value in (values[0], values[-1]))


def _source(name: str, stored: dict[str, Any], place: str = "") -> str:
    place = place or commit_in_words(stored.get("commit"))
    return f"{stored['hardware']}, torch {stored['versions']['torch']}, {place}: `benchmarks/results/{name}.json`."


def _load(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        _refuse(f"{path.relative_to(ROOT)} is missing; benchmarks/run.py writes it")
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _refuse(message: str) -> NoReturn:
    print(f"figures: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
