"""`polyadic evaluate`: score a model's features, or its probe, on labelled windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.terminal import described, echo, print_json, print_table
from polyadic.cli.options import Common, Data, Model, Transductive, option, with_options
from polyadic.cli.windows import describe, open_model, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.evaluate import CrossValidation
    from polyadic.evaluate.sequences import Chain

EXAMPLES = """
Score features and probe on subjects that neither has seen; all scores as JSON:
  polyadic evaluate model.safetensors sleep.store
  polyadic evaluate model.safetensors sleep.store --folds loso --json
  polyadic evaluate model.safetensors recordings --labels labels.csv

Without refitting the features in every fold; and the model file as it is, on recordings of subjects it has not seen:
  polyadic evaluate model.safetensors sleep.store --transductive
  polyadic evaluate model.safetensors new.store --own-probe
"""


@with_options("labels device json quiet")
def evaluate(
    common: Common,
    model: Model,
    data: Data,
    folds: Annotated[
        str | None,
        option("Folds of subjects, or loso: one subject each. Default: loso, above 20 subjects 5.", metavar="N|loso"),
    ] = None,
    transductive: Transductive = False,
    own_probe: Annotated[
        bool, option("Score the model file as it is, on subjects it has not seen.", "--own-probe")
    ] = False,
) -> None:
    """Score a model by how well a classifier predicts labels from its features.

    Features and a probe (a simple classifier on them) are trained anew and tested on different subjects of DATA, in
    several folds. Shows balanced accuracy, accuracy, macro F1, Cohen's kappa, and scores by class and by subject, and
    whether predictions along the recording are better than those of each window by itself.
    """
    from polyadic.evaluate.validation import score_own_probe

    loaded = open_model(model, common.device)
    if own_probe and folds is not None:
        raise PolyadicError("--own-probe uses no folds: leave out --folds")
    if not (folds in (None, "loso") or (folds.isdecimal() and int(folds) >= 2)):
        raise PolyadicError(f"--folds must be loso or an integer of at least 2, but is {folds[:20]!r}")
    with opened(data, common, model=loaded) as windows:
        if not (windows.label >= 0).any():
            raise PolyadicError(
                f"evaluate needs labels, but {data.name} has none: give those of polyadic label with --labels. To "
                "label new recordings, use polyadic predict"
            )
        describe(windows, common.hidden)
        outcome: dict[str, Any] = {"model": model.name, "data": data.name}
        if own_probe:
            outcome |= score_own_probe(loaded, windows)
        else:
            result = cross_validation(loaded, windows, common.hidden, folds, transductive=transductive)
            outcome |= result.to_dict()
    if common.json:
        print_json(outcome)
    elif own_probe:
        for line in (*described(outcome), "If the model was fitted to these windows, this score is too high."):
            echo(line)
    else:
        _show_folds(outcome, result.summary(), getattr(getattr(loaded, "probe_", None), "chain_", None))


def cross_validation(
    model: Any, windows: Windows, hidden: bool, folds: str | None = None, transductive: bool = False
) -> CrossValidation:
    """Return the scores of left-out subjects, and show progress."""
    from polyadic._util.progress import stage_bar
    from polyadic.evaluate import cross_validate

    chosen: Any = int(folds) if folds is not None and folds != "loso" else folds or "auto"
    with stage_bar("cross-validation", hidden, "folds") as show:
        tell = lambda fold: show(fold.number, fold.total)  # noqa: E731
        return cross_validate(model, windows, chosen, on_fold=tell, transductive=transductive)


def _show_folds(outcome: dict[str, Any], summary: str, chain: Chain | None) -> None:
    """Print scores by class, the confusion matrix, scores by subject, a summary, and how the model labels windows."""
    import pandas as pd

    along = outcome["along"]
    tables = (pd.DataFrame(outcome[name]).T for name in ("per_class", "per_subject"))
    classes, subjects = ((100 * table).assign(windows=table["windows"].astype(int)) for table in tables)
    if along is not None:
        classes["recall along"] = 100 * pd.Series(along["recall"])
    print_table(classes, f"{outcome['model']} on {outcome['data']}, by subject; in %")
    repeats, confusion = outcome["repeats"], pd.DataFrame(outcome["confusion"], classes.index, classes.index)
    mean = f", mean of {repeats} repeats" if repeats > 1 else ""
    print_table(confusion if mean else confusion.astype(int), f"windows, true in rows, predicted in columns{mean}")
    print_table(subjects, "subjects; in %")
    for line in summary.splitlines():
        echo(line)
    if chain is not None:
        way = "along the recording (--no-along overrides it)" if chain.is_default else "each window by itself"
        echo(f"With this model, predict labels {way}. The tables are of each window by itself.")
    if not outcome["transductive"]:
        echo(
            "This is the score on new subjects: features and probes were trained anew, each on other subjects of the "
            "data. --own-probe scores the model file as it is, on subjects that it has not seen."
        )
