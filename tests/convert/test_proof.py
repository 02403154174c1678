"""The proof of a conversion on an example: what it raises, what it warns of, and that it leaves no trace."""

import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubio
from dubio._engine.passes import current_pass
from dubio.convert.randomise import ConversionWarning
from dubio.convert.spec import find_functional_dropout, prove
from networks import Residual, TwoInputs, mlp

EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Counting(nn.Module):
    """Computes with the number of its parameters: another one, once they have posteriors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * len(list(self.parameters()))


class Asking(nn.Module):
    """Computes with its own name in mind, in its second output only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return h, h + (0.0 if type(self.body) is nn.Linear else 1e-3)


class Keeping(nn.Module):
    """Reads its first parameter from a list that it made when it was built."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))
        self.kept = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kept[0] + self.bias


class Sparing(nn.Module):
    """Has a layer and a parameter that its forward never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.spare = nn.ModuleDict({"head": nn.Linear(4, 2)})
        self.offset = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Dropping(nn.Module):
    """Calls a dropout of torch's as a function."""

    def __init__(self, function: Callable[..., Tensor] = F.dropout) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).relu()
        h = self.function(h, 0.5, self.training)  # here
        return self.head(h)


class DroppingTwice(nn.Module):
    """Calls dropout in a loop, and again through a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(layer(x), training=self.training)  # in a loop
        return fall_out(x, self.training)


def fall_out(x: Tensor, training: bool) -> Tensor:
    return F.alpha_dropout(x, 0.1, training)  # in a function


class AlwaysDropping(nn.Module):
    """Drops out in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(x), 0.5))  # always


def line_of(source: Any, mark: str) -> int:
    """Number of the line in this file that bears a mark."""
    lines, first = inspect.getsourcelines(source)
    (found,) = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(f"# {mark}")]
    return found


def convert(net: nn.Module, example: Any = EXAMPLE, **options: Any) -> nn.Module:
    return dubio.Bayes(**options).convert(net, example=example)


# -------------------------------------------------------------------------------------------------- not exact


@pytest.mark.feature("convert(net, example=...) proves on the example that noise off equals the original")
def test_a_conversion_that_is_not_exact_raises() -> None:
    with pytest.raises(RuntimeError, match=r"the conversion is not exact: with noise off, output 0 is \d.* away"):
        convert(Counting())


def test_the_output_that_differs_is_named_with_its_distance() -> None:
    with pytest.raises(RuntimeError, match=r"output 1 is 0\.001 away from the original network's"):
        convert(Asking())


def test_without_an_example_nothing_is_run() -> None:
    net = Counting()
    net.forward = None  # type: ignore[method-assign, assignment]
    dubio.Bayes().convert(net)


def test_a_wrong_weight_is_found() -> None:
    net = mlp(4, 5, 3)
    model = dubio.Bayes().convert(net)
    prove(model, net, EXAMPLE)
    with torch.no_grad():
        model[2].weight_posterior.mean[0, 0] += 1e-3
    with pytest.raises(RuntimeError, match="the conversion is not exact"):
        prove(model, net, EXAMPLE)


def test_small_outputs_are_held_to_their_own_scale() -> None:
    net = mlp(4, 5, 3).double()
    for parameter in net[2].parameters():
        parameter.data *= 1e-9
    model = dubio.Bayes().convert(net)
    with torch.no_grad():
        model[2].bias_posterior.mean *= 1.001
    with pytest.raises(RuntimeError, match="the conversion is not exact"):
        prove(model, net, EXAMPLE.double())


@pytest.mark.parametrize(
    ("net", "example"),
    [
        (mlp(4, 5, 3), EXAMPLE),
        (mlp(4, 5, 3).double(), EXAMPLE.double()),
        (mlp(4, 5, 3).to(torch.bfloat16), EXAMPLE.to(torch.bfloat16)),
        (TwoInputs(), (torch.ones(2, 5), torch.ones(2, 3))),
        (TwoInputs(), {"right": torch.ones(2, 3), "left": torch.ones(2, 5)}),
        (Residual(), torch.ones(2, 3, 8, 8)),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),  # padded away by torch
            {"src": torch.ones(2, 3, 8), "src_key_padding_mask": torch.tensor([[False] * 3, [False, False, True]])},
        ),
        (nn.LSTM(4, 3, 2, batch_first=True), torch.ones(2, 5, 4)),
    ],
    ids=["float32", "float64", "bfloat16", "tuple", "dict", "batch norm", "padded encoder", "lstm"],
)
def test_exact_conversions_pass_without_a_word(net: nn.Module, example: Any) -> None:
    convert(net.train(), example)


def test_outputs_that_are_no_numbers_are_compared_too() -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> dict[str, Any]:
            h = self.body(x)
            return {"scores": h, "best": h.argmax(dim=1), "positive": h > 0, "count": len(h)}

    convert(Choosing())


# --------------------------------------------------------------------------------------------------- unread


@pytest.mark.feature("The proof warns of random parameters that the network does not read, by name")
def test_unread_parameters_are_warned_of_by_name() -> None:
    with pytest.warns(ConversionWarning) as caught:
        model = convert(Sparing())
    (message,) = [str(warning.message) for warning in caught]
    rule, _, names = message.partition(": ")
    assert rule == "random, but not read by the network on this example"
    assert sorted(names.split(", ")) == ["offset", "spare.head.bias", "spare.head.weight"]
    assert model(EXAMPLE).shape == (3, 4)


def test_parameters_that_are_read_past_their_attributes_are_warned_of() -> None:
    with pytest.warns(ConversionWarning, match=r"not read by the network on this example: weight$"):
        convert(Keeping())


def test_parameters_that_are_not_random_may_stay_unread() -> None:
    convert(Sparing(), where="body")


def test_the_local_estimator_reads_parameters_too() -> None:
    for estimator in ("weight", "local", "flipout"):
        convert(mlp(4, 5, 3), estimator=estimator)


# ----------------------------------------------------------------------------------------- functional dropout


@pytest.mark.feature("The proof names file and line of dropout that is called as a function")
def test_functional_dropout_is_warned_of_with_file_and_line() -> None:
    with pytest.warns(ConversionWarning) as caught:
        convert(Dropping())
    (warning,) = caught
    assert str(warning.message).startswith(
        f"dropout is called as a function in {__file__}, line {line_of(Dropping.forward, 'here')}: it stays as it is"
    )


@pytest.mark.parametrize(
    "function", [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout]
)
def test_every_functional_dropout_is_found(function: Callable[..., Tensor]) -> None:
    class Positions(Dropping):
        def forward(self, x: Tensor) -> Tensor:
            shape = {F.dropout1d: (3, 2, 4), F.dropout2d: (3, 2, 2, 2), F.dropout3d: (3, 2, 2, 2, 1)}
            h = self.body(x).view(shape.get(function, (3, 8)))
            return self.head(self.function(h, 0.5, self.training).view(3, 8))  # shaped

    (call,) = find_functional_dropout(Positions(function), EXAMPLE)
    assert call.function == function.__name__
    assert (call.file, call.line) == (__file__, line_of(Positions.forward, "shaped"))


def test_each_line_is_named_once_also_outside_of_the_module() -> None:
    calls = find_functional_dropout(DroppingTwice(), EXAMPLE)
    assert [(call.function, call.line) for call in calls] == [
        ("dropout", line_of(DroppingTwice.forward, "in a loop")),
        ("alpha_dropout", line_of(fall_out, "in a function")),
    ]


def test_dropout_modules_are_not_warned_of() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.AlphaDropout(), nn.Linear(8, 3))
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    for net, example in ((layers, EXAMPLE), (attention, torch.ones(2, 3, 8))):
        assert find_functional_dropout(net, example) == []
        convert(net.train(), example)


@pytest.mark.filterwarnings("ignore:dropout is called as a function")
def test_dropout_in_eval_mode_is_the_networks_own_noise() -> None:
    model = convert(AlwaysDropping())
    with dubio.noise_off():
        assert not torch.equal(model(EXAMPLE), model(EXAMPLE))


def test_dropout_in_eval_mode_is_warned_of_too() -> None:
    (call,) = find_functional_dropout(AlwaysDropping(), EXAMPLE)
    assert call.line == line_of(AlwaysDropping.forward, "always")


# ------------------------------------------------------------------------------------------------- no trace


@contextmanager
def left_as_they_were(*networks: nn.Module) -> Iterator[None]:
    """Modes, values, gradients, hooks, random state, torch's switches and the running pass of a block."""

    def state() -> list[Any]:
        return [
            [[module.training for module in net.modules()] for net in networks],
            [[parameter.requires_grad for parameter in net.parameters()] for net in networks],
            [[parameter.grad is None for parameter in net.parameters()] for net in networks],
            [[len(module._forward_hooks) for module in net.modules()] for net in networks],
            torch.get_rng_state().tolist(),
            torch.backends.mha.get_fastpath_enabled(),
            torch.is_grad_enabled(),
            current_pass() is None,
        ]

    before = state()
    values = [{name: value.clone() for name, value in net.state_dict().items()} for net in networks]
    yield
    assert state() == before
    for net, former in zip(networks, values, strict=True):
        assert all(torch.equal(value, former[name]) for name, value in net.state_dict().items())


def modes(net: nn.Module) -> nn.Module:
    """Training, but for every second module."""
    for place, module in enumerate(net.modules()):
        module.training = place % 2 == 0
    return net


def test_modes_flags_statistics_and_random_state_are_put_back() -> None:
    net = modes(Residual())
    net.head.requires_grad_(False)
    example = torch.randn(2, 3, 8, 8)
    with left_as_they_were(net):
        model = convert(net, example)
    assert [m.training for _, m in model.named_modules() if not isinstance(m, dubio.nn.GaussianPosterior)] == [
        module.training for module in net.modules()
    ]
    modes(model)
    with left_as_they_were(net, model):
        prove(model, net, example)


@pytest.mark.filterwarnings("ignore:dropout is called as a function")
def test_the_networks_own_noise_moves_no_random_state() -> None:
    net = AlwaysDropping()
    with left_as_they_were(net):
        find_functional_dropout(net, EXAMPLE)
        convert(net)


def test_all_is_put_back_also_when_the_proof_fails() -> None:
    net = modes(Counting())
    model = modes(dubio.Bayes().convert(net))
    with left_as_they_were(net, model), pytest.raises(RuntimeError, match="not exact"):
        prove(model, net, EXAMPLE)
    with left_as_they_were(net, model), pytest.raises((RuntimeError, ValueError)):
        prove(model, net, EXAMPLE[:, :2])


def test_a_network_that_changes_itself_in_forward_is_left_as_it_was() -> None:
    net = nn.Sequential(nn.Embedding(5, 4, max_norm=0.5), nn.Linear(4, 2))
    example = torch.arange(5)
    with left_as_they_were(net):
        model = convert(net, example)
    assert torch.equal(model[0].weight, net[0].weight)


def test_the_proof_ignores_the_settings_it_is_called_under() -> None:
    for setting in (dubio.noise_off(), dubio.frozen(3)):
        with setting:
            model = convert(mlp(4, 5, 3))
            assert torch.equal(model(EXAMPLE), model(EXAMPLE))  # and leaves them in force
            with pytest.warns(ConversionWarning, match="not read by the network on this example: offset|spare"):
                convert(Sparing())
            with pytest.raises(RuntimeError, match="not exact"):
                convert(Counting())


WARNS = """
import warnings
import torch
from torch import nn
import dubio

class Sparing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return torch.nn.functional.dropout(self.body(x), 0.1, self.training)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    dubio.Bayes().convert(Sparing(), example=torch.randn(2, 4))
print([(warning.category.__name__, warning.filename, warning.lineno) for warning in caught])
"""


@pytest.mark.slow
def test_warnings_point_at_the_users_own_line() -> None:
    # In a process of its own: the shape checks of this one stand between the user and dubio.
    finished = subprocess.run([sys.executable, "-c", WARNS], check=True, capture_output=True, text=True)
    assert finished.stdout.strip() == str([("ConversionWarning", "<string>", 16)] * 2)


def test_a_warning_is_a_user_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        convert(Sparing())
    assert dubio.ConversionWarning is ConversionWarning


class TrainedWithDropout(nn.Module):
    """Drops in training mode only, and through torch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.dropout(x, 0.5, True) if self.training else x)


def test_dropout_in_training_mode_alone_is_found() -> None:
    found = find_functional_dropout(TrainedWithDropout().eval(), torch.randn(3, 4))
    assert [call.function for call in found] == ["dropout"]


class Siamese(nn.Module):
    """Calls one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) - self.layer(x)


def test_a_layer_that_the_example_calls_twice_has_one_draw() -> None:
    inputs = torch.randn(3, 4)
    model = dubio.Bayes(init_std=0.5).convert(Siamese(), example=inputs)
    assert not model(inputs).any()
    assert "called several times: it has one draw" in str(dubio.describe(model))
    assert dubio.Bayes(init_std=0.5).convert(Siamese())(inputs).any()  # nobody has looked


def test_outputs_that_cannot_be_compared_are_no_proof() -> None:
    class Result:
        pass

    class Opaque(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return Result()

    with pytest.raises(TypeError, match=r"outputs must be tensors, .* or have \.logits, to be compared"):
        dubio.Bayes().convert(Opaque(4, 4), example=torch.randn(3, 4))
