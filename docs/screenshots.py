"""Screenshots of the report and of `polyadic label`: synthetic EEG, a fit, `report.write`, and a real browser.

python docs/screenshots.py docs/_static [report|label]

The signals are oscillations with smooth patterns over the head, stronger in some conditions than in others. They
illustrate the report and are not evidence for the method.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polyadic import CPD, report
from polyadic.data import Windows, split
from polyadic.explain import components
from polyadic.explain.electrodes import position

ROWS = ("Fp1 Fp2", "F7 F3 Fz F4 F8", "T7 C3 Cz C4 T8", "P7 P3 Pz P4 P8", "O1 O2")
CHANNELS = " ".join(ROWS).split()
CLASSES = ("eyes closed", "reading", "left hand", "right hand")
FS, LENGTH, PEOPLE = 128.0, 512, 40

# Position on the head, frequency in Hz, centre in s, and strength in each class.
SOURCES = (
    ((0.0, -0.75), 10.0, 2.0, (6.0, 2.0, 2.2, 2.2)),
    ((0.0, 0.45), 6.0, 1.2, (1.5, 5.0, 1.8, 1.8)),
    ((0.45, 0.05), 12.0, 2.6, (2.6, 2.6, 0.8, 5.0)),
    ((-0.45, 0.05), 13.0, 2.6, (2.6, 2.6, 5.0, 0.8)),
    ((0.0, 0.05), 21.0, 1.5, (1.0, 1.8, 3.6, 3.6)),
    ((0.0, 0.9), 2.0, 2.0, (2.2, 4.4, 3.2, 3.2)),
)


def signals(count: int = 960, seed: int = 0) -> Windows:
    """Return synthetic EEG of four conditions."""
    rng = np.random.default_rng(seed)
    places = np.array([position(name) for name in CHANNELS])
    label, subject = np.arange(count) % len(CLASSES), np.arange(count) // len(CLASSES) % PEOPLE
    time = np.arange(LENGTH) / FS
    X = 0.9 * rng.normal(size=(count, len(CHANNELS), LENGTH))
    for place, frequency, middle, strengths in SOURCES:
        pattern = np.exp(-np.sum((places - place) ** 2, axis=1) / 0.18)
        gain = np.array(strengths)[label] * rng.lognormal(0, 0.35, count) * rng.lognormal(0, 0.2, PEOPLE)[subject]
        phase, shift = rng.uniform(0, 2 * np.pi, (2, count, 1))
        envelope = np.exp(-0.5 * ((time - middle - 0.1 * (shift - np.pi)) / 0.8) ** 2)
        wave = gain[:, None] * envelope * np.sin(2 * np.pi * frequency * time + phase)
        X += pattern[None, :, None] * wave[:, None, :]
    return Windows(
        (10 * X).astype(np.float32),
        FS,
        label=label,
        classes=CLASSES,
        subject=[f"S{number + 1:02d}" for number in subject],
        start=np.arange(count) // (len(CLASSES) * PEOPLE) * LENGTH,
        channels=CHANNELS,
        units=["µV"] * len(CHANNELS),
    )


def make(folder: Path) -> Path:
    """Write the report of a small model."""
    windows = signals()
    unlabelled = next(iter(split(windows)))
    model = CPD()
    model.components_ = components(model.fit_with_moments(unlabelled, unlabelled.subject))
    report.write(folder / "report.html", model, windows, title="Synthetic EEG in four conditions")
    return folder / "report.html"


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("Chromium is not installed")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])


def shoot(page: Path, folder: Path) -> None:
    """Save a screenshot of the result and the components in the light theme, and of one component in the dark theme."""
    with chromium() as running:
        for name, scheme in (("report-light", "light"), ("report-dark", "dark")):
            context = running.new_context(viewport={"width": 1280, "height": 1000}, color_scheme=scheme)
            opened = context.new_page()
            opened.goto(page.resolve().as_uri())
            opened.wait_for_selector("html[data-ready]", state="attached")
            if scheme == "dark":
                opened.locator("button.open").nth(1).click()
                opened.locator('[data-figure="detail-windows"] .main-svg').first.wait_for()
            opened.wait_for_timeout(800)
            save(opened.screenshot(), folder / f"{name}.png")


def write_recordings(folder: Path) -> dict[tuple[str, float], str]:
    """Write recordings of twelve subjects, in bouts of three windows, as CSV files; return the class of each window."""
    windows = signals().with_channels(["Fp1", "Fp2", "C3", "Cz", "C4", "Pz", "O1", "O2"])
    truth: dict[tuple[str, float], str] = {}
    for name in np.unique(windows.subject)[:12].tolist():
        own = windows.select(subject=name)
        order = np.lexsort((own.label, np.arange(len(own)) // (3 * len(CLASSES))))
        signal = np.concatenate(list(own.X[order]), axis=1)
        table = np.column_stack([np.arange(signal.shape[1]) / FS, signal.T])
        head = ",".join(["time [s]", *(f"{channel} [uV]" for channel in own.channels)])
        np.savetxt(folder / f"{name}.csv", table, fmt="%.7f", delimiter=",", header=head, comments="")
        truth |= {(name, place * LENGTH / FS): CLASSES[own.label[row]] for place, row in enumerate(order.tolist())}
    return truth


def shoot_labelling(recordings: Path, folder: Path, count: int = 60) -> None:
    """Label windows by keyboard, and save screenshots of the page on a desktop, on tablets and in the dark theme."""
    truth = write_recordings(recordings)
    words = ["label", str(recordings), "--seconds", str(LENGTH / FS), "--no-browser", "-o", str(folder / "labels.csv")]
    command = [sys.executable, "-u", "-m", "polyadic", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        address = next(found[0] for line in server.stdout or () if (found := re.search(r"http://\S+", line)))
        with chromium() as running:
            page = running.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.goto(address)
            for _ in range(count):
                page.wait_for_selector("html[data-ready]", state="attached")
                where = page.evaluate("[question.recording, question.start]")
                name, known = truth[where[0], where[1]], page.locator("#classes .name").all_inner_texts()
                page.keyboard.press(str(known.index(name) + 1) if name in known else "n")
                if name not in known:
                    page.keyboard.type(name)
                    page.keyboard.press("Enter")
                page.wait_for_timeout(150)
            page.wait_for_function("() => state.follows === state.version", timeout=60_000)
            page.wait_for_timeout(3000)
            sizes = {"label": (1440, 900), "label-tablet": (820, 1180), "label-dark": (1440, 900)}
            for name, (width, height) in sizes.items():
                page.emulate_media(color_scheme="dark" if name == "label-dark" else "light")
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_timeout(600)
                save(page.screenshot(), folder / f"{name}.png")
    finally:
        server.terminate()
        (folder / "labels.csv").unlink(missing_ok=True)


def save(content: bytes, path: Path) -> None:
    """Save a screenshot as a small PNG file."""
    Image.open(io.BytesIO(content)).convert("RGB").save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        which = sys.argv[2:] or ["report", "label"]
        if "report" in which:
            shoot(make(Path(scratch)), Path(sys.argv[1]))
        if "label" in which:
            (Path(scratch) / "recordings").mkdir()
            shoot_labelling(Path(scratch) / "recordings", Path(sys.argv[1]))
