"""What is saved comes back with the same draws; what is damaged, foreign or unfit is refused."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import dubio
from dubio.io import HASHES, _hashes, from_json, identity_of, to_json
from networks import Residual, Tied

INPUTS = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


def rewrite(path: Path, forge: bool = True, **changes: object) -> None:
    """Change the metadata of a file, leaving its tensors; the hash goes with them if it is forged."""
    with safe_open(path, framework="pt") as content:
        described = json.loads(content.metadata()["dubio"]) | changes
    tensors = load_file(path)
    if forge:
        described |= dict(zip(HASHES, _hashes(described, tensors), strict=True))
    save_file(tensors, path, {"dubio": json.dumps(described)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    dubio.save(dubio.Bayes().convert(dubio.models.mlp(5, 7, 4)), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.feature("A saved network comes back with the same draws, from one file that runs no code")
@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize(
    "prior",
    [dubio.Normal(0.1, 0.5), dubio.ScaleMixture(), dubio.CentredNormal(0.2)],
    ids=["normal", "mixture", "centred"],
)
def test_a_built_network_comes_back_with_the_same_draws(tmp_path: Path, prior: object, estimator: str) -> None:
    method = dubio.Bayes(prior, estimator, init_std=0.2)
    model = method.convert(dubio.models.mlp(5, 7, 4)).eval()
    dubio.save(model, tmp_path / "a.safetensors")
    loaded = dubio.load(tmp_path / "a.safetensors")
    assert torch.equal(dubio.sample(loaded, INPUTS, 4, seed=1), dubio.sample(model, INPUTS, 4, seed=1))
    torch.testing.assert_close(dubio.divergence(loaded, seed=1), dubio.divergence(model, seed=1))
    assert dubio.spec(loaded).method == method
    assert not loaded.training


@pytest.mark.parametrize(
    ("make", "inputs"), [(Tied, INPUTS), (Residual, torch.randn(2, 3, 8, 8))], ids=["tied", "residual"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_users_own_network_is_passed_in(
    tmp_path: Path, make: type[nn.Module], inputs: object, dtype: torch.dtype
) -> None:
    chosen = lambda name, module: name != "stem"  # noqa: E731
    model = dubio.Bayes(where=chosen).convert(make()).to(dtype).eval()
    dubio.save(model, tmp_path / "a.safetensors")
    loaded = dubio.load(tmp_path / "a.safetensors", net=make())
    assert torch.equal(
        dubio.sample(loaded, inputs.to(dtype), 2, seed=1), dubio.sample(model, inputs.to(dtype), 2, seed=1)
    )
    assert {name: p.dtype for name, p in loaded.named_parameters()} == {
        name: p.dtype for name, p in model.named_parameters()
    }
    with pytest.raises(ValueError, match=r"a network that dubio did not build; pass one of its kind"):
        dubio.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "likelihood",
    [
        dubio.Gaussian("learned"),
        dubio.Gaussian(0.3),
        dubio.Bernoulli(),
        dubio.Categorical(class_weight=(1.0, 2.0, 1.0, 1.0), label_smoothing=0.1),
    ],
    ids=["learned", "gaussian", "bernoulli", "categorical"],
)
def test_likelihoods_come_back(tmp_path: Path, likelihood: object) -> None:
    model = dubio.Bayes().convert(dubio.models.mlp(5, 4), likelihood)
    dubio.save(model, tmp_path / "a.safetensors")
    loaded = dubio.load(tmp_path / "a.safetensors")
    assert dubio.spec(loaded).likelihood == likelihood
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_a_truncated_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is not a whole safetensors file"):
            dubio.load(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="holds no network that dubio saved"):
        dubio.load(path)
    path.write_text("not at all")
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        dubio.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        dubio.load(path.with_name("nowhere"))


def test_a_changed_tensor_is_noticed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its contents do not match their hash"):
        dubio.load(path)


def test_changed_metadata_are_noticed(path: Path) -> None:
    """The hash finds damage, not forgery: whoever writes the file can write the hash."""
    rewrite(path, forge=False, likelihood={"value": "Categorical", "label_smoothing": 0.5})
    with pytest.raises(ValueError, match="is damaged: its contents do not match their hash"):
        dubio.load(path)
    rewrite(path, likelihood={"value": "Categorical", "label_smoothing": 0.5})
    assert dubio.spec(dubio.load(path)).likelihood.label_smoothing == 0.5
    rewrite(path, method=None)
    with pytest.raises(ValueError, match="describes its network in a way that this version cannot read"):
        dubio.load(path)


def test_ties_must_be_those_of_the_network(tmp_path: Path) -> None:
    dubio.save(dubio.Bayes().convert(Tied()), tmp_path / "tied")
    untied = Tied()
    untied.decode.weight = nn.Parameter(untied.decode.weight.detach().clone())
    with pytest.raises(ValueError, match=r"does not fit this network: .* is tied to .* in one of them"):
        dubio.load(tmp_path / "tied", net=untied)


def test_buffers_that_share_memory_are_saved(tmp_path: Path) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)
            self.register_buffer("whole", torch.arange(6.0))
            self.register_buffer("part", self.whole[:3])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.part[:2]

    dubio.save(dubio.Bayes().convert(Views()), tmp_path / "a")
    assert dubio.load(tmp_path / "a", net=Views()).part.tolist() == [0.0, 1.0, 2.0]


def test_a_compiled_network_is_saved_as_what_it_wraps(tmp_path: Path) -> None:
    model = dubio.Bayes().convert(dubio.models.mlp(5, 4))
    dubio.save(torch.compile(model), tmp_path / "a")
    assert dubio.load(tmp_path / "a").state_dict().keys() == model.state_dict().keys()


def test_metadata_of_another_kind_are_refused(path: Path) -> None:
    rewrite(path, format="dubio-99")
    with pytest.raises(ValueError, match="has format 'dubio-99', and this version reads 'dubio-1'"):
        dubio.load(path)
    rewrite(path, format="dubio-1", method={"value": "os.system"})
    with pytest.raises(ValueError, match=r"unknown value 'os\.system'"):
        dubio.load(path)
    rewrite(path, method={"value": "Bayes", "colour": "red"})
    with pytest.raises(ValueError, match=r"unknown fields \['colour'\] of Bayes"):
        dubio.load(path)


def test_a_network_that_does_not_fit_is_named(path: Path) -> None:
    with pytest.raises(ValueError, match=r"1\.weight_posterior\.mean has shape \(7, 5\) in the file and \(9, 5\)"):
        dubio.load(path, net=dubio.models.mlp(5, 9, 4))
    longer = nn.Sequential(*dubio.models.mlp(5, 7, 4), nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"does not fit this network: it lacks \['4\.bias', '4\.weight'\]"):
        dubio.load(path, net=longer)


def test_saving_is_all_or_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    model = dubio.Bayes().convert(dubio.models.mlp(5, 7, 4))
    monkeypatch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        dubio.save(model, path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="was not converted"):
        dubio.save(nn.Linear(3, 4), path)


def test_a_file_from_before_bayes_had_a_beta_keeps_bayes_rule() -> None:
    written = to_json(dubio.Bayes())
    del written["beta"]
    assert from_json(written).beta == 1.0
    assert from_json(to_json(dubio.Bayes())) == dubio.Bayes()


FORGED: dict[str, tuple[dict[str, object], str]] = {
    "no tied": ({"tied": ...}, "describes its network in a way .*tied"),
    "no architecture": ({"architecture": ...}, "describes its network in a way .*architecture"),
    "architecture of a number": ({"architecture": 5}, "architecture has a value of the wrong kind, 5"),
    "unhashable value": ({"method": {"value": []}}, r"unknown value \[\]"),
    "method that is none": ({"method": {"value": "Normal", "mean": 0.0, "std": 1.0}}, "method must be one of dubio's"),
    "likelihood that is none": ({"likelihood": {"value": "Bayes"}}, "likelihood must be one of dubio's"),
    "field of the wrong kind": ({"method": {"value": "Bayes", "norms": "x"}}, "norms of Bayes has a value of the"),
    "too wide": ({"architecture": "mlp:5-400000-400000-4"}, r"does not fit this network: it lacks"),
    "too wide alone": ({"architecture": "mlp:5-4000000000-4"}, r"weight_posterior.mean has shape \(7, 5\) in the file"),
    "no number": ({"architecture": f"mlp:5-{'9' * 5000}-4"}, "describes its network in a way"),
    "beyond float32": ({"method": {"value": "Bayes", "init_std": 1e300}}, "does not fit this network: .* overflow"),
    "too deep": ({"architecture": "mlp:" + "-".join(["1"] * 200_000)}, "it has 199999 layers, but only 8 tensors"),
    "too many members": ({"method": {"value": "Ensemble", "members": 10**8}}, "100000000 members, but only 8 tensors"),
    "too many steps": (
        {"method": {"value": "Flow", "blocks": {"value": "NormalPlanar1d", "num_planar": 10**8}}},
        "100000000 planar, but only 8 tensors",
    ),
    "calibration of a number": ({"later": {"calibration": 5}}, "calibration has a value of the wrong kind, 5"),
    "threshold of a prior": (
        {"later": {"threshold": {"value": "Normal", "mean": 0.0, "std": 1.0}}},
        "threshold has a value of the wrong kind, Normal",
    ),
    "limit of a text": (
        {"later": {"threshold": {"value": "Threshold", "score": "entropy", "limit": None, "error": "x"}}},
        "error of Threshold has a value of the wrong kind, 'x'",
    ),
}


@pytest.mark.timeout(20)
@pytest.mark.feature("A forged model file is refused before anything of its size is built")
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_is_refused_at_once(kind: str, path: Path) -> None:
    changes, message = FORGED[kind]
    with safe_open(path, framework="pt") as content:
        described = json.loads(content.metadata()["dubio"]) | changes
    described = {name: value for name, value in described.items() if value is not ...}
    tensors = load_file(path)
    described |= dict(zip(HASHES, _hashes(described, tensors), strict=True))
    save_file(tensors, path, {"dubio": json.dumps(described)})
    with pytest.raises(ValueError, match=message) as refused:
        dubio.load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("metadata", ["[]", "5", "[" * 100_000, '{"format": NaN}', '{"format": "a", "format": "b"}'])
def test_metadata_that_are_no_description_are_refused(path: Path, metadata: str) -> None:
    save_file(load_file(path), path, {"dubio": metadata})
    with pytest.raises(ValueError, match=r"model\.safetensors (has format|cannot be read)"):
        dubio.load(path)
    assert identity_of(path) is None


def change_tensors(path: Path, **changes: torch.Tensor) -> None:
    """Change the tensors of a file, by the end of their names, and its hashes."""
    with safe_open(path, framework="pt") as content:
        described = json.loads(content.metadata()["dubio"])
    tensors = load_file(path)
    for ending, tensor in changes.items():
        tensors[next(name for name in tensors if name.endswith(ending))] = tensor
    described |= dict(zip(HASHES, _hashes(described, tensors), strict=True))
    save_file(tensors, path, {"dubio": json.dumps(described)})


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(7, 5, dtype=torch.int32), r"has type torch\.int32 in the file and torch\.float32 in the network"),
        (torch.zeros(7, 5, dtype=torch.float16), r"has type torch\.float\d\d in the file, and .* has torch\.float\d\d"),
        (torch.full((7, 5), torch.nan), "must hold finite numbers, got NaN or infinity"),
        (torch.full((7, 5), torch.inf), "must hold finite numbers, got NaN or infinity"),
    ],
    ids=["int", "half", "nan", "inf"],
)
def test_tensors_of_other_types_or_without_numbers_are_refused(path: Path, tensor: torch.Tensor, message: str) -> None:
    change_tensors(path, **{"weight_posterior.mean": tensor})
    with pytest.raises(ValueError, match=rf"does not fit this network: 1\.\w+\.\w+ {message}"):
        dubio.load(path)


def test_a_network_that_does_not_fit_into_memory_is_not_built(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubio.io.available_memory", lambda: 100)
    with pytest.raises(ValueError, match=r"takes 5\d\d B of memory to build, and 100 B are available"):
        dubio.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.timeout(10)
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.safetensors")
    with pytest.raises(ValueError, match="must be a regular file, got a FIFO"):
        dubio.load(tmp_path / "fifo.safetensors")
    assert identity_of(tmp_path / "fifo.safetensors") is None
