"""The battery that every Bayesian layer passes, over a table of layers: a new layer is added to the table.

Copies, precisions, autocast, an outer ``vmap``, gradients, ``torch.compile`` and ``torch.export``.
"""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.settings import STATE, Estimator
from dubio.nn.bayesian import BAYESIAN
from dubio.nn.sources import posteriors

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 6),
    "linear, no bias": lambda: nn.Linear(4, 6, bias=False),
    "conv1d": lambda: nn.Conv1d(4, 6, 3),
    "conv1d, groups, stride, padding": lambda: nn.Conv1d(4, 6, 3, groups=2, stride=2, padding=1),
    "conv1d, circular, no bias": lambda: nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular", bias=False),
    "conv2d": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "conv2d, groups, dilation": lambda: nn.Conv2d(4, 6, (3, 2), groups=2, dilation=2, padding=1),
    "conv2d, same, no bias": lambda: nn.Conv2d(4, 6, 3, padding="same", bias=False),
    "conv2d, reflect, stride": lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="reflect"),
    "conv2d, replicate, same": lambda: nn.Conv2d(4, 6, 3, padding="same", padding_mode="replicate"),
    "conv3d": lambda: nn.Conv3d(4, 6, 2),
    "conv3d, groups, stride, padding": lambda: nn.Conv3d(4, 6, 3, groups=2, stride=2, padding=1),
    "transposed 1d": lambda: nn.ConvTranspose1d(4, 6, 3),
    "transposed 1d, stride, output padding": lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed 1d, groups, no bias": lambda: nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False),
    "transposed 2d": lambda: nn.ConvTranspose2d(4, 6, 3),
    "transposed 2d, groups, dilation": lambda: nn.ConvTranspose2d(4, 6, (3, 2), groups=2, dilation=2, padding=1),
    "transposed 2d, stride, output padding, no bias": lambda: nn.ConvTranspose2d(
        4, 6, 3, stride=2, output_padding=(1, 0), bias=False
    ),
    "transposed 3d": lambda: nn.ConvTranspose3d(4, 6, 2),
    "transposed 3d, groups, stride, output padding": lambda: nn.ConvTranspose3d(
        4, 6, 2, groups=2, stride=2, padding=1, output_padding=1
    ),
    "transposed 3d, dilation, no bias": lambda: nn.ConvTranspose3d(4, 6, 2, dilation=2, bias=False),
}
ESTIMATORS: tuple[Estimator, ...] = ("weight", "local", "flipout")
# The compiler takes its time: each kind of layer meets it with one estimator, and each estimator several kinds.
COMPILED: dict[str, Estimator] = {
    "linear": "local",
    "linear, no bias": "flipout",
    "conv1d, groups, stride, padding": "weight",
    "conv2d, groups, dilation": "local",
    "conv2d, reflect, stride": "flipout",
    "conv3d": "weight",
    "transposed 1d, stride, output padding": "local",
    "transposed 2d, groups, dilation": "flipout",
    "transposed 3d": "weight",
}
# Inductor itself makes code of one layer for each estimator; the others meet its decompositions and its two passes.
INDUCTOR = ("linear", "conv2d", "transposed 2d")
KINDS: dict[str, Estimator] = {
    "linear": "weight",
    "conv1d": "local",
    "conv2d": "flipout",
    "conv3d": "local",
    "transposed 1d": "flipout",
    "transposed 2d": "local",
    "transposed 3d": "weight",
}

every_layer = pytest.mark.parametrize("layer", LAYERS)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
holds = pytest.mark.feature(
    "Bayesian layers survive deepcopy, pickle, state_dict, bfloat16, autocast, vmap, torch.compile and torch.export"
)


def plain(layer: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[layer]()


def convert(layer: str, estimator: Estimator) -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=0.3).convert(plain(layer))


def inputs_for(layer: str, rows: int = 3) -> Tensor:
    positions = next((int(sign) for sign in layer if sign.isdigit()), 0)
    return torch.randn(rows, 4, *(5, 6, 4)[:positions])


def frozen_draws(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return dubio.sample(model, inputs, 3, seed=5)  # type: ignore[no-any-return]


def assert_noisy(a: Tensor, b: Tensor) -> None:
    """Two draws that differ, everywhere finite."""
    assert a.isfinite().all()
    assert b.isfinite().all()
    assert (a - b).abs().max() > 0.01


def test_the_table_holds_every_bayesian_layer() -> None:
    assert {type(plain(layer)) for layer in LAYERS} == set(BAYESIAN)
    assert {type(plain(layer)) for layer in COMPILED} == set(BAYESIAN)
    assert {type(plain(layer)) for layer in KINDS} == set(BAYESIAN)
    assert {KINDS[layer] for layer in INDUCTOR} == set(ESTIMATORS)


@holds
@every_layer
@every_estimator
def test_a_layer_draws_fresh_frozen_and_no_noise(layer: str, estimator: Estimator) -> None:
    net, model, inputs = plain(layer), convert(layer, estimator), inputs_for(layer)
    assert_noisy(model(inputs), model(inputs))
    with dubio.frozen(seed=1):
        assert torch.equal(model(inputs), model(inputs))
    with dubio.noise_off():
        assert torch.equal(model(inputs), net(inputs))


@every_layer
@every_estimator
def test_mapped_and_looped_draws_agree(layer: str, estimator: Estimator) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer)
    mapped = dubio.sample(model, inputs, 4, seed=1, executor="vmap")
    looped = dubio.sample(model, inputs, 4, seed=1, executor="loop")
    torch.testing.assert_close(mapped, looped, rtol=1e-5, atol=2e-6)
    assert_noisy(mapped[0], mapped[1])


@holds
@every_layer
@every_estimator
def test_deepcopy_also_after_backward_gives_the_same_draws(layer: str, estimator: Estimator) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer)
    before = copy.deepcopy(model)
    model(inputs).sum().backward()
    after = copy.deepcopy(model)
    expected = frozen_draws(model, inputs)
    for twin in (before, after):
        assert torch.equal(frozen_draws(twin, inputs), expected)
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    with torch.no_grad():  # the copies are independent
        next(after.parameters()).add_(1.0)
    assert torch.equal(frozen_draws(model, inputs), expected)
    assert_noisy(after(inputs), after(inputs))


@holds
@every_layer
@every_estimator
def test_pickle_gives_the_same_draws(layer: str, estimator: Estimator) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer)
    model(inputs).sum().backward()
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(frozen_draws(twin, inputs), frozen_draws(model, inputs))
    assert_noisy(twin(inputs), twin(inputs))


@holds
@every_layer
@every_estimator
def test_state_dict_gives_the_same_draws(layer: str, estimator: Estimator) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin = convert(layer, estimator)
    assert not torch.equal(frozen_draws(twin, inputs), frozen_draws(model, inputs))
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(frozen_draws(twin, inputs), frozen_draws(model, inputs))


@holds
@every_layer
@every_estimator
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=["bfloat16", "float64"])
def test_other_precisions_run_forward_and_backward(layer: str, estimator: Estimator, dtype: torch.dtype) -> None:
    exact = convert(layer, estimator)
    inputs = inputs_for(layer)
    model = copy.deepcopy(exact).to(dtype)
    outputs = model(inputs.to(dtype))
    assert outputs.dtype == dtype
    assert_noisy(outputs, model(inputs.to(dtype)))
    outputs.float().square().sum().backward()
    for parameter in model.parameters():
        assert parameter.dtype == parameter.grad.dtype == dtype
        assert parameter.grad.isfinite().all()
    with dubio.noise_off():
        expected = exact(inputs)
        scale = 0.05 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(model(inputs.to(dtype)).float(), expected, rtol=scale, atol=scale)


@holds
@every_layer
@every_estimator
def test_autocast_gives_the_same_draws_in_half_precision(layer: str, estimator: Estimator) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer)
    with dubio.frozen(seed=5):
        exact = model(inputs)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), exact, rtol=0.05, atol=0.1)
    outputs.float().square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@holds
@every_layer
@every_estimator
def test_an_outer_vmap_draws_for_every_entry(layer: str, estimator: Estimator) -> None:
    model = convert(layer, estimator)
    same = inputs_for(layer).expand(4, *inputs_for(layer).shape).contiguous()
    outputs = torch.func.vmap(model, randomness="different")(same)
    single = model(same[0])
    assert outputs.shape == (4, *single.shape)
    assert_noisy(outputs[0], outputs[1])
    with dubio.noise_off():
        torch.testing.assert_close(torch.func.vmap(model)(same)[2], model(same[2]), rtol=1e-5, atol=1e-5)


@every_layer
@every_estimator
def test_gradients_reach_mean_and_rho_of_every_posterior(layer: str, estimator: Estimator) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer).requires_grad_()
    net = plain(layer)
    assert len(posteriors(model)) == len(list(net.parameters()))
    dubio.sample(model, inputs, 2, seed=0).square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().max() > 0
    for posterior in posteriors(model):
        for parameter in (posterior.mean, posterior.rho):
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            assert (parameter.grad != 0).float().mean() > 0.9


@every_layer
def test_layers_print_what_they_are(layer: str) -> None:
    text = repr(convert(layer, "flipout"))
    net = plain(layer)
    assert text.startswith(type(net).__name__)
    assert f"{net.extra_repr()}, estimator='flipout'" in text  # all that the plain layer says
    assert "prior=Normal(mean=0.0, std=1.0)" in text


def compiled_equals_eager(layer: str, estimator: Estimator, backend: str, atol: float) -> None:
    model, inputs = convert(layer, estimator), inputs_for(layer)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with dubio.frozen(seed=2):
        expected = model(inputs)
        outputs = compiled(inputs)
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=atol)
    outputs.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    expected.square().sum().backward()
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-4)

    draws = [compiled(inputs) for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        assert_noisy(draws[a], draws[b])
    with dubio.noise_off():
        torch.testing.assert_close(compiled(inputs), plain(layer)(inputs), rtol=1e-5, atol=atol)


@holds
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("layer", "estimator"),
    [
        pytest.param(layer, estimator, marks=[pytest.mark.slow] if estimator == "flipout" else [])
        for layer, estimator in COMPILED.items()
    ],
)
def test_compiled_layers_equal_eager_ones_and_stay_fresh(layer: str, estimator: Estimator) -> None:
    compiled_equals_eager(layer, estimator, "aot_eager", atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize(("layer", "estimator"), KINDS.items())
def test_inductor_equals_eager_and_stays_fresh(layer: str, estimator: Estimator) -> None:
    backend = "inductor" if layer in INDUCTOR else "aot_eager_decomp_partition"
    compiled_equals_eager(layer, estimator, backend, atol=1e-5)


@holds
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")  # the pass, put back
@pytest.mark.parametrize(("layer", "estimator"), COMPILED.items())
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_exported_layers_take_any_batch_size(layer: str, estimator: Estimator, strict: bool) -> None:
    model = convert(layer, estimator).eval()
    shapes = ({0: torch.export.Dim("rows", min=2)},)
    with dubio.noise_off():
        program = torch.export.export(model, (inputs_for(layer, 3),), dynamic_shapes=shapes, strict=strict)
    exported = program.module()
    assert STATE.own.current is None
    for rows in (3, 8):
        inputs = inputs_for(layer, rows)
        with dubio.noise_off():
            torch.testing.assert_close(exported(inputs), model(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("layer", "estimator"), COMPILED.items())
def test_layers_exported_with_noise_draw_anew_at_every_run(layer: str, estimator: Estimator) -> None:
    model = convert(layer, estimator).eval()
    shapes = ({0: torch.export.Dim("rows", min=2)},)
    exported = torch.export.export(model, (inputs_for(layer, 3),), dynamic_shapes=shapes).module()
    for rows in (3, 8):
        inputs = inputs_for(layer, rows)
        assert_noisy(exported(inputs), exported(inputs))
