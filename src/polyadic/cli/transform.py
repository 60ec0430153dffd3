"""`polyadic transform`: compute the features of recordings or windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli.files import check_out_file, write_table
from polyadic.cli.options import (
    DataArgument,
    DeviceOption,
    ForceOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    reads_recordings,
)
from polyadic.cli.windows import counted, opened_for

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["TRANSFORM_EXAMPLES", "transform"]

TRANSFORM_EXAMPLES = """
[bold]Examples[/bold]

  polyadic transform model.safetensors sleep.store -o features.npy
  polyadic transform model.safetensors recordings -o features.csv
"""


@reads_recordings
def transform(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Output file: .npy (features only) or .csv (with subject, recording, start and label).",
            metavar="FILE",
        ),
    ] = Path("features.npy"),
    device: DeviceOption = "auto",
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Compute the features of all windows and write them to a file."""
    from polyadic import load
    from polyadic._util.progress import window_bar

    check_out_file(out, model, data, endings=(".npy", ".csv"), force=force)
    loaded = load(model)
    loaded.device = device
    hidden = quiet or json
    with opened_for(loaded, data, given, labels=None, hidden=hidden) as windows:
        count = len(windows)
        with window_bar("transforming", len(windows), hidden) as on_rows:
            if out.suffix == ".npy":
                loaded.transform(windows, out=out, on_rows=on_rows)
            else:
                _write_features(loaded, windows, out, on_rows)
    if json:
        print_json({"features": out.name, "windows": count, "columns": list(loaded.get_feature_names_out())})
        return
    echo(f"{out.name}: {counted(count, 'window')}, {len(loaded.get_feature_names_out())} features each")


def _write_features(model: Any, windows: Windows, out: Path, on_rows: Callable[[int], None]) -> None:
    """Write one row per window: subject, recording, start in seconds, class, features."""

    def columns(part: Windows) -> list[list[str]]:
        labels = ["" if label < 0 else windows.classes[label] for label in part.label.tolist()]
        values = [[f"{value:.6g}" for value in Z] for Z in model.transform(part)]
        return [[label, *row] for label, row in zip(labels, values, strict=True)]

    heads = ["label", *model.get_feature_names_out()]
    write_table(out, windows, heads, columns, fs=windows.fs or model.fs_, on_rows=on_rows)
