"""How the front end and the readout of the default settings were chosen: on the development people alone.

The people are those of `benchmarks/probe.py`. Features are learned from all their windows without labels, `ATD` of
rank 32 with one thing changed at a time: the log floor (share of the signals' power, and which channels share one),
the length of the frames, the weight of the levels, whitening by views. A third of the people is the test set, three
times; labels are drawn from the others, ten per class or all. `Probe` is trained on them, and scored by balanced
accuracy.

    python benchmarks/front_end.py DATA docs/results/defaults/front-end.json [JOBS]     # also writes front-end.md
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from probe import balanced, drawn, some_of

from polyadic import ATD
from polyadic.augment import Jitter, Neighbour
from polyadic.data import Windows
from polyadic.evaluate import Probe
from polyadic.files import write_atomically
from polyadic.logistic import unthreaded
from polyadic.provenance import provenance
from polyadic.readout import Readout
from polyadic.spectral import recommended_stft
from polyadic.validated_probe import level_columns

PARTS, DRAWS = 3, 3
COUNTS = (10, "all")
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
FRAMES = (0.32, 0.64, 1.28, 2.56)


def development(folder: Path) -> dict[str, tuple[Windows, np.ndarray]]:
    """The windows of each set's development people, with units, and the people of the windows."""
    har, geotec, ptb = (np.load(folder / f"{name}.npz") for name in ("har", "geotec_phone", "ptbxl100"))
    patient = ptb["patient_id"].astype(np.int64)
    unknown = patient == -1
    patient[unknown] = patient.max() + 1 + np.arange(unknown.sum())
    some = np.isin(geotec["subject"], some_of(geotec["subject"], 14 / 23))
    first = np.isin(patient, some_of(patient, 0.7))
    inertial = ("m/s2",) * 3 + ("rad/s",) * 3
    return {
        "HAR": _windows(
            har["X_train"], har["y_train"], har["subject_train"], 50.0, ("g",) * 3 + ("rad/s",) * 3 + ("g",) * 3,
            *har["exp_pos_train"].T,
        ),
        "GeoTec phone": _windows(
            geotec["X"][some], geotec["y"][some], geotec["subject"][some], 50.0, inertial, geotec["recording"][some],
            geotec["start"][some],
        ),
        "PTB-XL sex": _windows(ptb["X"][first], ptb["sex"][first], patient[first], 100.0, ("mV",) * 12),
    }  # fmt: skip


def _windows(
    X: np.ndarray,
    y: np.ndarray,
    who: np.ndarray,
    fs: float,
    units: tuple[str, ...],
    recording: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> tuple[Windows, np.ndarray]:
    place = {} if recording is None else {"recording": [str(name) for name in recording], "start": start}
    return Windows(X, fs=fs, units=units, label=y.astype(int), subject=[str(name) for name in who], **place), who


def scored(model: Any, windows: Windows, who: np.ndarray, levels: Any = "auto") -> dict[str, float]:
    """Balanced accuracy on held-out people by labels per class: mean over parts and draws."""
    Z, y, block = np.asarray(model.transform(windows), np.float64), np.asarray(windows.label), level_columns(model)
    found: dict[str, list[float]] = {str(count): [] for count in COUNTS}
    for part, held_out in enumerate(np.array_split(np.random.default_rng(0).permutation(np.unique(who)), PARTS)):
        test = np.isin(who, held_out)
        for count in COUNTS:
            for draw in range(1 if count == "all" else DRAWS):
                rows = drawn(y, np.flatnonzero(~test), count, np.random.default_rng([part, draw]))
                with unthreaded():
                    probe = Probe(levels=levels).fit(Z[rows], y[rows], groups=who[rows], level_columns=block)
                    found[str(count)].append(balanced(y[test], probe.predict(Z[test])))
    return {name: round(float(np.mean(values)), 2) for name, values in found.items()}


def fitted(windows: Windows, stft: Any, **parameters: Any) -> ATD:
    return ATD(tensorize=stft, device="cpu", random_state=0, **parameters).fit(windows)


def tables(windows: Windows, who: np.ndarray) -> list[dict[str, Any]]:
    """All settings of one set, and what they give."""
    rows: list[dict[str, Any]] = []

    def add(what: str, setting: str, scores: dict[str, float]) -> None:
        rows.append({"what": what, "setting": setting, **scores})
        print(rows[-1], flush=True)

    stft = recommended_stft(windows.shape[2], windows.fs)
    X = torch.as_tensor(np.asarray(windows.X))
    groups = {"unit": windows.units, "all": (), "channel": tuple(map(str, range(windows.shape[1])))}
    for name, units in groups.items():
        if name == "all" and len(set(windows.units)) == 1:
            continue
        floor = np.array(replace(stft, mean=None).calibrated(X, units).floor)
        for share in SHARES:
            add(
                "floor",
                f"{share:g} by {name}",
                scored(fitted(windows, replace(stft, floor=share / 0.1 * floor)), windows, who),
            )
    for seconds in FRAMES:
        n_fft = min(2 ** round(np.log2(seconds * windows.fs)), 1 << windows.shape[2].bit_length() - 1)
        frames = replace(recommended_stft(4096, seconds / 1.28 * windows.fs), n_fft=n_fft, hop=max(1, n_fft // 8))
        hop = max(n_fft // 8, -(-(windows.shape[2] - n_fft) // 31))
        add("frames", f"{n_fft} samples", scored(fitted(windows, replace(frames, hop=max(hop, 1))), windows, who))
    model = fitted(windows, stft)
    for readout, levels in (
        *((Readout(levels=weight), used) for weight in (0.1, 0.25, 0.5, 1.0) for used in ("auto", True)),
        (Readout(levels=0), "auto"),
        *((Readout(whiten=Jitter(0.05), shrinkage=shrinkage), "auto") for shrinkage in (0.3, 1.0, 3.0)),
        *((Readout(whiten=Neighbour(), shrinkage=shrinkage), "auto") for shrinkage in (0.3, 1.0, 3.0)),
    ):
        if isinstance(readout.whiten, Neighbour) and windows.index.names == ("",):
            continue
        try:
            model.fit_readout(windows, readout)
        except Exception as error:
            print(f"{readout}: {error}", flush=True)
            continue
        whiten = "" if readout.whiten is None else f", {type(readout.whiten).__name__}, shrinkage {readout.shrinkage:g}"
        used = "" if levels == "auto" else ", always used"
        add("readout", f"levels {readout.levels:g}{used}{whiten}", scored(model, windows, who, levels))
    for nonnegative in (True, False):
        add(
            "profiles",
            "non-negative" if nonnegative else "signed",
            scored(fitted(windows, stft, nonnegative=nonnegative), windows, who),
        )
    add("profiles", "coefficients", scored(fitted(windows, stft, readout=None), windows, who))
    return rows


def page(result: dict[str, Any]) -> str:
    """The tables for a reader."""
    lines = [
        "# How the default front end and readout were chosen",
        "",
        "Balanced accuracy in percent on held-out development people, with ten labels per class (mean of three parts "
        "of the people and three draws) and with all labels (mean of three parts). One thing is changed at a time.",
        "",
        f"Made by `{result['command']}` on {result['date']}, commit {result['commit']}, "
        f"{result['machine']['processor']}.",
    ]
    sets = list(result["tables"])
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name in sets:
        for row in result["tables"][name]:
            rows.setdefault((row["what"], row["setting"]), {})[name] = row
    for what in dict.fromkeys(kind for kind, _ in rows):
        lines += [
            "",
            f"## {what.capitalize()}",
            "",
            "| setting | " + " | ".join(f"{n}, 10 | {n}, all" for n in sets) + " |",
        ]
        lines += ["|---|" + "---:|" * (2 * len(sets))]
        for (kind, setting), found in rows.items():
            if kind == what:
                cells = [f"{found[n][count]:.1f}" if n in found else "–" for n in sets for count in ("10", "all")]
                lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    result: dict[str, Any] = {**provenance("cpu"), "tables": {}}
    result["command"] = "python benchmarks/front_end.py DATA docs/results/defaults/front-end.json"
    sets, jobs = development(data), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    found = Parallel(n_jobs=jobs)(delayed(tables)(*windows) for windows in sets.values())
    result["tables"] = dict(zip(sets, found, strict=True))
    write_atomically(out, (json.dumps(result, indent=1) + "\n").encode())
    write_atomically(out.with_suffix(".md"), page(result).encode())


if __name__ == "__main__":
    main()
