"""`polyadic fit`: fit a model to recordings or windows."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from polyadic._util.terminal import described, echo
from polyadic.cli import options
from polyadic.cli.files import check_out_file
from polyadic.cli.options import option
from polyadic.cli.windows import are_recordings, describe, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.augment import Augmentation
    from polyadic.explain.components import Components

EXAMPLES = """
EDF files in windows of 30 s, with a probe (classifier) from their labels, or from those of polyadic label:
  polyadic fit recordings --seconds 30 --probe -o model.safetensors
  polyadic fit recordings --seconds 30 --labels labels.csv --probe

Tables with a label column and a subject column:
  polyadic fit tables --seconds 2 --label activity --subject person --probe

The paper's method, on the recommended front end:
  polyadic fit recordings --method atd --beta 2 --augment jitter:0.05

From sums alone, on a Dask cluster, and resumed after an interruption:
  polyadic fit --moments sleep.moments -o model.safetensors
  polyadic fit recordings --seconds 30 --scheduler tcp://host:8786
  polyadic fit sleep.store -o model.safetensors --resume
"""

_LABELS = (
    "Labels come from annotations (--class selects them), a table column (--label), separate files "
    "(--scoring '*.txt'), the paths (--label-from folder) or polyadic label (--labels)"
)
_paper = partial(option, panel="The paper's methods (--method atd, sals, gr-sals)")
_LONG = "Long fits"
_ESTIMATORS = {"cpd": "CPD", "atd": "ATD", "sals": "SALS", "gr-sals": "GRSALS"}
Method = Literal["cpd", "atd", "sals", "gr-sals"]


@options.with_options("labels seed device force json quiet")
def fit(
    common: options.Common,
    data: options.Data,
    out: options.ModelOut = Path("model.safetensors"),
    rank: options.Rank = None,
    probe: Annotated[bool, option("Also train a probe: a classifier, from windows with labels.", "--probe")] = False,
    prior: options.Prior = None,
    components: Annotated[
        bool,
        option(
            "Also find components that replicate in other subjects, for reports. Needs two subjects and --method cpd.",
            envvar="POLYADIC_COMPONENTS",
            show_envvar=False,
        ),
    ] = True,
    keep_flat: Annotated[bool, option("Flat and clipped channels do not count as missing.", "--keep-flat")] = False,
    method: Annotated[Method, option("cpd (default); of the paper: atd, sals, gr-sals.", case_sensitive=False)] = "cpd",
    sweeps: Annotated[int | None, option("Maximum number of sweeps. Default: 200, or 50.", min=1, metavar="N")] = None,
    beta: Annotated[
        float | None, _paper("Weight of the self-supervised loss of atd. Default: 2.", min=0.0, metavar="X")
    ] = None,
    augment: Annotated[
        str | None,
        _paper("Second views of atd, such as jitter:0.05 or neighbour:0+jitter:0.05.", metavar="VIEWS"),
    ] = None,
    resume: Annotated[bool, option("Resume from OUT.checkpoint, if there is one.", "--resume", panel=_LONG)] = False,
    moments: Annotated[bool, option("DATA is a file of [bold]moments[/bold].", "--moments", panel=_LONG)] = False,
    scheduler: Annotated[str | None, option("Dask scheduler: tcp://host:8786.", panel=_LONG, metavar="ADDRESS")] = None,
) -> None:
    """Fit a model to recordings or windows and write it to a file.

    The model describes windows by components: patterns over channels, frequencies and time. No labels are needed. An
    interrupted fit resumes with --resume. Memory use does not grow with the data. Recordings are first cut into
    windows in a temporary folder; if you use them more than once, write a store with [bold]polyadic prepare[/bold].
    """
    from polyadic.evaluate import WindowClassifier
    from polyadic.evaluate.unusual import typical_windows
    from polyadic.readout import Readout
    from polyadic.scale.checkpoints import where_resumed
    from polyadic.scale.cluster import on_cluster

    for name, value in (("--labels", common.labels), ("--prior", prior)):
        if value is not None and not probe:
            raise PolyadicError(f"{name} needs --probe: a model without a probe knows no classes")
    if (moments or scheduler is not None) and (method != "cpd" or probe):
        which = "--moments" if moments else "--scheduler"
        raise PolyadicError(f"{which} is for --method cpd, without --probe")
    check_out_file(out, data, endings=(".safetensors",), force=common.force)
    settings: dict[str, Any] = {"rank": rank, "max_sweeps": sweeps, "random_state": common.seed}
    settings["verbose"] = int(not common.hidden)
    if moments:
        _fit_moments(data, out, settings, components, common)
        return
    settings |= {"readout": Readout(keep_flat=True) if keep_flat else None, "device": common.device}
    settings |= {"beta": beta, "augment": None if augment is None else parse_augmentation(augment)}
    model = _build(method, **settings)
    if scheduler is not None:
        source = on_cluster(scheduler, data, dict(common.given))
    else:
        source = opened(data, common, compares=probe)
    with source as windows:
        describe(windows, common.hidden)
        found = len(set(windows.label[windows.label >= 0].tolist()))
        if probe and found < 2:
            hint = f". {_LABELS}" if are_recordings(data) else ""
            raise PolyadicError(f"--probe needs windows of at least two classes, but {data.name} has {found}{hint}")
        path = out.with_name(f"{out.name}.checkpoint")
        if resume and not common.hidden:
            echo(where_resumed(path), err=True)
        components &= method == "cpd" and scheduler is None and windows.index.n_subjects > 1
        with options.resumable(path):
            if components:
                collected = model.fit_with_moments(windows, windows.subject, checkpoint=path, resume=resume)
            else:
                model.fit(windows, checkpoint=path, resume=resume)
            if probe:
                model.probe_ = WindowClassifier(model, prior=prior).fit(windows).probe_
            if components:
                model.components_ = found_components(collected, common.seed, common.hidden)
            model.typical_ = typical_windows(model, windows)  # predict flags windows unlike these
            model.save(out)
    notes = []
    if probe and windows.index.n_subjects > 1:  # the features have seen every subject of a score above
        table = [] if common.labels is None else ["--labels", str(common.labels)]
        notes.append(f"for the score on new subjects: polyadic evaluate {shlex.join([str(out), str(data), *table])}")
    counts = {"subjects": windows.index.n_subjects, "subjects_from": windows.index.subjects_from}
    counts["labelled"] = int((windows.label >= 0).sum())
    _tell(common, model, method, out, counts, *notes)


def _fit_moments(data: Path, out: Path, settings: dict[str, Any], components: bool, common: options.Common) -> None:
    """Fit a model to a file of sums, and write it."""
    from polyadic import CPD
    from polyadic.scale.moments import Moments

    sums = Moments.load(data)
    model = CPD(**{name: value for name, value in settings.items() if value is not None}).fit(sums)
    if components and len(sums.groups) > 1:
        model.components_ = found_components(sums, common.seed, common.hidden)
    model.save(out)
    _tell(common, model, "cpd", out, {})


def _tell(common: options.Common, model: Any, method: Method, out: Path, counts: dict[str, Any], *notes: str) -> None:
    """Print what is known of a fitted model, and notes."""
    probe, found = getattr(model, "probe_", None), getattr(model, "components_", None)
    outcome = {
        "model": out.name,
        "method": method,
        "windows": model._n_seen,
        **counts,
        "parameters": model.n_parameters_,
        "sweeps": model.n_sweeps_,
        "seconds": model.fit_seconds_,
        "loss": model.history_["loss"][-1],
        "converged": model.converged_,
        "classes": [] if probe is None else [str(name) for name in probe.classes_],
        "reason": getattr(probe, "reason_", None),
        "along": getattr(getattr(probe, "chain_", None), "reason", None),
    }
    lines = [*described(outcome), *([] if found is None else [repr(found)])]
    common.tell({**outcome, "components": None if found is None else found.to_dict()}, *notes, shown=lines)


def found_components(moments: Any, seed: int, hidden: bool, **settings: int) -> Components:
    """Return the components for people; say that it takes long, and show a progress bar, unless hidden."""
    from polyadic._util.progress import stage_bar
    from polyadic.explain import components

    if not hidden:
        echo("Finding the components that replicate in other subjects, which may take a minute.", err=True)
    with stage_bar("components", hidden, "parts") as show:
        return components(moments, random_state=seed, progress=show, **settings)


def _build(method: Method, **parameters: Any) -> Any:
    """Build an unfitted estimator from the options that were given; others are None."""
    from polyadic import estimators

    estimator = getattr(estimators, _ESTIMATORS[method])
    given = {name: value for name, value in parameters.items() if value is not None}
    for name in given.keys() - set(estimator._get_param_names()):
        raise PolyadicError(f"--{name.replace('_', '-')} is not an option of --method {method}: it is one of atd's")
    return estimator(**given)


def parse_augmentation(text: str) -> Augmentation:
    """Return the augmentation that a text describes: names with a number, joined by "+".

    Examples
    --------
    >>> parse_augmentation("neighbour:0+jitter:0.05")
    Compose(steps=(Neighbour(), Jitter(degree=0.05)))
    """
    from polyadic.augment import Compose, Jitter, Neighbour

    kinds = {"jitter": Jitter, "neighbour": Neighbour}
    steps: list[Augmentation] = []
    for part in text.split("+"):
        name, _, value = part.partition(":")
        try:
            steps.append(kinds[name](float(value)))
        except (KeyError, ValueError) as error:
            how = f"like neighbour:0+jitter:0.05, with the names {', '.join(kinds)}"
            raise PolyadicError(f"--augment must be {how}, but has {part!r}: {error}") from error
    return Compose(steps) if len(steps) > 1 else steps[0]
