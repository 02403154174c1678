"""Images of a prediction are laid out channels last where it is faster and the network gives the same outputs."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine import memory
from dubio._engine.passes import is_transformed
from dubio._engine.probe import LoopOnlyError

predict_module = importlib.import_module("dubio.prediction.predict")

IMAGES = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(1))


def flattened(maps: Tensor) -> Tensor:
    return maps.flatten(1)


def viewed(maps: Tensor) -> Tensor:
    return maps.view(len(maps), -1)


def read_as_it_lies(maps: Tensor) -> Tensor:
    if is_transformed():
        raise LoopOnlyError("not over draws")
    return maps.as_strided((len(maps), 36), (36, 1))


def not_mapped(maps: Tensor) -> Tensor:
    if is_transformed() and not SEEN[-1][1]:
        raise RuntimeError("not over draws")
    return maps.flatten(1)


class Convolving(nn.Module):
    """A convolution and a head; it records the layout of its images."""

    def __init__(self, flatten: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convolution, self.head, self.flatten = nn.Conv2d(2, 4, 3), nn.Linear(36, 3), flatten

    def forward(self, images: Tensor, shift: Tensor | None = None) -> Tensor:
        SEEN.append((len(images), images.is_contiguous(), shift is None or shift.is_contiguous()))
        maps = self.convolution(images if shift is None else images + shift)
        return self.head(self.flatten(maps))


SEEN: list[tuple[int, bool, bool]] = []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that convolves images faster channels last."""
    monkeypatch.setattr(memory, "DEVICES", ("cpu",))
    monkeypatch.setattr(predict_module, "WORTH_A_TRIAL", 1)
    SEEN.clear()


def network(flatten: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    init_std = 1e-6 if flatten is not_mapped else 0.3  # one draw is like two
    return dubio.Bayes(init_std=init_std).convert(Convolving(flatten))


def predicted(model: nn.Module, images: Any = IMAGES, **options: Any) -> Tensor:
    SEEN.clear()
    samples = dubio.predict(model, images, 4, seed=3, **options).samples
    assert samples is not None
    return samples


def lay_in_rows() -> bool:
    """Whether the images of the prediction itself, not of a trial, lay channels first."""
    (result,) = {in_rows for rows, in_rows, _ in SEEN if rows == len(IMAGES)}
    return result


@pytest.mark.parametrize("executor", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("noise_off", [False, True])
def test_images_are_laid_out_and_predictions_stay_what_they_are(
    executor: Any, noise_off: bool, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(flattened)
    strides = [parameter.stride() for parameter in model.parameters()]
    with dubio.noise_off() if noise_off else dubio.antithetic():
        result = predicted(model, executor=executor)
        assert not lay_in_rows()
        assert [parameter.stride() for parameter in model.parameters()] == strides
        assert IMAGES.is_contiguous()
        monkeypatch.setattr(memory, "DEVICES", ())
        torch.testing.assert_close(result, predicted(model, executor=executor))
        assert lay_in_rows()


@pytest.mark.parametrize(
    ("flatten", "executor"),
    [(viewed, "loop"), (viewed, "auto"), (read_as_it_lies, "loop"), (read_as_it_lies, "auto"), (not_mapped, "auto")],
)
def test_a_network_that_does_not_give_the_same_in_the_same_way_keeps_its_images(
    flatten: Callable[[Tensor], Tensor], executor: Any, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(flatten)
    result = predicted(model, executor=executor)
    assert lay_in_rows()
    monkeypatch.setattr(memory, "DEVICES", ())
    torch.testing.assert_close(result, predicted(network(flatten), executor=executor), rtol=0.0, atol=0.0)


def in_one_piece(maps: Tensor) -> Tensor:
    assert SEEN[-1][1]
    return maps.flatten(1)


def for_so_many_rows(maps: Tensor) -> Tensor:
    return maps.flatten(1) + maps[5].sum()


@pytest.mark.parametrize("flatten", [in_one_piece, for_so_many_rows])
@pytest.mark.parametrize("executor", ["loop", "auto"])
def test_a_network_that_fails_in_the_trial_alone_predicts_as_ever(
    flatten: Callable[[Tensor], Tensor], executor: Any, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = predicted(network(flatten), executor=executor)
    assert lay_in_rows()
    monkeypatch.setattr(memory, "DEVICES", ())
    torch.testing.assert_close(result, predicted(network(flatten), executor=executor))


class Choosing(Convolving):
    """Depends on its arguments."""

    def forward(self, images: Tensor, shift: Tensor | None = None, how: Any = "flatten") -> Tensor:
        self.flatten = viewed if "view" in how or shift is not None else flattened
        return super().forward(images, shift)


def test_a_network_is_tried_for_every_way_to_call_it(gpu: None) -> None:
    model = dubio.Bayes().convert(Choosing(flattened))
    shift = torch.zeros(1, 2, 5, 5)
    for more, shared, in_rows in (({}, (), False), ({"how": "view"}, (), True), ({"shift": shift}, ("shift",), True)):
        predicted(model, {"images": IMAGES, **more}, shared=shared)
        assert lay_in_rows() == in_rows
    predicted(model, {"images": IMAGES, "how": {"flatten"}})  # which may become another between two calls
    assert lay_in_rows()
    model = network(lambda maps: maps.view(-1, 36))
    predicted(model, IMAGES[:1])  # of one row, this is a view channels last, too
    predicted(model)
    assert lay_in_rows()


def test_another_layout_is_tried_anew_for_another_network(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes().convert(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3)))
    predicted(model, executor="loop")

    class Reading(nn.Module):
        """Takes numbers as they lie."""

        def forward(self, maps: Tensor) -> Tensor:
            return maps.view(len(maps), 36) if is_transformed() else read_as_it_lies(maps)

    model[1] = Reading()
    result = predicted(model, executor="loop")
    monkeypatch.setattr(memory, "DEVICES", ())
    torch.testing.assert_close(result, predicted(model, executor="loop"))


def for_few_rows(maps: Tensor) -> Tensor:
    return maps.flatten(1) if len(maps) < 4 else maps.view(len(maps), -1)


@pytest.mark.parametrize("executor", ["loop", "vmap", "auto"])
def test_a_network_that_fails_after_a_trial_predicts_as_ever(
    executor: Any, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(for_few_rows)
    result = predicted(model, executor=executor)
    predicted(model, executor=executor)
    assert lay_in_rows() is True, "it is not tried again"
    monkeypatch.setattr(memory, "DEVICES", ())
    torch.testing.assert_close(result, predicted(network(for_few_rows), executor=executor))


def test_outputs_may_be_infinite(gpu: None) -> None:
    model = network(flattened)
    model.head.register_forward_hook(lambda *values: values[-1].index_fill(1, torch.tensor([1]), -torch.inf))
    predicted(model)
    assert not lay_in_rows()


def test_what_ran_out_of_memory_is_tried_again(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, whole, calls = network(flattened), predict_module.map_draws, []

    def full(*values: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(*values)

    monkeypatch.setattr(predict_module, "map_draws", full)
    predicted(model)
    assert lay_in_rows()
    monkeypatch.setattr(predict_module, "map_draws", whole)
    predicted(model)
    assert not lay_in_rows()


def test_a_network_that_changes_its_inputs_changes_each_once(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifting(Convolving):
        """Works on its inputs in place."""

        def forward(self, images: Tensor, shift: Tensor | None = None) -> Tensor:
            return super().forward(images.sub_(1.0), None if shift is None else shift.add_(1.0))

    monkeypatch.setattr("dubio.prediction.inputs.WORTH_A_TRIAL", 1)
    monkeypatch.setattr("dubio.prediction.inputs.MODEST_ROWS", 4)
    model = dubio.Bayes().convert(Shifting(flattened))
    with dubio.noise_off():
        result = predicted(model, IMAGES.clone())
        shifted = predicted(model, (IMAGES.clone(), torch.zeros(1, 2, 5, 5)), shared=(1,), batch_size=6)
        monkeypatch.setattr(memory, "DEVICES", ())
        torch.testing.assert_close(result, predicted(model, IMAGES.clone(), batch_size=6))
        again = predicted(model, (IMAGES.clone(), torch.zeros(1, 2, 5, 5)), shared=(1,), batch_size=6)
        torch.testing.assert_close(shifted, again)


def test_looped_draws_need_not_be_mapped_in_either_layout(gpu: None) -> None:
    model = network(not_mapped)
    for executor, in_rows in (("auto", True), ("loop", False), ("auto", True)):
        predicted(model, executor=executor)
        assert lay_in_rows() == in_rows


def test_a_network_is_tried_once(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = network(flattened), []
    whole = predict_module._gives_the_same
    monkeypatch.setattr(predict_module, "_gives_the_same", lambda *values: tried.append(1) or whole(*values))
    predicted(model)
    predicted(model)
    assert len(tried) == 1
    predicted(model, precision="bf16")
    assert len(tried) == 2


def test_it_is_tried_only_where_it_is_worth_it(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_module, "_gives_the_same", lambda *values: 1 / 0)
    predicted(network(flattened), IMAGES.to(memory_format=torch.channels_last))
    monkeypatch.setattr(predict_module, "WORTH_A_TRIAL", 4 * len(IMAGES) + 1)
    predicted(network(flattened))
    assert lay_in_rows()
    monkeypatch.setattr(predict_module, "WORTH_A_TRIAL", 4 * len(IMAGES))
    with pytest.raises(ZeroDivisionError):
        predicted(network(flattened))
    with dubio.memory_limit("1 GiB"):
        predicted(network(flattened))
    monkeypatch.setattr(predict_module, "SHARE_OF_COPIES", 2**40)  # there is no room for one
    predicted(network(flattened))
    dubio.predict(dubio.Bayes().convert(nn.Linear(5, 3)), torch.randn(6, 5), 4)


def test_what_has_no_rows_is_left_as_it_is(gpu: None) -> None:
    shift = torch.randn(1, 2, 5, 5)
    model = network(flattened)
    result = predicted(model, {"images": IMAGES, "shift": shift}, shared=("shift",))
    assert all(in_rows for rows, _, in_rows in SEEN)
    assert not lay_in_rows()
    torch.testing.assert_close(result, predicted(model, (IMAGES + shift,)))


def test_a_trial_leaves_no_trace(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Convolving):
        """Counts its forwards."""

        def __init__(self) -> None:
            super().__init__(flattened)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, images: Tensor, shift: Tensor | None = None) -> Tensor:
            self.count += 1
            return super().forward(images, shift)

    counts = []
    for places in (("cpu",), ()):
        monkeypatch.setattr(memory, "DEVICES", places)
        model = dubio.Bayes().convert(Counting())
        torch.manual_seed(0)
        predicted(model, executor="loop")
        counts.append((float(model.count), torch.rand(()).item()))
    assert counts[0] == counts[1]


def test_a_network_that_fails_says_so_itself(gpu: None) -> None:
    with pytest.raises(ValueError, match="must have 36 features"):
        predicted(network(lambda maps: maps.flatten()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("executor", ["loop", "vmap", "auto"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.05)])
def test_on_a_gpu_images_are_laid_out_and_predictions_stay_what_they_are(
    executor: Any, precision: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 3))
    model = dubio.Bayes(init_std=0.1).convert(nn.Sequential(*layers)).cuda()
    images, lay = torch.rand(900, 3, 8, 8).cuda(), []
    model[0].register_forward_pre_hook(lambda module, args: lay.append(args[0].is_contiguous()))
    options: Any = {"seed": 3, "executor": executor, "precision": precision}
    result = dubio.predict(model, images, 20, **options).probs
    assert not lay[-1]
    monkeypatch.setattr(memory, "DEVICES", ())
    expected = dubio.predict(model, images, 20, **options).probs
    assert lay[-1]
    torch.testing.assert_close(result, expected, rtol=0.0, atol=tolerance)
