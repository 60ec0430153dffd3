"""`polyadic tune`: choose settings by cross-validation, and fit a model with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from polyadic.cli.files import check_out_file
from polyadic.cli.options import Common, Data, ModelOut, option, with_options
from polyadic.cli.windows import describe, opened

EXAMPLES = """
Search for ten minutes, or with a fixed number of tries, for reproducible results:
  polyadic tune recordings --seconds 30 --minutes 10 -o model.safetensors
  polyadic tune windows.npz --tries 30
"""


@with_options("labels seed device force json quiet")
def tune(
    common: Common,
    data: Data,
    out: ModelOut = Path("model.safetensors"),
    minutes: Annotated[float, option("Time limit for everything.", min=0.0, metavar="X")] = 10.0,
    tries: Annotated[int | None, option("Number of settings to try, instead of --minutes.", min=1, metavar="N")] = None,
    folds: Annotated[int, option("Number of groups of subjects to score the choice on.", min=2, metavar="N")] = 3,
) -> None:
    """Choose settings by cross-validation over subjects, and fit a classifier with them.

    Tries frame lengths, the rank (number of components) and signs of the profiles. Writes the model and, next to it,
    the result with all tries (.tuning.json). The reported score is from subjects that took no part in the choice.
    """
    from polyadic._util.files import write_json
    from polyadic._util.progress import stage_bar
    from polyadic._util.provenance import provenance
    from polyadic.evaluate.unusual import typical_windows
    from polyadic.tuning import tune as run

    result = out.with_suffix(".tuning.json")
    for path, ending in ((out, ".safetensors"), (result, ".json")):
        check_out_file(path, data, common.labels, endings=(ending,), force=common.force)
    with opened(data, common) as windows:
        describe(windows, common.hidden)
        with stage_bar("tuning", common.hidden, "searches") as show:
            found = run(
                windows,
                minutes=minutes,
                tries=tries,
                folds=folds,
                random_state=common.seed,
                device=common.device,
                on_try=lambda number, count, tried: show(number, count, f"{100 * tried.score:.1f} %"),
            )
        # predict flags windows unlike these as unusual.
        found.model.features_.typical_ = typical_windows(found.model.features_, windows)
        found.model.save(out)
        write_json(result, found.to_dict())
    lines = found.summary().splitlines()
    if found.nested:
        lines.append(
            "Compare the score on left-out subjects with that of polyadic evaluate, which is usually a little higher: "
            "it trains on more of the subjects at a time."
        )
    lines.append(f"wrote {out.name} (the model) and {result.name} (the result, with all tries)")
    common.tell({**found.to_dict(), **provenance(str(common.device))}, shown=lines)
