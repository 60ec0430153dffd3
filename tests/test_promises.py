"""Every promise of the documentation names tests, and `make test` runs them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PROMISES = (HERE.parent / "docs" / "promises.md").read_text(encoding="utf-8")


@cache
def defined(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def only_long(function: ast.FunctionDef) -> bool:
    """Whether a test is marked long, or all of its cases are."""
    for decorator in function.decorator_list:
        if ast.unparse(decorator) in ("long", "pytest.mark.long"):
            return True
        cases = decorator.args[1] if isinstance(decorator, ast.Call) and len(decorator.args) > 1 else None
        if isinstance(cases, ast.List) and all("mark.long" in ast.unparse(case) for case in cases.elts):
            return True
    return False


def promised() -> set[str]:
    """The tests that hold the promises; each promise has one or more."""
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ") and not line.startswith("| guarantee")]
    assert len(rows) > 20
    found = [re.findall(r"`(test_\w+\.py::\w+)`", row.split("|")[-2]) for row in rows]
    assert all(found), rows
    return {test for tests in found for test in tests}


def test_every_promise_names_tests_that_are_not_marked_long() -> None:
    tests = promised()
    files = {test.partition("::")[0] for test in tests}
    short = {f"{file}::{name}" for file in files for name, function in defined(file).items() if not only_long(function)}
    assert tests - short == set()
