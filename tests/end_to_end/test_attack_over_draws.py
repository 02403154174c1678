"""Attacks over draws: the example itself, held to what it promises."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dubio
from dubio.attacks.black_box import RandomNoise
from dubio.attacks.score import score

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parents[2] / "examples" / "attack_over_draws.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example in its full size, but for the number of seeds."""
    monkeypatch.delenv("DUBIO_TINY", raising=False)
    spec = importlib.util.spec_from_file_location("attack_over_draws", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NUM_SEEDS", 1)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.feature("Of noise added to a network, an attack on one draw shows less than on fifty, and transfer more")
def test_one_draw_flatters_added_noise_and_transfer_tells(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    images = dubio.data.load_test("digits").tensors
    model = example.networks()["noise added"]
    clean = score(model, *images, num_samples=200, seed=1).predictive.value
    one, fifty = (example.left(model, "PGD", num_samples, images) for num_samples in (1, 50))
    mean_logit, transfer = (example.left(model, name, 20, images) for name in ("PGD, mean logits", "transfer"))
    with capsys.disabled():
        print(  # noqa: T201
            f"\nadded noise: clean {clean:.3f}, PGD K=1 {one:.3f}, K=50 {fifty:.3f}, mean logits {mean_logit:.3f}, "
            f"transfer {transfer:.3f}"
        )
    assert clean > 0.9
    assert one > fifty + 0.02
    assert mean_logit < fifty - 0.04
    assert transfer < fifty - 0.04


def test_flags_call_a_coin_broken_and_fresh_draws_do_not(example: ModuleType) -> None:
    inputs, zeros = torch.zeros(400, 3), torch.zeros(400, dtype=torch.long)
    tried = RandomNoise(epsilon=0.1, num_samples=1, tries=10, seed=0)(example.coin, inputs, zeros)
    assert tried.fooled.float().mean() > 0.98
    truth = score(example.coin, tried.inputs, zeros, num_samples=200, seed=1)
    assert truth.single.low < 0.51 < truth.single.high


def test_the_picture_is_drawn(example: ModuleType, tmp_path: Path) -> None:
    curves = {name: [0.5] * len(example.DRAWS) for name in example.COLOURS} | {"transfer": [0.4]}
    example.draw(tmp_path / "new" / "eot.png", {"one": curves, "other": curves})
    assert (tmp_path / "new" / "eot.png").read_bytes().startswith(b"\x89PNG")
