"""The page and the figures of the label curve: means over splits, standard errors, and tests against the default."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from paper.labels.methods import DEFAULT
from paper.labels.people import COUNTS, PTB_XL
from paper.results import machine_name, new_figure, plain_text, table
from paper.significance import corrected_resampled, holm

Result = dict[str, Any]

_GROUPS = {
    "default": "",
    "rivals": "",
    "paper": "",
    "less": "Ablation: the default without one ingredient",
}
_CLAIM = 0.05
_PROBES = ("score", "with unlabelled")
"""The probes of rivals that the default is compared with."""
_DRAWN = ("polyadic", "hand features", "MiniRocket", "PCA-32", "tangent space",
          "the paper's ATD, plain probe", "statistics",
          "polyadic 0.2.0")  # fmt: skip


def split_scores(result: Result, data: str, method: str, labels: Any, column: str = "score") -> np.ndarray:
    """Return a method's balanced accuracy on each split, in percent, averaged over seeds; empty if there is none."""
    rows = [
        row[column]
        for row in result["rows"]
        if (row["set"], row["method"], row["labels"]) == (data, method, str(labels)) and column in row
    ]
    return np.mean(rows, axis=0) if rows else np.empty(0)


def mean_and_error(values: np.ndarray, test_share: float) -> tuple[float, float]:
    """Return the mean over splits and its standard error, NaN for a single split.

    Splits share subjects, so the usual standard error would be too small: as in `corrected_resampled`, the variance of
    the mean is (1/n + tests/trainings)·s².

    Examples
    --------
    >>> mean, error = mean_and_error(np.array([90.0, 92.0]), 0.5)
    >>> mean, round(error, 3)
    (91.0, 1.732)
    """
    mean = float(values.mean())
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt((1 / len(values) + test_share / (1 - test_share)) * float(values.var(ddof=1)))


def page(result: Result) -> str:
    """Return all tables as Markdown."""
    development = result["people"] == "development"
    whom = "left-out development subjects" if development else "unseen subjects"
    source = "the training half" if development else "other subjects"
    lines = [
        f"# Accuracy against labels per class, on {whom}",
        "",
        "Balanced accuracy in percent, mean over splits ± its standard error. Each split assigns half of the subjects "
        f"to training and half to test; labels are drawn {result['draws']} times from the training half, the same ones "
        f"for every method. Features are learned without labels from {source}, once per seed "
        f"({len(result['seeds'])} for most methods, 1 for MiniRocket). The probe of polyadic also uses "
        "unlabelled windows: those that features were learned from, and those "
        "of the training half without a label. Rivals have a plain validated probe; lines called *with unlabelled* "
        "have the probe of polyadic, for MiniRocket on 256 principal axes of its features. "
        f"{_frozen(result)}*One sensor dead*: the mean over channels that are missing in all test windows in turn; "
        "rivals get the mean signal instead. The standard error accounts for subjects shared between splits. ▲ "
        "and ▼ mark "
        f"methods that are better or worse than {DEFAULT} (p < 0.05 in a paired test, corrected for shared subjects "
        "and, by Holm, for all comparisons on the set). *numbers* is the size of the model without its probe.",
        "",
        f"Written by `{result['command']}` on {result['date']}, commit {result['commit']}, "
        f"{machine_name(result['machine'])}, `--jobs {result['jobs']}`.",
        "",
    ]
    comparisons = paired_tests(result)
    lines += ["## All sets", "", *_rank_lines(result, list(result["sets"])), ""]
    complete = [data for data in result["sets"] if data != PTB_XL]
    if len(complete) < len(result["sets"]):
        lines += ["### Without PTB-XL, which 0.2.0 did not have", "", *_rank_lines(result, complete), ""]
    lines += [*_calibration_lines(result), ""]
    for name, about in result["sets"].items():
        lines += [f"## {about['title']}", "", _describe(about, development), ""]
        if not development:
            lines += [f"![{about['title']}: balanced accuracy by labels per class](labels-{name}.png)", ""]
        for groups, title in ((("default", "rivals", "paper"), ""), (("less",), _GROUPS["less"])):
            names = _methods(result, name, ("default", *groups))
            if len(names) > 1:
                lines += [f"### {title}", ""] if title else []
                lines += [_table(result, name, names, comparisons), ""]
    lines += ["## Differences", "", *_difference_lines(result, comparisons)]
    return "\n".join(lines) + "\n"


def _frozen(result: Result) -> str:
    """Return a sentence on methods whose scores were taken from those of 0.2.0, which had the same splits."""
    if not result["frozen"]:
        return ""
    names = "; ".join(plain_text(name) for name in result["frozen"])
    return f"Without unlabelled windows, some scores are those of 0.2.0 on the same splits ({names}; not on PTB-XL). "


def _describe(about: dict[str, Any], development: bool) -> str:
    scored = f"{about['windows']:,} windows of {about['people']:,} "
    if development:
        return f"{scored}subjects, {about['classes']} classes; splits: {about['splits']}."
    features = f"Features from {about['unlabelled_windows']:,} windows of {about['unlabelled_people']:,} subjects"
    return f"{features}; labels and scores from {scored}others, {about['classes']} classes; splits: {about['splits']}."


def _methods(result: Result, data: str, groups: Iterable[str]) -> list[str]:
    found = [row["method"] for group in groups for row in result["rows"] if (row["set"], row["group"]) == (data, group)]
    return list(dict.fromkeys(found))


def _table(result: Result, data: str, names: Sequence[str], comparisons: dict[tuple[str, str, str, str], Any]) -> str:
    share = result["sets"][data]["test_share"]
    counts = [n for n in map(str, COUNTS) if any(_known(result, data, names[1:], n, column) for column in _PROBES)]
    lines = []
    for name, column in _lines(result, data, names):
        cells = [
            _cell(split_scores(result, data, name, count, column), share)
            + _mark(comparisons.get((data, name, column, count)))
            for count in counts
        ]
        size = _size(result, data, name) if column == "score" else ""
        lines.append([plain_text(_line_name(name, column)), *cells, size])
    return table(["labels per class", *counts, "numbers"], lines).rstrip()


def _lines(result: Result, data: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each method, and after it its variants with or without unlabelled windows in the probe."""
    for name in names:
        for column in ("score", "labelled only", "with unlabelled", "one sensor dead"):
            if _known(result, data, [name], "all", column):
                yield name, column


def _known(result: Result, data: str, names: Sequence[str], count: str, column: str) -> bool:
    """Return whether any of these methods has scores at this number of labels."""
    return any(len(split_scores(result, data, name, count, column)) for name in names)


def _cell(values: np.ndarray, share: float) -> str:
    if not len(values):
        return "–"
    mean, error = mean_and_error(values, share)
    return f"{mean:.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")


def _line_name(name: str, column: str) -> str:
    return name if column == "score" else f"{name}, {column}"


def _mark(comparison: tuple[float, float, float] | None) -> str:
    gap, _, p = comparison or (0.0, 1.0, 1.0)
    return "" if not p < _CLAIM else " ▼" if gap > 0 else " ▲"


def _size(result: Result, data: str, name: str) -> str:
    """Return how many numbers were learned without labels."""
    own = [row for row in result["fits"] if (row["set"], row["method"]) == (data, name)]
    sizes = [row["numbers"] for row in own if "numbers" in row]
    return f"{sizes[0]:,}" if sizes else "–"


# ----------------------------------------------------------------------- tests


def paired_tests(result: Result) -> dict[tuple[str, str, str, str], tuple[float, float, float]]:
    """Return difference default − method, p and p after Holm within the set, by set, method, its probe and labels.

    Rivals are compared with both probes: that of 0.2.0 or a plain one, and the one that uses unlabelled windows.
    """
    found: dict[tuple[str, str, str, str], tuple[float, float, float]] = {}
    for data, about in result["sets"].items():
        tests: dict[tuple[str, str, str, str], tuple[float, float]] = {}
        for name, column, count in product(_methods(result, data, _GROUPS), _PROBES, map(str, COUNTS)):
            own, other = split_scores(result, data, DEFAULT, count), split_scores(result, data, name, count, column)
            if name != DEFAULT and len(own) and len(own) == len(other):
                _, p = corrected_resampled(own - other, about["test_share"])
                tests[data, name, column, count] = (float((own - other).mean()), p)
        adjusted = holm([p for _, p in tests.values()]).tolist()
        found |= {key: (*test, q) for (key, test), q in zip(tests.items(), adjusted, strict=True)}
    return found


def _rank_lines(result: Result, sets: list[str]) -> list[str]:
    """Return the mean of each method over sets by labels, its mean rank over all cells, and a test against the default.

    A cell is a set and a number of labels; methods that lack one are left out.
    """
    cells = [(data, str(count)) for data in sets for count in COUNTS]
    scores: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(row["method"] for row in result["rows"] if row["group"] != "less"):
        for column in ("score", "labelled only", "with unlabelled", "one sensor dead"):
            means = [split_scores(result, data, name, count, column) for data, count in cells]
            if all(len(values) for values in means):
                scores[_line_name(name, column)] = np.array([v.mean() for v in means])
    if not cells or DEFAULT not in scores or len(scores) < 2:
        return ["Too few methods for ranks."]
    ranks = dict(zip(scores, stats.rankdata(-np.array(list(scores.values())), axis=0).mean(axis=1), strict=True))
    lines = []
    for name in sorted(scores, key=ranks.__getitem__):
        gaps = (scores[DEFAULT] - scores[name]).round(9)
        means = scores[name].reshape(len(sets), -1).mean(axis=0)
        test = "" if name == DEFAULT else f"{stats.wilcoxon(gaps).pvalue:.2g}" if gaps.any() else "1"
        wins = "" if name == DEFAULT else f"{int((gaps > 0).sum())} of {len(cells)}"
        lines.append([plain_text(name), *(f"{mean:.1f}" for mean in means), f"{ranks[name]:.1f}", wins, test])
    about = (
        f"Mean over {len(sets)} sets by labels per class; mean rank over all {len(cells)} pairs of set and labels; in "
        f"how many {DEFAULT} is ahead, and p of a Wilcoxon signed-rank test over them, not corrected for the number of "
        "methods. Cells of a set share subjects, so this p is too small."
    )
    heads = ["labels per class", *map(str, COUNTS), "rank", f"{DEFAULT} ahead", "p"]
    return [about, "", table(heads, lines).rstrip()]


def _calibration_lines(result: Result) -> list[str]:
    """Return a table of the expected calibration error before and after the temperature, or nothing if not computed."""
    lines = []
    for data, about in result["sets"].items():
        pairs = [[split_scores(result, data, DEFAULT, count, name) for name in ("ece_before", "ece")]
                 for count in COUNTS]  # fmt: skip
        if all(len(values) for pair in pairs for values in pair):
            lines.append([about["title"], *(" → ".join(f"{values.mean():.1f}" for values in pair) for pair in pairs)])
    if not lines:
        return []
    about = (
        f"Expected calibration error of {DEFAULT} in points, without → with the temperature of the probe (10 bins; "
        "classes have equal weight, as the probabilities assume)."
    )
    return [about, "", table(["labels per class", *map(str, COUNTS)], lines).rstrip()]


def _difference_lines(result: Result, comparisons: dict[tuple[str, str, str, str], Any]) -> list[str]:
    """Return a table of every difference with its p, uncorrected for the number of comparisons."""
    lines = [
        f"{DEFAULT} minus the method, in percentage points, with p of the paired test before Holm's correction.",
        "",
    ]
    rows = []
    for data, about in result["sets"].items():
        for name, column in product(_methods(result, data, _GROUPS), _PROBES):
            cells = [comparisons.get((data, name, column, str(count))) for count in COUNTS]
            if any(cells):
                texts = ["–" if cell is None else f"{cell[0]:+.1f}{_p_text(cell[1])}" for cell in cells]
                rows.append([plain_text(f"{about['title']}: {_line_name(name, column)}"), *texts])
    return [*lines, table(["", *map(str, COUNTS)], rows).rstrip()]


def _p_text(p: float) -> str:
    """Return p in parentheses, or "" for a single split, for which there is no test."""
    return "" if math.isnan(p) else f" ({p:.2g})"


# --------------------------------------------------------------------- figures


def draw(result: Result, data: str, path: Path) -> None:
    """Draw the curves of one set, with bands of one standard error."""
    figure, axes = new_figure(1, width=6.4, height=4.4)
    axis, share = axes[0][0], result["sets"][data]["test_share"]
    places = np.arange(len(COUNTS))
    for name in _methods(result, data, ("default", "rivals", "paper")):
        if name not in _DRAWN:
            continue
        scores = [split_scores(result, data, name, count) for count in COUNTS]
        pairs = [mean_and_error(values, share) if len(values) else (math.nan, math.nan) for values in scores]
        mean, error = np.array(pairs).T
        first = name == DEFAULT
        line = axis.plot(places, mean, marker="o", ms=4, lw=2.6 if first else 1.2, zorder=3 if first else 2, label=name)
        axis.fill_between(places, mean - error, mean + error, alpha=0.18 if first else 0.07, color=line[0].get_color())
    axis.set_xticks(places, [str(count) for count in COUNTS])
    axis.set(xlabel="labels per class", ylabel="balanced accuracy (%)", title=result["sets"][data]["title"])
    axis.legend(fontsize=7, loc="best")
    figure.savefig(path, dpi=130)
