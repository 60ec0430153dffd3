"""Sleep stages from EDF.

A folder of EDF files with annotations is cut into epochs of 30 seconds; a model is fitted, and predicts the hypnogram
of an unseen night. Replace the synthetic folder by your own.
"""

import tempfile
from pathlib import Path

import edfio
import numpy as np

from polyadic import CPD, plot
from polyadic.data import folder
from polyadic.evaluate import WindowClassifier, labels_of

# %%
# Six short synthetic nights of two EEG channels and one EOG channel, each stage with its typical rhythms: alpha in
# wake, theta and spindles in N2, delta in N3, theta and eye movements in REM.
STAGES, FS = ("W", "N2", "N3", "R"), 64
RHYTHMS = {  # Hz and µV of two rhythms
    "W": (10, 30, 8, 5),
    "N2": (5, 30, 13, 18),
    "N3": (1.2, 110, 13, 8),
    "R": (6, 22, 0.7, 60),
}
NIGHT = np.repeat(
    ("W", "N2", "N3", "N2", "R", "N2", "N3", "R", "W"), (4, 8, 7, 4, 5, 6, 3, 7, 2)
)
root = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
time = np.arange(30 * FS) / FS


def rhythm(frequency: float, strength: float) -> np.ndarray:
    phase = 2 * np.pi * frequency * rng.normal(1, 0.03) * time + rng.uniform(0, 6)
    return strength * rng.lognormal(0, 0.5) * np.sin(phase)


def epoch(stage: str) -> np.ndarray:
    first, strong, second, weak = RHYTHMS[stage]
    slow, fast = rhythm(first, strong), rhythm(second, weak)
    eyes = (3 if stage == "R" else 0.3) * fast
    return np.stack([slow + 0.4 * fast, 0.6 * slow + fast, eyes]) + 45 * rng.normal(
        size=(3, len(time))
    )


for night in range(6):
    signal = np.concatenate([epoch(stage) for stage in NIGHT], axis=1).clip(-400, 400)
    names = ("EEG Fpz-Cz", "EEG Pz-Oz", "EOG")
    signals = [
        edfio.EdfSignal(row, FS, label=name)
        for row, name in zip(signal, names, strict=True)
    ]
    notes = [
        edfio.EdfAnnotation(30 * number, 30, stage) for number, stage in enumerate(NIGHT)
    ]
    edfio.Edf(signals, annotations=notes).write(root / f"night{night}.edf")

# %%
# Convert the folder to a store: windows on disk, with subject, start and stage. The command is
# `polyadic prepare folder recordings my.store --seconds 30 --class W --class N2 --class N3 --class R`.
store = folder(root, root / "my.store", seconds=30, classes=STAGES)
windows = store.windows
print(store)

# %%
# Train on five nights, and test on the sixth.
last = windows.subject == "night5"
features = CPD(rank=10).fit(windows[~last])
classifier = WindowClassifier(features).fit(windows[~last])
stages = classifier.predict(windows[last])
print(
    f"{np.mean(stages == labels_of(windows[last])):.0%} of the sixth night predicted correctly"
)

# %%
# The predicted and the annotated hypnogram, with the probability of each stage:
columns = [list(classifier.classes_).index(stage) for stage in STAGES]
probability = classifier.predict_proba(windows[last])[:, columns]
plot.timeline(windows[last], stages, probability).show()
