"""Label noise: T-71, what a seed fixes, and what is refused."""

from collections.abc import Callable

import jaxtyping
import pytest
import torch
from torch import Tensor

from dubio.data.corruptions import Flip, LabelNoise, MnistAsymmetric, Symmetric, UniformMix, parse_label_noise

NUM_CLASSES = 10
LABELS = torch.randint(NUM_CLASSES, (100_000,), generator=torch.Generator().manual_seed(1))
KINDS: list[type[LabelNoise]] = [Flip, Symmetric, UniformMix, MnistAsymmetric]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def counts(labels: Tensor, noisy: Tensor) -> Tensor:
    """How often each true class (row) became each class (column)."""
    return torch.bincount(labels * NUM_CLASSES + noisy, minlength=NUM_CLASSES**2).reshape(NUM_CLASSES, -1).double()


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.feature("Label noise: patterned flip, symmetric, uniform mix and MNIST asymmetric, with their matrices")
def test_t71_labels_move_as_the_transition_matrix_says(kind: type[LabelNoise], p: float) -> None:
    noisy = kind(p)(LABELS, NUM_CLASSES, generator())
    observed = counts(LABELS, noisy.labels)
    rows = observed.sum(dim=1, keepdim=True)
    standard_error = (noisy.transition * (1.0 - noisy.transition) / rows).sqrt()
    assert ((observed / rows - noisy.transition).abs() <= 4.0 * standard_error).all()

    expected = (rows * noisy.transition)[noisy.transition > 0.0]
    chi_square = ((observed[noisy.transition > 0.0] - expected).square() / expected).sum()
    freedom = len(expected) - NUM_CLASSES
    assert abs(chi_square - freedom) <= 4.0 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_t71_rows_sum_to_one(kind: type[LabelNoise]) -> None:
    sums = kind(0.3)(LABELS, NUM_CLASSES, generator()).transition.sum(dim=1)
    torch.testing.assert_close(sums, torch.ones(NUM_CLASSES, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_t71_without_noise_labels_are_untouched(kind: type[LabelNoise]) -> None:
    noisy = kind(0.0)(LABELS, NUM_CLASSES, generator())
    assert torch.equal(noisy.labels, LABELS)
    assert torch.equal(noisy.transition, torch.eye(NUM_CLASSES, dtype=torch.float64))


def test_t71_a_flip_never_leads_back_to_its_own_class() -> None:
    for seed in range(100):
        pattern = Flip(1.0)(LABELS[:10], NUM_CLASSES, generator(seed)).transition
        assert not pattern.diagonal().any()
        assert torch.equal((pattern == 1.0).sum(dim=1), torch.ones(NUM_CLASSES, dtype=torch.int64))


def test_t71_destinations_of_a_flip_are_uniform_over_the_other_classes() -> None:
    draws = 1000
    labels = torch.arange(4)
    drawn = sum(Flip(1.0)(labels, 4, generator(seed)).transition for seed in range(draws))
    expected = draws / 3 * (1.0 - torch.eye(4, dtype=torch.float64))
    assert ((drawn - expected).abs() <= 4.0 * (draws * (1 / 3) * (2 / 3)) ** 0.5).all()


def test_t71_a_seed_is_a_pattern_and_its_labels() -> None:
    first, again, other = (Flip(0.4)(LABELS, NUM_CLASSES, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first.transition, again.transition)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.transition, other.transition)
    assert not torch.equal(first.labels, other.labels)


def test_a_pattern_does_not_depend_on_the_strength_or_the_labels() -> None:
    weak, strong = (Flip(p)(LABELS[:n], NUM_CLASSES, generator()).transition for p, n in ((0.1, 7), (1.0, 1000)))
    off_diagonal = weak - weak.diagonal().diag()
    assert torch.equal(off_diagonal > 0.0, strong > 0.0)


def test_digits_that_look_alike_are_confused() -> None:
    transition = MnistAsymmetric(0.25)(LABELS, NUM_CLASSES, generator()).transition
    moved = {(7, 1), (2, 7), (5, 6), (6, 5), (3, 8)}
    for i in range(10):
        for j in range(10):
            stays = 0.75 if i in {true for true, _ in moved} else 1.0
            assert transition[i, j] == (0.25 if (i, j) in moved else stays if i == j else 0.0)


def test_true_labels_are_left_as_they_were() -> None:
    labels = LABELS.clone()
    Symmetric(1.0)(labels, NUM_CLASSES, generator())
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flip:0.3", Flip(0.3)),
        ("flip:0", Flip(0.0)),
        ("symmetric:1", Symmetric(1.0)),
        ("uniform-mix:.5", UniformMix(0.5)),
        ("mnist-asymmetric:0.25", MnistAsymmetric(0.25)),
    ],
)
def test_label_noise_is_read_from_text(text: str, expected: LabelNoise) -> None:
    assert parse_label_noise(text) == expected


BAD_TEXTS = (
    *("", "flip", "flip:", "flip:x", "flip:nan", "flip:inf", "flip:-0.1", "flip:1.1"),
    *("flip:0.3,0.4", "flip: 0.3", "flip:0.3 ", "flip:0_1", "flip:1e-1", "Flip:0.3", "swap:0.3"),
)


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_other_texts_are_refused(text: str) -> None:
    hint = r"; did you mean 'flip'\?" if text.startswith("Flip") else ""
    message = (
        r"^label noise must be one of flip:P, symmetric:P, uniform-mix:P, mnist-asymmetric:P with P in \[0, 1\], "
        rf"such as flip:0.3, got '{text}'{hint}$"
    )
    with pytest.raises(ValueError, match=message):
        parse_label_noise(text)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Flip(1.5), ValueError, r"^p of Flip must be in \[0, 1\], got 1.5$"),
        (lambda: Symmetric(-0.1), ValueError, r"^p of Symmetric must be in \[0, 1\], got -0.1$"),
        (lambda: UniformMix(float("nan")), ValueError, r"^p of UniformMix must be in \[0, 1\], got nan$"),
        (lambda: MnistAsymmetric("0.1"), TypeError, r"^p of MnistAsymmetric must be a number, got '0.1'$"),
        (lambda: Flip(0.1)(LABELS, 9, generator()), ValueError, r"^labels must be from 0 to 8, got 0 to 9$"),
        (lambda: Flip(0.1)(-LABELS, 10, generator()), ValueError, r"^labels must be from 0 to 9, got -9 to 0$"),
        (lambda: Flip(0.1)(LABELS, 1, generator()), ValueError, r"^num_classes of Flip must be at least 2, got 1$"),
        (
            lambda: MnistAsymmetric(0.1)(LABELS[:1], 12, generator()),
            ValueError,
            r"^num_classes of MnistAsymmetric must be 10, got 12$",
        ),
        (
            lambda: Flip(0.1)(LABELS.float(), 10, generator()),
            TypeError,
            r"^labels must be whole numbers, one for each example, got torch.float32 of shape \(100000,\)$",
        ),
    ],
)
def test_bad_values_are_refused(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], object], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse types first
    with pytest.raises(error, match=message):
        make()
