"""Published claims: decided by records alone, by one rule for noise, and not before all records are there."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from dubio_lab import CLAIMS, PAPERS, Cell, ExperimentSpec, Measured, Outcome, Records, Result, claims_tables, load_spec
from dubio_lab.claims.claim import NotRunError, Number
from dubio_lab.running import result_file
from made_up_records import record

Values = dict[str, float | tuple[float, ...]]
"""Numbers of cells and metrics, by patterns ``cell:metric``, the last that fits; or one for each seed."""

BY_NAME = {claim.name: claim for claim in CLAIMS}


def published_of(name: str, variant: str = "", ending: str = "") -> Values:
    """What a paper's own table says, as if it were ours, or that of a variant of its cells or metrics."""
    return {
        f"{cell.name}{variant}:{metric}{ending}": value
        for cell in load_spec(name).cells
        for metric, value in cell.published.items()
    }


CASES: dict[str, tuple[Values, Values]] = {  # of every claim: records with which it holds, and what breaks it
    "bws-clean-accuracies": (published_of("bws-clean"), {"rho-3:validation": 96.7}),
    "bws-clean-matched": (published_of("bws-clean", "-matched"), {"rho-2-matched:test": 95.5}),
    "bws-clean-matched-together": (
        published_of("bws-clean", "-matched", "_ensemble"),
        {"rho-30-matched:validation_ensemble": 98.1},
    ),
    "bws-clean-order": (
        {"rho-30:test": 95.0, "rho-3:test": (94.9, 95.0, 95.2), "rho-1.5:test": 90.0},
        {"rho-1.5:test": (90.0, 95.1, 99.9)},
    ),
    "bws-gain-searched": (
        {"*:average": 70.0, "rho-4:average": 78.0, "lambda-0-like-prior:average": 99.0},
        {"lambda-1:average": 71.0},
    ),
    "bws-gain-weight-1": ({"*:average": 70.0, "rho-2-weight-1:average": 78.0}, {"lambda-0-weight-1:average": 71.0}),
    "bws-gain-weight-2": ({"*:average": 70.0, "rho-2-weight-2:average": 78.0}, {"rho-2-weight-2:average": 77.0}),
    "bws-gain-matched": ({"*:average": 70.0, "rho-4-matched:average": 78.0}, {"lambda-0-matched:average": 71.0}),
    "bws-gain-by-sampling-searched": (
        {"*:average": 70.0, "rho-4:average": 80.0, "lambda-0-like-prior:average": 74.0},
        {"lambda-0-like-prior:average": 75.5},
    ),
    "bws-gain-by-sampling-weight-1": (
        {"*:average": 70.0, "rho-4-weight-1:average": 80.0, "lambda-0-like-prior-weight-1:average": 60.0},
        {"rho-*:average": 69.0},
    ),
    "bws-gain-by-sampling-weight-2": (
        {"*:average": 70.0, "rho-4-weight-2:average": 80.0},
        {"lambda-0-like-prior-weight-2:average": 80.0},
    ),
    "bws-best-on-all": ({"*": 70.0, "rho-4:*": 71.0}, {"lambda-1:fc200_1": 71.0}),
    "bws-ensembles": ({"n1:average": 83.21, "n100:average": 85.8}, {"n100:average": 85.7}),
    "bws-half-pruned-test": ({"*": 97.0, "snr-50:test": 96.6}, {"snr-50:test": 96.4}),
    "bws-half-pruned-average": ({"*": 97.0, "snr-50:average": 96.6}, {"snr-50:average": 96.4}),
    "bws-ratio-or-magnitude": ({"*": 70.0}, {"magnitude-95:average": 71.0}),
    "bws-distortions": ({"*": 0.09, "*-untargeted:*": 0.2}, {"fc200_1:distortion": 0.1}),
    "bws-penalty": ({"lambda-0:average": 66.0, "lambda-1e-2:average": 67.4}, {"lambda-1e-2:average": 70.0}),
    "bws-attacked-itself": (
        {"*": 70.0, "rho-4:average": 71.0, "rho-4:audit_accuracy": 9.0, "lambda-1e-2:audit_accuracy": 8.0},
        {"rho-4:audit_accuracy": 7.0},
    ),
    "bbb-mixture-error": ({"mixture-1200:test_error": 1.5}, {"mixture-1200:test_error": 1.51}),
    "bbb-mixture-error-600-epochs": (
        {"mixture-1200-600-epochs:test_error": 1.5, "mixture-1200:test_error": 1.6},
        {"mixture-1200-600-epochs:test_error": 1.51},
    ),
    "bbb-gaussian-error": ({"gaussian-1200:test_error": 1.6}, {"gaussian-1200:test_error": 1.4}),
    "bbb-gaussian-error-600-epochs": (
        {"gaussian-1200-600-epochs:test_error": 2.4},
        {"gaussian-1200-600-epochs:test_error": 2.6},
    ),
    "bbb-order-of-errors": ({"*": 1.8, "mixture-1200:test_error": 1.4}, {"mlp-1200:test_error": 1.3}),
    "bbb-pruned": ({"*": 1.2, "removed-95:test_error": 1.4}, {"removed-95:test_error": 1.6}),
    "m3-gaussian-kmnist": ({"gaussian-kmnist:*": 0.95}, {"gaussian-kmnist:auroc_mutual*": 0.94}),
    "m3-mixture-kmnist": ({"mixture-kmnist:*": 0.96}, {"mixture-kmnist:auroc_mutual*": 0.94}),
    "m3-mixture-sgd-kmnist": ({"mixture-sgd-kmnist:*": 0.96}, {"mixture-sgd-kmnist:auroc_mutual*": 0.94}),
    "m3-gaussian-fashionmnist": ({"gaussian-fashionmnist:*": 0.94}, {"gaussian-fashionmnist:auroc_mutual*": 0.92}),
    "m3-mixture-fashionmnist": ({"mixture-fashionmnist:*": 0.94}, {"mixture-fashionmnist:auroc_mutual*": 0.92}),
    "m3-mixture-sgd-fashionmnist": (
        {"mixture-sgd-fashionmnist:*": 0.94},
        {"mixture-sgd-fashionmnist:auroc_mutual*": 0.92},
    ),
    "m3-unanimous": ({"*": 80.0}, {"gaussian-kmnist:sure_known": 40.0}),
    "m3-low-scores": ({"*": 11.0}, {"gaussian-omniglot:low_scores_unseen": 9.0}),
    "m3-few-spread": ({"*:spread_known": 4.0, "*:wrong_among_spread": 60.0}, {"*:wrong_among_spread": 40.0}),
    "m3-sure-of-unseen": ({"*": 1.0}, {"gaussian-omniglot:sure_unseen": 0.0}),
    "m3-accuracy-unseen": ({"*": 9.0}, {"gaussian-fashionmnist:accuracy_unseen": 11.0}),
    "m3-attacked-1": ({"gaussian-1:accuracy_015": 45.0}, {"gaussian-1:accuracy_015": 31.0}),
    "m3-attacked-eot-10": ({"gaussian-eot-10:accuracy_015": 59.0}, {"gaussian-eot-10:accuracy_015": 61.0}),
    "m3-attacked-plain": ({"*:accuracy_015": 9.0}, {"dropout-mean:accuracy_015": 26.8}),
    "m3-band": ({"*:ratio": (3.9, 4.0, 4.1, 4.0, 4.0)}, {"weight:ratio": (1.0, 9.0, 1.0, 9.0, 1.0)}),
    "m3-speed-regression": ({"*-sequential:slope": 5.1, "*-lrt:slope": 1.0}, {"regression-vmap-lrt:slope": 1.1}),
    "m3-speed-images": ({"*-sequential:slope": 5.6, "*-lrt:slope": 1.0}, {"images-vmap-lrt:slope": 1.1}),
    "alpha-entropy-rises": ({"alpha*": 0.5}, {"alpha-05:entropy_rises": (-1.0, 0.5, 2.5)}),
    "alpha-plain-is-sure": ({"*": 0.5, "plain:*": 0.1}, {"plain:entropy_at_0.3": 0.5}),
    "alpha-above-plain": ({"*": 50.0, "plain:*": 40.0}, {"alpha-0:accuracy_at_0.2": 40.0}),
    "alpha-one-most-robust": ({"*": 50.0, "alpha-1:*": 51.0}, {"alpha-05:accuracy_at_0.3": 51.0}),
    "alpha-likelihood-mlp": (
        {"*": -600.0, "mlp-alpha-05:*": -500.0},
        {"mlp-alpha-05:test_ll": (-800.0, -600.0, -300.0)},
    ),
    "alpha-likelihood-cnn": ({"*": -600.0, "cnn-alpha-1:*": -500.0}, {"cnn-alpha-0:test_ll": -500.0}),
    "alpha-order-cnn": ({"*": -600.0, "cnn-alpha-1:*": -700.0}, {"cnn-alpha-05:test_ll": -500.0}),
    "alpha-half-best-error": ({"*": 1.5, "mlp-alpha-05:*": 1.4}, {"mlp-alpha-1:error": 1.4}),
    "alpha-draws": ({"*:accuracy": 98.6}, {"100-draws:accuracy": 98.4}),
    "flow-ece": ({"*": 0.01}, {"ece-stochastic-deterministic:low": -0.01}),
    "flow-ece-early": ({"*": 0.01}, {"ece-stochastic-deterministic-early:low": -0.01}),
    "flow-longer-never-worse": ({"*": 0.01, "*:low": -0.01}, {"elbo-8-4:high": -0.001}),
    "flow-longest-best": ({"*": 0.01}, {"elbo-12-0:low": -0.001}),
    "flow-matching": ({"stochastic:matching": 81.0}, {"stochastic:matching": (60.0, 100.0) * 5}),
    "flow-above-deterministic": ({"*": 89.0, "*flow:*": 90.0}, {"no-flow:accuracy": 89.0}),
    "flow-above-no-flow-log-likelihood": ({"*": 1.0, "flow:*": 2.0}, {"flow:log_likelihood": 0.5}),
    "flow-above-no-flow-kl": ({"*": 1.0, "flow:*": 2.0}, {"flow:kl": 1.0}),
    "flow-above-no-flow-elbo": ({"*": 1.0, "flow:*": 2.0}, {"flow:elbo": 0.5}),
    "flow-no-gain-by-dropout": ({"*": 90.0, "dropout:best_accuracy": (89.0, 90.0, 91.5)}, {"dropout:*": 91.0}),
    "iwe-ahead-of-all": ({"*": 60.0, "wasserstein*": 61.0}, {"se-snn-0.5:accuracy": (60.0, 61.0, 62.0, 61.0, 60.0)}),
}


def made_up(spec: ExperimentSpec, values: Values) -> list[Result]:
    """Records of all cells and seeds of a spec; what no pattern fits is 1."""

    def value(cell: str, metric: str, seed: int) -> float:
        fitting = [own for pattern, own in values.items() if fnmatchcase(f"{cell}:{metric}", pattern)]
        found = fitting[-1] if fitting else 1.0
        return found[seed] if isinstance(found, tuple) else found

    return [
        record(
            spec,
            cell.name,
            seed,
            metrics={metric: Measured(value(cell.name, metric, number), 7.0) for metric in spec.metrics},
            curves={},
        )
        for cell in spec.cells
        for number, seed in enumerate(spec.seeds)
    ]


def keep(folder: Path, name: str, values: Values) -> None:
    spec = load_spec(name)
    for result in made_up(spec, values):
        file = result_file(folder, spec, Cell(result.cell), result.seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        result.save(file)


class Shelf:
    """Records in memory, which claims read in place of files, and the names of the specs that were asked for."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.values: Values = {}
        self.lost: set[tuple[str, str, int]] = set()

    def load(self, spec: ExperimentSpec, out: Path) -> list[Result]:
        self.asked.add(spec.name)
        return [one for one in made_up(spec, self.values) if (spec.name, one.cell, one.seed) not in self.lost]

    def outcome(self, name: str, values: Values) -> Outcome:
        self.values = values
        return BY_NAME[name].outcome(Records())


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf()
    monkeypatch.setattr("dubio_lab.claims.claim.load_results", made.load)
    return made


@pytest.mark.feature("Published claims are decided from records by one rule for noise, and the page says which held")
@pytest.mark.parametrize("name", BY_NAME)
def test_a_claim_holds_and_breaks_by_its_records(name: str, shelf: Shelf) -> None:
    holding, breaking = CASES[name]
    held = shelf.outcome(name, holding)
    assert held.held is True, held
    assert any(letter.isdigit() for letter in held.value)
    assert shelf.asked == {*BY_NAME[name].specs}
    broken = shelf.outcome(name, {**holding, **breaking})
    assert broken.held is False, broken


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("bws-attacked-itself", ("bws-honest", "lambda-1e-2", 0)),
        ("bws-attacked-itself", ("bws-transfer", "rho-1.5", 0)),
        ("bws-clean-order", ("bws-clean", "rho-3", 2)),
        ("iwe-ahead-of-all", ("label-noise", "plain-0.6", 4)),
    ],
)
def test_a_claim_is_not_decided_until_all_its_records_are_there(
    name: str, lost: tuple[str, str, int], shelf: Shelf
) -> None:
    assert shelf.outcome(name, {"rho-30:*": 2.0}).held is not None
    shelf.lost = {lost}
    assert shelf.outcome(name, {"rho-30:*": 2.0}) == Outcome("not run yet", None)


def test_without_records_nothing_is_decided(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert {claim.outcome(records) for claim in CLAIMS} == {Outcome("not run yet", None)}
    assert [Outcome("", held).word for held in (None, True, False)] == ["not run yet", "yes", "no"]


def test_every_claim_has_a_name_and_a_case_of_its_own() -> None:
    assert [*CASES] == [*BY_NAME]
    assert len(BY_NAME) == len(CLAIMS)
    assert all(claim.words and claim.published != "" and claim.source for claim in CLAIMS)


def test_records_of_an_earlier_spec_decide_nothing(tmp_path: Path) -> None:
    keep(tmp_path, "bbb-regression", {"*": 9.0})
    assert BY_NAME["m3-band"].outcome(Records(tmp_path)).held
    spec = load_spec("bbb-regression")
    for seed in spec.seeds:
        record(spec, "local", seed, 9.0, digest="earlier").save(result_file(tmp_path, spec, spec.cells[0], seed))
    assert BY_NAME["m3-band"].outcome(Records(tmp_path)).held is None


def test_noise_is_that_over_seeds_and_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    keep(tmp_path, "bws-clean", {"rho-30:test": (90.0, 92.0, 94.0), "rho-3:test": (89.0, 91.0, 93.0)})
    keep(tmp_path, "bws-ensembles", {"n1:average": 80.0})
    records = Records(tmp_path)
    found = records.number("bws-clean", "rho-30", "test")
    assert (found.value, found.error) == (92.0, pytest.approx(2 / 3**0.5))
    assert records.difference("bws-clean", "rho-30", "rho-3", "test") == Number(1.0, 0.0)
    assert records.number("bws-ensembles", "n1", "average") == Number(80.0, 0.0)  # not the 7 within the seed
    assert records.best("bws-clean", ("rho-3", "rho-30", "rho-4"), "test")[0] == "rho-30"
    with pytest.raises(NotRunError, match="bws-pruning, snr-50: test"):
        records.number("bws-pruning", "snr-50", "test")


def test_beyond_noise_is_more_than_two_standard_errors() -> None:
    assert Number(1.1, 0.5).above(0.0)
    assert not Number(0.9, 0.5).above(0.0)
    assert Number(-1.1, 0.5).below(0.0)
    assert not Number(-0.9, 0.5).below(0.0)
    assert Number(3.0, 0.3) - Number(1.0, 0.4) == Number(2.0, 0.5)
    assert Number(3.0, 0.3) - 1.0 == Number(2.0, 0.3)
    assert (str(Number(95.678, 0.123)), str(Number(2.0)), Number(0.5, 0.1).signed) == (
        "95.68 +- 0.12",
        "2",
        "+0.5 +- 0.1",
    )


def test_a_seed_that_failed_does_not_bring_accuracies_near_to_published_ones(shelf: Shelf) -> None:
    near = published_of("bws-clean")
    found = shelf.outcome("bws-clean-accuracies", near | {"rho-3:validation": (80.0, 97.0, 97.0)})
    assert found == Outcome("largest gap -5.96 +- 5.7 (rho-3, validation); 21 of 22 within", False)


def test_a_draw_that_costs_nothing_is_cheap_enough(shelf: Shelf) -> None:
    found = shelf.outcome("m3-speed-images", {"*-sequential:slope": 5.0, "*-lrt:slope": -0.01})
    assert found == Outcome("5 s and -0.01 s for each further draw", True)


def test_the_page_says_which_claims_held(tmp_path: Path) -> None:
    assert claims_tables.claims_summary(tmp_path) == "0 of 0 claims that were checked held"
    keep(tmp_path, "bws-ensembles", {"n100:average": 2.5})
    keep(tmp_path, "bbb-regression", {"*": 9.0})
    section = claims_tables.claims_section(tmp_path)
    published = sum(claim.published is not None and not claim.in_our_way for claim in CLAIMS)
    assert section.startswith(
        f"## Claims\n\n1 of 2 claims that were checked held, of {published} that were published.\n"
    )
    assert "([bws-ensembles](RESULTS.md#bws-ensembles)) | +5.07 | +1.5 | no |" in section
    assert "| wider; a figure | 9 (local), 9 (weight) | yes |" in section
    assert "| 1.32 | not run yet | not run yet |" in section
    assert "| (1.32) | not run yet | not run yet |" in section
    titles = [line.removeprefix("### ") for line in section.splitlines() if line.startswith("### ")]
    assert titles == [title for title, _ in PAPERS.values()]
    assert claims_tables.claims_table(tmp_path, "iwe").count("\n") == 2
    keep(tmp_path, "bws-pruning", {"snr-50:*": 2.0})
    assert claims_tables.claims_summary(tmp_path) == "3 of 4 claims that were checked held"  # without the one we ask
    assert "| not asked | +0 at 25 %, +1 at 50 %," in claims_tables.claims_table(tmp_path, "bws")
