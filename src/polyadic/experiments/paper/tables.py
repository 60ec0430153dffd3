"""Results as Markdown tables laid out like the paper's, with the paper's own figures beside ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from polyadic.evaluate.significance import corrected_resampled, holm, paired, unpaired
from polyadic.experiments.paper import reference

__all__ = [
    "as_code",
    "as_text",
    "figure",
    "footer",
    "grid",
    "heading",
    "main_table",
    "mean",
    "paired_table",
    "percent",
    "seconds_table",
    "table",
    "timed_table",
]

Row = dict[str, Any]
Result = dict[str, Any]

_PROTOCOL = {"subject": "people apart", "paper": "as in the paper"}


def percent(rows: Iterable[Row], probe: str = "standardised", score: str = "accuracy") -> list[float]:
    """A score of each row, in percent."""
    return [100 * row[probe][score] for row in rows if probe in row]


def mean(values: list[float]) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def figure(value: tuple[float, float] | None) -> str:
    """A figure of the paper."""
    return "–" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def as_text(name: str) -> str:
    """A name as Markdown that shows it and nothing else.

    Examples
    --------
    >>> print(as_text("<b>*a*.npz"))
    \\<b\\>\\*a\\*.npz
    """
    return re.sub(r"([]\\`*_<>[|~&$@])", r"\\\1", " ".join(name.split()))


def as_code(text: str) -> str:
    """The same in the type of code, whatever backticks are in it.

    Examples
    --------
    >>> as_code("polyadic run"), as_code("polyadic run --data `a`.npz")
    ('`polyadic run`', '`` polyadic run --data `a`.npz ``')
    """
    text = " ".join(text.split())
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, gap = "`" * (longest + 1), " " * (longest > 0)
    return f"{fence}{gap}{text}{gap}{fence}"


def table(heads: list[str], lines: Iterable[list[str]]) -> str:
    """A Markdown table, its first column to the left and all others to the right."""
    rule = "|---" + "|---:" * (len(heads) - 1) + "|"
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def heading(result: Result, protocol: str | None = None) -> str:
    seeds = len(result["seeds"])
    parts = [result["title"], result["dataset"], f"{seeds} seed{'s' * (seeds != 1)}"]
    if protocol is not None:
        parts.append(f"protocol {protocol}: {_PROTOCOL[protocol]}")
    return f"**{', '.join(parts)}**\n"


def footer(result: Result) -> str:
    machine = result["machine"]
    here = machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads"
    # Cells of one result may have been run on several machines.
    places = dict.fromkeys(here if row.get("device", "cpu") == "cpu" else row["device"] for row in result["rows"])
    where = " and ".join(places) or here
    commits = " and ".join(dict.fromkeys(str(row.get("commit", result["commit"])) for row in result["rows"]))
    jobs = max([result["jobs"], *(row.get("jobs", 1) for row in result["rows"])])
    note = "" if jobs == 1 else f" Up to {jobs} processes at a time: the seconds mean nothing."
    return (
        f"Settings: {result['settings']['which']}. Accuracy in percent, mean ± standard deviation over the seeds. "
        f"{as_code(result['command'])}, {where}, {result['date']}, commit {commits or result['commit']}.{note}\n"
    )


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row.get(key) for row in rows))


def of(result: Result, **wanted: Any) -> list[Row]:
    """The rows with these labels, in the order of the seeds."""
    found = [row for row in result["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    return sorted(found, key=lambda row: int(row["seed"]))


def main_table(result: Result) -> str:
    """Table 2: every method by both probes, clean and perturbed, with the paper's accuracy and parameters."""
    text = []
    for protocol in result["protocols"]:
        lines = []
        for name in distinct(result["rows"], "method"):
            rows = of(result, protocol=protocol, method=name)
            theirs = reference.MAIN.get(name, reference.SUPERVISED.get(name, {})).get(result["dataset"])
            lines.append(
                [
                    name,
                    mean(percent(rows, "plain")),
                    mean(percent(rows, "standardised")),
                    mean(percent(rows, "standardised", "macro_f1")),
                    mean(percent(rows, "augmented")),
                    mean(percent(rows, "standardised perturbed")),
                    mean(percent(rows, "augmented perturbed")),
                    f"{np.mean([row['parameters'] for row in rows]):,.0f}",
                    figure(theirs),
                    _count(reference.PARAMETERS.get(name, {}).get(result["dataset"])),
                ]
            )
        heads = ["", "plain", "standardised", "its macro F1", "augmented probe", "perturbed: standardised"]
        heads += ["perturbed: augmented probe", "parameters", "paper", "its parameters"]
        text += [heading(result, protocol), table(heads, lines), paired_table(result, protocol)]
    return "\n".join([*text, footer(result)])


_JUDGES = ("plain", "standardised", "augmented", "standardised perturbed", "augmented perturbed")


def paired_table(result: Result, protocol: str) -> str:
    """What the self-supervised term and the second view bring: ATD less its rivals, seed by seed, with p of the t-test.

    Returns
    -------
    a table with a line for each rival, and number of labels where there are several; "" if there is nothing to compare
    """
    lines = []
    for count in distinct((row for row in result["rows"] if row.get("method") == "ATD"), "labels"):
        for rival in ("ATD_ss-", "SALS"):
            ours, theirs = (
                {row["seed"]: row for row in of(result, protocol=protocol, method=name, labels=count)}
                for name in ("ATD", rival)
            )
            seeds = sorted(ours.keys() & theirs.keys())
            if len(seeds) < 2:
                continue
            label = f"ATD less {rival}" + ("" if count is None else f", {count} labels")
            cells = []
            for judge in _JUDGES:
                a, b = (percent([rows[seed] for seed in seeds], judge) for rows in (ours, theirs))
                cells.append(f"{np.mean(a) - np.mean(b):+.2f} ({paired(a, b)[1]:.2g})")
            most = [f"{max(rows[seed]['sweeps'] for seed in seeds)}" for rows in (ours, theirs)]
            lines.append([label, *cells, " and ".join(most)])
    heads = ["points (p, paired over seeds)", *(name.replace(" p", ", p") for name in _JUDGES), "most sweeps"]
    return table(heads, lines) if lines else ""


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def timed_table(result: Result) -> str:
    """Tables 11 and 12: accuracy with p-values against ATD, parameters, seconds a sweep or epoch."""
    text = []
    for protocol in result["protocols"]:
        names = distinct(result["rows"], "method")
        best = percent(of(result, protocol=protocol, method="ATD"))
        others = [name for name in names if name != "ATD"]
        tests: dict[str, list[float]] = {}
        for name in others:
            rows = of(result, protocol=protocol, method=name)
            values = percent(rows)
            share = rows[0]["n_test"] / (rows[0]["n_test"] + rows[0]["n_train"])
            difference = [a - b for a, b in zip(best, values, strict=True)]
            tests[name] = [
                unpaired(best, values)[1],
                paired(best, values)[1],
                corrected_resampled(difference, share)[1],
            ]
        corrected = dict(zip(others, holm([tests[name][2] for name in others]), strict=True))
        lines = []
        for name in names:
            rows = of(result, protocol=protocol, method=name)
            p = [f"{value:.2g}" for value in tests[name]] + [f"{corrected[name]:.2g}"] if name in tests else ["–"] * 4
            # Beside other work they would mean nothing; `polyadic bench seconds` measures them alone.
            seconds = [row["seconds"] for row in rows if "seconds" in row and row.get("jobs", 1) == 1]
            dataset = result["dataset"]
            theirs = reference.SECONDS.get(name, {}).get(dataset)
            lines.append(
                [
                    name,
                    mean(percent(rows)),
                    *p,
                    f"{np.mean([row['parameters'] for row in rows]):,.0f}",
                    f"{np.mean(seconds):.3f}" if seconds else "–",
                    figure(reference.MAIN.get(name, {}).get(dataset)),
                    "–" if (value := reference.P_VALUES.get(name, {}).get(dataset)) is None else f"{value:g}",
                    "–" if theirs is None else f"{theirs:.1f}",
                ]
            )
        heads = ["", "standardised", "p unpaired", "p paired", "p resampled", "its Holm", "parameters", "s/sweep"]
        text += [heading(result, protocol), table([*heads, "paper", "its p", "its s/sweep"], lines)]
    return "\n".join([*text, footer(result)])


def seconds_table(result: Result) -> str:
    """The seconds of appendix D.7, each method alone on the machine."""
    lines = []
    for row in result["rows"]:
        theirs = reference.SECONDS.get(row["method"], {}).get(result["dataset"])
        known = "–" if theirs is None else f"{theirs:.1f}"
        lines.append([row["method"], f"{row['seconds']:.3f}", f"{row['parameters']:,}", known])
    return "\n".join([heading(result), table(["", "s/sweep", "parameters", "paper"], lines), footer(result)])


def grid(
    row: str, column: str, theirs: Callable[[str, Any, Any], tuple[float, float] | None], seconds: bool = False
) -> Callable[[Result], str]:
    """A layout with one label down and another across; each cell has the plain and the standardised probe.

    Parameters
    ----------
    row, column : names of labels
    theirs : from dataset, row and column to the paper's figure
    seconds : whether to show seconds a sweep, too
    """

    def layout(result: Result) -> str:
        text = []
        for protocol in result["protocols"]:
            columns = distinct(result["rows"], column)
            lines = []
            for name in distinct(result["rows"], row):
                cells = [of(result, protocol=protocol, **{row: name, column: value}) for value in columns]
                lines += [
                    [f"{name}, {probe}", *(mean(percent(rows, probe)) for rows in cells)]
                    for probe in ("plain", "standardised", "augmented")
                ]
                if seconds:
                    sums = [[r["seconds"] for r in rows if "seconds" in r] for rows in cells]
                    lines.append([f"{name}, s/sweep", *(f"{np.mean(s):.3f}" if s else "–" for s in sums)])
                known = [figure(theirs(result["dataset"], name, value)) for value in columns]
                if set(known) != {"–"}:
                    lines.append([f"{name}, the paper", *known])
            text += [heading(result, protocol), table(["", *(str(value) for value in columns)], lines)]
            if column == "labels":
                text.append(paired_table(result, protocol))
        return "\n".join([*text, footer(result)])

    return layout
