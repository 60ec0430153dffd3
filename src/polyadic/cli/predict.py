"""`polyadic predict`: predict labels and probabilities for new recordings with a model that has a probe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli.files import (
    LABEL_ENDINGS,
    STEP,
    Labelled,
    check_label_file,
    check_out_file,
    write_labels,
    write_table,
)
from polyadic.cli.options import (
    DataArgument,
    DeviceOption,
    ForceOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    reads_recordings,
)
from polyadic.cli.windows import counted, opened_for
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["PREDICT_EXAMPLES", "predict"]

PREDICT_EXAMPLES = """
[bold]Examples[/bold]

Fit a model with a probe (classifier), and label new recordings of the same kind:
  polyadic fit sleep.store --probe -o model.safetensors
  polyadic predict model.safetensors new-recordings -o labels.csv

One recording, as an annotated copy or as events:
  polyadic predict model.safetensors night.edf -o scored.edf
  polyadic predict model.safetensors night.edf -o events.tsv
"""


@reads_recordings
def predict(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Output file: .csv; for a single recording also .tsv (BIDS events), .edf or .bdf (annotated copy of "
            "the recording) or .atr (WFDB annotations).",
            metavar="FILE",
        ),
    ] = Path("labels.csv"),
    device: DeviceOption = "auto",
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Predict the label of every window, and write a CSV file or annotations.

    Needs a model with a probe (classifier) from [bold]fit --probe[/bold] or [bold]tune[/bold]. Columns are subject,
    recording, start in seconds, date and time (if the recording has a start time), label, confidence (its probability),
    unusual (1 for windows unlike those of the fit), and the probability of each class. Recordings are read in the
    same way as for the fit. A model fitted with --recenter needs at least 20 windows per subject.
    """
    from polyadic import load
    from polyadic._util.progress import window_bar
    from polyadic.evaluate import WindowClassifier
    from polyadic.evaluate.unusual import QUANTILE, unusual_windows

    check_out_file(out, model, data, endings=LABEL_ENDINGS, force=force)
    check_label_file(out, data)
    loaded = load(model)
    loaded.device = device
    classifier = WindowClassifier.of(loaded, model.name)
    hidden = quiet or json
    counts: Counter[str] = Counter()
    classes = [str(name) for name in classifier.classes_.tolist()]

    means: Any = None

    found: list[Labelled] = []
    rare = 0

    def columns(part: Windows) -> list[list[str]]:
        nonlocal rare
        probabilities = classifier.predict_proba(part, means=means)
        labels = [classes[place] for place in probabilities.argmax(axis=1)]
        counts.update(labels)
        unusual = unusual_windows(classifier.features_, part)
        marks = [None] * len(part) if unusual is None else unusual.tolist()
        rare += sum(map(bool, marks))
        rows = []
        for label, row, mark, start in zip(labels, probabilities, marks, part.start.tolist(), strict=True):
            words = ["" if mark is None else str(int(mark)), *(f"{value:.6g}" for value in row)]
            rows.append([label, f"{row.max():.6g}", *words])
            if out.suffix.lower() != ".csv":
                found.append(Labelled(start / rate, part.shape[-1] / rate, label, float(row.max()), mark))
        return rows

    with (
        opened_for(classifier.features_, data, given, hidden=hidden) as windows,
        window_bar("predicting", len(windows), hidden) as on_rows,
    ):
        if classifier.recenter:
            means = classifier.subject_means(windows)
        fs = windows.fs or classifier.features_.fs_
        rate = fs or 1.0
        heads = ["label", "confidence", "unusual", *(f"p({name})" for name in classes)]
        count = len(windows)
        if out.suffix.lower() != ".csv" and len(set(windows.recording.tolist())) > 1:
            raise PolyadicError(
                f"--out {out.name} holds the labels of one recording, but {data.name} has several: use .csv"
            )
        if out.suffix.lower() == ".csv":
            write_table(out, windows, heads, columns, fs=fs, on_rows=on_rows, clock=True)
        else:
            for first in range(0, count, STEP):
                columns(windows[first : first + STEP])
                on_rows(min(first + STEP, count))
            merged = getattr(classifier.features_, "reading_", {}).get("classes", {}).values()
            write_labels(out, data, found, {*classes, *(text for texts in merged for text in texts)})
    numbers = {name: counts[name] for name in classes}
    if json:
        print_json({"labels": out.name, "windows": count, "classes": numbers, "unusual": rare})
        return
    shares = ", ".join(f"{name} {100 * number / max(count, 1):.1f} %" for name, number in numbers.items())
    echo(f"{out.name}: {counted(count, 'window')}: {shares}")
    if rare:
        are = "are" if rare != 1 else "is"
        echo(
            f"{rare:,} of {counted(count, 'window')} {are} unusual (column unusual): flat, or more extreme "
            f"than {100 * QUANTILE:g} % of the windows of the fit",
            err=True,
        )
