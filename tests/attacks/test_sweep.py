"""Sweeps over epsilon: they begin at the clean accuracy and go down."""

import torch

import dubio
from dubio.attacks import Fgsm, Pgd, score


def fitted(model: torch.nn.Module) -> torch.nn.Module:
    digits = dubio.data.load("digits")
    dubio.fit(model, digits.train, epochs=8, lr=0.01, progress=False)
    return model


def test_t26_epsilon_zero_is_the_clean_accuracy() -> None:
    """Exactly for a network without noise, within sampling error for one with noise; larger steps only take away."""
    torch.manual_seed(0)
    inputs, targets = dubio.data.load_test("digits").tensors
    plain = fitted(dubio.models.mlp(64, 32, 10))
    bayes = fitted(dubio.Bayes(init_std=0.02).convert(dubio.models.mlp(64, 32, 10)))
    for attack in (Fgsm, Pgd):
        still = attack(epsilon=0.0, num_samples=5, seed=0)
        assert torch.equal(still(plain, inputs, targets).inputs, inputs)
        clean = score(bayes, inputs, targets, num_samples=50, seed=1)
        kept = score(bayes, still(bayes, inputs, targets).inputs, targets, num_samples=50, seed=2)
        assert abs(clean.single.value - kept.single.value) < 0.02
        assert clean.predictive.low <= kept.predictive.value <= clean.predictive.high
        left = [
            score(plain, attack(epsilon=epsilon, seed=0)(plain, inputs, targets).inputs, targets, num_samples=10)
            for epsilon in (0.0, 0.05, 0.1, 0.2)
        ]
        values = [found.predictive.value for found in left]
        assert values[0] == (plain(inputs).argmax(dim=1) == targets).double().mean().item() > 0.9
        assert values == sorted(values, reverse=True)
        assert values[-1] < 0.2
