"""`polyadic run`: from a command's settings to the comparison, its table on the screen and its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from polyadic import ATD, GRSALS, SALS, load, report
from polyadic.data import Windows, synthetic
from polyadic.data.loading import open_windows
from polyadic.data.splits import PAPER, PROTOCOLS, Protocol
from polyadic.data.store import read_manifest
from polyadic.errors import MissingExtraError, PolyadicError
from polyadic.estimators import paper_methods
from polyadic.evaluate import PROBES
from polyadic.experiments.compare import Row, compare, summarise
from polyadic.experiments.paper.tables import as_code, as_text
from polyadic.files import digest, write_atomically
from polyadic.inputs import choose_device
from polyadic.persist import encode
from polyadic.presets import settings_for
from polyadic.progress import stage_bar
from polyadic.provenance import provenance
from polyadic.terminal import console, echo, print_json, printable

__all__ = ["Job", "compare_methods"]


@dataclass(frozen=True)
class Job:
    """The settings of `polyadic run`; see its help."""

    out: Path
    data: Path | None = None
    preset: str | None = None
    defaults: bool = False
    protocol: str | None = None
    seeds: int = 5
    rank: int | None = None
    sweeps: int | None = None
    fs: float | None = None
    n_fft: int | None = None
    hop: int | None = None
    nuisance: float = 0.8
    device: str = "auto"
    jobs: int = 1


def compare_methods(job: Job, as_json: bool = False, quiet: bool = False) -> None:
    """Do the job: print the table (or the JSON), write models, `results.json`, `results.md` and `report.html`."""
    windows = _windows(job)
    protocols = _protocols(job, windows)
    chosen = settings_for(windows, preset=job.preset, defaults=job.defaults, n_fft=job.n_fft, hop=job.hop)
    estimators = paper_methods(chosen, rank=job.rank, max_sweeps=job.sweeps, device=job.device)
    job.out.mkdir(parents=True, exist_ok=True)
    hidden = quiet or as_json
    rows = _compared(job, windows, estimators, protocols, hidden)
    result = _result(job, windows, estimators, rows)
    text = json.dumps(result, indent=1) + "\n"
    write_atomically(job.out / "results.json", text.encode())
    write_atomically(job.out / "results.md", _markdown(result).encode())
    with stage_bar("report", hidden, "parts") as on_stage:
        missing = _write_report(job, windows, protocols[-1], result, on_stage)
    if as_json:
        print_json(result)
        return
    screen = console()
    for protocol in protocols:
        screen.print(_table(result, protocol))
    if (windows.label >= 0).any():
        screen.print(
            "Accuracy of a logistic regression on plain and on standardised features, mean ± std over the seeds."
        )
    files = "results.json and results.md" if missing else "results.json, results.md and report.html"
    echo(f"Models, {files} are in {job.out}/")
    if missing:
        echo(missing)


def _compared(
    job: Job, windows: Windows, estimators: dict[str, Any], protocols: list[Protocol], hidden: bool
) -> list[Row]:
    """Fit and judge all methods with all seeds, and save their models of the first seed."""
    count, total = 0, job.seeds * len(estimators)
    with stage_bar("fitting", hidden, "fits") as show:
        show(0, total, "")

        def on_fit(name: str, seed: int, model: ATD | SALS | GRSALS) -> None:
            nonlocal count
            count += 1
            show(count, total, f"{name}, seed {seed} done")
            if seed == 0:
                model.save(job.out / f"{name.lower().rstrip('-')}.safetensors")

        try:
            return compare(windows, estimators, protocols, range(job.seeds), job.jobs, on_fit)
        except KeyboardInterrupt as stop:
            if count:
                stop.args = (
                    f"{count} of {total} fits were done, and those models of seed 0 are in {job.out}/; the same "
                    "command begins anew",
                )
            raise


def _write_report(
    job: Job,
    windows: Windows,
    protocol: Protocol,
    result: dict[str, Any],
    on_stage: Callable[[int, int, str], None],
) -> str:
    """Write the page about ATD with the first seed, or say why not, if what it is drawn with is not installed.

    Parameters
    ----------
    protocol : the last of the run, for which that model was fitted
    """
    model = load(job.out / "atd.safetensors").set_params(device=job.device)
    origin = {key: result[key] for key in ("command", "commit", "date", "machine", "versions")}
    if result["data"]["sha256"] is not None:
        origin["sha256"] = {result["title"]: result["data"]["sha256"]}
    try:
        report.write(
            job.out / "report.html",
            model,
            windows,
            result=result,
            origin=origin,
            title=result["title"],
            protocol=protocol,
            on_stage=on_stage,
        )
    except MissingExtraError as error:
        return f"No report.html: {error}"
    return ""


def _windows(job: Job) -> Windows:
    if job.data is None:
        if job.preset is not None:
            raise PolyadicError("--preset is for recordings of that dataset: give them with --data")
        return synthetic(nuisance=job.nuisance)
    return open_windows(job.data, fs=job.fs)


def _protocols(job: Job, windows: Windows) -> list[Protocol]:
    if job.protocol is None or not (windows.label >= 0).any():
        return ["paper" if (windows.subject == "").any() else "subject"]
    if job.protocol == "both":
        return ["paper", "subject"]
    for known in PROTOCOLS:
        if job.protocol == known:
            return [known]
    raise PolyadicError(f"--protocol must be subject, paper or both, but is {job.protocol!r}")


def _result(job: Job, windows: Windows, estimators: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    atd = estimators["ATD"]
    settings = {name: encode(value) for name, value in atd.get_params(deep=False).items() if name != "random_state"}
    return {
        "title": "built-in signals" if job.data is None else printable(job.data.name),
        "data": {
            "sha256": _checksum(job.data),
            "shape": list(windows.shape),
            "fs": windows.fs,
            "drawn": "recordings" if windows.dataset in PAPER else "windows",
            "nuisance": job.nuisance if job.data is None else None,
        },
        "preset": job.preset,
        "settings_of_ATD": settings,
        "graph_weight_of_GR-SALS": estimators["GR-SALS"].graph_weight,
        "seeds": list(range(job.seeds)),
        "jobs": job.jobs,
        **provenance(str(choose_device(job.device))),
        "summary": summarise(rows),
        "rows": rows,
    }


def _checksum(data: Path | None) -> str | None:
    """What tells whether the data is the same: of a store the checksum in its manifest, which covers all of it."""
    if data is None:
        return None
    return str(read_manifest(data)["checksum"]) if data.is_dir() else digest(data)


def _cells(entry: Row) -> list[str]:
    spread = {kind: f" ± {entry[f'{kind}_std']:.2f}" if f"{kind}_std" in entry else "" for kind in PROBES}
    accuracies = [f"{entry[kind]:.2f}{spread[kind]}" for kind in PROBES if kind in entry]
    return [
        entry["method"],
        *accuracies,
        f"{entry['parameters']:,.0f}",
        f"{entry['seconds_per_sweep']:.3f}",
        f"{entry['sweeps']:.0f}",
        f"{entry['fit']:.3f}",
    ]


def _heads(result: dict[str, Any]) -> list[str]:
    accuracies = [f"{kind} %" for kind in PROBES if kind in result["summary"][0]]
    return ["method", *accuracies, "parameters", "s/sweep", "sweeps", "fit"]


def _title(result: dict[str, Any], protocol: str) -> str:
    split = {"subject": "people apart", "paper": f"{result['data']['drawn']} drawn at random"}[protocol]
    labelled = PROBES[0] in result["summary"][0]
    count = len(result["seeds"])
    seeds = f"{count} seed{'s' * (count > 1)}"
    return f"{result['title']}, {seeds}" + (f", protocol {protocol}: {split}" if labelled else "")


def _table(result: dict[str, Any], protocol: str) -> Table:
    table = Table(
        title=Text(_title(result, protocol), "table.title"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    for number, head in enumerate(_heads(result)):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for entry in result["summary"]:
        if entry["protocol"] == protocol:
            table.add_row(*_cells(entry))
    return table


def _markdown(result: dict[str, Any]) -> str:
    """The tables as Markdown, with what is needed to make them again."""
    lines = []
    for protocol in dict.fromkeys(entry["protocol"] for entry in result["summary"]):
        heads = _heads(result)
        lines += [
            f"**{as_text(_title(result, protocol))}**",
            "",
            f"| {' | '.join(heads)} |",
            f"|---{'|---:' * (len(heads) - 1)}|",
        ]
        entries = [entry for entry in result["summary"] if entry["protocol"] == protocol]
        lines += [f"| {' | '.join(_cells(entry))} |" for entry in entries] + [""]
    machine = result["machine"]
    where = machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads"
    lines.append(
        "Accuracy of a logistic regression on plain and on standardised features, mean ± standard deviation over the "
        f"seeds. {as_code(result['command'])}, {where}, {result['date']}, "
        f"commit {result['commit']}."
    )
    return "\n".join(lines) + "\n"
