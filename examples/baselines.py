"""Comparing baselines.

Is a decomposition worth it on your data? Ask something simpler first. Five ways to make features, one probe, people
apart, three splits.
"""

import numpy as np
from sklearn.preprocessing import StandardScaler

from polyadic import ATD, SALS, plot
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.baselines import HandFeatures, MiniRocket, PCAFeatures
from polyadic.data import split, synthetic
from polyadic.evaluate import probe_accuracy
from polyadic.spectral import STFT

# %%
# Every method sees the same windows and, where it wants them, the same frames and views.
signals = synthetic(600)
frames = STFT(n_fft=32, hop=16, parts="amplitude")
views = Compose([Jitter(0.01), Bandpass([(2, 24), (3, 22)], fs=64)])
methods = {
    "ATD": ATD(rank=8, tensorize=frames, augment=views, max_sweeps=10),
    "SALS": SALS(rank=8, tensorize=frames, max_sweeps=10),
    "PCA": PCAFeatures(8, tensorize=frames),
    "hand-made": HandFeatures(),
    "MiniRocket": MiniRocket(n_kernels=500),
}

# %%
# Features are learned without labels, a logistic regression is trained on some people and tested on others.
accuracy = {name: [] for name in methods}
for seed in range(3):
    unlabelled, train, test = split(signals, protocol="subject", seed=seed)
    for name, method in methods.items():
        method.fit(unlabelled)
        Z_train, Z_test = (
            np.asarray(method.transform(train)),
            np.asarray(method.transform(test)),
        )
        scaler = StandardScaler().fit(Z_train)
        score = probe_accuracy(
            "plain",
            scaler.transform(Z_train),
            train.label,
            scaler.transform(Z_test),
            test.label,
        )
        accuracy[name].append(100 * score)

# %%
# Mean, lowest and highest of the three splits. ATD is ahead of SALS, for these signals were made so that views
# help; simple features are ahead of both, as they are [on the real data](../results/README.md) tried so far.
for name, scores in accuracy.items():
    print(
        f"{name:12s} {np.mean(scores):5.1f} %   ({np.min(scores):.1f} to {np.max(scores):.1f})"
    )
plot.comparison(
    {
        name: (np.mean(scores), np.min(scores), np.max(scores))
        for name, scores in accuracy.items()
    }
).show()
