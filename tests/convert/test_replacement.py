"""Conversion: a new network, the same function with noise off, an original that nobody touched, and the way back."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import nn as stochastic
from dubio._engine.settings import Using
from dubio.nn.bayesian import BAYESIAN, BayesianLayer
from dubio.nn.rewrite import Drawn
from dubio.nn.sources import posteriors
from dubio.nn.vmappable import MAPPABLE
from networks import CASES, Filter, Recurrent, Residual, Tied, mlp

ESTIMATORS = ("weight", "local", "flipout")
cases = pytest.mark.parametrize("case", CASES)


def call(net: nn.Module, inputs: Any) -> Tensor:
    args, kwargs = dubio._engine.arguments(inputs)
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
    return [(n, m) for n, m in model.named_modules() if not isinstance(m, stochastic.GaussianPosterior)]


def test_converted_layers_stay_instances_of_their_plain_counterparts() -> None:
    model = dubio.Bayes().convert(Residual())
    assert isinstance(model.stem, nn.Conv2d)
    assert isinstance(model.head, nn.Linear)
    assert isinstance(model.norm, nn.BatchNorm2d)
    assert model.branch.padding_mode == "reflect"
    assert torch.equal(model.head.weight, model.head.weight_posterior.mean)  # outside any pass, the mean


def normalised() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1),
        nn.BatchNorm1d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm1d(4, affine=True),
        nn.LayerNorm(7),
        nn.RMSNorm(7),
        nn.Linear(7, 2),
    )


def test_normalisation_layers_are_not_random_unless_asked_for() -> None:
    net = normalised()
    model = dubio.Bayes().convert(net)
    for index in range(1, 6):
        assert posteriors(model[index]) == []
        names = [name for name, _ in model[index].named_parameters()]
        assert names == [name for name, _ in net[index].named_parameters()] != []
    assert len(posteriors(model)) == 4
    for where in (nn.BatchNorm1d, "1"):
        with pytest.raises(ValueError, match="nothing to convert"):
            dubio.Bayes(where=where).convert(net)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_normalisation_layers_are_random_on_request(training: bool) -> None:
    net, inputs = normalised().train(training), torch.randn(4, 3, 7)
    model = dubio.Bayes(norms=True, init_std=0.3).convert(net)
    assert len(posteriors(model)) == len(list(net.parameters()))
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
    assert not torch.equal(model(inputs), model(inputs))


@pytest.mark.parametrize("index", range(1, 6), ids=["batch", "group", "instance", "layer", "rms"])
def test_a_random_normalisation_layer_draws_the_same_mapped_and_looped(index: int) -> None:
    model = dubio.Bayes(norms=True, init_std=0.3).convert(normalised()[index].eval())
    inputs = torch.randn(5, 4, 7)
    mapped = dubio.sample(model, inputs, 3, seed=1, executor="vmap")
    torch.testing.assert_close(mapped, dubio.sample(model, inputs, 3, seed=1, executor="loop"), rtol=1e-5, atol=1e-5)
    assert (mapped[0] - mapped[1]).abs().max() > 0.01


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_tied_weights_share_one_posterior_and_its_draw(estimator: Any) -> None:
    model = dubio.Bayes(estimator=estimator, init_std=0.5).convert(Tied())
    assert model.encode.weight_posterior is model.decode.weight_posterior
    assert len(posteriors(model)) == 1
    assert len(list(model.parameters())) == 2  # one mean, one rho

    # In one pass W(W x) with one W: probing with the identity gives W and W W.
    seen: dict[str, Tensor] = {}
    for name in ("encode", "decode"):
        layer = model.get_submodule(name)
        layer.register_forward_hook(lambda module, args, out, name=name: seen.update({name: out}))
    for override in (None, *ESTIMATORS):  # whoever asks for what: outputs drawn apart would be draws apart
        with Using(estimator=override):
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
    assert model[0].dubio_shares_draw
    assert model[0].estimator == "weight"


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_module_used_twice_has_one_draw(estimator: Any, executor: Any) -> None:
    shared = nn.Linear(5, 5)
    model = dubio.Bayes(estimator=estimator, init_std=0.5).convert(nn.Sequential(shared, shared))
    zero, eye = torch.zeros(1, 5), torch.eye(5)

    # W (W x + b) + b: what it does to zero and to the units tells W b + b and W W.
    outputs = dubio.sample(model, torch.cat([zero, eye]), 3, seed=1, executor=executor)
    for draw, output in enumerate(outputs):
        with dubio.frozen(seed=1):
            running = dubio._engine.Pass(dubio._engine.settings.STATE.own.settings, torch.tensor(draw))
            weight, bias = (p.mean + p.perturbation(running) for p in posteriors(model))
        torch.testing.assert_close(output[0], weight @ bias + bias, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(output[1:] - output[0], (weight @ weight).T, rtol=1e-5, atol=1e-5)


def test_a_layer_that_stands_alone_keeps_its_estimator() -> None:
    shared = nn.Linear(5, 5)
    net = nn.Sequential(shared, shared, nn.Linear(5, 5))
    model = dubio.Bayes(estimator="flipout").convert(net)
    assert [layer.estimator for layer in model] == ["weight", "weight", "flipout"]
    assert [layer.dubio_shares_draw for layer in model] == [True, True, False]


@pytest.mark.parametrize(
    "layer", [kind(4, 3) if kind is nn.Linear else kind(4, 3, 2) for kind in BAYESIAN], ids=lambda m: type(m).__name__
)
def test_a_bare_layer_converts(layer: nn.Module) -> None:
    model = dubio.Bayes(init_std=0.3).convert(layer)
    kind = type(layer).__name__
    assert type(model) is getattr(stochastic.bayesian, kind)
    inputs = torch.randn(2, 4) if kind == "Linear" else torch.randn(2, 4, *(int(kind[-2]) * [5]))
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
    assert calls == ["dubio.nn.bayesian"]


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
    assert type(model[0]) is MAPPABLE[nn.Embedding] is stochastic.vmappable.Embedding
    assert isinstance(model[0], nn.Embedding)
    assert torch.equal(model[0].weight, net[0].weight)


class Scaled(nn.Module):
    """A user's own module with parameters of its own, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)
        self.pieces = nn.ParameterList([nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))])

    def forward(self, x: Tensor) -> Tensor:
        x = self.attend(x, x, x, need_weights=False)[0] * self.scale
        return x @ self.pieces[0] + self.pieces[1]


class Reader(nn.Module):
    """Everything that was refused once: embedding, recurrence, attention, parameters of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6, padding_idx=0)
        self.memory = nn.GRU(6, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.narrow = nn.Linear(12, 6)
        self.own = Scaled()
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, words: Tensor) -> Tensor:
        h = self.own(self.narrow(self.memory(self.embed(words))[0]))
        return self.head(self.norm(h).mean(dim=1))


@pytest.mark.feature("every module with real parameters converts: recurrent, attention, embedding, a user's own")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_what_was_refused_once_converts(training: bool) -> None:
    net, words = Reader().train(training), torch.randint(7, (4, 5))
    model = dubio.Bayes(init_std=0.3, norms=True).convert(net)
    assert len(posteriors(model)) == len(list(net.parameters()))
    assert not any(isinstance(module, Drawn) for module in net.modules())
    with dubio.noise_off():
        assert torch.equal(model(words), net(words))
    mapped = dubio.sample(model, words, 4, seed=1, executor="vmap")
    torch.testing.assert_close(mapped, dubio.sample(model, words, 4, seed=1, executor="loop"), rtol=1e-4, atol=1e-5)
    assert (mapped[0] - mapped[1]).abs().max() > 0.01
    mapped.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_each_parameter_that_was_refused_once_draws_by_itself() -> None:
    net, words = Reader().eval(), torch.randint(1, 7, (4, 5))
    for where in ("embed", "memory", "own", "own.attend", "own.pieces"):
        model = dubio.Bayes(init_std=0.3, where=where).convert(net)
        (owner,) = {name.partition("_posterior")[0].rpartition(".")[0] for name in model.state_dict() if "rho" in name}
        assert owner == where
        draws = dubio.sample(model, words, 2, seed=1)
        assert (draws[0] - draws[1]).abs().max() > 1e-3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_of_drawn_modules_have_the_same_draws(copied: Any) -> None:
    words = torch.randint(7, (4, 5))
    model = dubio.Bayes(init_std=0.3).convert(Reader())
    model(words).sum().backward()
    twin = copied(model)
    assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
    assert torch.equal(dubio.sample(twin, words, 3, seed=1), dubio.sample(model, words, 3, seed=1))
    assert not torch.equal(twin(words), twin(words))


def test_modules_that_cannot_be_random_stay_deterministic_when_not_strict() -> None:
    net = nn.ModuleDict({"filter": Filter(), "rnn": nn.GRU(5, 4, batch_first=True), "head": nn.Linear(4, 3)})
    model = dubio.Bayes().convert(net, strict=False)
    random = [*posteriors(model["rnn"]), *posteriors(model["head"])]
    assert [id(posterior) for posterior in posteriors(model)] == [id(posterior) for posterior in random]
    assert len(random) == 4 + 2
    assert torch.equal(model["filter"].response, net["filter"].response)
    assert [name for name, _ in model["filter"].named_parameters()] == ["response"]
    found = {layer.name: layer for layer in dubio.describe(model).layers}
    assert "has response of type torch.complex64, over which no Gaussian can be put" in found["filter"].remark
    assert (found["filter"].num_random, found["filter"].num_fixed) == (0, 5)
    assert found["rnn"].num_random == sum(p.numel() for p in net["rnn"].parameters())
    inputs = torch.randn(2, 5)
    assert torch.equal(model["filter"](inputs), net["filter"](inputs))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_part_stays_deterministic_when_not_strict() -> None:
    net = nn.Sequential(torch.jit.script(nn.Linear(5, 4)), nn.Linear(4, 3))
    model = dubio.Bayes(init_std=0.3).convert(net, strict=False)
    assert len(posteriors(model)) == 2
    inputs = torch.randn(2, 5)
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
    assert not torch.equal(model(inputs), model(inputs))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_weight_that_a_hook_computes_is_computed_from_drawn_parameters(training: bool) -> None:
    net = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(5, 4)), nn.Linear(4, 3)).train(training)
    model = dubio.Bayes(init_std=0.3).convert(net)
    assert set(dubio.parameter_names(model).values()) == {"0.weight_orig", "0.bias", "1.weight", "1.bias"}
    inputs = torch.randn(6, 5)
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
    assert not torch.equal(model(inputs), model(inputs))
    only = dubio.Bayes(init_std=0.3, where="0", bayesian_bias=False).convert(unrun(net))
    draws = dubio.sample(only.eval(), inputs, 4, seed=1, executor="vmap")
    torch.testing.assert_close(draws, dubio.sample(only, inputs, 4, seed=1, executor="loop"), rtol=1e-5, atol=1e-5)
    assert (draws[0] - draws[1]).abs().max() > 0.01


def unrun(net: nn.Sequential) -> nn.Sequential:
    """The same with spectral norm as new: once it has run, torch cannot copy it."""
    twin = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(5, 4)), nn.Linear(4, 3))
    twin.load_state_dict(net.state_dict())
    return twin


@pytest.mark.parametrize("norm", ["spectral_norm", "weight_norm", "orthogonal"])
@pytest.mark.parametrize("run_before", [False, True], ids=["new", "run before"])
def test_a_weight_with_a_parametrisation_is_computed_from_drawn_parameters(norm: str, run_before: bool) -> None:
    parametrise = getattr(torch.nn.utils.parametrizations, norm)
    net = nn.Sequential(parametrise(nn.Linear(5, 4)), nn.Linear(4, 3))
    inputs = torch.randn(6, 5)
    if run_before:
        net(inputs)
    net.eval()
    model = dubio.Bayes(init_std=0.3, where="0.parametrizations.*").convert(net)
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
    draws = dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    torch.testing.assert_close(draws, dubio.sample(model, inputs, 4, seed=1, executor="loop"), rtol=1e-5, atol=1e-5)
    assert (draws[0] - draws[1]).abs().max() > 0.01
    back = dubio.to_mean(model)
    assert torch.equal(back(inputs), net(inputs))


WAY_BACK = {
    **{name: (case.make, lambda case=case: case.inputs(case.rows)) for name, case in CASES.items()},
    "recurrent": (Recurrent, lambda: torch.randn(3, 7, 5)),
    "everything": (Reader, lambda: torch.randint(7, (4, 5))),
}
way_back = pytest.mark.parametrize("kind", WAY_BACK)


@pytest.mark.feature("to_mean gives the ordinary network back: classes, parameter names, order and outputs")
@way_back
@pytest.mark.parametrize(
    "options",
    [{}, {"bayesian_bias": False}, {"norms": True}, {"where": nn.Linear}],
    ids=["all", "no bias", "norms", "linear"],
)
def test_to_mean_gives_the_network_that_was_converted(kind: str, options: dict[str, Any]) -> None:
    make, inputs = WAY_BACK[kind]
    net, inputs = make().eval(), inputs()
    net.register_forward_hook(shout)
    model = dubio.Bayes(**options).convert(net)
    before = inventory(model)
    plain = dubio.to_mean(model)

    assert_unchanged(model, before)
    names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    assert [name for name, _ in plain.named_parameters(remove_duplicate=False)] == names
    assert list(plain.state_dict()) == list(net.state_dict())
    assert len(list(plain.parameters())) == len(list(net.parameters()))  # ties hold
    assert [(name, type(module), set(vars(module))) for name, module in plain.named_modules()] == [
        (name, type(module), set(vars(module))) for name, module in net.named_modules()
    ]
    hooks = [[list(m._forward_hooks.values()), list(m._forward_pre_hooks.values())] for m in plain.modules()]
    assert hooks == [[list(m._forward_hooks.values()), list(m._forward_pre_hooks.values())] for m in net.modules()]
    assert torch.equal(call(plain, inputs), call(net, inputs))
    with pytest.raises(ValueError, match="was not converted"):
        dubio.spec(plain)


@way_back
def test_to_mean_has_the_weights_that_training_made(kind: str) -> None:
    make, inputs = WAY_BACK[kind]
    net, inputs = make().eval(), inputs()
    model = dubio.Bayes(init_std=0.3).convert(net)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    plain = dubio.to_mean(model)
    with dubio.noise_off():
        expected = call(model, inputs)
    assert torch.equal(call(plain, inputs), expected)
    assert not torch.equal(expected, call(net, inputs))
    with torch.no_grad():  # a copy: what happens to it stays with it
        for parameter in plain.parameters():
            parameter.zero_()
    with dubio.noise_off():
        assert torch.equal(call(model, inputs), expected)
    net.load_state_dict(dubio.to_mean(model).state_dict())
    assert torch.equal(call(net, inputs), expected)


def test_to_mean_can_be_converted_again() -> None:
    model = dubio.Bayes().convert(mlp(5, 4, 3))
    again = dubio.Bayes(estimator="weight").convert(dubio.to_mean(model))
    inputs = torch.randn(2, 5)
    with dubio.noise_off():
        assert torch.equal(again(inputs), model(inputs))
    assert dubio.spec(again).method.estimator == "weight"


@way_back
def test_every_parameter_keeps_the_name_it_had(kind: str) -> None:
    net = WAY_BACK[kind][0]()
    model = dubio.Bayes(bayesian_bias=False).convert(net)
    names = dubio.parameter_names(model)
    assert names.keys() == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    originals = dict(net.named_parameters(remove_duplicate=False))
    assert set(names.values()) == set(originals)
    for name, original in names.items():
        parameter = model.get_parameter(name)
        assert parameter.shape == originals[original].shape
        if not name.endswith(".rho"):
            assert torch.equal(parameter, originals[original])
    assert sum(name.endswith(".rho") for name in names) == sum("bias" not in name for name in originals) - sum(
        name.startswith("norm.") and "bias" not in name for name in originals
    )
