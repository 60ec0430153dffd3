"""The report in a real browser."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from browser import Page, browser
from problems import paper
from typer.testing import CliRunner

from polyadic import SALS, report
from polyadic.cli import app
from polyadic.data import synthetic
from polyadic.spectral import STFT

CHANNELS = ["Fp1", "Fp2", "C3", "C4", "O1", "O2", "Pz", "EMG"]
CLASSES = ["rest", "left hand", "right hand", "feet"]


@pytest.fixture(scope="module")
def running():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A report as `polyadic report` writes it."""
    folder = tmp_path_factory.mktemp("run")
    signals, person = synthetic(120, length=128), np.arange(120) % 6
    columns = {"subject": person, "recording": [f"night {s}" for s in person]}
    start = np.arange(120) * 128
    np.savez(
        folder / "eeg.npz",
        X=signals.X,
        y=signals.label,
        fs=64,
        channels=CHANNELS,
        classes=CLASSES,
        start=start,
        **columns,
    )
    data, model, out = (str(folder / name) for name in ("eeg.npz", "model.safetensors", "report.html"))
    for words in (
        ["fit", data, "-o", model, "--sweeps", "3", "--rank", "12", "--no-components"],
        ["report", model, "--data", data, "-o", out, "--transductive"],
    ):
        result = CliRunner().invoke(app, [*words, "--quiet"])
        assert result.exit_code == 0, result.output
    return Path(out)


@pytest.fixture
def page(running, written):
    with Page(running, written) as opened:
        yield opened


def test_the_page_is_below_6_mb_and_loads_without_a_complaint_or_a_request(page, written):
    page.draw_all()
    page.open_component()
    assert written.stat().st_size < 6_000_000
    assert page.complaints == []
    assert page.requests == [page.address]
    assert not page.page.locator(".too-old").count()


def test_the_page_has_every_section_and_says_where_it_is_from(page, written):
    found = page.page.locator("main > section").evaluate_all("all => all.map(one => one.id)")
    assert found == ["result", "components", "timeline", "samples", "probe", "provenance"]
    assert "subjects" in page.page.locator(".beside").inner_text()
    provenance = page.page.locator("#provenance").inner_text()
    for name in ("eeg.npz", "model.safetensors"):
        assert hashlib.sha256((written.parent / name).read_bytes()).hexdigest() in provenance
    assert page.page.locator("#result .note").all_inner_texts()[0].startswith("Not converged")


def test_a_click_opens_a_component_with_all_its_figures(page):
    row = page.page.locator("#component-table tbody tr").nth(2)
    row.locator(".picture").first.click()
    assert page.page.locator("#detail-h").inner_text() == f"Component {row.locator('button.open').inner_text()}"
    for name in ("detail-0", "detail-1", "detail-2", "detail-classes", "detail-windows"):
        figure = page.page.locator(f'[data-figure="{name}"]')
        figure.locator(".main-svg").first.wait_for()
        assert figure.locator(".trace, .heatmaplayer image, .barlayer .point").count() > 0, name
    assert page.page.locator('[data-figure="detail-0"] .heatmaplayer image').count() == 1
    assert "EMG" in page.page.locator('[data-figure="detail-0"]').text_content()
    page.page.locator("#close").click()
    assert not page.page.locator("#detail").is_visible()


@pytest.mark.parametrize("width", [360, pytest.param(1600, marks=pytest.mark.long)])
def test_no_text_overlaps_and_nothing_sticks_out(running, written, width):
    with Page(running, written, width=width) as page:
        page.draw_all()
        assert page.overlaps() == []
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "[...document.querySelectorAll('pre, .scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
        assert page.page.evaluate(cut) == 0
        page.open_component()
        assert page.overlaps() == []
        assert page.page.evaluate("document.querySelector('#detail').scrollWidth") <= width


def test_the_table_shows_the_first_components_until_all_are_requested(running, tmp_path):
    model = paper(SALS, rank=16, tensorize=STFT(32, 16), max_sweeps=1).fit(synthetic(60).X)
    report.write(tmp_path / "r.html", model)
    for width, count in ((1280, 12), (390, 6)):
        with Page(running, tmp_path / "r.html", width=width) as page:
            rows, button = page.page.locator("#component-table tbody tr:visible"), page.page.locator("#unfold")
            assert (rows.count(), button.inner_text()) == (count, "Show all 16")
            button.click()
            assert rows.count() == 16
            assert page.complaints == []


def test_on_a_phone_the_page_is_short_and_links_open_their_sections(running, written):
    with Page(running, written, width=390) as page:
        assert page.page.evaluate("document.documentElement.scrollHeight") < 5000
        assert not page.page.locator("#probe .figure").first.is_visible()
        page.page.locator('nav a[href="#timeline"]').click()
        page.page.locator('[data-figure="timeline-0"] .main-svg').first.wait_for()
        page.page.locator("#timeline select").select_option("timeline-1")
        assert page.page.locator("#timeline .figure").get_attribute("data-figure") == "timeline-1"
        assert page.complaints == []


PRINTED = """() => addEventListener("beforeprint", () => {
  const figures = [...document.querySelectorAll("section .figure")];
  window.printed = {
    closed: document.querySelectorAll("details:not([open])").length,
    empty: figures.filter((place) => !place.querySelector(".main-svg")).map((place) => place.dataset.figure),
    widths: figures.map((place) => place.querySelector(".main-svg")?.getBoundingClientRect().width),
    text: getComputedStyle(document.body).color,
  };
})"""


@pytest.mark.parametrize("width", [390, pytest.param(1600, marks=pytest.mark.long)])
def test_paper_has_every_section_and_figure_and_the_page_is_as_before(running, written, width):
    state = """() => [...document.querySelectorAll("details, [data-figure=timeline-0] .main-svg, body")].map((one) =>
        [one.open, Math.round(one.getBoundingClientRect().width), getComputedStyle(one).color])"""
    with Page(running, written, width=width, scheme="dark") as page:
        page.page.evaluate("document.querySelector('#timeline details').open = true")
        page.page.locator('[data-figure="timeline-0"]').scroll_into_view_if_needed()
        page.page.locator('[data-figure="timeline-0"] .main-svg').first.wait_for()
        before = page.page.evaluate(state)
        page.page.evaluate(PRINTED)
        assert page.page.pdf(format="A4").startswith(b"%PDF")
        printed = page.page.evaluate("window.printed")
        assert (printed["closed"], printed["empty"]) == (0, [])
        assert max(printed["widths"]) <= 690  # an A4 page has 717 between its margins
        assert luminance(printed["text"]) < 0.1
        assert page.page.evaluate(state) == before
        assert page.complaints == []


def luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_text_has_enough_contrast_and_every_element_has_an_accessible_name(running, written, scheme):
    with Page(running, written, scheme=scheme) as page:

        def colour(name: str) -> str:
            code = "name => { const s = document.createElement('i'); s.style.color = `var(--${name})`;"
            code += "document.body.append(s); return getComputedStyle(s).color; }"
            return page.page.evaluate(code, name)

        for ground in ("ground", "raised"):
            for text in ("text", "quiet", "accent"):
                low, high = sorted([luminance(colour(ground)), luminance(colour(text))])
                assert (high + 0.05) / (low + 0.05) >= 4.5, (ground, text)
        nameless = page.page.evaluate(
            "() => [...document.querySelectorAll('button, input, select, [role=img], [role=region]')]"
            ".filter(one => !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length))"
            ".map(one => one.outerHTML)"
        )
        assert nameless == []
        assert page.page.locator("html").get_attribute("lang") == "en"
        assert page.page.locator("h1").count() == 1
