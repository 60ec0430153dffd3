"""Comparison of groups of subjects, or of two conditions of the same subjects: level and relative expression.

Windows of one subject are not independent, so each subject counts once, by the mean over its windows. Subjects are
permuted (for pairs, signs are flipped), and the largest statistic over level and components in each permutation
controls the family-wise error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import check_integer
from polyadic.data.labels import known_labels
from polyadic.errors import PolyadicError
from polyadic.evaluate.classifier import labels_of
from polyadic.explain.expression import alike, expression, level, shown
from polyadic.explain.spectra import place

__all__ = ["Comparison", "compare", "compare_subjects"]

_FEWEST = 5  # minimum number of subjects in each group for a test
_AT_A_TIME = 500
_LEVEL, _MOST_NAMED = 0.05, 4
_NEGLIGIBLE = 0.1  # dB, 2 % of the power: the smallest difference that the summary names
_MORE = 9  # further permutations, times as many, for a p value near 5 %
_TINY = float(np.finfo(np.float64).tiny)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`. The first of the V values is the level, the others are relative expressions."""

    groups: tuple[str, ...]  # names of the k groups or conditions; the first is the reference
    n_subjects: tuple[int, ...]  # number of subjects in each; for pairs, the number of pairs
    n_windows: int
    names: tuple[str, ...]  # (V,), "level", "component 1", …
    where: tuple[str, ...]  # (V,), channels and frequencies of each component, "" for the level
    mean: _Floats  # (k, V), mean over the subjects of each group, in dB
    effect: _Floats  # (k − 1, V), Hedges' g of each other group against the reference
    interval: _Floats  # (2, k − 1, V), 95 % bootstrap interval of the effect, over subjects; NaN as the statistic
    interval_db: _Floats  # (2, k − 1, V), the same of the difference in dB
    statistic: _Floats  # (V,), Welch's t (for two groups or pairs) or F; NaN with fewer than 5 subjects in a group
    p: _Floats  # (V,), family-wise error over all V values, from permutations of subjects; NaN as the statistic
    paired: bool = False  # whether conditions are compared within subjects
    covariates: tuple[str, ...] = ()
    alike: tuple[tuple[int, int], ...] = ()  # components (from 1) whose relative expressions correlate above 0.8

    @property
    def difference(self) -> _Floats:
        """Difference of each other group from the reference, in dB: (k − 1, V)."""
        return np.asarray(self.mean[1:] - self.mean[0])

    @property
    def tested(self) -> bool:
        """Whether there are enough subjects for tests and intervals."""
        return not bool(np.isnan(self.p).all())

    def words(self) -> str:
        """Return the result in sentences: number of subjects, and which rows differ, the largest difference first.

        Examples
        --------
        >>> g, p, ends = np.array([[0.9]]), np.array([0.01]), np.array([[[1.0]], [[3.0]]])
        >>> numbers = (np.array([[0], [2]]), g, ends, ends, p, p)
        >>> print(Comparison(("rest", "task"), (9, 9), 90, ("level",), ("",), *numbers).words())
        9 rest, 9 task subjects. With a family-wise error of 5 %: level higher in task (+2.00 dB, 95 % interval +1.00 to
        +3.00, g +0.90, p 0.0100).
        """
        counts = ", ".join(f"{count} {name}" for name, count in zip(self.groups, self.n_subjects, strict=True))
        told = f"{self.n_subjects[0]} pairs." if self.paired else f"{counts} subjects."
        if not self.tested:
            return f"{told} Too few for a test or an interval: the table has effect sizes only, which are no findings."
        sizes = np.abs(self.difference).max(axis=0)
        found = [row for row in np.argsort(-sizes, kind="stable").tolist() if self.p[row] <= _LEVEL]
        notable = [row for row in found if sizes[row] >= _NEGLIGIBLE]
        phrases = [self._phrase(row) for row in notable[:_MOST_NAMED]]
        if len(notable) > _MOST_NAMED:
            phrases.append(f"{len(notable) - _MOST_NAMED} more")
        if len(found) > len(notable):
            phrases.append(f"{len(found) - len(notable)} below {_NEGLIGIBLE} dB, negligible in size")
        told += f" With a family-wise error of 5 %: {'; '.join(phrases) or 'no difference'}."
        if any(found):  # of components
            told += (
                " Components are relative to the level, so they are not independent: a change in one shifts the others."
            )
        return told + (
            " Some components vary together and are not separate findings." if self.alike and notable else ""
        )

    def _phrase(self, row: int) -> str:
        """Say where a row is, and how the group that differs most from the reference does so."""
        group = np.abs(self.difference[:, row]).argmax()
        size, effect, low, high = (values[group, row] for values in (self.difference, self.effect, *self.interval_db))
        numbers = f"({size:+.2f} dB, 95 % interval {low:+.2f} to {high:+.2f}, g {effect:+.2f}, p {self.p[row]:.4f})"
        place = f"{self._titles[row]}," if self.where[row] else self._titles[row]
        direction = "higher" if size > 0 else "lower"
        return f"{place} {direction} in {self.groups[1 + group]} {numbers.replace('-', '−')}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON, with None for tests that were not made."""
        tested = self.tested
        rows = [
            {
                "name": name,
                "where": where,
                "mean_db": self.mean[:, row].tolist(),
                "difference_db": self.difference[:, row].tolist(),
                "difference_interval_95": self.interval_db[:, :, row].T.tolist() if tested else None,
                "hedges_g": self.effect[:, row].tolist(),
                "interval_95": self.interval[:, :, row].T.tolist() if tested else None,
                "statistic": float(self.statistic[row]) if tested else None,
                "p_family_wise": float(self.p[row]) if tested else None,
            }
            for row, (name, where) in enumerate(zip(self.names, self.where, strict=True))
        ]
        about = {"groups": self.groups, "subjects": self.n_subjects, "windows": self.n_windows, "paired": self.paired}
        return {**about, "covariates": self.covariates, "alike": self.alike, "rows": rows}

    @property
    def _titles(self) -> list[str]:
        """Names of the rows, with what is known of where they are."""
        return [", ".join(filter(None, row)) for row in zip(self.names, self.where, strict=True)]

    def __repr__(self) -> str:
        import pandas as pd

        columns = dict(zip(self.groups, self.mean, strict=True))
        sizes = zip(self.groups[1:], self.difference, *self.interval_db, self.effect, strict=True)
        for name, difference, low, high, effect in sizes:
            columns |= {f"{name} − {self.groups[0]}": difference}
            columns |= ({f"low {name}": low, f"high {name}": high} if self.tested else {}) | {f"g {name}": effect}
        if self.tested:
            columns |= {"F" if len(self.groups) > 2 else "t": self.statistic, "p": self.p}
        formats = {"p": "{:.4f}".format}
        table = pd.DataFrame(columns, self._titles).to_string(float_format="{:z.2f}".format, formatters=formats)
        notes = ["components are relative to the level, g is Hedges' g"]
        if self.tested:
            notes.append("low and high are a 95 % interval of the difference for each row alone, p is family-wise")
        if self.covariates:
            notes.append(f"adjusted for {', '.join(self.covariates)} (Freedman-Lane permutations, approximate)")
        if self.alike:
            pairs = ", ".join(f"{first} and {second}" for first, second in self.alike)
            notes.append(f"components that correlate above 0.8: {pairs}")
        return (
            f"{self.words()}\n{table}\nMeans and differences in dB over {self.n_windows:,} windows; {'; '.join(notes)}."
        )


def compare(
    model: Any,
    X: Any,
    by: ArrayLike | None = None,
    *,
    subject: ArrayLike | None = None,
    paired: bool = False,
    covariates: Mapping[str, ArrayLike] | None = None,
    permutations: int = 10_000,
    random_state: int = 0,
) -> Comparison:
    """Compare level and relative expression between groups of subjects, or between two conditions of each subject.

    Parameters
    ----------
    model, X : as for `expression`. If no component replicates, the level alone is compared
    by : (N,), the group or condition of each window; by default the labels of X. Windows without one are left out
    subject : (N,), the subject of each window; by default those of X
    paired : compare two conditions within the subjects that have both
    covariates : values (N,) by name, such as age, averaged over the windows of each subject; not for pairs
    permutations : number of permutations of the subjects; ten times as many if a p value is near 5 %
    random_state : seed of these and of the bootstrap

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(120, n_channels=2)
    >>> group = np.where(np.unique(windows.subject, return_inverse=True)[1] % 2, "patient", "control")
    >>> found = compare(CPD(rank=2).fit(windows), windows, group, permutations=100)
    >>> found.groups, found.names, found.effect.shape
    (('control', 'patient'), ('level', 'component 1', 'component 2'), (1, 3))
    """
    X = getattr(X, "windows", X)  # of a store
    given = getattr(X, "subject", None) if subject is None else subject
    if given is None:
        raise PolyadicError("subjects are compared, but the subject of each window is not known: pass subject")
    if by is None and hasattr(X, "classes"):
        by = labels_of(X)
    count = len(np.asarray(given))
    rows = np.flatnonzero(known_labels(by, count, "by")[0] & known_labels(given, count, "subject")[0])
    if not len(rows):
        raise PolyadicError("by must name groups of windows with a known subject, but there are no such windows")
    relative = expression(model, X, relative=True)[rows]
    values = np.column_stack([level(model, X)[rows], relative])
    group, subjects = np.asarray(by).astype(str)[rows], np.asarray(given).astype(str)[rows]
    averaged, codes, people, names = _subject_means(values, group, subjects)
    nuisance = None
    if covariates:
        columns = np.column_stack([np.asarray(column, np.float64)[rows] for column in covariates.values()])
        nuisance = _subject_means(columns, group, subjects)[0]
        if not np.isfinite(nuisance).all():
            raise PolyadicError(f"covariates must be known for all subjects, but some of {[*covariates]} are missing")
    if not paired and len(set(people.tolist())) < len(people):
        raise PolyadicError(
            "some subjects have windows in several groups: use --paired (paired=True) for two conditions"
        )
    axes, factors = model.axes(X if hasattr(X, "fs") else None)[:2], shown(model).factors_
    places = [
        ", ".join(place(axis, factor[:, r], axes) for axis, factor in zip(axes, factors, strict=False))
        for r in range(relative.shape[1])
    ]
    found = compare_subjects(averaged, codes, people if paired else None, nuisance, permutations, random_state)
    return Comparison(
        groups=tuple(names),
        n_windows=len(rows),
        names=("level", *(f"component {number + 1}" for number in range(relative.shape[1]))),
        where=("", *places),
        paired=paired,
        covariates=tuple(covariates or ()),
        alike=tuple(alike(relative)),
        **found,
    )


def compare_subjects(
    values: _Floats,
    codes: NDArray[np.intp],
    pairs: NDArray[Any] | None = None,
    covariates: _Floats | None = None,
    permutations: int = 10_000,
    random_state: int = 0,
    bootstrap: int = 2000,
) -> dict[str, Any]:
    """Compare values of subjects: what a `Comparison` has, from `n_subjects` to `p`.

    Parameters
    ----------
    values : (n, V), one row per subject or, for pairs, per subject and condition
    codes : (n,), the group or condition of each row, from 0
    pairs : (n,), the subject of each row, to compare two conditions within subjects
    covariates : (n, c)
    permutations : number of permutations of the subjects; ten times as many if a p value is near 5 %
    bootstrap : number of bootstrap samples; 0 for no intervals
    random_state : seed of both

    Examples
    --------
    >>> values = np.random.default_rng(0).normal(size=(40, 3)) + np.repeat([[0.0], [3.0]], 20, axis=0)
    >>> compare_subjects(values, np.repeat([0, 1], 20), permutations=999)["p"]
    array([0.001, 0.001, 0.001])
    """
    check_integer("permutations", permutations, 1)
    random, count = np.random.default_rng(random_state), int(codes.max()) + 1
    if count < 2 or np.bincount(codes).min() < 2:
        raise PolyadicError(
            f"a comparison needs at least two groups of at least two subjects, but there are {count} groups, of "
            f"{np.bincount(codes).min()} or more: group a number such as age, or use it as a covariate"
        )
    if pairs is not None:
        if count != 2 or covariates is not None:
            raise PolyadicError(
                f"--paired (paired=True) compares two conditions, without covariates, but there are {count}"
            )
        values, codes = _complete_pairs(values, codes, pairs)
    sizes = tuple(np.bincount(codes).tolist())
    nuisance = np.zeros((len(values), 0)) if covariates is None else covariates - covariates.mean(axis=0)
    slopes, scales = _within_groups(values, codes, nuisance)
    adjusted = values - nuisance @ slopes
    statistic = p = np.full(values.shape[1], np.nan)
    if min(sizes) < _FEWEST:
        bootstrap = 0
    else:

        def permuted(number: int) -> tuple[_Floats, _Floats, _Floats]:
            if pairs is None:
                return _permuted(values, codes, nuisance, scales, number, random)
            return _flipped(values[codes == 1] - values[codes == 0], number, random)

        statistic, score, largest = permuted(permutations)
        p = _p_values(score, largest)
        # Within 3 standard errors of 5 %, more permutations, so that the decision depends less on the seed.
        if (np.abs(p - _LEVEL) < 3 * np.sqrt(_LEVEL * (1 - _LEVEL) / permutations)).any():
            p = _p_values(score, np.concatenate([largest, permuted(_MORE * permutations)[2]]))
    interval_db, interval = _intervals(adjusted, codes, pairs is not None, bootstrap, random)
    return {
        "n_subjects": sizes,
        "mean": np.stack([adjusted[codes == code].mean(axis=0) for code in range(count)]),
        "effect": _sizes(adjusted[None], codes)[1, 0],
        "interval": interval,
        "interval_db": interval_db,
        "statistic": statistic,
        "p": p,
    }


def _p_values(score: _Floats, largest: _Floats) -> _Floats:
    """Return the family-wise p of each score (V,), from the largest scores of permutations (P,)."""
    return np.asarray((1 + (largest[:, None] >= score * (1 - 1e-12)).sum(axis=0)) / (1 + len(largest)))


def _subject_means(
    values: _Floats, group: NDArray[Any], subject: NDArray[Any]
) -> tuple[_Floats, NDArray[np.intp], NDArray[Any], list[str]]:
    """Average windows (N, V) of each subject in each group: values (n, V), groups (n,), subjects (n,), group names."""
    names, codes = np.unique(group, return_inverse=True)
    people, members = np.unique(subject, return_inverse=True)
    cells, places = np.unique(members * len(names) + codes, return_inverse=True)
    means = np.stack([values[places == place].mean(axis=0) for place in range(len(cells))])
    return means, cells % len(names), people[cells // len(names)], names.tolist()


def _complete_pairs(values: _Floats, codes: NDArray[np.intp], pairs: NDArray[Any]) -> tuple[_Floats, NDArray[np.intp]]:
    """Return the rows of subjects with both conditions: first those of one condition, then the other, in one order."""
    both = np.intersect1d(pairs[codes == 0], pairs[codes == 1])
    if not len(both):
        raise PolyadicError("pairs need subjects with both conditions, but there are none")
    order = np.lexsort((pairs, codes))
    order = order[np.isin(pairs[order], both)]
    return values[order], codes[order]


def _within_groups(values: _Floats, codes: NDArray[np.intp], nuisance: _Floats) -> tuple[_Floats, _Floats]:
    """Return slopes of centred covariates within groups (c, V), and the relative standard deviation in each group (k,).

    The standard deviation of subjects is relative to that in all groups, over all values.
    """
    groups = (codes[:, None] == np.arange(codes.max() + 1)).astype(np.float64)
    design, sizes = np.column_stack([groups, nuisance]), groups.sum(axis=0)
    coefficients = np.linalg.lstsq(design, values, rcond=None)[0]
    variances = groups.T @ (values - design @ coefficients) ** 2 / np.maximum(sizes - 1, 1)[:, None]
    pooled = np.maximum(np.average(variances, axis=0, weights=sizes), _TINY)
    return coefficients[len(sizes) :], np.sqrt(np.maximum((variances / pooled).mean(axis=1), 1e-6))


def _permuted(
    values: _Floats, codes: NDArray[np.intp], nuisance: _Floats, scales: _Floats, permutations: int, random: Any
) -> tuple[_Floats, _Floats, _Floats]:
    """Return the statistic and the score of each value (V,), and the largest score in each permutation (P,).

    With covariates, residuals of the model without groups are permuted (Freedman and Lane, 1983). A residual takes the
    scale of the group that it comes to: means over few windows vary more, and mixed with others they would have heavy
    tails, with smaller statistics than those of the groups as they are.
    """
    others, scale, largest = np.column_stack([np.ones(len(values)), nuisance]), scales[codes][:, None], []
    fitted = others @ np.linalg.lstsq(others, values, rcond=None)[0]
    residuals = (values - fitted) / scale
    statistic, score = (result[0] for result in _wald(values[None], codes, others))
    for first in range(0, permutations, _AT_A_TIME):
        rows = np.tile(np.arange(len(values)), (min(_AT_A_TIME, permutations - first), 1))
        orders = random.permuted(rows, axis=1)
        largest.append(_wald(fitted + residuals[orders] * scale, codes, others)[1].max(axis=1))
    return statistic, score, np.concatenate(largest)


def _wald(Y: _Floats, codes: NDArray[np.intp], others: _Floats) -> tuple[_Floats, _Floats]:
    """Return t of the difference between two groups, or F of more, in linear models of Y (P, n, V), and scores: (P, V).

    Standard errors allow for unequal variances (HC2 of MacKinnon and White, 1985). Without covariates t is Welch's. The
    score of t is the normal quantile of the same probability (by Wallace, 1959), with the degrees of freedom of Welch
    and Satterthwaite: they are few where a small group varies most, so that t is large more often than in permutations.
    """
    groups = (codes[:, None] == np.arange(1, codes.max() + 1)).astype(np.float64)
    design = np.column_stack([groups, others])
    inverse = np.linalg.pinv(design)
    hat = design @ inverse
    A, count = inverse[: groups.shape[1]], groups.shape[1]
    rows = Y.transpose(1, 0, 2).reshape(len(codes), -1)  # one product for all permutations
    squares = (rows - hat @ rows) ** 2 / np.maximum(1 - hat.diagonal(), 1e-12)[:, None]
    slopes = A @ rows
    if count == 1:
        variances = np.stack([A[0, codes == code] ** 2 @ squares[codes == code] for code in (0, 1)])
        variance = np.maximum(variances.sum(axis=0), _TINY)
        result = slopes[0] / np.sqrt(variance)
        sizes = np.bincount(codes)
        free = np.maximum(sizes - 1 - (others.shape[1] - 1) * sizes / sizes.sum(), 1.0)
        freedom = variance**2 / np.maximum((variances**2 / free[:, None]).sum(axis=0), _TINY)
        score = np.sqrt(freedom * np.log1p(result**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    else:
        covariance = np.einsum("an,bn,nm->mab", A, A, squares) + _TINY * np.eye(count)
        result = score = (np.linalg.solve(covariance, slopes.T[..., None])[..., 0] * slopes.T).sum(axis=1) / count
    return result.reshape(len(Y), -1), score.reshape(len(Y), -1)


def _flipped(differences: _Floats, permutations: int, random: Any) -> tuple[_Floats, _Floats, _Floats]:
    """Return t of the mean difference of pairs and |t| (V,), and the largest |t| of samples of random signs (P,)."""
    n = len(differences)
    total = (differences**2).sum(axis=0)

    def t(signs: _Floats) -> _Floats:
        mean = signs @ differences / n
        variance = np.maximum(total - n * mean**2, _TINY) / (n - 1)
        return np.asarray(mean / np.sqrt(variance / n))

    signs = random.choice([-1.0, 1.0], size=(permutations, n))
    statistic = t(np.ones((1, n)))[0]
    return statistic, np.abs(statistic), np.abs(t(signs)).max(axis=1)


def _sizes(samples: _Floats, codes: NDArray[np.intp]) -> _Floats:
    """Return the mean of each group minus that of the first, and Hedges' g, of samples (B, n, V): (2, B, k − 1, V).

    g is the difference over the pooled standard deviation, times 1 − 3 / (4 (n − 2) − 1), which removes the bias of
    small samples. For pairs, too, the deviation is that of the two conditions, so that both designs compare.
    """
    sizes = []
    first = samples[:, codes == 0]
    for code in range(1, int(codes.max()) + 1):
        other = samples[:, codes == code]
        freedom = max(first.shape[1] + other.shape[1] - 2, 1)
        squares = sum(((part - part.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) for part in (first, other))
        pooled = np.sqrt(np.maximum(squares / freedom, _TINY))
        difference = other.mean(axis=1) - first.mean(axis=1)
        sizes.append([difference, (1 - 3 / (4 * freedom - 1)) * difference / pooled])
    return np.stack(sizes, axis=2)


def _intervals(values: _Floats, codes: NDArray[np.intp], paired: bool, samples: int, random: Any) -> _Floats:
    """Return 95 % bootstrap intervals of both `_sizes`: (2, 2, k − 1, V), the limits in the second axis.

    Subjects are sampled within groups, pairs whole.
    """
    places = [np.flatnonzero(codes == code) for code in range(int(codes.max()) + 1)]
    if not samples:
        return np.full((2, 2, len(places) - 1, values.shape[1]), np.nan)
    drawn = [random.integers(len(rows), size=(samples, len(rows))) for rows in places]
    if paired:
        drawn = [drawn[0]] * len(places)
    chosen = np.concatenate([rows[draw] for rows, draw in zip(places, drawn, strict=True)], axis=1)
    sorted_codes = np.concatenate([codes[rows] for rows in places])
    with np.errstate(over="ignore"):
        ends = np.percentile(_sizes(values[chosen], sorted_codes), [2.5, 97.5], axis=1)
    return np.asarray(ends.swapaxes(0, 1))
