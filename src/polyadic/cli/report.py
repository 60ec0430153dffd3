"""`polyadic report`: write the components, features and scores of a model to one HTML file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.files import check_out_file, require
from polyadic.cli.fit import checked
from polyadic.cli.windows import are_recordings, describe, open_model, opened
from polyadic.errors import PolyadicError

_LONGEST = 60.0
"""Maximum estimated time in seconds for which a report checks replicability by default."""

EXAMPLES = """
[bold]Examples[/bold]

A model, with the windows or recordings to show and to score it on:
  polyadic report model.safetensors --data sleep.store -o report.html

Without refitting the features in every fold of the cross-validation:
  polyadic report model.safetensors --data sleep.store --transductive

With a check of which components replicate, however long it takes:
  polyadic report model.safetensors --data sleep.store --check

The model alone:
  polyadic report model.safetensors
"""


@options.reads_recordings
def report(
    model: options.Model,
    data: options.DataOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    protocol: Annotated[
        options.Protocol | None,
        typer.Option(
            help="subject: cross-validation by subject (default if subjects are known); paper: one random split."
        ),
    ] = None,
    probe: options.Probe = "auto",
    transductive: options.Transductive = False,
    on_error: options.SkipErrors = "raise",
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Fit halves of the subjects of DATA to check which components replicate. Default: only if the model "
            "was not checked by fit --check, DATA seems to be what it was fitted to, and it takes less than a minute.",
        ),
    ] = None,
    seed: options.Seed = 0,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the page. Default: the name of the data.")] = "",
    device: options.Device = "auto",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    *,
    given: dict[str, Any],
) -> None:
    """Write an HTML report of a model: components, windows, scores and training.

    The report is one file that works offline. Windows and scores need --data. The probe (a classifier on the features)
    is scored on subjects that neither it nor the features have seen: one subject is left out at a time or, with more
    than 20, one of five groups, twice. Features are refitted in every fold, unless the model was fitted with
    --protocol subject.
    """
    from polyadic import report as reports
    from polyadic._util.files import digest
    from polyadic._util.progress import stage_bar
    from polyadic._util.provenance import provenance
    from polyadic.data.batches import choose_device

    require("plotly", "report needs", "report")
    check_out_file(out, model, data, endings=(".html", ".htm"), force=force)
    loaded = open_model(model, device)
    hidden = quiet or json
    with ExitStack() as stack:
        windows = None
        if data is not None:
            windows = stack.enter_context(opened(data, given, model=loaded, on_error=on_error, hidden=hidden))
            describe(windows, hidden=True)
        replicability = _check(loaded, windows, check, seed, hidden)
        hashes = {path.name: digest(path) for path in (model, data) if path is not None and path.is_file()}
        on_stage = stack.enter_context(stage_bar("report", hidden, "parts"))
        reports.write(
            out,
            loaded,
            windows,
            origin=provenance(str(choose_device(device))) | {"sha256": hashes},
            title=title or (model if data is None else data).name,
            protocol=protocol,
            random_state=seed,
            probe=probe,
            transductive=transductive,
            source="" if data is None else _source(loaded, data, given),
            replicability=replicability,
            on_stage=on_stage,
        )
    size = out.stat().st_size
    if json:
        found = replicability or getattr(loaded, "replicability_", None)
        print_json({"report": out.name, "bytes": size, "replicability": None if found is None else found.to_dict()})
    elif not quiet:
        echo(f"{out.name}: {size / 1e6:.1f} MB. Open it in a browser.")


def _check(model: Any, windows: Any, check: bool | None, seed: int, hidden: bool) -> Any:
    """Return which components replicate in these windows, if requested, or if the model has no result and it is quick.

    Without a request, the windows must be those of the split that the model was fitted to or, without a split, as many.
    """
    from polyadic.evaluate.scoring import own_split
    from polyadic.explain.replicability import estimate_seconds

    can = windows is not None and hasattr(model, "factors_")
    if check and not can:
        raise PolyadicError("--check needs a tensor model and --data, to fit halves of the data")
    if not can:
        return None
    model._samples(windows)  # raises if the shape of the windows is wrong
    known = hasattr(model, "components_") or getattr(model, "replicability_", None) is not None
    if check is False or (check is None and known):
        return None
    part = own_split(model, windows)
    fitted = windows if part is None else windows[part.unlabelled]
    of_fit = (part is not None or not model.split_) and len(fitted) == model._n_seen
    if check is None and (not of_fit or estimate_seconds(model, fitted) >= _LONGEST):
        return None
    try:
        return checked(model, fitted, seed, hidden)
    except PolyadicError as error:
        if check:
            raise
        echo(f"replicability was not checked: {error}", err=True)
        return None


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
