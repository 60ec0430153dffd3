"""What every experiment writes and shows: result files with their provenance, a journal, progress, tables, figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress, TextColumn

from polyadic._util.provenance import commit, provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["choose_device", "commit", "encode_result", "machine_name", "mean_and_std", "new_figure", "plain_text",
           "provenance", "publish", "run_cells", "stage_bar", "table", "write_result"]  # fmt: skip

Row = dict[str, Any]


def encode_result(result: Mapping[str, Any]) -> str:
    """Return a result as JSON: lists of objects with one object per line, other lists on one line, the rest indented.

    Examples
    --------
    >>> print(encode_result({"seeds": [0, 1], "rows": [{"seed": 0, "fit": 0.5}, {"seed": 1, "fit": 0.6}]}), end="")
    {
     "seeds": [0, 1],
     "rows": [
      {"seed":0,"fit":0.5},
      {"seed":1,"fit":0.6}
     ]
    }
    """
    entries = [f" {json.dumps(name)}: {_encode_entry(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _encode_entry(value: Any) -> str:
    """Return the JSON of one entry of a result, indented as in the file."""
    if not isinstance(value, list):
        return json.dumps(value, indent=1).replace("\n", "\n ")
    if not value or not all(isinstance(row, dict) for row in value):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in value) + "\n ]"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result to a JSON file; the folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(encode_result(result))


def choose_device(device: str) -> torch.device:
    """Return the torch device; "auto" is a GPU if there is one, else the CPU."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def run_cells(title: str, tasks: Mapping[str, Any], journal: Path, jobs: int = 1, hidden: bool = False) -> Row:
    """Run the tasks that are not in the journal yet, and return the results of all, by key.

    Parameters
    ----------
    tasks : what `joblib.delayed` returns, by a key that depends on everything the result depends on
    journal : a file with one line `[key, result]` per finished task, so that a killed process loses only those running
    """
    done: Row = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        with suppress(ValueError):  # a line that a killed process left incomplete
            key, value = json.loads(line)
            done[key] = value
    missing = [key for key in tasks if key not in done]
    # With several processes, one thread each: joblib would share out the cores, which few tasks can use.
    threads = parallel_config("loky", inner_max_num_threads=1) if jobs > 1 else nullcontext()
    work = (delayed(_with_key)(key, *tasks[key]) for key in missing)
    with stage_bar(title, hidden, "cells", len(tasks) - len(missing)) as update, threads:
        for key, value in Parallel(jobs, return_as="generator_unordered")(work):
            done[key] = value
            with journal.open("a") as file:
                file.write("\n" + json.dumps([key, value]))
            update(len(done), len(tasks), "")
    return {key: done[key] for key in tasks}


def _with_key(key: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    return key, function(*args, **kwargs)


@contextmanager
def stage_bar(
    title: str, hidden: bool = False, unit: str = "", already: int = 0
) -> Iterator[Callable[[int, int, object], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Yields
    ------
    a function to call with the work done, the total work, and the current stage
    """
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[stage]}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, completed=already, stage=unit)
        yield lambda done, total, stage: bar.update(task, completed=done, total=total, stage=f"{unit} {stage}")


def publish(out: Path, stem: str, result: Mapping[str, Any], text: str) -> None:
    """Write a result as STEM.json and its page as STEM.md, and print the page."""
    write_result(out / f"{stem}.json", result)
    (out / f"{stem}.md").write_text(text)
    Console().print(Markdown(text))
    print(f"Wrote {stem}.json and {stem}.md to {out}/")


# ------------------------------------------------------------------------------------------------- tables and figures


def plain_text(name: str) -> str:
    """Escape a name so that Markdown shows it literally.

    Examples
    --------
    >>> print(plain_text("<b>*a*.npz"))
    \\<b\\>\\*a\\*.npz
    """
    return re.sub(r"([]\\`*_<>[|~&$@])", r"\\\1", " ".join(name.split()))


def table(heads: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1) -> str:
    """Return a Markdown table; the first `text` columns are aligned left, the others right.

    Examples
    --------
    >>> print(table(["", "seconds"], [["ATD", "1.2"]]), end="")
    |  | seconds |
    |---|---:|
    | ATD | 1.2 |
    """
    rule = "|" + "---|" * text + "---:|" * (len(heads) - text)
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def mean_and_std(values: Sequence[float]) -> str:
    """Return mean ± standard deviation with two decimals, the mean alone for one value, and a dash for none.

    Examples
    --------
    >>> mean_and_std([90.0, 92.0])
    '91.00 ± 1.41'
    """
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def machine_name(machine: Mapping[str, Any]) -> str:
    """Name the GPU of a machine, as `provenance` describes it, or else the processor and the number of threads."""
    return str(machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads")


def new_figure(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """Return an empty matplotlib figure and its grid of axes, (rows, columns), each of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure, axes
