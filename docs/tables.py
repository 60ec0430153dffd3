"""Tables of the pages, generated from the files under `docs/results`: `python docs/tables.py` writes them.

A page marks the place of a table with `<!-- table: NAME -->` and `<!-- end of table -->`. The tests fail if a page
differs from its files. The command also writes the table of the README, from `comparison.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # `paper` is in no installed package

import comparison

from paper import missing
from paper.labels.tables import mean_and_error, split_scores
from paper.results import table
from paper.speed import cluster
from paper.speed import tables as speed_tables
from polyadic.presets import preset
from polyadic.spectral import recommended_stft

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
PLACE = re.compile(r"(?<=^<!-- table: )([\w-]+)( -->\n).*?(?=^<!-- end of table -->$)", re.MULTILINE | re.DOTALL)
NAMES = {"sleep_edf": "Sleep-EDF", "har": "HAR", "ptb_xl": "PTB-XL", "mgh": "MGH"}
Table = list[list[str]]


# ------------------------------------------------------------------------------------------------ reading and rendering


def _json(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / path).read_text(encoding="utf-8"))
    return found


def _tables(path: str) -> list[tuple[str, Table]]:
    """Return the tables of a Markdown file, each with the last line of text above it; the first row is the header."""
    above, found = "", []
    inside = False
    for line in (RESULTS / path).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not inside:
                found.append((above, []))
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                found[-1][1].append(cells)
        elif line.strip():
            above = line
        inside = line.startswith("|")
    return found


def _table(path: str, above: str, first: str = "") -> dict[str, dict[str, str]]:
    """Return the rows of the first table below a line with `above` whose first column name starts with `first`."""
    rows = next(rows for text, rows in _tables(path) if above in text and rows[0][0].startswith(first))
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}


def _number(value: float) -> str:
    """Format a number with three significant digits, or as an integer with thousands separators."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def whole(path: str) -> str:
    """Return a results file, with links that work from a page in `docs`."""
    text = (RESULTS / path).read_text(encoding="utf-8")
    folder = f"results/{Path(path).parent.as_posix()}"
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({folder}/\1)", text).strip() + "\n"


# --------------------------------------------------------------------------------------------------- accuracy by labels

METHODS = {
    "polyadic": "**polyadic** (default)",
    "ATD": "ATD on the same front end",
    "statistics": "statistics of each channel",
    "PCA-32": "PCA of the same spectra",
    "tangent space": "pyRiemann's tangent space",
    "MiniRocket": "MiniRocket",
    "the paper's ATD, Probe": "ATD as in the paper",
}


def which_tool() -> str:
    """Return the balanced accuracy on new subjects and model size of every method in the comparison."""
    result = _json("labels/labels.json")
    sets, known = result["sets"], {row["method"] for row in result["rows"]}
    rows = []
    for method, name in METHODS.items():
        if method in known:
            cells = [_accuracy(result, data, method, count) for data in sets for count in (10, "all")]
            rows.append([name, *cells, _size(result, method)])
    heads = [f"{about['title']}, {count}" for about in sets.values() for count in (10, "all")]
    return table(["labels per class", *heads, "parameters"], rows)


def _accuracy(result: dict[str, Any], data: str, method: str, count: object) -> str:
    # With the probe of polyadic, which uses unlabelled windows, where that was measured.
    scores = split_scores(result, data, method, count, "with unlabelled")
    scores = scores if len(scores) else split_scores(result, data, method, count)
    if not len(scores):
        return "–"
    mean, error = mean_and_error(scores, result["sets"][data]["test_share"])
    return f"{mean:.1f} ± {error:.1f}"


def _size(result: dict[str, Any], method: str) -> str:
    row = next((row for row in result["fits"] if (row["set"], row["method"]) == ("har", method)), None)
    return "–" if row is None else f"{row['numbers'] + row.get('probe_numbers', 0):,}"


def along() -> str:
    """Return the balanced accuracy along the recording and of each window by itself, on development subjects."""
    cells: dict[tuple[str, str], list[list[float]]] = {}
    for row in _json("along/development.json")["rows"]:
        cells.setdefault((row["set"], row["labels"]), []).append([row[kind] for kind in ("window", "along", "predict")])
    names = {"har": "HAR", "geotec": "GeoTec phone"}
    rows = [
        [f"{names[data]}, {count}", *(f"{sum(scores) / len(scores):.1f}" for scores in zip(*found, strict=True))]
        for (data, count), found in cells.items()
    ]
    return table(["labels per class", "window by itself", "along the recording", "as `predict` does"], rows)


SETS = {"har": "HAR, 9 channels", "geotec": "GeoTec phone, 6", "sisfall": "SisFall, 9", "eegmat": "EEGMAT, 20"}
SETS |= {"ludb": "LUDB heart axis, 12"}


def sensor_fails() -> str:
    """Return the balanced accuracy with dead and noisy channels, next to the best rival under the same fault."""
    found, rows = _json("missing/missing-final.json")["rows"], []
    for data, name in SETS.items():
        scores = missing.means(found, data)
        dead = {fault: missing.worst_dead(scores, fault) for fault in ("one channel", "a quarter")}
        cells = [f"{dead[fault][missing.OWN]:.1f}" for fault in dead]
        cells += [f"{scores[missing.OWN][f'{fault}, noise']:.1f}" for fault in dead]
        for fault in dead:
            best = max((one for one in scores if one != missing.OWN), key=dead[fault].__getitem__)
            cells.append(f"{scores[best]['clean']:.1f} → {dead[fault][best]:.1f}")
        rows.append([name, f"{scores[missing.OWN]['clean']:.1f}", *cells])
    heads = ["", "clean", "one dead", "a quarter", "one noise", "a quarter noise"]
    return table([*heads, "best rival: clean → one dead", "clean → a quarter"], rows)


def labels_needed() -> str:
    """Return the median number of labels that simulated annotators need, chosen by the program and at random."""
    found, cells = _json("label/simulated.json")["rows"], dict[str, list[str]]()
    for wrong, strategy in product((0.0, 0.05), ("polyadic", "random")):
        for data in dict.fromkeys(row["set"] for row in found):
            rows = [row for row in found if (row["set"], row["wrong"], row["strategy"]) == (data, wrong, strategy)]
            needed = median(row["needed"] or 30 * row["classes"] for row in rows)
            cells.setdefault(data, []).append(f"{needed:.0f}")
    heads = ["", "polyadic", "random", "with 5 % wrong labels: polyadic", "random"]
    return table(heads, [[SETS[data].partition(",")[0], *own] for data, own in cells.items()])


def tuned() -> str:
    """Return the balanced accuracy of tuned and recommended settings, from the results file."""
    rows = list(_table("tuning/tuning.md", "Written by", "labels per class").values())
    names = ("labels per class", "tuned", "recommended", "difference", "changed", "without validation")
    names = tuple(name for name in names if name in rows[0])
    return table(names, ([_with_minus(row[name]) for name in names] for row in rows))


def _with_minus(cell: str) -> str:
    return f"−{cell[1:]}" if cell.startswith("-") else cell


# ----------------------------------------------------------------------------------------------------- default settings


def default_frames() -> str:
    """Return the default transform for the paper's data sets, next to the paper's transform."""
    shapes = {"sleep_edf": (7, 3000, 100), "har": (9, 128, 50), "ptb_xl": (12, 5000, 500), "mgh": (6, 6000, 200)}
    rows = []
    for name, (channels, length, fs) in shapes.items():
        row = [f"{NAMES[name]}, {fs} Hz", f"{channels} × {length}"]
        for stft in (recommended_stft(length, fs), preset(name).tensorize):
            size = " × ".join(map(str, stft.shape(channels, length)))
            row += [f"`n_fft={stft.n_fft}, hop={stft.hop}`", size]
        rows.append(row)
    return table(["data set", "window", "default `STFT`", "tensor", "the paper's `STFT`", "tensor"], rows, 6)


def front_end(what: str, settings: dict[str, str]) -> str:
    """Return the balanced accuracy on development subjects with one setting changed; `settings` names the rows."""
    tables = _json("defaults/front-end.json")["tables"]
    heads = [f"{name.split(' ')[0]}, {count}" for name in tables for count in ("10", "all")]
    rows = []
    for setting, shown in settings.items():
        cells = []
        for tried in tables.values():
            row = next((row for row in tried if (row["what"], row["setting"]) == (what, setting)), {})
            cells += [f"{row[count]:.1f}" if row.get(count) is not None else "–" for count in ("10", "all")]
        rows.append([shown, *cells])
    return table([what, *heads], rows)


# ---------------------------------------------------------------------------------------------------------------- speed


def speed_sweeps() -> str:
    """Return the seconds per sweep of ATD with the paper's settings."""
    rows = []
    files = [_json(f"speed/speed-{device}.json")["rows"] for device in ("cpu", "cuda")]
    for cpu, cuda in zip(*files, strict=True):
        sweeps = [_number(row["sweep"]["sweep_seconds"]) for row in (cpu, cuda)]
        paper = cpu["sweep"]
        rows.append([NAMES[cpu["dataset"]], f"{paper['paper_windows']:,}", *sweeps, _number(paper["paper_seconds"])])
    har = [next(row["sweep"]["features"] for row in rows if row["dataset"] == "har") for rows in files]
    rates = [features["windows_per_second"] for features in har]
    return table(["s per sweep", "windows", "2 CPU cores", "H200", "the paper"], rows) + (
        f"\nFeatures: {rates[1] / 1e6:.1f} million HAR windows per second on the H200, {rates[0]:,.0f} on two CPU "
        "cores.\n"
    )


def speed_of(device: str, part: str, render: Callable[[Any], str]) -> str:
    """Return a part of the results of `python -m paper speed` on one device."""
    return render(_json(f"speed/speed-{device}.json")[part])


def speed_compared() -> str:
    """Return the seconds of PCA and TensorLy next to polyadic's, and the load of the machine."""
    result = _json("speed/speed-cpu.json")
    pca, tensorly = result["pca"], result["tensorly"]
    text = (
        f"- scikit-learn's PCA(32) of the same spectra, {pca['windows']:,} windows of HAR's shape: a default fit takes "
        f"{speed_tables.compared(pca, 'pca')} (median, lowest and highest).\n"
        f"- TensorLy's `parafac`, a full-batch sweep over {tensorly['windows']:,} tensors: `SALS(batch_size=None)` "
        f"takes {speed_tables.compared(tensorly, 'tensorly')}.\n"
    )
    if result["load"] > 1:
        text += (
            f"\nThe CPU was busy before this run (load average {result['load']:.1f}), so that its seconds "
            "are too long. Ratios are affected less.\n"
        )
    return text


def dask() -> str:
    """Return the seconds, bytes and memory of fits on Dask clusters, and the computed cluster."""
    files = "[`cluster.json`](results/cluster/cluster.json), by `python -m paper cluster`"
    return f"{cluster.summary(_json('cluster/cluster.json'))}\n({files}.)\n"


# ----------------------------------------------------------------------------------------------------------- components


def replication() -> str:
    """Return how often components replicate on HAR with non-negative profiles."""
    (_, rows), *_ = _tables("replicability/cpu.md")
    heads, found = rows[0], {}
    for row in rows[1:]:
        cell = dict(zip(heads, row, strict=True))
        if (cell["set"], cell["profiles"]) == ("HAR", "non-negative"):
            found.setdefault(cell["fit"], []).extend([_mean(cell["above 0.9"]), _mean(cell["mean match"])])
    named = {
        "one start": "one start (default)",
        "best of 30": "best of 30 starts (`restarts=30`)",
        "consensus of 30": "consensus of 30 starts (`restarts=30, consensus=True`)",
    }
    heads = ["", "rank 8: above 0.9", "mean match", "rank 16: above 0.9", "mean match"]
    return table(heads, [[shown, *found[fit]] for fit, shown in named.items()])


def people_components() -> str:
    """Return rank, replication, bands, correlations and signs of the components for people."""
    rows = _json("components/components.json")["rows"]
    names = {"har": "HAR", "sisfall": "SisFall", "eegmat": "EEGMAT"}
    lines = [
        ["people", *(str(row["groups"]) for row in rows)],
        ["components that replicate", *(f"{row['shown']} of {row['rank']}" for row in rows)],
        ["half width of bands: channels", *(f"{100 * row['band_half_width'][0]:.0f} %" for row in rows)],
        ["frequencies", *(f"{100 * row['band_half_width'][1]:.0f} %" for row in rows)],
        ["correlation between expressions", *(f"{row['correlation_of_expressions']:.2f}" for row in rows)],
        ["between relative expressions", *(f"{row['correlation_of_relative_expressions']:.2f}" for row in rows)],
        ["of expression and coefficient", *(f"{row['correlation_with_coefficient']:.2f}" for row in rows)],
        [
            "class effects in which the coefficient has the wrong sign",
            *(f"{row['opposite_signs']} of {row['class_effects']}" for row in rows),
        ],
    ]
    return table(["", *(names[row["set"]] for row in rows)], lines)


def _mean(cell: str) -> str:
    """Return the mean from a cell `mean (minimum to maximum)`."""
    return cell.split(" (")[0]


# --------------------------------------------------------------------------------------------------- the paper's tables

PROTOCOLS = {"random windows": "protocol paper", "subject-wise": "protocol subject"}


def accuracies(path: str, with_size: bool = True) -> str:
    """Return the accuracy of every method with both probes and both protocols, next to the paper's results."""
    tables = {name: _table(path, protocol) for name, protocol in PROTOCOLS.items()}
    heads = [f"{name}, {probe}" for name in tables for probe in ("plain", "standardised")]
    rows = []
    for method, about in tables["random windows"].items():
        if method.endswith("-128"):
            continue  # listed on the results page only
        cells = [rows_of[method][probe] for rows_of in tables.values() for probe in ("plain", "standardised")]
        rows.append([method, *cells, *([about["parameters"]] if with_size else []), about["paper"]])
    return table(["accuracy, %", *heads, *(["parameters"] if with_size else []), "paper (random, plain)"], rows)


def differences(paths: dict[str, str]) -> str:
    """Return the differences between ATD and ATD_ss- or SALS in points, with p-values."""
    probes = ["plain", "standardised", "augmented", "standardised, perturbed", "augmented, perturbed"]
    rows = []
    for data, path in paths.items():
        for name, protocol in PROTOCOLS.items():
            below = False
            for above, lines in _tables(path):
                below = below or protocol in above
                if below and lines[0][0].startswith("points"):
                    for row in lines[1:]:
                        cells = dict(zip(lines[0], row, strict=True))
                        what = row[0].replace(" minus ", " − ")
                        rows.append([f"{data}, {name}: {what}", *(cells[probe] for probe in probes)])
                    break
    return table(["points (p)", *(probe.replace("augmented", "augmented probe") for probe in probes)], rows)


def deep_baselines() -> str:
    """Return the accuracy of the deep baselines with the paper's views and tuned, next to the paper's results."""
    library, tuned = (_table(f"har/table2-har{end}.md", "protocol paper") for end in ("", "-tuned"))
    rows = [
        [method, about["paper"], about["plain"], tuned[method]["plain"]]
        for method, about in library.items()
        if method.split("-")[0] in ("SimCLR", "BYOL", "AE", "AE_ss")
    ]
    return table(["accuracy, %", "paper", "the paper's views", "tuned"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "which-tool": which_tool,
    "along": along,
    "sensor-fails": sensor_fails,
    "labels-needed": labels_needed,
    "tuning": tuned,
    "default-frames": default_frames,
    "frames": partial(front_end, "frames", {name: name for name in ("0.32 s", "0.64 s", "1.28 s", "2.56 s")}),
    "floor": partial(
        front_end,
        "floor",
        {
            "0.03 by unit": "0.03 by unit",
            "0.1 by unit": "0.1 by unit",
            "0.3 by unit": "**0.3 by unit**",
            "1 by unit": "1 by unit",
            "0.3 by all": "0.3 for all channels",
            "0.3 by channel": "0.3 by channel",
        },
    ),
    "profiles": partial(
        front_end, "profiles", {"non-negative": "**non-negative**", "of either sign": "of either sign"}
    ),
    "features": partial(front_end, "features", {"readout": "**readout**", "coefficients": "coefficients"}),
    "speed-sweeps": speed_sweeps,
    "speed-fits-cpu": partial(speed_of, "cpu", "fits", speed_tables.fit_table),
    "speed-fits-cuda": partial(speed_of, "cuda", "fits", speed_tables.fit_table),
    "speed-growth": partial(speed_of, "cpu", "growth", speed_tables.growth_table),
    "speed-store": partial(speed_of, "cpu", "store", speed_tables.store_table),
    "dask": dask,
    "speed-compared": speed_compared,
    "replication": replication,
    "people-components": people_components,
    "har": partial(accuracies, "har/table2-har.md"),
    "ptb-xl": partial(accuracies, "ptb_xl/table2-ptb_xl-tuned.md", with_size=False),
    "self-supervised": partial(
        differences,
        {"HAR": "har/table2-har.md", "PTB-XL, tuned": "ptb_xl/table2-ptb_xl-tuned.md"},
    ),
    "deep-baselines": deep_baselines,
    "cortex-m": partial(whole, "microcontroller/cortex-m.md"),
}


# ------------------------------------------------------------------------------------------- figures in running text


def statements() -> list[tuple[str, str]]:
    """Return pages and the statements they must contain, with figures computed from the results files."""
    return [
        *_statements_on_memory(),
        *_statements_on_results(),
        *_statements_on_components(),
        ("which-tool.md", f"with {_size(_json('labels/labels.json'), 'polyadic')} parameters for HAR"),
    ]


def _statements_on_memory() -> Iterable[tuple[str, str]]:
    measured = _json("store/memory.json")
    mib = {name: measured[f"{name}_bytes"] / 2**20 for name in ("own", "after_imports")}
    yield "memory.md", f"a store of {measured['stored_bytes'] / 2**30:.1f} GiB"
    yield "memory.md", f"{mib['own']:.0f} MiB above the {mib['after_imports']:.0f} MiB after the imports"


def _statements_on_components() -> Iterable[tuple[str, str]]:
    yield "components.md", f"they cover {100 * _json('components/components.json')['coverage']:.0f} % of the entries"
    compared = _json("components/eegmat.json")
    yield "components.md", f"{compared['replicating']} of {compared['rank']} components replicate"
    simulated = _json("compare/simulations.json")
    error = {row["design"]: 100 * row["family_wise_error"] for row in simulated["rows"]}
    yield "components.md", f"with three groups, in {error['three groups']:.1f} %"
    yield "components.md", f"with 5 against 80 windows, in {error['very unequal windows']:.1f} %"
    power = simulated["power"][-1]
    yield "components.md", f"have a power of {100 * power['components']:.0f} %, the band powers of all 16 channels"


def _statements_on_results() -> Iterable[tuple[str, str]]:
    random, subject = (_table("har/table2-har.md", protocol) for protocol in PROTOCOLS.values())
    ours = [float(rows["ATD"]["standardised"].split(" ")[0]) for rows in (random, subject)]
    yield "evaluate.md", f"has {ours[0]:.1f} % with random windows and {ours[1]:.1f} %"
    yield "results/README.md", f"Yes: {random['ATD']['plain']} with library settings"
    best = {name: float(subject[name]["standardised"].split(" ")[0]) for name in ("Hand", "MiniRocket", "CNN")}
    yield "results/README.md", f"reach {best['Hand']:.1f} subject-wise, MiniRocket {best['MiniRocket']:.1f}"
    yield "results/README.md", f"the supervised CNN {best['CNN']:.1f}"
    yield "limits.md", f"has {ours[0]:.1f} % with a random split and {ours[1]:.1f} % with a subject-wise one"
    exported = _json("microcontroller/cortex-m.json")["rows"]
    changed = max(
        code["complete"]["other_labels"] / code["complete"]["windows"] for row in exported for code in row["c"]
    )
    yield "deploy.md", f"0 to {100 * changed:.1f} % of the labels change"


def filled(text: str) -> str:
    """Return the text of a page, with its tables generated from the files under `docs/results`."""
    return PLACE.sub(lambda place: f"{place[1]}{place[2]}{TABLES[place[1]]()}", text)


PAGES = [*sorted(DOCS.glob("*.md")), RESULTS / "README.md"]

if __name__ == "__main__":
    comparison.write()
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if filled(before) != before:
            page.write_text(filled(before), encoding="utf-8")
            print(page.relative_to(DOCS.parent))
