"""`polyadic report`: what a model learned, and what it is worth, as one HTML file."""

from __future__ import annotations

import importlib.util
import json as json_module
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic.cli.options import (
    PROBE_KINDS,
    DeviceOption,
    ForceOption,
    JsonOption,
    ModelArgument,
    ProbeKind,
    Protocol,
    QuietOption,
    SettingsOption,
    shows_progress,
)
from polyadic.cli.outputs import check_out_file
from polyadic.cli.reading import reads_recordings
from polyadic.cli.replication import LONGEST, checked
from polyadic.cli.tables import describe
from polyadic.cli.windows import opened_for
from polyadic.errors import MissingExtraError, PolyadicError
from polyadic.files import check_regular_file
from polyadic.terminal import echo, print_json

__all__ = ["REPORT_EXAMPLES", "report"]

REPORT_EXAMPLES = """
[bold]Examples[/bold]

A model and the windows or recordings it is to be judged by:
  polyadic report model.safetensors --data sleep.store -o report.html

The same without learning the features anew in every fold of the cross-validation:
  polyadic report model.safetensors --data sleep.store --transductive

The same with the check of which components come back, however long it takes:
  polyadic report model.safetensors --data sleep.store --check

The model alone:
  polyadic report model.safetensors

With the comparison that a run has made:
  polyadic report run/atd.safetensors --results run/results.json
"""


@reads_recordings
def report(
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="A store, a .npz or .npy file of windows, or recordings: for the samples and the probe.",
            exists=True,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="results.json of a [bold]polyadic run[/bold], for its comparison.", exists=True
        ),
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            help="subject: the probe is cross-validated by subject (default where subjects are known); paper: one "
            "random split."
        ),
    ] = None,
    probe: Annotated[
        ProbeKind, typer.Option(metavar="KIND", help=f"The probe to score the features by. {PROBE_KINDS}")
    ] = ProbeKind.AUTO,
    transductive: Annotated[
        bool,
        typer.Option(
            "--transductive",
            help="Keep the model's features in every fold, even if they were learned from windows of test subjects; "
            "otherwise they are learned anew.",
        ),
    ] = False,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Fit halves of the subjects to see which components come back. The model file keeps that if the data "
            "is that of the fit. By default if it is, the file does not say, and it takes less than a minute.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the folds or of the split.")] = 0,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Of the page; the name of the data if not given.")] = "",
    device: DeviceOption = "auto",
    force: ForceOption = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Write one HTML file with the components, the samples, the probe and the training of a model.

    The file needs no network and nothing else beside it. The probe is scored on subjects that neither it nor the
    features have seen: one subject is left out at a time, or, where there are more than 20, one of five groups of
    subjects, twice. Unless the model was fitted by --protocol subject, features are learned anew every time.
    """
    from polyadic import load
    from polyadic import report as reports
    from polyadic.files import digest
    from polyadic.inputs import choose_device
    from polyadic.progress import stage_bar
    from polyadic.provenance import provenance

    if importlib.util.find_spec("plotly") is None:
        raise MissingExtraError("report needs plotly, which is not installed: pip install 'polyadic[report]'")
    check_out_file(out, model, data, results, settings, endings=(".html", ".htm"), force=force)
    loaded = load(model).set_params(device=device)
    if hasattr(loaded, "verbose"):
        loaded.set_params(verbose=0)  # of fits in folds
    result = None if results is None else _read(results)
    hidden = not shows_progress(quiet, json)
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
            seed=seed,
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
        echo(f"{out.name}: {size / 1e6:.1f} MB, open it in a browser")


def _check(model: Any, path: Path, windows: Any, check: bool | None, seed: int, hidden: bool, quiet: bool) -> str:
    """Look which components come back: as asked, or if the file does not say and it takes not long.

    The model and its file keep what was found in the windows of the fit; what was found in others is for the page.

    Returns
    -------
    what the page has to say besides
    """
    from polyadic.explain.replicability import estimate_seconds

    can = windows is not None and hasattr(model, "factors_")
    if check and not can:
        raise PolyadicError("--check fits a tensor model to halves of the data: name the data by --data")
    if not can:
        return ""
    model._samples(windows)  # says what is wrong with their shape
    if check is False or (check is None and getattr(model, "replicability_", None) is not None):
        return ""
    own = _windows_of_fit(model, windows)
    if check is None and (own is None or estimate_seconds(model, own) >= LONGEST):
        return ""
    try:
        model.replicability_ = checked(model, windows if own is None else own, seed, hidden)
    except PolyadicError as error:
        if check:
            raise
        echo(f"which components come back was not checked: {error}", err=True)
        return ""
    if own is None:
        note = "Checked on other windows than those the model was fitted to"
        if not quiet:
            echo(f"{note}: {path.name} does not keep which components come back", err=True)
        return f"{note}."
    if not _kept(path, model.replicability_) and not quiet:
        echo(f"{path.name} cannot be written to: it does not keep which components come back", err=True)
    return ""


def _windows_of_fit(model: Any, windows: Any) -> Any:
    """Those of the windows that the model was fitted to, as far as it can be known; None if they are others."""
    from polyadic.evaluate.scoring import own_split

    found = windows
    if model.split_:
        part = own_split(model, windows)
        if part is None:
            return None
        found = windows[part.unlabelled]
    return found if len(found) == model._n_seen else None


def _kept(path: Path, found: Any) -> bool:
    """Keep it in the model file, with all else as it was; whether that worked."""
    from polyadic import load

    model = load(path)
    model.replicability_ = found
    try:
        model.save(path)
    except OSError:
        return False
    return True


def _source(model: Any, data: Path, given: dict[str, Any]) -> str:
    """Code that reads the data from the folder it is in, for the script that fits the model again."""
    from polyadic.cli.windows import are_recordings
    from polyadic.data.reading import Reading

    if not are_recordings(data):
        return f"open_windows({data.name!r})"
    stored = getattr(model, "reading_", {})
    if not stored:
        stored = {"seconds": model._sample_shape[-1] / model.fs_, "channels": list(model.channel_names_) or None}
    reading = Reading.from_json(stored).with_given(given, "the model").to_json()
    told = "".join(f", {name}={value!r}" for name, value in reading.items())
    return f"datasets.folder({data.name!r}, 'again.store'{told}).windows"


def _read(path: Path) -> dict[str, Any]:
    check_regular_file(path, PolyadicError)
    try:
        content = json_module.loads(path.read_bytes())
    except ValueError as error:
        raise PolyadicError(
            f"--results must be the results.json of a run, but {path.name} is no JSON: {error}"
        ) from error
    if not isinstance(content, dict):
        raise PolyadicError(f"--results must be the results.json of a run, but {path.name} holds no object")
    return content
