"""Published statements beside what records say of them: tables for each paper, and how many were reproduced."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from dubio_lab import CLAIMS, PAPERS, Claim, Outcome, Records, Verdict, load_results, load_spec, spec_names
from dubio_lab.markdown import markdown_table

__all__ = [
    "claims_counts",
    "claims_section",
    "claims_summary",
    "claims_table",
    "links",
    "records_summary",
    "verdict_in_words",
]

ANSWERS = {Verdict.REPRODUCED: "yes", Verdict.NOT_REPRODUCED: "no"}
"""How a question of ours is answered."""
RULES = """A verdict is computed from the records; nobody types one. [What came out and why](FINDINGS.md).

- **ours** is the effect with its interval: of Student's t at 95 % over seeds, with differences taken seed by seed. A
  statement is decided on the seeds for which all of its cells have a record of the present spec; `1 of 3` means that
  the others are still to be run.
- **one seed**: the interval is the number less and plus the most by which training again, with the same settings and
  the same seed, has moved it or the numbers that it is made of ([how much](RESULTS.md#training-again)). Other seeds may
  move it more. Where nothing was trained again, nothing is decided.
- **one run**: the interval is that of a line through ten measured times.
- **reproduced**: the whole interval is on the published side, at half of the published effect or more; or it is within
  the bar that the statement names. A bar is open on the side that is better than published.
- **partly**: the whole interval is on the published side, and the effect is a tenth of the published one or more; or
  half of the parts of a statement are reproduced.
- **not reproduced**: the whole interval is below half of the published effect, or outside of the bar.
- **opposite**: the whole interval is on the other side.
- **undecided**: none of these; more seeds would tell.
- **not run**: no record answers it, with the reason where there is one beside time.

The second table of a paper has statements that are checked once more in a way of ours, at another size or with another
attack, and questions of ours, which the paper suggests. They are not counted."""


def claims_table(folder: Path, paper: str) -> str:
    """The statements of a paper of ``PAPERS`` with their verdicts, and after them what is not counted."""
    records = Records(folder)
    outcomes = [(claim, claim.outcome(records)) for claim in PAPERS[paper][1]]
    counted = _table("statement", [one for one in outcomes if one[0].is_counted])
    others = [one for one in outcomes if not one[0].is_counted]
    if not others:
        return counted
    return f"{counted}\n\nNot counted: in a way of ours, and questions of ours.\n\n{_table('question', others)}"


def claims_summary(folder: Path) -> str:
    """How many published statements there are, and how many have which verdict."""
    counts = _count(CLAIMS, Records(folder))
    return f"{sum(counts.values())} published statements: {_in_words(counts, list(Verdict))}"


def claims_counts(folder: Path) -> str:
    """A row for every paper: how many of its statements have which verdict."""
    records = Records(folder)
    rows = [(title, _count(claims, records)) for title, claims in PAPERS.values()]
    whole: Counter[Verdict] = sum((counts for _, counts in rows), Counter())
    return markdown_table(
        ("paper", "statements", *Verdict),
        (
            (title, str(sum(counts.values())), *(str(counts[verdict]) for verdict in Verdict))
            for title, counts in [*rows, ("all", whole)]
        ),
    )


def records_summary(folder: Path) -> str:
    """How many records there are, and what they took, by hardware."""
    hours: dict[str, list[float]] = {}
    specs = [load_spec(name) for name in spec_names()]
    results = [load_results(spec, folder) for spec in specs]
    for one in (result for own in results for result in own):
        hours.setdefault(one.hardware, []).append(one.seconds / 3600.0)
    parts = [f"{len(own)} on {place} in {sum(own):,.1f} hours" for place, own in sorted(hours.items())]
    there = sum(bool(own) for own in results)
    return f"Records: {sum(map(len, results))} of {there} specs, {', '.join(parts)}" if parts else "No records yet"


def claims_section(folder: Path) -> str:
    """The section of the page of results: all statements, paper by paper."""
    parts = ["## Claims", f"{claims_summary(folder)}.", claims_counts(folder), RULES]
    for paper, (title, _) in PAPERS.items():
        parts += [f"### {title}", claims_table(folder, paper)]
    return "\n\n".join(parts)


def verdict_in_words(claim: Claim, verdict: Verdict) -> str:
    """A verdict as tables have it, with the reason why a statement was not run."""
    word = ANSWERS.get(verdict, verdict) if claim.published is None else verdict
    return f"{word}: {claim.why_not}" if verdict is Verdict.NOT_RUN and claim.why_not else str(word)


def links(specs: Sequence[str], place: str = "") -> str:
    """Links to the sections of specs, from a folder above ``place``; a spec that is still to come is only named."""
    return ", ".join(f"[{name}]({place}RESULTS.md#{name})" if name in spec_names() else f"`{name}`" for name in specs)


def _table(heading: str, outcomes: Iterable[tuple[Claim, Outcome]]) -> str:
    headings = (heading, "published", "ours, with interval", "seeds", "verdict")
    return markdown_table(headings, (_row(claim, outcome) for claim, outcome in outcomes))


def _row(claim: Claim, outcome: Outcome) -> tuple[str, ...]:
    words = f"{claim.words} ({links(claim.specs)})" if claim.specs else claim.words
    published = "a question of ours" if claim.published is None else claim.published
    return words, published, outcome.effect, outcome.seeds, verdict_in_words(claim, outcome.verdict)


def _count(claims: Iterable[Claim], records: Records) -> Counter[Verdict]:
    return Counter(claim.outcome(records).verdict for claim in claims if claim.is_counted)


def _in_words(counts: Counter[Verdict], verdicts: Sequence[Verdict]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts)
