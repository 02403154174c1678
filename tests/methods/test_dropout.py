"""``Dropout``: which masks it turns on or puts in, at which rates, its objective (T-34), and what it refuses."""

import math

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.convert.randomise import random_names
from dubio.nn.noise_layers import InputMask, RandomDropout
from dubio.nn.sources import weight_matrices
from networks import mlp


class Mixed(nn.Module):
    """A convolution, two dropouts of its own and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.spatial = nn.Dropout2d(0.1)
        self.hidden = nn.Linear(3, 4)
        self.drop = nn.Dropout(0.6)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.hidden(self.spatial(self.conv(x)).mean(dim=(2, 3)))))


def rates(model: nn.Module) -> dict[str, float]:
    """Of every mask, by the name of its layer."""
    return {
        name.removesuffix(".input_noise"): module.p
        for name, module in model.named_modules()
        if isinstance(module, InputMask | RandomDropout)
    }


def test_a_networks_own_dropout_keeps_its_rates() -> None:
    model = dubio.Dropout().convert(Mixed())
    assert rates(model) == {"spatial": 0.1, "drop": 0.6}
    assert random_names(model) == ("spatial", "drop")


def test_a_rate_that_is_given_overrides_them() -> None:
    net = Mixed()
    assert rates(dubio.Dropout(0.3).convert(net)) == {"spatial": 0.3, "drop": 0.3}
    assert (net.spatial.p, net.drop.p) == (0.1, 0.6)


def test_a_network_without_dropout_gets_a_mask_before_every_linear_layer() -> None:
    assert rates(dubio.Dropout().convert(mlp(5, 4, 3))) == {"0": 0.05, "2": 0.05}
    assert rates(dubio.Dropout(0.4).convert(nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(3, 3)))) == {"1": 0.4}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("drop", {"drop": 0.6}),
        ("head", {"head": 0.05}),
        (("spatial", "conv"), {"spatial": 0.1, "conv": 0.05}),
        (nn.Linear, {"hidden": 0.05, "head": 0.05}),
        (nn.Dropout2d, {"spatial": 0.1}),
        (lambda name, module: isinstance(module, nn.Conv2d), {"conv": 0.05}),
        ("*", {"conv": 0.05, "spatial": 0.1, "hidden": 0.05, "drop": 0.6, "head": 0.05}),
    ],
)
def test_where_chooses_dropouts_and_layers_to_put_masks_before(where: dubio.Where, expected: dict[str, float]) -> None:
    assert rates(dubio.Dropout(where=where).convert(Mixed())) == expected


def test_dropout_that_is_not_chosen_stays_torchs_own() -> None:
    model = dubio.Dropout(where="head").convert(Mixed())
    assert type(model.drop) is nn.Dropout
    inputs = torch.randn(4, 2, 4, 4)
    with dubio.noise_off():
        assert torch.equal(model.eval()(inputs), model(inputs))
        assert not torch.equal(model.train()(inputs), model(inputs))


def test_t33_masks_are_independent_for_every_example_and_draw() -> None:
    model = dubio.Dropout(0.5).convert(mlp(40, 3)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(3, 40))
    outputs = dubio.sample(model, torch.ones(5, 40), 6)
    assert len(outputs.detach().reshape(30, 3).unique(dim=0)) == 30


def test_predictions_disagree_in_eval_mode() -> None:
    prediction = dubio.predict(dubio.Dropout(0.5).convert(mlp(5, 16, 3)), torch.randn(4, 5), 20)
    assert (prediction.mutual_information > 1e-4).all()


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_t34_the_penalty_pulls_weights_by_twice_its_rate_and_leaves_biases(alpha: float) -> None:
    torch.manual_seed(0)
    model, inputs, targets = (dubio.Dropout(0.5).convert(Mixed()), torch.randn(4, 2, 4, 4), torch.tensor([0, 1, 2, 0]))
    gradients = []
    for l2 in (0.0, 0.25):
        objective = dubio.Dropout(alpha=alpha, l2=l2).objective(100)
        model.zero_grad()
        objective(model, inputs, targets, 3, seed=1).total.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert len(weight_matrices(model)) == 3
    for parameter, without, penalised in zip(model.parameters(), *gradients, strict=True):
        expected = 2.0 * 0.25 * parameter if parameter.dim() > 1 else torch.zeros_like(parameter)
        torch.testing.assert_close(penalised - without, expected, rtol=1e-4, atol=1e-6)


def test_t34_the_penalty_is_the_sum_of_squares_beside_a_mean_loss() -> None:
    model, inputs, targets = (
        dubio.Dropout().convert(mlp(5, 4, 3)),
        torch.randn(6, 5),
        torch.zeros(6, dtype=torch.int64),
    )
    loss = dubio.Dropout(l2=0.1).objective(1000)(model, inputs, targets, 2)
    squares = sum(module.weight.square().sum() for module in (model[0], model[2]))
    torch.testing.assert_close(loss.terms["l2"], 0.1 * squares)
    torch.testing.assert_close(loss.total, loss.nll + 0.1 * squares)
    assert loss.terms["divergence"] == 0.0  # a mask has no prior


def test_the_penalty_leaves_noise_alone() -> None:
    model = dubio.InputNoise(components=2).convert(mlp(5, 4, 3))
    assert [(matrix.shape, units) for matrix, units in weight_matrices(model)] == [((4, 5), 4), ((3, 4), 3)]


def test_alpha_needs_several_draws_and_gets_them_by_default() -> None:
    assert dubio.Dropout().recipe.num_samples == 1
    assert dubio.Dropout(alpha=0.5).recipe.num_samples == 10
    assert dubio.Dropout(alpha=0.5).objective(10) == dubio.Alpha(0.5, 10, l2=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dubio.Dropout(1.0), ValueError, r"p must be in \[0, 1\), got 1\.0; it is the share that is dropped"),
        (lambda: dubio.Dropout(-0.1), ValueError, r"p must be in \[0, 1\), got -0\.1"),
        (lambda: dubio.Dropout(math.nan), ValueError, r"p must be in \[0, 1\), got nan"),
        (lambda: dubio.Dropout("0.5"), TypeError, "p must be a number, got '0.5'"),
        (lambda: dubio.Dropout(True), TypeError, "p must be a number, got True"),
        (lambda: dubio.Dropout(alpha=math.inf), ValueError, "alpha must be a finite number, got inf"),
        (lambda: dubio.Dropout(l2=-1.0), ValueError, r"l2 must be finite and at least 0, got -1\.0"),
        (lambda: dubio.Dropout(where=3), TypeError, "where must be a glob, a module type, a callable, or a tuple of"),
        (
            lambda: dubio.Dropout().convert(nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0))),
            ValueError,
            r"rates of dropout must be in \[0, 1\), got 1\.0 at 1",
        ),
        (
            lambda: dubio.Dropout().convert(nn.Conv1d(2, 2, 1)),
            ValueError,
            "nothing to convert: where=None chooses no layer, and noise goes before linear layers and convolutions; "
            "it could be the network itself",
        ),
        (
            lambda: dubio.Dropout().convert(nn.Embedding(3, 3)),
            ValueError,
            "noise goes before linear layers and convolutions, of which this network has none",
        ),
    ],
)
def test_refusals_name_the_argument_the_rule_and_the_value(
    make: object, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(error, match=message):
        make()  # type: ignore[operator]


def test_a_dropout_of_rate_one_can_be_given_another() -> None:
    assert rates(dubio.Dropout(0.5).convert(nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0)))) == {"1": 0.5}
