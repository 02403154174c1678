"""Sentences about speed, with figures of the records that ``benchmarks/run.py`` writes."""

from collections.abc import Sequence

from peer_rows import Row, find, of, ratio

__all__ = ["epoch_in_words", "launches_in_words", "loading_in_words"]

STOOD_IN = {"MNIST": "28x28 images", "CIFAR-10": "32x32 images"}
"""What random images are called that stood in for data."""


def epoch_in_words(record: Row) -> str:
    """What was trained: on data by their name only where it was they."""
    what = str(record["what"])
    if record["data"] == "random images":
        for data, images in STOOD_IN.items():
            what = what.replace(data, images)
    return what


def launches_in_words(engine: Sequence[Row], peers: Row) -> str:
    """What a draw of a ResNet-18 takes, of many one by one, and of few one by one and mapped."""
    own = of(peers["predictions"], "resnet18")
    many = [find(own, f"dubio local, {precision}") or {} for precision in ("tf32", "bf16")]
    num_images, num_samples = many[0].get("num_images"), many[0].get("num_samples")
    rows = [row for row in engine if num_images is not None and row.get("rows") == num_images]
    few = [[row for row in rows if row["executor"] == executor] for executor in ("loop", "vmap")]
    if not all("milliseconds" in row for row in many) or any(len(pair) < 2 for pair in few):
        return "Draws one by one and mapped are not measured side by side."
    looped, mapped = (_of_a_draw(pair) for pair in few)
    return (
        f"Draws one by one hang on the host: of {num_samples} draws of {num_images:,} images below, each took "
        f"{_of_a_draw(many)} ms in tf32 and bf16; of {rows[0]['num_samples']} draws, each took {looped} ms one by one "
        f"and {mapped} ms mapped."
    )


def loading_in_words(records: Sequence[Row]) -> str:
    """A shuffled pass over the images of MNIST, beside what ``DataLoader`` takes."""
    ours, *others = records
    text = ", ".join(f"{ratio(row['seconds'] / ours['seconds'])} times as long by `{row['loader']}`" for row in others)
    return f"A shuffled pass over 60,000 images of 28x28 takes {ours['seconds']:.2g} s, {text}."


def _of_a_draw(rows: Sequence[Row]) -> str:
    return " and ".join(f"{row['milliseconds'] / row['num_samples']:.1f}" for row in rows)
