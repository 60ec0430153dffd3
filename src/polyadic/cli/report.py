"""`polyadic report`: write the components, features and scores of a model to one HTML file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.files import check_out_file, require
from polyadic.cli.options import option, out_option
from polyadic.cli.windows import describe, open_model, opened

EXAMPLES = """
[bold]Examples[/bold]

A model, with the windows or recordings to show and to score it on:
  polyadic report model.safetensors --data sleep.store -o report.html

Without refitting the features in every fold of the cross-validation:
  polyadic report model.safetensors --data sleep.store --transductive

The model alone:
  polyadic report model.safetensors
"""


@options.with_options("seed device force json quiet")
def report(
    model: options.Model,
    data: options.DataOption = None,
    out: Annotated[Path, out_option("The HTML file to write.")] = Path("report.html"),
    probe: options.Probe = None,
    transductive: options.Transductive = False,
    title: Annotated[str, option("Title of the page. Default: the name of the data.", metavar="TEXT")] = "",
    *,
    common: options.Common,
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
    check_out_file(out, model, data, endings=(".html", ".htm"), force=common.force)
    loaded = open_model(model, common.device)
    with ExitStack() as stack:
        windows = None
        if data is not None:
            windows = stack.enter_context(opened(data, common, model=loaded))
            describe(windows, hidden=True)
            loaded._samples(windows)  # raises if the shape of the windows is wrong
        hashes = {path.name: digest(path) for path in (model, data) if path is not None and path.is_file()}
        on_stage = stack.enter_context(stage_bar("report", common.hidden, "parts"))
        reports.write(
            out,
            loaded,
            windows,
            origin=provenance(str(choose_device(common.device))) | {"sha256": hashes},
            title=title or (model if data is None else data).name,
            random_state=common.seed,
            probe=probe or "auto",
            transductive=transductive,
            on_stage=on_stage,
        )
    size = out.stat().st_size
    if common.json:
        print_json({"report": out.name, "bytes": size})
    elif not common.quiet:
        echo(f"{out.name}: {size / 1e6:.1f} MB. Open it in a browser.")
