"""`polyadic export`: a model file as an ONNX graph, for devices without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.options import ForceOption, JsonOption, ModelArgument, QuietOption, SettingsOption
from polyadic.cli.outputs import check_out_file
from polyadic.terminal import echo, print_json

__all__ = ["EXPORT_EXAMPLES", "export"]

EXPORT_EXAMPLES = """
[bold]Examples[/bold]

  polyadic export model.safetensors -o model.onnx

Then, on a device with onnxruntime and numpy alone:
  python examples/onnx_device.py model.onnx
"""


def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The ONNX file to write.")] = Path(
        "model.onnx"
    ),
    fs: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="HZ", help="Sampling rate in Hz to note in the file, if the model has none."),
    ] = None,
    channels: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME,…", help="Names of the channels to note in the file, with commas between them."
        ),
    ] = "",
    force: ForceOption = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a model as one ONNX graph from raw windows to features, and to probabilities if it has a probe."""
    from polyadic import load
    from polyadic.export import Features, onnx

    check_out_file(out, model, settings, force=force)
    names = [name.strip() for name in channels.split(",")] if channels else []
    onnx(load(model), out, fs=fs, channels=names)
    # What is read back is what a device will see.
    written = Features(out)
    outcome = {
        "file": out.name,
        "bytes": out.stat().st_size,
        "window": written.shape,
        "features": written.n_features,
        "classes": written.classes,
        "fs": written.fs,
        "channels": written.channels,
    }
    if json:
        print_json(outcome)
        return
    if quiet:
        return
    probe = f" and probabilities of {len(written.classes)} classes" if written.classes else ""
    window = " × ".join(str(size) for size in written.shape)
    echo(f"{out.name}: windows of {window} to {written.n_features} features{probe}, {out.stat().st_size / 1e3:,.0f} kB")
