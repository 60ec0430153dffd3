"""The kinds of files that `mutations` damages: how a sound one is made, how it is read, and what its numbers mean."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import trees
from mutations import Target, damage_json
from people import read_csv
from problems import paper

from polyadic import ATD, SALS
from polyadic._util import model_files
from polyadic.augment import Jitter
from polyadic.data import Header, StoreWriter, WindowStore, synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.data.readers.edf import EdfFile
from polyadic.data.readers.wfdb import WfdbRecord
from polyadic.data.recordings import Recording
from polyadic.evaluate.classifier import WindowClassifier
from polyadic.spectral import STFT

SIGNALS = synthetic(40, 3, 64)
FEW = SIGNALS.X[:5]


class Same:
    """What the sound file gave, which a damaged one that is still read must give, too."""

    def __init__(self) -> None:
        self.expected: bytes | None = None

    def __call__(self, arrays: list[np.ndarray], exact: bool) -> None:
        for array in arrays:
            assert array.dtype.kind != "f" or np.isfinite(array).all(), "what was read is not finite"
        came = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        if self.expected is None:
            self.expected = came
        assert not exact or came == self.expected, "a damaged file was read as if it were sound"


# ------------------------------------------------------------------------------------------ model files


def _model() -> Target:
    same = Same()

    def make(folder: Path) -> None:
        features = paper(ATD, 3, tensorize=STFT(16, 8), augment=Jitter(0.1), batch_size=20, max_sweeps=2, device="cpu")
        WindowClassifier(features).fit(SIGNALS.X, SIGNALS.label).save(folder / "model.safetensors")

    def read(folder: Path, only_bytes: bool) -> None:
        import polyadic

        path = folder / "model.safetensors"
        found = [polyadic.load(path).transform(FEW), WindowClassifier.load(path).predict_proba(FEW)]
        same(found, exact=only_bytes)

    def meant(folder: Path, chance: random.Random) -> str:
        path = folder / "model.safetensors"
        arrays, header = model_files.read(path)
        what = damage_json(header, chance)
        model_files.write(path, arrays, header)
        return what

    return Target(make, read, meant)


# ------------------------------------------------------------------------------------------ checkpoints


def _checkpoint() -> Target:
    same = Same()
    data = np.random.default_rng(0).normal(size=(20, 3, 4))

    def model() -> SALS:
        return paper(SALS, 2, solver="memory", batch_size=8, max_sweeps=2, tol=0.0, device="cpu", random_state=0)

    def make(folder: Path) -> None:
        model().set_params(max_sweeps=1).fit(data, checkpoint=folder / "fit.checkpoint", checkpoint_every=0)

    def read(folder: Path, only_bytes: bool) -> None:
        fitted = model().fit(data, checkpoint=folder / "fit.checkpoint", resume=True, checkpoint_every=1e9)
        same([*fitted.factors_, np.array(fitted.history_["loss"])], only_bytes)

    return Target(make, read)


# ----------------------------------------------------------------------------------------------- stores


def _store() -> Target:
    same = Same()
    header = Header(64.0, ("a", "b", "c"), ("V",) * 3, 64, ("x", "y"))

    def make(folder: Path) -> None:
        digits = np.random.default_rng(0).integers(-3000, 3000, (4, 3, 192)).astype(np.float32)
        with StoreWriter(folder, header) as writer:
            for number, signal in enumerate(digits):
                names = (f"r{number}", f"s{number // 2}")
                recording = Recording(*names, 64.0, header.channels, header.units, signal)
                writer.add(recording, np.arange(3) * 64, np.arange(3) % 2)

    def read(folder: Path, only_bytes: bool) -> None:
        store = WindowStore(folder)
        store.verify()
        same([store.read(np.arange(len(store))), store.index.start, store.index.label], only_bytes)

    return Target(make, read)


# --------------------------------------------------------------------------------- settings and recordings


def _recording(make: Callable[[Path], Any], read: Callable[[Path], Any]) -> Target:
    """A reader of recordings: what it takes must be a recording whose parts fit together, without infinity."""

    def checked(folder: Path, only_bytes: bool) -> None:
        recording = read(folder)
        assert np.isfinite(recording.fs)
        assert recording.fs > 0
        assert not np.isinf(recording.in_memory().signal).any()
        assert all(np.isfinite([note.onset, note.duration]).all() for note in recording.annotations)

    return Target(make, checked)


def _edf(folder: Path) -> None:
    digits = np.random.default_rng(0).integers(-2048, 2048, (2, 320)).astype(np.int16)
    limits = {"physical_range": (-500, 500), "digital_range": (-2048, 2047), "physical_dimension": "uV"}
    signals = [
        edfio.EdfSignal.from_digital(row, 40.0, label=name, **limits) for name, row in zip("AB", digits, strict=True)
    ]
    notes = [edfio.EdfAnnotation(0.5, None, "lights off"), edfio.EdfAnnotation(4.25, 3, "Sleep stage 2")]
    edfio.Edf(signals, annotations=notes, data_record_duration=1).write(folder / "r.edf")


def _read_edf(folder: Path) -> Any:
    file = EdfFile(folder / "r.edf")
    assert file.annotations is not None
    return file.read().in_memory()


def _wfdb(folder: Path) -> None:
    digits = np.random.default_rng(0).integers(-2000, 2000, (60, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        units = {"fs": 100, "units": ["mV", "uV"], "sig_name": ["I", "II"], "baseline": [0, 10]}
        trees.wfdb.wrsamp(
            "r", write_dir=str(folder), d_signal=digits, fmt=["16", "16"], adc_gain=[200.0, 100.5], **units
        )
        sample, symbol = np.array([0, 5, 30, 31]), ["N", "V", "+", "N"]
        trees.wfdb.wrann("r", "atr", sample, symbol, aux_note=["", "", "(AFIB\0", ""], fs=100, write_dir=str(folder))


def _csv(folder: Path) -> None:
    values = np.random.default_rng(0).normal(size=(200, 2))
    rows = [f"{number / 50},{a:.6f},{b:.6f}" for number, (a, b) in enumerate(values)]
    (folder / "r.csv").write_text("\n".join(["time,left,right", *rows]) + "\n")


def _npz(folder: Path) -> None:
    columns = {"X": SIGNALS.X[:10].astype(np.float32), "y": SIGNALS.label[:10], "fs": 50.0}
    np.savez(folder / "w.npz", **columns, subject=SIGNALS.subject[:10], channels=np.array(["a", "b", "c"]))


def _read_npz(folder: Path, only_bytes: bool) -> None:
    windows = open_windows(folder / "w.npz")
    assert len(windows.X.shape) == 3
    assert len(windows.label) == len(windows.subject) == len(windows.X)


TARGETS = {
    "model file with a probe": _model(),
    "checkpoint": _checkpoint(),
    "store": _store(),
    "EDF": _recording(_edf, _read_edf),
    "WFDB": _recording(_wfdb, lambda folder: WfdbRecord(folder / "r").read().in_memory()),
    "CSV": _recording(_csv, lambda folder: read_csv(folder / "r.csv")),
    "npz": Target(_npz, _read_npz),
}
