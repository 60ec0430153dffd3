"""`polyadic report`: what a model learned, and what it is worth, as one HTML file."""

from __future__ import annotations

import json as json_module
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic.cli.models import Protocol
from polyadic.errors import PolyadicError

__all__ = ["REPORT_EXAMPLES", "report"]

REPORT_EXAMPLES = """
A model and the windows it is to be judged by:

  polyadic report model.safetensors --data sleep.store -o report.html

The model alone, with neither labels nor a sampling rate:

  polyadic report model.safetensors

With the comparison that a run has made:

  polyadic report polyadic-run/atd.safetensors --data har.npz --results polyadic-run/results.json
"""


def report(
    model: Annotated[Path, typer.Argument(help="A model file.", exists=True, dir_okay=False)],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A window store made by [bold]polyadic prepare[/bold], or a .npz file: for frequencies in Hz, the "
            "samples and the probe.",
            exists=True,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    results: Annotated[
        Path | None,
        typer.Option(help="results.json of a [bold]polyadic run[/bold], for its comparison.", exists=True),
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="How to split for the probe; people are kept apart where they are known."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of that split.")] = 0,
    fs: Annotated[float | None, typer.Option(min=0.0, help="Sampling rate in Hz, if the file does not say.")] = None,
    title: Annotated[str, typer.Option(help="Of the page; the name of the data if not given.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Write one HTML file with the components, the samples, the probe and the training of a model.

    The file needs no network and nothing else beside it.
    """
    from rich.console import Console

    from polyadic import load
    from polyadic import report as reports
    from polyadic.data.opening import open_windows
    from polyadic.experiments.provenance import provenance
    from polyadic.files import digest
    from polyadic.inputs import choose_device

    if not out.resolve().parent.is_dir():
        raise PolyadicError(f"--out must lie in a folder that is there, but {out.parent} is not")
    if fs is not None and data is None:
        raise PolyadicError("--fs is the sampling rate of --data, which is not given")
    loaded = load(model).set_params(device=device)
    windows = None if data is None else open_windows(data, fs=fs)
    hashes = {path.name: digest(path) for path in (model, data) if path is not None and path.is_file()}
    result = None if results is None else _read(results)
    console = Console(stderr=True)
    with nullcontext() if quiet or json or not console.is_terminal else console.status("drawing the report"):
        reports.write(
            out,
            loaded,
            windows,
            result=result,
            origin=provenance(str(choose_device(device))) | {"sha256": hashes},
            title=title or (model if data is None else data).name,
            protocol=None if protocol is None else protocol.value,
            seed=seed,
        )
    size = out.stat().st_size
    if json:
        typer.echo(json_module.dumps({"report": out.name, "bytes": size}))
    elif not quiet:
        typer.echo(f"{out.name}: {size / 1e6:.1f} MB, open it in a browser")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json_module.loads(path.read_bytes())
    except ValueError as error:
        raise PolyadicError(
            f"--results must be the results.json of a run, but {path.name} is no JSON: {error}"
        ) from error
    if not isinstance(content, dict):
        raise PolyadicError(f"--results must be the results.json of a run, but {path.name} holds no object")
    return content
