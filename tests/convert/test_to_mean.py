"""The way back: ``to_mean`` makes an ordinary network of a converted one, and ``parameter_names`` maps its names."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import dubio
from contracts.modules import MODULES, BidirectionalClassifier, LanguageModel, TiedPair, Twice
from dubio.nn.sources import GaussianPosterior, posteriors
from networks import Residual, mlp

every_network = pytest.mark.parametrize("name", MODULES)


def train(model: nn.Module, inputs: Tensor, steps: int = 3) -> None:
    """A few steps on any loss that moves every parameter."""
    torch.manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for _ in range(steps):
        outputs = model(inputs)
        loss = (outputs * torch.randn_like(outputs)).mean() + 1e-2 * dubio.divergence(model)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()


TRAINED: dict[str, tuple[Any, Tensor]] = {
    "mlp": (lambda: mlp(4, 6, 3), torch.randn(5, 4)),
    "batch norm": (Residual, torch.randn(5, 3, 8, 8)),
    "tied": (TiedPair, torch.randn(5, 4)),
    "shared": (Twice, torch.randn(5, 4)),
    "language model": (LanguageModel, torch.randint(1, 11, (5, 4))),
    "lstm": (BidirectionalClassifier, torch.randn(5, 3, 3)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(5, 3, 8)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), torch.randn(5, 4)),
}
trained = pytest.mark.parametrize(("make", "inputs"), TRAINED.values(), ids=list(TRAINED))


@pytest.mark.feature("to_mean gives back the network with its trained weights, as torch knows it")
@pytest.mark.parametrize("norms", [False, True], ids=["", "random norms"])
@trained
def test_what_training_made_of_the_weights_comes_back(make: Any, inputs: Tensor, norms: bool) -> None:
    net = make()
    model = dubio.Bayes(norms=norms).convert(net)
    train(model, inputs)
    back = dubio.to_mean(model)
    names = dubio.parameter_names(model)
    values = dict(model.named_parameters(remove_duplicate=False))
    expected = {plain: values[name] for name, plain in names.items() if not name.endswith(".rho")}
    found = dict(back.named_parameters(remove_duplicate=False))
    assert list(found) == [name for name, _ in net.named_parameters(remove_duplicate=False)]
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    former = dict(net.named_parameters(remove_duplicate=False))
    assert all(not torch.equal(value, former[name]) for name, value in found.items())  # training moved them all
    with dubio.noise_off():
        assert torch.equal(back(inputs), model(inputs))
    for name, buffer in model.named_buffers():  # running statistics
        if "posterior" not in name:
            assert torch.equal(back.get_buffer(name), buffer)


@trained
def test_the_ordinary_network_is_one(make: Any, inputs: Tensor) -> None:
    net = make()
    back = dubio.to_mean(dubio.Bayes(prior=dubio.CentredNormal(0.1)).convert(net))
    assert posteriors(back) == []
    for (name, plain), (other_name, module) in zip(net.named_modules(), back.named_modules(), strict=True):
        assert name == other_name
        assert type(module).__mro__[1:] == type(plain).__mro__[1:]  # parametrised modules have a class each
        assert vars(module).keys() == vars(plain).keys()
        assert list(module._parameters) == list(plain._parameters)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    with pytest.raises(ValueError, match="was not converted by a dubio method"):
        dubio.spec(back)
    assert "not converted" in str(dubio.describe(back))
    net.load_state_dict(back.state_dict())  # and torch knows its names


@trained
def test_the_converted_network_stays_as_it_was_and_shares_nothing(make: Any, inputs: Tensor) -> None:
    model = dubio.Bayes(init_std=0.2).convert(make()).eval()
    before = dubio.sample(model, inputs, 2, seed=1, executor="loop")
    back = dubio.to_mean(model)
    with torch.no_grad():
        for parameter in back.parameters():
            parameter.add_(1.0)
    back(inputs)
    assert torch.equal(dubio.sample(model, inputs, 2, seed=1, executor="loop"), before)
    storages = [{p.untyped_storage().data_ptr() for p in owner.parameters()} for owner in (model, back)]
    assert not storages[0] & storages[1]


def test_tied_weights_stay_tied() -> None:
    model = dubio.Bayes().convert(LanguageModel())
    train(model, torch.randint(1, 11, (5, 4)))
    back = dubio.to_mean(model)
    assert back.decode.weight is back.embed.weight
    pair = dubio.to_mean(dubio.Bayes().convert(TiedPair()))
    assert pair.encode.weight is pair.decode.weight
    assert pair.first is pair.second
    assert pair.encode.bias is not pair.decode.bias
    shared = dubio.to_mean(dubio.Bayes().convert(Twice()))
    assert shared.block is shared.again
    assert len(list(shared.parameters())) == len(list(Twice().parameters()))


@every_network
def test_parameter_names_map_every_name_back(name: str) -> None:
    torch.manual_seed(0)
    row = MODULES[name]
    net = row.make()
    model = dubio.Bayes(where=row.where, norms=row.norms).convert(net)
    names = dubio.parameter_names(model)
    assert list(names) == [own for own, _ in model.named_parameters(remove_duplicate=False)]
    plain = dict(net.named_parameters(remove_duplicate=False))
    assert set(names.values()) == set(plain)
    for own, former in names.items():
        owner, _, kind = own.rpartition(".")
        if isinstance(model.get_submodule(owner), GaussianPosterior):
            assert own == f"{former}_posterior.{kind}"
            assert kind in ("mean", "rho")
            assert f"{former}_posterior.mean" in names
            assert f"{former}_posterior.rho" in names
        else:
            assert own == former
        assert model.get_parameter(own).shape == plain[former].shape
        if kind != "rho":
            assert torch.equal(model.get_parameter(own), plain[former])


def test_parameter_names_of_an_ordinary_network_are_its_own() -> None:
    assert dubio.parameter_names(mlp(4, 3, 2)) == {name: name for name in ("0.weight", "0.bias", "2.weight", "2.bias")}


def test_a_network_that_was_never_converted_is_copied() -> None:
    net = mlp(4, 3, 2)
    back = dubio.to_mean(net)
    assert back is not net
    assert type(back[0]) is nn.Linear
    assert torch.equal(back(torch.ones(2, 4)), net(torch.ones(2, 4)))


def test_users_hooks_and_attributes_come_back() -> None:
    net = Residual()
    net.branch.nickname = "second"
    calls: list[str] = []
    net.branch.register_forward_hook(lambda module, args, output: calls.append(type(module).__name__))
    net.register_forward_pre_hook(lambda module, args: calls.append("begin"))
    model = dubio.Bayes().convert(net)
    back = dubio.to_mean(model)
    assert back.branch.nickname == "second"
    for network in (net, model, back):
        calls.clear()
        network(torch.randn(2, 3, 8, 8))
        assert calls == ["begin", "Conv2d"]


def test_what_is_frozen_stays_frozen() -> None:
    net = Residual()
    net.stem.requires_grad_(False)
    back = dubio.to_mean(dubio.Bayes().convert(net))
    flags = [{name: p.requires_grad for name, p in owner.named_parameters()} for owner in (net, back)]
    assert flags[0] == flags[1]
    assert False in flags[1].values()


def test_there_and_back_again_any_number_of_times() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.PReLU(), nn.Linear(6, 3))
    back: nn.Module = net
    for norms in (False, True, False):
        model = dubio.Bayes(norms=norms).convert(back)
        back = dubio.to_mean(model)
    assert [(n, type(m)) for n, m in back.named_modules()] == [(n, type(m)) for n, m in net.named_modules()]
    assert list(back.state_dict()) == list(net.state_dict())
    inputs = torch.randn(3, 4)
    assert torch.equal(back(inputs), net(inputs))


@trained
def test_copies_of_the_converted_network_go_back_too(make: Any, inputs: Tensor) -> None:
    model = dubio.Bayes().convert(make()).eval()
    expected = dubio.to_mean(model)(inputs)
    assert torch.equal(dubio.to_mean(copy.deepcopy(model))(inputs), expected)
    if "parametrizations" not in dict(model.named_children()):
        assert torch.equal(dubio.to_mean(pickle.loads(pickle.dumps(model)))(inputs), expected)


def test_a_recurrent_network_trains_on_after_the_way_back() -> None:
    """A recurrent layer keeps a flat list of its weights, which must be those of the new network."""
    model = dubio.Bayes().convert(BidirectionalClassifier())
    inputs = torch.randn(8, 3, 3)
    train(model, inputs)
    back = dubio.to_mean(model)
    weights = list(back.memory.parameters())
    assert all(any(weight is parameter for parameter in weights) for weight in back.memory._flat_weights)
    before = back(inputs)
    optimiser = torch.optim.SGD(back.parameters(), lr=0.5)
    F.cross_entropy(back(inputs), torch.arange(8) % 3).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in back.parameters())
    optimiser.step()
    assert (back(inputs) - before).abs().max() > 1e-4


def test_a_draw_changes_nothing_in_what_comes_back() -> None:
    model = dubio.Bayes(init_std=0.5).convert(mlp(4, 6, 3))
    inputs = torch.randn(3, 4)
    first = dubio.to_mean(model)(inputs)
    dubio.predict(model, inputs, 5)
    model(inputs).sum().backward()
    with dubio.frozen(3):
        assert torch.equal(dubio.to_mean(model)(inputs), first)
