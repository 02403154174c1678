"""Removed weights of plain parameters: zero whoever reads them, whatever is written to the parameter."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.rewrite import Masked, masked_tensors, remove_weights, removed_of

MASK = torch.tensor([[True, False, True], [False, False, True]])
INPUTS = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def masked() -> nn.Linear:
    layer = nn.Linear(3, 2)
    remove_weights(layer, "weight", MASK)
    return layer


def test_a_masked_layer_computes_with_zeros_and_keeps_its_class_and_names() -> None:
    plain = nn.Linear(3, 2)
    layer = copy.deepcopy(plain)
    remove_weights(layer, "weight", MASK)
    expected = nn.functional.linear(INPUTS, plain.weight.masked_fill(MASK, 0.0), plain.bias)
    assert torch.equal(layer(INPUTS), expected)
    assert isinstance(layer, nn.Linear)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert list(layer.state_dict()) == ["weight", "bias", "weight_removed"]
    assert list(masked_tensors(layer)) == [("weight", "weight_removed", ("weight",))]


def test_removed_weights_are_zero_whatever_is_written_there_and_get_no_gradient() -> None:
    layer = masked()
    with torch.no_grad():
        layer._parameters["weight"].fill_(7.0)
    assert torch.equal(layer.weight, torch.where(MASK, 0.0, 7.0))
    layer(INPUTS).square().sum().backward()
    gradient = layer._parameters["weight"].grad
    assert torch.equal(gradient == 0.0, MASK)


def test_masks_grow_and_a_second_parameter_has_its_own() -> None:
    layer = masked()
    remove_weights(layer, "weight", MASK.flip(0))
    remove_weights(layer, "bias", torch.tensor([True, False]))
    assert torch.equal(removed_of(layer, "weight"), MASK | MASK.flip(0))
    assert removed_of(layer, "bias").tolist() == [True, False]
    assert [name for name, _, _ in masked_tensors(layer)] == ["weight", "bias"]
    assert layer(torch.zeros(1, 3)).flatten().ne(0.0).tolist() == [False, True]


def test_a_plain_checkpoint_loads_and_removed_weights_stay_removed() -> None:
    layer, plain = masked(), nn.Linear(3, 2)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weight, plain.weight.masked_fill(MASK, 0.0))


@pytest.mark.parametrize("method", [dubio.Flow(), dubio.Dropout(), dubio.SESNN(), dubio.PNI(), dubio.Bayes()], ids=str)
@pytest.mark.parametrize(
    "kept", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_masks_on_layers_with_noise_are_copied_and_pickled(method: object, kept: object) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = method.convert(net).eval()
    dubio.prune(model, 0.5, biases=True)
    other = kept(model)
    assert torch.equal(dubio.sample(other, INPUTS, 3, seed=1), dubio.sample(model, INPUTS, 3, seed=1))
    assert [type(a) for a in other.modules()] == [type(a) for a in model.modules()]


def test_a_deterministic_bias_of_a_bayesian_layer_can_be_removed() -> None:
    model = dubio.Bayes(bayesian_bias=False, estimator="local").convert(nn.Linear(3, 2))
    remove_weights(model, "bias", torch.tensor([True, True]))
    for estimator in ("weight", "local", "flipout"):
        with dubio._engine.Using(estimator=estimator):
            assert not dubio.sample(model, torch.zeros(1, 3), 2).any()
    plain = dubio.to_mean(model)
    assert type(plain) is nn.Linear
    assert not plain.bias.any()


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
def test_checkpoints_do_not_bring_removed_weights_back_in_any_estimator(estimator: str) -> None:
    model = dubio.Bayes(estimator=estimator).convert(nn.Linear(3, 2))
    dubio.prune(model, 1.0)
    model.load_state_dict(nn.Linear(3, 2).state_dict())
    draws, others = (dubio.sample(model, inputs, 2, seed=1) for inputs in (INPUTS, INPUTS + 1.0))
    assert torch.equal(draws, others)


def test_a_layer_goes_back_to_what_it_was_with_zeros() -> None:
    layer = masked()
    before = layer(INPUTS)
    layer.dubio_restore()
    assert type(layer) is nn.Linear
    assert not isinstance(layer, Masked)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert torch.equal(layer(INPUTS), before)


def test_a_name_that_is_taken_is_refused() -> None:
    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.weight_removed: Tensor = torch.zeros(1)

    with pytest.raises(ValueError, match=r"cannot prune a Own: it has a weight_removed of its own"):
        remove_weights(Own(), "weight", MASK)
