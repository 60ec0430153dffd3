"""`python -m paper compare`: false positives and power of comparisons between groups.

Expressions are simulated, not fitted: each subject has a mean, and windows around it that are correlated in time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.results import provenance, stage_bar, write_result
from polyadic.explain import compare_subjects

DESIGNS: dict[str, dict[str, Any]] = {
    "equal groups": {"sizes": (15, 15)},
    "unequal groups": {"sizes": (10, 20)},
    "unequal windows": {"sizes": (10, 20), "windows": (20, 80)},
    "correlated windows": {"sizes": (10, 20), "windows": (20, 80), "memory": 0.9},
    "covariate": {"sizes": (10, 20), "windows": (20, 80), "memory": 0.9, "covariate": 1.0},
    "very unequal windows": {"sizes": (10, 20), "windows": (5, 80)},
    "three groups": {"sizes": (8, 10, 14), "windows": (10, 40, 80)},
    "pairs": {"sizes": (20, 20), "windows": (20, 80), "memory": 0.9, "paired": True},
}
"""Comparisons without a difference: subjects and windows of each group, correlation of successive windows, slope."""
_VALUES = 9
_PERMUTATIONS = 499
_CHANNELS, _BANDS = 16, 5


def simulate_null(
    repetitions: int,
    sizes: tuple[int, ...],
    windows: tuple[int, ...] = (40,),
    memory: float = 0.0,
    covariate: float = 0.0,
    paired: bool = False,
) -> float:
    """Return the family-wise error at 5 %: the share of comparisons without a difference that find one.

    Parameters
    ----------
    sizes : number of subjects in each group
    windows : number of windows of each subject, by group; one number for all
    memory : correlation of successive windows
    covariate : slope of a covariate whose mean differs between groups by one standard deviation
    paired : two conditions of the same subjects
    """
    random, found = np.random.default_rng(0), 0
    counts = windows if len(windows) == len(sizes) else windows * len(sizes)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    people = np.tile(np.arange(sizes[0]), len(sizes)) if paired else np.arange(len(codes))
    for repetition in range(repetitions):
        # All components have the level in common: they are correlated.
        subject = 0.5 * random.normal(size=(len(codes), 1)) + 0.5 * random.normal(size=(len(codes), _VALUES))
        values, nuisance = subject[people] + [_noise(random, counts[code], memory) for code in codes], None
        if covariate:
            nuisance = random.normal(size=(len(codes), 1)) + codes[:, None]
            values = values + covariate * nuisance
        found += _differs(values, codes, repetition, people if paired else None, nuisance)
    return found / repetitions


def _noise(random: np.random.Generator, count: int, memory: float) -> NDArray[np.float64]:
    """Return the mean over windows of an autoregressive process, (V,): only its variance matters, which is exact."""
    lags = np.arange(1, count)
    inflation = 1 + 2 * ((1 - lags / count) * memory**lags).sum()
    return np.asarray(random.normal(size=_VALUES) * 3 * np.sqrt(inflation / count))


def _differs(values: NDArray[Any], codes: Any, seed: int, people: Any = None, nuisance: Any = None) -> bool:
    return bool((compare_subjects(values, codes, people, nuisance, _PERMUTATIONS, seed, 0)["p"] <= 0.05).any())


def simulate_power(repetitions: int, effect: float, subjects: int = 20) -> dict[str, float]:
    """Return the power to find a difference in one band of four channels: of components, and of all band powers.

    The components are eight, one of which is the mean over these channels in this band; band powers are those of 16
    channels in 5 bands. Neighbouring channels and all bands of a subject are correlated.
    """
    random, hits = np.random.default_rng(1), {"components": 0, "band powers": 0}
    codes, places = np.repeat([0, 1], subjects), np.arange(_CHANNELS)
    mixing = np.linalg.cholesky(0.7 ** np.abs(places[:, None] - places))
    for repetition in range(repetitions):
        powers = np.einsum("cd,ndb->ncb", mixing, random.normal(size=(2 * subjects, _CHANNELS, _BANDS)))
        powers += random.normal(size=(2 * subjects, 1, 1))
        powers[codes == 1, :4, 2] += effect
        level = powers.mean(axis=(1, 2))
        parts = [powers[:, 4 * (number % 4) : 4 * (number % 4) + 4, 2 + number // 4] for number in range(8)]
        components = np.column_stack([level, *(part.mean(axis=1) - level for part in parts)])
        hits["components"] += _differs(components, codes, repetition)
        hits["band powers"] += _differs(powers.reshape(2 * subjects, -1), codes, repetition)
    return {name: count / repetitions for name, count in hits.items()}


def run(out: Path, repetitions: int = 2000) -> None:
    """Write simulations.json."""
    rows = []
    with stage_bar("simulating", unit="designs") as update:
        for number, (name, design) in enumerate(DESIGNS.items()):
            update(number, len(DESIGNS), name)
            rows.append({"design": name, **design, "family_wise_error": simulate_null(repetitions, **design)})
            print(f"{name}: family-wise error {100 * rows[-1]['family_wise_error']:.1f} %")
    power = [{"effect_sd": effect, **simulate_power(max(repetitions // 10, 1), effect)} for effect in (0.5, 0.75, 1.0)]
    about = {"repetitions": repetitions, "permutations": _PERMUTATIONS, "values": _VALUES}
    write_result(out / "simulations.json", {**provenance("cpu"), **about, "rows": rows, "power": power})
