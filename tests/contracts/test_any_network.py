"""The battery that every convertible network passes, over the table in ``modules.py``: a new module is added there.

Exactness with noise off, what a draw changes and what not, the two executors, copies, precisions, autocast, an outer
``vmap``, ``torch.compile``, ``torch.export``, ONNX, DDP, checkpointing, gradients and the way back. Where torch itself
cannot, the plain network must be refused with the same words.
"""

import copy
import inspect
import io
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

import dubio
from contracts.modules import MODULES, TiedPair
from dubio._engine.draws import arguments
from dubio._engine.passes import current_pass
from dubio._engine.planner import plans
from dubio._engine.settings import Estimator, Using
from dubio.convert.randomise import is_norm
from dubio.nn.bayesian import BAYESIAN, BayesianLayer
from dubio.nn.sources import posteriors
from dubio.nn.vmappable import MAPPABLE

ESTIMATORS: tuple[Estimator, ...] = ("weight", "local", "flipout")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
ROWS = 3
# Inductor takes seconds: networks whose graphs have little in common. Convolutions meet it in test_layers_contract.py.
INDUCTOR = ("attention", "tied weights")
# One network of each other kind: inductor's decompositions and its split into two passes, but no code.
KINDS = (
    "linear",
    "lstm cell",
    "embedding, padding",
    "embedding bag, mean",
    "bilinear",
    "prelu",
    "layer and rms norm, random",
    "weight norm",
    "own parameters and children",
)
# Whole networks of such kinds: their graphs are traced with gradients.
WHOLE = (
    "transposed conv2d, groups, dilation",
    "encoder layer, norm first, gelu, random norms",
    "residual network",
    "vision transformer",
    "u-net",
)
OTHERS = (
    "lstm",
    "gru, 2 layers, both directions",
    "fixed lstm behind noise",
    "self-attention, padding, boolean mask",
    "transformer",
    "batch, group and instance norm",
    "submodule called twice",
    "several inputs, shared mask",
    "dict input",
    "several outputs",
    "output with logits",
    "transformers-style",
)
# Exports without noise and with fresh noise: every kind, every interface, and all that is refused there.
EXPORTED = [
    name
    for name, row in MODULES.items()
    if name in (*INDUCTOR, *KINDS, *WHOLE, *OTHERS) or {"export", "onnx"} & row.refused.keys()
]
# ONNX is written from what the exporter gives: kinds that whole networks contain need no file of their own.
WRITTEN = [
    name for name in EXPORTED if name not in (*INDUCTOR, *KINDS) or name in ("embedding bag, mean", "weight norm")
]

torchs_own_map = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
pytestmark = [
    # The fused path of torch's encoder, which the plain network takes in inference mode.
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning"),  # RMSNorm under autocast
]
exporting = pytest.mark.filterwarnings(
    r"ignore:The tensor attributes? self\.:UserWarning",  # of a plain LSTM, too
    "ignore:While compiling, we found certain side effects:UserWarning",  # passes, put back
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",  # torch.onnx of torch's own
    "ignore:_check_is_size will be removed in a future PyTorch release:FutureWarning",
)
every_network = pytest.mark.parametrize("name", MODULES)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
converts = pytest.mark.feature(
    "Every network converts: convolutions, recurrent layers, attention, embeddings, norms, parametrised and own modules"
)
survives = pytest.mark.feature(
    "A converted network survives deepcopy, pickle, state_dict, bfloat16, autocast, vmap, torch.compile, torch.export, "
    "ONNX, DDP and checkpointing"
)


def others_slow(fast: Collection[str]) -> pytest.MarkDecorator:
    """Every network, but only the ones named here in the fast tests."""
    return pytest.mark.parametrize(
        "name", [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in MODULES]
    )


def plain(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODULES[name].make().eval()


def convert(name: str, estimator: Estimator = "local", net: nn.Module | None = None) -> nn.Module:
    row = MODULES[name]
    method = dubio.Bayes(estimator=estimator, init_std=0.2, where=row.where, norms=row.norms)
    return method.convert(plain(name) if net is None else net)


def inputs_for(name: str, rows: int = ROWS) -> Any:
    torch.manual_seed(rows)
    return MODULES[name].inputs(rows)


def in_type(inputs: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, inputs)


def call(net: Callable[..., Any], inputs: Any) -> list[Tensor]:
    """All tensors that a network gives; of an object with logits, the logits."""
    args, kwargs = arguments(inputs)
    return leaves(net(*args, **kwargs))


def leaves(outputs: Any) -> list[Tensor]:
    found = [leaf for leaf in pytree.tree_leaves(getattr(outputs, "logits", outputs)) if isinstance(leaf, Tensor)]
    assert found
    return found


def draws(model: nn.Module, inputs: Any, num_samples: int = 2, **options: Any) -> list[Tensor]:
    with torch.no_grad():
        return leaves(dubio.sample(model, inputs, num_samples, seed=5, **({"executor": "loop"} | options)))


def projected(outputs: list[Tensor]) -> Tensor:
    """A sum with weights of no symmetry: no parameter's gradient vanishes for it."""
    generator = torch.Generator().manual_seed(7)
    return sum((leaf * torch.randn(leaf.shape, generator=generator)).sum() for leaf in outputs)  # type: ignore[return-value]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in found.values()), [n for n, g in found.items() if g is None]
    model.zero_grad()
    return found  # type: ignore[return-value]


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True)
    )


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def assert_noisy(a: list[Tensor], b: list[Tensor]) -> None:
    """Two draws that differ in every output, everywhere finite."""
    for one, other in zip(a, b, strict=True):
        assert one.isfinite().all()
        assert other.isfinite().all()
        assert (one - other).abs().max() > 1e-3


@contextmanager
def refused_like(name: str, ability: str) -> Iterator[bool]:
    """A block that must raise where torch refuses this ability; True where it does."""
    pattern = MODULES[name].refused.get(ability)
    if pattern is None:
        yield False
        return
    with pytest.raises((RuntimeError, TypeError, ValueError), match=pattern):
        yield True


@contextmanager
def autocast_like(name: str) -> Iterator[bool]:
    """A block under autocast, which must raise with the plain network's words where this CPU refuses it; True there.

    Torch hands an LSTM in bfloat16 to oneDNN, which has none for CPUs without AVX-512.
    """
    refusal = ""
    with torch.autocast("cpu", torch.bfloat16):
        try:
            call(plain(name), inputs_for(name))
        except RuntimeError as error:
            refusal = str(error)
        if not refusal:
            yield False
            return
        assert refusal.startswith("could not create a primitive descriptor for the LSTM")
        with pytest.raises(RuntimeError, match=re.escape(refusal)):
            yield True


# ------------------------------------------------------------------------------------------------------ the table


def test_the_table_holds_every_kind() -> None:
    assert len(MODULES) >= 45
    kinds = {type(module) for name in MODULES for module in plain(name).modules()}
    assert set(BAYESIAN) <= kinds
    assert set(MAPPABLE) <= kinds
    others = (nn.EmbeddingBag, nn.Bilinear, nn.PReLU, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.InstanceNorm1d)
    wholes = (nn.TransformerEncoder, nn.TransformerDecoderLayer, nn.Transformer, nn.ParameterList, nn.ParameterDict)
    assert {*others, *wholes} <= kinds
    assert {*INDUCTOR, *KINDS, *WHOLE, *OTHERS} <= set(MODULES)


# -------------------------------------------------------------------------------------------------- (a) exactness


@converts
@every_network
@every_estimator
def test_noise_off_is_the_original(name: str, estimator: Estimator) -> None:
    for dtype in (torch.float32, torch.float64):
        net, inputs = plain(name).to(dtype), in_type(inputs_for(name), dtype)
        model = convert(name, estimator, net)
        with dubio.noise_off():
            assert equal(call(model, inputs), call(net, inputs))
        with torch.no_grad():  # where torch fuses attention, but only in the plain network
            expected = call(net, inputs)
            with dubio.noise_off():
                found = call(model, inputs)
            assert_close(found, expected, TOLERANCE[dtype])
            assert equal(found, expected) or not MODULES[name].bitwise
            assert_noisy(call(model, inputs), expected)


@every_network
def test_noise_off_is_the_original_in_training(name: str) -> None:
    net, inputs = plain(name).train(), inputs_for(name)
    model = convert(name, net=net)
    assert model.training
    outputs = []
    with dubio.noise_off():
        for network in (model, net):
            torch.manual_seed(1)  # of dropout
            outputs.append(call(network, inputs))
    assert equal(*outputs)
    for key, buffer in net.named_buffers():  # running statistics
        assert torch.equal(model.get_buffer(key), buffer)


@every_network
def test_every_conversion_proves_itself(name: str) -> None:
    net, row, inputs = plain(name), MODULES[name], inputs_for(name)
    values = {key: value.clone() for key, value in net.state_dict().items()}
    dubio.Bayes(where=row.where, norms=row.norms).convert(net, example=inputs)  # without a warning
    assert all(torch.equal(value, values[key]) for key, value in net.state_dict().items())


@every_network
@every_estimator
def test_describe_says_which_estimator_a_layer_uses(name: str, estimator: Estimator) -> None:
    net, model = plain(name), convert(name, estimator)
    tied = {parameter for group in groups(net) if len(group) > 1 for parameter in group}
    for layer in dubio.describe(model).layers:
        own = {f"{layer.name}.{parameter}".removeprefix(".") for parameter in layer.random}
        if not own:
            assert layer.remark.startswith("fixed: ")
        elif estimator == "weight":
            assert layer.remark.partition(";")[0].endswith("estimator weight")
        elif not isinstance(model.get_submodule(layer.name), BayesianLayer):
            assert f"estimator weight ({layer.kind} has no {estimator} form)" in layer.remark
        elif own & tied:
            assert "estimator weight (tied weights share a draw)" in layer.remark or (
                "estimator weight (a shared layer has one draw)" in layer.remark
            )
        else:
            assert layer.remark.endswith(f"estimator {estimator}")


# ---------------------------------------------------------------------------------------------- (b) the original


def inventory(net: nn.Module) -> dict[str, Any]:
    """All that makes a network what it is, by identity."""
    return {
        "modules": [(name, id(module), type(module), set(vars(module))) for name, module in net.named_modules()],
        "parameters": [(name, id(p), p.requires_grad) for name, p in net.named_parameters(remove_duplicate=False)],
        "hooks": [(list(m._forward_hooks.values()), list(m._forward_pre_hooks.values())) for m in net.modules()],
        "training": [module.training for module in net.modules()],
        "random state": torch.get_rng_state().tolist(),
    }


@every_network
def test_the_original_stays_as_it_was(name: str) -> None:
    net, inputs = plain(name).train(), inputs_for(name)
    net(*arguments(inputs)[0], **arguments(inputs)[1])  # what a module makes on its first forward, made
    before, values = inventory(net), {key: value.clone() for key, value in net.state_dict().items()}
    model = convert(name, net=net)
    assert inventory(net) == before
    projected(call(model, inputs)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    dubio.sample(model, inputs, 2, executor="loop")
    torch.set_rng_state(torch.tensor(before["random state"], dtype=torch.uint8))
    assert inventory(net) == before
    assert all(torch.equal(value, values[key]) for key, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    storages = [
        {tensor.untyped_storage().data_ptr() for tensor in (*owner.parameters(), *owner.buffers())}
        for owner in (model, net)
    ]
    assert not storages[0] & storages[1]


@every_network
def test_forward_keeps_its_signature(name: str) -> None:
    signatures = [
        [(p.name, p.kind, p.default) for p in inspect.signature(network.forward).parameters.values()]
        for network in (convert(name), plain(name))
    ]
    assert signatures[0] == signatures[1]


# ----------------------------------------------------------------------------------------------- (c) one draw


def kinds(net: nn.Module) -> list[tuple[str, str, str]]:
    """Every module with its class, by name: torch makes a class of its own for each parametrised module."""
    return [
        (name, type(module).__module__, type(module).__qualname__)
        for name, module in net.named_modules(remove_duplicate=False)
    ]


def groups(net: nn.Module) -> list[list[str]]:
    """Names of the parameters, those of one parameter together."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, parameter in net.named_parameters(remove_duplicate=False):
        found[id(parameter)].append(name)
    return list(found.values())


def read(model: nn.Module, inputs: Any, names: list[str]) -> dict[str, Tensor]:
    """The values of parameters at the end of a forward, inside its pass."""
    values: dict[str, Tensor] = {}

    def look(module: nn.Module, args: Any, output: Any) -> None:
        run = current_pass()
        assert run is not None
        assert len(run.drawn) == len(posteriors(model))  # the forward read them all
        for name in names:
            owner, _, own = name.rpartition(".")
            values[name] = getattr(model.get_submodule(owner), own).detach().clone()

    handle = model.register_forward_hook(look, prepend=True)
    with Using(estimator="weight"):
        call(model, inputs)
    handle.remove()
    return values


def padding_mask(net: nn.Module, names: list[str]) -> Tensor:
    """Elements of a parameter that are the padding row of an embedding."""
    mask = torch.zeros_like(net.get_parameter(names[0]), dtype=torch.bool)
    for name in names:
        owner = net.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.padding_idx is not None:
            mask[owner.padding_idx] = True
    return mask


@pytest.mark.feature("One draw changes what describe calls random and nothing else; ties hold, padding rows stay")
@every_network
def test_a_draw_changes_what_describe_calls_random_and_nothing_else(name: str) -> None:
    net, model, inputs = plain(name), convert(name), inputs_for(name)
    description = dubio.describe(model)
    said = {f"{layer.name}.{own}".removeprefix(".") for layer in description.layers for own in layer.random}
    names = [parameter for group in groups(net) for parameter in group]
    assert said
    assert said <= set(names)
    values, others = (read(model, inputs, names) for _ in range(2))
    num_moved = 0
    for group in groups(net):
        source, first = net.get_parameter(group[0]), values[group[0]]
        assert all(torch.equal(values[tied], first) for tied in group)  # a tie holds in every draw
        if not said & set(group):
            assert torch.equal(first, source)
            continue
        moved = first != source
        assert torch.equal(moved, ~padding_mask(net, group))
        assert torch.equal(moved, first != others[group[0]])
        num_moved += int(moved.sum())
    assert num_moved == description.num_random
    assert description.num_random + description.num_fixed == sum(parameter.numel() for parameter in net.parameters())


@every_network
def test_norms_are_random_only_when_asked_for(name: str) -> None:
    for module_name, module in convert(name).named_modules():
        if is_norm(module) and list(plain(name).get_submodule(module_name).parameters()):
            assert bool(posteriors(module)) == MODULES[name].norms


class Shown(TiedPair):
    """Shows the weight of its first layer and what its second, with the same weight, does."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        encoded = self.encode(x)
        return encoded - self.encode(x * 0), self.decode(encoded) - self.decode(encoded * 0), encoded


@every_estimator
def test_ties_hold_in_what_the_network_computes(estimator: Estimator) -> None:
    model = dubio.Bayes(estimator=estimator, init_std=0.5).convert(Shown())
    for executor in ("loop", "vmap"):
        weight, product, encoded = dubio.sample(model, torch.eye(4), 3, executor=executor)
        torch.testing.assert_close(product, encoded @ weight, rtol=1e-4, atol=1e-5)
        assert (weight[0] - weight[1]).abs().max() > 0.1


# ------------------------------------------------------------------------------------------------ (d) executors


@pytest.mark.feature("Any converted network, recurrent and attention layers included, is mapped over draws at once")
@every_network
def test_mapped_draws_equal_looped_ones(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    outcomes = []
    for executor in ("vmap", "loop"):
        given = pytree.tree_map(lambda leaf: leaf.requires_grad_() if leaf.is_floating_point() else leaf, inputs)
        outputs = leaves(dubio.sample(model, given, 3, seed=1, executor=executor))
        projected(outputs).backward()
        own = {str(i): leaf.grad for i, leaf in enumerate(pytree.tree_leaves(given)) if leaf.grad is not None}
        outcomes.append(([leaf.detach() for leaf in outputs], gradients(model) | own))
        pytree.tree_map(lambda leaf: setattr(leaf, "grad", None), given)
    (mapped, mapped_gradients), (looped, looped_gradients) = outcomes
    assert_close(mapped, looped, 1e-5)
    assert_noisy([leaf[0] for leaf in mapped], [leaf[1] for leaf in mapped])
    assert mapped_gradients.keys() == looped_gradients.keys()
    for key, gradient in mapped_gradients.items():
        torch.testing.assert_close(gradient, looped_gradients[key], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@every_network
def test_the_executor_is_recorded(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    dubio.sample(model, inputs, 2)
    with torch.no_grad(), Using(estimator="weight"):
        dubio.sample(model, inputs, 2)
    assert {situation: plan.executor for situation, plan in plans(model).items()} == {
        "eval mode, with gradients": "vmap",
        "eval mode, without gradients, estimator weight": "vmap",
    }
    assert all(": vmap; a further draw repeats" in line for line in dubio.describe(model).executors)


# --------------------------------------------------------------------------------------- (e) what it must survive


@survives
@every_network
def test_deepcopy_also_after_backward_gives_the_same_draws(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    before = copy.deepcopy(model)
    projected(call(model, inputs)).backward()
    after = copy.deepcopy(model)
    expected = draws(model, inputs)
    for twin in (before, after):
        assert equal(draws(twin, inputs), expected)
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
        assert len(list(twin.parameters())) == len(list(model.parameters()))  # ties too
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.add_(1.0)
    assert equal(draws(model, inputs), expected)
    assert_noisy(call(after, inputs), call(after, inputs))


@survives
@every_network
def test_pickle_gives_the_same_draws(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    projected(call(model, inputs)).backward()
    with refused_like(name, "pickle"):
        pickle.dumps(plain(name))
    with refused_like(name, "pickle") as refused:
        data = pickle.dumps(model)
    if not refused:
        twin = pickle.loads(data)
        assert equal(draws(twin, inputs), draws(model, inputs))
        assert len(list(twin.parameters())) == len(list(model.parameters()))
        assert dubio.spec(twin) == dubio.spec(model)
        assert_noisy(call(twin, inputs), call(twin, inputs))


@survives
@every_network
def test_state_dict_gives_the_same_draws(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin = convert(name, net=plain(name, seed=1))
    assert not equal(draws(twin, inputs), draws(model, inputs))
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert equal(draws(twin, inputs), draws(model, inputs))


@survives
@every_network
def test_bfloat16_runs_forward_and_backward(name: str) -> None:
    model, inputs = convert(name).to(torch.bfloat16), in_type(inputs_for(name), torch.bfloat16)
    outputs = call(model, inputs)
    assert {leaf.dtype for leaf in outputs} == {torch.bfloat16}
    assert_noisy(outputs, call(model, inputs))
    projected(outputs).backward()
    for gradient in gradients(model).values():
        assert gradient.dtype == torch.bfloat16
        assert gradient.isfinite().all()
    with dubio.noise_off():
        assert equal(call(model, inputs), call(plain(name).to(torch.bfloat16), inputs))


@survives
@every_network
def test_autocast_runs_forward_and_backward(name: str) -> None:
    net, model, inputs = plain(name), convert(name), inputs_for(name)
    with autocast_like(name) as refused:
        outputs = call(model, inputs)
        assert_noisy(outputs, call(model, inputs))
        with dubio.noise_off():
            assert equal(call(model, inputs), call(net, inputs))
    if refused:
        return
    projected(outputs).backward()
    for gradient in gradients(model).values():
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()


@every_network
def test_draws_stay_mapped_under_autocast(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    with autocast_like(name) as refused:
        outputs = leaves(dubio.sample(model, inputs, 2))
    if refused:
        return
    assert_noisy([leaf[0] for leaf in outputs], [leaf[1] for leaf in outputs])
    assert {plan.executor for plan in plans(model).values()} <= {"vmap", "vmap inputs"}


@torchs_own_map
@survives
@every_network
def test_an_outer_vmap_draws_for_every_entry(name: str) -> None:
    net, model, inputs = plain(name), convert(name), inputs_for(name)
    args, kwargs = pytree.tree_map(lambda leaf: leaf.expand(3, *leaf.shape).contiguous(), arguments(inputs))

    def mapped(network: nn.Module) -> list[Tensor]:
        entry = torch.func.vmap(lambda a, k: leaves(network(*a, **k)), randomness="different")
        return entry(args, kwargs)  # type: ignore[no-any-return]

    with refused_like(name, "plain outer vmap") as plain_refused:
        expected = mapped(net)
    with refused_like(name, "outer vmap") as refused:
        outputs = mapped(model)
    assert current_pass() is None
    if not refused:
        assert [leaf.shape for leaf in outputs] == [(3, *leaf.shape) for leaf in call(net, inputs)]
        assert_noisy([leaf[0] for leaf in outputs], [leaf[1] for leaf in outputs])
    if not plain_refused:
        with dubio.noise_off():
            assert_close(mapped(model), expected)


def compiled_call(network: nn.Module, inputs: Any, backend: str) -> list[Tensor]:
    with dubio.frozen(seed=2):
        return call(torch.compile(network, fullgraph=True, backend=backend), inputs)


@pytest.mark.slow
@survives
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("name", [name for name in MODULES if name not in (*INDUCTOR, *KINDS, *WHOLE)])
@torch.no_grad()  # the others with gradients, below
def test_compiled_networks_equal_eager_ones(name: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    if "compile" in MODULES[name].refused:
        with refused_like(name, "compile"):
            compiled_call(plain(name), inputs, "aot_eager")
    with refused_like(name, "compile") as refused:
        outputs = compiled_call(model, inputs, "aot_eager")
    if not refused:
        with dubio.frozen(seed=2):
            expected = call(model, inputs)
        assert_close(outputs, expected)
        with dubio.noise_off():
            assert_noisy(call(model, inputs), outputs)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "inductor") for name in INDUCTOR),
        *((name, "aot_eager_decomp_partition") for name in KINDS),
        *((name, "aot_eager") for name in WHOLE),
    ],
)
def test_compiled_networks_equal_eager_ones_with_gradients_and_stay_fresh(name: str, backend: str) -> None:
    model, inputs = convert(name), inputs_for(name)
    outputs = compiled_call(model, inputs, backend)
    projected(outputs).backward()
    found = gradients(model)
    with dubio.frozen(seed=2):
        expected = call(model, inputs)
    projected(expected).backward()
    assert_close(outputs, expected, 1e-4)
    for key, gradient in gradients(model).items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-3, atol=1e-3)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():  # no backward pass to make code of once more
        assert_noisy(call(compiled, inputs), call(compiled, inputs))


@pytest.mark.usefixtures("compiler")
def test_compiled_networks_draw_anew_while_ties_hold() -> None:
    compiled = torch.compile(dubio.Bayes(init_std=0.5).convert(Shown()), fullgraph=True, backend="aot_eager")
    weights = []
    for _ in range(3):
        weight, product, encoded = compiled(torch.eye(4))
        torch.testing.assert_close(product, encoded @ weight, rtol=1e-4, atol=1e-5)
        weights.append(weight)
    assert (weights[0] - weights[1]).abs().max() > 0.1
    assert (weights[1] - weights[2]).abs().max() > 0.1


def exported_call(program: Any, inputs: Any, format: str) -> list[Tensor]:
    args, kwargs = arguments(inputs)
    with torch.no_grad():
        if format == "torch":
            return leaves(program.module()(*args, **kwargs))
        return [torch.as_tensor(output) for output in program(*args, **kwargs)]


def in_order(name: str, inputs: Any) -> tuple[Any, ...]:
    """Inputs as exported draws take them: in the order of the network's own arguments."""
    args, kwargs = arguments(inputs)
    return inspect.signature(plain(name).forward).bind(*args, **kwargs).args


def export(name: str, model: nn.Module, format: Any, noise: Any) -> Any:
    return dubio.export(model, inputs_for(name), format=format, noise=noise, seed=5, shared=MODULES[name].shared)


def exported_draw_equals_eager(name: str, format: str) -> None:
    """One frozen draw, at the number of rows it was exported with and at another."""
    model = convert(name)
    with refused_like(name, "export" if format == "torch" else "onnx") as refused:
        program = export(name, model, format, "frozen")
    assert current_pass() is None
    if refused:
        return
    for rows in (ROWS, 5):
        inputs = inputs_for(name, rows)
        with Using(estimator="weight"):
            expected = [leaf[0] for leaf in draws(model, inputs, 1)]
        found = exported_call(program, in_order(name, inputs), format)
        assert_close(found, expected)
        with torch.no_grad(), dubio.noise_off():
            assert_noisy(call(copy.deepcopy(model), inputs), found)


@survives
@exporting
@pytest.mark.usefixtures("compiler")
@others_slow(("linear", "u-net"))
def test_exported_draws_take_any_batch_size(name: str) -> None:
    exported_draw_equals_eager(name, "torch")


@pytest.mark.slow
@exporting
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_means_and_fresh_draws_take_any_batch_size(name: str) -> None:
    model = convert(name)
    programs = {}
    for noise in ("off", "fresh"):
        with refused_like(name, "export") as refused:
            programs[noise] = export(name, model, "torch", noise)
    if refused:
        return
    for rows in (ROWS, 5):
        inputs = inputs_for(name, rows)
        with torch.no_grad(), dubio.noise_off():
            expected = call(model, inputs)
        assert_close(exported_call(programs["off"], inputs, "torch"), expected)
        positional = in_order(name, inputs)
        fresh = [exported_call(programs["fresh"], positional, "torch") for _ in range(2)]
        assert [leaf.shape for leaf in fresh[0]] == [leaf.shape for leaf in expected]
        assert_noisy(*fresh)


@survives
@exporting
@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_onnx_draws_take_any_batch_size(name: str) -> None:
    exported_draw_equals_eager(name, "onnx")


@exporting
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("noise", ["fresh", "frozen"])
def test_ties_hold_in_exported_draws(noise: Any) -> None:
    model = dubio.Bayes(init_std=0.5).convert(Shown()).eval()
    exported = dubio.export(model, torch.eye(4), noise=noise, num_samples=2).module()
    weight, product, encoded = exported(torch.eye(4))
    torch.testing.assert_close(product, encoded @ weight, rtol=1e-4, atol=1e-5)
    assert (weight[0] - weight[1]).abs().max() > 0.1


def test_spectral_norm_in_training_runs_looped() -> None:
    model, inputs = convert("spectral norm").train(), inputs_for("spectral norm")
    with pytest.warns(dubio.ExecutorWarning, match=r"parametrizations\.weight\.0 \(_SpectralNorm\) cannot be mapped"):
        outputs = dubio.sample(model, inputs, 2)
    assert (outputs[0] - outputs[1]).abs().max() > 0.01
    assert {plan.executor for plan in plans(model).values()} == {"loop"}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("gloo") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def training_step(model: nn.Module, network: Callable[..., Any], inputs: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs and gradients of ``model``, called as ``network``, for one seed."""
    torch.manual_seed(3)
    outputs = call(network, inputs)
    projected(outputs).backward()
    return [leaf.detach() for leaf in outputs], gradients(model)


@survives
@pytest.mark.usefixtures("one_process")
@every_network
def test_ddp_gives_the_same_gradients(name: str) -> None:
    model, inputs = convert(name).train(), inputs_for(name)
    alone = copy.deepcopy(model)
    outputs, expected = training_step(alone, alone, inputs)
    found_outputs, found = training_step(model, DistributedDataParallel(model), inputs)
    assert equal(found_outputs, outputs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


class Checkpointed(nn.Module):
    """A network that recomputes its activations in the backward pass."""

    def __init__(self, inner: nn.Module, checkpoint: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self.checkpoint = checkpoint

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.checkpoint(self.inner, *args, **kwargs)


def without_checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@survives
@every_network
def test_checkpointing_gives_the_same_gradients(name: str) -> None:
    row, inputs = MODULES[name], inputs_for(name)
    where = f"inner.{row.where}" if isinstance(row.where, str) else row.where
    outcomes = []
    for checkpoint in (without_checkpoint, dubio.checkpoint):
        net = Checkpointed(plain(name), checkpoint)
        model = dubio.Bayes(init_std=0.2, where=where, norms=row.norms).convert(net)
        outcomes.append(training_step(model, model, inputs))
    (outputs, expected), (found_outputs, found) = outcomes
    assert equal(found_outputs, outputs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


# ------------------------------------------------------------------------------------- (f) gradients, and back again


@every_network
@pytest.mark.parametrize(
    "estimator", ["local", *(pytest.param(other, marks=pytest.mark.slow) for other in ("weight", "flipout"))]
)
def test_gradients_reach_every_parameter(name: str, estimator: Estimator) -> None:
    model, inputs = convert(name, estimator), inputs_for(name)
    projected(call(model, inputs)).backward()
    for posterior in posteriors(model):
        for parameter in (posterior.mean, posterior.rho):
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().max() > 0
        if posterior.fixed is not None:
            assert posterior.rho.grad is not None
            assert not posterior.rho.grad[posterior.fixed].any()  # a padding row has no noise to learn
    for gradient in gradients(model).values():
        assert gradient.abs().max() > 0


@pytest.mark.feature("to_mean gives the ordinary network back: class, parameter names and order, outputs")
@every_network
def test_to_mean_gives_the_ordinary_network_back(name: str) -> None:
    net, model, inputs = plain(name), convert(name), inputs_for(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    before = draws(model, inputs)
    back = dubio.to_mean(model)
    assert kinds(back) == kinds(net)
    assert groups(back) == groups(net)
    assert list(back.state_dict()) == list(net.state_dict())
    assert inventory(back)["hooks"] == inventory(net)["hooks"]
    assert equal(draws(model, inputs), before)  # the converted network stays as it was
    with dubio.noise_off():
        assert equal(call(back, inputs), call(model, inputs))
    assert not equal(call(back, inputs), call(net, inputs))
    projected(call(back, inputs)).backward()
    gradients(back)
