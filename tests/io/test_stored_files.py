"""Files that an earlier version wrote, with its names of classes and fields, are read and give what they gave."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import dubio
from dubio.cli.runs import list_runs
from dubio.evaluation import Evaluation

STORED = Path(__file__).parent / "stored"
EXPECTED: dict[str, list[list[float]]] = json.loads((STORED / "expected.json").read_text())["probs"]
INPUTS = torch.rand(64, 6, generator=torch.Generator().manual_seed(0))[:4]
IMAGES = torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(2))[:4]


@pytest.mark.feature("Files of earlier versions load and predict the same")
@pytest.mark.parametrize("name", EXPECTED)
def test_stored_networks_predict_what_they_predicted(name: str) -> None:
    model = dubio.load(STORED / f"{name}.safetensors")
    probs = dubio.predict(model, IMAGES if name == "flow_lenet" else INPUTS, 8, seed=0).probs
    torch.testing.assert_close(probs, torch.tensor(EXPECTED[name], dtype=probs.dtype), rtol=0.0, atol=1e-6)


def test_former_names_of_methods_are_read_as_the_present_ones(tmp_path: Path) -> None:
    methods = [dubio.spec(dubio.load(STORED / f"{name}.safetensors")).method for name in ("se_snn", "vib", "pni")]
    assert [type(method) for method in methods] == [dubio.SESNN, dubio.VIB, dubio.PNI]
    dubio.save(dubio.load(STORED / "se_snn.safetensors"), tmp_path / "again.safetensors")
    assert dubio.spec(dubio.load(tmp_path / "again.safetensors")).method == methods[0]


def test_the_stored_flow_is_pruned_and_calibrated() -> None:
    spec = dubio.spec(dubio.load(STORED / "flow_lenet.safetensors"))
    assert spec.pruning.weights
    assert isinstance(spec.calibration, dubio.Temperature)


def test_a_stored_run_is_listed_with_the_present_name_of_its_method(tmp_path: Path) -> None:
    shutil.copytree(STORED / "run", tmp_path / "run")
    (summary,), _ = list_runs(tmp_path)
    assert (summary.method, summary.epochs) == ("SESNN", 2)


def test_a_run_whose_configuration_has_former_names_is_resumed(tmp_path: Path) -> None:
    data = torch.randn(16, 3), torch.arange(16) % 2

    def fit(epochs: int, resume: bool) -> dubio.FitResult:
        torch.manual_seed(0)
        model = dubio.SESNN().convert(dubio.models.mlp(3, 4, 2))
        return dubio.fit(model, data, epochs=epochs, seed=0, folder=tmp_path / "run", resume=resume, progress=False)

    fit(1, resume=False)
    config = tmp_path / "run" / "config.json"
    text = config.read_text()
    assert "SESNN(" in text
    assert "ELBO(" in text
    config.write_text(text.replace("SESNN(", "SeSnn(").replace("ELBO(", "Elbo("))
    assert [metrics["epoch"] for metrics in fit(2, resume=True).history] == [1, 2]


def test_an_evaluation_with_former_fields_is_read() -> None:
    stored = json.loads((STORED / "evaluation.json").read_text())
    assert "doubt" in stored
    evaluation = Evaluation.load(STORED / "evaluation.json")
    written = evaluation.to_json()
    assert "doubt" not in written
    assert written["uncertainty"] == stored["doubt"]
    assert Evaluation.from_json(written) == evaluation
