"""Results as Markdown tables in the layout of the paper, with the paper's results for comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from paper import reference
from paper.results import machine_name, mean_and_std, table
from paper.significance import corrected_resampled, holm

Row = dict[str, Any]
Result = dict[str, Any]

PROBES = ("plain", "standardised", "augmented")
_PROTOCOL = {"subject": "subject-wise split", "paper": "as in the paper"}
_SCORED_BY = (*PROBES, "standardised perturbed", "augmented perturbed")


def percentages(rows: Iterable[Row], probe: str = "standardised", score: str = "accuracy") -> list[float]:
    """Return a score of each row in percent, for the rows that have this probe."""
    return [100 * row[probe][score] for row in rows if probe in row]


def _mean(rows: Iterable[Row], probe: str = "standardised", score: str = "accuracy") -> str:
    return mean_and_std(percentages(rows, probe, score))


def _theirs(value: tuple[float, float] | None) -> str:
    """Return a result of the paper as mean ± standard deviation, or a dash."""
    return "–" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def heading(result: Result, protocol: str) -> str:
    """Return the line above a table: title, dataset, seeds and protocol, "" for none."""
    seeds = len(result["seeds"])
    parts = [result["title"], result["dataset"], f"{seeds} seed{'s' * (seeds != 1)}"]
    if protocol:
        parts.append(f"protocol {protocol}: {_PROTOCOL[protocol]}")
    return f"**{', '.join(parts)}**\n"


def footer(result: Result) -> str:
    """Return the lines below a table: settings, command, machines, date and commits."""
    here = machine_name(result["machine"])
    # The cells of a result may come from several machines.
    places = dict.fromkeys(here if row.get("device", "cpu") == "cpu" else row["device"] for row in result["rows"])
    commits = " and ".join(dict.fromkeys(str(row.get("commit", result["commit"])) for row in result["rows"]))
    jobs = max([result["jobs"], *(row.get("jobs", 1) for row in result["rows"])])
    note = "" if jobs == 1 else f" Up to {jobs} processes at a time, so the seconds are not comparable."
    return (
        f"Settings: {result['settings']['which']}. Accuracy in percent, mean ± standard deviation over the seeds. "
        f"`{result['command']}`, {' and '.join(places)}, {result['date']}, commit {commits}.{note}\n"
    )


def distinct_values(rows: Iterable[Row], key: str) -> list[Any]:
    """Return the distinct values of a label in some rows, in order of appearance."""
    return list(dict.fromkeys(row.get(key) for row in rows))


def select_rows(result: Result, **wanted: Any) -> list[Row]:
    """Return the rows with these labels, in the order of the seeds."""
    found = [row for row in result["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    return sorted(found, key=lambda row: int(row["seed"]))


# --------------------------------------------------------------------------------------------- tables with accuracies


def main_table(result: Result, protocol: str) -> str:
    """Return Table 2: every method by both probes, clean and perturbed, with the paper's accuracy and parameters."""
    lines = []
    for name in distinct_values(result["rows"], "method"):
        rows = select_rows(result, protocol=protocol, method=name)
        theirs = reference.MAIN.get(name, reference.SUPERVISED.get(name, {})).get(result["dataset"])
        parameters = reference.PARAMETERS.get(name, {}).get(result["dataset"])
        scores = [_mean(rows, "plain"), _mean(rows), _mean(rows, score="macro_f1"), _mean(rows, "augmented")]
        scores += [_mean(rows, "standardised perturbed"), _mean(rows, "augmented perturbed")]
        size = f"{np.mean([row['parameters'] for row in rows]):,.0f}"
        lines.append([name, *scores, size, _theirs(theirs), "–" if parameters is None else f"{parameters:,}"])
    heads = ["", "plain", "standardised", "its macro F1", "augmented probe", "perturbed: standardised"]
    heads += ["perturbed: augmented probe", "parameters", "paper", "its parameters"]
    return "\n".join([table(heads, lines), paired_table(result, protocol)])


def paired_table(result: Result, protocol: str) -> str:
    """Compare ATD with its ablations seed by seed, for each number of labels; "" if there is nothing to compare."""
    lines = []
    for count in distinct_values((row for row in result["rows"] if row.get("method") == "ATD"), "labels"):
        for rival in ("ATD_ss-", "SALS"):
            ours, theirs = (
                {row["seed"]: row for row in select_rows(result, protocol=protocol, method=name, labels=count)}
                for name in ("ATD", rival)
            )
            seeds = sorted(ours.keys() & theirs.keys())
            if len(seeds) < 2:
                continue
            label = f"ATD minus {rival}" + ("" if count is None else f", {count} labels")
            cells = []
            for name in _SCORED_BY:
                a, b = (percentages([rows[seed] for seed in seeds], name) for rows in (ours, theirs))
                cells.append(f"{np.mean(a) - np.mean(b):+.2f} ({corrected_resampled(np.subtract(a, b), 0.0)[1]:.2g})")
            most = [f"{max(rows[seed]['sweeps'] for seed in seeds)}" for rows in (ours, theirs)]
            lines.append([label, *cells, " and ".join(most)])
    heads = ["points (p, paired over seeds)", *(name.replace(" p", ", p") for name in _SCORED_BY), "maximum sweeps"]
    return table(heads, lines) if lines else ""


def timed_table(result: Result, protocol: str) -> str:
    """Return Tables 11 and 12: accuracy with p-values against ATD, parameters, seconds per sweep or epoch."""
    dataset, names = result["dataset"], distinct_values(result["rows"], "method")
    tests = _p_values(result, protocol, [name for name in names if name != "ATD"])
    lines = []
    for name in names:
        rows = select_rows(result, protocol=protocol, method=name)
        # Timings with several jobs are not comparable.
        seconds = [row["seconds"] for row in rows if "seconds" in row and row.get("jobs", 1) == 1]
        cells = [f"{value:.2g}" for value in tests[name]] if name in tests else ["–"] * 4
        cells += [f"{np.mean([row['parameters'] for row in rows]):,.0f}"]
        cells += [f"{np.mean(seconds):.3f}" if seconds else "–", _theirs(reference.MAIN.get(name, {}).get(dataset))]
        p, theirs = (found.get(name, {}).get(dataset) for found in (reference.P_VALUES, reference.SECONDS))
        cells += ["–" if p is None else f"{p:g}", "–" if theirs is None else f"{theirs:.1f}"]
        lines.append([name, _mean(rows), *cells])
    heads = ["", "standardised", "p unpaired", "p paired", "p resampled", "its Holm", "parameters", "s/sweep"]
    return table([*heads, "paper", "its p", "its s/sweep"], lines)


def _p_values(result: Result, protocol: str, rivals: list[str]) -> dict[str, list[float]]:
    """Return p of ATD against each baseline: unpaired, paired, resampled, and resampled with Holm's correction."""
    ours = percentages(select_rows(result, protocol=protocol, method="ATD"))
    tests: dict[str, list[float]] = {}
    for name in rivals:
        rows = select_rows(result, protocol=protocol, method=name)
        theirs = percentages(rows)
        share = rows[0]["n_test"] / (rows[0]["n_test"] + rows[0]["n_train"])
        paired, resampled = (corrected_resampled(np.subtract(ours, theirs), part)[1] for part in (0.0, share))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # one seed, or equal accuracies
            unpaired = float(stats.ttest_ind(ours, theirs).pvalue)
        if np.ptp(ours) == np.ptp(theirs) == 0:  # no variance
            unpaired = float(ours[0] == theirs[0])
        tests[name] = [unpaired, paired, resampled]
    adjusted = holm([tests[name][2] for name in rivals])
    return {name: [*tests[name], float(p)] for name, p in zip(rivals, adjusted, strict=True)}


def grid_table(
    row: str, column: str, theirs: Mapping[str, Mapping[Any, Any]], seconds: bool = False
) -> Callable[[Result, str], str]:
    """Return a function that formats a table with one label as rows and another as columns, for each probe.

    `theirs` has the paper's results by dataset and column, or by dataset, row and column; `seconds` adds seconds per
    sweep.
    """

    def layout(result: Result, protocol: str) -> str:
        columns = distinct_values(result["rows"], column)
        lines = []
        for name in distinct_values(result["rows"], row):
            cells = [select_rows(result, protocol=protocol, **{row: name, column: value}) for value in columns]
            lines += [[f"{name}, {probe}", *(_mean(rows, probe) for rows in cells)] for probe in PROBES]
            if seconds:
                means = [np.mean([one["seconds"] for one in rows]) for rows in cells]
                lines.append([f"{name}, s/sweep", *(f"{mean:.3f}" for mean in means)])
            published = theirs.get(result["dataset"], {})
            published = published.get(name, published)
            known = [_theirs(published.get(value)) for value in columns]
            if set(known) != {"–"}:
                lines.append([f"{name}, the paper", *known])
        text = table(["", *(str(value) for value in columns)], lines)
        return "\n".join([text, paired_table(result, protocol)]) if column == "labels" else text

    return layout


def hyperparameter_table(result: Result, protocol: str) -> str:
    """Return Figure 5 as numbers, with the self-supervised term relative to the fit term."""
    lines = []
    for name in distinct_values(result["rows"], "parameter"):
        for value in distinct_values([row for row in result["rows"] if row["parameter"] == name], "value"):
            rows = select_rows(result, protocol=protocol, parameter=name, value=value)
            share = np.mean([row["share_of_self_supervised"] for row in rows])
            accuracies = [_mean(rows, probe) for probe in (*PROBES, "standardised perturbed")]
            lines.append([f"{name} = {value:g}", *accuracies, f"{share:.1e}"])
    return table(["", *PROBES, "perturbed: standardised", "self-supervised / fit term"], lines)


# ------------------------------------------------------------------------------------------ tables without accuracies


def sizes_table(result: Result, protocol: str) -> str:
    """Return Table 1: the sizes of the parts of each split."""
    lines = []
    for row in result["rows"]:
        people = " / ".join(str(count) for count in row["subjects"])
        shape = " × ".join(str(size) for size in row["tensor"])
        counts = [f"{row[part]:,}" for part in ("unlabelled", "train", "test")]
        lines.append([f"protocol {row['protocol']}", shape, *counts, people])
    theirs = reference.SIZES.get(result["dataset"])
    if theirs is not None:
        lines.append(["the paper", "", *(f"{count:,}" for count in theirs), ""])
    return table(["", "tensor", "unlabelled", "training", "test", "subjects in each"], lines)


def distribution_table(result: Result, protocol: str) -> str:
    """Return Table 5: the distribution of the classes."""
    theirs = reference.DISTRIBUTION.get(result["dataset"], ())
    lines = [
        [row["class"], f"{row['windows']:,}", f"{row['percent']:.2f}", f"{theirs[n]:.2f}" if n < len(theirs) else "–"]
        for n, row in enumerate(result["rows"])
    ]
    return table(["class", "windows", "percent", "paper"], lines)


def convergence_table(result: Result, protocol: str) -> str:
    """Return Figure 3 as numbers."""
    rounds = distinct_values(result["rows"], "round")
    lines = []
    for bases in ("random", "learned"):
        values = [[row["difference"] for row in select_rows(result, bases=bases, round=number)] for number in rounds]
        lines.append([f"{bases} bases", *(f"{np.mean(found):.2e}" for found in values)])
    return table(["mean relative change in round", *(str(number) for number in rounds)], lines)


def shapes_table(result: Result, protocol: str) -> str:
    """Return the names and shapes of the boxes of a diagram."""
    rows = result["rows"]
    return table(["", "shape", ""], [[row["name"], " × ".join(map(str, row["shape"])), row["note"]] for row in rows])
