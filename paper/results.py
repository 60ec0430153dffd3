"""What every experiment writes and shows: result files with their provenance, a journal to resume from, progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress, TextColumn

from polyadic._util.provenance import commit, provenance

__all__ = ["choose_device", "commit", "encode_result", "provenance", "run_cells", "show", "stage_bar", "write_result"]

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


def show(result: Mapping[str, Any], text: str, files: str, as_json: bool) -> None:
    """Print a result as JSON, or its Markdown page and the names of the files that were written."""
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        Console().print(Markdown(text))
        print(f"Wrote {files}")
