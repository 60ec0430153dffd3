"""A few damaged files of every kind; `python tests/mutations.py --each 1000` tests more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import python


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
@pytest.mark.parametrize("each", [8, pytest.param(25, marks=pytest.mark.long)])
def test_damaged_files_of_every_kind_are_refused_or_read_soundly(each: int) -> None:
    program = "import mutations; mutations.main()"
    found = json.loads(python(program, "--each", each, "--seed", "1", cwd=Path(__file__).parent).stdout)
    found.pop("seed")
    assert len(found) == 7
    for name, counts in found.items():
        assert counts["wrong"] == [], name
        assert counts["mutations"] == counts["refused"] + counts["read"] == each, name
        assert counts["refused"] > each / 5, name
