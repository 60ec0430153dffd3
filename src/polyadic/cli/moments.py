"""`polyadic moments`: compute and merge the sums of a fit, to share them instead of signals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polyadic.cli.files import check_out_file
from polyadic.cli.info import describe
from polyadic.cli.options import Common, check_data, option, out_option, with_options
from polyadic.cli.windows import opened
from polyadic.errors import PolyadicError

EXAMPLES = """
All sums of one data set, per subject; then fits without reading the data again:
  polyadic moments sleep.store -o sleep.moments
  polyadic fit --moments sleep.moments --rank 8 -o model.safetensors

A fit over several sites. Each site computes a stage, one merges the files, and all go on from the result:
  polyadic moments my.store --stage floor -o floor1.moments
  polyadic moments merge floor1.moments floor2.moments -o floor.moments
  polyadic moments my.store --stage axes --from floor.moments -o ax1.moments
  polyadic moments merge ax1.moments ax2.moments -o axes.moments
  polyadic moments my.store --stage core --from axes.moments -o core1.moments
  polyadic moments merge core1.moments core2.moments -o core.moments
  polyadic fit --moments core.moments -o model.safetensors
"""


@with_options("device force json quiet")
def moments(
    common: Common,
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help="A store, arrays or recordings; or the word merge and the files to merge."),
    ],
    out: Annotated[Path, out_option("The .moments file to write.")],
    stage: Annotated[
        Literal["floor", "axes", "core"] | None,
        option("Compute one stage, to be merged with other sites. Default: all, from DATA alone."),
    ] = None,
    previous: Annotated[Path | None, option("Merged sums of the stage before.", "--from", metavar="FILE")] = None,
    site: Annotated[str | None, option("Name of the contribution. Default: that of the file.", metavar="NAME")] = None,
    allow_few: Annotated[bool, option("Also write a stage of fewer than 5 subjects.", "--allow-few")] = False,
) -> None:
    """Compute the sums over windows from which a model follows, or merge those of several sites.

    The sums hold no signals, but sums of few windows or of one person say much about them: see "Large data" in the
    manual. [bold]polyadic fit --moments[/bold] fits a model to them without reading data.
    """
    from polyadic.scale.moments import Moments, check_subjects

    check_out_file(out, *data, endings=(".moments",), force=common.force)
    path, *others = data
    if str(path) == "merge" and others:
        collected = Moments.merge([Moments.load(other) for other in others])
    elif others:
        raise PolyadicError(
            f"DATA must be one path, but there are {len(data)}; to merge files: polyadic moments merge …"
        )
    else:
        if stage in ("axes", "core") and previous is None:
            raise PolyadicError(f"--stage {stage} needs the merged sums of the stage before: --from FILE")
        with opened(check_data(path), common) as windows:
            collected = Moments.collect(
                windows,
                stage or "core",
                previous=None if previous is None else Moments.load(previous),
                groups=windows.subject if stage is None and windows.index.n_subjects else None,
                site=(site or out.stem) if stage is not None else "",
                device=common.device,
            )
        if stage is not None and not allow_few:
            check_subjects(collected)
    collected.save(out)
    common.tell(describe(out, {}))
