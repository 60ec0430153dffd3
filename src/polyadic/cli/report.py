"""`polyadic report`: write the components, features and scores of a model to one HTML file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from polyadic._util.packages import import_package
from polyadic.cli.files import check_out_file
from polyadic.cli.options import Common, DataOption, Model, Transductive, out_option, with_options
from polyadic.cli.windows import describe, open_model, opened
from polyadic.errors import PolyadicError

EXAMPLES = """
A model, with the windows or recordings to show and to score it on:
  polyadic report model.safetensors --data sleep.store -o report.html
  polyadic report model.safetensors --data recordings --labels labels.csv

Without refitting the features in every fold of the cross-validation:
  polyadic report model.safetensors --data sleep.store --transductive

The model alone:
  polyadic report model.safetensors
"""


@with_options("labels seed device force json quiet")
def report(
    common: Common,
    model: Model,
    data: DataOption = None,
    out: Annotated[Path, out_option("The HTML file to write.")] = Path("report.html"),
    transductive: Transductive = False,
) -> None:
    """Write an HTML report of a model: components, windows and scores.

    The report is one file that works offline. Windows and scores need --data. The probe (a classifier on the features)
    is scored on subjects that neither it nor the features have seen: one subject is left out at a time or, with more
    than 20, one of five groups, twice. Features are refitted in every fold.
    """
    from polyadic import report as reports
    from polyadic._util.files import digest
    from polyadic._util.progress import stage_bar
    from polyadic._util.provenance import provenance
    from polyadic.data.batches import choose_device

    if data is None and common.labels is not None:
        raise PolyadicError("--labels needs the windows that have them: give these with --data")
    import_package("plotly", "report")
    check_out_file(out, model, data, common.labels, endings=(".html", ".htm"), force=common.force)
    loaded = open_model(model, common.device)
    source: Any = nullcontext() if data is None else opened(data, common, model=loaded)
    hashes = {path.name: digest(path) for path in (model, data, common.labels) if path is not None and path.is_file()}
    with source as windows, stage_bar("report", common.hidden, "parts") as on_stage:
        if windows is not None:
            describe(windows, common.hidden)
        reports.write(
            out,
            loaded,
            windows,
            origin=provenance(str(choose_device(common.device))) | {"sha256": hashes},
            title=(model if data is None else data).name,
            random_state=common.seed,
            transductive=transductive,
            on_stage=on_stage,
        )
    outcome = {"report": out.name, "bytes": out.stat().st_size}
    common.tell(outcome)
