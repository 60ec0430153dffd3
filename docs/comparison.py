"""The table of the README, from the results of `polyadic bench labels`: `python docs/comparison.py` writes it anew.

Accuracies are those of `labels/labels.json`. Seconds come from a run of the same command on a machine that did nothing
else, `labels/seconds/labels.json`, with one split.
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
    "the paper's ATD, plain probe": "ATD as in the paper",
}
COUNTS = (3, 10, "all")
BETWEEN = re.compile(r"(?<=<!-- comparison -->\n).*?(?=<!-- end of the comparison -->)", re.DOTALL)


def table() -> str:
    """Balanced accuracy of some methods on new people by labels per class, with sizes and seconds, in Markdown."""
    result = _read(RESULTS / "labels.json")
    timed = _read(RESULTS / "seconds" / "labels.json")
    sets = result["sets"]
    heads = ["", *(f"{about['title']}, {count}" for about in sets.values() for count in COUNTS), "numbers", "seconds"]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for method, name in METHODS.items():
        cells = [_accuracy(result, data, method, count) for data in sets for count in COUNTS]
        lines.append(f"| {' | '.join([name, *cells, _numbers(result, method), _seconds(timed, method)])} |")
    machine, splits = timed["machine"], ", ".join(f"{about['splits']} ({about['title']})" for about in sets.values())
    link = (RESULTS / "labels.md").relative_to(ROOT).as_posix()
    lines += [
        "",
        f"Balanced accuracy in percent ± standard error by labels per class, on people who took no part in any choice; "
        f"splits: {splits}. *Numbers* and *seconds* are those for HAR: numbers in the model and in its probe; seconds "
        f"to learn from 7,428 windows and train on all labels, with {machine['threads']} threads of an "
        f"{machine['processor']}. All methods and all tests: [`{link}`]({link}).",
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


def _seconds(timed: dict[str, Any], method: str) -> str:
    row = _fit(timed, method)
    return f"{row['fit_seconds'] + row['predict_seconds'] + row['probe_seconds']:.1f}"


if __name__ == "__main__":
    README.write_text(BETWEEN.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")
