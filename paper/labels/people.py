"""The five data sets of the label curve: their windows, development subjects, and splits of the other subjects.

Development subjects provide the unlabelled windows, and all settings are chosen on them: the 21 subjects of HAR's
training part, and some 60 % of the subjects of the other sets (sampled with seed 0): 14 of 23 in GeoTec, 23 of 38 in
SisFall, 22 of 36 in EEGMAT, 112 of 187 in LUDB. The labels of the other subjects are used for scores only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.augment import Bandpass, Compose, Jitter, Rotate3D
from polyadic.data import Windows, synthetic
from polyadic.errors import DataError, PolyadicError
from polyadic.presets import PAPER_METHOD, Preset, preset
from polyadic.spectral import STFT

Count = int | str
"""Labels per class: a number, or "all"."""

COUNTS: tuple[Count, ...] = (1, 3, 10, 30, "all")

FILES = {
    "har": "har.npz",
    "geotec": "geotec_phone.npz",
    "sisfall": "sisfall.npz",
    "eegmat": "eegmat.npz",
    "ludb": "ludb.npz",
}
"""File name of each complete set."""
PTB_XL = "ptb-xl"
"""The printed layout of PTB-XL, in which most of every window is missing: a set beside the others."""
_INVALID = -32.0
"""Values below this one are missing in the file of PTB-XL."""

_TITLES = {
    "har": "HAR",
    "geotec": "GeoTec phone",
    "sisfall": "SisFall",
    "eegmat": "EEGMAT",
    "ludb": "LUDB heart axis",
    PTB_XL: "PTB-XL, first 1,987 records, 100 Hz, 2.5 s per lead: sex",
}
_UNITS = {
    "har": ("g",) * 3 + ("rad/s",) * 3 + ("g",) * 3,
    "geotec": ("m/s2",) * 3 + ("rad/s",) * 3,
    "sisfall": ("g",) * 3 + ("deg/s",) * 3 + ("g",) * 3,
    "eegmat": ("uV",) * 20,
    "ludb": ("count",) * 12,
    PTB_XL: ("mV",) * 12,
}
_N_SPLITS = {"geotec": 30, "ludb": 30}
_MOST_REDRAWS = 1000
_DEVELOPMENT_SHARE = 0.6


@dataclass(frozen=True)
class LabelSet:
    """One data set of the label curve.

    Parameters
    ----------
    name, title : name used in files, and title used in tables
    windows : windows of all subjects, with labels and subjects
    development : (N,), whether a window belongs to a development subject
    paper : the paper's settings for this data set, or for the most similar one of the paper
    n_splits : number of splits
    """

    name: str
    title: str
    windows: Windows
    development: NDArray[np.bool_]
    paper: Preset
    n_splits: int = 10

    def unlabelled(self) -> Windows:
        """Return the windows of the development subjects, from which features are learned."""
        return self.windows[np.flatnonzero(self.development)]

    def labelled(self, of_development: bool = False) -> Windows:
        """Return the windows to sample labels from and to score: the windows of the other subjects.

        Parameters
        ----------
        of_development : whether to return the windows of the development subjects instead, to choose settings
        """
        return self.windows[np.flatnonzero(self.development == of_development)]


class Half(NamedTuple):
    """One subject-wise split of the labelled windows: rows to sample labels from, and rows to score."""

    train: NDArray[np.intp]
    test: NDArray[np.intp]


def halves(label: NDArray[Any], subject: NDArray[Any], count: int) -> list[Half]:
    """Split subjects into random halves; a split in which one half lacks a class is sampled again.

    Parameters
    ----------
    label, subject : (N,), class and subject of each window
    count : number of splits; a smaller count gives the first of a larger one

    Examples
    --------
    >>> (train, test), = halves(np.array([0, 1] * 4), np.repeat(list("abcd"), 2), 1)
    >>> len(train), len(test)
    (4, 4)
    """
    people, classes = np.unique(subject), len(np.unique(label))
    found: list[Half] = []
    for number in range(count):
        for attempt in range(_MOST_REDRAWS):
            order = np.random.default_rng([number, attempt]).permutation(people)
            inside = np.isin(subject, order[: -(-len(people) // 2)])
            half = Half(np.flatnonzero(inside), np.flatnonzero(~inside))
            if all(len(np.unique(label[rows])) == classes for rows in half):
                found.append(half)
                break
        else:
            raise PolyadicError("no split of the subjects into halves was found in which both halves have all classes")
    return found


def drawn(label: NDArray[Any], rows: NDArray[np.intp], count: Count, seed: list[int]) -> NDArray[np.intp]:
    """Sample `count` rows of each class, or all rows of a class that has fewer.

    Examples
    --------
    >>> label = np.array([0, 0, 0, 1, 0])
    >>> np.bincount(label[drawn(label, np.arange(5), 2, [0, 0])]).tolist()
    [2, 1]
    """
    if count == "all":
        return rows
    rng = np.random.default_rng(seed)
    own = [rng.permutation(rows[label[rows] == code])[: int(count)] for code in np.unique(label[rows])]
    return np.sort(np.concatenate(own))


# ------------------------------------------------------------------------ sets


@lru_cache(maxsize=len(FILES) + 1)
def read_set(folder: Path, name: str) -> LabelSet:
    """Read a set from its file in a folder.

    Parameters
    ----------
    folder : folder with the files of `FILES`
    name : a name in `FILES`, `PTB_XL`, or "synthetic", which needs no file
    """
    if name == "synthetic":
        return _synthetic()
    path = folder / (FILES | {PTB_XL: "ptbxl100.npz"})[name]
    if not path.exists():
        raise DataError(f"{path.name} is not in {folder.name or folder}: --data must be the folder that contains it")
    with np.load(path) as file:
        arrays = dict(file)
    if name == "har":
        development = np.arange(len(arrays["X_train"]) + len(arrays["X_test"])) < len(arrays["X_train"])
        arrays |= {
            key: np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_test"]]) for key in ("X", "y", "subject")
        }
        arrays["recording"], arrays["start"] = np.concatenate([arrays["exp_pos_train"], arrays["exp_pos_test"]]).T
    if name == "sisfall":  # two subjects share one name of a recording
        arrays["recording"] = np.char.add(arrays["subject"], arrays["recording"])
    if name == "ludb":  # a person has one window, and those without a known heart axis (-1) are left out
        known = arrays["y"] >= 0
        arrays |= {key: arrays[key][known] for key in ("X", "y", "subject", "recording", "start")}
    if name == PTB_XL:  # a patient without an id is a person of their own
        patient, number = arrays["patient_id"], np.arange(len(arrays["X"]))
        arrays |= {"X": np.where(arrays["X"] < _INVALID, np.float32(np.nan), arrays["X"]), "y": arrays["sex"]}
        arrays |= {"subject": np.where(patient >= 0, patient, 10**8 + number), "recording": arrays["ecg_id"]}
        arrays |= {"start": np.zeros(len(number), int), "channels": arrays["leads"]}
    if name != "har":
        development = _share_of(arrays["subject"], _DEVELOPMENT_SHARE)
    windows = Windows(
        arrays["X"] * arrays["scale"].astype(np.float32) if "scale" in arrays else arrays["X"],
        fs=float(arrays["fs"]),
        units=_UNITS[name],
        label=arrays["y"].astype(int),
        subject=[str(subject) for subject in arrays["subject"]],
        recording=[str(recording) for recording in arrays["recording"]],
        start=arrays["start"],
        channels=[str(channel) for channel in arrays["channels"]],
    )
    return LabelSet(name, _TITLES[name], windows, development, _settings(name), _N_SPLITS.get(name, 10))


def _settings(name: str) -> Preset:
    """Return the paper's settings for a set, or for the most similar one of the paper."""
    har = preset("har")
    if name == "geotec":
        views = Compose([*har.augment.steps[:2], Rotate3D(((0, 1, 2), (3, 4, 5)))])
        frames = STFT(32, har.tensorize.hop, window="rectangular", parts="log_re_im", floor="channel")
        return Preset("geotec", 50.0, (6, 64), frames, views, har.parameters)
    if name == "sisfall":  # the triads of HAR; twice its hop, for as many frames in 4 s as in 2.56 s
        return replace(har, name=name, shape=(9, 200), tensorize=replace(har.tensorize, hop=4))
    if name == "eegmat":  # as Sleep-EDF, EEG at 100 Hz; frames and hop halved, because windows have 4 s, not 30 s
        sleep = preset("sleep_edf")
        return replace(sleep, name=name, shape=(20, 400), tensorize=replace(sleep.tensorize, n_fft=128, hop=16))
    if name == "ludb":  # as PTB-XL, 12-lead ECG of 10 s, with frames of the same duration at 250 Hz
        return preset("ptb_xl", 250.0)
    if name == PTB_XL:
        return preset("ptb_xl_100hz")
    return har


def _synthetic() -> LabelSet:
    """Return a small set for `--quick`."""
    windows = synthetic(160, n_channels=3, length=64, n_classes=2)
    views = Compose([Jitter(0.05), Bandpass([(2.0, 24.0), (4.0, 20.0)], 64.0)])
    parameters = {**PAPER_METHOD, "rank": 4, "max_sweeps": 2, "batch_size": 32}
    paper = Preset("synthetic", 64.0, (3, 64), STFT(n_fft=16, hop=8, floor="channel"), views, parameters)
    return LabelSet("synthetic", "synthetic", windows, _share_of(windows.subject, 0.5), paper, n_splits=2)


def _share_of(people: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Return which windows belong to a random share of the subjects, sampled with seed 0."""
    everyone = np.unique(people)
    inside: NDArray[np.bool_] = np.isin(
        people, np.random.default_rng(0).permutation(everyone)[: round(share * len(everyone))]
    )
    return inside
