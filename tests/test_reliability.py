"""The reliability run in its shortest form: every part is counted, and failures end it with an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import reliability

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
def test_the_reliability_run_counts_its_work(tmp_path: Path) -> None:
    out = tmp_path / "results" / "reliability.json"
    options = ["--kills", "2", "--each", "2", "--fits", "2", "--seconds", "0.5", "--gib", "0", "--no-faults"]
    words = [sys.executable, str(HERE / "reliability.py"), str(out), *options]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["lost"] == []
    assert found["kills"]["same to the bit"] == 2
    assert found["mutations"]["mutations"] == 2 * len(found["mutations"]["kinds"]) >= 16
    assert found["endurance"]["fits"]["fits"] == 2
    assert {"commit", "machine", "date", "versions"} <= found.keys()


def test_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "killed_fits.py": {"kills": 3, "same to the bit": 2},
        "mutations.py": {"seed": 0, "EDF": {"mutations": 2, "wrong": ["EDF 1: crashed"]}},
        "endurance.py": {"fits": {"grew_bytes": 9}, "soak": {"grew_bytes": 2}, "allowed_bytes": 5},
    }
    monkeypatch.setattr(reliability, "told", lambda script, *options: answers[script.name])
    assert len(reliability.kills(3, 0)[1]) == 1
    assert reliability.mutations(2, 0)[1] == ["EDF 1: crashed"]
    assert len(reliability.endurance(1, 1)[1]) == 1


def test_a_failing_test_is_a_fault_not_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text("def test_a():\n    assert 0\ndef test_b():\n    pass\n")
    monkeypatch.setattr(reliability, "FAULTS", {"kind": [str(tmp_path / "test_it.py")]})
    counts, lost = reliability.faults()
    assert counts["injected"] == 2
    assert lost == ["test_a"]
