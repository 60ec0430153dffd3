"""Comparing baselines.

Is a decomposition worth it on your data? Compare it with something simpler first: five feature extractors, one probe,
three subject-wise splits.
"""

import numpy as np
import pandas as pd
import plotly.express as px

from polyadic import ATD, CPD
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.baselines import MiniRocket, PCAFeatures, StatisticsFeatures
from polyadic.data import split, synthetic
from polyadic.evaluate import Probe
from polyadic.presets import PAPER_METHOD
from polyadic.spectral import STFT

# %%
# Every method gets the same windows. `CPD` has the library's settings; `ATD` has the paper's, which need
# frames and views.
signals = synthetic(600)
frames = STFT(n_fft=32, hop=16, parts="log_re_im", floor="channel")
views = Compose([Jitter(0.01), Bandpass([(2, 24), (3, 22)], fs=64)])
methods = {
    "CPD": CPD(rank=8),
    "ATD, paper": ATD(
        8, tensorize=frames, augment=views, max_sweeps=10, tol=0, **PAPER_METHOD
    ),
    "PCA": PCAFeatures(8, tensorize=frames),
    "statistics": StatisticsFeatures(),
    "MiniRocket": MiniRocket(n_kernels=500),
}

# %%
# Features are learned without labels; a probe is trained on some subjects and tested on others.
accuracy = {name: [] for name in methods}
for seed in range(3):
    unlabelled, train, test = split(signals, protocol="subject", random_state=seed)
    for name, method in methods.items():
        method.fit(unlabelled)
        Z_train, Z_test = (
            np.asarray(method.transform(train)),
            np.asarray(method.transform(test)),
        )
        probe = Probe().fit(Z_train, train.label, groups=train.subject)
        accuracy[name].append(100 * probe.score(Z_test, test.label))

# %%
# Mean, minimum and maximum over the three splits. These signals are synthetic and not evidence for any method; see
# [the results](../results/README.md) on real recordings.
for name, scores in accuracy.items():
    print(
        f"{name:12s} {np.mean(scores):5.1f} %   ({np.min(scores):.1f} to {np.max(scores):.1f})"
    )
px.strip(
    pd.DataFrame(accuracy),
    orientation="h",
    labels={"value": "accuracy (%)", "variable": ""},
).show()
