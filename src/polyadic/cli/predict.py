"""`polyadic predict`: predict labels and probabilities for new recordings with a model that has a probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from polyadic._util.files import harmless
from polyadic._util.terminal import echo, print_notes
from polyadic.cli import label_files
from polyadic.cli.files import check_out_file, names_folder, parts_of, write_table
from polyadic.cli.options import Common, Data, Model, Prior, option, out_option, with_options
from polyadic.cli.windows import open_model, opened
from polyadic.errors import PolyadicError

EXAMPLES = """
New recordings of the same kind; and one recording, as an annotated copy or as events:
  polyadic predict model.safetensors new-recordings -o labels.csv
  polyadic predict model.safetensors night.edf -o scored.edf
  polyadic predict model.safetensors night.edf -o events.tsv

A BIDS data set, as derivatives with one table of events per recording:
  polyadic predict model.safetensors bids -o bids/derivatives/polyadic/
"""

_ALONG = "--along/--no-along"
_FEW_UNUSUAL, _MANY_UNUSUAL = 10, 1 / 3
"""Number and share of unusual windows from which predictions are not to be trusted."""


@with_options("device force json quiet")
def predict(
    common: Common,
    model: Model,
    data: Data,
    output: Annotated[
        str,
        out_option(
            ".csv; for one recording .tsv (BIDS events), .edf or .bdf (annotated copy); for a BIDS data set a folder "
            "(derivatives).",
            "PATH",
        ),
    ] = "labels.csv",
    prior: Prior = None,
    along: Annotated[
        bool | None,
        option("Predict along each recording, or each window by itself. Default: the better in training.", _ALONG),
    ] = None,
) -> None:
    """Predict the label of every window, and write a CSV file or annotations.

    Needs a model with a probe (classifier) from [bold]fit --probe[/bold] or [bold]tune[/bold]. Columns are subject,
    recording, start in seconds, date and time (if the recording has a start time), label, confidence (its probability),
    unusual (1 for windows unlike those of the fit), missing (the share of the window that is missing: channels that
    were not recorded or are dead, and gaps), and the probability of each class. Along the recording
    (--along), label is the most probable sequence, probabilities are given the whole recording, and label_window is
    the label of the window by itself. Recordings are read in the same way as for the fit.
    """
    import numpy as np

    from polyadic._util.progress import stage_bar
    from polyadic.evaluate import WindowClassifier
    from polyadic.evaluate.unusual import unusual_windows

    out, as_folder = Path(output), names_folder(output)
    if as_folder:
        label_files.check_derivatives(out, data, common.force)
    else:
        check_out_file(out, model, data, endings=label_files.LABEL_ENDINGS, force=common.force)
        label_files.check_label_file(out, data)
    as_table = not as_folder and out.suffix.lower() == ".csv"
    classifier = WindowClassifier.of(open_model(model, common.device), name=model.name)
    if prior is not None:
        classifier.probe_ = classifier.probe_.with_prior(prior)
    classes = [str(name) for name in classifier.classes_.tolist()]
    label_files.check_label_texts(Path("events.tsv") if as_folder else out, classes)
    if along and classifier.chain_ is None:
        raise PolyadicError(f"--along: {model.name} was trained on windows without an order: use --no-along")
    with (
        opened(data, common, model=classifier.features_, labels=False) as windows,
        stage_bar("predicting", common.hidden, "windows", len(windows)) as on_rows,
    ):
        count, fs = len(windows), windows.fs or classifier.features_.fs_
        recordings = windows.recording.tolist()
        if as_folder:
            for name in dict.fromkeys(recordings):
                label_files.table_of(name)  # raises if it is none of a BIDS data set
        elif not as_table and len(set(recordings)) > 1:
            raise PolyadicError(
                f"--out {out.name} holds the labels of one recording, but {data.name} has several: use .csv"
            )
        probabilities, missing, marks = np.empty((count, len(classes))), np.empty(count), list[bool | None]()
        for part in parts_of(windows):
            unusual = unusual_windows(classifier.features_, part)
            rows = slice(len(marks), len(marks) + len(part))
            marks += [None] * len(part) if unusual is None else unusual.tolist()
            probabilities[rows], missing[rows] = classifier.probabilities_and_missing(part)
            on_rows(len(marks))
        alone = labels = [classes[code] for code in probabilities.argmax(axis=1)]
        chain = classifier.chain_
        ordered = chain is not None and (chain.is_default if along is None else along)
        if ordered:
            try:
                path, probabilities = classifier.predict_sequence(windows, probabilities)
                labels = path.astype(str).tolist()
            except PolyadicError as error:  # windows that overlap, or without positions
                if along:
                    raise
                ordered = False
                echo(f"each window is predicted by itself: {error}", err=True)
        confidence = probabilities[np.arange(count), [classes.index(label) for label in labels]].tolist()
        if as_table:
            columns: dict[str, Iterable[Any]] = {"label": labels, "confidence": confidence}
            columns |= {"unusual": ["" if mark is None else int(mark) for mark in marks], "missing": missing}
            if ordered:
                columns["label_window"] = map(harmless, alone)
            columns |= {f"p({name})": column for name, column in zip(classes, probabilities.T, strict=True)}
            write_table(out, windows, list(columns), zip(*columns.values(), strict=True), fs, clock=True)
        else:
            known = [None if mark is None else int(mark) for mark in marks]
            found = label_files.events_of(windows, fs, labels, confidence=confidence, unusual=known)
            merged = getattr(classifier.features_, "reading_", {}).get("classes", {}).values()
            if as_folder:
                label_files.write_derivatives(out, recordings, found, model.name, classes)
            else:
                label_files.write_labels(out, data, found, {*classes, *(text for texts in merged for text in texts)})
    n_unusual = sum(map(bool, marks))
    if n_unusual >= max(_FEW_UNUSUAL, _MANY_UNUSUAL * count):
        print_notes(
            f"polyadic: warning: {n_unusual:,} of {count:,} windows are unlike those of the fit (unusual), so "
            "predictions may be wrong. Usual causes: another unit or sampling rate than the files say, another "
            "placement of the sensors, another device or another population"
        )
    counts = Counter(labels)
    outcome = {"labels": out.name, "windows": count, "classes": {name: counts[name] for name in classes}}
    common.tell(outcome | {"along": ordered, "unusual": n_unusual})
