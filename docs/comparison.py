"""The table of the README, generated from the results of `python -m paper labels` in `labels/labels.json`.

`python docs/comparison.py` writes it into the README.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # `paper` is in no installed package
from paper.labels.tables import paired_tests, split_scores

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "labels"
ROWS = (
    ("polyadic", "score", "**polyadic**"),
    ("polyadic", "labelled only", "polyadic, labelled windows only"),
    ("PCA-32", "with unlabelled", "PCA of the same spectra"),
    ("statistics", "with unlabelled", "statistics of each channel"),
    ("hand features", "with unlabelled", "features by hand"),
    ("MiniRocket", "with unlabelled", "MiniRocket"),
    ("MiniRocket", "score", "MiniRocket, labelled windows only"),
    ("the paper's ATD, Probe", "with unlabelled", "ATD as in the paper"),
)
SHORT = {"har": "HAR", "geotec": "GeoTec", "sisfall": "SisFall", "eegmat": "EEGMAT", "ludb": "LUDB", "ptb-xl": "PTB-XL"}
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
        "Mean over six data sets, of people on whom no setting was chosen: HAR and GeoTec (phones), SisFall (falls), "
        "EEGMAT (EEG), LUDB and PTB-XL (ECG, PTB-XL with missing samples). All methods have the same classifier; it "
        "also uses unlabelled windows, except where a row says otherwise. Parameters are those of the features for "
        f"HAR. {_claim(result)} [Each set, with standard errors and tests]({link}).",
    ]
    return "\n".join(lines) + "\n"


def _claim(result: dict[str, Any]) -> str:
    """Return a sentence on the significant differences of polyadic from the other rows on single sets."""
    rivals = [row[:2] for row in ROWS if not row[2].strip("*").startswith("polyadic")]
    tests = {key: test for key, test in paired_tests(result).items() if key[1:3] in rivals}
    found = {key: gap for key, (gap, _, p) in tests.items() if p < 0.05}
    ahead = Counter(SHORT[data] for (data, *_), gap in found.items() if gap > 0)
    behind = len(found) - ahead.total()
    where = ", ".join(f"{count} on {name}" for name, count in ahead.most_common())
    return (
        f"Of the {len(tests)} differences from polyadic by set, method and number of labels, {ahead.total()} are "
        f"significantly in its favour ({where}), {behind or 'none'} against it."
    )


def _numbers(result: dict[str, Any], method: str) -> str:
    rows = [row["numbers"] for row in result["fits"] if (row["set"], row["method"]) == ("har", method)]
    return f"{rows[0]:,}" if rows else ""


def write() -> None:
    """Write the table into the README."""
    README.write_text(BETWEEN.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
