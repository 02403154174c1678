"""The table of the first page: the main statements of each paper, the published effect beside ours."""

from collections.abc import Sequence
from pathlib import Path

from dubio_lab import PAPERS, Records
from dubio_lab.claims_tables import links, verdict_in_words
from dubio_lab.markdown import markdown_table

__all__ = ["HEADLINES", "headlines_table"]

HEADLINES = (
    "bws-gain",
    "bbb-order-of-errors",
    "m3-best-of-three",
    "m3-speed-both-images",
    "alpha-entropy-rises",
    "flow-ece",
    "iwe-ahead-of-all",
)
"""The claims that say what a paper is about, one or two of each."""


def headlines_table(folder: Path, place: str = "", headlines: Sequence[str] = HEADLINES) -> str:
    """The statements and effects of some claims, for a page from whose folder ``place`` leads to ``lab/``."""
    records = Records(folder)
    rows = []
    for title, claims in PAPERS.values():
        for claim in claims:
            if claim.name in headlines:
                outcome = claim.outcome(records)
                verdict = verdict_in_words(claim, outcome.verdict)
                words = f"{claim.words} ({links(claim.specs, place)})"
                rows.append((title, words, str(claim.published), outcome.effect, outcome.seeds, verdict))
    return markdown_table(("paper", "statement", "published", "ours, with interval", "seeds", "verdict"), rows)
