"""`polyadic export`: write a model as C for microcontrollers, as an ONNX graph, or as a folder for the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.evaluate import cross_validation
from polyadic.cli.files import check_out_file, check_out_folder, names_folder
from polyadic.cli.options import option, out_option
from polyadic.cli.windows import counted, open_model, opened
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

EXAMPLES = """
[bold]Examples[/bold]

An ONNX graph; C (model.c and model.h) with a result every 64 samples; 8-bit weights, and their effect on your windows:
  polyadic export model.safetensors -o model.onnx
  polyadic export model.safetensors -o model.c --stride 64
  polyadic export model.safetensors -o model.c --int8 --data labelled.store

A folder for the Hugging Face hub, whose model card has scores by subject:
  polyadic export model.safetensors -o my-model/ --data labelled.store
"""

_ROWS = 1024
_c = partial(option, panel="C files")


@options.with_options("force json quiet", reading=())
def export(
    model: options.Model,
    output: Annotated[str, out_option("File, .onnx or .c; or a folder, for the Hugging Face hub.", "PATH")] = (
        "model.onnx"
    ),
    data: options.DataOption = None,
    int8: Annotated[bool, _c("Use 8-bit weights.", "--int8")] = False,
    stride: Annotated[int | None, _c("Samples between results. Default: a window.", min=1, metavar="SAMPLES")] = None,
    *,
    common: options.Common,
) -> None:
    """Export a model as C code or as an ONNX graph, and compare it with the model on --data; or as a folder to share.

    The export turns raw windows into features and, if the model has a probe (classifier), into class probabilities. C
    code needs only math.h and no heap. An ONNX graph needs onnxruntime. A folder holds the model file, a model card and
    config.json for the Hugging Face hub. With --data, the card has scores by subject, from the same cross-validation as
    [bold]evaluate[/bold].
    """
    out = Path(output)
    in_c, folder = out.suffix == ".c", names_folder(output)
    if not in_c and (int8 or stride):
        option_of_c = "--int8" if int8 else "--stride"
        raise PolyadicError(f"{option_of_c} is for C, but --out is {out.name}: leave it out, or write a file .c")
    if folder:
        _export_folder(model, out, data, common)
        return
    check_out_file(out, model, data, endings=(".c", ".onnx"), force=common.force)
    if in_c:
        check_out_file(out.with_suffix(".h"), model, data, force=common.force)
    loaded = open_model(model)
    with _opened(data, loaded, None, common) as windows:
        outcome, lines, compute = _write_c(loaded, out, int8, stride) if in_c else _write_onnx(loaded, out)
        if windows is not None:
            outcome["comparison"] = _compare(loaded, windows, compute, common.hidden)
            lines.append(_in_words(outcome["comparison"]))
        if outcome.get("along"):
            lines.append("a stream gives probabilities along the recording (polyadic_push)")
        elif getattr(getattr(loaded, "probe_", None), "chain_", None) is not None:
            lines.append("probabilities are of each window by itself: the order of windows (--along) is not exported")
        if not outcome.get("masked_bytes") and not outcome.get("missing"):
            lines.append("a dead or missing channel is not recognised by the exported file, unlike by the model")
        if windows is None and int8:
            lines.append("give --data to see the effect of --int8 on your own windows")
    if common.json:
        print_json(outcome)
    elif not common.quiet:
        for line in lines:
            echo(line)


@contextmanager
def _opened(data: Path | None, model: Any, labels: bool | None, common: options.Common) -> Iterator[Windows | None]:
    """Open the windows of --data, as the model was fitted."""
    with ExitStack() as stack:
        windows = None
        if data is not None:
            try:
                windows = stack.enter_context(opened(data, common, model=model, labels=labels))
            except DataError as error:
                hint = "(export has no such options: use polyadic prepare, and its store as --data)"
                raise DataError(f"{error}\n{hint}") from error
        yield windows


def _export_folder(path: Path, out: Path, data: Path | None, common: options.Common) -> None:
    """Write a folder for the Hugging Face hub; with data, its card has scores by subject."""
    from polyadic import load
    from polyadic.export.hub_folder import HUB_FILES, hub

    check_out_folder(out, data)
    for name in HUB_FILES if out.is_dir() else ():
        check_out_file(out / name, path, data, force=common.force)
    loaded = open_model(path)
    with _opened(data, loaded, True, common) as windows:
        scores = None if windows is None else cross_validation(loaded, windows, hidden=common.hidden)
    files = hub(load(path), out, data=data.name if data is not None else "", scores=scores)
    if common.json:
        measured = {} if scores is None else {"scores": scores.to_dict()}
        print_json({"folder": out.name, "files": [file.name for file in files], **measured})
    elif not common.quiet:
        echo(f"{out.resolve().name}: {', '.join(file.name for file in files)}")
        if scores is None:
            echo("the model card (README.md) has no scores: give labelled recordings as --data")
        else:
            echo(
                f"the model card (README.md) has the scores of {counted(scores.subjects, 'subject')}: balanced "
                f"accuracy {100 * scores.balanced_accuracy:.1f} % on left-out subjects"
            )


_Written = tuple[dict[str, Any], list[str], Callable[[Any], Any]]
"""The result of an export, lines to print, and the function that the file computes."""


def _write_c(model: Any, out: Path, int8: bool, stride: int | None) -> _Written:
    """Write C code."""
    from polyadic import export as exports

    written = exports.c(model, out, int8=int8, stride=stride)
    named = ["stride", "along", "classes", "table_bytes", "scratch_bytes", "stream_bytes", "int8", "accumulator"]
    named += ["masked_table_bytes", "masked_bytes"]
    outcome = {
        "files": [file.name for file in written.files],
        "window": written.shape,
        "features": written.n_features,
        **{name: getattr(written, name) for name in named},
    }
    lines = [
        " and ".join(file.name for file in written.files) + _what(written.shape, written.n_features, written.classes),
        f"tables {written.table_bytes / 1e3:.1f} kB, working memory {written.scratch_bytes / 1e3:.1f} kB, or "
        f"{written.stream_bytes / 1e3:.1f} kB with a stream; a result every {written.stride:,} samples",
    ]
    if written.masked_bytes:
        function = f"polyadic_{'predict' if written.classes else 'features'}_masked"
        lines.append(
            f"for missing samples (NaN) and dead channels, {function} and polyadic_push_masked: "
            f"{written.masked_table_bytes / 1e3:.1f} kB more tables and "
            f"{written.masked_bytes / 1e3:.1f} kB more memory if you call them"
        )
    if written.accumulator == "double":
        lines.append("components are nearly collinear, so sums use double precision: a smaller rank would be faster")
    return outcome, lines, written.probabilities if written.classes else written.features


def _write_onnx(model: Any, out: Path) -> _Written:
    """Write an ONNX file."""
    from polyadic import export as exports

    exports.onnx(model, out)
    # Read back what a device will see.
    written = exports.Features(out)
    outcome = {
        "file": out.name,
        "bytes": out.stat().st_size,
        "window": written.shape,
        "features": written.n_features,
        **{name: getattr(written, name) for name in ("opset", "classes", "fs", "channels", "missing")},
    }
    what = _what(written.shape, written.n_features, written.classes)
    line = f"{out.name}{what}, {out.stat().st_size / 1e3:,.0f} kB, opset {written.opset}"
    lines = [line, *(["NaN in a window means missing, and dead channels count as missing"] if written.missing else [])]
    return outcome, lines, written.probabilities if written.classes else written


def _what(shape: tuple[int, ...], features: int, classes: tuple[Any, ...]) -> str:
    probe = f" and probabilities of {len(classes)} classes" if classes else ""
    return f": windows of {' × '.join(map(str, shape))} to {features} features{probe}"


# ------------------------------------------------------------------------ comparison


def _compare(model: Any, windows: Any, compute: Callable[[Any], Any], hidden: bool) -> dict[str, Any]:
    """Compare what the file computes with the model: agreement of labels, and accuracy where labels are known.

    Windows in which something is missing are left out.
    """
    import numpy as np

    from polyadic._util.progress import window_bar
    from polyadic.evaluate.classifier import labels_of

    probe = getattr(model, "probe_", None)
    found, expected, kept = [], [], []
    with window_bar("comparing", len(windows), hidden) as on_rows:
        for first in range(0, len(windows), _ROWS):
            X = np.asarray(windows[first : first + _ROWS].X)
            Z, _, missing = model.features_and_spread(X, np.zeros((0, model._n_features_out)))
            complete = ~missing.any(axis=1)
            kept += (first + np.flatnonzero(complete)).tolist()
            expected.append((Z if probe is None else probe.predict_proba(Z))[complete])
            found.append(np.asarray(compute(np.nan_to_num(X)))[complete])
            on_rows(first + len(X))
    if not kept:
        return {"windows": 0}
    after, before = np.concatenate(found), np.concatenate(expected)
    if probe is None:
        size = float(np.sqrt(np.mean(np.square(before)))) or 1.0
        return {"windows": len(kept), "features_error": float(np.sqrt(np.mean(np.square(after - before)))) / size}
    classes, labels = np.asarray(probe.classes_).astype(str), labels_of(windows)[kept]
    chosen = [classes[part.argmax(axis=1)] for part in (before, after)]
    known = np.isin(labels, classes)
    accuracy = [float((part == labels)[known].mean()) if known.any() else None for part in chosen]
    return {
        "windows": len(kept),
        "same_label": float((chosen[0] == chosen[1]).mean()),
        "labelled": int(known.sum()),
        "accuracy_before": accuracy[0],
        "accuracy_after": accuracy[1],
    }


def _in_words(comparison: dict[str, Any]) -> str:
    windows = counted(comparison["windows"], "window")
    if not comparison["windows"]:
        return "not compared with the model: something is missing in every window of --data"
    if "features_error" in comparison:
        return f"on {windows}, features differ by {100 * comparison['features_error']:.2g} % of their root mean square"
    line = f"on {windows}, {100 * comparison['same_label']:.2f} % of the labels agree with the model"
    if comparison["accuracy_before"] is None:
        return f"{line}; accuracy is unknown, because no window has a label"
    before, after = 100 * comparison["accuracy_before"], 100 * comparison["accuracy_after"]
    return (
        f"{line}; accuracy on the {comparison['labelled']:,} with labels: model {before:.2f} %, file {after:.2f} % "
        "(only to compare the two: if the model was trained on these windows, both are optimistic)"
    )
