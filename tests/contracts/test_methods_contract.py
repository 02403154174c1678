"""The battery that every method passes, over the table in ``method_table.py``: a new method is added there.

The source stays as it is, noise off is what the method says, noise is fresh, frozen, mirrored and the same for any
executor, chunk and batch; copies and files keep it; the objective is what its terms come to and reaches every
parameter; precisions, ``torch.compile``, ``torch.export`` and ONNX; what is printed, refused, and trained.
"""

import copy
import json
import math
import pickle
from collections.abc import Collection
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from contracts.method_table import CLASSES, METHOD_TABLE, NETWORKS, Row
from dubio._engine.planner import plans
from dubio._engine.settings import Using
from dubio.convert.randomise import random_names
from dubio.io import from_json, to_json
from dubio.methods import METHODS
from dubio.nn.heads import GaussianHead, WassersteinHead
from dubio.nn.noise_layers import RandomDropout
from dubio.nn.rewrite import Noised
from dubio.nn.sources import noise_parameters, sources
from networks import Filter

ROWS = 6
NUM_DATA = 50
FROM_SOURCE = [name for name, row in METHOD_TABLE.items() if row.noise_off == "source"]
WITH_MEAN = [name for name, row in METHOD_TABLE.items() if row.noise_off is not None]
NEW_HEADS = [name for name, row in METHOD_TABLE.items() if row.made == "new head"]
IN_PLACE = [name for name, row in METHOD_TABLE.items() if row.made == "in place"]
CHOOSING = [name for name, row in METHOD_TABLE.items() if row.chooses]
FREEZING = [name for name, row in METHOD_TABLE.items() if row.frozen_export]
TRAINED = [name for name, row in METHOD_TABLE.items() if row.objective]
# The compiler and the exporter take their time: a few pairs in the fast tests, which meet every kind of noise.
COMPILED = {("input noise, mixture per position", "mlp"), ("flow", "cnn")}
INDUCTOR = {"dropout", "ensemble"}
# One objective of each family, and variants whose loss has other terms.
OBJECTIVES = [name for name in TRAINED if "," not in name] + [
    "dropout, alpha",
    "input noise, bound",
    "flow, summed, entropy",
    "se-snn, wasserstein",
]
EXPORTED = {("input noise, bound", "cnn"), ("flow, glow", "mlp"), ("wasserstein", "mlp"), ("ensemble", "mlp")}
# ONNX is written from what the exporter gives: every family with noise, and without it one of each kind of noise off.
ONNX = [(method, "fresh") for method in METHOD_TABLE if "," not in method] + [("bayes", "off"), ("wasserstein", "off")]
FAST = {(method, network) for method, row in METHOD_TABLE.items() for network in row.fast}


def pairs(methods: Collection[str], networks: Collection[str], fast: Collection[tuple[str, str]]) -> Any:
    """These methods on these networks, but only the pairs named here in the fast tests.

    The first row of a family meets every network; its variants meet two, or those they name.
    """
    return pytest.mark.parametrize(
        ("method", "network"),
        [
            pytest.param(method, network, marks=[] if (method, network) in fast else [pytest.mark.slow])
            for method in methods
            for network in networks
            if "," not in method
            or network in (METHOD_TABLE[method].fast or ("mlp", "residual, dropout"))
            or (method, network) in fast
        ],
    )


def few_pairs(methods: Collection[str], fast: Collection[tuple[str, str]]) -> Any:
    """Pairs for the compiler and the exporter, which take seconds: what matters is the method, not the network.

    A family meets a network with convolutions, batch norm and dropout, a variant one of its own.
    """
    chosen = set(fast)
    for method in methods:
        network = "residual, dropout" if "," not in method else (METHOD_TABLE[method].fast or ("mlp",))[-1]
        chosen.add((method, network))
    return pytest.mark.parametrize(
        ("method", "network"),
        [
            pytest.param(method, network, marks=[] if (method, network) in fast else [pytest.mark.slow])
            for method in methods
            for network in NETWORKS
            if (method, network) in chosen
        ],
    )


every_method = pytest.mark.parametrize("method", METHOD_TABLE)
every_family = pytest.mark.parametrize("method", [name for name in METHOD_TABLE if "," not in name])
every_pair = pairs(METHOD_TABLE, NETWORKS, FAST)
every_trained_pair = pairs(TRAINED, NETWORKS, FAST)
every_pair_with_a_source = pairs(FROM_SOURCE, NETWORKS, FAST)
every_pair_with_a_mean = pairs(WITH_MEAN, NETWORKS, FAST)
exporting = pytest.mark.filterwarnings(
    "ignore:While compiling, we found certain side effects:UserWarning",  # passes, put back
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",  # torch.onnx of torch's own
    "ignore:_check_is_size will be removed in a future PyTorch release:FutureWarning",
)
holds = pytest.mark.feature(
    "Every method keeps one contract: noise off, frozen draws, copies, files, precisions, compile, export and training"
)


def row_of(method: str) -> Row:
    return METHOD_TABLE[method]


def plain(network: str, seed: int = 0) -> nn.Module:
    """In eval mode, with statistics of norms that are not those they begin with."""
    torch.manual_seed(seed)
    net = NETWORKS[network].make()
    with torch.no_grad():
        net(NETWORKS[network].inputs(16))
    return net.eval()


def convert(method: str, network: str) -> nn.Module:
    net = plain(network)
    torch.manual_seed(1)
    return row_of(method).method.convert(net)


def inputs_for(network: str, rows: int = ROWS) -> Tensor:
    return NETWORKS[network].inputs(rows)


def targets_for(rows: int = ROWS) -> Tensor:
    return torch.arange(rows) % CLASSES


def draws(model: nn.Module, inputs: Tensor, num_samples: int = 3, **options: Any) -> Tensor:
    with torch.no_grad():
        return dubio.sample(model, inputs, num_samples, **({"seed": 5, "executor": "loop"} | options))  # type: ignore[no-any-return]


def loss_of(method: str, model: nn.Module, inputs: Tensor, **options: Any) -> dubio.Loss:
    """Its own objective with its own number of draws."""
    chosen = row_of(method).method
    return chosen.objective(NUM_DATA)(model, inputs, targets_for(len(inputs)), chosen.recipe.num_samples, **options)


def train_one_step(method: str, model: nn.Module, inputs: Tensor) -> None:
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.01)
    loss_of(method, model, inputs).total.backward()
    optimizer.step()
    model.zero_grad()


def shaken(model: nn.Module) -> nn.Module:
    """The same network with other parameters of its noise."""
    with torch.no_grad():
        for parameter in noise_parameters(model):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def close(found: Tensor, expected: Tensor, relative: float) -> bool:
    return float((found - expected).abs().max()) <= relative * float(expected.abs().max())


def draws_anew(method: str, model: nn.Module, inputs: Tensor) -> bool:
    """Whether plain calls differ as the table says: an ensemble's are those of members by chance."""
    with torch.no_grad():
        first, *others = (model(inputs) for _ in range(20 if row_of(method).draws == "members" else 2))
    return any(differ(first, other) for other in others) == (row_of(method).draws != "equal")


def differ(a: Tensor, b: Tensor) -> bool:
    assert a.isfinite().all()
    assert b.isfinite().all()
    return not torch.allclose(a, b, rtol=1e-4, atol=1e-4)


# ----------------------------------------------------------------------------------------- the source, and noise off


def test_the_table_holds_every_method() -> None:
    assert {type(row.method) for row in METHOD_TABLE.values()} == set(METHODS.values())


@holds
@every_pair
def test_conversion_leaves_the_source_untouched(method: str, network: str) -> None:
    net = plain(network).train()
    list(net.children())[-1].eval()  # a mode of its own
    before = copy.deepcopy(net)
    model = row_of(method).method.convert(net)
    first = model.members[0] if row_of(method).made == "members" else model
    converted = dict(first.named_modules())
    assert model.training
    assert not row_of(method).method.convert(plain(network)).training
    assert [converted[name].training for name, _ in net.named_modules()] == [m.training for m in before.modules()]
    if row_of(method).objective:
        train_one_step(method, model, inputs_for(network))
    assert [(name, type(module), module.training) for name, module in net.named_modules()] == [
        (name, type(module), module.training) for name, module in before.named_modules()
    ]
    assert not hasattr(net, "dubio_spec")
    state, expected = net.state_dict(), before.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in state)
    assert all(p.requires_grad and p.grad is None for p in net.parameters())


@holds
@every_pair_with_a_source
def test_t43_noise_off_is_the_source_bit_by_bit(method: str, network: str) -> None:
    net, model, inputs = plain(network), shaken(convert(method, network)), inputs_for(network)
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))
        assert torch.equal(dubio.sample(model, inputs, 2), net(inputs).expand(2, -1, -1))
        assert torch.equal(dubio.predict(model, inputs, 2).probs, dubio.predict(net, inputs, 1).probs)
    assert differ(model(inputs), net(inputs)) == (row_of(method).draws == "noise")


@every_pair
def test_noise_off_is_one_network_or_refused(method: str, network: str) -> None:
    model, inputs = convert(method, network), inputs_for(network)
    with dubio.noise_off():
        if row_of(method).noise_off is None:
            with pytest.raises(ValueError, match="noise cannot be off: an ensemble has no mean network; take one"):
                model(inputs)
            return
        assert torch.equal(model(inputs), model(inputs))


@every_pair_with_a_source
def test_an_example_proves_the_conversion(method: str, network: str) -> None:
    net, inputs = plain(network), inputs_for(network)
    with torch.no_grad():
        model = row_of(method).method.convert(net, example=inputs)
    assert dubio.spec(model).method == row_of(method).method


# ----------------------------------------------------------------------------------------- noise


@every_pair
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_plain_call_draws_anew_in_either_mode(method: str, network: str, mode: str) -> None:
    model, inputs = convert(method, network).train(mode == "train"), inputs_for(network)
    with torch.no_grad():
        assert model(inputs).shape == (ROWS, CLASSES)
    if mode == "train" and "dropout" in network and row_of(method).draws == "equal":
        assert differ(model(inputs), model(inputs))  # by the network's own dropout
    else:
        assert draws_anew(method, model, inputs)


@every_pair
def test_equal_examples_differ_where_noise_belongs_to_examples(method: str, network: str) -> None:
    model = convert(method, network)
    same = inputs_for(network, 1).expand(16, *NETWORKS[network].shape)
    with torch.no_grad():
        outputs = model(same)
        mapped = draws(model, same, 2, executor="vmap")[1]
    assert differ(outputs[1:], outputs[:-1]) == row_of(method).differs_by_example
    assert differ(mapped[1:], mapped[:-1]) == row_of(method).differs_by_example


@holds
@every_pair
def test_mapped_and_looped_draws_agree(method: str, network: str) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    mapped, looped = (draws(model, inputs, 4, executor=executor) for executor in ("vmap", "loop"))
    assert close(mapped, looped, 1e-6)
    assert differ(mapped[0], mapped[1]) == (row_of(method).draws != "equal")


@every_method
@pytest.mark.parametrize("network", [name for name, network in NETWORKS.items() if not network.norms])
def test_mapped_and_looped_draws_agree_in_train_mode_without_norms(method: str, network: str) -> None:
    model, inputs = shaken(convert(method, network)).train(), inputs_for(network)
    mapped, looped = (draws(model, inputs, 4, executor=executor) for executor in ("vmap", "loop"))
    assert close(mapped, looped, 1e-6)


@every_trained_pair
def test_mapped_and_looped_terms_and_gradients_agree(method: str, network: str) -> None:
    model, inputs = shaken(convert(method, network)).double(), inputs_for(network).double()
    objective = row_of(method).method.objective(NUM_DATA)
    found = []
    for executor in ("vmap", "loop"):
        loss = objective(model, inputs, targets_for(), 3, seed=2, executor=executor)
        loss.total.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([torch.stack([loss.total, *loss.terms.values()]).detach(), *gradients]))
        model.zero_grad()
    assert close(*found, 1e-10)


@holds
@every_pair
def test_frozen_draws_repeat_and_other_seeds_differ(method: str, network: str) -> None:
    model, inputs = convert(method, network), inputs_for(network)
    assert torch.equal(draws(model, inputs), draws(model, inputs))
    assert differ(draws(model, inputs), draws(model, inputs, seed=6)) == (row_of(method).draws == "noise")
    with torch.no_grad(), dubio.frozen(seed=5):
        assert torch.equal(model(inputs), model(inputs))
        assert torch.equal(model(inputs), draws(model, inputs)[0])


@holds
@every_pair
def test_chunks_and_batches_do_not_change_frozen_draws(method: str, network: str) -> None:
    model, inputs = convert(method, network), inputs_for(network, 35)  # past one block of seeded rows
    options: Any = {"seed": 3, "estimator": None, "executor": "vmap"}
    whole = dubio.predict(model, inputs, 3, **options).samples
    for batch_size, chunk in ((35, 2), (12, None), (34, 1)):
        cut = dubio.predict(model, inputs, 3, batch_size=batch_size, chunk=chunk, **options).samples
        torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-5)


@every_pair
def test_antithetic_draws_are_mirrored_pairs(method: str, network: str) -> None:
    if not row_of(method).mirrors:
        return
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    alone = draws(model, inputs, 2)
    with dubio.antithetic():
        paired = draws(model, inputs, 4)
        mapped = draws(model, inputs, 4, executor="vmap")
        with torch.no_grad():
            fresh = dubio.sample(model, inputs, 2)
    assert torch.equal(paired[::2], alone)  # the mirror image of each follows it
    assert differ(paired[0], paired[1])
    assert close(mapped, paired, 1e-6)
    assert differ(fresh[0], fresh[1])


# ----------------------------------------------------------------------------------------- the objective


@every_trained_pair
def test_gradients_reach_every_parameter_after_one_step(method: str, network: str) -> None:
    model, inputs = convert(method, network).train(), inputs_for(network, 16)
    train_one_step(method, model, inputs)  # couplings begin at zero, and what is before them gets nothing from them
    loss_of(method, model, inputs).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad, name
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@every_trained_pair
def test_the_objective_is_what_its_terms_come_to(method: str, network: str) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    objective = row_of(method).method.objective(NUM_DATA)
    loss = objective(model, inputs, targets_for(), 4, seed=2)
    assert loss.log_probs is not None
    nll = -loss.log_probs[:, torch.arange(ROWS), targets_for()]
    alpha = getattr(objective, "alpha", 0.0)
    energy = -(torch.logsumexp(-alpha * nll, dim=0) - math.log(4)) / alpha if alpha else nll.mean(dim=0)
    energy = nll.sum(dim=0) if row_of(method).draws == "members" else energy  # each member as if it were alone
    weights = {"divergence": getattr(objective, "beta", 1.0) / NUM_DATA}
    weights |= {"entropy": -getattr(objective, "gamma", 0.0) / NUM_DATA}
    expected = energy.mean() + sum(weights.get(name, 1.0) * term for name, term in loss.terms.items())
    torch.testing.assert_close(loss.nll, nll.mean())
    torch.testing.assert_close(loss.total, expected)
    assert loss.total.isfinite()
    if any(hasattr(source, "prior") for source in sources(model)):
        assert loss.terms["divergence"].abs() > 1e-3


# ----------------------------------------------------------------------------------------- copies, files, the way back


@holds
@every_pair
def test_deepcopy_and_pickle_keep_draws_and_spec(method: str, network: str) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    model(inputs).sum().backward()
    expected = draws(model, inputs)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(draws(twin, inputs), expected)
        assert dubio.spec(twin) == dubio.spec(model)
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
        assert draws_anew(method, twin, inputs)


@holds
@every_pair
def test_a_file_keeps_draws_and_spec(method: str, network: str, tmp_path: Path) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    dubio.save(model, tmp_path / "model.safetensors")
    loaded = dubio.load(tmp_path / "model.safetensors", plain(network, seed=7))
    assert torch.equal(draws(loaded, inputs), draws(model, inputs))
    assert dubio.spec(loaded) == dubio.spec(model)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


@every_pair_with_a_source
def test_a_plain_checkpoint_loads_and_leaves_the_noise(method: str, network: str) -> None:
    model, trained, inputs = convert(method, network), plain(network, seed=7), inputs_for(network)
    before = [parameter.clone() for parameter in noise_parameters(model)]
    outcome = model.load_state_dict(trained.state_dict())
    assert not outcome.missing_keys
    assert not outcome.unexpected_keys
    assert all(torch.equal(a, b) for a, b in zip(noise_parameters(model), before, strict=True))
    with dubio.noise_off():
        assert torch.equal(model(inputs), trained(inputs))
    assert draws_anew(method, model, inputs)


@pairs(NEW_HEADS, NETWORKS, FAST)
def test_a_plain_checkpoint_loads_and_leaves_a_new_head(method: str, network: str) -> None:
    model, trained, head = convert(method, network), plain(network, seed=7), NETWORKS[network].head
    before = copy.deepcopy(model.get_submodule(head)).state_dict()
    outcome = model.load_state_dict(trained.state_dict())
    assert not outcome.missing_keys
    assert not outcome.unexpected_keys
    state = model.state_dict()
    assert all(torch.equal(state[f"{head}.{name}"], value) for name, value in before.items())
    body = {name: value for name, value in trained.state_dict().items() if not name.startswith(f"{head}.")}
    assert all(torch.equal(state[name], value) for name, value in body.items())


@holds
@pairs(NEW_HEADS, NETWORKS, FAST)
def test_to_mean_with_a_new_head_is_noise_off_for_good(method: str, network: str) -> None:
    model, inputs = convert(method, network).train(), inputs_for(network)
    train_one_step(method, model, inputs)
    mean = dubio.to_mean(model.eval())
    assert not sources(mean)
    assert not hasattr(mean, "dubio_spec")
    with dubio.noise_off():
        expected = model(inputs)
    torch.testing.assert_close(mean(inputs), expected, rtol=1e-6, atol=1e-6)
    assert draws_anew(method, model, inputs)


def test_an_ensemble_has_no_mean_network() -> None:
    with pytest.raises(ValueError, match=r"an ensemble has no mean network; each of its .members is an ordinary one"):
        dubio.to_mean(convert("ensemble", "mlp"))


@holds
@every_pair_with_a_source
def test_to_mean_is_the_ordinary_network_again(method: str, network: str) -> None:
    net, model, inputs = plain(network), convert(method, network).train(), inputs_for(network)
    train_one_step(method, model, inputs)
    mean = dubio.to_mean(model.eval())
    assert [(name, type(module)) for name, module in mean.named_modules()] == [
        (name, type(module)) for name, module in net.named_modules()
    ]
    assert list(mean.state_dict()) == list(net.state_dict())
    assert not hasattr(mean, "dubio_spec")
    assert not any(hasattr(module, "dubio_noise_key") for module in mean.modules())
    assert torch.equal(mean(inputs), mean(inputs))
    with dubio.noise_off():
        torch.testing.assert_close(mean(inputs), model(inputs), rtol=1e-6, atol=1e-6)
    assert differ(mean(inputs), net(inputs))  # what training made of it
    assert draws_anew(method, model, inputs)  # and the model is as it was


@pairs(IN_PLACE, NETWORKS, FAST)
def test_a_network_made_plain_converts_again_and_takes_the_whole_state(method: str, network: str) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    again = row_of(method).method.convert(dubio.to_mean(model))
    again.load_state_dict(model.state_dict())
    assert torch.equal(draws(again, inputs), draws(model, inputs))


# ----------------------------------------------------------------------------------------- precisions


@holds
@every_trained_pair
@pytest.mark.parametrize("kind", ["autocast", "bfloat16"])
def test_half_precision_runs_the_objective_and_its_gradients(method: str, network: str, kind: str) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    exact = loss_of(method, model, inputs, seed=1)
    if kind == "bfloat16":
        model, inputs = model.to(torch.bfloat16), inputs.to(torch.bfloat16)
        assert model(inputs).dtype == (torch.float32 if row_of(method).made == "new head" else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        loss = loss_of(method, model, inputs, seed=1)
    loss.total.backward()
    assert loss.total.isfinite()
    assert {loss.total.dtype, loss.nll.dtype, *(term.dtype for term in loss.terms.values())} == {torch.float32}
    if kind == "autocast":
        torch.testing.assert_close(loss.total, exact.total, rtol=0.05, atol=0.05)
        torch.testing.assert_close(loss.terms["divergence"], exact.terms["divergence"], rtol=1e-3, atol=1e-3)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@every_trained_pair
def test_networks_in_double_precision_stay_there(method: str, network: str) -> None:
    model, inputs = row_of(method).method.convert(plain(network).double()), inputs_for(network).double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model(inputs).dtype == draws(model, inputs, executor="vmap").dtype == torch.float64
    loss = loss_of(method, model, inputs)
    assert {loss.total.dtype} == {term.dtype for term in loss.terms.values() if term.requires_grad} | {torch.float64}


# ----------------------------------------------------------------------------------------- compile and export


def compiled_equals_eager(method: str, network: str, backend: str, atol: float) -> None:
    model, inputs = shaken(convert(method, network)), inputs_for(network)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with dubio.frozen(seed=2):
        expected, outputs = model(inputs), compiled(inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=atol)
    outputs.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    expected.square().sum().backward()
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        none = torch.zeros_like(parameter)  # of members that are not this draw
        expected = none if parameter.grad is None else parameter.grad
        torch.testing.assert_close(none if gradient is None else gradient, expected, rtol=1e-4, atol=1e-4)
    assert draws_anew(method, compiled, inputs)


@holds
@pytest.mark.usefixtures("quick_compiler")
@few_pairs([name for name in METHOD_TABLE if "," in name or (name, "cnn") in COMPILED], COMPILED)
def test_compiled_networks_equal_eager_ones_and_stay_fresh(method: str, network: str) -> None:
    compiled_equals_eager(method, network, "aot_eager", atol=1e-6)


@holds
@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check` is deprecated:FutureWarning")  # by torch's diagonals
@every_family
def test_inductor_equals_eager_and_stays_fresh(method: str) -> None:
    """Inductor makes code of masks and of members, as of Bayesian layers elsewhere; the others are decomposed.

    Variants meet ``aot_eager`` above, which traces the same graph.
    """
    backend = "inductor" if method in INDUCTOR else "aot_eager_decomp_partition"
    network = "mlp" if method in INDUCTOR else "residual, dropout"  # convolutions meet it in test_layers_contract.py
    compiled_equals_eager(method, network, backend, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("method", OBJECTIVES)
def test_a_compiled_objective_equals_the_eager_one(method: str) -> None:
    model, inputs = shaken(convert(method, "cnn")), inputs_for("cnn")
    objective = row_of(method).method.objective(NUM_DATA)

    def total(seed: Tensor) -> Tensor:
        return objective(model, inputs, targets_for(), 2, seed=seed, executor="vmap").total

    seed = torch.tensor(3)
    torch.testing.assert_close(torch.compile(total, backend="aot_eager")(seed), total(seed), rtol=1e-5, atol=1e-5)


@holds
@pytest.mark.usefixtures("compiler")
@exporting
@few_pairs(METHOD_TABLE, EXPORTED)
def test_exported_networks_have_no_noise_or_draw_anew(method: str, network: str) -> None:
    model, inputs = convert(method, network), inputs_for(network, 4)
    if row_of(method).noise_off is None:
        with pytest.raises(ValueError, match="an ensemble has no mean network"):
            dubio.export(model, inputs)
    else:
        mean = dubio.export(model, inputs).module()
        for rows in (3, 8):
            others = inputs_for(network, rows)
            with torch.no_grad(), dubio.noise_off():
                torch.testing.assert_close(mean(others), model(others), rtol=1e-5, atol=1e-5)
    fresh = dubio.export(model, inputs, noise="fresh", num_samples=2).module()
    for rows in (3, 8):
        others = inputs_for(network, rows)
        first, second = fresh(others), fresh(others)
        assert first.shape == (2, rows, CLASSES)
        assert differ(first, second) == (row_of(method).draws == "noise")
        assert differ(first[0], first[1]) == (row_of(method).draws != "equal")


@pytest.mark.usefixtures("compiler")
@exporting
@few_pairs(FREEZING, {("ensemble", "mlp")})
def test_exported_frozen_draws_are_those_of_the_seed(method: str, network: str) -> None:
    model, inputs = convert(method, network), inputs_for(network, 4)
    frozen = dubio.export(model, inputs, noise="frozen", num_samples=2, seed=5).module()
    one = dubio.export(model, inputs, noise="frozen", seed=5).module()
    with Using(estimator="weight"):
        expected = draws(model, inputs, 2)
    torch.testing.assert_close(frozen(inputs), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one(inputs), expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@exporting
@pytest.mark.parametrize(("method", "noise"), ONNX)
def test_onnx_files_have_no_noise_or_draw_anew(method: str, noise: Any) -> None:
    import onnxruntime

    model = convert(method, "cnn")
    program = dubio.export(model, inputs_for("cnn", 4), format="onnx", noise=noise)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    entry = session.get_inputs()[0].name
    for rows in (3, 8):
        inputs = inputs_for("cnn", rows)
        first, second = (torch.from_numpy(session.run(None, {entry: inputs.numpy()})[0]) for _ in range(2))
        if noise == "off":
            with torch.no_grad(), dubio.noise_off():
                torch.testing.assert_close(first, model(inputs), rtol=1e-5, atol=1e-5)
        if row_of(method).draws != "members":
            assert differ(first, second) == (noise == "fresh" and row_of(method).draws == "noise")


@every_method
def test_frozen_exports_are_refused_for_noise_of_rows(method: str) -> None:
    if row_of(method).frozen_export:
        return
    model, inputs = convert(method, "mlp"), inputs_for("mlp")
    with pytest.raises(ValueError, match="noise must be 'off' or 'fresh' for a network with noise on its activations"):
        dubio.export(model, inputs, noise="frozen")


# ----------------------------------------------------------------------------------------- what is said and refused


@every_pair
def test_describe_lists_every_random_layer_and_nothing_inside_the_noise(method: str, network: str) -> None:
    net, model = plain(network), convert(method, network)
    draws(model, inputs_for(network), 2, executor="auto")
    description = dubio.describe(model)
    own = {"": model} if row_of(method).made == "members" else dict(net.named_modules())
    if row_of(method).made == "new head":
        own[NETWORKS[network].head] = model.get_submodule(NETWORKS[network].head)
    listed = {layer.name: layer for layer in description.layers}
    assert set(listed) <= set(own)
    drawing = [name for name in random_names(model) if not isinstance(model.get_submodule(name), GaussianHead)]
    assert set(drawing) == {name for name, layer in listed.items() if layer.random}
    assert bool(random_names(model)) == (method != "deterministic")
    assert all(layer.kind == type(own[name]).__name__ for name, layer in listed.items())
    assert {name for name, module in own.items() if list(module.parameters(recurse=False))} <= set(listed)
    total = sum(p.numel() for p in (net if row_of(method).made == "in place" else model).parameters())
    assert description.num_random + description.num_fixed == total
    noisy = [module for module in model.modules() if isinstance(module, Noised | RandomDropout | WassersteinHead)]
    assert description.num_noisy == len(noisy)
    text = str(description)
    assert repr(row_of(method).method) in text
    assert all(name in text for name in listed)
    assert all(str(plan.reason) in text for plan in plans(model).values())


@every_pair
def test_a_converted_network_is_not_converted_twice(method: str, network: str) -> None:
    model = convert(method, network)
    if not random_names(model):  # an ordinary network, which may well have been trained first
        assert dubio.spec(METHOD_TABLE["bayes"].method.convert(model)).method == METHOD_TABLE["bayes"].method
        return
    for other in (
        "bayes",
        "dropout",
        "input noise",
        "flow",
        "se-snn",
        "pni",
        "wasserstein",
        "deterministic",
        "ensemble",
    ):
        with pytest.raises(
            ValueError, match=r"net is stochastic already: .* dubio.to_mean\(net\) makes it plain again"
        ):
            METHOD_TABLE[other].method.convert(model)


@every_method
def test_what_is_no_likelihood_and_no_network_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    chosen = row_of(method).method
    with pytest.raises(TypeError, match="likelihood must be a Categorical, a Gaussian or a Bernoulli, got 'logits'"):
        chosen.convert(plain("mlp"), "logits")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"net must be a torch\.nn\.Module, got str"):
        chosen.convert("mlp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="net must have parameters to make random, got a ReLU without any"):
        chosen.convert(nn.ReLU())


@pairs(CHOOSING, NETWORKS, FAST)
def test_where_chooses_and_a_function_is_kept_as_the_names_it_chose(method: str, network: str) -> None:
    head, net = NETWORKS[network].head, plain(network)
    chosen = row_of(method).method
    for where in (head, (head, "nothing"), lambda name, module: name == head):
        model = replace(chosen, where=where).convert(net)  # type: ignore[type-var]
        assert random_names(model) == (head,)
        assert dubio.spec(model).method.where == ((head,) if callable(where) else where)
    assert "not chosen by where" in str(dubio.describe(model))
    with pytest.raises(ValueError, match="nothing to convert: where='nothing' chooses no layer"):
        replace(chosen, where="nothing").convert(net)  # type: ignore[type-var]


@pytest.mark.parametrize("method", CHOOSING)
def test_layers_without_room_for_noise_are_refused_or_left_alone(method: str) -> None:
    net = nn.Sequential(Filter(5), nn.Linear(5, CLASSES))
    chosen = replace(row_of(method).method, where="*")  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"cannot convert: 0: Filter.* pass strict=False to leave these deterministic"):
        chosen.convert(net)
    model = chosen.convert(net, strict=False)
    assert random_names(model) == ("1",)
    assert draws_anew(method, model, inputs_for("mlp"))


@every_method
def test_a_method_is_written_as_it_is_made(method: str) -> None:
    chosen = row_of(method).method
    names = {name: getattr(dubio, name) for name in dubio.__all__}
    names |= {name: getattr(dubio.flows, name) for name in dubio.flows.__all__}
    assert eval(repr(chosen), names) == chosen
    assert copy.deepcopy(chosen) == pickle.loads(pickle.dumps(chosen)) == chosen
    assert hash(copy.deepcopy(chosen)) == hash(chosen)
    assert from_json(json.loads(json.dumps(to_json(chosen)))) == chosen
    field = fields(chosen)[0].name  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        setattr(chosen, field, None)


def test_methods_with_any_difference_are_different() -> None:
    assert len({row.method for row in METHOD_TABLE.values()}) == len(METHOD_TABLE)


# ----------------------------------------------------------------------------------------- training


@holds
@every_trained_pair
def test_t44_parameter_groups_hold_every_parameter_once(method: str, network: str) -> None:
    net, model = plain(network), convert(method, network)
    noise = noise_parameters(model)
    rest = [p for p in model.parameters() if id(p) not in {id(known) for known in noise}]
    assert len({id(p) for p in noise}) == len(noise)
    assert {id(p) for p in (*noise, *rest)} == {id(p) for p in model.parameters()}
    if row_of(method).made == "in place":
        assert sorted(p.shape for p in rest) == sorted(p.shape for p in net.parameters())
    else:
        assert not noise  # a new head is an ordinary network, and so is a member

    seen: list[dict[str, Any]] = []

    def adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        seen.extend({**group, "ids": [id(p) for p in group["params"]]} for group in groups)
        return torch.optim.Adam(groups)

    data = inputs_for(network), targets_for()
    dubio.fit(model, data, epochs=1, lr=1e-3, weight_decay=0.1, optimizer=adam, progress=False)
    expected = [(rest, 1e-3, 0.1), (noise, 1e-3 * row_of(method).method.recipe.noise_ratio, 0.0)]
    assert [(group["ids"], group["lr"], group["weight_decay"]) for group in seen] == [
        ([id(p) for p in group], lr, decay) for group, lr, decay in expected if group
    ]


@pytest.mark.parametrize("method", [name for name in TRAINED if METHOD_TABLE[name].made != "new head"])
def test_t44_a_learned_scale_of_the_data_is_trained_with_the_noise(method: str) -> None:
    net = plain("mlp")
    model = row_of(method).method.convert(net, dubio.Gaussian(std="learned"))
    noise = {id(p) for p in noise_parameters(model)}
    assert id(model.observation_rho) in noise
    if row_of(method).made == "in place":
        assert len(noise) + len(list(net.parameters())) == len(list(model.parameters()))
    loss = row_of(method).method.objective(NUM_DATA)(model, inputs_for("mlp"), torch.zeros(ROWS, CLASSES), 2)
    loss.total.backward()
    assert model.observation_rho.grad.abs() > 0.0


def blobs() -> tuple[Tensor, Tensor]:
    targets = targets_for(96)
    centres = 3.0 * torch.eye(CLASSES, 5)
    return centres[targets] + 0.5 * torch.randn(96, 5, generator=torch.Generator().manual_seed(1)), targets


def trained(method: str, network: str, folder: Path, epochs: int, resume: bool = False) -> dubio.FitResult:
    torch.manual_seed(3)
    model = row_of(method).method.convert(NETWORKS[network].make())
    return dubio.fit(
        model, blobs(), epochs=epochs, batch_size=16, lr=0.02, folder=folder, resume=resume, progress=False
    )


@holds
@pairs(TRAINED, ["mlp"], {(method, "mlp") for method in ("bayes", "dropout, alpha", "flow, glow")})
def test_training_lowers_the_loss_and_a_resumed_run_is_the_uninterrupted_one(
    method: str, network: str, tmp_path: Path
) -> None:
    epochs = row_of(method).epochs
    whole = trained(method, network, tmp_path / "whole", epochs=epochs)
    trained(method, network, tmp_path / "cut", epochs=epochs // 2)
    resumed = trained(method, network, tmp_path / "cut", epochs=epochs, resume=True)
    assert whole.history[-1]["nll"] < 0.9 * whole.history[0]["nll"]
    assert [{**m, "seconds": 0} for m in resumed.history] == [{**m, "seconds": 0} for m in whole.history]
    models = [dubio.load(tmp_path / part / "model.safetensors", NETWORKS[network].make()) for part in ("whole", "cut")]
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
