"""What tables and sentences say of records of dubio beside other libraries: ratios, machines, memory, one draw."""

import inspect
from typing import Any

import pytest

import dubio

NET = "784-1200-1200-10"


@pytest.mark.parametrize(
    ("value", "told"),
    [(39.16, "39"), (104.98, "100"), (1.0, "1.0"), (0.996, "1.0"), (0.0881, "0.088"), (9.96, "10"), (1_234.0, "1,200")],
)
def test_a_ratio_has_two_figures(value: float, told: str) -> None:
    from peer_rows import ratio

    assert ratio(value) == told


def test_speeds_by_the_fastest_runs_and_seconds_to_build_are_told_where_recorded(record: dict[str, Any]) -> None:
    import peer_tables

    fastest = {"slow, tf32": 20.0, "dubio, tf32": 0.4}
    for row in record["steps"]:
        if row["num_samples"] == 10 and row["contestant"] in fastest:
            row |= {"fastest": fastest[row["contestant"]], "how": "eager", "seconds_to_build": 0.3}
    record["steps"][-2] |= {"how": "captured", "seconds_to_build": 9.96}
    rows = {row[0]: row for row in peer_tables.PEER_TABLES["peer-steps"](record, NET).rows}
    assert rows["dubio, tf32"][4:] == ("10", "16", "80", "50", "40")
    assert rows["slow, tf32"][4:] == ("-", "1.0", "1.0", "1.0", "0.50")


@pytest.mark.parametrize(("label", "told"), [("dubio, tf32", "would be in fp32"), ("dubio local, fp32", "is `dubio")])
def test_which_row_fit_gives_by_default_is_told(label: str, told: str, record: dict[str, Any]) -> None:
    import peer_tables

    record["contestants"][label] = record["contestants"]["dubio, tf32"]
    record["steps"][-2]["contestant"] = label
    assert f"What `fit` gives by default {told}" in peer_tables.PEER_TABLES["peer-steps"](record, NET).about


def test_the_default_of_fit_is_what_the_tables_call_it() -> None:
    from peer_tables import DEFAULT

    precision = inspect.signature(dubio.fit).parameters["precision"].default
    assert f"dubio {dubio.Bayes().estimator}, {precision}" == DEFAULT


def test_the_machine_is_told_with_its_processor_threads_and_load(record: dict[str, Any]) -> None:
    from peer_words import machine_in_words

    assert machine_in_words("one GPU", record, (NET,)) == "one GPU"
    record["settings"] |= {"device": "cuda", "processor": "Xeon", "threads": 16, "load_before": 0.5}
    record["settings"]["nets"][NET]["load_after"] = 6.25
    told = "(Xeon, 16 threads, load average 0.5 before and 6.2 after)"
    assert machine_in_words("one GPU", record, (NET,)) == f"one GPU {told}"
    record["settings"]["device"] = "cpu"
    assert machine_in_words("CPU, 16 threads", record, ()) == f"CPU {told}"
    record["settings"]["nets"][NET]["load_before"] = 0.75
    record["settings"]["nets"]["other"] = {"load_before": 0.25, "load_after": 1.0}
    assert "0.2 to 0.8 before and 1.0 to 6.2 after" in machine_in_words("CPU, 16 threads", record, ())
    assert "0.8 before and 6.2 after" in machine_in_words("CPU, 16 threads", record, (NET,))


def test_speed_with_one_draw_is_told_where_it_is_less(record: dict[str, Any]) -> None:
    from peer_words import PEER_SENTENCES

    assert PEER_SENTENCES["peer-one-draw"](record) == (
        "With one draw (S = 1) the fastest step of dubio is never slower: a step of "
        f"{NET} takes 0.25 ms (dubio, tf32), that of the fastest peer 4 ms (slow, tf32)."
    )
    record["steps"][3]["milliseconds"] = 5.0
    assert "is slower than the fastest peer for 1 of 1 networks: " in PEER_SENTENCES["peer-one-draw"](record)
    record["steps"] = [row for row in record["steps"] if row["num_samples"] == 10]
    assert PEER_SENTENCES["peer-one-draw"](record) == "Steps with one draw are not measured."


def test_what_compiling_takes_and_gives_is_told(record: dict[str, Any]) -> None:
    from peer_words import PEER_SENTENCES

    assert PEER_SENTENCES["peer-building"](record) == "Compiled steps are not measured."
    record["steps"][-2] |= {"how": "eager"}
    for seconds, milliseconds in ((17.0, 0.25), (1.6, 0.5)):
        compiled = {**record["steps"][-2], "contestant": "dubio, compiled, tf32", "how": "compiled"}
        record["steps"].append({**compiled, "seconds_to_build": seconds, "milliseconds": milliseconds})
    assert PEER_SENTENCES["peer-building"](record) == (
        "Compiled steps took 17 s to build for the first one in a process, and 1.6 s for the others, some of it "
        "perhaps from the compiler's cache on disk; they were 1.0 to 2.0 times as fast as eager ones."
    )
    record["settings"]["compiler_cache"] = "empty"
    assert "1.6 s for the others, with an empty cache on disk; they were" in PEER_SENTENCES["peer-building"](record)


def test_weights_mapped_by_hand_are_told_beside_ours(record: dict[str, Any]) -> None:
    from peer_words import PEER_SENTENCES

    assert PEER_SENTENCES["peer-mapped"](record) == "Weights mapped by hand are not measured."
    for label, milliseconds in (("vmap by hand, tf32", 30.0), ("dubio local, tf32", 31.0)):
        record["contestants"][label] = record["contestants"]["plain, tf32"]
        record["predictions"].append({**record["predictions"][0], "contestant": label, "milliseconds": milliseconds})
    told = "In tf32 a few lines with `vmap` predict faster than dubio for 1 of 1 networks: "
    assert PEER_SENTENCES["peer-mapped"](record) == f"{told}{NET} 30 ms against 31 ms."


def test_a_line_tells_the_default_beside_the_fastest_peer(record: dict[str, Any]) -> None:
    from peer_words import PEER_SENTENCES

    assert PEER_SENTENCES["peer-line"](record) == f"{NET} is not measured."
    for one in record["contestants"].values():
        one["precision"] = "fp32"
    record["contestants"]["dubio local, fp32"] = record["contestants"]["dubio, tf32"]
    record["steps"][-2]["contestant"] = record["predictions"][1]["contestant"] = "dubio local, fp32"
    assert PEER_SENTENCES["peer-line"](record) == (
        f"{NET}: a step with S = 10 takes 0.5 ms (dubio local, fp32), by the fastest peer 20 ms (slow, bf16); "
        "predicting 10,000 images with S = 100 takes 50 ms (dubio local, fp32), by the fastest peer 1,234 ms "
        "(slow, tf32)."
    )


def test_memory_is_told_beside_the_thriftiest_and_apart_from_building(record: dict[str, Any]) -> None:
    import peer_tables

    record["settings"]["device"] = "cuda"
    record["steps"][-2]["peak_mib"] = 660.0
    found = peer_tables.PEER_TABLES["peer-memory"](record, NET)
    told = "With S = 10 `dubio, tf32` takes 2.2 times the memory that the thriftiest peer takes in the same precision."
    assert told in found.about
    assert found.about.endswith("they do not rise evenly with draws.")
    record["steps"][-2]["peak_mib_to_build"] = 900.0
    found = peer_tables.PEER_TABLES["peer-memory"](record, NET)
    assert found.headings[-1] == "to build, S = 10"
    assert ("dubio, tf32", "40", "660", "900") in found.rows
    assert found.about.endswith(told)


def test_epochs_are_of_the_networks_that_have_published_ones(record: dict[str, Any]) -> None:
    import peer_tables

    small = "1-400-400-1"
    record["settings"]["nets"][small] = {"batch": 128, "num_data": 1_000}
    about = peer_tables.PEER_TABLES["peer-epochs"](record, "").about
    assert about.endswith("1-400-400-1: 1,000 examples in batches of 128.")
    assert NET not in about
    assert NET not in peer_tables.SHOWN["peer-epochs"]
    assert small in peer_tables.SHOWN["peer-epochs"]
