"""`polyadic tune`: choose settings by cross-validation, and fit a model with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.exits import resume_command
from polyadic.cli.files import check_out_file, write_csv
from polyadic.cli.options import option
from polyadic.cli.windows import describe, opened
from polyadic.errors import MissingExtraError, PolyadicError

EXAMPLES = """
[bold]Examples[/bold]

Search for ten minutes, or with a fixed number of tries, for reproducible results; resume an interrupted search:
  polyadic tune recordings --seconds 30 --minutes 10 -o model.safetensors
  polyadic tune windows.npz --tries 30
  polyadic tune my.store --minutes 30 --resume
"""


@options.reads_recordings
def tune(
    data: options.Data,
    out: options.ModelOut = Path("model.safetensors"),
    minutes: Annotated[
        float, option("Time limit for everything: searches, checks and the final fit.", min=0.0, metavar="X")
    ] = 10.0,
    tries: Annotated[
        int | None, option("Number of different settings to try, instead of --minutes.", min=1, metavar="N")
    ] = None,
    folds: Annotated[
        int, option("Number of outer folds of subjects, on which the choice is scored.", min=2, metavar="N")
    ] = 3,
    resume: Annotated[bool, option("Resume an interrupted search.", "--resume")] = False,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    on_error: options.SkipErrors = "raise",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    *,
    given: dict[str, Any],
) -> None:
    """Choose settings by cross-validation over subjects, and fit a classifier with them.

    Tries frame lengths, the rank (number of components), signs of the profiles, augmentations, the readout (how
    components become features) and recentring by subject. Writes the model and, next to it, a table of all tries
    (.tries.csv), the result (.tuning.json) and, if settings were compared, a plot (.tuning.html). The reported score is
    from subjects that took no part in the choice. Ctrl-C keeps the best settings so far, and --resume
    resumes.
    """
    from polyadic._util.progress import stage_bar
    from polyadic.evaluate.unusual import typical_windows
    from polyadic.tuning import tune as run

    files = {kind: out.with_suffix(f".{kind}") for kind in ("tries.csv", "tuning.json", "tuning.html", "tries.jsonl")}
    journal = files.pop("tries.jsonl")
    check_out_file(journal, data)
    if journal.exists() and not resume:
        raise PolyadicError(
            f"{journal.name} has the tries of a search that still runs or was interrupted. If it runs, wait for it or "
            "choose another -o; if not, resume it with --resume, or remove the file"
        )
    if resume and not journal.exists():
        raise PolyadicError(f"--resume: there is no interrupted search to resume ({journal.name} does not exist)")
    # An interrupted search has written its best settings so far, which are replaced.
    check_out_file(out, data, endings=(".safetensors",), force=force or resume)
    for path in files.values():
        check_out_file(path, data, endings=(path.suffix,), force=force or resume)
    hidden = quiet or json
    how_to_resume = f"the tries so far are saved in {journal.name}. To resume:\n  {resume_command()}"
    try:
        with opened(data, given, on_error=on_error, hidden=hidden) as windows:
            describe(windows, hidden)
            with stage_bar("tuning", hidden, "searches") as show:
                found = run(
                    windows,
                    minutes=minutes,
                    tries=tries,
                    folds=folds,
                    random_state=seed,
                    device=device,
                    journal=journal,
                    on_try=lambda number, count, tried: show(number, count, f"{100 * tried.score:.1f} %"),
                )
            # predict flags windows unlike these as unusual.
            found.model.features_.typical_ = typical_windows(found.model.features_, windows)
        found.model.save(out)
        _write(found, files)
    except KeyboardInterrupt as stop:
        if journal.exists():
            stop.args = (how_to_resume,)
        raise
    if not found.interrupted:
        journal.unlink(missing_ok=True)
    chain = found.model.chain_
    if json:
        from polyadic._util.provenance import provenance

        print_json({**found.to_dict(), "along": getattr(chain, "reason", None), **provenance(str(device))})
    else:
        for line in found.summary().splitlines():
            echo(line)
        if chain is not None:
            echo(f"along the recording: {chain.reason}")
        if found.nested:
            echo(
                "Compare the score on left-out subjects with that of polyadic evaluate, which is usually a little "
                "higher: it trains on more of the subjects at a time."
            )
        about = {"tries.csv": "all tries", "tuning.json": "the result", "tuning.html": "a plot"}
        others = ", ".join(f"{path.name} ({about[kind]})" for kind, path in files.items() if path.exists())
        echo(f"wrote {out.name} (the model), {others}")
    if found.interrupted:
        raise KeyboardInterrupt(how_to_resume)


def _write(found: Any, files: dict[str, Path]) -> None:
    """Write the table of tries, the result and, if plotly is installed, the plot."""
    import json

    from polyadic._util.files import write_atomically

    result = found.to_dict()
    write_atomically(files["tuning.json"], (json.dumps(result, indent=1) + "\n").encode())
    for kind in ("tries.csv", "tuning.html"):
        files[kind].unlink(missing_ok=True)
    if not result["tries"]:
        return
    write_csv(files["tries.csv"], [list(result["tries"][0]), *(list(row.values()) for row in result["tries"])])
    if len(result["tries"]) < 2:
        echo("no plot: only the recommended settings were tried", err=True, colour="yellow")
        return
    try:
        from polyadic import plot
        from polyadic.plot.style import save_figure

        save_figure(plot.tuning(result["tries"], result["recommended"], result["settings"]), files["tuning.html"])
    except MissingExtraError as error:
        echo(f"no plot: {error}", err=True, colour="yellow")
