"""The claims of the papers beside what records say of them: a table for each paper, and how many held."""

from pathlib import Path

from dubio_lab import CLAIMS, PAPERS, Claim, Records
from dubio_lab.markdown import markdown_table

__all__ = ["claims_section", "claims_summary", "claims_table"]

NO_CLAIM = "not asked"
RULES = f"""What the papers say, decided from the records; [what came out and why](FINDINGS.md).

- More than a bar is the mean over seeds that is beyond it by more than twice its standard error; no less and no loss
  are means that are not on the wrong side by more than that; within are means that are. Differences are taken seed by
  seed. Of one seed, it is the plain comparison.
- A claim is checked when every cell that it is read from has a record of the present spec for every seed.
- `{NO_CLAIM}`: the paper suggests it, and the question is ours. In brackets: it is asked once more, in a way of ours.
  Neither is counted."""


def claims_table(folder: Path, paper: str) -> str:
    """The claims of a paper of ``PAPERS``: what was published, ours, and whether it held."""
    records = Records(folder)
    outcomes = ((claim, claim.outcome(records)) for claim in PAPERS[paper][1])
    headings = ("claim", "published", "ours", "held")
    return markdown_table(
        headings,
        ((f"{claim.words} ({_links(claim.specs)})", _published(claim), one.value, one.word) for claim, one in outcomes),
    )


def claims_summary(folder: Path) -> str:
    """How many of the published claims that were checked held."""
    records = Records(folder)
    outcomes = [claim.outcome(records) for claim in CLAIMS if claim.is_counted]
    held = [one.held for one in outcomes if one.held is not None]
    return f"{sum(held)} of {len(held)} claims that were checked held"


def claims_section(folder: Path) -> str:
    """The section of the page of results: all claims, paper by paper."""
    num_published = sum(claim.is_counted for claim in CLAIMS)
    summary = f"{claims_summary(folder)}, of {num_published} that were published."
    parts = ["## Claims", summary, RULES]
    for paper, (title, _) in PAPERS.items():
        parts += [f"### {title}", claims_table(folder, paper)]
    return "\n\n".join(parts)


def _published(claim: Claim) -> str:
    if claim.published is None:
        return NO_CLAIM
    return f"({claim.published})" if claim.in_our_way else claim.published


def _links(specs: tuple[str, ...]) -> str:
    return ", ".join(f"[{name}](RESULTS.md#{name})" for name in specs)
