"""Evaluations as files: there and back, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import dubio
from dubio.evaluation.records import Evaluation, failures


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.3).convert(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    images = torch.rand(40, 1, 4, 4)
    examples = dubio.data.Examples(images, torch.randint(3, (40,)), ("a", "b", "c"), "squares")
    return dubio.evaluate(
        model, examples, ood={"noise": torch.rand(20, 1, 4, 4)}, corruptions=("blur",), num_samples=20, num_resamples=10
    )


def test_an_evaluation_goes_to_a_file_and_back(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.save(tmp_path / "evaluation.json")
    assert Evaluation.load(tmp_path / "evaluation.json") == evaluation


def test_a_file_is_plain_json_without_nan(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.save(tmp_path / "evaluation.json")
    text = (tmp_path / "evaluation.json").read_text()
    assert "NaN" not in text
    assert None in json.loads(text)["reliability"]["accuracy"]  # an empty bin


def test_thumbnails_are_the_images(evaluation: Evaluation) -> None:
    import base64

    first = evaluation.notable["most uncertain"][0]
    assert first.image is not None
    assert first.image.shape == (1, 4, 4)
    assert len(base64.b64decode(first.image.pixels)) == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "dubio-evaluation-9"}, "format 'dubio-evaluation-1', got 'dubio-evaluation-9'"),
        ({"novelty": 1}, r"unknown fields \['novelty'\]; was the file written by a newer version"),
        ({"num_samples": "many"}, "Evaluation.num_samples has a value of the wrong kind, 'many'"),
        ({"kind": "ranking"}, "Evaluation.kind has a value of the wrong kind, 'ranking'"),
        ({"metrics": {"accuracy": {"value": "high"}}}, "Evaluation.metrics.accuracy.value has a value of the wrong"),
        ({"metrics": {"accuracy": {}}}, "Evaluation.metrics.accuracy cannot be read"),
        ({"classes": 3}, "Evaluation.classes has a value of the wrong kind, 3"),
    ],
)
def test_what_is_no_evaluation_is_refused(
    evaluation: Evaluation, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps(evaluation.to_json() | change))
    with pytest.raises(ValueError, match=message):
        Evaluation.load(file)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(ValueError, match=r"evaluation\.json does not hold an evaluation"):
        Evaluation.load(tmp_path / "evaluation.json")


def test_an_evaluation_prints_as_a_short_table(evaluation: Evaluation) -> None:
    lines = str(evaluation).splitlines()
    assert lines[0] == "classification of 40 examples of squares, 20 draws, seed 0"
    accuracy = evaluation.metrics["accuracy"]
    assert f"accuracy {accuracy}" in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("AUROC on noise by entropy ") for line in lines)
    sentences = " ".join(failures(evaluation))
    num_sentence_lines = len(lines) - (1 + len(evaluation.metrics) + 2)
    assert " ".join(lines[1 : 1 + num_sentence_lines]) == sentences
    assert len(str(evaluation)) < 2000
    assert max(map(len, lines)) <= 80


def test_an_evaluation_is_a_flat_row_for_a_table(evaluation: Evaluation) -> None:
    row = evaluation.to_dict()
    assert (row["data"], row["num_examples"], row["num_samples"]) == ("squares", 40, 20)
    nll, auroc = evaluation.metrics["nll"], evaluation.unseen["noise"].scores["entropy"].auroc
    assert (row["nll"], row["nll_low"], row["nll_high"]) == (nll.value, nll.low, nll.high)
    assert row["auroc_entropy_noise"] == auroc.value
    assert all(value is None or isinstance(value, str | int | float) for value in row.values())
    json.dumps(row, allow_nan=False)
