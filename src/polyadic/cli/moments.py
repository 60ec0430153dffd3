"""`polyadic moments`: compute and merge the sums of a fit, to share them instead of signals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.files import check_out_file
from polyadic.cli.options import option, out_option
from polyadic.cli.windows import counted, opened
from polyadic.errors import PolyadicError

EXAMPLES = """
[bold]Examples[/bold]

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


@options.with_options("device force json quiet")
def moments(
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
    n_fft: options.Nfft = None,
    hop: options.Hop = None,
    *,
    common: options.Common,
) -> None:
    """Compute the sums over windows from which a model follows, or merge those of several sites.

    The sums hold no signals, but sums of few windows or of one person say much about them: see "Large data" in the
    manual. [bold]polyadic fit --moments[/bold] fits a model to them without reading data.
    """
    from polyadic.presets import settings_for
    from polyadic.scale.moments import Moments, check_subjects

    check_out_file(out, *data, endings=(".moments",), force=common.force)
    if str(data[0]) == "merge":
        if len(data) < 2:
            raise PolyadicError("merge needs the files to merge: polyadic moments merge floor1.moments floor2.moments")
        _tell(Moments.merge([Moments.load(path) for path in data[1:]]), out, common.json)
        return
    if len(data) != 1:
        raise PolyadicError(
            f"DATA must be one path, but there are {len(data)}; to merge files: polyadic moments merge …"
        )
    path = options.check_data(data[0])
    if stage in ("axes", "core") and previous is None:
        raise PolyadicError(f"--stage {stage} needs the merged sums of the stage before: --from FILE")
    before = None if previous is None else Moments.load(previous)
    with opened(path, common) as windows:
        collected = Moments.collect(
            windows,
            stage or "core",
            previous=before,
            tensorize=settings_for(windows, n_fft=n_fft, hop=hop).tensorize,
            groups=windows.subject if stage is None and windows.index.n_subjects else None,
            site=(site or out.stem) if stage is not None else "",
            device=common.device,
        )
    if stage is not None and not allow_few:
        check_subjects(collected)
    _tell(collected, out, common.json)


def _tell(collected: Any, out: Path, json: bool) -> None:
    """Write the sums, and tell what they are."""
    collected.save(out)
    sites = list(collected.sites.values())
    windows, subjects = (sum(site[name] for site in sites) for name in ("windows", "subjects"))
    if json:
        about = {"moments": out.name, "stage": collected.stage, "windows": windows, "sites": sites}
        print_json({**about, "groups": len(collected.groups), "bytes": out.stat().st_size})
        return
    named = ", ".join(site["name"] for site in sites if site["name"])
    echo(
        f"{out.name}: stage {collected.stage}, {counted(windows, 'window')} of {counted(subjects, 'subject')}"
        f"{f' at {named}' if named else ''}, {out.stat().st_size / 2**20:.2g} MiB"
    )


def fit_moments(path: Path, out: Path, components: bool, json: bool, parameters: dict[str, Any]) -> None:
    """Fit a model to a file of sums, and write it."""
    from polyadic import CPD
    from polyadic.cli.fit import COMPONENTS_START, found_components, tell_components
    from polyadic.estimators import describe_fit
    from polyadic.scale.moments import Moments

    collected = Moments.load(path)
    model = CPD(**{name: value for name, value in parameters.items() if value is not None}).fit(collected)
    if components and len(collected.groups) > 1:
        if not json:
            echo(COMPONENTS_START, err=True)
        model.components_ = found_components(collected, parameters["random_state"], json)
    model.save(out)
    if json:
        losses, sweeps = model.history_["loss"], model.n_sweeps_
        print_json({"model": out.name, "windows": model._n_seen, "sweeps": sweeps, "loss": losses[-1]})
        return
    echo(f"{out.name}: {describe_fit(model)}")
    if hasattr(model, "components_"):
        echo(tell_components(model.components_))
