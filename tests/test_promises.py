"""Every promise of the documentation names tests, and those tests exist."""

from __future__ import annotations

import ast
import re
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


def test_every_promise_names_tests_that_exist() -> None:
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    for row in rows:
        tests = re.findall(r"`(test_\w+\.py::\w+)`", row.split("|")[-2])
        assert tests, row
        for test in tests:
            assert_exists(test)


def test_every_fault_of_the_long_run_is_a_test_that_exists() -> None:
    for tests in reliability.FAULTS.values():
        for test in tests:
            assert_exists(test)
