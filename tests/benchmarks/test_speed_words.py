"""Sentences about speed that pages have from records, and parts of the benchmarks that need a GPU."""

from typing import Any

import pytest
import torch


@pytest.mark.parametrize(
    ("what", "data", "told"),
    [
        ("ResNet-18 on CIFAR-10, bf16", "cifar10", "ResNet-18 on CIFAR-10, bf16"),
        ("ResNet-18 on CIFAR-10, bf16", "random images", "ResNet-18 on 32x32 images, bf16"),
        ("an MLP on MNIST", "random images", "an MLP on 28x28 images"),
    ],
)
def test_data_are_named_only_where_they_were_learned_from(what: str, data: str, told: str) -> None:
    from speed_words import epoch_in_words

    assert epoch_in_words({"what": what, "data": data}) == told


def test_an_epoch_is_named_after_what_was_learned_from() -> None:
    from fitting import data_in_words

    assert data_in_words("cifar10", "cifar10") == "CIFAR-10"
    assert data_in_words("cifar10", "random images") == "32x32 images"
    assert data_in_words("mnist", "random images") == "28x28 images"


def predicted(executor: str, precision: str, milliseconds: float, rows: int = 1_000) -> dict[str, Any]:
    row = {"what": "predict images of 32x32", "num_samples": 20, "rows": rows, "precision": precision}
    return {**row, "executor": executor, "milliseconds": milliseconds}


def test_draws_one_by_one_and_mapped_are_told_for_as_many_images() -> None:
    from speed_words import launches_in_words

    engine = [
        {"what": "training step", "estimator": "local", "executor": "loop", "num_samples": 1, "milliseconds": 1.0},
        predicted("loop", "tf32", 900.0, rows=500),
        predicted("vmap", "tf32", 190.0),
        predicted("loop", "tf32", 230.0),
        predicted("vmap", "bf16", 180.0),
        predicted("loop", "bf16", 240.0),
        predicted("auto", "bf16", 240.0),
    ]
    many = [
        {"net": "resnet18", "contestant": label, "num_samples": 100, "num_images": 1_000, "milliseconds": milliseconds}
        for label, milliseconds in (("dubio local, tf32", 800.0), ("dubio local, bf16", 700.0))
    ]
    assert launches_in_words(engine, {"predictions": many}) == (
        "Draws one by one hang on the host: of 100 draws of 1,000 images below, each took 8.0 and 7.0 ms in tf32 and "
        "bf16; of 20 draws, each took 11.5 and 12.0 ms one by one and 9.5 and 9.0 ms mapped."
    )
    gap = "Draws one by one and mapped are not measured side by side."
    assert launches_in_words(engine, {"predictions": many[:1]}) == gap
    assert launches_in_words(engine[:3], {"predictions": many}) == gap
    assert launches_in_words(engine, {"predictions": []}) == gap


def test_loading_is_told_beside_torch() -> None:
    from speed_words import loading_in_words

    loaders = {"dubio.data.Loader": 0.05, "DataLoader(TensorDataset)": 0.25}
    told = loading_in_words([{"loader": name, "seconds": seconds} for name, seconds in loaders.items()])
    assert told == (
        "A shuffled pass over 60,000 images of 28x28 takes 0.05 s, 5.0 times as long by `DataLoader(TensorDataset)`."
    )


def test_epochs_are_refused_without_a_gpu_before_any_work(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    import fitting

    monkeypatch.setattr(fitting, "training_data", lambda *arguments: pytest.fail("data were loaded"))
    with pytest.raises(SystemExit, match="fitting needs a GPU"):
        fitting.measure(cpu)


def test_what_is_left_out_on_a_cpu_is_said(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import engine

    monkeypatch.setattr(engine, "WIDTHS", (4, 8, 3))
    monkeypatch.setattr(engine, "median_ms", lambda work, device, **options: 1.0)
    assert len(engine.measure(cpu)) == 13
    assert "left out: predictions of a ResNet-18, by executor, rows and precision" in capsys.readouterr().out
