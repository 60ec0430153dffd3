"""The table of the README, generated from the results of `python -m paper labels` in `labels/labels.json`.

`python docs/comparison.py` writes it into the README.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from paper.labels.tables import mean_and_error, paired_tests, split_scores

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "labels"
METHODS = {
    "polyadic": "**polyadic**",
    "hand features": "hand-crafted features",
    "MiniRocket": "MiniRocket",
    "PCA-32": "PCA of the same spectra",
    "the paper's ATD, plain probe": "ATD as in the paper",
}
COUNTS = (3, 10, "all")
BETWEEN = re.compile(r"(?<=<!-- comparison -->\n).*?(?=<!-- end of the comparison -->)", re.DOTALL)


def table() -> str:
    """Return a Markdown table of balanced accuracy on new subjects by method and labels per class, sizes and times."""
    result = _read(RESULTS / "labels.json")
    sets, tests = result["sets"], paired_tests(result)
    lines = [
        f"| balanced accuracy on new subjects, % | labels per class | {' | '.join(METHODS.values())} |",
        "|---|---:" + "|---:" * len(METHODS) + "|",
    ]
    for data, about in sets.items():
        for count in COUNTS:
            cells = [
                _accuracy(result, data, method, count) + _mark(tests.get((data, method, str(count))))
                for method in METHODS
            ]
            lines.append(f"| {about['title']} | {count} | {' | '.join(cells)} |")
    lines.append(f"| *parameters* | | {' | '.join(_numbers(result, method) for method in METHODS)} |")
    lines.append(f"| *seconds to fit* | | {' | '.join(_seconds(result, method) for method in METHODS)} |")
    link = (RESULTS / "labels.md").relative_to(ROOT).as_posix()
    lines += [
        "",
        "Mean ± standard error over splits by subject; no setting was chosen on these subjects. ▼: significantly worse "
        "than polyadic; all other differences may be chance. HAR: six activities, phone at the waist. GeoTec: five "
        "activities, phone carried in any orientation. PTB-XL: sex from ECG. Size and time are for HAR with all "
        f"labels, classifier included, on two CPU cores. [All methods and tests]({link}).",
    ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _accuracy(result: dict[str, Any], data: str, method: str, count: object) -> str:
    mean, error = mean_and_error(split_scores(result, data, method, count), result["sets"][data]["test_share"])
    return f"{mean:.1f} ± {error:.1f}"


def _mark(test: tuple[float, float, float] | None) -> str:
    """Return a mark for methods that are significantly worse or better than polyadic, as in `labels.md`."""
    return "" if test is None or not test[2] < 0.05 else " ▼" if test[0] > 0 else " ▲"


def _fit(result: dict[str, Any], method: str) -> dict[str, Any]:
    return next(row for row in result["fits"] if (row["set"], row["method"]) == ("har", method))


def _numbers(result: dict[str, Any], method: str) -> str:
    row = _fit(result, method)
    return f"{row['numbers'] + row['probe_numbers']:,}"


def _seconds(result: dict[str, Any], method: str) -> str:
    row = _fit(result, method)
    total = row["fit_seconds"] + row["probe_seconds"]
    return f"{total:.0f}" if total >= 10 else f"{total:.1f}"


def write() -> None:
    """Write the table into the README."""
    README.write_text(BETWEEN.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
