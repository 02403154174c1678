"""Transfer tables: whose images, whose draws, what is counted, and what a file keeps."""

import importlib
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio.attacks.gradient import PGD
from dubio.attacks.score import TransferTable, transfer_table

harness = importlib.import_module("dubio.attacks.score")

NUM_CLASSES, NUM_PIXELS = 3, 6


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    """Inputs in [0, 1] and the label of the largest of the first three numbers, with some labels wrong."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(240, NUM_PIXELS, generator=generator)
    targets = inputs[:, :NUM_CLASSES].argmax(dim=1)
    targets[:12] = (targets[:12] + 1) % NUM_CLASSES
    return inputs, targets


@pytest.fixture(scope="module")
def networks(data: tuple[Tensor, Tensor]) -> dict[str, nn.Module]:
    made: dict[str, nn.Module] = {}
    for number, name in enumerate(("first", "second")):
        torch.manual_seed(number)
        made[name] = dubio.models.mlp(NUM_PIXELS, 24, NUM_CLASSES)
        dubio.fit(made[name], data, epochs=20, lr=0.02, progress=False)
    made["bayes"] = dubio.Bayes(init_std=0.3).convert(made["first"])
    return made


@pytest.fixture(scope="module")
def table(networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]) -> TransferTable:
    sources = {name: networks[name] for name in ("first", "second")}
    return transfer_table(sources, PGD(epsilon=0.15), networks, *data, num_draws=8, seed=2)


@pytest.mark.feature("Transfer tables: images made on some networks, tried on others draw by draw, failures counted")
@pytest.mark.parametrize("epsilon", [0.05, 0.9])
def test_t24_a_source_is_right_on_its_own_images_only_where_the_attack_failed(
    epsilon: float, networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]
) -> None:
    sources = {name: networks[name] for name in ("first", "second")}
    found = transfer_table(sources, PGD(epsilon=epsilon), sources, *data, num_draws=1)
    own = torch.stack([found.accuracy[number, number, 0] for number in range(2)])
    assert torch.allclose(own, found.failures / len(data[0]))
    assert torch.allclose(found.clean[:, 0], 1.0 - found.wrong_before / len(data[0]))
    assert bool((found.wrong_before > 0).all())
    if epsilon == 0.9:
        assert found.failures.tolist() == [0, 0]
        assert own.tolist() == [0.0, 0.0]
    else:
        assert bool((found.failures > 0).all())


def test_images_that_the_source_has_wrong_stay_as_they_are(
    table: TransferTable, networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]
) -> None:
    inputs, targets = data
    for number, name in enumerate(table.sources):
        wrong = networks[name](inputs).argmax(dim=1) != targets
        moved = (table.adversarial[number] - inputs).abs().amax(dim=1)
        assert int(wrong.sum()) == table.wrong_before[number]
        assert moved[wrong].max() == 0.0
        assert moved[~wrong].min() > 0.0
        assert moved.max() <= 0.15


def test_a_draw_is_one_set_of_weights_for_all_images(networks: dict[str, nn.Module]) -> None:
    """So that many copies of one image are all right or all wrong, in any batch."""
    inputs, targets = torch.full((50, NUM_PIXELS), 0.5), torch.zeros(50, dtype=torch.long)
    found = transfer_table(
        {"first": networks["first"]}, PGD(epsilon=0.0), {"bayes": networks["bayes"]}, inputs, targets, 40, batch_size=7
    )
    assert set(found.accuracy.flatten().tolist()) == {0.0, 1.0}


def test_draws_are_those_of_the_engine_and_do_not_depend_on_the_batch_size(
    table: TransferTable, networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]
) -> None:
    seed = table.provenance["seeds"]["draws"]
    with dubio._engine.Using(estimator="weight"), torch.no_grad():
        logits = dubio.sample(networks["bayes"].eval(), table.adversarial[1], 8, seed=seed)
    expected = (logits.argmax(dim=-1) == data[1]).float().mean(dim=1)
    assert torch.allclose(table.accuracy[1, 2], expected)
    assert table.std[1, 2] > 0.0
    sources = {name: networks[name] for name in table.sources}
    cut = transfer_table(sources, PGD(epsilon=0.15), networks, *data, num_draws=8, seed=2, batch_size=50)
    assert torch.allclose(cut.accuracy, table.accuracy)


def test_draws_may_come_a_few_at_a_time(
    table: TransferTable, networks: dict[str, nn.Module], data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "stream", partial(dubio._engine.stream, chunk=3))
    sources = {name: networks[name] for name in table.sources}
    again = transfer_table(sources, PGD(epsilon=0.15), networks, *data, num_draws=8, seed=2, batch_size=100)
    assert torch.allclose(again.accuracy, table.accuracy)


def test_mean_and_std_are_over_draws(table: TransferTable) -> None:
    values = table.accuracy[0, 2].double()
    assert table.mean[0, 2].item() == pytest.approx(values.mean().item())
    assert table.std[0, 2].item() == pytest.approx(
        math.sqrt(((values - values.mean()) ** 2).sum().item() / 7), rel=1e-5
    )
    assert table.std[0, :2].tolist() == [0.0, 0.0]  # deterministic
    assert table.mean.shape == table.std.shape == (2, 3)


def test_the_std_of_one_draw_is_not_a_number(networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]) -> None:
    networks = {"first": networks["first"]}
    assert transfer_table(networks, PGD(epsilon=0.1), networks, *data, num_draws=1).std.isnan().all()


def test_distortion_is_the_mean_root_mean_square() -> None:
    """E-27 of (3, 4) and nothing: sqrt(25 / 2) / 2."""
    moved = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])
    assert functional.adversarial.distortion(moved).item() == pytest.approx(math.sqrt(12.5) / 2.0)


def test_the_table_tells_the_distortion_of_each_source(table: TransferTable, data: tuple[Tensor, Tensor]) -> None:
    for number in range(2):
        moved = (table.adversarial[number] - data[0]).numpy()
        assert table.distortion[number].item() == pytest.approx(np.sqrt((moved**2).mean(axis=1)).mean(), rel=1e-5)
    assert 0.0 < table.distortion.max() <= 0.15


def test_attack_and_draws_have_seeds_of_their_own_and_are_repeated_by_one(
    table: TransferTable, networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]
) -> None:
    assert len(set(table.provenance["seeds"].values())) == 4
    assert f"seed={table.provenance['seeds']['attack']}" in table.provenance["attack"]
    assert table.provenance["inputs_sha256"] == harness._hash(*data) != harness._hash(data[0], 1 - data[1])
    sources = {name: networks[name] for name in table.sources}
    again, other = (
        transfer_table(sources, PGD(epsilon=0.15, seed=77), networks, *data, num_draws=8, seed=seed) for seed in (2, 3)
    )
    assert torch.equal(again.adversarial, table.adversarial)
    assert torch.equal(again.accuracy, table.accuracy)
    assert not torch.equal(other.accuracy, table.accuracy)


def test_functions_take_part(data: tuple[Tensor, Tensor]) -> None:
    """One that ignores its input has the accuracy of a coin at every draw, and its failures are counted."""

    def largest(inputs: Tensor) -> Tensor:
        return 20.0 * inputs[:, :NUM_CLASSES]

    def coin(inputs: Tensor) -> Tensor:
        return torch.rand(len(inputs), NUM_CLASSES)

    found = transfer_table({"largest": largest}, PGD(epsilon=0.02), {"largest": largest, "coin": coin}, *data, 50)
    assert found.wrong_before.tolist() == [12]
    assert torch.allclose(found.accuracy[0, 0], (found.failures / 240).expand(50))
    error = math.sqrt(1 / 3 * 2 / 3 / (240 * 50))
    assert abs(found.mean[0, 1].item() - 1 / 3) < 4 * error
    assert found.std[0, 1] > 0.0


def test_a_source_that_is_always_wrong_is_left_alone(data: tuple[Tensor, Tensor]) -> None:
    inputs, targets = data

    def never(images: Tensor) -> Tensor:
        return -nn.functional.one_hot(targets[: len(images)], NUM_CLASSES).float()

    found = transfer_table({"never": never}, PGD(epsilon=0.1), {"never": never}, inputs, targets, 2)
    assert torch.equal(found.adversarial[0], inputs)
    assert (found.failures.item(), found.wrong_before.item(), found.distortion.item()) == (0, 240, 0.0)


def test_networks_are_as_they_were(networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]) -> None:
    model = networks["bayes"].train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    transfer_table({"bayes": model}, PGD(epsilon=0.1, num_samples=2, steps=2), {"bayes": model}, *data, 2)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_a_file_keeps_the_whole_table(table: TransferTable, tmp_path: Path) -> None:
    table.save(tmp_path / "table.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["table.safetensors"]
    back = TransferTable.load(tmp_path / "table.safetensors")
    assert (back.sources, back.evaluated) == (("first", "second"), ("first", "second", "bayes"))
    assert back.provenance == table.provenance
    for name in ("accuracy", "clean", "distortion", "failures", "wrong_before", "adversarial", "mean", "std"):
        assert torch.equal(getattr(back, name), getattr(table, name)), name


def test_a_file_that_is_damaged_or_something_else_is_refused(table: TransferTable, tmp_path: Path) -> None:
    path = tmp_path / "table.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        TransferTable.load(path)
    table.save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: its contents do not match their hash"):
        TransferTable.load(path)
    path.write_bytes(content[:-50])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        TransferTable.load(path)
    dubio.save(dubio.Bayes().convert(dubio.models.mlp(2, 2)), path)
    with pytest.raises(ValueError, match="has format 'dubio-1', and a transfer table has 'dubio-transfer-1'"):
        TransferTable.load(path)


def test_bad_arguments_are_refused(networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="sources and evaluated must name at least one network each, got 3 and 0"):
        transfer_table(networks, PGD(), {}, *data)
    with pytest.raises(ValueError, match="attack must leave the labels given"):
        transfer_table(networks, PGD(targeted=True), networks, *data)
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        transfer_table(networks, PGD(), networks, *data, num_draws=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        transfer_table(networks, PGD(), networks, *data, batch_size=0)
