"""What a published statement is, and how records answer it.

A claim is one statement of a paper, with a function that reads its effect from records and reaches a verdict by the
rules of ``verdict``. No verdict is typed: a statement whose records do not exist is not run, and so is one for which
nothing was measured.

Invariants: a claim names the specs that it is read from, all of them and no other, and is not decided without any of
their records (``lab/tests/test_claims.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dubio_lab.claims.estimate import Estimate, NotRunError, Records
from dubio_lab.claims.verdict import Verdict, combine

__all__ = ["Check", "Claim", "Outcome", "Part", "never_measured", "outcome_of", "part_of"]

MOST_SHOWN = 4
NOTHING = "-"


@dataclass(frozen=True)
class Outcome:
    """What records say of a claim."""

    effect: str
    """Ours, with its interval."""
    seeds: str
    """Over how many seeds."""
    verdict: Verdict


@dataclass(frozen=True)
class Part:
    """One of several comparisons that a statement makes."""

    words: str
    estimate: Estimate | None
    """``None`` where it was not run."""
    verdict: Verdict
    signed: bool = True

    @property
    def text(self) -> str:
        """Its effect, in words."""
        if self.estimate is None:
            return f"{self.words}: {Verdict.NOT_RUN}"
        effect = self.estimate.signed if self.signed else str(self.estimate)
        return f"{self.words}: {effect}" if self.words else effect


Check = Callable[[Records], Outcome]


@dataclass(frozen=True)
class Claim:
    """Something that a paper says or suggests, and how records decide it."""

    name: str
    words: str
    """What is stated, with the bar where the paper gives none."""
    source: str
    specs: tuple[str, ...]
    """What it is read from; empty where no experiment measures it."""
    published: str | None
    """The published effect; ``None`` where the question is ours."""
    check: Check
    in_our_way: bool = False
    """Whether a statement is checked once more in a way of ours, beside that of the paper."""
    why_not: str = ""
    """Why it is not run, where there is a reason beside time."""

    @property
    def is_counted(self) -> bool:
        """Whether it is a statement of the paper, checked in the paper's way."""
        return self.published is not None and not self.in_our_way

    def outcome(self, records: Records) -> Outcome:
        """What the records say of it."""
        try:
            return self.check(records)
        except NotRunError:
            return Outcome(NOTHING, NOTHING, Verdict.NOT_RUN)


def part_of(
    words: str, estimate: Callable[[], Estimate], rule: Callable[[Estimate], Verdict], signed: bool = True
) -> Part:
    """A part of a statement, which may be missing while other parts are there."""
    try:
        own = estimate()
    except NotRunError:
        return Part(words, None, Verdict.NOT_RUN, signed)
    return Part(words, own, rule(own), signed)


def outcome_of(*parts: Part, shown: str = "") -> Outcome:
    """The outcome of a statement from its parts; without any that was run, ``NotRunError``.

    Args:
        parts: what the statement compares.
        shown: what stands as the effect; by default the effects of the parts, or how many of them are reproduced.
    """
    if all(part.estimate is None for part in parts):
        raise NotRunError("no part was run")
    verdict = combine([part.verdict for part in parts])
    if not shown and len(parts) <= MOST_SHOWN:
        shown = "; ".join(part.text for part in parts)
    elif not shown:
        reproduced = sum(part.verdict is Verdict.REPRODUCED for part in parts)
        shown = f"{reproduced} of {len(parts)}; the least {min(parts, key=_rank).text}"
    return Outcome(shown, _seeds([part.estimate for part in parts if part.estimate is not None]), verdict)


def never_measured(records: Records) -> Outcome:
    """The check of a statement that no experiment measures."""
    raise NotRunError("nothing measures it")


def _rank(part: Part) -> tuple[int, float]:
    """Lowest for the part to show of many: the one that speaks most against the statement."""
    order = (Verdict.OPPOSITE, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED, Verdict.NOT_RUN, Verdict.PARTLY)
    place = order.index(part.verdict) if part.verdict in order else len(order)
    return place, 0.0 if part.estimate is None else part.estimate.value


def _seeds(estimates: Sequence[Estimate]) -> str:
    """Over how many seeds, of how many that the specs plan."""
    least = min(estimates, key=lambda one: one.seeds)
    if least.noise == "line":
        return "one run"
    few = "one seed" if least.seeds == 1 else str(least.seeds)
    return few if least.seeds == least.planned else f"{least.seeds} of {least.planned}"
