"""Files of pruned networks hold what is left; networks come back bit for bit, and masks that do not fit are refused."""

import json
from pathlib import Path

import jaxtyping
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dubio
from dubio.io import HASHES, _hashes
from networks import Tied, mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (6,), generator=torch.Generator().manual_seed(2))


def forge(path: Path, tensors: dict[str, Tensor] | None = None, **changes: object) -> None:
    """Change a file's tensors and metadata, with a hash that fits."""
    with safe_open(path, framework="pt") as content:
        described = json.loads(content.metadata()["dubio"])
    described |= changes
    found = load_file(path) | (tensors or {})
    described |= dict(zip(HASHES, _hashes(described, found), strict=True))
    save_file(found, path, {"dubio": json.dumps(described)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = dubio.Bayes().convert(dubio.models.mlp(5, 7, 4))
    dubio.prune(model, 0.5)
    dubio.save(model, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


@pytest.mark.feature("A network with 90 % of its weights removed takes a sixth of the file, and comes back bit for bit")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nine_tenths_removed_make_a_file_at_least_six_times_smaller(tmp_path: Path, dtype: torch.dtype) -> None:
    net = dubio.models.build("fc:100-100", inputs=(1, 8, 8), num_classes=10)
    model = dubio.Bayes().convert(net).to(dtype).eval()
    images = torch.rand(20, 1, 8, 8, dtype=dtype)
    dubio.save(model, tmp_path / "whole")
    record = dubio.prune(model, 0.9)
    dubio.save(model, tmp_path / "pruned")
    assert record.num_removed == 15660
    assert (tmp_path / "whole").stat().st_size >= 6 * (tmp_path / "pruned").stat().st_size
    loaded = dubio.load(tmp_path / "pruned")
    with dubio.frozen(seed=3):
        found, expected = (dubio.predict(own, images, num_samples=5) for own in (loaded, model))
    assert torch.equal(found.samples, expected.samples)
    assert dubio.spec(loaded) == dubio.spec(model)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize(
    "method",
    [
        dubio.Bayes(dubio.CentredNormal(0.2), "flipout"),
        dubio.Bayes(where="2"),
        dubio.Deterministic(),
        dubio.Flow(),
        dubio.PNI(per="element"),
        dubio.Ensemble(members=2),
    ],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.parametrize("by", ["magnitude", None])
def test_networks_of_all_kinds_come_back_and_can_be_pruned_again(
    tmp_path: Path, method: object, by: str | None
) -> None:
    model = method.convert(mlp(5, 9, 4)).eval()
    dubio.prune(model, 0.6, by=by, biases=True)
    dubio.save(model, tmp_path / "a")
    loaded = dubio.load(tmp_path / "a", net=mlp(5, 9, 4))
    assert torch.equal(dubio.sample(loaded, INPUTS, 4, seed=1), dubio.sample(model, INPUTS, 4, seed=1))
    again, expected = (dubio.prune(own, 0.9, by=by, biases=True) for own in (loaded, model))
    assert again == expected
    assert torch.equal(dubio.sample(loaded, INPUTS, 4, seed=1), dubio.sample(model, INPUTS, 4, seed=1))
    dubio.fit(loaded, (INPUTS, TARGETS), epochs=1, progress=False)


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = dubio.Bayes().convert(Tied()).eval()
    dubio.prune(model, 0.5)
    dubio.save(model, tmp_path / "a")
    loaded = dubio.load(tmp_path / "a", net=Tied())
    assert torch.equal(dubio.sample(loaded, INPUTS, 2, seed=1), dubio.sample(model, INPUTS, 2, seed=1))


def test_layers_that_were_cut_down_come_back_so(tmp_path: Path) -> None:
    model = dubio.Bayes().convert(dubio.models.lenet((1, 16, 16), 4)).eval()
    images = torch.rand(3, 1, 16, 16)
    dubio.prune(model, 0.5, what="units", each_layer=True)
    dubio.prune(model, 0.5)
    dubio.prune(model, 0.75, what="units", where="classifier.0")
    dubio.save(model, tmp_path / "a")
    loaded = dubio.load(tmp_path / "a")
    assert loaded.features[0].out_channels == 3
    assert loaded.classifier[0].out_features == 30
    assert dubio.spec(loaded) == dubio.spec(model)
    assert torch.equal(dubio.sample(loaded, images, 3, seed=1), dubio.sample(model, images, 3, seed=1))
    dubio.prune(loaded, 0.75, what="units", where="classifier.0")
    assert loaded.classifier[0].out_features == 30  # the file knows how many there were at first


def test_an_interrupted_run_of_a_pruned_network_resumes_exactly(tmp_path: Path) -> None:
    def pruned() -> nn.Module:
        torch.manual_seed(0)
        model = dubio.Bayes(init_std=0.1).convert(mlp(5, 7, 4))
        dubio.prune(model, 0.5)
        return model

    def train(name: str, epochs: int, resume: bool = False) -> nn.Module:
        model = pruned()
        data = (INPUTS, TARGETS)
        dubio.fit(model, data, data, epochs=epochs, batch_size=2, folder=tmp_path / name, resume=resume, progress=False)
        return model

    whole = train("whole", 4)
    train("cut", 2)
    resumed = train("cut", 4, resume=True)
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in resumed.state_dict().items())
    loaded = dubio.load(tmp_path / "cut" / "model.safetensors", net=mlp(5, 7, 4))
    assert dubio.prune(loaded, 0.0).num_removed == 31
    with pytest.raises(ValueError, match=r"cannot resume with another configuration: parameter .*removed was \[7, 5\]"):
        dubio.fit(
            dubio.Bayes(init_std=0.1).convert(mlp(5, 7, 4)),
            (INPUTS, TARGETS),
            (INPUTS, TARGETS),
            epochs=5,
            batch_size=2,
            folder=tmp_path / "cut",
            resume=True,
            progress=False,
        )


MASK, MEAN = "1.weight_posterior.removed", "1.weight_posterior.mean"


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {MASK: torch.zeros(4, dtype=torch.uint8)},
            r"the mask of 1.weight must have one bit for each of 35 weights, got",
        ),
        ({MASK: torch.zeros(5)}, r"the mask of 1.weight must have .*, got torch.float32 of shape \(5,\)"),
        ({MASK: torch.full((5,), 255, dtype=torch.uint8)}, r"the mask of 1.weight must have .* 35 weights, got more"),
        (
            {MASK: torch.zeros(5, dtype=torch.uint8)},
            rf"{MEAN} must hold the 35 weights that its mask leaves, got shape",
        ),
        ({MEAN: torch.zeros(7, 5)}, rf"{MEAN} must hold the \d+ weights that its mask leaves, got shape \(7, 5\)"),
    ],
)
def test_masks_that_do_not_fit_are_refused(path: Path, tensors: dict[str, Tensor], told: str) -> None:
    forge(path, tensors)
    with pytest.raises(ValueError, match=f"does not fit this network: {told}"):
        dubio.load(path)


@pytest.mark.parametrize(
    ("pruning", "told"),
    [
        ({"weights": ["9.weight"]}, "does not fit this network: 9 was pruned, which this network has not"),
        ({"weights": ["1.scale"]}, "weights of 1.scale were removed, which this network has not"),
        ({"weights": [7]}, r"weights of Removed has a value of the wrong kind, \(7,\)"),
        ({"sizes": [["1", 5]]}, "sizes of Removed has a value of the wrong kind"),
        ({"sizes": [["1", 5, 70]]}, "1 was cut down to 5 inputs and 70 outputs, which it cannot be here"),
        ({"sizes": [["2", 5, 7]]}, "2 was cut down to 5 inputs and 7 outputs, which it cannot be here"),
    ],
)
def test_records_that_do_not_fit_are_refused(path: Path, pruning: dict[str, object], told: str) -> None:
    forge(path, later={"pruning": {"value": "Removed", **pruning}})
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match=told):
            dubio.load(path)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_a_damaged_mask_is_noticed(path: Path) -> None:
    tensors = load_file(path)
    with safe_open(path, framework="pt") as content:
        metadata = content.metadata()
    tensors[MASK][0] ^= 1
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match="is damaged: its contents do not match their hash"):
        dubio.load(path)
