"""`polyadic evaluate`: score a model's features, or its probe, on labelled windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.terminal import console, print_json, printable
from polyadic.cli.files import check_out_file, harmless, write_csv
from polyadic.cli.options import (
    MOST_REPEATS,
    PROBE_KINDS,
    DataArgument,
    DeviceOption,
    ForceOption,
    JsonOption,
    ModelArgument,
    ProbeKind,
    Protocol,
    QuietOption,
    TransductiveOption,
    reads_recordings,
)
from polyadic.cli.windows import describe, opened_for
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["EVALUATE_EXAMPLES", "evaluate"]

_SEEDS = 5
_MOST_SHOWN = 30
"""Maximum number of classes or subjects listed on the screen; --json and --out have all."""

EVALUATE_EXAMPLES = """
[bold]Examples[/bold]

Score features and probe on subjects that neither has seen:
  polyadic evaluate model.safetensors sleep.store

Leave out one subject at a time, and write all scores to a file:
  polyadic evaluate model.safetensors sleep.store --folds loso -o scores.csv

Five folds of subjects, repeated ten times:
  polyadic evaluate model.safetensors sleep.store --folds 5 --repeats 10

Without refitting the features in every fold:
  polyadic evaluate model.safetensors sleep.store --transductive

The probe in the model file, on recordings of other subjects:
  polyadic evaluate model.safetensors new.store --own-probe

The paper's protocol and probes, on five random splits:
  polyadic evaluate model.safetensors sleep.store --protocol paper
"""


@reads_recordings
def evaluate(
    model: ModelArgument,
    data: DataArgument,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            help="subject: cross-validation by subject (default if subjects are known); paper: random windows, as in "
            "the paper, which gives optimistic scores."
        ),
    ] = None,
    probe: Annotated[
        ProbeKind | None,
        typer.Option(
            metavar="KIND",
            help=f"Probe: the classifier that scores the features. {PROBE_KINDS} Default: auto; with --protocol paper "
            "the other two.",
        ),
    ] = None,
    folds: Annotated[
        str | None,
        typer.Option(
            metavar="N|loso",
            help="Number of folds of subjects; loso leaves out one subject at a time. Default: loso for up to 20 "
            "subjects, else five folds, repeated twice.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_REPEATS,
            metavar="N",
            help=f"With --protocol paper: number of splits. Default: {_SEEDS}, or the model's own split if it was "
            "fitted with --protocol. Otherwise the same as --repeats.",
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_REPEATS,
            metavar="N",
            help="Number of random assignments of subjects to folds (five folds without --folds). Default: 1.",
        ),
    ] = None,
    transductive: TransductiveOption = False,
    own_probe: Annotated[
        bool,
        typer.Option(
            "--own-probe",
            help="Score the probe in the model file, on all labelled windows (only held-out ones, if the model stores "
            "its split).",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Also write all scores to this .csv file."),
    ] = None,
    device: DeviceOption = "auto",
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Score a model by how well a classifier predicts labels from its features.

    A probe (a simple classifier on the features) is trained and tested on different subjects of DATA. Shows balanced
    accuracy, accuracy, macro F1, Cohen's kappa, and scores by class and by subject. If the model has seen a test
    subject, the features are refitted in every fold without that subject. A model fitted with --protocol subject
    keeps its features and is tested on the subjects it has not seen.
    """
    from polyadic import load

    loaded = load(model).set_params(device=device)
    if hasattr(loaded, "verbose"):
        loaded.set_params(verbose=0)  # for fits in folds
    if out is not None:
        check_out_file(out, model, data, endings=(".csv",), force=force)
    split = (protocol, seeds, probe, folds, repeats)
    if own_probe and any(value is not None for value in split):
        raise PolyadicError("--own-probe uses no split: leave out --protocol, --probe, --folds, --repeats and --seeds")
    if repeats is not None and seeds is not None:
        raise PolyadicError("give --repeats (folds of subjects) or --seeds (--protocol paper), not both")
    count = _number(folds)
    hidden = quiet or json
    with opened_for(loaded, data, given, labels=True, hidden=hidden) as windows:
        if not (windows.label >= 0).any():
            raise PolyadicError(
                f"evaluate needs labels, but {data.name} has none. To label new recordings, use polyadic predict"
            )
        by_subject = not own_probe and _chosen(protocol, windows) == Protocol.SUBJECT
        if not (by_subject and windows.index.n_subjects == 1):  # one subject raises an error below
            describe(windows, hidden=True)
        if not by_subject and (folds is not None or repeats is not None or transductive):
            raise PolyadicError(
                "--folds, --repeats and --transductive need --protocol subject and windows with known subjects"
            )
        if not by_subject:
            kind = None if probe is None else probe.value
            outcome = _score_at_random(loaded, windows, kind, seeds, own_probe, hidden)
        else:
            kind = (probe or ProbeKind.AUTO).value
            outcome = _cross_validate(loaded, windows, kind, count, repeats or seeds, transductive, hidden)
    if out is not None:
        _write_scores(out, outcome)
    about = {"model": model.name, "data": data.name}
    if json:
        outcome.pop("summary_text", None)
        print_json(about | outcome)
    elif "folds" in outcome:
        _show_folds(about | outcome)
    else:
        _show(about | outcome)


def _chosen(protocol: Protocol | None, windows: Windows) -> Protocol:
    from polyadic.evaluate.scoring import default_protocol

    return protocol or Protocol(default_protocol(windows))


def _number(folds: str | None) -> int | str | None:
    if folds is None or folds == "loso":
        return folds
    if not folds.isdecimal() or len(folds) > 9 or int(folds) < 2:
        raise PolyadicError(f"--folds must be loso or an integer of at least 2, but is {folds[:20]!r}")
    return int(folds)


def _cross_validate(
    model: Any,
    windows: Windows,
    kind: str,
    folds: int | str | None,
    repeats: int | None,
    transductive: bool,
    hidden: bool,
) -> dict[str, Any]:
    """Return the scores of left-out subjects, and a summary in words."""
    from polyadic._util.progress import stage_bar
    from polyadic.evaluate.validation import cross_validate, default_folds, subjects_to_test, unseen_rows

    rows = unseen_rows(model, windows)
    chosen: Any = folds
    if folds is None:
        chosen, repeats = default_folds(subjects_to_test(windows, rows), repeats)
    with stage_bar("cross-validation", hidden, "folds") as show:
        result = cross_validate(
            model,
            windows,
            chosen,
            repeats or 1,
            kind,
            transductive,
            rows=rows,
            on_fold=lambda fold: show(fold.number, fold.count, ""),
        )
    words = {"summary_text": result.summary()}
    return {"protocol": Protocol.SUBJECT.value, "probe": kind, **result.to_dict(), **words}


def _score_at_random(
    model: Any, windows: Windows, kind: str | None, seeds: int | None, own_probe: bool, hidden: bool
) -> dict[str, Any]:
    """Return scores of random splits or of the model's own probe, and whether test windows were new to the model."""
    from polyadic._util.progress import window_bar
    from polyadic.evaluate.probe import PROBES
    from polyadic.evaluate.scoring import own_split, score_own_probe, score_splits, summarise

    with window_bar("scoring", int((windows.label >= 0).sum()), hidden) as on_rows:
        if own_probe:
            rows = score_own_probe(model, windows, on_rows)
            return {"protocol": None, "held_out": bool(rows[0]["split"]), "summary": summarise(rows), "rows": rows}
        own = own_split(model, windows, [Protocol.PAPER.value])
        chosen = [model.seed_] if own is not None and seeds is None else list(range(seeds or _SEEDS))
        kinds = PROBES if kind is None else (kind,)
        rows = score_splits(model, windows, Protocol.PAPER.value, chosen, on_rows, kinds)
    held_out = own is not None and chosen == [model.seed_]
    return {"protocol": Protocol.PAPER.value, "held_out": held_out, "summary": summarise(rows), "rows": rows}


def _show_folds(outcome: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console()
    title = printable(f"{outcome['model']} on {outcome['data']}, by subject, {outcome['probe']} probe")
    screen.print(title, style="bold", highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for head in ("class", "recall %", "precision %", "F1 %", "windows"):
        table.add_column(head, justify="left" if head == "class" else "right", no_wrap=True)
    for name, row in outcome["per_class"].items():
        shares = [f"{100 * row[key]:.1f}" for key in ("recall", "precision", "f1")]
        table.add_row(Text(printable(name)), *shares, f"{row['windows']:,}")
    screen.print(table)
    names = list(outcome["per_class"])
    if len(names) <= _MOST_SHOWN:
        screen.print(_confusion(names, outcome["confusion"]))
    if len(outcome["per_subject"]) <= _MOST_SHOWN:
        screen.print(_subjects(outcome["per_subject"]))
    lowest = sorted(outcome["per_subject"].items(), key=lambda item: item[1]["balanced_accuracy"])[:3]
    worst = ", ".join(f"{name} {100 * row['balanced_accuracy']:.1f} %" for name, row in lowest)
    lines = outcome["summary_text"].splitlines()
    if len({row["balanced_accuracy"] for row in outcome["per_subject"].values()}) > 1:
        lines.append(f"Subjects with the lowest balanced accuracy: {worst}.")
    for line in lines:
        screen.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def _confusion(names: list[str], counts: list[list[int]]) -> Any:
    """Return the confusion matrix as a table: true classes in rows, predicted ones in columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("true \\ predicted")
    for name in names:
        table.add_column(Text(printable(name)), justify="right", no_wrap=True)
    for name, row in zip(names, counts, strict=True):
        table.add_row(Text(printable(name)), *(f"{count:,}" for count in row))
    return table


def _subjects(scores: dict[str, dict[str, float]]) -> Any:
    """Return a table of the scores of each subject."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for head in ("subject", "balanced accuracy %", "accuracy %", "windows"):
        table.add_column(head, justify="left" if head == "subject" else "right", no_wrap=True)
    for name, row in scores.items():
        shares = [f"{100 * row[key]:.1f}" for key in ("balanced_accuracy", "accuracy")]
        table.add_row(Text(printable(name)), *shares, f"{row['windows']:,}")
    return table


def _write_scores(out: Path, outcome: dict[str, Any]) -> None:
    """Write all scores as a table: measure, class or subject, value."""
    rows: list[tuple[str, str, Any]] = []
    if "folds" in outcome:
        plain = ("balanced_accuracy", "accuracy", "macro_f1", "kappa", "chance", "majority", "refitted", "transductive")
        rows += [(name, "", outcome[name]) for name in (*plain, "folds", "repeats", "subjects", "windows")]
        rows += [(f"over_subjects_{name}", "", value) for name, value in outcome["over_subjects"].items()]
        for kind in ("class", "subject"):
            for name, found in outcome[f"per_{kind}"].items():
                rows += [(f"{kind}_{measure}", name, value) for measure, value in found.items()]
        names = list(outcome["per_class"])
        for name, counts in zip(names, outcome["confusion"], strict=True):
            rows += [("confusion", f"{name} as {other}", count) for other, count in zip(names, counts, strict=True)]
    else:
        for entry in outcome["summary"]:
            rows += [(name, entry["probe"], value) for name, value in entry.items() if name != "probe"]
    write_csv(
        out, [("measure", "name", "value"), *((measure, harmless(str(name)), value) for measure, name, value in rows)]
    )


def _show(outcome: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    heads = {
        "accuracy": "accuracy %",
        "balanced_accuracy": "balanced accuracy %",
        "macro_f1": "macro F1 %",
        "kappa": "Cohen's kappa",
        "worst_subject": "worst subject %",
    }
    count = len({row.get("seed") for row in outcome["rows"]})
    splits = f"{count} split{'s' * (count > 1)}, protocol {outcome['protocol']}" if outcome["protocol"] else "own probe"
    title = printable(f"{outcome['model']} on {outcome['data']}, {splits}")
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("")
    for entry in outcome["summary"]:
        table.add_column(f"{entry['probe']} probe", justify="right", no_wrap=True)
    for name, head in heads.items():
        if name in outcome["summary"][0]:
            table.add_row(head, *(_cell(entry, name) for entry in outcome["summary"]))
    tested = sorted({row["tested"] for row in outcome["rows"]})
    counts = f"{tested[0]:,}" + (f" to {tested[-1]:,}" if len(tested) > 1 else "")
    table.add_row("windows tested", *[counts] * len(outcome["summary"]))
    screen = console()
    screen.print(title, style="bold", highlight=False, markup=False)
    screen.print(table)
    screen.print(_note(outcome), highlight=False)


def _note(outcome: dict[str, Any]) -> str:
    """Return a note on whether the scores may be optimistic."""
    if outcome["held_out"]:
        return "The test windows were held out when the model was fitted."
    if outcome["protocol"] is None:
        return "If the probe was trained on this data, it has seen the labels, and the scores are optimistic."
    return (
        "If the model was fitted to this data, it has seen the test windows, though not their labels; "
        "--protocol subject tests on new subjects."
    )


def _cell(entry: dict[str, Any], name: str) -> str:
    scale, digits = (1, 3) if name == "kappa" else (100, 2)
    spread = entry.get(f"{name}_std")
    return f"{scale * entry[name]:.{digits}f}" + ("" if spread is None else f" ± {scale * spread:.{digits}f}")
