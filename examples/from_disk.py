"""Training from disk.

For windows that do not fit into memory: a store is written recording by recording, a fit reads batches that a thread
prefetches, and the features are written to a file batch by batch.
"""

import tempfile
from pathlib import Path

import numpy as np

from polyadic import CPD, plot
from polyadic.data import Header, StoreWriter, WindowStore, synthetic

# %%
# Four days of 500 windows, one recording for each person and day. Only one recording is in memory at a time.
folder = Path(tempfile.mkdtemp())
signals = synthetic(2000)
channels = tuple(f"channel {number + 1}" for number in range(signals.shape[1]))
header = Header(
    signals.fs,
    channels,
    ("",) * len(channels),
    signals.shape[2],
    signals.classes,
)
with StoreWriter(folder / "days.store", header) as writer:
    for day in range(4):
        today = signals[day::4]
        for person in np.unique(today.subject):
            writer.add_windows(today.select(subject=person), f"{person}, day {day + 1}")
store = WindowStore(folder / "days.store")
print(store)

# %%
# The files of the store, which are verified by checksums:
for path in sorted((folder / "days.store").iterdir()):
    print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path.name}")

# %%
# The store is used like an array. A default fit reads it three times, whatever its size: for the floors, for mean and
# axes, and for the second moments. With a checkpoint, a killed fit can be resumed.
model = CPD()
model.fit(store, checkpoint=folder / "fit.checkpoint", resume=True)
print(
    f"{len(store):,} windows, {model.n_sweeps_} sweeps ({model.solver_}), {model.waited_:.2f} s waiting for the disk"
)

# %%
# Features of all windows, written batch by batch and memory-mapped:
Z = model.transform(store, out=folder / "features.npy")
print(type(Z).__name__, Z.shape, Z.dtype)

# %%
plot.components(model, store, count=3).show()
