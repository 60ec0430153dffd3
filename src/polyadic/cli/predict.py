"""`polyadic predict`: labels and probabilities for new recordings, from a model with its probe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    SettingsOption,
    shows_progress,
    window_bar,
)
from polyadic.cli.outputs import check_out_file
from polyadic.cli.reading import reads_recordings
from polyadic.cli.tables import write_table
from polyadic.cli.windows import opened_for
from polyadic.errors import PolyadicError
from polyadic.terminal import echo, print_json

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["PREDICT_EXAMPLES", "predict"]

PREDICT_EXAMPLES = """
[bold]Examples[/bold]

A model with a probe, and labels for new recordings of the same kind:
  polyadic fit sleep.store --probe -o model.safetensors
  polyadic predict model.safetensors new-recordings -o labels.csv

One recording:
  polyadic predict model.safetensors night.edf
"""


@reads_recordings
def predict(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .csv file to write.", metavar="FILE")] = Path(
        "labels.csv"
    ),
    device: DeviceOption = "auto",
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Write labels and probabilities for windows, as CSV.

    A line has subject, recording, start in seconds, label, and a probability for each class. Recordings are cut into
    windows of the length, channels and sampling rate that the model learned from. A model of
    [bold]fit --probe --recenter[/bold] needs at least 20 windows of every subject.
    """
    from polyadic.prediction import WindowPredictor

    check_out_file(out, model, data, settings)
    if out.suffix != ".csv":
        raise PolyadicError(f"--out must end in .csv, but is {out.name}")
    classifier = WindowPredictor.load(model, device=device)
    hidden = not shows_progress(quiet, json)
    counts: Counter[str] = Counter()
    classes = [str(name) for name in classifier.classes_.tolist()]

    means: Any = None

    def columns(part: Windows) -> list[list[str]]:
        probabilities = classifier.predict_proba(part, means=means)
        labels = [classes[place] for place in probabilities.argmax(axis=1)]
        counts.update(labels)
        return [[label, *(f"{value:.6g}" for value in row)] for label, row in zip(labels, probabilities, strict=True)]

    with (
        opened_for(classifier.features, data, given, hidden=hidden) as windows,
        window_bar("predicting", windows.shape, hidden) as on_rows,
    ):
        if classifier.recenter:
            means = classifier.subject_means(windows)
        fs = windows.fs or classifier.features.fs_
        heads = ["label", *(f"p({name})" for name in classes)]
        write_table(out, windows, heads, columns, fs=fs, on_rows=on_rows)
        count = len(windows)
    found = {name: counts[name] for name in classes}
    if json:
        print_json({"labels": out.name, "windows": count, "classes": found})
        return
    shares = ", ".join(f"{name} {100 * number / max(count, 1):.1f} %" for name, number in found.items())
    echo(f"{out.name}: {count:,} windows: {shares}")
