"""Heads by themselves: clouds from a code and noise, precision, checkpoints, and what they say."""

from typing import Any

import pytest
import torch
from torch import nn

import dubio
from dubio.nn.heads import CloudMaker, GaussianHead, Head, WassersteinHead
from networks import mlp

OPTIONS: Any = {
    "num_points": 4, "noise": "normal", "noise_dim": 3, "dim": 6, "hidden": 8, "prototype": "generated",
    "distance": "sliced", "num_directions": 9, "eval_redraws": 2, "p": 2, "root": False, "trained_scale": False,
    "margin": 1.0, "feature_weight": 0.1, "class_weight": 0.1, "regularisation": 1.0, "num_iterations": 3,
}  # fmt: skip


def head_of(kind: str, **options: Any) -> Head:
    layer = nn.Linear(5, 3)
    if kind == "cloud":
        return WassersteinHead(layer, dubio.Wasserstein(**(OPTIONS | options)))
    return GaussianHead(layer, dubio.SESNN(classes=kind))  # type: ignore[arg-type]


def test_a_cloud_is_made_from_the_code_beside_each_point_s_noise() -> None:
    maker, code, noise = CloudMaker(5, 3, 8, 6), torch.randn(7, 5), torch.randn(7, 4, 3)
    assert maker.noise is not None
    weight = torch.cat([maker.code.weight, maker.noise.weight], dim=1)
    both = torch.cat([code.unsqueeze(1).expand(7, 4, 5), noise], dim=-1)
    expected = maker.out(nn.functional.linear(both, weight, maker.code.bias).relu())
    torch.testing.assert_close(maker(code, noise), expected)
    torch.testing.assert_close(maker(code, None), maker(code, torch.zeros(7, 1, 3)))


@pytest.mark.parametrize("kind", ["cloud", "wasserstein", "kl"])
def test_logits_keep_float32_under_autocast_and_in_narrow_networks(kind: str) -> None:
    head, code = head_of(kind).eval(), torch.randn(7, 5)
    with dubio.noise_off():
        expected = head(code)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = head(code.bfloat16())
        assert narrow.dtype == head.bfloat16()(code.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(narrow, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("distance", ["sliced", "sinkhorn"])
@pytest.mark.parametrize("prototype", ["generated", "free"])
@pytest.mark.parametrize(("p", "root"), [(2, False), (2, True), (1, False)])
def test_the_plain_head_is_the_head_with_noise_off(distance: str, prototype: str, p: int, root: bool) -> None:
    head = head_of("cloud", distance=distance, prototype=prototype, p=p, root=root, trained_scale=True)
    assert isinstance(head, WassersteinHead)
    nn.init.constant_(head.log_scale, 0.3)  # type: ignore[arg-type]
    code = torch.randn(7, 5)
    with dubio.noise_off():
        torch.testing.assert_close(head.plain()(code), head(code))


@pytest.mark.parametrize("kind", ["cloud", "wasserstein", "kl"])
def test_noise_parameters_are_none_and_a_whole_state_loads(kind: str) -> None:
    head, other = head_of(kind), head_of(kind)
    assert not dubio.nn.noise_parameters(head)
    other.load_state_dict(head.state_dict())
    with dubio.noise_off():
        assert torch.equal(other(torch.ones(2, 5)), head(torch.ones(2, 5)))
    partly = {name: value for name, value in head.state_dict().items() if "out.bias" not in name and "rho" not in name}
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict(partly)


def test_a_description_names_the_head() -> None:
    said = {
        method: str(dubio.describe(method.convert(mlp(5, 4, 3))))
        for method in (dubio.Wasserstein(), dubio.SESNN(classes="kl"), dubio.SESNN(classes="wasserstein"))
    }
    expected = (
        "sliced Wasserstein distance of clouds of 8 points as logit",
        "KL divergence of Gaussians as logit",
        "squared 2-Wasserstein distance of Gaussians as logit",
    )
    assert all(text in found for text, found in zip(expected, said.values(), strict=True))
