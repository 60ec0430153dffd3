"""Reading components.

What a component of a tensor model shows: which electrodes, which frequencies, when, and in which condition.
"""

import numpy as np
from sklearn.base import clone

from polyadic import CPD, match, plot
from polyadic.data import Windows
from polyadic.explain import expression
from polyadic.explain.electrodes import position

# %%
# Synthetic EEG: occipital alpha that is strong with closed eyes, a mu rhythm over the left motor cortex that disappears
# when the right hand moves, and frontal theta, unrelated to the conditions.
channels = ["Fp1", "Fp2", "Fz", "C3", "Cz", "C4", "Pz", "O1", "O2"]
conditions = ("eyes open", "eyes closed", "right hand")
sources = (  # position on the head, Hz, strength in each condition, centre in s
    ((0, -0.75), 10, (1, 5, 1), 1.4),
    ((-0.45, 0.05), 14, (4, 4, 0.7), 0.5),
    ((0, 0.6), 6, (3, 3, 3), 1.0),
)
rng = np.random.default_rng(0)
n, fs = 240, 128.0
time, condition = np.arange(256) / fs, np.arange(n) % 3
places = np.array([position(name) for name in channels])
X = 0.6 * rng.normal(size=(n, len(channels), len(time)))
for place, frequency, strengths, middle in sources:
    head = np.exp(-np.sum((places - place) ** 2, axis=1) / 0.15)
    strength = np.array(strengths)[condition] * rng.lognormal(0, 0.3, n)
    burst = np.exp(-0.5 * ((time - middle) / 0.3) ** 2)
    phase = rng.uniform(0, 2 * np.pi, (n, 1))
    wave = strength[:, None] * burst * np.sin(2 * np.pi * frequency * time + phase)
    X += head[:, None] * wave[:, None, :]
windows = Windows(X, fs, channels=channels, label=condition, classes=conditions)

# %%
# The best of ten starts with default settings. Each row below is one component: electrodes, frequencies, time. The mean
# spectrum is subtracted, so components describe what varies between windows: alpha most of all, and mu.
model = CPD(rank=3, restarts=10).fit(windows)
plot.components(model, windows).show()

# %%
# With known electrode names, a component is a scalp map. This one peaks where alpha was simulated:
frequencies = model.axes()[1].positions
peaks = [float(frequencies[column.argmax()]) for column in model.factors_[1].T]
alpha = int(np.abs(np.array(peaks) - 10).argmin())
print(f"peaks of the components: {', '.join(f'{peak:g} Hz' for peak in peaks)}")
plot.profile(model, alpha, 0, windows).show()

# %%
# How strong it is in each condition: its expression in dB, relative to the level of each window.
relative = expression(model, windows, relative=True)
plot.class_means(relative[:, alpha], windows.label, windows.classes).show()

# %%
# Before interpreting a component, refit with another seed and check whether it is found again. Identical components
# have a match of 1.
again = clone(model).set_params(random_state=1).fit(windows)
print(match(model, again))
