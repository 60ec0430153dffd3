"""The table of the README, generated from the results of `python -m paper labels` in `labels/labels.json`.

`python docs/comparison.py` writes it into the README.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from paper.labels.tables import split_scores

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "labels"
ROWS = (
    ("polyadic", "score", "**polyadic**"),
    ("polyadic", "labelled only", "polyadic, labelled windows only"),
    ("PCA-32", "with unlabelled", "PCA of the same spectra"),
    ("statistics", "with unlabelled", "statistics of each channel"),
    ("MiniRocket", "with unlabelled", "MiniRocket"),
    ("MiniRocket", "score", "MiniRocket, labelled windows only"),
    ("the paper's ATD, Probe", "with unlabelled", "ATD as in the paper"),
)
COUNTS = (1, 3, 10, 30, "all")
BETWEEN = re.compile(r"(?<=<!-- comparison -->\n).*?(?=<!-- end of the comparison -->)", re.DOTALL)


def table() -> str:
    """Return a Markdown table of balanced accuracy on new subjects, mean over the sets, by labels per class."""
    result: dict[str, Any] = json.loads((RESULTS / "labels.json").read_text(encoding="utf-8"))
    lines = [
        f"| balanced accuracy on new subjects, %; labels per class | {' | '.join(map(str, COUNTS))} | parameters |",
        "|---" + "|---:" * (len(COUNTS) + 1) + "|",
    ]
    for method, column, name in ROWS:
        means = [
            np.mean([split_scores(result, data, method, count, column).mean() for data in result["sets"]])
            for count in COUNTS
        ]
        mark = "**" if (method, column) == ("polyadic", "score") else ""
        cells = [f"{mark}{mean:.1f}{mark}" for mean in means]
        lines.append(f"| {name} | {' | '.join(cells)} | {_numbers(result, method)} |")
    link = (RESULTS / "labels.md").relative_to(ROOT).as_posix()
    lines += [
        "",
        "Mean over six data sets (two of phones and one of falls; EEG; ECG; ECG with missing samples) of people on "
        "whom no setting was chosen. All methods have the same classifier, which also uses unlabelled windows; "
        f"parameters of the features for HAR. [Each set, with standard errors and tests]({link}).",
    ]
    return "\n".join(lines) + "\n"


def _numbers(result: dict[str, Any], method: str) -> str:
    rows = [row["numbers"] for row in result["fits"] if (row["set"], row["method"]) == ("har", method)]
    return f"{rows[0]:,}" if rows else ""


def write() -> None:
    """Write the table into the README."""
    README.write_text(BETWEEN.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
