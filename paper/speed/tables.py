"""The results of `python -m paper speed` as Markdown tables."""

from __future__ import annotations

from typing import Any

from paper import reference
from paper.results import machine_name, table

Result = dict[str, Any]


def markdown(result: Result) -> str:
    """Return all tables of a result, except for parts that have not been measured yet."""
    text = [f"# Speed on the {'GPU' if 'gpu' in result['machine'] else 'CPU'}\n"]
    if "fits" in result:
        text += ["**Whole fits with the default settings**\n", fit_table(result["fits"])]
    if "store" in result:
        text += ["**Windows of 7 × 3000 in a store**\n", store_table(result["store"])]
    if "growth" in result:
        text += ["**Growth of a default fit**\n", growth_table(result["growth"])]
    if "pca" in result:
        one = result["pca"]
        what = f"A default fit of {one['windows']:,} HAR-sized windows and scikit-learn's PCA({one['rank']})"
        text.append(f"{what} of the same spectra: {compared(one, 'pca')}.\n")
    if result["rows"]:
        text += ["**Sweeps with the paper's settings**\n", _sweep_table(result)]
    if "tensorly" in result:
        one = result["tensorly"]
        what = f"A sweep of CP-ALS over {one['windows']:,} tensors at once, `SALS(batch_size=None)` and TensorLy's"
        text.append(f"{what} `parafac`: {compared(one, 'tensorly')}.\n")
    text += [f"**Failed**: {name}: {error}\n" for name, error in result.get("failed", {}).items()]
    return "\n".join([*text, footer(result)])


def footer(result: Result) -> str:
    """Return the lines below the tables: command, machine, date, commit, and notes on reliability."""
    machine = result["machine"]
    where = machine_name({"processor": machine["processor"], "threads": machine["threads"]})
    where = f"{machine['gpu']} ({where})" if "gpu" in machine else where
    load = "" if result.get("load") is None else f" Load average before the run: {result['load']:.1f}"
    load += f", after it: {result['load_after']:.1f}." if "load_after" in result else "." if load else ""
    small = " Sizes of a quick run: the figures are not representative." if result.get("quick") else ""
    return f"`{result['command']}`, {where}, {result['date']}, commit {result['commit']}.{load}{small}\n"


def _number(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return _number(1e3 * seconds)


def _mib(count: float) -> str:
    """Return bytes as MiB."""
    return f"{count / 2**20:,.0f} MiB"


def _sweep_table(result: Result) -> str:
    """Return the table of sweeps: seconds, memory and features of every dataset."""
    streamed = any("streamed_sweep_seconds" in row["sweep"] for row in result["rows"])
    lines = []
    for row in result["rows"]:
        sweep = row["sweep"]
        line = [
            reference.DATASETS[row["dataset"]],
            f"{sweep['paper_windows']:,}",
            _number(sweep["sweep_seconds"]),
            "all" if sweep["measured"] else f"{sweep['windows']:,}",
            f"{sweep['paper_seconds']:,.1f}",
            _ms(sweep["batch_seconds"]),
            _mib(sweep["memory_bytes"]),
            f"{sweep['features']['windows_per_second']:,.0f}",
        ]
        if streamed:
            line.insert(4, _number(sweep["streamed_sweep_seconds"]))
        lines.append(line)
    heads = ["", "windows", "s per sweep", "timed", "paper, s", "batch, ms", "memory", "features, windows/s"]
    if streamed:
        heads.insert(4, "from host memory, s")
    return table(heads, lines)


def fit_table(rows: list[Result]) -> str:
    """Return the table of whole fits: seconds, passes, the least possible time, memory."""
    lines = []
    for row in rows:
        name = reference.DATASETS[row["dataset"]] + ("" if row["host"] else ", on GPU")
        if "error" in row:
            lines.append([name, row["error"], *[""] * 6])
            continue
        shape = " × ".join(map(str, row["window"]))
        times = [row["seconds"]["least"], row["sweep_seconds"], row["least_seconds"], row["ratio"]]
        cells = [name, f"{row['windows']:,} of {shape}", *map(_number, times)]
        scaled = "" if row["paper_windows"] == row["windows"] else f"{row['paper_windows']:,}: "
        lines.append([*cells, _mib(row["memory_bytes"]), f"{scaled}{_number(row['scaled_seconds'])}"])
    heads = ["", "windows", "fit, s", "its sweeps, s", "passes at least, s", "ratio"]
    return table([*heads, "memory", "all windows, s"], lines)


def store_table(rows: list[Result]) -> str:
    """Return the table of fit and transform of a store."""
    lines = [
        [
            f"{row['windows']:,}",
            *(_number(row[f"{name}_seconds"]) for name in ("fit", "sweep", "transform")),
            _number(row["ratio"]),
            _mib(row["memory_bytes"]),
            _mib(row["data_bytes"]),
        ]
        for row in rows
    ]
    heads = ["windows", "fit, s", "its sweeps, s", "transform, s", "fit / transform", "memory", "samples"]
    return table(heads, lines)


def growth_table(rows: list[Result]) -> str:
    """Return the table of seconds over sizes."""
    lines = []
    for row in rows:
        line = [row["what"], ", ".join(f"{size:,}" for size in row["sizes"])]
        for kind in ("pass", "sweep"):
            line += [", ".join(_ms(value) for value in row[f"{kind}_seconds"]), f"{row[f'{kind}_exponent']:.2f}"]
        lines.append(line)
    return table(["", "sizes", "passes, ms", "exponent", "one sweep, ms", "exponent"], lines)


def compared(one: Result, other: str) -> str:
    """Return the seconds of polyadic and of another implementation, and the ratio."""
    seconds = (_range(one[f"{name}_seconds"]) for name in ("polyadic", other))
    return "{} s, the other {} s, {} times as long".format(*seconds, _range(one["ratio"]))


def _range(values: dict[str, float]) -> str:
    """Return median (minimum to maximum)."""
    return f"{_number(values['median'])} ({_number(values['least'])} to {_number(values['most'])})"
