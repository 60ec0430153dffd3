"""Simulated annotators: `python -m paper label`."""

from __future__ import annotations

import json
from pathlib import Path

from paper import label


def test_every_strategy_is_simulated_with_and_without_wrong_labels(tmp_path: Path) -> None:
    label.run(tmp_path, tmp_path, ("synthetic",), runs=1)
    result = json.loads((tmp_path / "simulated.json").read_text())
    assert {(row["strategy"], row["wrong"]) for row in result["rows"]} == {
        (strategy, wrong) for strategy in label.STRATEGIES for wrong in label.ERRORS
    }
    for row in result["rows"]:
        count, score = row["curve"][-1]
        assert (score >= row["target"]) == (row["needed"] is not None)
        assert row["needed"] in (None, count)
    assert {"commit", "date", "machine"} <= result.keys()
    assert "| synthetic |" in (tmp_path / "simulated.md").read_text()
