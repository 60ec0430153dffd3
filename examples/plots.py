"""Every plot of the report.

The figures of the report are functions of `polyadic.plot`. Each returns a plotly figure, to show, change or save; for a
paper, `figure.write_image("figure.pdf")` writes PDF, SVG or PNG (needs Chrome or Chromium).
"""

import numpy as np

from polyadic import CPD, plot
from polyadic.data import Windows
from polyadic.evaluate import cross_validate
from polyadic.explain import expression, level

# %%
# Synthetic nights of eight subjects in four stages: occipital alpha in W, central spindles in N2, frontal slow waves in
# N3. Windows have a subject, a recording and a start.
channels, stages, fs = ["Fz", "Cz", "Pz", "O1", "O2", "EMG"], ("W", "N2", "N3", "R"), 64.0
rhythms = {
    "W": (10, 20, "O1 O2"),
    "N2": (13.5, 20, "Cz"),
    "N3": (1.5, 60, "Fz Cz"),
}  # Hz, µV, channels
night = ["W", "W", "N2", "N2", "N3", "N3", "N2", "R", "W", "N2", "N3", "R"] * 2
rng = np.random.default_rng(0)
time, people = np.arange(512) / fs, 8
X = 10 * rng.normal(size=(people * len(night), len(channels), len(time)))
for window, stage in zip(X, night * people, strict=True):
    if stage in rhythms:
        frequency, strength, where = rhythms[stage]
        wave = np.sin(2 * np.pi * rng.normal(frequency, 0.2) * time + rng.uniform(0, 6))
        for name in where.split():
            window[channels.index(name)] += strength * rng.lognormal(0, 0.5) * wave
subject = np.repeat([f"person {n + 1}" for n in range(people)], len(night))
start = np.tile(np.arange(len(night)) * 512, people)
label = [stages.index(stage) for stage in night * people]
windows = Windows(
    X,
    fs,
    channels=channels,
    units=["µV"] * 6,
    subject=subject,
    recording=subject,
    start=start,
    label=label,
    classes=stages,
)
model = CPD(rank=4).fit(windows)
plot.components(model, windows).show()

# %%
# The profiles of one component: where, at which frequencies, and when. Components are numbered from 0 in code and from
# 1 in figures.
alpha = int(np.argmax([column[3] for column in model.factors_[0].T]))
plot.profile(model, alpha, 0, windows).show()
plot.profile(model, alpha, 1, windows).show()
plot.profile(model, alpha, 2, windows).show()

# %%
# The classes in which it occurs: the component's expression in dB, relative to the level of each window.
relative = expression(model, windows, relative=True)[:, alpha]
plot.class_means(relative, windows.label, windows.classes).show()

# %%
# The windows in which it is strongest, sample by sample. The label of a channel gives the size of half its row.
strongest = np.argsort(-relative)
plot.signals(windows, strongest[:2]).show()

# %%
# Of long windows, a part is easier to read: here 128 samples around the hundredth.
plot.signals(windows, strongest[:1], points=128, centre=100).show()

# %%
# Accuracy on new subjects: cross-validation by subject, the confusion matrix, and the score of each subject.
result = cross_validate(model, windows, transductive=True)
plot.confusion(result.confusion, result.classes).show()
scores = {name: row["balanced_accuracy"] for name, row in result.per_subject.items()}
plot.subjects(scores, result.chance).show()

# %%
# The night of one subject: stages predicted by a probe trained on the other subjects, true stages, and components.
one = subject == "person 3"
strengths = np.column_stack(
    [level(model, windows), expression(model, windows, relative=True)]
)  # in dB
names = ["level", *(f"component {number + 1}" for number in range(4))]
predicted = result.predicted[0][one[result.rows]]
plot.timeline(windows[one], predicted, strengths=strengths[one], names=names).show()

# %%
# A map of the features.
plot.features(model.transform(windows), windows).show()
