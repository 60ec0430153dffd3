"""Heartbeats from WFDB.

Records in PhysioNet's format. The model learns from windows of five seconds, and a map of their features separates fast
from slow heart rates without labels.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np

from polyadic import CPD, plot
from polyadic.data import folder

with warnings.catch_warnings():  # importing wfdb causes a pandas deprecation warning
    warnings.simplefilter("ignore")
    import wfdb

# %%
# Eight synthetic one-minute records with two leads, half of them with a fast heart rate. A beat is a sum of three bumps
# (P, QRS and T), which differ in width and in their weights in the two leads.
FS, SECONDS = 100, 60
root = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
time = np.arange(FS * SECONDS) / FS
BUMPS = ((-0.16, 0.025, 0.15, 0.10), (0.0, 0.012, 1.00, -0.60), (0.25, 0.050, 0.30, 0.20))
for record in range(8):
    rhythm, rate = ("fast", 1.9) if record % 2 else ("slow", 1.0)
    beats = np.cumsum(rng.normal(1 / rate, 0.03, SECONDS * 2))
    beats = beats[beats < SECONDS - 0.5]
    leads = 0.02 * rng.normal(size=(2, len(time))) + 0.1 * np.sin(2 * np.pi * 0.25 * time)
    for shift, width, *weights in BUMPS:
        bump = np.exp(-0.5 * ((time[:, None] - beats - shift) / width) ** 2).sum(axis=1)
        leads += np.outer(weights, bump)
    name = f"{rhythm}{record}"
    wfdb.wrsamp(
        name,
        FS,
        ["mV", "mV"],
        ["II", "V1"],
        leads.T,
        fmt=["16", "16"],
        write_dir=str(root),
    )

# %%
# Read a folder of records into a store of windows, which keeps the integers of the files.
windows = folder(root, root / "ecg.store", seconds=5).windows
model = CPD(rank=4).fit(windows)
print(windows)

# %%
# A map of all windows, coloured by record. No labels were used. Windows with slow heart rates lie on one side, windows
# with fast heart rates on the other.
Z = model.transform(windows)
plot.features(Z, windows, colour="recording").show()

# %%
# The windows with the smallest and the largest coefficient of the component that differs most between slow and fast
# heart rates. Features are for maps and classifiers; to interpret a component, use its coefficients:
x = model.coefficients(windows)
fast = np.char.startswith(windows.recording.astype(str), "fast")
apart = np.abs(x[fast].mean(axis=0) - x[~fast].mean(axis=0)) / x.std(axis=0)
r = int(apart.argmax())
plot.signals(windows, [int(x[:, r].argmin()), int(x[:, r].argmax())]).show()
