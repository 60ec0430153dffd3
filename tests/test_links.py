"""Links within the project: every file, picture and heading that a text links to exists in the repository, unbuilt.

Links to other sites are checked by `make linkcheck`, which needs a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|<(?:img|a|source)[^>]+?(?:src|href|srcset)=\"([^\"]+)\"")


def prose(text: str) -> str:
    """A page without its blocks of code and its code in lines."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```|~~~|:::).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text: str) -> set[str]:
    """What headings are called in addresses: small letters, hyphens for spaces, no other signs."""
    headings = re.findall(
        r"^#+ +(.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> Iterator[str]:
    """Links of a page to what is not there."""
    for found in LINK.finditer(prose(text)):
        target, _, anchor = (found[1] or found[2]).partition("#")
        if re.match(r"https?:|mailto:", target):
            continue
        place = (page.parent / target).resolve() if target else page
        if place.is_relative_to(ROOT / "docs" / "gallery"):  # exists only after a build
            yield target
        elif not place.exists() or (anchor and anchor not in anchors(place.read_text(encoding="utf-8"))):
            yield found[1] or found[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_targets_of_pages_exist(page):
    assert list(broken(page, page.read_text(encoding="utf-8"))) == []
