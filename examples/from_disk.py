"""Training from disk.

For windows that do not fit into memory: a store is written incrementally, a fit reads batches that a thread prefetches,
and the features are written to a file batch by batch.
"""

import tempfile
from pathlib import Path

import numpy as np

from polyadic import ATD, plot
from polyadic.data import Windows, WindowStore, synthetic
from polyadic.data.prepare import write_windows

# %%
# Four days of 500 windows, as in an ongoing study; `append` adds each day to the store.
folder = Path(tempfile.mkdtemp())
signals = synthetic(2000)
for day in range(4):
    today = signals[day::4]
    name = np.char.add(
        np.char.add("person ", today.subject.astype(str)), f", day {day + 1}"
    )
    windows = Windows(
        today.X, today.fs, label=today.label, subject=today.subject, recording=name
    )
    write_windows(windows, folder / "days.store", append=day > 0)
store = WindowStore(folder / "days.store")
print(store)

# %%
# The files of the store, which are verified by checksums:
for path in sorted((folder / "days.store").iterdir()):
    print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path.name}")

# %%
# The store is used like an array. A fit with default settings reads windows as small as these once for their second
# moments and once for the readout; larger ones are read in every sweep. With checkpoints, a killed fit can be resumed.
model = ATD()
model.fit(store, checkpoint=folder / "checkpoints", resume=True)
print(
    f"{len(store):,} windows, {model.n_sweeps_} sweeps ({model.solver_}), {model.waited_:.2f} s waiting for the disk"
)

# %%
# Features of all windows, written batch by batch and memory-mapped:
Z = model.transform(store, out=folder / "features.npy")
print(type(Z).__name__, Z.shape, Z.dtype)

# %%
plot.training(model).show()
