"""`polyadic fit`: fit a model to recordings or windows."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli.exits import resumable_fit
from polyadic.cli.files import check_out_file
from polyadic.cli.methods import Method, Solver, build_estimator, parse_augmentation
from polyadic.cli.options import (
    MOST_REPEATS,
    PROBE_KINDS,
    ConsensusOption,
    DataArgument,
    DeviceOption,
    FewArguments,
    ForceOption,
    HopOption,
    JsonOption,
    ModelOutOption,
    NfftOption,
    OnError,
    OnErrorOption,
    PresetOption,
    ProbeKind,
    Protocol,
    QuietOption,
    SeedOption,
    reads_recordings,
)
from polyadic.cli.windows import are_recordings, counted, describe, describe_sizes, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.explain.replicability import Replicability

__all__ = ["FIT_EXAMPLES", "FitCommand", "checked", "fit", "tell_replicability", "with_probe_kind"]

FIT_EXAMPLES = """
[bold]Examples[/bold]

EDF files in windows of 30 s, in one command:
  polyadic fit recordings --seconds 30 -o model.safetensors

With a probe (classifier), trained on the windows labelled by annotations:
  polyadic fit recordings --seconds 30 --probe

Tables with a label column and a subject column:
  polyadic fit tables --seconds 2 --label activity --subject person --probe

The paper's method, on the recommended front end:
  polyadic fit recordings --method atd --beta 2 --augment jitter:0.05

A store, with the paper's settings for Sleep-EDF:
  polyadic fit sleep.store --preset sleep_edf -o model.safetensors

The unlabelled part of a subject-wise split, and the probe on its training part:
  polyadic fit sleep.store --protocol subject --probe

The probe of the paper's tables, a logistic regression on standardised features:
  polyadic fit sleep.store --probe standardised

Components to interpret: the consensus of 30 random starts, with a replicability check:
  polyadic fit sleep.store --rank 8 --restarts 30 --consensus --check

Resume an interrupted fit:
  polyadic fit sleep.store -o model.safetensors --resume
"""


_LABEL_HINT = (
    ". Labels come from annotations (--class selects them), a table column (--label), separate files "
    "(--scoring '*.txt') or the paths (--label-from folder)"
)


class Shuffle(StrEnum):
    """Order in which windows on disk are visited."""

    FULL = "full"
    BLOCK = "block"


@reads_recordings
def fit(
    data: DataArgument,
    out: ModelOutOption = Path("model.safetensors"),
    probe: Annotated[
        ProbeKind | None,
        typer.Option(
            "--probe",
            metavar="[KIND]",
            help="Also train a probe, a simple classifier on the features, on the labelled windows; it is saved with "
            f"the model. {PROBE_KINDS} Without a KIND: auto.",
        ),
    ] = None,
    recenter: Annotated[
        bool,
        typer.Option(
            "--recenter",
            help="With --probe: subtract each subject's mean features, in training and in prediction. Needs 20 "
            "windows per subject.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also fit random halves of the subjects ten times, and save which components replicate.",
        ),
    ] = False,
    method: Annotated[
        Method | None,
        typer.Option(
            metavar="NAME",
            help="cpd, the plain decomposition (default); or, of the paper: atd (default with --preset), sals or "
            "gr-sals.",
            case_sensitive=False,
        ),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="X", help="Weight of the self-supervised loss of --method atd. Default: 2."),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Second views of --method atd: jitter:DEGREE, bandpass:LOW-HIGH,…, scale:FACTOR, shift:SHARE, "
            "drop:SHARE or neighbour:SECONDS, several joined by +, or none. Default: jitter:0.05.",
        ),
    ] = None,
    preset: PresetOption = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="Fit only the unlabelled part of a subject-wise or the paper's split. Default: all windows."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of components (patterns). Default: 32.")
    ] = None,
    sweeps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum number of sweeps. Default: 200; atd, sals, gr-sals: 50."),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_REPEATS,
            metavar="N",
            help="Number of random starts; the fit with the lowest loss is kept.",
        ),
    ] = None,
    consensus: ConsensusOption = False,
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of windows per batch.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, metavar="X", help="Weight of a batch in the update of the bases.")
    ] = None,
    solver: Annotated[
        Solver | None,
        typer.Option(help="How a mini-batch of atd, sals or gr-sals moves the bases."),
    ] = None,
    n_fft: NfftOption = None,
    hop: HopOption = None,
    shuffle: Annotated[
        Shuffle, typer.Option(help="Visit windows in random order, or shard by shard for slow disks.")
    ] = Shuffle.FULL,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Checkpoint of the fit, kept after it. Default: the name of the model file with .checkpoint "
            "appended, removed after the fit.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the checkpoint, if there is one.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Time between checkpoints.")
    ] = 60.0,
    on_error: OnErrorOption = OnError.RAISE,
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Fit a model to recordings or windows and write it to a file.

    The model describes windows by components: patterns over channels, frequencies and time. No labels are needed. An
    interrupted fit resumes with --resume. Memory use does not grow with the data. Recordings are first cut into
    windows in a temporary folder; if you use them more than once, write a store with [bold]polyadic prepare[/bold].
    """
    from polyadic.presets import settings_for

    if recenter and probe is None:
        raise PolyadicError("--recenter needs --probe: it changes how the probe is trained")
    if consensus and (restarts or 1) < 2:
        raise PolyadicError("--consensus averages the components of several starts: give --restarts, such as 30")
    check_out_file(out, data, endings=(".safetensors",), force=force)
    if checkpoint is not None:
        check_out_file(checkpoint, data, option="--checkpoint")
    hidden = quiet or json
    with opened(data, given, on_error=on_error.value, shuffle=shuffle.value, hidden=hidden) as windows:
        describe(windows, hidden or not are_recordings(data))
        unlabelled, labelled = _parts(windows, protocol, seed)
        if probe is not None:
            _check_labels(labelled, data, recenter)
        chosen = settings_for(unlabelled, preset=preset, n_fft=n_fft, hop=hop)
        if not hidden:
            default = (are_recordings(data) and "seconds" not in given, preset is None and n_fft is None)
            echo(describe_sizes(unlabelled, chosen.tensorize.n_fft, *default), err=True)
        parameters = {
            "rank": rank,
            "max_sweeps": sweeps,
            "restarts": restarts,
            "consensus": consensus,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "solver": None if solver is None else solver.value,
            "beta": beta,
            "device": device,
            "random_state": seed,
            "verbose": int(not hidden),
        }
        chosen_method = method or (Method.CPD if preset is None else Method.ATD)
        if preset is not None and chosen_method is Method.CPD:
            raise PolyadicError("--preset has the paper's settings for atd, sals and gr-sals, but --method is cpd")
        if augment is not None:
            chosen = replace(chosen, augment=parse_augmentation(augment, unlabelled.fs))
            if chosen_method is not Method.ATD:
                raise PolyadicError(f"--augment is not an option of --method {chosen_method}: use atd")
        estimator = build_estimator(chosen_method, chosen, **parameters)
        path = checkpoint or out.with_name(f"{out.name}.checkpoint")
        with resumable_fit(path, keep=checkpoint is not None):
            model = estimator.fit(unlabelled, checkpoint=path, resume=resume, checkpoint_every=checkpoint_every)
            if probe is not None:
                model.probe_ = _trained(model, labelled, probe, recenter, hidden)
            if check:
                model.replicability_ = checked(model, unlabelled, seed, hidden)
            _save(model, unlabelled, out)
    _tell_fit(model, chosen_method, unlabelled, None if probe is None else labelled, data, out, json)
    if check and not json:
        tell_replicability(model.replicability_)


def _save(model: Any, windows: Windows, out: Path) -> None:
    """Write a model with statistics of its windows, which predict uses to flag unusual ones."""
    from polyadic.evaluate.unusual import typical_windows

    if hasattr(model, "_batches"):
        model.typical_ = typical_windows(model, windows)
    model.save(out)


class FitCommand(FewArguments):
    """A command whose --probe takes an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, with_probe_kind(args))


def with_probe_kind(words: list[str]) -> list[str]:
    """Return the words of a command line, with "auto" for every --probe that is not followed by a kind.

    Examples
    --------
    >>> with_probe_kind(["--probe", "my.store"]), with_probe_kind(["my.store", "--probe", "plain"])
    (['--probe=auto', 'my.store'], ['my.store', '--probe', 'plain'])
    """
    end = words.index("--") if "--" in words else len(words)
    found: list[str] = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        bare = word == "--probe" and len(found) < end and following not in list(ProbeKind)
        found.append("--probe=auto" if bare else word)
    return found


def _parts(windows: Windows, protocol: Protocol | None, seed: int) -> tuple[Windows, Windows]:
    """Return the windows to fit, and the windows on which the probe may be trained."""
    from polyadic.data import split

    if protocol is None:
        return windows, windows
    unlabelled, train, _ = split(windows, protocol.value, random_state=seed)
    return unlabelled, train


def _check_labels(windows: Windows, data: Path, recenter: bool) -> None:
    """Raise before the fit if there are no labels to train a probe on."""
    found = len(set(windows.label[windows.label >= 0].tolist()))
    if found < 2:
        hint = _LABEL_HINT if are_recordings(data) else ""
        raise PolyadicError(f"--probe needs windows of at least two classes, but {data.name} has {found}{hint}")
    if recenter:
        from polyadic.evaluate.classifier import rows_to_transform

        rows_to_transform(windows.label >= 0, windows.subject, recenter)


def _trained(model: Any, windows: Windows, kind: ProbeKind, recenter: bool, hidden: bool) -> Any:
    from polyadic._util.progress import window_bar
    from polyadic.evaluate import WindowClassifier
    from polyadic.evaluate.classifier import rows_to_transform

    used = windows[rows_to_transform(windows.label >= 0, windows.subject, recenter)]
    with window_bar("probe", len(used), hidden) as on_rows:
        return WindowClassifier(model, kind.value, recenter).fit(used, on_rows=on_rows).probe_


def _tell_fit(
    model: Any, method: Method, windows: Windows, labelled: Windows | None, data: Path, out: Path, json: bool
) -> None:
    import shlex

    seconds = model.fit_seconds_
    trained = 0 if labelled is None else int((labelled.label >= 0).sum())
    outcome = {
        "model": out.name,
        "method": method.value,
        "windows": len(windows),
        "subjects": windows.index.n_subjects,
        "subjects_from": windows.index.subjects_from,
        "parameters": model.n_parameters_,
        "sweeps": model.n_sweeps_,
        "restarts": model.restarts,
        "attempt": model.attempt_,
        "seconds": seconds,
        "waited": model.waited_,
        "loss": model.history_["loss"][-1],
        "converged": model.converged_,
        "split": model.split_,
        "classes": model.probe_.classes_.tolist() if trained else [],
        "labelled": trained,
        "replicability": model.replicability_.to_dict() if hasattr(model, "replicability_") else None,
        "reason": getattr(model.probe_, "reason_", None) if trained else None,
        "recenter": bool(trained and getattr(model.probe_, "recenter_", False)),
    }
    if json:
        print_json(outcome)
        return
    kept = f" (best of {model.restarts} starts: number {model.attempt_})" if model.restarts > 1 else ""
    if model.consensus:
        kept = f" from the consensus of {model.restarts} starts"
    echo(
        f"{out.name}: {method.value} of {counted(len(windows), 'window')}, "
        f"{model.n_parameters_:,} parameters, {counted(model.n_sweeps_, 'sweep')}{kept} in "
        f"{seconds:.1f} s ({model.waited_:.1f} s I/O wait)"
    )
    echo(f"windows of {windows.index.describe_subjects()}")
    if trained:
        echo(f"probe: {', '.join(map(str, outcome['classes']))}, trained on {trained:,} labelled windows")
        if outcome["reason"]:
            echo(f"probe settings: {outcome['reason']}")
        if windows.index.n_subjects > 1:
            echo(f"to score it on subjects it has not seen: polyadic evaluate {shlex.join([str(out), str(data)])}")
        if outcome["recenter"]:
            echo("features are recentred by subject: predict needs at least 20 windows per subject")


# -------------------------------------------------------------------------------------------------- replicability


def checked(model: Any, windows: Any, seed: int, hidden: bool) -> Replicability:
    """Return the replicability of a model; show a progress bar unless hidden."""
    from polyadic._util.progress import stage_bar
    from polyadic.explain.replicability import replicability

    with stage_bar("replicability", hidden, "refits") as show:
        return replicability(model, windows, random_state=seed, progress=lambda done, total: show(done, total, ""))


def tell_replicability(result: Replicability) -> None:
    """Print how many components replicate, and which do not."""
    replicates = result.replicates.tolist()
    of = "subjects" if result.halves else "windows (fewer than two subjects are known)"
    echo(
        f"replicability: {sum(replicates)} of {counted(len(replicates), 'component')} found again (match of at least "
        f"{result.threshold:g}) in at least half of {result.refits} refits on halves of the {of}; mean match "
        f"{result.score:.2f}"
    )
    missing = [str(number + 1) for number, found in enumerate(replicates) if not found]
    if missing:
        echo(f"do not interpret component{'s' * (len(missing) != 1)} {', '.join(missing)}")
