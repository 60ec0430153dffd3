"""Your own CSV files.

A header with the names of the channels, a column of seconds, one row per sample: this is all that a folder of tables
needs. From there to a table of features takes four lines.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

from polyadic import ATD, plot
from polyadic.data import datasets

# %%
# Three machines with a two-axis vibration sensor. The bearing of one of them wears out half-way through.
folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
time = np.arange(0, 60, 0.01)
for machine in ("lathe", "mill", "press"):
    hum = np.sin(2 * np.pi * 12 * time)
    wear = (time > 30) * (machine == "mill") * np.sin(2 * np.pi * 33 * time)
    axes = np.stack([hum + 0.8 * wear, 0.6 * hum - 0.5 * wear]) + 0.3 * rng.normal(
        size=(2, len(time))
    )
    with (folder / f"{machine}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["time", "x", "y"])
        table.writerows(zip(time.round(3), *axes.round(4), strict=True))
print("".join((folder / "mill.csv").read_text().splitlines(keepends=True)[:4]))

# %%
# The folder becomes windows of two seconds, and the windows become six features each: four of the components, and the
# level of each axis.
windows = datasets.folder(folder, folder / "machines.store", seconds=2).windows
model = ATD(rank=4).fit(windows)
Z = model.transform(windows)
print(windows)

# %%
# With subject, recording and start, ready for a spreadsheet or pandas (on the command line:
# `polyadic transform model.safetensors machines.store -o features.csv`):
print(*model.get_feature_names_out(), sep=", ")
for row in range(42, 48):
    print(
        windows.subject[row],
        f"{windows.start[row] / windows.fs:5.0f} s",
        *(f"{value:8.1f}" for value in Z[row]),
    )

# %%
# Without any label, the windows of the mill form two groups in the first two features, which vary most:
plot.features(Z[:, :2], windows, colour="subject").show()
