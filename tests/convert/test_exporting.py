"""``export``: torch's exported programs and ONNX, with noise off, fresh or frozen, for any number of rows."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import dubio
from contracts.modules import Classifier, LanguageModel, ManyInputs, SeveralOutputs, StartingState
from dubio._engine.draws import arguments
from dubio._engine.passes import current_pass
from dubio._engine.settings import Using
from networks import Attention, Residual, mlp

STD = 0.3
FORMATS = ("torch", pytest.param("onnx", marks=pytest.mark.slow))  # one ONNX file is written in the fast tests
pytestmark = [
    pytest.mark.usefixtures("compiler"),
    pytest.mark.filterwarnings(
        r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",  # torch.onnx of torch's own
        "ignore:_check_is_size will be removed in a future PyTorch release:FutureWarning",
        r"ignore:The tensor attributes? self\.:UserWarning",  # torch.export of a plain LSTM, too
        "ignore:While compiling, we found certain side effects:UserWarning",  # passes, put back
    ),
]


@cache
def network(estimator: Any = "local") -> nn.Module:
    torch.manual_seed(0)
    return dubio.Bayes(estimator=estimator, init_std=STD).convert(Residual()).eval()


def images(rows: int) -> Tensor:
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(rows))


@cache
def program(format: Any, noise: Any, num_samples: int | None = None, estimator: Any = "local") -> Any:
    """A small convolutional network, exported with three rows."""
    return dubio.export(network(estimator), images(3), format=format, noise=noise, num_samples=num_samples, seed=5)


@cache
def session(program: Any) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


def run(program: Any, *inputs: Any) -> Any:
    """What an exported network gives for positional inputs; of ONNX, all runs in one session."""
    if isinstance(program, torch.export.ExportedProgram):
        with torch.no_grad():
            return program.module()(*inputs)
    feed = zip((entry.name for entry in session(program).get_inputs()), inputs, strict=True)
    outputs = [torch.from_numpy(out) for out in session(program).run(None, {name: x.numpy() for name, x in feed})]
    return outputs[0] if len(outputs) == 1 else outputs


def mean(model: nn.Module, inputs: Any) -> Any:
    args, kwargs = arguments(inputs)
    with torch.no_grad(), dubio.noise_off():
        return model(*args, **kwargs)


def draws(model: nn.Module, inputs: Any, num_samples: int, seed: int = 5) -> Any:
    """What frozen exports promise to give."""
    with torch.no_grad(), Using(estimator="weight"):
        return dubio.sample(model, inputs, num_samples, seed=seed, executor="loop")


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------- noise, format, rows


@pytest.mark.feature(
    "export writes torch.export and ONNX with any batch size; onnxruntime gives what the network gives"
)
@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize("format", FORMATS)
def test_noise_off_is_the_mean_network(format: str, rows: int) -> None:
    outputs = run(program(format, "off"), images(rows))
    assert outputs.shape == (rows, 4)
    assert_close(outputs, mean(network(), images(rows)))
    assert torch.equal(outputs, run(program(format, "off"), images(rows)))


@pytest.mark.feature("Exported draws are those of dubio.sample with the same seed, or fresh at every run")
@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize("format", FORMATS)
def test_frozen_draws_are_those_of_sample(format: str, rows: int) -> None:
    outputs = run(program(format, "frozen", 3), images(rows))
    assert outputs.shape == (3, rows, 4)
    assert_close(outputs, draws(network(), images(rows), 3))
    assert outputs.std(dim=0).min() > 0.01
    assert torch.equal(outputs, run(program(format, "frozen", 3), images(rows)))


@pytest.mark.parametrize("format", FORMATS)
def test_fresh_draws_differ_from_run_to_run_and_from_each_other(format: str) -> None:
    for rows in (3, 7):
        runs = torch.stack([run(program(format, "fresh", 2), images(rows)) for _ in range(3)])
        assert runs.shape == (3, 2, rows, 4)
        together = runs.flatten(0, 1)
        assert together.isfinite().all()
        assert together.std(dim=0).min() > 0.01
        distances = (together[:, None] - together[None]).abs().flatten(2).amax(dim=2)
        assert (distances + torch.eye(6)).min() > 0.01  # every draw is another


@pytest.mark.parametrize("noise", ["fresh", "frozen"])
def test_one_draw_has_no_sample_axis_unless_asked_for(noise: str) -> None:
    assert run(program("torch", noise), images(4)).shape == (4, 4)
    assert run(program("torch", noise, 1), images(4)).shape == (1, 4, 4)


def test_one_frozen_draw_is_the_first_of_many() -> None:
    alone, first = run(program("torch", "frozen"), images(4)), run(program("torch", "frozen", 1), images(4))[0]
    assert torch.equal(alone, first)
    assert_close(alone, draws(network(), images(4), 3)[0])


def test_the_seed_says_which_draws() -> None:
    inputs = torch.randn(3, 4)
    model = dubio.Bayes(init_std=STD).convert(mlp(4, 6, 3)).eval()
    by_default = run(dubio.export(model, inputs, noise="frozen"), inputs)
    assert_close(by_default, draws(model, inputs, 1, seed=0)[0])
    other = run(dubio.export(model, inputs, noise="frozen", seed=1), inputs)
    assert (by_default - other).abs().max() > 0.05


@pytest.mark.parametrize("format", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_fresh_noise_has_the_posteriors_spread(format: Any) -> None:
    model = dubio.Bayes(init_std=STD).convert(nn.Linear(4, 500))
    exported = dubio.export(model, torch.ones(2, 4), format=format, noise="fresh", num_samples=2)
    outputs = torch.stack([run(exported, torch.ones(2, 4)) for _ in range(4)]).flatten(0, 2)
    noise = (outputs - mean(model, torch.ones(1, 4))) / (STD * 5**0.5)  # four weights and a bias
    assert noise.numel() == 8000
    assert noise.mean().abs() < 4 / 8000**0.5
    assert (noise.var() - 1).abs() < 4 * (2 / 8000) ** 0.5


def test_fresh_noise_is_that_of_the_layers_own_estimator() -> None:
    same = images(1).expand(4, -1, -1, -1)
    one_function = run(program("torch", "fresh", None, "weight"), same)
    torch.testing.assert_close(one_function, one_function[:1].expand(4, -1))
    each_row = run(program("torch", "fresh"), same)
    assert (each_row[0] - each_row[1]).abs().max() > 0.01


def test_settings_in_force_change_nothing() -> None:
    inputs = torch.randn(3, 4)
    model = dubio.Bayes(init_std=STD).convert(mlp(4, 6, 3)).eval()
    with dubio.noise_off():
        fresh = dubio.export(model, inputs, noise="fresh")
        frozen = dubio.export(model, inputs, noise="frozen")
    with dubio.frozen(9):
        off = dubio.export(model, inputs)
    assert (run(fresh, inputs) - run(fresh, inputs)).abs().max() > 0.01
    assert_close(run(frozen, inputs), draws(model, inputs, 1, seed=0)[0])
    assert_close(run(off, inputs), mean(model, inputs))


# --------------------------------------------------------------------------------------------- inputs, outputs


@pytest.mark.parametrize("noise", ["off", "frozen"])
@pytest.mark.parametrize(("shared", "by_name"), [((1,), False), (("mask",), True)], ids=["by place", "by name"])
def test_shared_inputs_have_no_rows(noise: Any, shared: Any, by_name: bool) -> None:
    model = dubio.Bayes(init_std=STD).convert(Attention()).eval()
    mask = torch.randn(3, 3)
    inputs = (torch.randn(4, 3, 6), mask)
    exported = dubio.export(
        model, {"x": inputs[0], "mask": mask} if by_name else inputs, noise=noise, seed=5, shared=shared
    ).module()
    for rows in (4, 3, 7):  # also as many rows as the mask has
        x = torch.randn(rows, 3, 6)
        found = exported(x=x, mask=mask) if by_name and noise == "off" else exported(x, mask)
        assert_close(found, mean(model, (x, mask)) if noise == "off" else draws(model, (x, mask), 1)[0])


@pytest.mark.parametrize("noise", ["off", "frozen"])
def test_keyword_inputs_come_in_any_order(noise: Any) -> None:
    model = dubio.Bayes(init_std=STD).convert(ManyInputs()).eval()
    inputs = {"right": torch.randn(4, 3), "left": torch.randn(4, 4)}
    exported = dubio.export(model, inputs, noise=noise, seed=5).module()
    for rows in (4, 6):
        inputs = {"right": torch.randn(rows, 3), "left": torch.randn(rows, 4)}
        if noise == "off":
            assert_close(exported(**inputs), mean(model, inputs))
        else:  # draws take inputs in the order of the network's own arguments
            assert_close(exported(inputs["left"], inputs["right"]), draws(model, inputs, 1)[0])


@pytest.mark.parametrize("noise", ["off", "frozen"])
def test_an_optional_input_may_be_left_out(noise: Any) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = dubio.Bayes(init_std=STD).convert(encoder).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    inputs = {"src": torch.randn(2, 3, 8), "src_key_padding_mask": padding}  # nothing for src_mask between them
    exported = dubio.export(model, inputs, noise=noise, seed=5)
    assert [node.name for node in exported.graph.nodes if node.op == "placeholder"]
    if noise == "off":
        assert_close(exported.module()(**inputs), mean(model, inputs))
    else:
        assert_close(exported.module()(inputs["src"], None, padding), draws(model, inputs, 1)[0])


@pytest.mark.parametrize("num_samples", [None, 2])
def test_outputs_keep_their_structure(num_samples: int | None) -> None:
    inputs = torch.randn(3, 4)
    for net in (SeveralOutputs(), Classifier()):
        model = dubio.Bayes(init_std=STD).convert(net).eval()
        exported = dubio.export(model, inputs, noise="frozen", num_samples=num_samples, seed=5).module()
        found, expected = exported(inputs), draws(model, inputs, num_samples or 1)
        if isinstance(net, Classifier):  # of an object with logits, the logits
            assert_close(found, expected if num_samples else expected[0])
        else:
            assert found.keys() == expected.keys()
            assert type(found["named"]).__name__ == "Named"
            assert_close(found["sum"], expected["sum"] if num_samples else expected["sum"][0])
    off = dubio.export(model, inputs).module()(inputs)
    assert_close(off.logits, mean(model, inputs).logits)


def test_double_precision_stays() -> None:
    model = dubio.Bayes(init_std=STD).convert(mlp(4, 6, 3).double()).eval()
    inputs = torch.randn(3, 4, dtype=torch.float64)
    outputs = run(dubio.export(model, inputs, noise="frozen", num_samples=2, seed=5), inputs)
    torch.testing.assert_close(outputs, draws(model, inputs, 2), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["off", "fresh"])  # frozen draws of such networks: tests/contracts
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (LanguageModel, lambda rows: (torch.randint(0, 11, (rows, 4)),)),
        (StartingState, lambda rows: (torch.randn(rows, 4, 3), torch.randn(rows, 2))),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda rows: (torch.randn(rows, 3, 8),)),
    ],
    ids=["language model", "lstm with states", "encoder layer"],
)
def test_onnx_of_recurrent_and_attention_networks(make: Any, inputs: Any, noise: Any) -> None:
    model = dubio.Bayes(init_std=STD).convert(make()).eval()
    exported = dubio.export(
        model, inputs(3), format="onnx", noise=noise, num_samples=None if noise == "off" else 2, seed=5
    )
    for rows in (3, 5):
        own = inputs(rows)
        outputs = run(exported, *own)
        if noise == "off":
            assert_close(outputs, mean(model, own))
        else:
            assert (outputs - run(exported, *own)).abs().max() > 0.01
            assert (outputs[0] - outputs[1]).abs().max() > 0.01


# -------------------------------------------------------------------------------------------------- files, copies


def test_a_torch_file_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    written = dubio.export(network(), images(3), path, noise="frozen", num_samples=2)
    assert path.stat().st_size > 1000
    assert torch.equal(run(torch.export.load(str(path)), images(5)), run(written, images(5)))


def test_an_onnx_file_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    dubio.export(network(), images(3), str(path), format="onnx")
    loaded = onnxruntime.InferenceSession(str(path))
    (entry,) = loaded.get_inputs()
    assert not isinstance(entry.shape[0], int)  # a name: any number of rows
    assert entry.shape[1:] == [3, 8, 8]
    for rows in (1, 3, 5):
        (outputs,) = loaded.run(None, {entry.name: images(rows).numpy()})
        assert_close(torch.from_numpy(outputs), mean(network(), images(rows)))


def test_nothing_is_written_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = dubio.Bayes().convert(nn.Linear(4, 3))
    dubio.export(model, torch.ones(2, 4))
    assert list(tmp_path.iterdir()) == []
    dubio.export(model, torch.ones(2, 4), "net.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["net.pt2"]


@pytest.mark.parametrize("noise", ["off", "fresh", "frozen"])
def test_the_network_stays_as_it_was(noise: Any) -> None:
    model = dubio.Bayes(init_std=STD).convert(Residual()).train()
    inputs = images(3)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    before = [(id(module), type(module), set(vars(module)), module.training) for module in model.modules()]
    hooks = [(list(m._forward_hooks.values()), list(m._forward_pre_hooks.values())) for m in model.modules()]
    exported = dubio.export(model, inputs, noise=noise)
    assert [(id(module), type(module), set(vars(module)), module.training) for module in model.modules()] == before
    assert [(list(m._forward_hooks.values()), list(m._forward_pre_hooks.values())) for m in model.modules()] == hooks
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert current_pass() is None
    assert all(parameter.grad is None for parameter in model.parameters())
    outputs = run(exported, inputs) if noise != "fresh" else None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    if outputs is not None:  # what was exported has weights of its own
        assert torch.equal(run(exported, inputs), outputs)


def test_networks_that_were_never_converted_are_exported_too() -> None:
    net, inputs = mlp(4, 6, 3), torch.randn(3, 4)
    assert_close(run(dubio.export(net, inputs), torch.ones(5, 4)), net(torch.ones(5, 4)))
    outputs = run(dubio.export(net, inputs, noise="fresh", num_samples=2), torch.ones(5, 4))
    assert_close(outputs, net(torch.ones(5, 4)).expand(2, 5, 3))


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "tflite"}, r"format must be 'torch' or 'onnx', got 'tflite'"),
        ({"noise": "on"}, r"noise must be 'off', 'fresh' or 'frozen', got 'on'"),
        ({"num_samples": 3}, r"num_samples must be None with noise off: the mean network has one output"),
        ({"noise": "fresh", "num_samples": 0}, r"num_samples must be at least 1, got 0"),
        ({"path": "net.onnx"}, r"path must end in \.onnx for format='onnx' and only then, got 'net\.onnx'"),
        ({"path": "net.pt2", "format": "onnx"}, r"path must end in \.onnx .* got 'net\.pt2' with 'onnx'"),
        ({"shared": (1,)}, r"shared must name inputs, got 1 beside inputs \[0\]"),
        ({"shared": ("mask",), "noise": "fresh"}, r"shared must name inputs, got 'mask'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 3))
    with pytest.raises(ValueError, match=message):
        unchecked(model, torch.ones(2, 4), **options)


def unchecked(*args: Any, **options: Any) -> Any:
    """``export`` as users have it: without the type checks of the tests, which would refuse first."""
    return getattr(dubio.export, "__wrapped__", dubio.export)(*args, **options)


@pytest.mark.parametrize("noise", ["off", "fresh", "frozen"])
@pytest.mark.parametrize("inputs", [torch.ones(1, 4), torch.tensor(1.0)], ids=["one row", "a number"])
def test_one_row_is_refused(inputs: Tensor, noise: Any) -> None:
    model = dubio.Bayes().convert(nn.Linear(4, 3))
    with pytest.raises(
        ValueError,
        match=r"inputs must have at least two rows to export with any batch size, got shape \((1, 4)?\) for input 0; "
        r"name inputs without rows in shared=",
    ):
        dubio.export(model, inputs, noise=noise)


class Projected(nn.Module):
    """An LSTM with projections, inside."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, 4, proj_size=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.memory(x)[0]


@pytest.mark.parametrize("noise", ["off", "fresh", "frozen"])
def test_an_lstm_with_projections_is_no_onnx(noise: Any) -> None:
    model = dubio.Bayes().convert(Projected())
    with pytest.raises(ValueError, match=r"cannot write memory to ONNX: its LSTM has no projections, got proj_size=2"):
        dubio.export(model, torch.ones(2, 3, 3), format="onnx", noise=noise)


def test_onnx_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = dubio.Bayes().convert(nn.Linear(4, 3))
    with pytest.raises(ImportError, match=r"ONNX export needs onnx and onnxscript: pip install 'dubio\[export\]'"):
        dubio.export(model, torch.ones(2, 4), format="onnx")
    dubio.export(model, torch.ones(2, 4))  # torch's own needs nothing


def test_keyword_only_inputs_are_refused_for_draws() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, *, x: Tensor) -> Tensor:
            return self.body(x)

    model = dubio.Bayes().convert(Keyword())
    with pytest.raises(ValueError, match=r"inputs must be positional to export draws, got keyword-only \['x'\]"):
        dubio.export(model, {"x": torch.ones(2, 4)}, noise="fresh")
    assert_close(
        dubio.export(model, {"x": torch.ones(2, 4)}).module()(x=torch.ones(3, 4)), mean(model, {"x": torch.ones(3, 4)})
    )
