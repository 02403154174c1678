"""What dubio refuses, by its wording: the argument, the rule and the value received.

The shape checks of the test run are off here, since they would answer in dubio's place.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import spectral_norm

import dubio
from dubio import nn as stochastic
from dubio._engine.settings import STATE
from networks import Filter, Tied, mlp

NAN = float("nan")


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def model(*widths: int) -> nn.Module:
    return dubio.Bayes().convert(mlp(*(widths or (5, 8, 4))))


def predict(inputs: Any = None, net: nn.Module | None = None, **options: Any) -> dubio.Predictive:
    return dubio.predict(net or model(), torch.randn(6, 5) if inputs is None else inputs, **options)


def sample(**options: Any) -> Any:
    return dubio.sample(model(), torch.randn(6, 5), **options)


def conv(dims: int) -> nn.Module:
    return dubio.Bayes().convert((nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](3, 4, 2))


def transposed(dims: int) -> nn.Module:
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return dubio.Bayes().convert(kinds[dims - 1](3, 4, 2))


def with_nan(*rows: int) -> Tensor:
    inputs = torch.randn(6, 5)
    inputs[list(rows), 2] = NAN
    return inputs


class Returning(nn.Module):
    """Returns what it was given, whatever the input."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output


def shared_with_an_embedding() -> nn.Module:
    net = nn.ModuleDict({"embed": nn.Embedding(7, 5), "head": nn.Linear(5, 7, bias=False)})
    net["head"].weight = net["embed"].weight
    return net


def normalised_by_a_hook(norm: Callable[[nn.Module], nn.Module], run: bool) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # weight_norm says that it is old
        net = nn.Sequential(norm(nn.Linear(5, 4)), nn.Linear(4, 3))
    if run:
        net(torch.randn(2, 5))
    return net


def run_once(net: nn.Module) -> nn.Module:
    net(torch.randn(2, 5))
    return net


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Linear(5, 4))


Refusal = tuple[Callable[[], Any], type[Exception], str]

METHODS: dict[str, Refusal] = {
    "prior of a wrong type": (
        lambda: dubio.Bayes(prior=1.0),  # type: ignore[arg-type]
        TypeError,
        r"prior must be a Normal, ScaleMixture or CentredNormal, got 1\.0",
    ),
    "prior class in place of a prior": (
        lambda: dubio.Bayes(prior=dubio.Normal),  # type: ignore[arg-type]
        TypeError,
        r"prior must be a Normal, .* got <class 'dubio.priors.Normal'>",
    ),
    "unknown estimator": (
        lambda: dubio.Bayes(estimator="flip"),  # type: ignore[arg-type]
        ValueError,
        r"estimator must be 'weight', 'local' or 'flipout', got 'flip'",
    ),
    "init_std zero": (lambda: dubio.Bayes(init_std=0.0), ValueError, r"init_std must be positive and finite, got 0\.0"),
    "init_std negative": (
        lambda: dubio.Bayes(init_std=-0.1),
        ValueError,
        r"init_std must be positive and finite, got -0\.1",
    ),
    "init_std NaN": (lambda: dubio.Bayes(init_std=NAN), ValueError, r"init_std must be positive and finite, got nan"),
    "init_std infinite": (
        lambda: dubio.Bayes(init_std=float("inf")),
        ValueError,
        r"init_std must be positive and finite, got inf",
    ),
    "init_std of a wrong type": (
        lambda: dubio.Bayes(init_std="0.1"),  # type: ignore[arg-type]
        TypeError,
        r"init_std must be .*, got '0\.1'",
    ),
    "where of a wrong type": (
        lambda: dubio.Bayes(where=3),  # type: ignore[arg-type]
        TypeError,
        r"where must be a glob, a module type, a callable, or a tuple of those, got 3",
    ),
    "where as a list": (
        lambda: dubio.Bayes(where=["head"]),  # type: ignore[arg-type]
        TypeError,
        r"where must be .* or a tuple of those, got \['head'\]",
    ),
    "where with a wrong part": (
        lambda: dubio.Bayes(where=("head", ("body", 3))),  # type: ignore[arg-type]
        TypeError,
        r"where must be .*, got 3",
    ),
    "where as a type that is no module": (
        lambda: dubio.Bayes(where=int),  # type: ignore[arg-type]
        TypeError,
        r"where must name a module type, got int",
    ),
}

VALUES: dict[str, Refusal] = {
    "prior with zero scale": (
        lambda: dubio.Normal(0.0, 0.0),
        ValueError,
        r"std of a prior must be positive and finite, got 0\.0",
    ),
    "prior with a scale in words": (
        lambda: dubio.Normal(0.0, "1"),  # type: ignore[arg-type]
        TypeError,
        r"std of a prior must be a number, got '1'",
    ),
    "likelihood without std": (
        lambda: dubio.Gaussian(None),  # type: ignore[arg-type]
        ValueError,
        r"std of a Gaussian must be positive and finite, 'learned' or 'output', got None",
    ),
    "draws of no network": (
        lambda: dubio.sample("net", torch.zeros(2, 5)),  # type: ignore[arg-type]
        TypeError,
        r"model must be a torch\.nn\.Module, got str",
    ),
    "description of no network": (
        lambda: dubio.describe("net"),  # type: ignore[arg-type]
        TypeError,
        r"model must be a torch\.nn\.Module, got str",
    ),
    "half a draw in a chunk": (
        lambda: dubio.sample(model(), torch.zeros(2, 5), 3, chunk=2.5),  # type: ignore[arg-type]
        ValueError,
        r"chunk must be a whole number of at least 1, got 2\.5",
    ),
    "prior with negative scale": (
        lambda: dubio.Normal(0.0, -1.0),
        ValueError,
        r"std of a prior must be positive and finite, got -1\.0",
    ),
    "prior with infinite mean": (
        lambda: dubio.Normal(float("inf"), 1.0),
        ValueError,
        r"mean of a prior must be finite, got inf",
    ),
    "centred prior with zero scale": (
        lambda: dubio.CentredNormal(0.0),
        ValueError,
        r"std of a prior must be positive and finite, got 0\.0",
    ),
    "mixture with zero scale": (
        lambda: dubio.ScaleMixture(0.5, 1.0, 0.0),
        ValueError,
        r"narrow_std of a prior must be positive and finite, got 0\.0",
    ),
    "mixture without weight": (
        lambda: dubio.ScaleMixture(0.0),
        ValueError,
        r"weight of the wide component must be in \(0, 1\], got 0\.0",
    ),
    "mixture the wrong way round": (
        lambda: dubio.ScaleMixture(0.5, 0.1, 1.0),
        ValueError,
        r"narrow_std must be at most wide_std = 0\.1, got 1\.0",
    ),
    "closed divergence from a mixture": (
        lambda: dubio.ScaleMixture().divergence(torch.zeros(2), torch.ones(2), None),
        ValueError,
        r"the divergence from a scale mixture has no closed form; it is estimated from draws",
    ),
    "likelihood with negative std": (
        lambda: dubio.Gaussian(std=-0.1),
        ValueError,
        r"std of a Gaussian must be positive and finite, 'learned' or 'output', got -0\.1",
    ),
    "likelihood with zero std": (
        lambda: dubio.Gaussian(std=0.0),
        ValueError,
        r"std of a Gaussian must be positive and finite, 'learned' or 'output', got 0\.0",
    ),
    "likelihood with unknown std": (
        lambda: dubio.Gaussian(std="outputs"),  # type: ignore[arg-type]
        ValueError,
        r"std of a Gaussian must be .*'output', got 'outputs'",
    ),
    "likelihood with unknown output": (
        lambda: dubio.Categorical(output="probs"),  # type: ignore[arg-type]
        ValueError,
        r"output must be 'logits' or 'log_probs', got 'probs'",
    ),
    "classes on the batch axis": (
        lambda: dubio.Categorical(class_axis=0),
        ValueError,
        r"class_axis must not be 0, which is the batch axis",
    ),
    "quantile outside (0, 1)": (
        lambda: predict(likelihood=dubio.Gaussian(std=0.1), num_samples=3).quantile(1.0),  # type: ignore[attr-defined]
        ValueError,
        r"quantile level must be in \(0, 1\), got 1\.0",
    ),
    "interval outside (0, 1)": (
        lambda: predict(likelihood=dubio.Gaussian(std=0.1), num_samples=3).interval(90),  # type: ignore[attr-defined]
        ValueError,
        r"level must be in \(0, 1\), got 90",
    ),
}

CONVERSIONS: dict[str, Refusal] = {
    "no module": (
        lambda: dubio.Bayes().convert("net"),  # type: ignore[arg-type]
        TypeError,
        r"net must be a torch\.nn\.Module, got str",
    ),
    "a class in place of a network": (
        lambda: dubio.Bayes().convert(nn.Linear),  # type: ignore[arg-type]
        TypeError,
        r"net must be a torch\.nn\.Module, got type",
    ),
    "likelihood of a wrong type": (
        lambda: dubio.Bayes().convert(mlp(5, 3), "categorical"),  # type: ignore[arg-type]
        TypeError,
        r"likelihood must be a Categorical, a Gaussian or a Bernoulli, got 'categorical'",
    ),
    "no parameters": (
        lambda: dubio.Bayes().convert(nn.Sequential(nn.ReLU())),
        ValueError,
        r"net must have parameters to make random, got a Sequential without any",
    ),
    "lazy parameters": (
        lambda: dubio.Bayes().convert(nn.Sequential(nn.LazyLinear(3))),
        ValueError,
        r"net must be initialised, got lazy parameters \['0\.weight', '0\.bias'\]; run it once",
    ),
    "converted already": (
        lambda: dubio.Bayes().convert(model()),
        ValueError,
        r"net is stochastic already: 0 is a random Linear; dubio\.to_mean\(net\) makes it plain again",
    ),
    "a bare layer converted already": (
        lambda: dubio.Bayes().convert(dubio.Bayes().convert(nn.Linear(2, 2))),
        ValueError,
        r"net is stochastic already: it is a random Linear",
    ),
    "another kind of layer converted already": (
        lambda: dubio.Bayes().convert(dubio.Bayes().convert(nn.ModuleDict({"rnn": nn.GRU(2, 2)}))),
        ValueError,
        r"net is stochastic already: rnn is a random GRU",
    ),
    "layers with complex parameters": (
        lambda: dubio.Bayes().convert(nn.ModuleDict({"first": Filter(), "second": Filter(), "head": nn.Linear(4, 3)})),
        TypeError,
        r"cannot convert: first: Filter has response of type torch\.complex64, over which no Gaussian can be put; "
        r"second: Filter .*\. Choose other layers with where=\.\.\., or pass strict=False to leave these "
        r"deterministic",
    ),
    "a network that holds complex parameters itself": (
        lambda: dubio.Bayes().convert(Filter()),
        TypeError,
        r"cannot convert: the network itself: Filter has response of type torch\.complex64",
    ),
    "a scripted layer": (
        lambda: dubio.Bayes().convert(nn.Sequential(scripted(), nn.Linear(4, 3))),
        TypeError,
        r"cannot convert: 0: RecursiveScriptModule keeps its parameters out of Python's reach\. Choose other layers",
    ),
    "nothing chosen": (
        lambda: dubio.Bayes(where="hed").convert(mlp(5, 3)),
        ValueError,
        r"nothing to convert: where='hed' chooses no layer of this network that has parameters$",
    ),
    "a name misspelt": (
        lambda: dubio.Bayes(where="hed").convert(nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, 3)})),
        ValueError,
        r"where='hed' chooses no layer .*; did you mean 'head'\?",
    ),
    "a container chosen": (
        lambda: dubio.Bayes(where="body").convert(nn.ModuleDict({"body": mlp(5, 3)})),
        ValueError,
        r"where='body' chooses no layer .*; did you mean body\.\*\?",
    ),
    "norms only": (
        lambda: dubio.Bayes().convert(nn.Sequential(nn.LayerNorm(3))),
        ValueError,
        r"nothing to convert: 0 normalise; norms=True makes such layers random",
    ),
    "only layers without parameters chosen": (
        lambda: dubio.Bayes(where=nn.ReLU).convert(mlp(5, 4, 3)),
        ValueError,
        r"nothing to convert: where=.*ReLU.* chooses no layer of this network that has parameters",
    ),
    "nothing convertible": (
        lambda: dubio.Bayes().convert(nn.ModuleDict({"filter": Filter()}), strict=False),
        ValueError,
        r"nothing to convert: no Gaussian can be put over the parameters of filter",
    ),
    "weights shared with a layer that stays deterministic": (
        lambda: dubio.Bayes(where="head").convert(shared_with_an_embedding()),
        ValueError,
        r"cannot convert: embed\.weight shares its weights with a layer that becomes random, but stays deterministic "
        r"itself; choose both or neither with where=\.\.\.",
    ),
    "the other of two tied layers": (
        lambda: dubio.Bayes(where="encode").convert(Tied()),
        ValueError,
        r"cannot convert: decode\.weight shares its weights",
    ),
    "weights that a hook computes, which torch cannot copy": (
        lambda: dubio.Bayes().convert(normalised_by_a_hook(torch.nn.utils.weight_norm, run=False)),
        ValueError,
        r"the network must be copyable, but copy\.deepcopy fails on it: 0\.weight keeps a tensor that forward "
        r"computed; remove it, or where it comes from torch\.nn\.utils\.weight_norm or spectral_norm, use those of "
        r"torch\.nn\.utils\.parametrizations",
    ),
    "weights that a hook has computed, which torch cannot copy": (
        lambda: dubio.Bayes().convert(normalised_by_a_hook(spectral_norm, run=True)),
        ValueError,
        r"the network must be copyable, but copy\.deepcopy fails on it",
    ),
    "a converted network whose hook has computed weights": (
        lambda: dubio.to_mean(run_once(dubio.Bayes(where="1").convert(normalised_by_a_hook(spectral_norm, run=False)))),
        ValueError,
        r"the network must be copyable, .* use those of torch\.nn\.utils\.parametrizations",
    ),
    "a Bayesian layer made by hand": (
        lambda: stochastic.Linear(3, 4),  # type: ignore[call-arg]
        TypeError,
        r"a Bayesian Linear is made from a plain one: dubio\.Bayes\(\)\.convert\(torch\.nn\.Linear\(\.\.\.\)\)",
    ),
}

SHAPES: dict[str, Refusal] = {
    "linear, features": (
        lambda: model()(torch.randn(6, 4)),
        ValueError,
        r"input of a Linear must have 5 features on its last axis, got shape \(6, 4\)",
    ),
    "linear, scalar": (
        lambda: dubio.Bayes().convert(nn.Linear(1, 1))(torch.tensor(1.0)),
        ValueError,
        r"input of a Linear must have 1 features on its last axis, got shape \(\)",
    ),
    "conv1d, channels": (
        lambda: conv(1)(torch.randn(6, 2, 8)),
        ValueError,
        r"input of a Conv1d must be \(batch, 3 channels, width\), got shape \(6, 2, 8\)",
    ),
    "conv2d, axes": (
        lambda: conv(2)(torch.randn(6, 3, 8, 8, 8)),
        ValueError,
        r"input of a Conv2d must be \(batch, 3 channels, height, width\), got shape \(6, 3, 8, 8, 8\)",
    ),
    "conv3d, channels": (
        lambda: conv(3)(torch.randn(6, 4, 8, 8, 8)),
        ValueError,
        r"input of a Conv3d must be \(batch, 3 channels, depth, height, width\), got shape \(6, 4, 8, 8, 8\)",
    ),
    "transposed 1d, channels": (
        lambda: transposed(1)(torch.randn(6, 2, 8)),
        ValueError,
        r"input of a ConvTranspose1d must be \(batch, 3 channels, width\), got shape \(6, 2, 8\)",
    ),
    "transposed 2d, axes": (
        lambda: transposed(2)(torch.randn(6, 3, 8, 8, 8)),
        ValueError,
        r"input of a ConvTranspose2d must be \(batch, 3 channels, height, width\), got shape \(6, 3, 8, 8, 8\)",
    ),
    "transposed 3d, channels": (
        lambda: transposed(3)(torch.randn(6, 4, 8, 8, 8)),
        ValueError,
        r"input of a ConvTranspose3d must be \(batch, 3 channels, depth, height, width\), got shape \(6, 4, 8, 8, 8\)",
    ),
    "through predict": (
        lambda: predict(torch.randn(6, 4)),
        ValueError,
        r"input of a Linear must have 5 features on its last axis, got shape \(6, 4\)",
    ),
    "through predict, channels last": (
        lambda: predict(torch.randn(6, 8, 8, 3), conv(2)),
        ValueError,
        r"input of a Conv2d must be \(batch, 3 channels, height, width\), got shape \(6, 8, 8, 3\)",
    ),
    "through sample, in the middle of a network": (
        lambda: dubio.sample(
            dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 8), nn.Linear(7, 4))), torch.ones(6, 5), 3
        ),
        ValueError,
        r"input of a Linear must have 7 features on its last axis, got shape \(6, 8\)",
    ),
}

PREDICTIONS: dict[str, Refusal] = {
    "no draws": (lambda: predict(num_samples=0), ValueError, r"num_samples must be at least 1, got 0"),
    "fewer than no draws": (lambda: predict(num_samples=-2), ValueError, r"num_samples must be at least 1, got -2"),
    "half a draw": (lambda: predict(num_samples=2.5), (TypeError, ValueError), r"num_samples must be .*, got 2\.5"),  # type: ignore[dict-item]
    "empty chunk": (
        lambda: predict(num_samples=4, chunk=0),
        ValueError,
        r"chunk must be a whole number of at least 1, got 0",
    ),
    "empty chunk, mapped": (
        lambda: predict(num_samples=4, chunk=0, executor="vmap"),
        ValueError,
        r"chunk must be a whole number of at least 1, got 0",
    ),
    "empty chunk for one draw": (
        lambda: predict(num_samples=1, chunk=0),
        ValueError,
        r"chunk must be a whole number of at least 1, got 0",
    ),
    "empty batch": (lambda: predict(batch_size=0), ValueError, r"batch_size must be at least 1, got 0"),
    "unknown executor": (
        lambda: predict(executor="fold"),
        ValueError,
        r"executor must be 'auto', 'vmap' or 'loop', got 'fold'",
    ),
    "unknown executor with noise off": (
        lambda: _with_noise_off(lambda: predict(executor="fold")),
        ValueError,
        r"executor must be 'auto', 'vmap' or 'loop', got 'fold'",
    ),
    "unknown precision": (
        lambda: predict(precision="fp16"),
        ValueError,
        r"precision must be 'fp32', 'tf32' or 'bf16', got 'fp16'",
    ),
    "unknown estimator": (
        lambda: predict(estimator="lrt"),
        ValueError,
        r"estimator must be 'weight', 'local', 'flipout' or None, got 'lrt'",
    ),
    "seed as a float": (lambda: predict(seed=1.5), TypeError, r"seed must be an int, got 1\.5"),
    "seed as a truth": (lambda: predict(seed=True), TypeError, r"seed must be an int, got True"),
    "seed as text": (lambda: predict(seed="3"), TypeError, r"seed must be an int, got '3'"),
    "seed too large": (lambda: predict(seed=2**63), ValueError, r"seed must fit into 64 bits, got 9223372036854775808"),
    "likelihood of a wrong type": (
        lambda: predict(likelihood="categorical"),
        TypeError,
        r"likelihood must be a Categorical, a Gaussian or a Bernoulli, got 'categorical'",
    ),
    "batches as lists": (
        lambda: predict([[torch.randn(6, 5)]]),
        TypeError,
        r"inputs must be a tensor, a tuple of positional arguments or a dict of keyword arguments, got list",
    ),
    "inputs without a tensor": (lambda: predict((3.0,)), ValueError, r"inputs must hold at least one tensor with rows"),
    "inputs without rows": (
        lambda: predict(torch.randn(0, 5)),
        ValueError,
        r"inputs must have at least one row, got none",
    ),
    "inputs with unequal rows": (
        lambda: predict((torch.randn(6, 5), torch.randn(3, 3))),
        ValueError,
        r"inputs must have the same number of rows on axis 0, got \{0: 6, 1: 3\}; name those without rows in shared=",
    ),
    "named inputs with unequal rows": (
        lambda: predict({"x": torch.randn(6, 5), "mask": torch.randn(3, 3)}),
        ValueError,
        r"same number of rows on axis 0, got \{'x': 6, 'mask': 3\}",
    ),
    "shared inputs that are not there": (
        lambda: predict({"x": torch.randn(6, 5)}, shared=["mask"]),
        ValueError,
        r"shared must name inputs, got 'mask' beside inputs \['x'\]",
    ),
    "NaN in the inputs": (
        lambda: predict(with_nan(1, 4)),
        ValueError,
        r"inputs must not hold NaN, got NaN in input 0, rows \[1, 4\]",
    ),
    "NaN in a named input": (
        lambda: predict({"input": with_nan(3)}),
        ValueError,
        r"inputs must not hold NaN, got NaN in input 'input', rows \[3\]",
    ),
    "NaN in the outputs": (
        lambda: predict(net=Returning(torch.tensor([[0.0, 1.0]] * 4 + [[NAN, 0.0]] + [[0.0, 1.0]]))),
        ValueError,
        r"the network gave NaN or infinity for inputs without NaN, rows \[4\]",
    ),
    "NaN in outputs without a feature axis": (
        lambda: predict(
            net=Returning(torch.tensor([0.0, 1.0, NAN, 0.0, 0.0, 0.0])), likelihood=dubio.Gaussian(std=0.1)
        ),
        ValueError,
        r"the network gave NaN or infinity for inputs without NaN, rows \[2\]",
    ),
    "outputs that are no tensor": (
        lambda: predict(net=Returning((torch.randn(6, 4), torch.randn(6, 4)))),
        TypeError,
        r"the network must return a tensor, or an object with \.logits, to predict with[;,] got tuple",
    ),
    "one output for all rows": (
        lambda: predict(net=Returning(torch.tensor(1.0))),
        ValueError,
        r"a Categorical output must be \(batch, \.\.\., class\) with .* got shape \(\) for one draw",
    ),
    "outputs that are labels": (
        lambda: predict(net=Returning(torch.arange(6))),
        TypeError,
        r"the network must return floating point outputs, got torch\.int64",
    ),
    "one output for classes": (
        lambda: predict(net=model(5, 1)),
        ValueError,
        r"a Categorical output must be \(batch, \.\.\., class\) with .* classes on axis -1, got shape \(6, 1\) for one "
        r"draw; .*likelihood=dubio\.Bernoulli\(\).*; for regression with likelihood=dubio\.Gaussian",
    ),
    "a class axis that is not there": (
        lambda: predict(likelihood=dubio.Categorical(class_axis=3)),
        ValueError,
        r"classes on axis 3, got shape \(6, 4\) for one draw",
    ),
    "noise as output with an odd number of outputs": (
        lambda: predict(net=model(5, 3), likelihood=dubio.Gaussian(std="output")),
        ValueError,
        r"a Gaussian\(std='output'\) needs an even number of outputs on the last axis .*, got shape \(6, 3\)",
    ),
}

SAMPLES: dict[str, Refusal] = {
    "no draws": (lambda: sample(num_samples=0), ValueError, r"num_samples must be at least 1, got 0"),
    "empty chunk": (
        lambda: sample(num_samples=4, chunk=0),
        ValueError,
        r"chunk must be a whole number of at least 1, got 0",
    ),
    "unknown executor": (lambda: sample(executor="fold"), ValueError, r"executor must be .* got 'fold'"),
    "seed as a float": (lambda: sample(seed=1.5), TypeError, r"seed must be an int, got 1\.5"),
    "seed as a vector": (
        lambda: sample(seed=torch.tensor([1])),
        ValueError,
        r"seed must be an int or a 0-dimensional int64 tensor on the CPU, got shape \(1,\), torch\.int64 on cpu",
    ),
    "frozen without an int": (lambda: dubio.frozen(seed="a"), TypeError, r"seed must be an int, got 'a'"),  # type: ignore[arg-type]
    "divergence without draws": (
        lambda: dubio.divergence(model(), num_samples=0),
        ValueError,
        r"num_samples must be at least 1, got 0",
    ),
    "inputs as a list": (
        lambda: dubio.sample(model(), [torch.randn(6, 5)], 2),  # type: ignore[arg-type]
        TypeError,
        r"inputs must be a tensor, a tuple .*, got list",
    ),
}


def _with_noise_off(work: Callable[[], Any]) -> Any:
    with dubio.noise_off():
        return work()


TABLES = {
    "method": METHODS,
    "value": VALUES,
    "conversion": CONVERSIONS,
    "shape": SHAPES,
    "prediction": PREDICTIONS,
    "sample": SAMPLES,
}


@pytest.mark.feature("errors name the argument, the rule and the value received")
@pytest.mark.parametrize(
    ("work", "error", "wording"),
    [pytest.param(*refusal, id=f"{table}: {name}") for table in TABLES for name, refusal in TABLES[table].items()],
)
def test_a_refusal_names_argument_rule_and_value(work: Callable[[], Any], error: type[Exception], wording: str) -> None:
    settings = STATE.own.settings
    with pytest.raises(error, match=wording):
        work()
    assert STATE.own.settings is settings  # and leaves nothing behind
    assert STATE.own.current is None
