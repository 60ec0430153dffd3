"""Your own CSV files.

The files need only a header with the channel names, a time column in seconds, and one row per sample. Four lines turn
them into a table of features.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

from polyadic import CPD, plot
from polyadic.data import folder

# %%
# Three machines with a two-axis vibration sensor. The bearing of one of them wears out halfway through.
root = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
time = np.arange(0, 60, 0.01)
for machine in ("lathe", "mill", "press"):
    hum = np.sin(2 * np.pi * 12 * time)
    wear = (time > 30) * (machine == "mill") * np.sin(2 * np.pi * 33 * time)
    axes = np.stack([hum + 0.8 * wear, 0.6 * hum - 0.5 * wear]) + 0.3 * rng.normal(
        size=(2, len(time))
    )
    with (root / f"{machine}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["time", "x", "y"])
        table.writerows(zip(time.round(3), *axes.round(4), strict=True))
print("".join((root / "mill.csv").read_text().splitlines(keepends=True)[:4]))

# %%
# Read the folder as windows of two seconds. Each window has six features: four from the components, and the level of
# each axis.
windows = folder(root, root / "machines.store", seconds=2).windows
model = CPD(rank=4).fit(windows)
Z = model.transform(windows)
print(windows)

# %%
# Features with subject and start. `polyadic transform model.safetensors machines.store -o features.csv` writes such a
# table for a spreadsheet or pandas.
print(*model.get_feature_names_out(), sep=", ")
for row in range(42, 48):
    print(
        windows.subject[row],
        f"{windows.start[row] / windows.fs:5.0f} s",
        *(f"{value:8.1f}" for value in Z[row]),
    )

# %%
# Without labels, the windows of the mill form two groups in a map of the features:
plot.features(Z, windows, colour="subject").show()
