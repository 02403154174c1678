"""Conversion: a new network, the same function with noise off, and an original that nobody touched."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import layers
from dubio.layers import BayesianLayer, posteriors
from dubio.sampling import Using
from networks import CASES, Residual, Tied, mlp

ESTIMATORS = ("weight", "local", "flipout")
cases = pytest.mark.parametrize("case", CASES)


def call(net: nn.Module, inputs: Any) -> Tensor:
    args, kwargs = dubio.sampling.arguments(inputs)
    return net(*args, **kwargs)  # type: ignore[no-any-return]


def inventory(net: nn.Module) -> dict[str, Any]:
    """All that makes a network what it is: objects by identity, values by copy."""
    return {
        "modules": [(name, id(module), type(module), set(vars(module))) for name, module in net.named_modules()],
        "parameters": [(name, id(p), p.requires_grad) for name, p in net.named_parameters(remove_duplicate=False)],
        "values": {name: value.clone() for name, value in net.state_dict().items()},
        "training": [module.training for module in net.modules()],
        "hooks": [
            (list(module._forward_hooks.values()), list(module._forward_pre_hooks.values())) for module in net.modules()
        ],
    }


def assert_unchanged(net: nn.Module, before: dict[str, Any]) -> None:
    after = inventory(net)
    values, former = after.pop("values"), before.pop("values")
    assert after == before
    assert values.keys() == former.keys()
    assert all(torch.equal(value, former[name]) for name, value in values.items())


def shout(module: nn.Module, args: Any, output: Any) -> None:
    """A user's own hook."""


@pytest.mark.feature("conversion gives a new network and leaves the original untouched")
@cases
def test_conversion_leaves_the_original_untouched(case: str) -> None:
    net = CASES[case].make()
    inputs = CASES[case].inputs(CASES[case].rows)
    next(iter(net.children())).register_forward_hook(shout)
    before = inventory(net)
    outputs = call(net.eval(), inputs)
    net.train()

    model = dubio.Bayes().convert(net)
    call(model, inputs).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert_unchanged(net, before)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.equal(call(net.eval(), inputs), outputs)


@cases
def test_the_copy_shares_nothing_with_the_original(case: str) -> None:
    net = CASES[case].make()
    model = dubio.Bayes().convert(net)
    assert model is not net
    assert type(model) is type(net)
    assert not {id(m) for m in model.modules()} & {id(m) for m in net.modules()}
    storages = [
        {tensor.untyped_storage().data_ptr() for tensor in (*owner.parameters(), *owner.buffers())}
        for owner in (model, net)
    ]
    assert not storages[0] & storages[1]


@pytest.mark.feature("with noise off, the converted network is the original, bit for bit")
@cases
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_noise_off_is_the_original_bit_for_bit(case: str, estimator: Any, training: bool) -> None:
    net = CASES[case].make().train(training)
    inputs = CASES[case].inputs(CASES[case].rows)
    model = dubio.Bayes(estimator=estimator, init_std=0.5).convert(net)
    assert model.training == training
    with dubio.noise_off():
        plain_call = call(model, inputs)
        draws = dubio.sample(copy.deepcopy(model), inputs, 3)
    expected = call(net, inputs)
    assert torch.equal(plain_call, expected)
    if not training:
        assert torch.equal(draws, expected.expand(3, *expected.shape))
    assert not torch.equal(call(model, inputs), expected)  # and with noise it is another


@cases
def test_posterior_means_are_the_trained_weights(case: str) -> None:
    net = CASES[case].make()
    model = dubio.Bayes(init_std=0.02).convert(net)
    found = [
        (layer.get_parameter(f"{name}_posterior.mean"), parameter)
        for (_, plain), (_, layer) in zip(net.named_modules(), _plain_names(model), strict=True)
        if isinstance(layer, BayesianLayer)
        for name, parameter in plain.named_parameters()
    ]
    assert len(found) >= 2
    for mean, parameter in found:
        assert torch.equal(mean, parameter)
    for posterior in posteriors(model):
        torch.testing.assert_close(posterior.std, torch.full_like(posterior.mean, 0.02))


def _plain_names(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of a converted network that its source had too."""
    return [(n, m) for n, m in model.named_modules() if not isinstance(m, layers.GaussianPosterior)]


def test_converted_layers_stay_instances_of_their_plain_counterparts() -> None:
    model = dubio.Bayes().convert(Residual())
    assert isinstance(model.stem, nn.Conv2d)
    assert isinstance(model.head, nn.Linear)
    assert isinstance(model.norm, nn.BatchNorm2d)
    assert model.branch.padding_mode == "reflect"
    assert torch.equal(model.head.weight, model.head.weight_posterior.mean)  # outside any pass, the mean


def test_normalisation_layers_are_never_random() -> None:
    net = nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1),
        nn.BatchNorm1d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm1d(4, affine=True),
        nn.LayerNorm(7),
        nn.RMSNorm(7),
        nn.Linear(7, 2),
    )
    model = dubio.Bayes().convert(net)
    for index in range(1, 6):
        assert posteriors(model[index]) == []
        names = [name for name, _ in model[index].named_parameters()]
        assert names == [name for name, _ in net[index].named_parameters()] != []
    assert len(posteriors(model)) == 4
    for where in (nn.BatchNorm1d, "1"):
        with pytest.raises(ValueError, match="nothing to convert"):
            dubio.Bayes(where=where).convert(net)


def test_tied_weights_share_one_posterior_and_its_draw() -> None:
    model = dubio.Bayes(estimator="weight", init_std=0.5).convert(Tied())
    assert model.encode.weight_posterior is model.decode.weight_posterior
    assert len(posteriors(model)) == 1
    assert len(list(model.parameters())) == 2  # one mean, one rho

    # In one pass W(W x) with one W: probing with the identity gives W and W W.
    seen: dict[str, Tensor] = {}
    for name in ("encode", "decode"):
        layer = model.get_submodule(name)
        layer.register_forward_hook(lambda module, args, out, name=name: seen.update({name: out}))
    model(torch.eye(5))
    torch.testing.assert_close(seen["decode"], seen["encode"] @ seen["encode"])
    assert (seen["encode"].T - model.encode.weight_posterior.mean).abs().max() > 0.1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_module_used_twice_is_converted_once(estimator: Any) -> None:
    shared = nn.Linear(5, 5)
    model = dubio.Bayes(estimator=estimator).convert(nn.Sequential(shared, nn.Tanh(), shared))
    assert model[0] is model[2]
    assert len(posteriors(model)) == 2
    assert model(torch.randn(3, 5)).shape == (3, 5)


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 3), nn.Conv1d(4, 3, 2), nn.Conv2d(4, 3, 2), nn.Conv3d(4, 3, 2)],
    ids=lambda m: type(m).__name__,
)
def test_a_bare_layer_converts(layer: nn.Module) -> None:
    model = dubio.Bayes(init_std=0.3).convert(layer)
    kind = type(layer).__name__
    assert type(model) is getattr(layers, kind)
    inputs = torch.randn(2, 4) if kind == "Linear" else torch.randn(2, 4, *(int(kind[4]) * [5]))
    with dubio.noise_off():
        assert torch.equal(model(inputs), layer(inputs))
    draws = dubio.sample(model, inputs, 4, seed=0)
    assert draws.std(dim=0).min() > 0
    assert type(layer) is getattr(nn, kind)


def test_frozen_parameters_stay_frozen() -> None:
    net = Residual()
    net.stem.requires_grad_(False)
    net.head.bias.requires_grad_(False)
    model = dubio.Bayes().convert(net)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {
        "stem.weight_posterior.mean",
        "stem.weight_posterior.rho",
        "stem.bias_posterior.mean",
        "stem.bias_posterior.rho",
        "head.bias_posterior.mean",
        "head.bias_posterior.rho",
    }


def test_biases_stay_deterministic_on_request() -> None:
    net = mlp(5, 4, 3)
    model = dubio.Bayes(bayesian_bias=False, init_std=0.3).convert(net)
    assert len(posteriors(model)) == 2
    assert torch.equal(model[0].bias, net[0].bias)
    assert "0.bias" in dict(model.named_parameters())
    zero = torch.zeros(2, 5)
    for estimator in ESTIMATORS:  # at zero the first layer is its bias, which has no noise
        with Using(estimator=estimator):
            torch.testing.assert_close(model[0](zero), net[0](zero))


def test_users_hooks_and_attributes_move_along() -> None:
    net = mlp(5, 4, 3)
    net[0].nickname = "first"
    calls: list[str] = []
    net[2].register_forward_hook(lambda module, args, out: calls.append(type(module).__module__))
    model = dubio.Bayes().convert(net)
    assert model[0].nickname == "first"
    model(torch.randn(2, 5))
    assert calls == ["dubio.layers.bayesian"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_posteriors_have_the_precision_of_the_weights(dtype: torch.dtype) -> None:
    model = dubio.Bayes(prior=dubio.CentredNormal(0.1)).convert(mlp(5, 4, 3).to(dtype))
    for tensor in (*model.parameters(), *model.buffers()):
        assert tensor.dtype == dtype
    assert model(torch.randn(2, 5, dtype=dtype)).dtype == dtype


def test_a_centred_prior_keeps_the_weights_of_the_conversion() -> None:
    net = mlp(5, 3)
    model = dubio.Bayes(prior=dubio.CentredNormal(0.1)).convert(net)
    with torch.no_grad():
        model[0].weight_posterior.mean.add_(1.0)
    assert torch.equal(model[0].weight_posterior.centre, net[0].weight)
    assert "0.weight_posterior.centre" in model.state_dict()


def test_an_embedding_with_padding_becomes_mappable_and_stays_deterministic() -> None:
    net = nn.Sequential(nn.Embedding(7, 5, padding_idx=0), nn.Linear(5, 3))
    model = dubio.Bayes(where=nn.Linear).convert(net)
    assert type(model[0]) is layers.Embedding
    assert isinstance(model[0], nn.Embedding)
    assert torch.equal(model[0].weight, net[0].weight)


def test_modules_without_a_bayesian_form_stay_deterministic_when_not_strict() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(7, 5), "rnn": nn.GRU(5, 4, batch_first=True), "head": nn.Linear(4, 3)})
    model = dubio.Bayes().convert(net, strict=False)
    assert {id(p) for p in posteriors(model)} == {id(p) for p in posteriors(model["head"])}
    assert [name for name, _ in model["rnn"].named_parameters()] == [name for name, _ in net["rnn"].named_parameters()]
    found = {layer.name: layer for layer in dubio.describe(model).layers}
    assert found["rnn"].remark == "fixed: there is no Bayesian form of GRU"
    assert found["rnn"].num_fixed == sum(p.numel() for p in net["rnn"].parameters())
    assert found["rnn"].num_random == 0
    assert found["embed"].remark == "fixed: there is no Bayesian form of Embedding"
