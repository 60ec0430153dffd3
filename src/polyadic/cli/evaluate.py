"""`polyadic evaluate`: what a model's features, or its probe, are worth on labelled windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic.cli.options import (
    MOST_REPEATS,
    DataArgument,
    DeviceOption,
    JsonOption,
    ModelArgument,
    Protocol,
    QuietOption,
    ResampleOption,
    SettingsOption,
    shows_progress,
    window_bar,
)
from polyadic.cli.windows import opened_for
from polyadic.errors import PolyadicError
from polyadic.terminal import console, print_json, printable

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["EVALUATE_EXAMPLES", "evaluate"]

_SEEDS = 5

EVALUATE_EXAMPLES = """
[bold]Examples[/bold]

New probes on five splits that keep people apart:
  polyadic evaluate model.safetensors sleep.store --protocol subject

The probe in the model file, on recordings of other people:
  polyadic evaluate model.safetensors new.store --own-probe

Two processes that make the features together:
  torchrun --nproc-per-node 2 -m polyadic evaluate model.safetensors s.store
"""


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            help="subject: people of the training and the test windows are apart (default where people are known); "
            "paper: as the paper's numbers were made, which flatters every method."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_REPEATS,
            metavar="N",
            help=f"How many splits; {_SEEDS} if not given, but one for a model that was fitted by --protocol: its own.",
        ),
    ] = None,
    own_probe: Annotated[
        bool,
        typer.Option(
            "--own-probe",
            help="Judge the probe in the model file, on all windows with labels (held-out ones, if it knows them).",
        ),
    ] = False,
    device: DeviceOption = "auto",
    resample: ResampleOption = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show how well labels follow from a model's features.

    Logistic regressions are trained on the training part of a split of DATA and tested on its test part: accuracy,
    balanced accuracy, macro F1, Cohen's kappa and the accuracy of the worst subject.
    """
    from polyadic import load
    from polyadic.engine import processes

    team = processes.join()
    loaded = load(model).set_params(device=device)
    if own_probe and (protocol is not None or seeds is not None):
        raise PolyadicError("--own-probe needs no split: leave out --protocol and --seeds")
    hidden = not shows_progress(quiet, json) or team.index > 0
    how = None if resample is None else resample.value
    classes = [str(name) for name in loaded.probe_.classes_] if hasattr(loaded, "probe_") else ()
    with opened_for(loaded, data, resample=how, classes=classes, hidden=hidden) as windows:
        if not (windows.label >= 0).any():
            raise PolyadicError(f"{data.name} has no labels to judge by")
        shape = (int((windows.label >= 0).sum()), *windows.shape[1:])
        with window_bar("scoring", shape, hidden) as on_rows:
            wanted = None if protocol is None else protocol.value
            outcome = _score(loaded, windows, wanted, seeds, own_probe, on_rows, team)
    if team.index > 0:
        return
    outcome = {"model": model.name, "data": data.name, **outcome}
    if json:
        print_json(outcome)
    else:
        _show(outcome)


def _score(
    model: Any, windows: Windows, protocol: Any, seeds: int | None, own_probe: bool, on_rows: Any, team: Any
) -> dict[str, Any]:
    """Return scores, how they came about, and whether the test windows were new to the model."""
    from polyadic.evaluate.scoring import default_protocol, own_split, score_own_probe, score_splits, summarise

    if own_probe:
        rows = score_own_probe(model, windows, on_rows, team)
        return {"protocol": None, "held_out": bool(rows[0]["split"]), "summary": summarise(rows), "rows": rows}
    protocol = protocol or default_protocol(windows)
    own = own_split(model, windows, [protocol])
    chosen = [model.seed_] if own is not None and seeds is None else list(range(seeds or _SEEDS))
    rows = score_splits(model, windows, protocol, chosen, on_rows, team)
    held_out = own is not None and chosen == [model.seed_]
    return {"protocol": protocol, "held_out": held_out, "summary": summarise(rows), "rows": rows}


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
    """How honest the scores are."""
    if outcome["held_out"]:
        return "The windows tested were held out when the model was fitted."
    if outcome["protocol"] is None:
        return "If the probe was trained on windows of this data, it has seen their labels, and this flatters it."
    return (
        "If the model was fitted to this data, it has seen the windows tested, though not their labels; "
        "polyadic fit --protocol keeps them apart."
    )


def _cell(entry: dict[str, Any], name: str) -> str:
    scale, digits = (1, 3) if name == "kappa" else (100, 2)
    spread = entry.get(f"{name}_std")
    return f"{scale * entry[name]:.{digits}f}" + ("" if spread is None else f" ± {scale * spread:.{digits}f}")
