"""`polyadic run`: what users want to know first, on simulated nights or on their own windows.

How well do features work on new subjects with few labels, and what happens if a sensor fails? The library's default is
compared with plain statistics, PCA of the same spectra and the paper's ATD. All have the same probe.
"""

from __future__ import annotations

import itertools
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.terminal import echo, print_notes, print_table, printable
from polyadic.cli.files import check_out_folder
from polyadic.cli.fit import found_components
from polyadic.cli.options import Common, Fs, Rank, option, out_option, with_options
from polyadic.cli.windows import naming_dead_channels
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from polyadic.data import Windows

EXAMPLES = """
Simulated nights; and your own windows, at 100 Hz:
  polyadic run
  polyadic run --data windows.npz --fs 100
"""

_LABELS = {"3": 3, "10": 10, "all": None}
"""Labels per class of each column; None for all."""
_DEAD = "dead"
_SPLITS = 3
"""Number of random divisions of the subjects into halves."""
_NEXT = """Next, with a folder of your own recordings (EDF, WFDB, BIDS, CSV, …), in windows of 30 seconds:
  polyadic label recordings --seconds 30 -o labels.csv                # label windows in the browser
  polyadic fit recordings --seconds 30 --labels labels.csv --probe    # features, components and a classifier
  polyadic report model.safetensors --data recordings --labels labels.csv    # scores on new subjects, and components"""


@with_options("device json quiet", reading=())
def run(
    common: Common,
    data: Annotated[
        Path | None,
        option("Store or .npz file with X, y and subject. Default: simulated nights.", metavar="DATA", exists=True),
    ] = None,
    rank: Rank = None,
    fs: Fs = None,
    out: Annotated[Path, out_option("The folder to write.", "FOLDER")] = Path("polyadic-run"),
) -> None:
    """See it work: few labels, and a sensor that fails, on simulated nights or on your own windows.

    Features and a probe (a simple classifier) are trained on half of the subjects and tested on the other half, three
    times. Shows the mean balanced accuracy with 3, 10 and all labels per class, and with each channel in turn set to
    zero in the test windows. Writes the model of all windows, the results as JSON, and a report.
    """
    import pandas as pd

    from polyadic._util.files import write_json
    from polyadic._util.progress import stage_bar
    from polyadic._util.provenance import provenance
    from polyadic.data import open_windows, synthetic_nights
    from polyadic.data.batches import choose_device

    check_out_folder(out, data)
    windows = synthetic_nights() if data is None else open_windows(data, fs=fs)
    if len(set(windows.label[windows.label >= 0].tolist())) < 2:
        raise PolyadicError(
            "run needs labels of at least two classes; polyadic fit needs none, polyadic label makes some"
        )
    if windows.index.n_subjects < 4 or (windows.subject == "").any():
        raise PolyadicError(
            f"run needs the subject of every window, and at least four, but knows {windows.index.n_subjects}"
        )
    given = {"rank": rank or 32, "device": common.device}
    methods, rows = _methods(windows, given), list[dict[str, Any]]()
    with stage_bar("comparing", common.hidden, "fits", _SPLITS * len(methods)) as show:
        for split, name in itertools.product(range(_SPLITS), methods):
            show(len(rows), stage=f"{name}, split {split + 1}")
            rows.append({"method": name, "split": split + 1, **score(windows, methods[name], split)})
    means = pd.DataFrame(rows).drop(columns="split").groupby("method", sort=False).mean()
    result = {
        "title": "simulated nights" if data is None else printable(data.name),
        "shape": list(windows.shape),
        "fs": windows.fs,
        "subjects": windows.index.n_subjects,
        **provenance(str(choose_device(common.device))),
        "summary": means.reset_index().to_dict("records"),
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "results.json", result)
    with naming_dead_channels(windows):
        _write_model(out, windows, result, given, common.hidden)
    if not common.json:
        _show(result)
    wrote = ", ".join(sorted(path.name for path in out.iterdir()))
    common.tell(result, shown=[f"Wrote {wrote} to {out}/", *_NEXT.splitlines()])


def _methods(windows: Windows, given: dict[str, Any]) -> dict[str, Any]:
    """Return the unfitted methods by name."""
    from polyadic import ATD, CPD
    from polyadic.baselines import PCAFeatures, StatisticsFeatures
    from polyadic.presets import paper_settings

    return {
        "polyadic": CPD(**given),
        "statistics": StatisticsFeatures(device=given["device"]),
        "PCA": PCAFeatures(given["rank"], device=given["device"]),
        "ATD, paper": ATD(**given, **paper_settings(windows.shape[2], windows.fs), max_sweeps=10),
    }


# ------------------------------------------------------------- fits and scores


def score(windows: Windows, estimator: Any, seed: int = 0) -> dict[str, Any]:
    """Train features and probes on half of the subjects, and return balanced accuracies in percent on the others."""
    import warnings

    import numpy as np
    from sklearn.base import clone
    from sklearn.metrics import balanced_accuracy_score

    from polyadic.evaluate import WindowClassifier, labels_of

    rng = np.random.default_rng(seed)
    subjects = rng.permutation(np.unique(windows.subject))
    inside = np.isin(windows.subject, subjects[: len(subjects) // 2])
    train, test = windows[inside], windows[~inside & (windows.label >= 0)]
    X = np.asarray(test.X)

    def accuracy(X: Any) -> float:
        return 100 * float(balanced_accuracy_score(labels_of(test), classifier.predict(X)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few sweeps, and of the channels that are set to zero
        begun = time.perf_counter()
        features = clone(estimator).set_params(random_state=seed).fit(train)
        row = {"seconds": time.perf_counter() - begun, "parameters": features.n_parameters_}
        for column, count in _LABELS.items():
            labels = np.where(_labelled(train.label, count, rng), labels_of(train), "")
            classifier = WindowClassifier(features).fit(train, labels)
            row[column] = accuracy(X)
        alive = (np.arange(X.shape[1])[:, None] != channel for channel in range(X.shape[1]))
        row[_DEAD] = float(np.mean([accuracy(np.where(working, X, X.dtype.type(0))) for working in alive]))
    return row


def _labelled(label: NDArray[Any], count: int | None, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose `count` labelled windows of each class at random, or all: (N,)."""
    import numpy as np

    if count is None:
        return np.asarray(label >= 0)
    known = np.zeros(len(label), bool)
    for code in np.unique(label[label >= 0]):
        rows = np.flatnonzero(label == code)
        known[rng.choice(rows, min(count, len(rows)), replace=False)] = True
    return known


# ---------------------------------------------------------------------- output


def _write_model(out: Path, windows: Windows, result: dict[str, Any], given: dict[str, Any], hidden: bool) -> None:
    """Fit the model of all windows, and write it and, if plotly is installed, its report."""
    from polyadic import CPD, report
    from polyadic._util.progress import stage_bar
    from polyadic.evaluate import WindowClassifier

    features = CPD(**given)
    sums = features.fit_with_moments(windows, windows.subject)
    model = WindowClassifier(features).fit(windows).as_model()
    # Half of the usual starts and refits, so that the demonstration does not take too long.
    model.components_ = found_components(sums, 0, hidden, restarts=4, refits=2, replicates=40)
    model.save(out / "model.safetensors")
    origin = {key: result[key] for key in ("command", "commit", "date", "machine", "versions")}
    if find_spec("plotly") is None:
        print_notes("There is no report.html, because plotly is not installed: pip install 'polyadic[report]'")
        return
    with stage_bar("report", hidden, "parts") as on_stage:
        report.write(out / "report.html", model, windows, origin=origin, on_stage=on_stage, title=result["title"])


def _show(result: dict[str, Any]) -> None:
    """Print the table, what it shows, and where another method wins."""
    import pandas as pd

    heads = {column: f"{column} labels" for column in _LABELS} | {_DEAD: "one sensor dead"}
    title = (
        f"{result['title']}: balanced accuracy on new subjects, % (mean of {_SPLITS} splits of {result['subjects']} "
        "subjects into halves)"
    )
    frame = pd.DataFrame(result["summary"]).set_index("method").rename_axis(None)[[*heads, "parameters", "seconds"]]
    print_table(
        frame.astype({"parameters": int}).rename(columns=heads | {"seconds": "seconds to fit"}), printable(title)
    )
    ours, *others = result["summary"]
    for name, head in heads.items():
        best = max(others, key=lambda entry: entry[name])
        if best[name] > ours[name]:
            echo(f"{best['method']} is ahead with {head}, by {best[name] - ours[name]:.1f} points.")
    echo("Labels are per class; all methods have the same probe, which also uses windows without a label.")
    echo("The report leaves out fewer subjects at a time, so its score differs.")
