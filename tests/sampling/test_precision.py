"""Precision: what each word puts in force, for how long, and what stays in float32 all the same."""

import jaxtyping
import pytest
import torch
from torch import nn

import dubio
from dubio.sampling import Precision, check_precision, computing_in, rounding_products

CPU = torch.device("cpu")


def in_force() -> tuple[bool, bool, bool]:
    """Whether products and convolutions of a GPU are rounded, and whether autocast is on."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return (*flags, torch.is_autocast_enabled("cpu"))


@pytest.mark.parametrize(
    ("precision", "inside"),
    [("fp32", (False, False, False)), ("tf32", (True, True, False)), ("bf16", (True, True, True))],
)
def test_a_precision_is_in_force_inside_and_gone_outside(
    precision: Precision, inside: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = in_force()
    with computing_in(precision, CPU):
        assert in_force() == inside
    assert in_force() == before
    with rounding_products(precision):
        assert in_force() == (*inside[:2], False)
    with pytest.raises(RuntimeError), computing_in(precision, CPU):
        raise RuntimeError
    assert in_force() == before


def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="precision must be 'fp32', 'tf32' or 'bf16', got 'fp16'"):
        check_precision("fp16")


def test_variances_in_bf16_neither_vanish_nor_overflow() -> None:
    """Squares of 1e-5 and of 1e5, which are nothing and infinite in float16."""
    torch.manual_seed(0)
    layer = dubio.Bayes(init_std=1e-5, estimator="local").convert(nn.Linear(64, 32))
    nn.init.zeros_(layer.weight_posterior.mean)
    nn.init.zeros_(layer.bias_posterior.mean)
    for size in (1.0, 1e5):
        inputs = size * (1.0 + torch.rand(16, 64))
        with torch.no_grad(), computing_in("bf16", CPU):
            spread = dubio.sample(layer, inputs, 4000, seed=1).float().std(dim=0)
        expected = 1e-5 * inputs.square().sum(dim=1, keepdim=True).add(1.0).sqrt()
        torch.testing.assert_close(spread / expected, torch.ones(16, 32), rtol=0.06, atol=0.0)  # five standard errors


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_the_noise_of_a_layer_is_as_wide_in_bf16(estimator: dubio.sampling.Estimator) -> None:
    torch.manual_seed(0)
    layer = dubio.Bayes(init_std=0.3, estimator=estimator).convert(nn.Linear(64, 32))
    inputs = torch.rand(16, 64)
    stds = {}
    for precision in ("fp32", "bf16"):
        with torch.no_grad(), computing_in(precision, CPU):
            stds[precision] = dubio.sample(layer, inputs, 2000, seed=1).float().std(dim=0)
    torch.testing.assert_close(stds["bf16"], stds["fp32"], rtol=0.01, atol=0.01)
