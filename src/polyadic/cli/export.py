"""`polyadic export`: write a model as C for microcontrollers, as an ONNX graph, or as a folder for the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from polyadic._util.terminal import described
from polyadic.cli.evaluate import cross_validation
from polyadic.cli.files import check_out_file, check_out_folder, names_folder
from polyadic.cli.options import Common, DataOption, Model, option, out_option, with_options
from polyadic.cli.windows import open_model, opened
from polyadic.errors import PolyadicError

EXAMPLES = """
An ONNX graph; C (model.c and model.h) with a result every 64 samples; with 8-bit weights:
  polyadic export model.safetensors -o model.onnx
  polyadic export model.safetensors -o model.c --stride 64
  polyadic export model.safetensors -o model.c --int8

A folder for the Hugging Face hub, whose model card has scores by subject:
  polyadic export model.safetensors -o my-model/ --data labelled.store
"""

_C = "C files"


@with_options("force json quiet", reading=())
def export(
    common: Common,
    model: Model,
    output: Annotated[str, out_option(".onnx, .c, or a folder for the Hugging Face hub.", "PATH")] = "model.onnx",
    data: DataOption = None,
    int8: Annotated[bool, option("Use 8-bit weights.", "--int8", panel=_C)] = False,
    stride: Annotated[int | None, option("Samples between results (a window).", panel=_C, min=1, metavar="N")] = None,
) -> None:
    """Export a model as C code, as an ONNX graph, or as a folder to share.

    The export turns raw windows into features and, if the model has a probe (classifier), into class probabilities. C
    code needs only math.h and no heap. An ONNX graph needs onnxruntime. A folder holds the model file, a model card and
    config.json for the Hugging Face hub. With --data, the card has scores by subject, from the same cross-validation as
    [bold]evaluate[/bold].
    """
    out, folder = Path(output), names_folder(output)
    in_c = out.suffix == ".c"
    wrong = {"--int8": int8 and not in_c, "--stride": stride and not in_c, "--data": data and not folder}
    for name in filter(wrong.get, wrong):
        raise PolyadicError(f"{name} is not for this kind of export: --out is {out.name}")
    if folder:
        from polyadic.export.hub_folder import HUB_FILES

        check_out_folder(out, data)
        files = [out / name for name in HUB_FILES] if out.is_dir() else []
    else:
        check_out_file(out, endings=(".c", ".onnx"))
        files = [out, out.with_suffix(".h")] if in_c else [out]
    for file in files:
        check_out_file(file, model, data, force=common.force)
    loaded = open_model(model)
    if folder:
        scores = None
        if data is not None:
            with opened(data, common, model=loaded) as windows:
                scores = cross_validation(loaded, windows, common.hidden)
        outcome, notes = _write_folder(model, out, "" if data is None else data.name, scores)
    else:
        outcome, notes = _write_c(loaded, out, int8, stride) if in_c else _write_onnx(loaded, out)
    shown = described({name: value for name, value in outcome.items() if name != "scores"})
    common.tell(outcome, *notes, shown=shown)


def _write_folder(path: Path, out: Path, data: str, scores: Any) -> tuple[dict[str, Any], list[str]]:
    """Write a folder for the Hugging Face hub; its card has the scores, if there are any."""
    from polyadic import load
    from polyadic.export import hub

    names = [file.name for file in hub(load(path), out, data=data, scores=scores)]
    outcome = {"folder": out.resolve().name, "files": names}
    if scores is None:
        return outcome, ["the model card (README.md) has no scores: give labelled recordings as --data"]
    outcome["scores"] = scores.to_dict()
    return outcome, ["the model card (README.md) has these scores:", *scores.summary().splitlines()]


def _write_c(model: Any, out: Path, int8: bool, stride: int | None) -> tuple[dict[str, Any], list[str]]:
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
    notes = _left_out(model, written.along, bool(written.masked_bytes))
    if written.masked_bytes:
        notes.append("masked: for missing samples (NaN) and dead channels, if you call the functions …_masked")
    if written.accumulator == "double":
        notes.append("components are nearly collinear, so sums use double precision: a smaller rank would be faster")
    return outcome, notes


def _write_onnx(model: Any, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Write an ONNX file."""
    from polyadic import export as exports

    exports.onnx(model, out)
    written = exports.Features(out)  # read back what a device will see
    outcome = {"file": out.name, "bytes": out.stat().st_size, "window": written.shape, "features": written.n_features}
    outcome |= {name: getattr(written, name) for name in ("opset", "classes", "fs", "channels", "missing")}
    return outcome, _left_out(model, False, written.missing)


def _left_out(model: Any, along: bool, missing: bool) -> list[str]:
    """Return notes on what the model does and the exported file does not."""
    chain = getattr(getattr(model, "probe_", None), "chain_", None)
    return [
        *(["the order of windows (--along) is not exported"] if chain is not None and not along else []),
        *([] if missing else ["the exported file, unlike the model, does not recognise dead and missing channels"]),
    ]
