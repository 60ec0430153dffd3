"""Choice of the default front end and readout, on the development subjects only.

The subjects are those of `paper.labels.people`. Features are learned from all their windows without
labels, by `CPD` of rank 32 with one setting changed at a time: the log floor (fraction of the signals' power, and the
channels that share one), the frame length. A third of the subjects is
the test set, in three rotations; labels are sampled from the others, ten per class or all. `Probe` is trained on these
labels and scored by balanced accuracy.

    python -m paper.benchmarks.front_end DATA docs/results/defaults/front-end.json [JOBS]     # also writes front-end.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import drawn, read_set
from paper.markdown import table
from paper.results import provenance, write_result
from paper.scoring import statistic_columns, unthreaded
from polyadic import CPD
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe
from polyadic.spectral import FLOOR_SHARE, STFT, recommended_stft

PARTS, DRAWS = 3, 3
COUNTS = (10, "all")
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
FRAMES = (0.32, 0.64, 1.28, 2.56)


def development(folder: Path) -> dict[str, tuple[Windows, np.ndarray]]:
    """Return the windows of the development subjects of each set, and the subject of each window."""
    sets = [read_set(folder, name) for name in ("har", "geotec")]
    return {one.title: (one.unlabelled(), one.unlabelled().subject.astype(int)) for one in sets}


def scored(model: Any, windows: Windows, who: np.ndarray) -> dict[str, float]:
    """Return the balanced accuracy on held-out subjects by labels per class, as a mean over parts and draws."""
    Z, y, block = np.asarray(model.transform(windows), np.float64), np.asarray(windows.label), statistic_columns(model)
    found: dict[str, list[float]] = {str(count): [] for count in COUNTS}
    for part, held_out in enumerate(np.array_split(np.random.default_rng(0).permutation(np.unique(who)), PARTS)):
        test = np.isin(who, held_out)
        for count in COUNTS:
            for draw in range(1 if count == "all" else DRAWS):
                rows = drawn(y, np.flatnonzero(~test), count, [part, draw])
                with unthreaded():
                    probe = Probe(unlabelled=False).fit(Z[rows], y[rows], groups=who[rows], statistic_columns=block)
                    found[str(count)].append(100 * balanced_accuracy_score(y[test], probe.predict(Z[test])))
    return {name: round(float(np.mean(values)), 2) for name, values in found.items()}


class Setting(NamedTuple):
    """One row of a table: the setting that is changed, its value, and the arguments."""

    what: str
    name: str
    stft: STFT
    parameters: Mapping[str, Any] = MappingProxyType({})


def settings(windows: Windows) -> list[Setting]:
    """Return all settings that are tried on one set."""
    length, stft = windows.shape[2], recommended_stft(windows.shape[2], windows.fs)
    X = torch.tensor(np.asarray(windows.X))
    groups = {"unit": windows.units, "all": (), "channel": tuple(map(str, range(windows.shape[1])))}
    rows = []
    for name, units in groups.items():
        if name == "all" and len(set(windows.units)) == 1:
            continue
        floor = np.array(replace(stft, mean=None).calibrated(X, units).floor) / FLOOR_SHARE
        rows += [
            Setting("floor", f"{share:g} by {name}", replace(stft, floor=tuple(share * floor))) for share in SHARES
        ]
    for seconds in FRAMES:
        n_fft = min(2 ** round(np.log2(seconds * float(windows.fs or 1.0))), 1 << length.bit_length() - 1)
        hop = max(n_fft // 8, -(-(length - n_fft) // 31), 1)
        rows.append(Setting("frames", f"{seconds:g} s", replace(stft, n_fft=n_fft, hop=hop)))
    rows.append(Setting("profiles", "non-negative", stft, {"nonnegative": True}))
    rows.append(Setting("profiles", "of either sign", stft, {"nonnegative": False}))
    rows.append(Setting("features", "readout", stft))
    rows.append(Setting("features", "coefficients", stft, {"readout": None}))
    return rows


def row(setting: Setting, windows: Windows, who: np.ndarray) -> dict[str, Any] | None:
    """Return one row of a table, or None if the set does not support these views."""
    try:
        model = CPD(tensorize=setting.stft, device="cpu", random_state=0, **setting.parameters).fit(windows)
    except PolyadicError as error:
        if "partner windows" in str(error) or "pairs" in str(error):
            return None
        raise
    found = {"what": setting.what, "setting": setting.name, **scored(model, windows, who)}
    print(found, flush=True)
    return found


def page(result: dict[str, Any]) -> str:
    """Return the tables in Markdown."""
    text = (
        "# How the default front end and readout were chosen\n\nBalanced accuracy in percent on held-out development "
        "subjects, with ten labels per class (mean of three parts of the subjects and three draws) and with all labels "
        "(mean of three parts). One setting is changed at a time.\n\n"
        f"Made by `{result['command']}` on {result['date']}, commit {result['commit']}, "
        f"{result['machine']['processor']}.\n"
    )
    sets = list(result["tables"])
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for name in sets:
        for row in result["tables"][name]:
            rows.setdefault(row["what"], {}).setdefault(row["setting"], {})[name] = row
    heads = ["setting", *(f"{name}, {count}" for name in sets for count in COUNTS)]
    for what, found in rows.items():
        lines = [
            [setting, *(f"{by[n][str(c)]:.1f}" if n in by else "–" for n in sets for c in COUNTS)]
            for setting, by in found.items()
        ]
        text += f"\n## {what.capitalize()}\n\n{table(heads, lines)}"
    return text


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    result: dict[str, Any] = {**provenance("cpu"), "tables": {}}
    result["command"] = "python -m paper.benchmarks.front_end DATA docs/results/defaults/front-end.json"
    sets, jobs = development(data), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    tasks = [(name, setting) for name in reversed(sets) for setting in settings(sets[name][0])]
    found = Parallel(n_jobs=jobs)(delayed(row)(setting, *sets[name]) for name, setting in tasks)
    for name in sets:
        rows = [made for (of, _), made in zip(tasks, found, strict=True) if of == name and made is not None]
        result["tables"][name] = rows
    write_result(out, result)
    out.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main()
