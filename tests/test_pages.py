"""Tables and figures on the pages are those of the files under `docs/results`, quoted messages those of the source."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import tables  # noqa: E402


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --------------------------------------------------------------------------------------------------- tables and figures


@pytest.mark.parametrize("page", tables.PAGES, ids=named)
def test_the_tables_of_a_page_are_those_of_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == tables.filled(text), "python docs/tables.py writes them"


@pytest.mark.parametrize(("page", "stated"), tables.statements())
def test_a_figure_in_running_text_is_that_of_its_file(page: str, stated: str) -> None:
    assert stated in " ".join((DOCS / page).read_text(encoding="utf-8").split())


def test_every_table_is_on_a_page_and_every_place_is_closed() -> None:
    places = []
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        found = [place[1] for place in tables.PLACE.finditer(text)]
        assert len(found) == text.count("\n<!-- table: ") == text.count("\n<!-- end of table -->"), page.name
        places += found
    assert sorted(set(places)) == sorted(tables.TABLES)


# ------------------------------------------------------------------------------------------------------- error messages


def messages(page: str) -> list[str]:
    """Messages quoted in the first column of the tables, `…` for what varies."""
    cells = re.findall(r"^\| (`+) ?(.+?) ?\1 \|", page, re.MULTILINE)
    return [text for _, text in cells]


@cache
def literals() -> tuple[str, ...]:
    """Every text in the source, with `…` for what is put into it."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def is_in_the_source(message: str) -> bool:
    parts = [part.strip() for part in message.split("…") if part.strip(" :;,.?()")]
    wanted = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    likely = [text for text in literals() if max(parts, key=len) in text]
    return any(wanted.search(text) for text in likely)


def test_every_message_of_the_troubleshooting_page_is_in_the_source() -> None:
    quoted = messages((DOCS / "troubleshooting.md").read_text(encoding="utf-8"))
    assert len(quoted) > 40
    assert [message for message in quoted if not is_in_the_source(message)] == []
