"""`polyadic report`: write the components, features and scores of a model to one HTML file."""

from __future__ import annotations

import json as json_module
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic._util.files import check_regular_file
from polyadic._util.terminal import echo, print_json
from polyadic.cli.files import check_out_file, require
from polyadic.cli.fit import checked
from polyadic.cli.options import (
    PROBE_KINDS,
    DeviceOption,
    ForceOption,
    JsonOption,
    ModelArgument,
    ProbeKind,
    Protocol,
    QuietOption,
    SeedOption,
    TransductiveOption,
    reads_recordings,
)
from polyadic.cli.windows import are_recordings, describe, opened_for
from polyadic.errors import PolyadicError

__all__ = ["REPORT_EXAMPLES", "report"]

_LONGEST = 60.0
"""Maximum estimated time in seconds for which a report checks replicability by default."""

REPORT_EXAMPLES = """
[bold]Examples[/bold]

A model, with the windows or recordings to show and to score it on:
  polyadic report model.safetensors --data sleep.store -o report.html

Without refitting the features in every fold of the cross-validation:
  polyadic report model.safetensors --data sleep.store --transductive

With a check of which components replicate, however long it takes:
  polyadic report model.safetensors --data sleep.store --check

The model alone:
  polyadic report model.safetensors

With the comparison of methods from polyadic run:
  polyadic report run/cpd.safetensors --results run/results.json
"""


@reads_recordings
def report(
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Store, .npz or .npy file of windows, or recordings; needed to show windows and scores.",
            exists=True,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="results.json of [bold]polyadic run[/bold], to include its comparison.", exists=True
        ),
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            help="subject: cross-validation by subject (default if subjects are known); paper: one random split."
        ),
    ] = None,
    probe: Annotated[
        ProbeKind, typer.Option(metavar="KIND", help=f"Probe: the classifier that scores the features. {PROBE_KINDS}")
    ] = ProbeKind.AUTO,
    transductive: TransductiveOption = False,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Fit halves of the subjects to check which components replicate, and save the result in the model "
            "file if the model was fitted to DATA. Default: only for the data of the fit, if not done before, and if "
            "it takes less than a minute.",
        ),
    ] = None,
    seed: SeedOption = 0,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the page. Default: the name of the data.")] = "",
    device: DeviceOption = "auto",
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Write an HTML report of a model: components, windows, scores and training.

    The report is one file that works offline. The probe (a classifier on the features) is scored on subjects that
    neither it nor the features have seen: one subject is left out at a time or, with more than 20, one of five groups,
    twice. Features are refitted in every fold, unless the model was fitted with --protocol subject.
    """
    from polyadic import load
    from polyadic import report as reports
    from polyadic._util.files import digest
    from polyadic._util.progress import stage_bar
    from polyadic._util.provenance import provenance
    from polyadic.data.samples import choose_device

    require("plotly", "report needs", "report")
    check_out_file(out, model, data, results, endings=(".html", ".htm"), force=force)
    loaded = load(model).set_params(device=device)
    if hasattr(loaded, "verbose"):
        loaded.set_params(verbose=0)  # for fits in folds
    result = None if results is None else _read(results)
    hidden = quiet or json
    with ExitStack() as stack:
        windows = None
        if data is not None:
            windows = stack.enter_context(opened_for(loaded, data, given, labels=True, hidden=hidden))
            describe(windows, hidden=True)
        note = _check(loaded, model, windows, check, seed, hidden, quiet)
        hashes = {path.name: digest(path) for path in (model, data) if path is not None and path.is_file()}
        on_stage = stack.enter_context(stage_bar("report", hidden, "parts"))
        reports.write(
            out,
            loaded,
            windows,
            result=result,
            origin=provenance(str(choose_device(device))) | {"sha256": hashes},
            title=title or (model if data is None else data).name,
            protocol=None if protocol is None else protocol.value,
            random_state=seed,
            probe=probe.value,
            transductive=transductive,
            source="" if data is None else _source(loaded, data, given),
            check_note=note,
            on_stage=on_stage,
        )
    size = out.stat().st_size
    if json:
        print_json({"report": out.name, "bytes": size})
    elif not quiet:
        echo(f"{out.name}: {size / 1e6:.1f} MB. Open it in a browser.")


def _check(model: Any, path: Path, windows: Any, check: bool | None, seed: int, hidden: bool, quiet: bool) -> str:
    """Check which components replicate, if requested, or if the model file has no result and the check is quick.

    The result is saved in the model file if the model was fitted to these windows; otherwise it is only shown in the
    report.

    Returns
    -------
    a note for the report, or an empty string
    """
    from polyadic import load
    from polyadic.explain.replicability import estimate_seconds

    can = windows is not None and hasattr(model, "factors_")
    if check and not can:
        raise PolyadicError("--check needs a tensor model and --data, to fit halves of the data")
    if not can:
        return ""
    model._samples(windows)  # raises if the shape of the windows is wrong
    if check is False or (check is None and getattr(model, "replicability_", None) is not None):
        return ""
    fitted = _windows_of_fit(model, windows)
    if check is None and (fitted is None or estimate_seconds(model, fitted) >= _LONGEST):
        return ""
    try:
        model.replicability_ = checked(model, windows if fitted is None else fitted, seed, hidden)
    except PolyadicError as error:
        if check:
            raise
        echo(f"replicability was not checked: {error}", err=True)
        return ""
    note = "Checked on windows other than those of the fit"
    if fitted is None:
        said = f"{note}: replicability is not saved in {path.name}"
    else:
        stored = load(path)
        stored.replicability_ = model.replicability_
        try:
            stored.save(path)
            said = f"{path.name}: the replicability of the components is now stored in this file"
        except OSError:
            said = f"{path.name} is not writable: replicability is not saved in it"
    if not quiet:
        echo(said, err=True)
    return f"{note}." if fitted is None else ""


def _windows_of_fit(model: Any, windows: Any) -> Any:
    """Return the windows that the model was fitted to, identified by split and number; None if these are others."""
    from polyadic.evaluate.scoring import own_split

    if model.split_:
        part = own_split(model, windows)
        if part is None:
            return None
        windows = windows[part.unlabelled]
    return windows if len(windows) == model._n_seen else None


def _source(model: Any, data: Path, given: dict[str, Any]) -> str:
    """Return the code that reads the data, for the script that refits the model."""
    from polyadic.data.reading import Reading

    if not are_recordings(data):
        return f"open_windows({data.name!r})"
    stored = getattr(model, "reading_", {})
    if not stored:
        stored = {"seconds": model._sample_shape[-1] / model.fs_, "channels": list(model.channel_names_) or None}
    reading = Reading.from_json(stored).with_given(given, "the model").to_json()
    told = "".join(f", {name}={value!r}" for name, value in reading.items())
    return f"folder({data.name!r}, 'again.store'{told}).windows"


def _read(path: Path) -> dict[str, Any]:
    check_regular_file(path, PolyadicError)
    try:
        content = json_module.loads(path.read_bytes())
    except ValueError as error:
        raise PolyadicError(
            f"--results must be the results.json of a run, but {path.name} is not JSON: {error}"
        ) from error
    if not isinstance(content, dict):
        raise PolyadicError(f"--results must be the results.json of a run, but {path.name} is not a JSON object")
    return content
