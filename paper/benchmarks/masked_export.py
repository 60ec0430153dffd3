"""Exported models and missing channels: flash, memory and instructions in C, file sizes of ONNX, and the same labels.

The default model of HAR is fitted to the 21 training subjects. Each channel in turn is NaN in every fifth window of the
other 9, and labels of the compiled C and of onnxruntime are compared with those of the model.

    python -m paper.benchmarks.masked_export DATA docs/results/microcontroller/masked.json
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paper.benchmarks.microcontroller import labels_in_c, linked_sizes, make, sets, written_project
from paper.results import provenance, write_result
from polyadic import CPD, export
from polyadic.evaluate import WindowClassifier


def in_c(classifier: WindowClassifier, X: np.ndarray, expected: np.ndarray, int8: bool, folder: Path) -> dict[str, Any]:
    project, written = written_project(classifier, int8, folder)
    row: dict[str, Any] = {"weights": "int8" if int8 else "float"}
    for name, option in (("without", "MASKED="), ("with", "MASKED=1")):
        make(project, "clean")
        make(project, "all", option)
        said = make(project, "run-m4", option)
        counts = [int(count) for count in re.findall(r"one window[ \w]*: (\d+) instructions", said)]
        row[name] = {"instructions": counts[-1], "flash": linked_sizes(project, "flash")}
    row |= {"stream_bytes": written.stream_bytes, "masked_bytes": written.masked_bytes}
    found = labels_in_c(project, written, X, masked=True)
    return row | {"other_labels": int((found != expected).sum()), "windows": len(X)}


def in_onnx(classifier: WindowClassifier, X: np.ndarray, expected: np.ndarray, folder: Path) -> dict[str, Any]:
    for missing in (False, True):
        export.onnx(classifier, folder / f"{missing}.onnx", missing=missing)
    run = export.Features(folder / "True.onnx")
    best = np.concatenate([run.probabilities(part).argmax(axis=1) for part in np.array_split(X, len(X) // 500)])
    bytes_ = {name: (folder / f"{name == 'with'}.onnx").stat().st_size for name in ("without", "with")}
    return {"bytes": bytes_, "other_labels": int((best != expected).sum()), "windows": len(X)}


def main(data: str, out: str) -> None:
    learned, test = sets(Path(data))["HAR"]
    classifier = WindowClassifier(CPD(device="cpu").fit(learned)).fit(learned)
    clean = np.ascontiguousarray(test.X[::5], np.float32)
    X = np.tile(clean, (clean.shape[1], 1, 1))
    for channel in range(clean.shape[1]):
        X[channel * len(clean) : (channel + 1) * len(clean), channel] = np.nan
    expected = classifier.predict_proba(X.astype(np.float64)).argmax(axis=1)
    with tempfile.TemporaryDirectory() as folder:
        content = provenance("cpu") | {"model": "HAR, rank 32"}
        content["c"] = [in_c(classifier, X, expected, int8, Path(folder)) for int8 in (False, True)]
        content["onnx"] = in_onnx(classifier, X, expected, Path(folder))
    write_result(Path(out), content)


if __name__ == "__main__":
    main(*sys.argv[1:])
