"""`polyadic export`: write a model as C for microcontrollers, as an ONNX graph, or as a folder for the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.terminal import described
from polyadic.cli.evaluate import cross_validation
from polyadic.cli.files import check_out_file, check_out_folder, names_folder
from polyadic.cli.options import Common, DataOption, Model, option, out_option, with_options
from polyadic.cli.windows import open_model, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.export import CExport, Features

EXAMPLES = """
An ONNX graph; C (model.c and model.h) with a result every 64 samples; with 8-bit weights:
  polyadic export model.safetensors -o model.onnx
  polyadic export model.safetensors -o model.c --stride 64
  polyadic export model.safetensors -o model.c --int8

A folder for the Hugging Face hub, whose model card has scores by subject:
  polyadic export model.safetensors -o my-model/ --data labelled.store
  polyadic export model.safetensors -o card/ --data rec --labels labels.csv
"""

_C = "C files"
_FACTS = (
    *("classes", "fs", "channels", "missing", "opset", "stride", "along", "int8", "accumulator"),
    *("table_bytes", "scratch_bytes", "stream_bytes", "masked_table_bytes", "masked_bytes"),
)
"""What is told of an exported file, as far as its kind has it."""


@with_options("labels force json quiet", reading=())
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
    from polyadic import export as exports
    from polyadic import load

    out, folder = Path(output), names_folder(output)
    in_c = out.suffix == ".c"
    wrong = {"--int8": int8 and not in_c, "--stride": stride and not in_c, "--data": data and not folder}
    for name in filter(wrong.get, wrong):
        raise PolyadicError(f"{name} is not for this kind of export: --out is {out.name}")
    if folder:
        check_out_folder(out, data)
        files = [out / name for name in exports.HUB_FILES] if out.is_dir() else []
    else:
        check_out_file(out, endings=(".c", ".onnx"))
        files = [out, out.with_suffix(".h")] if in_c else [out]
    for file in files:
        check_out_file(file, model, data, force=common.force)
    loaded, outcome = load(model), dict[str, Any]()
    if folder:
        scores, notes = None, ["the model card (README.md) has no scores: give labelled recordings as --data"]
        if data is not None:
            with opened(data, common, model=loaded) as windows:
                scores = cross_validation(open_model(model), windows, common.hidden)
            notes = ["the model card (README.md) has these scores:", *scores.summary().splitlines()]
            outcome["scores"] = scores.to_dict()
        written = exports.hub(loaded, out, data="" if data is None else data.name, scores=scores)
        shown = {"folder": out.resolve().name, "files": [file.name for file in written]}
    elif in_c:
        shown, notes = _facts(exports.c(loaded, out, int8=int8, stride=stride), files, loaded)
    else:
        exports.onnx(loaded, out)
        shown, notes = _facts(exports.Features(out), files, loaded)  # read back what a device will see
    common.tell(shown | outcome, *notes, shown=described(shown))


def _facts(written: CExport | Features, files: list[Path], model: Any) -> tuple[dict[str, Any], list[str]]:
    """Return what users want to know of an exported file, and notes on what the model does and the file does not."""
    known = {name: getattr(written, name) for name in _FACTS if hasattr(written, name)}
    about = {"files": [file.name for file in files], "bytes": sum(file.stat().st_size for file in files)}
    about |= {"window": written.shape, "features": written.n_features, **known}
    notes, masked = list[str](), known.get("masked_bytes")
    chain = getattr(getattr(model, "probe_", None), "chain_", None)
    if chain is not None and chain.is_default and not known.get("along"):
        notes.append("the order of windows (--along) is not exported")
    if masked:
        notes.append("masked: for missing samples (NaN) and dead channels, if you call the functions …_masked")
    elif not known.get("missing"):
        notes.append("the exported file, unlike the model, does not recognise dead and missing channels")
    if known.get("accumulator") == "double":
        notes.append("components are nearly collinear, so sums use double precision: a smaller rank would be faster")
    return about, notes
