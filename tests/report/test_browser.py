"""The report in a real browser: offline, without an error, in both themes, on a wide and on a narrow screen.

Needs Chromium, which ``.ci/run`` installs; skipped where there is none.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dubio.report.page import write_report
from report.run_folders import regression, write_attack, write_full_run, write_run

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the report is not tried in a browser without playwright"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="the report is not tried in a browser: there is no chromium here (apt-get install chromium)",
)
LARGEST = 5_000_000
LONG = "a-run-with-a-name-that-is-much-longer-than-anybody-would-like-to-read"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Chromium refuses to run its sandbox as root, as CI does; the page is one that we have written.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_of_five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs: full ones, one with large images and a long name, one of another kind, and one only trained."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [write_full_run(folder / "bayes"), write_full_run(folder / "plain", "deterministic", 1, noise=0.0)]
    runs.append(write_full_run(folder / LONG, "flow", 2))
    write_attack(runs[-1], size=(3, 96, 96), num_images=10)
    runs += [write_run(folder / "real", likelihood="Gaussian"), write_run(folder / "fresh", "vib", 3)]
    regression().save(runs[3] / "evaluation.json")
    write_report(runs, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(
    params=[("light", 400), ("dark", 400), ("light", 1280), ("dark", 1280)], ids=lambda it: f"{it[0]}-{it[1]}"
)
def opened(request: pytest.FixtureRequest, browser: Any, page_of_five: Path) -> Iterator[tuple[Any, list[str], str]]:
    """The page in a theme and a width, without a network, and what went wrong while it loaded."""
    theme, width = request.param
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900}, offline=True)
    wrong: list[str] = []
    own = page_of_five.as_uri()

    def refuse(route: Any) -> None:
        if route.request.url == own:
            route.continue_()
        else:
            wrong.append(f"asked for {route.request.url}")
            route.abort()

    page = context.new_page()
    page.route("**/*", refuse)
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda asked: wrong.append(f"failed: {asked.url[:80]}"))
    page.goto(own)
    yield page, wrong, theme
    context.close()


@pytest.mark.feature("A report works offline in a browser: light and dark, wide and narrow, every figure with words")
def test_the_page_reads_well_in_a_browser(opened: tuple[Any, list[str], str]) -> None:
    page, wrong, theme = opened
    figures = page.evaluate(FIGURES)
    assert len(figures) > 25
    for figure in figures:
        assert figure["width"] > 250, figure
        assert figure["height"] > 90, figure
        assert figure["outside"] == [], figure  # no label leaves its drawing
        assert len(figure["name"]) > 20, figure
        assert figure["text"] >= 10.0, figure  # pixels, once scaled
    images = page.evaluate("[...document.images].map(i => ({shown: i.complete && i.naturalWidth > 0, alt: i.alt}))")
    assert len(images) > 40
    assert all(image["shown"] and image["alt"] for image in images)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    assert light == (theme == "light")
    assert wrong == []


@pytest.mark.parametrize("opened", [("light", 1280), ("dark", 1280)], indirect=True, ids=["light", "dark"])
def test_text_and_lines_stand_out_from_what_is_behind_them(opened: tuple[Any, list[str], str]) -> None:
    page, _, _ = opened
    result = page.evaluate(CONTRASTS)
    assert len(result["papers"]) == 9
    assert all(contrast >= 4.5 for part in result.values() for contrast in part.values()), result


def test_headings_name_every_section_and_links_lead_to_them(browser: Any, page_of_five: Path) -> None:
    page = browser.new_page()
    page.goto(page_of_five.as_uri())
    targets = page.evaluate("[...document.querySelectorAll('nav a')].map(a => !!document.querySelector(a.hash))")
    assert len(targets) > 10
    assert all(targets)
    assert page.locator("h1").count() == 1
    page.close()


def test_five_runs_take_less_than_five_megabytes(page_of_five: Path) -> None:
    assert page_of_five.stat().st_size < LARGEST
    assert page_of_five.with_suffix(".json").stat().st_size < LARGEST


FIGURES = """
[...document.querySelectorAll("figure svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")];
  const within = text => {
    const own = text.getBoundingClientRect();
    return own.left >= box.left - 1 && own.right <= box.right + 1
      && own.top >= box.top - 1 && own.bottom <= box.bottom + 1;
  };
  return {
    name: svg.getAttribute("aria-label"), width: box.width, height: box.height,
    outside: texts.filter(text => !within(text)).map(text => text.textContent),
    text: 12 * box.width / svg.viewBox.baseVal.width,
  };
})
"""
CONTRASTS = """
(() => {
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  const light = name => {
    const part = start => {
      const value = parseInt(colour(name).slice(start, start + 2), 16) / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  };
  const contrast = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const on = (names, behind) => Object.fromEntries(names.map(name => [name, contrast(name, behind)]));
  return {
    papers: on(["--ink", "--soft", "--link", "--s0", "--s1", "--s2", "--s3", "--s4", "--s5"], "--paper"),
    notes: {...on(["--good-ink"], "--good"), ...on(["--warn-ink"], "--warn")},
  };
})()
"""
