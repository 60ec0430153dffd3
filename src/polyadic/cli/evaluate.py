"""`polyadic evaluate`: score a model's features, or its probe, on labelled windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.files import harmless
from polyadic._util.terminal import echo, print_json, print_table
from polyadic.cli import options
from polyadic.cli.files import check_out_file, write_csv
from polyadic.cli.options import option, out_option
from polyadic.cli.windows import describe, open_model, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.evaluate import CrossValidation

_MOST_SHOWN = 30
"""Maximum number of classes or subjects listed on the screen; --json and --out have all."""

EXAMPLES = """
[bold]Examples[/bold]

Score features and probe on subjects that neither has seen; write all scores to a file:
  polyadic evaluate model.safetensors sleep.store
  polyadic evaluate model.safetensors sleep.store --folds loso -o scores.csv

Without refitting the features in every fold:
  polyadic evaluate model.safetensors sleep.store --transductive

The probe in the model file, on recordings of other subjects:
  polyadic evaluate model.safetensors new.store --own-probe
"""


@options.with_options("device force json quiet")
def evaluate(
    model: options.Model,
    data: options.Data,
    probe: options.Probe = None,
    folds: Annotated[
        str | None,
        option(
            "Number of folds of subjects; loso leaves out one subject at a time. Default: loso for up to 20 subjects, "
            "else five folds, repeated twice.",
            metavar="N|loso",
        ),
    ] = None,
    repeats: Annotated[int | None, option("Number of repeats of the folds. Default: 1.", min=1, metavar="N")] = None,
    transductive: options.Transductive = False,
    own_probe: Annotated[bool, option("Score the probe in the model file; no training.", "--own-probe")] = False,
    out: Annotated[Path | None, out_option("Also write all scores to this .csv file.")] = None,
    *,
    common: options.Common,
) -> None:
    """Score a model by how well a classifier predicts labels from its features.

    A probe (a simple classifier on the features) is trained and tested on different subjects of DATA. Shows balanced
    accuracy, accuracy, macro F1, Cohen's kappa, and scores by class and by subject, and whether predictions along the
    recording are better than those of each window by itself. If the model has seen a test subject, the features are
    refitted in every fold without that subject. A model fitted with --protocol subject keeps its features and is
    tested on the subjects it has not seen.
    """
    loaded = open_model(model, common.device)
    if out is not None:
        check_out_file(out, model, data, endings=(".csv",), force=common.force)
    if own_probe and any(value is not None for value in (probe, folds, repeats)):
        raise PolyadicError("--own-probe uses no folds: leave out --probe, --folds and --repeats")
    if not (folds in (None, "loso") or (folds.isdecimal() and int(folds) >= 2)):
        raise PolyadicError(f"--folds must be loso or an integer of at least 2, but is {folds[:20]!r}")
    with opened(data, common, model=loaded) as windows:
        if not (windows.label >= 0).any():
            raise PolyadicError(
                f"evaluate needs labels, but {data.name} has none. To label new recordings, use polyadic predict"
            )
        if own_probe or windows.index.n_subjects != 1:  # one subject raises an error below
            describe(windows, hidden=True)
        if own_probe:
            outcome = _score_own_probe(loaded, windows, common.hidden)
        else:
            kind = probe or "auto"
            result = cross_validation(loaded, windows, kind, folds, repeats, transductive, common.hidden)
            outcome = {"probe": kind, **result.to_dict(), "summary_text": result.summary()}
    if out is not None:
        _write_scores(out, outcome)
    about = {"model": model.name, "data": data.name}
    if common.json:
        outcome.pop("summary_text", None)
        print_json(about | outcome)
    elif own_probe:
        _show_own_probe(about | outcome)
    else:
        chain = getattr(getattr(loaded, "probe_", None), "chain_", None)
        _show_folds(about | outcome, None if chain is None else bool(chain.is_default))


def cross_validation(
    model: Any,
    windows: Windows,
    kind: str = "auto",
    folds: str | None = None,
    repeats: int | None = None,
    transductive: bool = False,
    hidden: bool = False,
) -> CrossValidation:
    """Return the scores of left-out subjects, and show progress."""
    from polyadic._util.progress import stage_bar
    from polyadic.evaluate.validation import cross_validate, default_folds, unseen_rows

    rows = unseen_rows(model, windows)
    chosen: Any = int(folds) if folds is not None and folds != "loso" else folds
    if folds is None:
        chosen, repeats = default_folds(windows, rows, repeats)
    with stage_bar("cross-validation", hidden, "folds") as show:
        tell = lambda fold: show(fold.number, fold.total, "")  # noqa: E731
        return cross_validate(model, windows, chosen, repeats or 1, kind, transductive, rows=rows, on_fold=tell)


def _score_own_probe(model: Any, windows: Windows, hidden: bool) -> dict[str, Any]:
    from polyadic._util.progress import window_bar
    from polyadic.evaluate.scoring import score_own_probe

    with window_bar("scoring", int((windows.label >= 0).sum()), hidden) as on_rows:
        return score_own_probe(model, windows, on_rows)


def _show_folds(outcome: dict[str, Any], predicts_along: bool | None) -> None:
    """Print scores by class, the confusion matrix, scores by subject, and a summary.

    `predicts_along` : whether `predict` labels along the recording with this model; None if it has no order of windows
    """

    def percent(row: dict[str, Any], *names: str) -> list[str]:
        return [*(f"{100 * row[name]:.1f}" for name in names), f"{row['windows']:,}"]

    per_class, per_subject, along = outcome["per_class"], outcome["per_subject"], outcome["along"]
    title = f"{outcome['model']} on {outcome['data']}, by subject, {outcome['probe']} probe"
    rows = [[name, *percent(row, "recall", "precision", "f1")] for name, row in per_class.items()]
    heads = ["class", "recall %", "precision %", "F1 %", "windows"]
    if along is not None:
        heads.append("recall along %")
        rows = [[*row, f"{100 * along['recall'][row[0]]:.1f}"] for row in rows]
    print_table(heads, rows, title=title)
    if len(per_class) <= _MOST_SHOWN:
        pairs = zip(per_class, outcome["confusion"], strict=True)
        counts = [[name, *(f"{count:,.1f}".removesuffix(".0") for count in row)] for name, row in pairs]
        repeats = f", mean of {outcome['repeats']} repeats" if outcome["repeats"] > 1 else ""
        print_table(("true \\ predicted", *per_class), counts, title=f"windows{repeats}")
    if len(per_subject) <= _MOST_SHOWN:
        rows = [[name, *percent(row, "balanced_accuracy", "accuracy")] for name, row in per_subject.items()]
        print_table(("subject", "balanced accuracy %", "accuracy %", "windows"), rows)
    if along is not None:
        ways = [("along the recording", along), ("each window by itself", outcome)]
        uses = along["used"] > 0.5 if predicts_along is None else predicts_along
        figures = [f"{100 * row['balanced_accuracy']:.1f} % {way}" for way, row in (ways if uses else ways[::-1])]
        echo(
            f"Balanced accuracy on new subjects: {figures[0]}, as predict labels with this model; {figures[1]}. Tables "
            "and the figures below are of each window by itself."
        )
    for line in outcome["summary_text"].splitlines():
        echo(line)
    if not outcome["transductive"]:
        echo(
            "This is the score on new subjects; compare it with that of tune. The score that fit --probe prints is "
            "optimistic: its features have seen every subject."
        )
    lowest = sorted(per_subject.items(), key=lambda item: item[1]["balanced_accuracy"])[:3]
    worst = ", ".join(f"{name} {100 * row['balanced_accuracy']:.1f} %" for name, row in lowest)
    echo(f"Subjects with the lowest balanced accuracy: {worst}.")


def _write_scores(out: Path, outcome: dict[str, Any]) -> None:
    """Write all scores as a table: measure, class or subject, value."""
    rows: list[tuple[str, str, Any]] = [
        (name, "", value) for name, value in outcome.items() if isinstance(value, int | float)
    ]
    if "folds" in outcome:
        along = dict(outcome["along"] or {})
        rows += [("along_class_recall", name, value) for name, value in along.pop("recall", {}).items()]
        for kind, measures in (("over_subjects", outcome["over_subjects"]), ("along", along)):
            rows += [(f"{kind}_{name}", "", value) for name, value in measures.items()]
        for kind in ("class", "subject"):
            for name, found in outcome[f"per_{kind}"].items():
                rows += [(f"{kind}_{measure}", name, value) for measure, value in found.items()]
        names = list(outcome["per_class"])
        for name, counts in zip(names, outcome["confusion"], strict=True):
            rows += [("confusion", f"{name} as {other}", count) for other, count in zip(names, counts, strict=True)]
    else:
        rows += [("subject_accuracy", name, value) for name, value in outcome.get("per_subject", {}).items()]
    write_csv(out, [("measure", "name", "value"), *((row[0], harmless(str(row[1])), row[2]) for row in rows)])


def _show_own_probe(outcome: dict[str, Any]) -> None:
    """Print the scores of the probe in the model file."""
    heads = ("balanced_accuracy", "accuracy", "macro_f1", "worst_subject")
    rows = [[f"{name.replace('_', ' ')} %", f"{100 * outcome[name]:.2f}"] for name in heads if name in outcome]
    rows += [["Cohen's kappa", f"{outcome['kappa']:.3f}"], ["windows tested", f"{outcome['tested']:,}"]]
    print_table(("", "own probe"), rows, title=f"{outcome['model']} on {outcome['data']}")
    if outcome["held_out"]:
        echo("The test windows were held out when the model was fitted.")
    else:
        echo("If the probe was trained on this data, it has seen the labels, and the scores are optimistic.")
