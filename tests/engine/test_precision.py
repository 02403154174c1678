"""Precision: which settings each name puts in force, for how long, and what stays in float32."""

import json
import subprocess
import sys

import jaxtyping
import pytest
import torch
from torch import nn

import dubio
from dubio._engine.precision import Precision, check_precision, computing_in, rounding_products

CPU = torch.device("cpu")


def in_force() -> tuple[bool, bool, bool]:
    """Whether products and convolutions of a GPU are rounded, and whether autocast is on."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return (*flags, torch.is_autocast_enabled("cpu"))


@pytest.mark.parametrize(
    ("precision", "inside"),
    [("fp32", (False, False, False)), ("tf32", (True, True, False)), ("bf16", (True, True, True))],
)
def test_a_precision_is_in_force_inside_and_gone_outside(
    precision: Precision, inside: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = in_force()
    with computing_in(precision, CPU):
        assert in_force() == inside
    assert in_force() == before
    with rounding_products(precision):
        assert in_force() == (*inside[:2], False)
    with pytest.raises(RuntimeError), computing_in(precision, CPU):
        raise RuntimeError
    assert in_force() == before


def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="precision must be 'fp32', 'tf32' or 'bf16', got 'fp16'"):
        check_precision("fp16")


STATES = {
    "as torch comes": "",
    "high": "torch.set_float32_matmul_precision('high')",
    "medium": "torch.set_float32_matmul_precision('medium')",
    "highest": "torch.set_float32_matmul_precision('highest')",
    "products allowed": "backends.cuda.matmul.allow_tf32 = True",
    "convolutions not allowed": "backends.cudnn.allow_tf32 = False",
    "convolutions allowed again": "backends.cudnn.allow_tf32 = False; backends.cudnn.allow_tf32 = True",
    "products rounded": "backends.cuda.matmul.fp32_precision = 'tf32'",
    "products exact": "backends.cuda.matmul.fp32_precision = 'ieee'",
    "convolutions exact": "backends.cudnn.conv.fp32_precision = 'ieee'",
    "convolutions as all": "backends.cudnn.conv.fp32_precision = 'none'",
    "convolutions rounded": "backends.cudnn.conv.fp32_precision = 'tf32'",
    "recurrent layers exact": "backends.cudnn.rnn.fp32_precision = 'ieee'",
    "all of a GPU exact": "backends.cudnn.fp32_precision = 'ieee'",
    "all of a GPU rounded": "backends.cudnn.fp32_precision = 'tf32'",
    "all rounded": "backends.fp32_precision = 'tf32'",
    "all exact": "backends.fp32_precision = 'ieee'",
    "all in bf16": "backends.fp32_precision = 'bf16'",
    "all exact, then a GPU rounded": "backends.fp32_precision = 'ieee'; backends.cudnn.fp32_precision = 'tf32'",
    "products of a CPU in bf16": "backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "first medium, then new words": "torch.set_float32_matmul_precision('medium'); backends.fp32_precision = 'ieee'",
    "not allowed, then rounded": "backends.cudnn.allow_tf32 = False; backends.cudnn.conv.fp32_precision = 'tf32'",
    "not allowed, then exact": "backends.cudnn.allow_tf32 = False; backends.cudnn.conv.fp32_precision = 'ieee'",
}
"""Settings of torch that a user may have made before, by its older and its newer interface."""

LOOK = """
import json, os, sys, torch, torch._dynamo, dubio  # what is imported here, no case has to
from dubio._engine import rounding_products
from torch import backends
PLACES = {
    "all": backends, "gpu": backends.cudnn, "products": backends.cuda.matmul, "convolutions": backends.cudnn.conv,
    "recurrent": backends.cudnn.rnn, "cpu": backends.mkldnn, "cpu products": backends.mkldnn.matmul,
}
OLDER = {
    "word": torch.get_float32_matmul_precision,
    "products allowed": lambda: backends.cuda.matmul.allow_tf32,
    "convolutions allowed": lambda: backends.cudnn.allow_tf32,
}

def value_of(question):
    try:
        return question()
    except RuntimeError:
        return "contradiction"

def seen():
    settings = {name: place.fp32_precision for name, place in PLACES.items()}
    return settings | {name: value_of(question) for name, question in OLDER.items()}

def seen_in_all_weathers():
    "Now, and whatever is said of all later on."
    states, of_all = [seen()], backends.fp32_precision
    backends.fp32_precision = "none"
    of_gpu = backends.cudnn.fp32_precision
    for place, former in ((backends, "none"), (backends.cudnn, of_gpu)):
        for word in ("none", "ieee", "tf32"):
            place.fp32_precision = word
            states.append(seen())
        place.fp32_precision = former
    backends.fp32_precision = of_all
    return states

def trained(precision):
    model = dubio.Bayes().convert(torch.nn.Linear(3, 2))
    data = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    dubio.fit(model, data, epochs=1, precision=precision, fast=False, progress=False)

def case(statement):
    exec(statement)
    before = seen_in_all_weathers()
    with rounding_products("tf32"):
        inside = seen()
    trained("tf32")
    trained("bf16")
    return {"before": before, "inside": inside, "after": seen_in_all_weathers()}

for name, statement in json.loads(sys.argv[1]).items():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(case(statement)).encode())
        os._exit(0)
    os.close(writing)
    print(json.dumps([name, os.fdopen(reading).read()]))
    os.wait()
"""
"""Each state in a process of its own, since some can never be left again."""


@pytest.fixture(scope="module")
def looks() -> dict[str, str]:
    command = [sys.executable, "-c", LOOK, json.dumps(STATES)]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(line) for line in completed.stdout.splitlines())


@pytest.mark.parametrize("state", STATES)
def test_the_settings_of_torch_are_restored_exactly(state: str, looks: dict[str, str]) -> None:
    assert looks[state], "training failed"
    look = json.loads(looks[state])
    assert look["after"] == look["before"]
    inside = look["inside"]
    assert [inside[kind] for kind in ("products", "convolutions", "recurrent")] == ["tf32"] * 3
    assert inside["products allowed"] is inside["convolutions allowed"] is True
    if look["before"][0]["word"] != "contradiction":
        assert inside["word"] != "contradiction"


def test_variances_in_bf16_neither_vanish_nor_overflow() -> None:
    """Squares of 1e-5 and of 1e5, which are nothing and infinite in float16."""
    torch.manual_seed(0)
    layer = dubio.Bayes(init_std=1e-5, estimator="local").convert(nn.Linear(64, 32))
    nn.init.zeros_(layer.weight_posterior.mean)
    nn.init.zeros_(layer.bias_posterior.mean)
    for size in (1.0, 1e5):
        inputs = size * (1.0 + torch.rand(16, 64))
        with torch.no_grad(), computing_in("bf16", CPU):
            spread = dubio.sample(layer, inputs, 4000, seed=1).float().std(dim=0)
        expected = 1e-5 * inputs.square().sum(dim=1, keepdim=True).add(1.0).sqrt()
        torch.testing.assert_close(spread / expected, torch.ones(16, 32), rtol=0.06, atol=0.0)  # five standard errors


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_the_noise_of_a_layer_is_as_wide_in_bf16(estimator: dubio._engine.Estimator) -> None:
    torch.manual_seed(0)
    layer = dubio.Bayes(init_std=0.3, estimator=estimator).convert(nn.Linear(64, 32))
    inputs = torch.rand(16, 64)
    stds = {}
    for precision in ("fp32", "bf16"):
        with torch.no_grad(), computing_in(precision, CPU):
            stds[precision] = dubio.sample(layer, inputs, 2000, seed=1).float().std(dim=0)
    torch.testing.assert_close(stds["bf16"], stds["fp32"], rtol=0.01, atol=0.01)
