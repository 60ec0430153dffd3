"""`polyadic fit`: fit a model to recordings or windows."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from polyadic._util.terminal import echo, print_json, print_notes
from polyadic.cli import options
from polyadic.cli.files import check_out_file
from polyadic.cli.options import option, resume_command
from polyadic.cli.windows import are_recordings, counted, describe, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.augment import Augmentation
    from polyadic.data import Windows
    from polyadic.estimators import CPD
    from polyadic.explain.components import Components
    from polyadic.presets import Preset

EXAMPLES = """
[bold]Examples[/bold]

EDF files in windows of 30 s, with a probe (classifier), trained on the windows that have labels:
  polyadic fit recordings --seconds 30 --probe -o model.safetensors

Labels that polyadic label has written:
  polyadic fit recordings --seconds 30 --labels labels.csv --probe

Tables with a label column and a subject column:
  polyadic fit tables --seconds 2 --label activity --subject person --probe

The paper's method, on the recommended front end; and with the paper's settings for Sleep-EDF:
  polyadic fit recordings --method atd --beta 2 --augment jitter:0.05
  polyadic fit sleep.store --preset sleep_edf --protocol subject --probe

From sums alone, on a Dask cluster, and resumed after an interruption:
  polyadic fit --moments sleep.moments -o model.safetensors
  polyadic fit recordings --seconds 30 --scheduler tcp://host:8786
  polyadic fit sleep.store -o model.safetensors --resume
"""

_LABEL_HINT = (
    ". Labels come from annotations (--class selects them), a table column (--label), separate files "
    "(--scoring '*.txt') or the paths (--label-from folder)"
)
COMPONENTS_START = (
    "Finding the components that replicate in other subjects, which may take a minute; --no-components skips it."
)
_paper = partial(option, panel="The paper's methods (--method atd, sals, gr-sals)", metavar="X")
_long = partial(option, panel="Long fits")
_ESTIMATORS = {"cpd": "CPD", "atd": "ATD", "sals": "SALS", "gr-sals": "GRSALS"}
Method = Literal["cpd", "atd", "sals", "gr-sals"]
_OF_ATD = ("augment", "beta", "gamma", "rounds")


@options.with_options("seed device force json quiet")
def fit(
    data: options.Data,
    out: options.ModelOut = Path("model.safetensors"),
    rank: options.Rank = None,
    probe: Annotated[
        options.ProbeKind | None,
        option(
            "Also train a probe, a simple classifier on the features, on the labelled windows, and save it with the "
            f"model. {options.PROBE_KINDS} Without a KIND: auto.",
            metavar="[KIND]",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        option(
            "Labels from a .csv file with recording, start and duration in seconds, and label, as [bold]polyadic "
            "label[/bold] writes it, instead of those of the data. The last row of a window counts.",
            metavar="TABLE",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    prior: options.Prior = None,
    components: Annotated[
        bool,
        option(
            "Also find the components that replicate in other subjects, for reports and comparisons. Needs two "
            "subjects and --method cpd.",
            envvar="POLYADIC_COMPONENTS",
            show_envvar=False,
        ),
    ] = True,
    restarts: Annotated[int | None, option("Number of random starts; the best is kept.", min=1, metavar="N")] = None,
    consensus: Annotated[bool, option("Average the components on which the --restarts agree.", "--consensus")] = False,
    keep_flat: Annotated[bool, option("Flat and clipped channels do not count as missing.", "--keep-flat")] = False,
    method: Annotated[
        Method | None,
        option("cpd (default); of the paper: atd (default with --preset), sals, gr-sals.", case_sensitive=False),
    ] = None,
    preset: Annotated[
        str | None, option("The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh.", metavar="NAME")
    ] = None,
    protocol: Annotated[
        Literal["subject", "paper"] | None,
        option("Fit only the unlabelled part of a subject-wise or the paper's split. Default: all windows."),
    ] = None,
    sweeps: Annotated[
        int | None, option("Maximum number of sweeps. Default: 200; atd, sals, gr-sals: 50.", min=1, metavar="N")
    ] = None,
    n_fft: options.Nfft = None,
    hop: options.Hop = None,
    beta: Annotated[float | None, _paper("Weight of the self-supervised loss of atd. Default: 2.", min=0.0)] = None,
    augment: Annotated[
        str | None,
        _paper(
            "Second views of atd: jitter:DEGREE, bandpass:LOW-HIGH,…, scale:FACTOR, shift:SHARE, drop:SHARE or "
            "neighbour:SECONDS, several joined by +, or none. Default: jitter:0.05.",
        ),
    ] = None,
    batch_size: Annotated[int | None, _paper("Number of windows per batch.", min=1)] = None,
    learning_rate: Annotated[float | None, _paper("Weight of a batch in the update.", min=0.0, max=1.0)] = None,
    checkpoint: Annotated[
        Path | None, _long("Checkpoint to keep. Default: OUT.checkpoint, removed after the fit.", metavar="FILE")
    ] = None,
    resume: Annotated[bool, _long("Resume from the checkpoint, if there is one.", "--resume")] = False,
    moments: Annotated[bool, _long("DATA is a file of [bold]polyadic moments[/bold].", "--moments")] = False,
    scheduler: Annotated[str | None, _long("Dask scheduler, as tcp://host:8786.", metavar="ADDRESS")] = None,
    *,
    common: options.Common,
) -> None:
    """Fit a model to recordings or windows and write it to a file.

    The model describes windows by components: patterns over channels, frequencies and time. No labels are needed. An
    interrupted fit resumes with --resume. Memory use does not grow with the data. Recordings are first cut into
    windows in a temporary folder; if you use them more than once, write a store with [bold]polyadic prepare[/bold].
    """
    from polyadic.data import split
    from polyadic.evaluate.unusual import typical_windows
    from polyadic.label import apply_labels
    from polyadic.presets import settings_for
    from polyadic.readout import Readout
    from polyadic.scale.checkpoints import where_resumed
    from polyadic.scale.cluster import on_cluster

    chosen_method = method or ("cpd" if preset is None else "atd")
    if labels is not None and probe is None:
        raise PolyadicError("--labels needs --probe: a model without a probe uses no labels")
    if prior is not None and probe is None:
        raise PolyadicError("--prior needs --probe: it changes the probabilities of the probe")
    if preset is not None and chosen_method == "cpd":
        raise PolyadicError("--preset has the paper's settings for atd, sals and gr-sals, but --method is cpd")
    if augment is not None and chosen_method != "atd":
        raise PolyadicError(f"--augment is not an option of --method {chosen_method}: use atd")
    if keep_flat and (preset is not None or moments):
        raise PolyadicError("--keep-flat does nothing with --preset, which keeps flat channels, or with --moments")
    if consensus and (restarts or 1) < 2:
        raise PolyadicError("--consensus averages the components of several starts: give --restarts, such as 30")
    check_out_file(out, data, endings=(".safetensors",), force=common.force)
    if checkpoint is not None:
        check_out_file(checkpoint, data, option="--checkpoint")
    settings: dict[str, Any] = {"rank": rank, "max_sweeps": sweeps, "restarts": restarts, "consensus": consensus}
    settings |= {"random_state": common.seed, "verbose": int(not common.hidden)}
    if moments:
        from polyadic.cli.moments import fit_moments

        if chosen_method != "cpd" or probe is not None or scheduler is not None:
            raise PolyadicError("--moments is for --method cpd, without --probe and --scheduler: no data are read")
        fit_moments(data, out, components, common.json, settings)
        return
    if scheduler is None:
        wanted = labels is None
        source = opened(data, common, labels=wanted, compares=probe is not None)
    elif chosen_method != "cpd" or protocol is not None or probe is not None or "on_error" in common.given:
        raise PolyadicError("--scheduler is for --method cpd and all windows, without --probe and --on-error")
    else:
        source = on_cluster(scheduler, data, dict(common.given))
    with source as windows:
        if labels is not None:
            windows, note = apply_labels(labels, windows)
            print_notes(note)
        describe(windows, common.hidden or not are_recordings(data))
        unlabelled, labelled = windows, windows
        if protocol is not None:
            unlabelled, labelled, _ = split(windows, protocol, random_state=common.seed)
        if probe is not None:
            _check_labels(labelled, data)
        chosen = settings_for(unlabelled, preset=preset, n_fft=n_fft, hop=hop)
        if augment is not None:
            chosen = replace(chosen, augment=parse_augmentation(augment, unlabelled.fs))
        settings |= {"readout": Readout(keep_flat=True) if keep_flat else None, "device": common.device, "beta": beta}
        settings |= {"batch_size": batch_size, "learning_rate": learning_rate}
        model = build_estimator(chosen_method, chosen, **settings)
        if not common.hidden:
            default = (are_recordings(data) and "seconds" not in common.given, preset is None and n_fft is None)
            echo(_describe_sizes(unlabelled, chosen.tensorize.n_fft, *default), err=True)
        path = checkpoint or out.with_name(f"{out.name}.checkpoint")
        saving: dict[str, Any] = {"checkpoint": path, "resume": resume}
        if resume and not common.hidden and (line := where_resumed(path)):
            echo(line, err=True)
        components &= chosen_method == "cpd" and scheduler is None and unlabelled.index.n_subjects > 1
        try:
            if components:
                collected = model.fit_with_moments(unlabelled, unlabelled.subject, **saving)
            else:
                model.fit(unlabelled, **saving)
            if probe is not None:
                model.probe_ = _trained(model, labelled, probe, prior, common.hidden)
            if components:
                if not common.hidden:
                    echo(COMPONENTS_START, err=True)
                model.components_ = found_components(collected, common.seed, common.hidden)
            model.typical_ = typical_windows(model, unlabelled)  # predict flags windows unlike these
            model.save(out)
        except KeyboardInterrupt as stop:
            if path.exists():
                stop.args = (f"progress is saved in {path}. To resume:\n  {resume_command()}",)
            raise
        if checkpoint is None:
            path.unlink(missing_ok=True)
    _tell_fit(model, chosen_method, unlabelled, None if probe is None else labelled, data, out, common.json)


def _describe_sizes(windows: Windows, frame: int, length_is_default: bool, frame_is_default: bool) -> str:
    """Return the number and length of windows, their channels and rate, and the frame length, as one line."""
    count, channels, samples = windows.shape
    fs, marks = windows.fs, [" (default)" * default for default in (length_is_default, frame_is_default)]
    length, part = (f"{size} samples" if fs is None else f"{size / fs:g} s" for size in (samples, frame))
    channels_at_rate = counted(channels, "channel") + ("" if fs is None else f" at {fs:g} Hz")
    return f"{counted(count, 'window')} of {length}{marks[0]}, {channels_at_rate}, frames of {part}{marks[1]}"


def _check_labels(windows: Windows, data: Path) -> None:
    """Raise before the fit if there are no labels to train a probe on."""
    found = len(set(windows.label[windows.label >= 0].tolist()))
    if found < 2:
        hint = _LABEL_HINT if are_recordings(data) else ""
        raise PolyadicError(f"--probe needs windows of at least two classes, but {data.name} has {found}{hint}")


def _trained(model: Any, windows: Windows, kind: str, prior: str | None, hidden: bool) -> Any:
    from polyadic._util.progress import window_bar
    from polyadic.evaluate import WindowClassifier
    from polyadic.evaluate.classifier import rows_to_transform
    from polyadic.evaluate.sequences import rows_along

    known = windows.label >= 0
    rows = rows_to_transform(known, windows.subject, unlabelled=kind == "auto")
    with window_bar("probe", len(set(rows) | set(rows_along(windows, known))), hidden) as on_rows:
        return WindowClassifier(model, kind, prior).fit(windows, on_rows=on_rows).probe_


def _tell_fit(
    model: Any, method: Method, windows: Windows, labelled: Windows | None, data: Path, out: Path, json: bool
) -> None:
    from polyadic.estimators import describe_fit

    trained = 0 if labelled is None else int((labelled.label >= 0).sum())
    outcome = {
        "model": out.name,
        "method": method,
        "windows": len(windows),
        "subjects": windows.index.n_subjects,
        "subjects_from": windows.index.subjects_from,
        "parameters": model.n_parameters_,
        "sweeps": model.n_sweeps_,
        "restarts": model.restarts,
        "attempt": model.attempt_,
        "seconds": model.fit_seconds_,
        "waited": model.waited_,
        "loss": model.history_["loss"][-1],
        "converged": model.converged_,
        "split": model.split_,
        "classes": model.probe_.classes_.tolist() if trained else [],
        "labelled": trained,
        "components": model.components_.to_dict() if hasattr(model, "components_") else None,
        "reason": getattr(model.probe_, "reason_", None) if trained else None,
        "along": getattr(getattr(model.probe_, "chain_", None), "reason", None) if trained else None,
    }
    if json:
        print_json(outcome)
        return
    echo(f"{out.name}: {method} {describe_fit(model)}; {model.fit_seconds_:.1f} s")
    echo(f"windows of {windows.index.describe_subjects()}")
    if hasattr(model, "components_"):
        echo(tell_components(model.components_))
    if trained:
        echo(f"probe: {', '.join(map(str, outcome['classes']))}, trained on {trained:,} labelled windows")
        if outcome["reason"]:
            echo(f"probe settings: {outcome['reason']}")
        if outcome["along"]:
            echo(f"along the recording: {outcome['along']}")
        if windows.index.n_subjects > 1:
            if "%" in str(outcome["reason"]):
                echo("that score chose the settings, on features that have seen every subject: it is optimistic")
            echo(f"for the score on new subjects: polyadic evaluate {shlex.join([str(out), str(data)])}")


# -------------------------------------------------------------------------------------------------- components


def found_components(moments: Any, seed: int, hidden: bool, **settings: int) -> Components:
    """Return the components for people; show a progress bar unless hidden."""
    from polyadic._util.progress import stage_bar
    from polyadic.explain import components

    with stage_bar("components", hidden, "parts") as show:
        return components(moments, random_state=seed, progress=show, **settings)


def tell_components(found: Components) -> str:
    """Return one line on the components for people."""
    of = f"in halves of the {counted(found.n_subjects, 'subject')}"
    if found.model is None:
        return f"components: none replicate {of}, so there are none to interpret"
    bands = "with 90 % bands" if found.bands is not None else "without bands (fewer than 10 subjects)"
    return f"components: {found.model.rank} of {found.rank} replicate {of}, {bands}; see polyadic report"


# --------------------------------------------------------------------------------- estimators and augmentations


def build_estimator(method: Method, settings: Preset, **parameters: Any) -> CPD:
    """Build an unfitted estimator from settings, overridden by the options of a command that are not None.

    Examples
    --------
    >>> from polyadic.presets import preset
    >>> build_estimator("sals", preset("har"), rank=8).learning_rate
    0.002
    """
    from polyadic import estimators

    estimator = getattr(estimators, _ESTIMATORS[method])
    known = estimator._get_param_names()
    given = {name: value for name, value in parameters.items() if value is not None}
    for name in given:
        if name not in known:
            others = "atd" if name in _OF_ATD else "atd, sals or gr-sals"
            raise PolyadicError(f"--{name.replace('_', '-')} is not an option of --method {method}: use {others}")
    presets = {"tensorize": settings.tensorize, **settings.parameters}
    if settings.augment != "auto":
        presets["augment"] = settings.augment
    built: CPD = estimator(**{name: value for name, value in (presets | given).items() if name in known})
    return built


def parse_augmentation(text: str, fs: float | None) -> Augmentation | None:
    """Return the augmentation that a text describes: names with a value, joined by "+"; None for "none".

    Examples
    --------
    >>> parse_augmentation("jitter:0.05", None)
    Jitter(degree=0.05)
    >>> parse_augmentation("jitter:0.05+bandpass:1-20,5-24", 50.0)
    Compose(steps=(Jitter(degree=0.05), Bandpass(bands=((1.0, 20.0), (5.0, 24.0)), fs=50.0)))
    """
    from polyadic.augment import Bandpass, Compose, DropChannels, Jitter, Neighbour, Scale, Shift

    def bandpass(value: str) -> Augmentation:
        if fs is None:
            raise PolyadicError("--augment bandpass needs the sampling rate: pass --fs")
        bands = [band.split("-") for band in value.split(",")]
        return Bandpass([(float(low), float(high)) for low, high in bands], fs)

    kinds: dict[str, Any] = {"jitter": Jitter, "scale": Scale, "shift": Shift, "drop": DropChannels}
    kinds |= {"neighbour": Neighbour, "bandpass": bandpass}
    steps: list[Augmentation] = []
    for part in () if text == "none" else text.split("+"):
        name, _, value = part.partition(":")
        if name not in kinds:
            raise PolyadicError(f"--augment must name {', '.join(kinds)} or none, but has {name!r}")
        try:
            steps.append(kinds[name](value if name == "bandpass" else float(value)))
        except PolyadicError:
            raise
        except ValueError as error:
            example = "bandpass:1-20,5-24" if name == "bandpass" else f"{name}:0.1"
            raise PolyadicError(f"--augment {part!r} is not valid: write it like {example}") from error
    return None if not steps else steps[0] if len(steps) == 1 else Compose(steps)
