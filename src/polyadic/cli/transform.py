"""`polyadic transform`: compute the features of recordings or windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic.cli.files import check_out_file, parts_of, write_table
from polyadic.cli.options import Common, Data, Model, option, out_option, with_options
from polyadic.cli.windows import open_model, opened

if TYPE_CHECKING:
    from polyadic.data import Windows

EXAMPLES = """
  polyadic transform model.safetensors sleep.store -o features.npy
  polyadic transform model.safetensors recordings -o features.csv

How strongly each window expresses each component, in dB, to look at or to correlate:
  polyadic transform model.safetensors recordings --expression -o dB.csv
"""


@with_options("device force json quiet")
def transform(
    common: Common,
    model: Model,
    data: Data,
    out: Annotated[Path, out_option(".npy, or .csv with subject, recording, label.")] = Path("features.npy"),
    expression: Annotated[bool, option("Level and relative expression of components, in dB.", "--expression")] = False,
) -> None:
    """Compute the features of all windows and write them to a file."""
    import numpy as np

    from polyadic._util.files import open_atomically
    from polyadic._util.progress import stage_bar
    from polyadic.explain import expression as express
    from polyadic.explain import level
    from polyadic.explain.expression import shown

    check_out_file(out, model, data, endings=(".npy", ".csv"), force=common.force)
    loaded = open_model(model, common.device)
    names = list(loaded.get_feature_names_out())
    if expression:
        names = ["level", *(f"component {number + 1}" for number in range(shown(loaded).rank))]

    def compute(part: Windows) -> Any:
        if not expression:
            return loaded.transform(part)
        return np.column_stack([level(loaded, part), express(loaded, part, relative=True)])

    def rows() -> Iterator[list[Any]]:
        done = 0
        for part in parts_of(windows):
            for code, row in zip(part.label.tolist(), compute(part).tolist(), strict=True):
                yield ["" if code < 0 else part.classes[code], *row]
            done += len(part)
            on_rows(done)

    with (
        opened(data, common, model=loaded, labels=None) as windows,
        stage_bar("transforming", common.hidden, "windows", len(windows)) as on_rows,
    ):
        count = len(windows)
        if out.suffix == ".csv":
            write_table(out, windows, ["label", *names], rows(), windows.fs or loaded.fs_, clock=False)
        elif expression:
            with open_atomically(out) as file:
                np.save(file, compute(windows))
        else:
            loaded.transform(windows, out=out, on_rows=on_rows)
    outcome = {"features": out.name, "windows": count, "columns": names}
    common.tell(outcome)
