"""Paired tests: known values, SciPy's probabilities, and what they see that intervals do not."""

import math

import jaxtyping
import pytest
import torch
from scipy import stats

from dubio import functional


def discordant(only_first: int, only_second: int, both: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Right or wrong for two networks that differ on so many examples."""
    first = [True] * only_first + [False] * only_second + [True] * both
    second = [False] * only_first + [True] * only_second + [True] * both
    return torch.tensor(first), torch.tensor(second)


@pytest.mark.parametrize(("counts", "expected"), [((1, 13), 0.0018), ((7, 0), 0.0156), ((0, 0), 1.0), ((5, 5), 1.0)])
def test_mcnemar_has_the_known_values(counts: tuple[int, int], expected: float) -> None:
    assert functional.statistics.mcnemar(*discordant(*counts)) == pytest.approx(expected, abs=5e-5)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    generator = torch.Generator().manual_seed(0)
    for counts in torch.randint(0, 300, (20, 2), generator=generator).tolist():
        if sum(counts):
            expected = stats.binomtest(counts[0], sum(counts), 0.5).pvalue
            assert functional.statistics.mcnemar(*discordant(*counts)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [2, 5, 40, 3000])
def test_the_paired_test_of_means_is_scipys(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    first = torch.randn(count, generator=generator)
    for shift in (0.0, 0.02, 0.3, 3.0):
        second = 0.7 * first + shift + 0.3 * torch.randn(count, generator=generator)
        expected = stats.ttest_rel(first.double().numpy(), second.double().numpy()).pvalue
        assert functional.statistics.paired_mean_test(first, second) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert functional.statistics.paired_mean_test(first, first) == 1.0
    whole = torch.arange(3.0)
    assert functional.statistics.paired_mean_test(whole, whole - 0.5) == 0.0


def test_placements_have_the_area_as_their_mean_with_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    negative, positive = (torch.randint(0, 9, (size,), generator=generator).float() for size in (60, 41))
    expected = functional.uncertainty.auroc(negative, positive + 1.0).item()
    for part in functional.statistics.auroc_placements(negative, positive + 1.0):
        assert part.mean().item() == pytest.approx(expected)


def test_delongs_test_holds_its_level_and_sees_a_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    p_values = []
    for _ in range(300):
        shared = torch.randn(180, generator=generator)
        signal = torch.cat([torch.zeros(100), torch.full((80,), 0.8)])
        scores = [shared + signal + 0.7 * torch.randn(180, generator=generator) for _ in range(2)]
        p_values.append(
            functional.statistics.paired_auroc_test(
                *(functional.statistics.auroc_placements(score[:100], score[100:]) for score in scores)
            )
        )
    share = sum(p < 0.05 for p in p_values) / 300
    assert 0.02 <= share <= 0.09  # 0.05, with a standard error of 0.013
    better = shared + 2.5 * signal
    pair = [functional.statistics.auroc_placements(score[:100], score[100:]) for score in (better, scores[0])]
    assert functional.statistics.paired_auroc_test(*pair) < 1e-3
    assert functional.statistics.paired_auroc_test(pair[0], pair[0]) == 1.0


def test_holm_corrects_the_smallest_by_all_and_keeps_the_order() -> None:
    assert functional.statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert functional.statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert functional.statistics.holm([]) == []


def test_student_and_normal_probabilities_are_scipys() -> None:
    for size in (0.1, 1.0, 2.5, 12.0):
        assert functional.statistics.normal_test(size, 1.0) == pytest.approx(2.0 * stats.norm.sf(size), rel=1e-12)
        for freedom in (1, 3, 30, 10_000):
            expected = 2.0 * stats.t.sf(size, freedom)
            assert functional.statistics.student_test(-2.0 * size, 2.0, freedom) == pytest.approx(expected, rel=1e-8)
    assert math.isclose(functional.statistics.student_test(0.0, 1.0, 5), 1.0)


def test_values_of_other_examples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match=r"one value for each of the same examples, got shapes \(3,\) and \(4,\)"):
        functional.statistics.paired_mean_test(torch.zeros(3), torch.zeros(4))
