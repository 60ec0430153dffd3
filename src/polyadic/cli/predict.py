"""`polyadic predict`: predict labels and probabilities for new recordings with a model that has a probe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.files import (
    LABEL_ENDINGS,
    Labelled,
    check_label_file,
    check_label_texts,
    check_out_file,
    parts_of,
    write_labels,
    write_table,
)
from polyadic.cli.windows import counted, open_model, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

EXAMPLES = """
[bold]Examples[/bold]

Fit a model with a probe (classifier), and label new recordings of the same kind:
  polyadic fit sleep.store --probe -o model.safetensors
  polyadic predict model.safetensors new-recordings -o labels.csv

One recording, as an annotated copy or as events:
  polyadic predict model.safetensors night.edf -o scored.edf
  polyadic predict model.safetensors night.edf -o events.tsv
"""


@options.reads_recordings
def predict(
    model: options.Model,
    data: options.Data,
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
    prior: options.Prior = None,
    device: options.Device = "auto",
    on_error: options.SkipErrors = "raise",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    *,
    given: dict[str, Any],
) -> None:
    """Predict the label of every window, and write a CSV file or annotations.

    Needs a model with a probe (classifier) from [bold]fit --probe[/bold] or [bold]tune[/bold]. Columns are subject,
    recording, start in seconds, date and time (if the recording has a start time), label, confidence (its probability),
    unusual (1 for windows unlike those of the fit), and the probability of each class. Recordings are read in the
    same way as for the fit. A model fitted with --recenter needs at least 20 windows per subject.
    """
    from polyadic._util.progress import window_bar
    from polyadic.evaluate import WindowClassifier
    from polyadic.evaluate.unusual import QUANTILE, unusual_windows

    check_out_file(out, model, data, endings=LABEL_ENDINGS, force=force)
    check_label_file(out, data)
    as_table = out.suffix.lower() == ".csv"
    classifier = WindowClassifier.of(open_model(model, device), model.name)
    if prior is not None:
        classifier.probe_ = classifier.probe_.with_prior(prior)
    classes = [str(name) for name in classifier.classes_.tolist()]
    check_label_texts(out, classes)
    hidden, rare = quiet or json, 0
    counts: Counter[str] = Counter()
    labels: list[Labelled] = []

    def rows(part: Windows) -> list[list[str]]:
        nonlocal rare
        unusual = unusual_windows(classifier.features_, part)
        marks = [None] * len(part) if unusual is None else unusual.tolist()
        rare += sum(map(bool, marks))
        cells = []
        probabilities = classifier.predict_proba(part, means=means)
        for row, mark, start in zip(probabilities, marks, part.start.tolist(), strict=True):
            label, confidence = classes[row.argmax()], float(row.max())
            counts[label] += 1
            cells.append([label, *(f"{value:.6g}" for value in (confidence, *row))])
            cells[-1].insert(2, "" if mark is None else str(int(mark)))
            if not as_table:
                labels.append(Labelled(start / (fs or 1.0), part.shape[-1] / (fs or 1.0), label, confidence, mark))
        return cells

    with (
        opened(data, given, model=classifier.features_, labels=False, on_error=on_error, hidden=hidden) as windows,
        window_bar("predicting", len(windows), hidden) as on_rows,
    ):
        count, fs = len(windows), windows.fs or classifier.features_.fs_
        means = classifier.subject_means(windows) if classifier.recenter else None
        if as_table:
            heads = ["label", "confidence", "unusual", *(f"p({name})" for name in classes)]
            write_table(out, windows, heads, rows, fs=fs, on_rows=on_rows, clock=True)
        else:
            if len(set(windows.recording.tolist())) > 1:
                raise PolyadicError(
                    f"--out {out.name} holds the labels of one recording, but {data.name} has several: use .csv"
                )
            for part in parts_of(windows):
                rows(part)
                on_rows(sum(counts.values()))
            merged = getattr(classifier.features_, "reading_", {}).get("classes", {}).values()
            write_labels(out, data, labels, {*classes, *(text for texts in merged for text in texts)})
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
