"""Choosing the rank.

How many components replicate? Fit halves of the subjects at several ranks, and count the components that are found in
both. Here the answer is known: four.
"""

import numpy as np

from polyadic import plot, suggest_rank

# %%
# Tensors of channels × frequencies × frames from ten subjects. Each is a sum of four components of random strength and
# noise.
rng = np.random.default_rng(0)
A, B, C = (rng.normal(size=(size, 4)) for size in (10, 17, 12))
strength = rng.lognormal(0, 0.5, (200, 4))
T = np.einsum("nr,ir,jr,kr->nijk", strength, A, B, C)
T += 0.5 * T.std() * rng.normal(size=T.shape)
subject = np.repeat(np.arange(10), 20)

# %%
# For windows of signals, the default `STFT` is applied first. The command is `polyadic rank my.store -o rank.html`.
found = suggest_rank(T, ranks=(2, 4, 12), groups=subject, restarts=3)
print(found)

# %%
# The share of components that replicate, how well they match, and the fit. A larger rank fits better, but its
# additional components are found in only one half of the subjects.
plot.ranks(found).show()
