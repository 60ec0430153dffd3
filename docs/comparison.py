"""The table of the README, from the results of `polyadic bench labels`: `python docs/comparison.py` writes it anew.

Accuracies and numbers are those of `labels/labels.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from polyadic.experiments.labels.tables import mean_and_error, split_scores

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "labels"
METHODS = {
    "polyadic": "**polyadic**",
    "hand features": "hand-made features",
    "MiniRocket": "MiniRocket",
    "PCA-32": "PCA of the same spectra",
    "the paper's ATD, plain probe": "ATD as in the paper",
    "polyadic 0.1.0, standardised probe": "polyadic 0.1.0",
}
COUNTS = (3, 10, "all")
BETWEEN = re.compile(r"(?<=<!-- comparison -->\n).*?(?=<!-- end of the comparison -->)", re.DOTALL)


def table() -> str:
    """Balanced accuracy of some methods on new people by labels per class, with their sizes, in Markdown."""
    result = _read(RESULTS / "labels.json")
    sets, known = result["sets"], {row["method"] for row in result["rows"]}
    heads = [
        "labels per class",
        *(f"{about['title']}, {count}" for about in sets.values() for count in COUNTS),
        "numbers",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for method, name in METHODS.items():
        if method in known:
            cells = [_accuracy(result, data, method, count) for data in sets for count in COUNTS]
            lines.append(f"| {' | '.join([name, *cells, _numbers(result, method)])} |")
    splits = ", ".join(f"{about['title']} {about['splits']}" for about in sets.values())
    link = (RESULTS / "labels.md").relative_to(ROOT).as_posix()
    lines += [
        "",
        "Balanced accuracy in percent ± standard error, by labels per class, on people who took no part in any choice; "
        f"splits: {splits}. *Numbers* are those in the model and its probe for HAR. All methods and all tests: "
        f"[`{link}`]({link}).",
    ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _accuracy(result: dict[str, Any], data: str, method: str, count: object) -> str:
    mean, error = mean_and_error(split_scores(result, data, method, count), result["sets"][data]["test_share"])
    return f"{mean:.1f} ± {error:.1f}"


def _fit(result: dict[str, Any], method: str) -> dict[str, Any]:
    return next(row for row in result["fits"] if (row["set"], row["method"]) == ("har", method))


def _numbers(result: dict[str, Any], method: str) -> str:
    row = _fit(result, method)
    return f"{row['numbers'] + row['probe_numbers']:,}"


def write() -> None:
    """Write the table into the README."""
    README.write_text(BETWEEN.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
