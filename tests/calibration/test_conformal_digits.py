"""Sets at 90 % on digits under noise, over many splits of what was held out."""

import pytest
import torch

import dubio
from dubio import functional

COVERAGE, SPLITS, NOISE_STD = 0.9, 200, 0.4


@pytest.mark.slow
@pytest.mark.feature("Prediction sets at 90 % hold the target in 90 % of cases, over 200 splits of noisy digits")
def test_sets_at_ninety_percent_cover_ninety_percent_of_noisy_digits(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    digits = dubio.data.digits()
    assert digits.train is not None
    assert digits.validation is not None
    assert digits.test is not None
    torch.manual_seed(0)
    model = dubio.Dropout(p=0.1).convert(dubio.models.build("fc:50", inputs=(1, 8, 8), num_classes=10))
    dubio.fit(model, digits.train, epochs=15, progress=False)
    inputs, labels = (torch.cat(parts) for parts in zip(digits.validation.tensors, digits.test.tensors, strict=True))
    inputs = inputs + NOISE_STD * torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1))
    found = dubio.predict(model, inputs, num_samples=50, seed=0)
    assert (found.label == labels).double().mean() < 0.85

    generator, half = torch.Generator().manual_seed(2), len(labels) // 2
    shares, sizes = [], []
    for _ in range(SPLITS):
        own, new = torch.randperm(len(labels), generator=generator).split([half, len(labels) - half])
        scores = functional.calibration.conformal_scores(found.log_probs[own], "lac")[torch.arange(half), labels[own]]
        sets = dubio.PredictionSets("lac", functional.calibration.conformal_quantile(scores, COVERAGE).item(), COVERAGE)
        held = sets.hold(found.log_probs[new])
        shares.append(held.gather(1, labels[new, None]).double().mean())
        sizes.append(held.double().sum(dim=1).mean())

    coverage, error = torch.stack(shares).mean(), torch.stack(shares).std() / SPLITS**0.5
    with capsys.disabled():
        print(  # noqa: T201
            f"\naccuracy {(found.label == labels).double().mean():.3f}; sets at 0.9: coverage {coverage:.4f} "
            f"(standard error {error:.4f}), mean size {torch.stack(sizes).mean():.2f} of 10"
        )
    assert COVERAGE - 4 * error <= coverage <= COVERAGE + 1 / (half + 1) + 4 * error
