"""`polyadic tune`: settings chosen on one's own subjects, and a model with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic.cli.options import (
    MOST_REPEATS,
    DataArgument,
    DeviceOption,
    ForceOption,
    JsonOption,
    OnError,
    OnErrorOption,
    QuietOption,
    SettingsOption,
)
from polyadic.cli.outputs import check_out_file
from polyadic.cli.reading import reads_recordings
from polyadic.cli.tables import describe
from polyadic.cli.windows import opened
from polyadic.errors import PolyadicError
from polyadic.terminal import echo, print_json

__all__ = ["TUNE_EXAMPLES", "tune"]

TUNE_EXAMPLES = """
[bold]Examples[/bold]

Ten minutes for settings that suit your recordings, and a model with them:
  polyadic tune recordings --seconds 30 --minutes 10 -o model.safetensors

A fixed number of tries, the same on every run:
  polyadic tune windows.npz --tries 30

A search that was stopped goes on where it was:
  polyadic tune my.store --minutes 30 --resume
"""


@reads_recordings
def tune(
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", metavar="FILE")] = Path(
        "model.safetensors"
    ),
    minutes: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="For everything: searches, checks and the last fit.")
    ] = 10.0,
    tries: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Tries of each search, instead of minutes."),
    ] = None,
    folds: Annotated[
        int, typer.Option(min=2, max=MOST_REPEATS, metavar="N", help="Groups of subjects that check the search.")
    ] = 3,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a search that was stopped.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    device: DeviceOption = "auto",
    on_error: OnErrorOption = OnError.RAISE,
    force: ForceOption = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Choose settings by leaving subjects out, and fit a classifier with them.

    Tries frames, rank, signs of the profiles, views, levels, whitening and recentring. Writes the model, and beside it
    a table of all tries (.tries.csv), the result (.tuning.json) and a picture (.tuning.png). The score comes from
    subjects that took no part in the choice. Stopped by Ctrl-C it keeps the best so far.
    """
    from polyadic.engine.unusual import typical_windows
    from polyadic.progress import stage_bar
    from polyadic.tuning import tune as run

    files = {kind: out.with_suffix(f".{kind}") for kind in ("tries.csv", "tuning.json", "tuning.png", "tries.jsonl")}
    journal = files.pop("tries.jsonl")
    check_out_file(out, data, settings, endings=(".safetensors",), force=force)
    for path in files.values():
        check_out_file(path, data, settings, endings=(path.suffix,), force=force)
    check_out_file(journal, data, settings)
    if journal.exists() and not resume:
        raise PolyadicError(
            f"{journal.name} holds the tries of a search that was stopped: go on with --resume, or remove it"
        )
    hidden = quiet or json
    with opened(data, given, on_error=on_error.value, hidden=hidden) as windows:
        describe(windows, hidden)
        with stage_bar("tuning", hidden, "searches") as show:
            found = run(
                windows,
                minutes=minutes,
                tries=tries,
                folds=folds,
                seed=seed,
                device=device,
                journal=journal,
                on_try=lambda number, count, one: show(number, count, f"{100 * one.judged.score:.1f} %"),
            )
        # By what its windows are like, predict finds unusual ones.
        found.model.features_.typical_ = typical_windows(found.model.features_, windows)
    found.model.save(out)
    _write(found, files)
    journal.unlink(missing_ok=True)
    if json:
        from polyadic.provenance import provenance

        print_json({**found.to_dict(), **provenance(str(device))})
        return
    for line in found.summary().splitlines():
        echo(line)
    echo(f"{out.name}: the model; beside it all tries, the result and a picture")


def _write(found: Any, files: dict[str, Path]) -> None:
    """Write the table of the tries, the result and the picture; without plotly there is no picture."""
    import csv
    import io
    import json

    from polyadic.errors import MissingExtraError
    from polyadic.files import open_atomically, write_atomically

    result = found.to_dict()
    text = io.StringIO()
    if result["tries"]:
        table = csv.DictWriter(text, list(result["tries"][0]), lineterminator="\n")
        table.writeheader()
        table.writerows(result["tries"])
    write_atomically(files["tries.csv"], text.getvalue().encode())
    write_atomically(files["tuning.json"], (json.dumps(result, indent=1) + "\n").encode())
    try:
        from polyadic import plot

        picture = plot.static(plot.tuning(result["tries"], result["recommended"]))
    except MissingExtraError as error:
        echo(f"no picture: {error}", err=True, colour="yellow")
        return
    with open_atomically(files["tuning.png"]) as file:
        picture.savefig(file, format="png", dpi=130)
