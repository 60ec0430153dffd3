"""The comparison in the README, from the file of the results: `python docs/comparison.py` writes it anew.

It takes `table2-har-tuned.json`, every method at the best of its tries, where that is there, else `table2-har.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "har"
METHODS = {
    "ATD": "ATD as in the paper, rank 32",
    "ATD_ss-": "the same without its self-supervised term",
    "SALS": "SALS",
    "CNN": "supervised CNN",
    "Hand": "hand-made statistics and spectrum",
    "MiniRocket": "MiniRocket and ridge",
}
BETWEEN = re.compile(r"(?<=<!-- comparison -->\n).*?(?=<!-- end of the comparison -->)", re.DOTALL)


def table() -> str:
    """Accuracy of some methods with standardised probes, mean and standard deviation over the seeds, in Markdown."""
    path = next(path for path in (RESULTS / "table2-har-tuned.json", RESULTS / "table2-har.json") if path.exists())
    found = json.loads(path.read_text(encoding="utf-8"))
    lines = ["| | parameters | windows at random, as in the paper | subject-wise split |", "|---|---:|---:|---:|"]
    for method, name in METHODS.items():
        rows = [row for row in found["rows"] if row["method"] == method]
        sizes = {row["parameters"] for row in rows}
        figures = " | ".join(_accuracy(rows, protocol) for protocol in ("paper", "subject"))
        lines.append(f"| {name} | {' to '.join(f'{size:,}' for size in sorted(sizes))} | {figures} |")
    link = path.relative_to(ROOT).as_posix()
    settings = "each method at the best of its tries" if "tuned" in path.name else "settings of 0.1.0"
    lines += ["", f"{len(found['seeds'])} seeds, standardised probe, {settings}: [`{link}`]({link})."]
    return "\n".join(lines) + "\n"


def _accuracy(rows: list[dict[str, object]], protocol: str) -> str:
    # Classifiers have one figure, whatever the probe; it stands under both.
    scores = [100 * row["standardised"]["accuracy"] for row in rows if row["protocol"] == protocol]  # type: ignore[index]
    return f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"


if __name__ == "__main__":
    README.write_text(BETWEEN.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")
