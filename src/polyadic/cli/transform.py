"""`polyadic transform`: compute the features of recordings or windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.files import check_out_file, parts_of, write_table
from polyadic.cli.options import option, out_option
from polyadic.cli.windows import counted, open_model, opened

if TYPE_CHECKING:
    from polyadic.data import Windows

EXAMPLES = """
[bold]Examples[/bold]

  polyadic transform model.safetensors sleep.store -o features.npy
  polyadic transform model.safetensors recordings -o features.csv

How strongly each window expresses each component, in dB, to look at or to correlate:
  polyadic transform model.safetensors recordings --expression -o dB.csv
"""


@options.with_options("device force json quiet")
def transform(
    model: options.Model,
    data: options.Data,
    out: Annotated[Path, out_option(".npy (features only) or .csv (with subject, recording, label).")] = Path(
        "features.npy"
    ),
    expression: Annotated[bool, option("Level and relative expression of components, in dB.", "--expression")] = False,
    *,
    common: options.Common,
) -> None:
    """Compute the features of all windows and write them to a file."""
    import numpy as np

    from polyadic._util.files import open_atomically
    from polyadic._util.progress import window_bar
    from polyadic.explain.expression import shown

    check_out_file(out, model, data, endings=(".npy", ".csv"), force=common.force)
    loaded = open_model(model, common.device)
    names = list(loaded.get_feature_names_out())
    if expression:
        names = ["level", *(f"component {number + 1}" for number in range(shown(loaded).rank))]

    def rows() -> Iterator[list[str]]:
        done = 0
        for part in parts_of(windows):
            values = _decibels(loaded, part) if expression else loaded.transform(part)
            for code, row in zip(part.label.tolist(), values.tolist(), strict=True):
                yield ["" if code < 0 else part.classes[code], *(f"{value:.6g}" for value in row)]
            done += len(part)
            on_rows(done)

    with (
        opened(data, common, model=loaded, labels=None) as windows,
        window_bar("transforming", len(windows), common.hidden) as on_rows,
    ):
        count = len(windows)
        if out.suffix == ".csv":
            write_table(out, windows, ["label", *names], rows(), fs=windows.fs or loaded.fs_)
        elif expression:
            with open_atomically(out) as file:
                np.save(file, _decibels(loaded, windows))
        else:
            loaded.transform(windows, out=out, on_rows=on_rows)
    if common.json:
        print_json({"features": out.name, "windows": count, "columns": names})
        return
    echo(f"{out.name}: {counted(count, 'window')}, {len(names)} {'values in dB' if expression else 'features'} each")


def _decibels(model: Any, windows: Windows) -> Any:
    """Return the level of each window and the relative expression of each component, in dB: (N, 1 + rank)."""
    import numpy as np

    from polyadic.explain import expression, level

    return np.column_stack([level(model, windows), expression(model, windows, relative=True)])
