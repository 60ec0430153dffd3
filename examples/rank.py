"""Choosing the rank.

How many components? Decompose a few windows at several ranks, and compare the gain of each step with that of noise.
Here the answer is known: four.
"""

import numpy as np

from polyadic import suggest_rank

# %%
# Tensors of channels × frequencies × frames, each a sum of four components of random strength, and noise.
rng = np.random.default_rng(0)
A, B, C = (rng.normal(size=(size, 4)) for size in (10, 17, 12))
strength = rng.lognormal(0, 0.5, (200, 4))
T = np.einsum("nr,ir,jr,kr->nijk", strength, A, B, C)
T += 0.5 * T.std() * rng.normal(size=T.shape)

# %%
# For windows of signals, give the `STFT` as `tensorize`; on the command line it is
# `polyadic rank my.store -o rank.png`.
found = suggest_rank(T, ranks=(1, 2, 3, 4, 5, 6, 8), restarts=3)
print(found)

# %%
# Left above: fitness of the data and of noise in its place. Right above: how much more each step gains than noise does;
# where that falls below two, the recommendation is. Below: whether single components may be read.
found.plot().savefig("rank.svg")
