"""Every promise of the documentation names tests, and `make test` runs them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import reliability

HERE = Path(__file__).parent
PROMISES = (HERE.parent / "docs" / "promises.md").read_text(encoding="utf-8")


def defined(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def assert_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert (HERE / file).is_file(), test
    assert not name or name in defined(file), test


def promised() -> set[str]:
    """The tests that hold the promises; each promise has one or more."""
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    found = [re.findall(r"`(test_\w+\.py::\w+)`", row.split("|")[-2]) for row in rows]
    assert all(found), rows
    return {test for tests in found for test in tests}


def test_every_promise_is_held_by_tests_that_are_not_left_to_the_long_run() -> None:
    tests = promised()
    files = sorted({str(HERE / test.partition("::")[0]) for test in tests})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-m", "not long", *files]
    done = subprocess.run(words, cwd=HERE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    collected = set(re.findall(r"^tests/(test_\w+\.py::\w+)", done.stdout, re.MULTILINE))
    assert tests - collected == set()


def test_every_fault_of_the_long_run_is_a_test_that_exists() -> None:
    for tests in reliability.FAULTS.values():
        for test in tests:
            assert_exists(test)
