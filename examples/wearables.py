"""Activities from a wearable.

A motion sensor on the belt, five activities, thirty subjects, and labels for a few of them. Features are learned from
windows without labels, and the probe is tested on new subjects.
"""

import numpy as np
from sklearn.metrics import confusion_matrix

from polyadic import CPD, plot
from polyadic.data import Windows, split
from polyadic.evaluate import WindowClassifier, labels_of

# %%
# Synthetic signals at 50 Hz: gravity, which separates lying from upright, and steps whose frequency and height depend
# on the activity and the subject.
activities = ("walk", "run", "stairs", "sit", "lie")
fs, length = 50.0, 128
rng = np.random.default_rng(0)
n = 1200
activity, person = rng.integers(len(activities), size=n), rng.integers(30, size=n)
tempo = (
    np.array([1.8, 2.8, 1.3, 0, 0])[activity]
    * rng.normal(1, 0.08, 30)[person]
    * rng.normal(1, 0.04, n)
)
height = np.array([0.30, 0.90, 0.35, 0, 0])[activity] * rng.normal(1, 0.20, 30)[person]
upright = np.where(activities.index("lie") == activity, 0.1, 1.0)
time = np.arange(length) / fs
phase = rng.uniform(0, 2 * np.pi, (n, 1))
step = height[:, None] * np.sin(2 * np.pi * tempo[:, None] * time + phase)
hop = height[:, None] * np.sin(4 * np.pi * tempo[:, None] * time + 2 * phase)
sway = 0.5 * height[:, None] * np.sin(np.pi * tempo[:, None] * time + phase / 2)
X = np.stack(
    [
        sway,
        upright[:, None] + 0.7 * step + 0.3 * hop,
        np.sqrt(1.01 - upright[:, None] ** 2) + 0.4 * hop,
    ],
    1,
)
X += 0.08 * rng.normal(size=X.shape)
windows = Windows(
    X,
    fs,
    channels=["side", "up", "front"],
    label=activity,
    classes=activities,
    subject=person,
)

# %%
# Most subjects stay unlabelled; of the others, half train the probe and half test it. No subject is in two parts.
unlabelled, train, test = split(windows, protocol="subject", random_state=0)
print(
    f"{len(unlabelled)} windows without labels, {len(train)} to train the probe, {len(test)} to test it"
)

# %%
# Twelve components with default settings, and statistics, such as the means of the axes, which show the orientation of
# the sensor.
features = CPD(rank=12).fit(unlabelled)
print(*features.get_feature_names_out())
classifier = WindowClassifier(features).fit(train)
predicted = classifier.predict(test)
print(
    f"{np.mean(predicted == labels_of(test)):.0%} of the test windows are classified correctly"
)

# %%
# Confusion matrix:
counts = confusion_matrix(labels_of(test), predicted, labels=activities)
plot.confusion(counts, activities).show()
