"""What a run shows of itself: a line for each epoch, with the time that is left."""

import pytest

from dubio.training import callbacks

METRICS = {"loss": 0.5, "divergence": 0.0, "seconds": 3.0}


def lines_of(ends: list[tuple[int, float]], epochs: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is left, as it is notes after epochs that end at these seconds."""
    now = 0.0
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: now)
    notes: list[str] = []
    lines = callbacks.ProgressLines(epochs)
    monkeypatch.setattr(lines, "note", notes.append)
    for number, now in ends:  # noqa: B007, which is what the clock says
        lines.epoch({"epoch": number, **METRICS})
    return notes


def test_the_time_left_does_not_count_what_only_the_first_epoch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = lines_of([(1, 30.0), (2, 32.0), (3, 35.0)], 10, monkeypatch)
    assert notes == [
        "epoch 1/10  loss 0.5  270 s left",
        "epoch 2/10  loss 0.5  16 s left",
        "epoch 3/10  loss 0.5  18 s left",  # 2.5 s each
    ]


def test_a_resumed_run_tells_what_is_left_from_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = lines_of([(8, 30.0), (9, 32.0), (10, 34.0)], 10, monkeypatch)
    assert [line.rpartition("  ")[2] for line in notes] == ["60 s left", "2 s left", "0 s left"]


@pytest.mark.parametrize(("epochs", "count"), [(1, 1), (20, 20), (39, 21), (200, 21), (1000, 21)])
def test_a_run_has_about_twenty_lines_with_its_first_and_last_epoch(
    epochs: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = lines_of([(number, float(number)) for number in range(1, epochs + 1)], epochs, monkeypatch)
    assert len(notes) == count
    assert notes[0].startswith(f"epoch 1/{epochs}  ")
    assert notes[-1].startswith(f"epoch {epochs}/{epochs}  ")


def test_a_first_epoch_that_takes_long_shows_life_after_ten_seconds_and_then_every_half_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: now)
    notes: list[str] = []
    lines = callbacks.ProgressLines(5, 390)
    monkeypatch.setattr(lines, "note", notes.append)
    for batch in range(1, 91):
        now = float(batch)
        lines.batch(0, batch, 2.5)
    assert notes == [f"epoch 1/5: {batch} of 390 batches in {batch} s, loss 2.5" for batch in (10, 40, 70)]
    lines.epoch({"epoch": 1, **METRICS})
    now = 1000.0
    lines.batch(1, 3, 2.5)
    assert len(notes) == 4
