"""``describe``: what is random, what is not and why, and how the draws run."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import dubio
from networks import Branching, Filter, Recurrent, Residual, Tied, mlp


@pytest.mark.feature("describe says what is random, what is not and why, and how the draws run")
def test_describe_names_every_layer_with_its_reason() -> None:
    model = dubio.Bayes(where=("stem", "head"), estimator="flipout").convert(Residual())
    description = dubio.describe(model)
    found = {layer.name: (layer.kind, layer.random, layer.num_random, layer.num_fixed) for layer in description.layers}
    assert found == {
        "stem": ("Conv2d", ("weight", "bias"), 3 * 6 * 9 + 6, 0),
        "norm": ("BatchNorm2d", (), 0, 12),
        "branch": ("Conv2d", (), 0, 6 * 6 * 9 + 6),
        "head": ("Linear", ("weight", "bias"), 6 * 4 + 4, 0),
    }
    assert description.num_random == 3 * 6 * 9 + 6 + 6 * 4 + 4
    assert description.num_fixed == 12 + 6 * 6 * 9 + 6
    remarks = {layer.name: layer.remark for layer in description.layers}
    assert remarks["stem"] == "prior Normal(mean=0.0, std=1.0), estimator flipout"
    assert remarks["norm"] == "fixed: normalisation layers stay deterministic"
    assert remarks["branch"] == "fixed: not chosen by where"


def test_describe_prints_a_table() -> None:
    model = dubio.Bayes(bayesian_bias=False).convert(mlp(784, 1200, 10))
    lines = str(dubio.describe(model)).splitlines()
    assert lines[0] == f"method      {dubio.spec(model).method!r}"
    assert lines[1] == f"likelihood  {dubio.Categorical()!r}"
    header, first, second = lines[3:6]
    assert header.split() == ["layer", "type", "random", "weights", "remark"]
    assert first.split()[:4] == ["0", "Linear", "weight", "942,000"]
    assert second.split()[:4] == ["2", "Linear", "weight", "12,010"]
    for line in (first, second):  # columns stand under their headings
        assert line.index("Linear") == header.index("type")
        assert line.index("prior") == header.index("remark")
    assert "952,800 weights are random, 1,210 are not" in lines


def test_counts_agree_with_the_parameters() -> None:
    net = Residual()
    description = dubio.describe(dubio.Bayes().convert(net))
    assert description.num_random + description.num_fixed == sum(p.numel() for p in net.parameters())


def test_tied_weights_are_counted_once_and_said_to_be_tied() -> None:
    description = dubio.describe(dubio.Bayes().convert(Tied()))
    assert description.num_random == 25
    assert [layer.num_random for layer in description.layers] == [25, 0]
    assert not description.layers[0].remark.endswith("tied to a layer above")
    assert description.layers[1].remark.endswith("weights tied to a layer above")


def test_a_bare_layer_is_the_root() -> None:
    assert "(root)  Linear  weight, bias  6" in str(dubio.describe(dubio.Bayes().convert(nn.Linear(2, 2))))


def test_a_plain_network_is_described_as_not_converted() -> None:
    description = dubio.describe(mlp(5, 4, 3))
    assert description.method == "none: not converted"
    assert description.num_random == 0
    assert {layer.remark for layer in description.layers} == {"not converted"}


def test_the_executor_line_appears_once_draws_were_asked_for() -> None:
    model = dubio.Bayes().convert(mlp(5, 8, 4))
    assert dubio.describe(model).executors == ("executor: chosen at the first run with several draws",)
    dubio.predict(model, torch.randn(3, 5), 4)
    (line,) = dubio.describe(model).executors
    assert line.startswith("executor in eval mode, without gradients, estimator weight: vmap; a further draw repeats ")
    dubio.sample(model.train(), torch.randn(3, 5), 4)
    lines = dubio.describe(model).executors
    assert len(lines) == 2
    assert lines[1].startswith("executor in training mode, with gradients: vmap; ")


def test_a_network_that_cannot_be_mapped_warns_once_and_names_the_module() -> None:
    model = dubio.Bayes(where=("embed", "head"), init_std=0.3).convert(Branching())
    inputs = torch.randn(3, 5)
    with pytest.warns(
        dubio.ExecutorWarning, match=r"one after another, since gate \(Gate\) cannot be mapped"
    ) as caught:
        first = dubio.predict(model, inputs, 4, seed=0)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = dubio.predict(model, inputs, 4, seed=0)
    assert torch.equal(first.samples, again.samples)
    assert first.samples.std(dim=0).min() > 1e-4
    (line,) = dubio.describe(model).executors
    assert line.startswith(
        "executor in eval mode, without gradients, estimator weight: loop; gate (Gate) cannot be mapped: "
    )
    layers = {layer.name: layer.remark for layer in dubio.describe(model).layers}
    assert layers["gate.left"] == layers["gate.right"] == "fixed: not chosen by where"


def test_a_recurrent_network_is_mapped_and_its_weights_are_described() -> None:
    memory = nn.GRU(6, 6, batch_first=True)
    model = dubio.Bayes(init_std=0.3).convert(Recurrent(memory))
    dubio.predict(model, torch.randn(3, 7, 5), 4, seed=0)  # no warning: warnings are errors here
    description = dubio.describe(model)
    assert [line.split("; ")[0] for line in description.executors] == [
        "executor in eval mode, without gradients, estimator weight: vmap"
    ]
    layer = next(layer for layer in description.layers if layer.name == "memory")
    assert (layer.kind, layer.num_fixed) == ("GRU", 0)
    assert layer.random == tuple(name for name, _ in memory.named_parameters())
    assert layer.num_random == sum(parameter.numel() for parameter in memory.parameters())
    assert layer.remark == "prior Normal(mean=0.0, std=1.0), estimator weight (GRU has no local form)"


def test_layers_that_share_a_draw_say_why_their_estimator_is_another() -> None:
    tied = [layer.remark for layer in dubio.describe(dubio.Bayes().convert(Tied())).layers]
    prior = "prior Normal(mean=0.0, std=1.0)"
    assert tied == [
        f"{prior}, estimator weight (tied weights share a draw)",
        f"{prior}, estimator weight (tied weights share a draw); weights tied to a layer above",
    ]
    shared = nn.Linear(5, 5)
    model = dubio.Bayes(estimator="flipout").convert(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(5, 2)))
    assert [layer.remark for layer in dubio.describe(model).layers] == [
        f"{prior}, estimator weight (a shared layer has one draw)",
        f"{prior}, estimator flipout",
    ]
    by_weight = dubio.describe(dubio.Bayes(estimator="weight").convert(Tied())).layers
    assert by_weight[0].remark == f"{prior}, estimator weight"  # what was asked for


def test_every_parameter_that_is_not_random_has_its_reason() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset_bias = nn.Parameter(torch.zeros(5))
            self.filter, self.norm, self.head = Filter(), nn.LayerNorm(5), nn.Linear(5, 3)

    model = dubio.Bayes(bayesian_bias=False).convert(Net(), strict=False)
    found = {layer.name: layer for layer in dubio.describe(model).layers}
    assert found[""].remark == "fixed: biases stay deterministic"
    assert "has response of type torch.complex64, over which no Gaussian can be put" in found["filter"].remark
    assert found["norm"].remark == "fixed: normalisation layers stay deterministic"
    assert (found["head"].random, found["head"].num_random, found["head"].num_fixed) == (("weight",), 15, 3)
    random_norm = dubio.describe(dubio.Bayes(norms=True).convert(Net(), strict=False)).layers
    assert next(layer for layer in random_norm if layer.name == "norm").random == ("weight", "bias")


WARNS_TWICE = """
import warnings
import torch
from torch import nn
import dubio

def branching():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(5, 6)
        def forward(self, x):
            h = self.embed(x)
            return h if h.sum() > 0 else -h
    return dubio.Bayes(where="embed").convert(Branching())

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    dubio.sample(branching(), torch.randn(2, 3, 5), 2)
    dubio.predict(branching(), torch.randn(2, 3, 5), 2)
print([warning.filename for warning in caught])
"""


@pytest.mark.slow
def test_the_warning_points_at_the_users_own_line() -> None:
    # In a process of its own: the shape checks of this one stand between the user and dubio.
    finished = subprocess.run([sys.executable, "-c", WARNS_TWICE], check=True, capture_output=True, text=True)
    assert finished.stdout.strip() == "['<string>', '<string>']"
