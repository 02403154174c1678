"""Batch norm under a map over draws: one set of statistics for all of them."""

import copy

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import dubio
from dubio.nn.vmappable import MAPPABLE

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SAMPLES, ROWS = 3, 4
DIMENSIONS = {
    "1d": (lambda: nn.Linear(5, 6), nn.BatchNorm1d, (ROWS, 5)),
    "1d over positions": (lambda: nn.Conv1d(2, 6, 3), nn.BatchNorm1d, (ROWS, 2, 7)),
    "2d": (lambda: nn.Conv2d(2, 6, 3), nn.BatchNorm2d, (ROWS, 2, 5, 5)),
    "3d": (lambda: nn.Conv3d(2, 6, 2), nn.BatchNorm3d, (ROWS, 2, 3, 3, 3)),
}
OPTIONS = {
    "default": {},
    "cumulative": {"momentum": None},
    "not affine": {"affine": False},
    "without running statistics": {"track_running_stats": False},
    "other eps and momentum": {"eps": 0.1, "momentum": 0.7},
}


def with_norm(kind: str, **options: object) -> tuple[nn.Sequential, torch.Tensor]:
    """A layer, a batch norm whose scale, shift and running statistics are no trivial ones, and inputs."""
    make, norm_type, shape = DIMENSIONS[kind]
    norm = norm_type(6, **options)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    if norm.track_running_stats:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return nn.Sequential(make(), norm), torch.randn(shape)


def pooled_by_hand(model: nn.Sequential, norm: nn.Module, inputs: torch.Tensor, seed: int) -> torch.Tensor:
    """The same draws of the layer below, looped, then plain batch norm over the rows of all draws as one batch."""
    below = dubio.sample(nn.Sequential(model[0]), inputs, SAMPLES, seed=seed, executor="loop")
    return norm(below.flatten(0, 1)).unflatten(0, (SAMPLES, ROWS))


def running(norm: nn.Module) -> list[torch.Tensor]:
    return [norm.running_mean, norm.running_var, norm.num_batches_tracked]


@pytest.mark.parametrize("kind", DIMENSIONS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.feature("Batch norm in training pools over draws")
def test_batch_norm_in_training_is_that_of_sample_and_batch_together(kind, options):
    net, inputs = with_norm(kind, **options)
    model, plain = dubio.Bayes(init_std=0.3).convert(net), copy.deepcopy(net[1])

    mapped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap")
    pooled = pooled_by_hand(model, plain, inputs, seed=1)

    torch.testing.assert_close(mapped, pooled, rtol=1e-5, atol=1e-5)
    target = torch.randn_like(mapped)
    below = list(model[0].parameters())
    gradients = [
        torch.autograd.grad((outputs - target).square().sum(), [*below, *norm.parameters()])
        for outputs, norm in ((mapped, model[1]), (pooled, plain))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert gradients[0][0].abs().max() > 0.1


@pytest.mark.parametrize("kind", DIMENSIONS)
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_running_statistics_move_once_a_pass_with_the_unbiased_variance(kind, momentum):
    net, inputs = with_norm(kind, momentum=momentum)
    model, plain = dubio.Bayes(init_std=0.3).convert(net), copy.deepcopy(net[1])

    for seed in (1, 2, 3):
        dubio.sample(model, inputs, SAMPLES, seed=seed, executor="vmap")
        pooled_by_hand(model, plain, inputs, seed)
        torch.testing.assert_close(running(model[1]), running(plain), rtol=1e-5, atol=1e-5)
    assert model[1].num_batches_tracked.item() == 3
    assert (model[1].running_mean - net[1].running_mean).abs().min() > 1e-4


def test_finding_an_executor_leaves_the_running_statistics_alone():
    net, inputs = with_norm("2d")
    model, plain = dubio.Bayes(init_std=0.3).convert(net), copy.deepcopy(net[1])

    dubio.sample(model, inputs, SAMPLES, seed=1)  # tries the network first
    pooled_by_hand(model, plain, inputs, seed=1)

    torch.testing.assert_close(running(model[1]), running(plain), rtol=1e-5, atol=1e-5)


def test_batch_norm_before_any_noise_takes_the_statistics_of_the_batch():
    net = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4))
    model, inputs = dubio.Bayes().convert(net), 3.0 * torch.randn(ROWS, 5) + 1.0

    mapped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap")
    moved = [tensor.clone() for tensor in running(model[0])]
    looped = dubio.sample(dubio.Bayes().convert(net), inputs, SAMPLES, seed=1, executor="loop")

    net[0](inputs)
    torch.testing.assert_close(mapped, looped, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved, running(net[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", DIMENSIONS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outside_a_map_batch_norm_is_the_plain_one_bit_by_bit(kind, options, training):
    net, inputs = with_norm(kind, **options)
    model = dubio.Bayes().convert(net.train(training))
    assert type(model[1]) is MAPPABLE[type(net[1])]

    with dubio.noise_off():
        outputs = model(inputs)
    torch.testing.assert_close(outputs, net(inputs), rtol=0.0, atol=0.0)
    if net[1].track_running_stats:
        torch.testing.assert_close(running(model[1]), running(net[1]), rtol=0.0, atol=0.0)

    below = nn.Sequential(model[0])
    looped = dubio.sample(model, inputs, 2, seed=1, executor="loop")
    expected = [net[1](draw) for draw in dubio.sample(below, inputs, 2, seed=1, executor="loop")]
    torch.testing.assert_close(looped, torch.stack(expected), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("kind", DIMENSIONS)
@pytest.mark.parametrize("affine", [True, False])
def test_in_eval_mode_mapped_draws_equal_looped_ones(kind, affine):
    net, inputs = with_norm(kind, affine=affine)
    model = dubio.Bayes(init_std=0.3).convert(net).eval()
    before = [tensor.clone() for tensor in running(model[1])]

    mapped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap")
    looped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="loop")

    torch.testing.assert_close(mapped, looped, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(running(model[1]), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("kind", DIMENSIONS)
@pytest.mark.parametrize("affine", [True, False])
def test_in_eval_mode_batch_norm_is_mapped_under_autocast(kind, affine):
    net, inputs = with_norm(kind, affine=affine)
    model = dubio.Bayes().convert(net).eval()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap")
        looped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="loop")

    assert mapped.dtype == looped.dtype == torch.bfloat16
    torch.testing.assert_close(mapped, looped, rtol=0.02, atol=0.02)
    torch.testing.assert_close(
        mapped.float(), dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap"), rtol=0.1, atol=0.1
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("what", ["images", "filters"])
def test_batch_norm_is_mapped_whatever_the_layout(device, training, what):
    net, inputs = with_norm("2d")
    model, inputs = dubio.Bayes(init_std=0.3).convert(net).to(device).train(training), inputs.to(device)
    expected = dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap")
    if what == "images":
        inputs = inputs.to(memory_format=torch.channels_last)
    else:
        model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap"), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("mean", "variance"), [(10.0, 1.0), (100.0, 1e-2), (500.0, 1e-6)])
def test_in_eval_mode_mapped_batch_norm_is_as_exact_as_the_plain_one(dtype, mean, variance):
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)).to(dtype).eval()
    net[1].running_mean.fill_(mean)
    net[1].running_var.fill_(variance)
    model = dubio.Bayes(init_std=1e-3).convert(net)
    model[0].bias_posterior.mean.data.fill_(mean)
    inputs = torch.randn(ROWS, 5, dtype=dtype) * variance**0.5
    below = dubio.sample(nn.Sequential(model[0]), inputs, SAMPLES, seed=1, executor="loop")
    exact = copy.deepcopy(net[1]).double()(below.double().flatten(0, 1)).unflatten(0, (SAMPLES, ROWS))
    mapped, looped = (dubio.sample(model, inputs, SAMPLES, seed=1, executor=way) for way in ("vmap", "loop"))
    assert mapped.dtype == dtype
    errors = [(found.double() - exact).abs().max() for found in (mapped, looped)]
    assert errors[0] <= 2.0 * errors[1] + 1e-9


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("missing", ["weight", "bias"])
def test_a_scale_without_a_shift_and_a_shift_without_a_scale_are_kept(missing, training):
    net, inputs = with_norm("1d")
    net[1].register_parameter(missing, None)
    model, plain = dubio.Bayes(init_std=0.3).convert(net).train(training), copy.deepcopy(net[1]).train(training)
    mapped = dubio.sample(model, inputs, SAMPLES, seed=1, executor="vmap")
    torch.testing.assert_close(mapped, pooled_by_hand(model, plain, inputs, seed=1), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("before_noise", [False, True])
def test_the_compiler_sees_into_batch_norm_and_computes_the_same(dtype, before_noise):
    """An operator of our own is a wall to the compiler: nothing before or behind it is fused with it."""
    names, found = [], []

    def take_down(graph, example_inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    def draws(model, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return dubio.sample(model, inputs, SAMPLES)

    for run in (draws, torch.compile(draws, backend=aot_autograd(fw_compiler=take_down), fullgraph=True)):
        torch.manual_seed(2)
        net, inputs = with_norm("2d")
        net.append(nn.Conv2d(6, 6, 1))
        model = dubio.Bayes(init_std=0.3, where="2" if before_noise else "*").convert(net)
        outputs = run(model, inputs)
        outputs.square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append((outputs, gradients, running(model[1])))
    assert outputs.dtype == dtype
    assert any("batch_norm" in name for name in names)
    assert not any("standardise" in name for name in names)
    torch.testing.assert_close(*found, rtol=1e-5 if dtype == torch.float32 else 0.02, atol=1e-4)


def test_the_operator_behind_batch_norm_keeps_torchs_rules():
    torch.library.opcheck(torch.ops.dubio.standardise.default, (torch.randn(4, 3, 5), 1e-5, True))


def test_batch_norm_in_training_refuses_one_value_per_channel():
    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)))

    with pytest.raises(ValueError, match="needs more than one value per channel, got shape"):
        dubio.sample(model, torch.randn(1, 5), 2, executor="vmap", chunk=1)
    # Two draws of one row are two values.
    assert dubio.sample(model, torch.randn(1, 5), 2, executor="vmap").isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_mapped_batch_norm_refuses_inputs_of_the_wrong_shape_as_the_plain_one_does(training):
    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm2d(6))).train(training)

    with pytest.raises(ValueError, match="expected 4D input"):
        dubio.sample(model, torch.randn(4, 5), 2, executor="vmap")
    for given, expected in ((1, 6), (6, 1)):
        net = nn.Sequential(nn.Linear(5, given), nn.BatchNorm1d(expected))
        with pytest.raises(ValueError, match=f"expected {expected} channels, got {given}"):
            dubio.sample(dubio.Bayes().convert(net).train(training), torch.randn(4, 5), 2, executor="vmap")
