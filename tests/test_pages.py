"""Pages are plain Markdown that reads well in the repository, and their tables, figures and messages are correct.

Tables are those of the files under `docs/results`; quoted error messages are those of the source.
"""

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
from executed import translate  # noqa: E402

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("results/**/*.md")),
]
GUIDES = [page for page in sorted(DOCS.glob("*.md")) if page.name != "limits.md"]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# ------------------------------------------------------------------------------------------------------- plain Markdown


def faults(text: str) -> list[str]:
    """What would show as raw markup on a page that was not built."""
    shown = re.sub(r"^<!-- sphinx\n.*?^-->$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^ *(?:```|~~~|:::)\{.*$", shown, re.MULTILINE)  # a directive
    prose = re.sub(r"^```.*?^```", "", shown, flags=re.MULTILINE | re.DOTALL)
    found += re.findall(r"\{(?:doc|ref|func|class|meth|math|term)\}`.*?`", prose)  # a role
    prose = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "code", prose)
    found += re.findall(r"(?<!!)\[\]\([^)]*\)", prose)  # a link without a text
    found += re.findall(r"^: .*$", prose, re.MULTILINE)  # a list of definitions
    found += re.findall(
        r"^\$\$\n(?:(?!\$\$)(?!\\begin).)*?&.*?^\$\$", prose, re.MULTILINE | re.DOTALL
    )  # bare alignment
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_shows_no_raw_markup_in_the_repository(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "```{run}\npass\n```",
        "```{toctree}\nindex\n```",
        ":::{note}\nText\n:::",
        "see {doc}`how`",
        "see [](how.md)",
        "term\n: meaning",
        "$$\n&a \\\\\n&b\n$$",
    ],
)
def test_raw_markup_would_be_found(text: str) -> None:
    assert faults(f"# Page\n\n{text}\n")


def placeholders(text: str) -> list[str]:
    """Marks of text or figures that were still to be filled in, in prose and code alike."""
    return re.findall(r"@@\w*|\b(?:TODO|TBD|FIXME|XXX)\b", text)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_has_a_placeholder_left(page: Path) -> None:
    assert placeholders(page.read_text(encoding="utf-8")) == []


def test_a_placeholder_would_be_found() -> None:
    assert placeholders("| HAR | @@RUN@@ |\n\n```sh\npolyadic fit TODO\n```\n") == ["@@RUN", "@@", "TODO"]


def test_markup_for_the_build_and_code_are_not_reported() -> None:
    assert faults("# P\n\n<!-- sphinx\n```{toctree}\na\n```\n-->\n\n`[](x)`\n\n```c\n: x\n```\n") == []
    assert faults("$$\n\\begin{aligned}\na &= b\n\\end{aligned}\n$$\n") == []


def test_markdown_is_translated_for_the_build() -> None:
    text = (
        "# P\n\n<!-- run -->\n```python\npass\n```\n[a](../examples/rank.py) [b](../examples)\n<!-- sphinx\n*x*\n-->\n"
    )
    built = translate(text, "page", ["rank"])
    assert "\n```{run}\npass\n```\n" in built
    assert "[a](gallery/rank.md) [b](gallery/index.md)" in built
    assert "*x*" in built
    assert "<!--" not in built
    assert built.count("\n") == text.count("\n")
    assert translate("[rules](../CONTRIBUTING.md) [r](results/README.md)", "page", []) == (
        "`CONTRIBUTING.md` [r](results/README.md)"
    )
    assert translate("[r](../README.md)", "results/har/table", []) == "[r](../README.md)"
    assert "[a](../gallery/rank.md)" in translate("[a](../../examples/rank.py)", "results/README", ["rank"])


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_a_page_starts_with_a_block_that_works(page: Path) -> None:
    # Python blocks run in `test_docs.py`; commands are parsed in `test_manual.py`.
    text = page.read_text(encoding="utf-8")
    start = text[: text.find("\n## ")]
    if page.name == "start.md":  # three ways in, each with its block
        start = text
    assert re.search(r"^```(?:python|sh)$", start, re.MULTILINE)


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = set(
        re.findall(r"^[\w/-]+$", "\n".join(re.findall(r"```\{toctree\}(.*?)```", index, re.DOTALL)), re.MULTILINE)
    )
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= listed
    assert "gallery/index" in listed


def test_every_example_is_listed_in_the_repository() -> None:
    listed = re.findall(r"\]\((\w+)\.py\)", (ROOT / "examples" / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


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


# ------------------------------------------------------------------------------------------------------------- glossary


def test_the_glossary_explains_the_terms_of_the_library() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = {term for row in re.findall(r"^\| \*\*(.+?)\*\*", text, re.MULTILINE) for term in row.split(", ")}
    assert terms >= {
        *("window", "recording", "subject", "component", "profile", "coefficient", "feature", "readout", "statistics"),
        *("probe", "sweep", "rank", "view", "augmentation", "store", "tensorizer", "replicability", "recentring"),
        *("whitening", "frame", "checkpoint", "label", "match", "restart", "consensus"),
        *("ATD", "SALS", "HAR", "GeoTec", "PTB-XL", "LOSO", "balanced accuracy", "share", "unusual"),
    }
