"""Models in C: flash, memory and instructions per window on a Cortex-M4F under QEMU, compared with ONNX.

Models have default settings and a probe. On HAR, they are fitted to the 21 training subjects and compared on the 3,003
windows of the other 9; on GeoTec phone, the development subjects are split into halves. The files are built by
`examples/microcontroller/Makefile`; sizes are from the linker map. "Labels changed" compares the compiled C with
`predict_proba` in float64. Times on this machine are the minimum of five runs, because the machine may be shared.

    python -m paper.benchmarks.microcontroller DATA docs/results/microcontroller/cortex-m.json
"""

from __future__ import annotations

import ctypes
import json
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from paper.labels.people import read_set
from paper.results import provenance, publish, table
from polyadic import CPD, export
from polyadic.data import Windows
from polyadic.evaluate import WindowClassifier

PROJECT = Path(__file__).parents[2] / "examples" / "microcontroller"
CLOCK_HZ = 64e6
BOARDS = {"m4f": "m4.map", "m0plus": "m0.map"}
RUNS, REPEATS = 5, 200
MODELS = (("HAR", 32), ("HAR", 16), ("HAR", 64), ("GeoTec phone", 32))


def sets(data: Path) -> dict[str, tuple[Windows, Windows]]:
    """Return the training and comparison windows of each set, by name: for GeoTec, halves of development subjects."""
    har, geotec = (read_set(data, name) for name in ("har", "geotec"))
    phone = geotec.unlabelled()
    names = np.unique(phone.subject)
    learned = np.isin(phone.subject, np.random.default_rng(0).permutation(names)[: len(names) // 2])
    return {"HAR": (har.unlabelled(), har.labelled()), "GeoTec phone": (phone[learned], phone[~learned])}


def make(project: Path, *targets: str) -> str:
    # The memory map only needs to be large enough, because actual sizes are measured.
    words = ["make", "-s", "-C", str(project), "FLASH=512K", "RAM=512K", *targets]
    # QEMU prints the output of the board to stderr.
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, timeout=300
    ).stdout


def labels_in_c(project: Path, written: Any, X: np.ndarray, masked: bool = False) -> np.ndarray:
    """Return the class codes (N,) predicted by the code compiled for this machine."""
    words = ["gcc", "-std=c99", "-O2", "-shared", "-fPIC", str(project / "model.c"), "-lm", "-o"]
    subprocess.run([*words, str(project / "model.so")], check=True)
    library = ctypes.CDLL(str(project / "model.so"))
    predict = library.polyadic_predict_masked if masked else library.polyadic_predict
    sizes = [written.scratch_bytes, written.masked_bytes][: 1 + masked]
    memory, result = [ctypes.create_string_buffer(size) for size in sizes], np.empty(len(written.classes), np.float32)
    found = []
    for window in np.ascontiguousarray(X, np.float32):
        pointers = ctypes.c_void_p(window.ctypes.data), ctypes.c_void_p(result.ctypes.data)
        found.append(predict(*pointers, *memory))
    return np.array(found)


def written_project(classifier: WindowClassifier, int8: bool, folder: Path) -> tuple[Path, Any]:
    """Return a copy of the example project with the model as C, and what `export.c` says about it."""
    project = folder / f"project{int8:d}"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("build", "model.*"))
    return project, export.c(classifier, project / "model.c", int8=int8)


def linked_sizes(project: Path, part: str | None = None) -> dict[str, Any]:
    """Return the sizes of the firmware of each board, or of one part of it, from the linker maps."""
    sizes = runpy.run_path(str(PROJECT / "sizes.py"))["sizes"]
    found = {board: sizes((project / "build" / file).read_text()) for board, file in BOARDS.items()}
    return found if part is None else {board: each[part] for board, each in found.items()}


def in_c(classifier: WindowClassifier, test: Windows, expected: np.ndarray, int8: bool, folder: Path) -> dict[str, Any]:
    project, written = written_project(classifier, int8, folder)
    make(project, "all")
    said = make(project, "run-m4")
    if "selftest: passed" not in said:
        raise SystemExit(said)
    instructions = int(re.search(r"one window: (\d+) instructions", said)[1])  # type: ignore[index]
    on_host = min(int(re.search(r"one window: (\d+) ns", make(project, "run"))[1]) for _ in range(RUNS))  # type: ignore[index]
    found = labels_in_c(project, written, np.asarray(test.X))
    best, top = expected.argmax(axis=1), np.sort(expected, axis=1)
    differ = found != best
    return {
        "weights": "int8" if int8 else "float",
        "table_bytes": written.table_bytes,
        **linked_sizes(project),
        "scratch_bytes": written.scratch_bytes,
        "stream_bytes": written.stream_bytes,
        "instructions": instructions,
        "least_ms_at_64_mhz": round(1e3 * instructions / CLOCK_HZ, 2),
        "this_machine_us": round(on_host / 1e3, 1),
        "other_labels": int(differ.sum()),
        "other_labels_not_close": int((differ & (top[:, -1] - top[:, -2] >= 1e-3)).sum()),
        "accuracy": round(accuracy(classifier, found, test), 4),
    }


def accuracy(classifier: WindowClassifier, best: np.ndarray, test: Windows) -> float:
    names = np.asarray(test.classes)[test.label]
    return float((classifier.classes_[best] == names).mean())


def in_onnx(classifier: WindowClassifier, test: Windows, folder: Path) -> dict[str, Any]:
    path = folder / "model.onnx"
    export.onnx(classifier.features_, path, probe=classifier)
    run, X = export.Features(path), np.asarray(test.X, np.float32)

    def microseconds() -> float:
        begun = time.perf_counter()
        for number in range(REPEATS):
            run.probabilities(X[number % len(X)])
        return 1e6 * (time.perf_counter() - begun) / REPEATS

    return {
        "bytes": path.stat().st_size,
        "this_machine_us": round(min(microseconds() for _ in range(RUNS)), 1),
        "accuracy": round(accuracy(classifier, run.probabilities(X).argmax(axis=1), test), 4),
    }


def measured(name: str, rank: int, learned: Windows, test: Windows) -> dict[str, Any]:
    classifier = WindowClassifier(CPD(rank=rank, device="cpu").fit(learned)).fit(learned)
    expected = classifier.predict_proba(np.asarray(test.X, np.float64))
    with tempfile.TemporaryDirectory() as folder:
        return {
            "model": name,
            "rank": rank,
            "window": [int(size) for size in test.shape[1:]],
            "seconds_of_signal": test.shape[2] / float(test.fs or 1),
            "parameters": classifier.features_.n_parameters_,
            "compared_windows": len(test),
            "accuracy": round(accuracy(classifier, expected.argmax(axis=1), test), 4),
            "c": [in_c(classifier, test, expected, int8, Path(folder)) for int8 in (False, True)],
            "onnx": [in_onnx(classifier, test, Path(folder))],
        }


def page(content: dict[str, Any]) -> str:
    """Return the rows in Markdown, for the page on deployment."""
    on_board, on_host = [], []
    for row in content["rows"]:
        name = f"{row['model']}, rank {row['rank']}"
        for code in row["c"]:
            # Tables, code and library functions, without the selftest and the application.
            parts = [[code[board]["flash"][part] for part in ("tables", "code", "libraries")] for board in BOARDS]
            flash = [f"{sum(sizes) / 1024:.1f} KiB" for sizes in parts]
            memory, cost = f"{code['stream_bytes'] / 1024:.1f} KiB", f"{code['instructions']:,}"
            changed = f"{code['other_labels']} of {row['compared_windows']:,}"
            share = f"{100 * code['accuracy']:.1f} % ({100 * row['accuracy']:.1f} %)"
            cells = [*flash, memory, cost, f"{code['least_ms_at_64_mhz']:.1f} ms", changed, share]
            on_board.append([name, code["weights"], *cells])
        times = [f"{entry['this_machine_us']:,.0f} µs" for entry in (*row["c"], row["onnx"][0])]
        on_host.append([name, *times, f"{row['onnx'][0]['bytes'] / 1024:.0f} KiB"])
    heads = ["model", "weights", "flash, M4F", "flash, M0+", "memory with a stream", "instructions per window"]
    heads += ["at 64 MHz, at least", "labels changed", "accuracy (model)"]
    note = (
        " In the file of PTB-XL, all leads except II have 2.5 s of signal and -32.768, the code for missing samples, "
        "for the rest: its rows show sizes, and its accuracy is not meaningful."
        if any(row["model"].startswith("PTB-XL") for row in content["rows"])
        else ""
    )
    kinds = ["C, float", "C, int8", "ONNX", "ONNX file"]
    return (
        f"{table(heads, on_board)}\n{table(['model', *kinds], on_host)}\n"
        "The first table is for a Cortex-M4F under QEMU. The second is the time for one window on one thread of a "
        f"shared machine ({content['machine']['processor']}, {content['date']}, commit {content['commit']}).{note}\n"
    )


def main(data: str, out: str) -> None:
    found = sets(Path(data))
    rows = []
    for name, rank in MODELS:
        rows.append(measured(name, rank, *found[name]))
        print(json.dumps(rows[-1]), flush=True)
    content = provenance("cpu") | {"seed": 0, "rows": rows}
    tools = {
        tool: subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        for tool in ("gcc", "arm-none-eabi-gcc", "qemu-system-arm")
    }
    content["versions"] |= {package: version(package) for package in ("onnx", "onnxruntime")} | tools
    publish(Path(out).parent, Path(out).stem, content, page(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
