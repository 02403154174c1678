"""The page and its JSON: what stands in them, what is left out, and that text from elsewhere stays text."""

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from dubio.evaluation.comparison import pack
from dubio.evaluation.records import Estimate, Evaluation, UnseenSet
from dubio.report.elements import (
    Bars,
    Gallery,
    LineChart,
    Note,
    ReliabilityChart,
    Report,
    Stacks,
    Table,
    number,
    thinned,
)
from dubio.report.page import tabulate, write_report
from report.run_folders import (
    CLASSES,
    PRUNING,
    audit,
    classification,
    regression,
    write_attack,
    write_full_run,
    write_json,
    write_run,
)

FIGURES = (LineChart, Bars, ReliabilityChart, Stacks)
HOSTILE = '<script>alert("x")</script>&<img src=x onerror=y>'


class Text(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.summary, self.tags, self.attributes = "", [], {}
        self.feed(page.replace("\u00a0%", " %"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.summary += data


def written(tmp_path: Path, *folders: Path, **options: Any) -> tuple[Report, Text, dict[str, Any]]:
    path = tmp_path / "report.html"
    report = write_report(folders, path, **options)
    return report, Text(path.read_text()), json.loads(path.with_suffix(".json").read_text())


def names(report: Report) -> list[str]:
    return [section.name for section in report.sections]


def section(report: Report, name: str) -> Any:
    return next(section for section in report.sections if section.name == name)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Text, dict[str, Any]]:
    tmp_path = tmp_path_factory.mktemp("runs")
    folders = [write_full_run(tmp_path / "bayes"), write_full_run(tmp_path / "plain", "deterministic", 1, noise=0.0)]
    return written(tmp_path, *folders)


def test_a_full_run_fills_every_section(full: tuple[Report, Text, dict[str, Any]]) -> None:
    report, text, _ = full
    assert names(report) == [
        *("reliability", "confidence", "risk-coverage", "uncertainty", "unseen", "corruptions", "examples", "classes"),
        *("numbers", "attacks", "adversarial", "audit", "pruning", "training", "reproduce"),
    ]
    assert all(section.blocks for section in report.sections)
    assert all(section.about in text.summary and section.title in text.summary for section in report.sections)
    assert not any(section.missing for section in report.sections)
    assert "Not there yet" not in text.summary
    assert "UPPER BOUND ONLY" in text.summary


@pytest.mark.feature("dubio report writes one page that loads nothing, and the same numbers as JSON")
def test_the_json_has_the_numbers_of_the_page(full: tuple[Report, Text, dict[str, Any]]) -> None:
    report, text, data = full
    assert data == json.loads(json.dumps(report.to_json()))
    for headline in data["headlines"]:
        for run in headline["runs"]:
            for cell in run["cells"].values():
                assert cell["text"] in text.summary
    shown = [block for part in report.sections for block in part.blocks if isinstance(block, FIGURES)]
    kept = [block for part in data["sections"] for block in part["blocks"] if block["kind"] in KINDS]
    assert len(shown) == len(kept) > 20
    for figure, stored in zip(shown, kept, strict=True):
        assert stored["summary"] == figure.summary
        assert figure.summary in text.summary
        for row in tabulate(figure).rows:
            assert all(cell.text in text.summary for cell in row)


KINDS = {"lines", "bars", "reliability", "stacks"}


def test_kinds_of_blocks_keep_their_names_in_the_json(full: tuple[Report, Text, dict[str, Any]]) -> None:
    kinds = {block["kind"] for part in full[2]["sections"] for block in part["blocks"]}
    assert kinds == KINDS | {"commands", "gallery", "note", "table"}


def test_every_figure_has_words_with_numbers_and_a_table(full: tuple[Report, Text, dict[str, Any]]) -> None:
    report, text, _ = full
    figures = [block for part in report.sections for block in part.blocks if isinstance(block, FIGURES)]
    assert all(re.search(r"\d", figure.summary) for figure in figures)
    assert text.tags.count("svg") == text.tags.count("figure") == len(figures)
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in text.attributes["svg"])
    assert all(image["alt"] and image["src"].startswith("data:image/png") for image in text.attributes["img"])


def test_the_page_asks_for_nothing_outside_and_runs_nothing(full: tuple[Report, Text, dict[str, Any]]) -> None:
    _, text, _ = full
    policy = next(meta for meta in text.attributes["meta"] if meta.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    assert not {"script", "link", "iframe", "object"} & set(text.tags)
    links = {link["href"] for link in text.attributes["a"]}
    assert all(str(link).startswith("#") for link in links)


def test_names_from_elsewhere_stay_text(tmp_path: Path) -> None:
    result = classification()
    renamed = result.to_json()
    renamed["data"]["name"] = HOSTILE
    renamed["classes"][3]["name"] = HOSTILE
    renamed["notable"]["most uncertain"][0]["target"] = HOSTILE
    renamed["unseen"] = {HOSTILE: renamed["unseen"]["noise"]}
    folder = write_run(tmp_path / "<b>run", data=HOSTILE)
    Evaluation.from_json(renamed).save(folder / "evaluation.json")
    hostile = dataclasses.replace(audit().checks[0], name=HOSTILE, summary=HOSTILE)
    dataclasses.replace(audit(), checks=(hostile,), data=HOSTILE).save(folder / "audit.json")
    _, text, _ = written(tmp_path, folder, title=HOSTILE)
    assert not {"script", "b"} & set(text.tags)
    assert not any("onerror" in image for image in text.attributes["img"])
    assert text.summary.count(HOSTILE) > 5


def test_what_is_missing_is_left_out_and_the_command_that_adds_it_is_told_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    report, text, _ = written(tmp_path, folder)
    commands = [command for part in report.sections for command in part.missing]
    assert commands == ["dubio evaluate first", "dubio attack first", "dubio prune first"]
    assert names(report) == ["reliability", "attacks", "pruning", "training", "reproduce"]
    assert all(command in text.summary for command in commands)
    assert "dubio audit" not in text.summary  # comes with what asks for it


def test_a_regression_is_judged_by_its_intervals(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "real", likelihood="Gaussian")
    regression().save(folder / "evaluation.json")
    report, text, _ = written(tmp_path, folder)
    assert names(report) == ["intervals", "numbers", "pruning", "training", "reproduce"]
    assert "intervals at 95.0 % hold 92.0 % of the targets" in text.summary
    assert "dubio attack" not in text.summary


def test_parts_of_records_that_are_missing_leave_their_figures_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    missing = ("density", "step_seconds_before", "step_seconds_after")
    same = {"num_removed": 0, "bytes_after": PRUNING["bytes_before"]}
    write_json(folder / "pruning.json", {key: PRUNING[key] for key in PRUNING if key not in missing} | same)
    classification(unseen={}, notable={"most confidently wrong": ()}, corruptions={}).save(folder / "evaluation.json")
    report, _, _ = written(tmp_path, folder)
    assert [type(block) for block in section(report, "pruning").blocks] == [LineChart, LineChart]
    assert section(report, "examples").blocks == (Note("first: most confidently wrong: there are none."),)
    assert not {"unseen", "corruptions"} & set(names(report))


def test_without_noise_entropy_is_shown_for_unseen_data(full: tuple[Report, Text, dict[str, Any]]) -> None:
    report, _, _ = full
    noisy, plain = (block for block in section(report, "unseen").blocks if isinstance(block, Bars))
    assert (noisy.x_label, plain.x_label) == ("mutual information (nats)", "entropy (nats)")
    assert sum(noisy.groups["known"]) == pytest.approx(1.0)


def test_the_best_epoch_is_told_even_where_points_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "long")
    lines = [{"epoch": epoch, "val_nll": 0.5 if epoch == 780 else 1.0} for epoch in range(1, 1001)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report, _, _ = written(tmp_path, folder)
    (figure,) = section(report, "training").blocks
    assert len(figure.series[0].x) <= 102
    assert "least 0.5 in epoch 780, 1 in the last" in figure.summary
    assert thinned(1000)[:2] == [0, 10]
    assert thinned(1000)[-1] == 999


def test_a_run_looks_the_same_in_all_figures(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "fresh"), write_full_run(tmp_path / "judged")]
    report, _, _ = written(tmp_path, *folders)
    lines = [block for part in report.sections for block in part.blocks if isinstance(block, LineChart)]
    styles = {(series.name, series.style) for block in lines for series in block.series}
    assert styles == {("fresh", 0), ("judged", 1), ("by snr", None), ("by magnitude", None)}


def test_a_number_that_is_not_finite_is_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "nll": NaN}\n{"epoch": 2, "nll": 0.5}\n')
    report, _, _ = written(tmp_path, folder)
    (figure,) = section(report, "training").blocks
    assert figure.series[0].x == (2.0,)


def test_attacked_images_that_turned_come_first_with_what_was_added(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_attack(folder, left=0.5)
    report, _, _ = written(tmp_path, folder)
    (gallery,) = section(report, "adversarial").blocks
    assert isinstance(gallery, Gallery)
    first = gallery.cards[0]
    assert first.lines == (
        "test example 23",  # 20 of 40 stay right, and the first image is example 3
        "before: right, after: wrong",
        "added: at most 0.1, shown 10 times as strong",
    )
    assert [picture.summary for picture in first.pictures] == [
        *("Test example 23, before", "Test example 23, what was added", "Test example 23, after")
    ]


def test_images_of_another_attack_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_attack(folder)
    record = json.loads((folder / "attack.json").read_text())
    write_json(folder / "attack.json", record | {"sha256_of_images": "0" * 64})
    with pytest.raises(ValueError, match=r"attack\.safetensors does not hold the images of attack\.json beside it"):
        write_report([folder], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_inputs_that_are_no_images_have_no_gallery(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_attack(folder, size=(5,))
    report, _, _ = written(tmp_path, folder)
    assert "adversarial" not in names(report)
    assert "attacks" in names(report)


def test_a_verdict_is_told_in_plain_words(full: tuple[Report, Text, dict[str, Any]]) -> None:
    report, _, _ = full
    note, _, curve, left, checks = section(report, "audit").blocks[:5]
    assert note.tone == "warn"
    assert note.text == (
        "bayes: UPPER BOUND ONLY. The number below is an upper bound and nothing more: a check that had to pass did "
        "not. Failed: C16 Nothing left at any distance?. At linf distance 0.1, 41.0 % (33.0 % to 50.0 %) of 128 images "
        "are right, 97.0 % without an attack; the checks can tell a change of 3.0 points."
    )
    assert isinstance(curve, LineChart)
    assert (curve.series[0].x, curve.series[0].y) == ((1.0, 10.0, 20.0), (0.5, 0.43, 0.42))
    assert isinstance(left, Table)
    assert [row[0].text for row in left.rows] == ["not attacked", "R_pred", "R_1", "R_retry", "R_frozen"]
    assert isinstance(checks, Table)
    asked = checks.rows[0][2].text
    assert "expectation over transformation" in asked or "draws" in asked  # explained, not only named
    assert [cell.text for cell in checks.rows[1]][:2] == ["C16 Nothing left at any distance?", "fail, required"]


def test_the_summary_says_no_more_than_the_intervals_allow(tmp_path: Path) -> None:
    folders = [write_full_run(tmp_path / "one", seed=0), write_full_run(tmp_path / "two", seed=1)]
    report, _, _ = written(tmp_path, *folders)
    assert report.summary[0] == "2 networks, trained by bayes on digits."
    assert report.summary[1].startswith(
        "With 300 test examples no difference in accuracy is significant (smallest p = "
    )
    assert "one on 60.0 % and two on 60.0 % of the images" in report.summary[-2]


@pytest.mark.feature("The chart of doubt has bars as long as the entropy that its caption tells")
def test_bars_of_doubt_are_as_long_as_their_caption_says(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    result = classification()
    result.save(folder / "evaluation.json")
    report, _, _ = written(tmp_path, folder)
    (chart,) = section(report, "uncertainty").blocks
    assert isinstance(chart, Stacks)
    lengths = [sum(parts) for parts in zip(*chart.parts.values(), strict=True)]
    assert lengths == pytest.approx([part.entropy for part in result.uncertainty.values()], rel=1e-3)
    for group, length in zip(chart.rows, lengths, strict=True):
        assert f"{group}: entropy {number(length)}," in chart.summary


def test_parts_that_do_not_add_up_are_not_drawn(tmp_path: Path) -> None:
    """Earlier versions calibrated the entropy and not its parts."""
    folder = write_run(tmp_path / "first")
    uncertainty = {
        name: dataclasses.replace(part, entropy=0.4 * part.entropy)
        for name, part in classification().uncertainty.items()
    }
    classification(uncertainty=uncertainty).save(folder / "evaluation.json")
    report, _, _ = written(tmp_path, folder)
    (note,) = section(report, "uncertainty").blocks
    assert isinstance(note, Note)
    assert "dubio evaluate first again" in note.text


@pytest.mark.feature("The summary names the paired test behind each difference, and what is not significant")
def test_a_significant_difference_is_told_with_its_test(tmp_path: Path) -> None:
    folders = []
    for name, wrong in (("vib", 10), ("wasserstein", 40), ("flow", 12)):
        folder = write_run(tmp_path / name)
        right = torch.arange(300) >= wrong
        accuracy = right.double().mean().item()
        metrics = {**classification().metrics, "accuracy": Estimate(accuracy, accuracy - 0.02, accuracy + 0.02)}
        values = {**classification().per_example, "correct": pack(right, "bits")}
        classification(metrics=metrics, per_example=values).save(folder / "evaluation.json")
        folders.append(folder)
    told = next(line for line in written(tmp_path, *folders)[0].summary if "more accurate" in line)
    assert told.startswith(
        "The best runs do not differ significantly in accuracy: vib 96.7 % and flow 96.0 %. vib is more"
    )
    assert "vib is more accurate than wasserstein (p < 0.0001, McNemar, Holm over 3 pairs)" in told
    two = next(line for line in written(tmp_path, *folders[:2])[0].summary if "more accurate" in line)
    assert two == "vib is more accurate than wasserstein: 96.7 % against 86.7 % (p < 0.0001, McNemar)."


def test_unseen_data_that_nobody_notices_is_said_to_go_unnoticed(tmp_path: Path) -> None:
    result = classification()
    known = result.unseen["noise"].scores["mutual_information"]
    blind = json.loads(json.dumps(result.to_json()))
    blind["unseen"]["noise"]["scores"]["mutual_information"]["auroc"] |= {"value": 0.5, "low": 0.48, "high": 0.52}
    folder = write_run(tmp_path / "first")
    Evaluation.from_json(blind).save(folder / "evaluation.json")
    report, _, _ = written(tmp_path, folder)
    assert isinstance(result.unseen["noise"], UnseenSet)
    assert known.auroc.value > 0.9
    assert any("no network tells unseen data from known better than chance" in line for line in report.summary)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "-"), (0.0, "0"), (6e-8, "0"), (0.1, "0.1"), (0.12345, "0.123"), (12.345, "12.35")),
        *((2.0, "2"), (1234.5, "1234"), (2.5e7, "2.50e+07"), (1e-4, "1.00e-04"), (-0.25, "-0.25")),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_pages_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "first")
    with pytest.raises(ValueError, match=r"path must end in \.html, got '.*page\.txt'"):
        write_report([folder], tmp_path / "page.txt")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to write page\.html to"):
        write_report([folder], tmp_path / "nowhere" / "page.html")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"a report needs jinja2, which is missing: pip install jinja2"):
        write_report([folder], tmp_path / "page.html")


def test_classes_found_least_come_first(full: tuple[Report, Text, dict[str, Any]]) -> None:
    report, _, _ = full
    table = section(report, "classes").blocks[0]
    recalls = [row[2].value for row in table.rows]
    assert len(recalls) == len(CLASSES)
    assert recalls == sorted(recalls)


def test_runs_with_more_and_more_wrong_labels_make_a_curve(tmp_path: Path) -> None:
    folders = []
    for place, noise in enumerate((None, "flip:0.2", "flip:0.4")):
        folder = write_run(tmp_path / f"run{place}", label_noise=noise)
        evaluation = classification()
        lower = dataclasses.replace(evaluation.metrics["accuracy"], value=0.9 - 0.1 * place)
        metrics = {**evaluation.metrics, "accuracy": lower}
        dataclasses.replace(evaluation, metrics=metrics).save(folder / "evaluation.json")
        folders.append(folder)
    report = write_report(folders[::-1], tmp_path / "report.html")
    section = next(section for section in report.sections if section.name == "labels")
    (line,) = section.blocks[0].series  # type: ignore[union-attr]
    assert line.x == (0.0, 0.2, 0.4)
    assert line.y == pytest.approx((0.9, 0.8, 0.7))
    alone = write_report(folders[:1], tmp_path / "alone.html")
    assert all(section.name != "labels" for section in alone.sections)
