"""How predictions of other libraries are timed: with the rows at a time that suit each best."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


class Drawer:
    """A contestant that takes a second for its draws in every batch, and some time for each row."""

    kind, name, library, precision, sizes_batches = "peer", "drawer", "none", "fp32", False

    def __init__(self, clock: list[float], seconds_a_row: Callable[[int], float]) -> None:
        self.clock, self.seconds_a_row = clock, seconds_a_row

    def prediction(self, net: Any, num_samples: int, images: torch.Tensor, rows: int | None = None) -> Any:
        def predict() -> torch.Tensor:
            for batch in images.split(rows or len(images)):
                if self.seconds_a_row(len(batch)) < 0.0:
                    raise torch.OutOfMemoryError("no room")
                self.clock[0] += 1.0 + len(batch) * self.seconds_a_row(len(batch))
            return images.sum(dim=1)

        return predict


@pytest.mark.parametrize(
    ("seconds_a_row", "best"),
    [
        (lambda rows: 0.0, 2_000),
        (lambda rows: 0.0 if rows <= 256 else 1.0, 256),
        (lambda rows: 0.0 if rows <= 1_000 else 1.0, 1_000),
        (lambda rows: 0.0 if rows <= 1_000 else -1.0, 1_000),
    ],
    ids=["draws cost most", "rows fit into a cache", "many do not", "all run out of memory"],
)
def test_peers_predict_with_the_rows_at_a_time_that_suit_them_best(
    seconds_a_row: Callable[[int], float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import timing
    from peers.nets import TINY
    from peers.predicting import best_prediction, rows_to_try

    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    images = torch.rand(2_000, 8)
    assert rows_to_try(images) == (256, 1_000, 2_000)
    found = best_prediction(Drawer(clock, seconds_a_row), TINY["8-16-3"], 10, images)
    assert found.rows == best
    assert found.milliseconds == 1e3 * -(-2_000 // best)
    assert found.shape == (2_000,)


def test_who_fails_with_all_rows_at_a_time_fails() -> None:
    from peers.nets import TINY
    from peers.predicting import best_prediction

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        best_prediction(Drawer([0.0], lambda rows: -1.0), TINY["8-16-3"], 10, torch.rand(6, 8))


def test_predictions_are_slow_by_a_warm_call(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call of an hour, such as one that compiles, does not make the others rare."""
    import peers
    import timing
    from peers.entries import Entry

    clock, seconds, calls = [0.0], iter([3600.0]), []

    def predict() -> torch.Tensor:
        clock[0] += next(seconds, 0.25)
        calls.append(clock[0])
        return torch.zeros(6)

    one = Drawer(clock, lambda rows: 0.0)
    monkeypatch.setattr(one, "prediction", lambda *arguments: predict)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    (row,) = peers._predictions(peers.TINY["8-16-3"], [Entry(one, (1,))], 2, cpu, seconds=0.0)
    assert len(calls) == 3 + peers.WARM_UPS + row["repetitions"]
    assert row["milliseconds"] == 250.0
