"""Texts agree with the files they speak of: links, promises, tables, quoted messages, version and extras.

    python .ci/check_repository.py

`make lint` runs it. Links to other sites are checked by `make linkcheck`, which needs a network.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(ROOT)]

import comparison  # noqa: E402
import tables  # noqa: E402
import yaml  # noqa: E402

LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|<(?:img|a|source)[^>]+?(?:src|href|srcset)=\"([^\"]+)\"")


def text_of(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^(```|~~~|:::).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the names of headings in addresses: lower case, hyphens for spaces, no other signs."""
    headings = re.findall(r"^#+ +(.+?)\s*$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links() -> Iterator[str]:
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "results").rglob("*.md"), *ROOT.glob("examples/**/*.md")]
    for page in sorted(pages):
        for found in LINK.finditer(re.sub(r"`[^`\n]*`", "", without_code(text_of(page)))):
            target, _, anchor = (found[1] or found[2]).partition("#")
            if re.match(r"https?:|mailto:", target):
                continue
            place = (page.parent / target).resolve() if target else page
            built = place.is_relative_to(DOCS / "gallery")  # exists only after a build
            if built or not place.exists() or (anchor and anchor not in anchors(text_of(place))):
                yield f"{page.relative_to(ROOT)}: the link {found[1] or found[2]} leads nowhere"


def promises_without_tests() -> Iterator[str]:
    """Every row of docs/promises.md names tests, and each of them has a case that `make test` runs."""
    for row in re.findall(r"^\| (?!guarantee).*$", text_of("docs/promises.md"), re.MULTILINE):
        named = re.findall(r"`(test_\w+\.py)::(\w+)`", row)
        if not named:
            yield f"docs/promises.md names no test for: {row[:80]}"
        for file, name in named:
            path = ROOT / "tests" / file
            functions = ast.walk(ast.parse(text_of(path))) if path.exists() else ()
            tests = [node for node in functions if isinstance(node, ast.FunctionDef) and node.name == name]
            marks = [ast.unparse(mark) for test in tests for mark in test.decorator_list]
            if not tests or "pytest.mark.long" in marks:
                yield f"docs/promises.md names {file}::{name}, which `make test` does not run"


def outdated_pages() -> Iterator[str]:
    for page in tables.PAGES:
        if text_of(page) != tables.filled(text_of(page)):
            yield f"{page.name} has other tables than its files: python docs/tables.py writes them"
    for name, stated in tables.statements():
        if stated not in " ".join(text_of(DOCS / name).split()):
            yield f"{name} does not say {stated!r}, as its file does"
    found = comparison.BETWEEN.search(comparison.README.read_text(encoding="utf-8"))
    if found is None or found[0] != comparison.table():
        yield "README.md has another comparison than its file: python docs/comparison.py writes it"


def unknown_names() -> Iterator[str]:
    """Files and names in "How to add" of CONTRIBUTING.md exist, and modules in docs/api.md."""
    for module in re.findall(r"automodule:: (\S+)", text_of("docs/api.md")):
        path = ROOT / "src" / module.replace(".", "/")
        if not path.with_suffix(".py").exists() and not path.is_dir():
            yield f"docs/api.md names {module}, which does not exist"
    sources = " ".join(text_of(path) for folder in ("src", "tests", "paper") for path in (ROOT / folder).rglob("*.py"))
    for name in re.findall(r"`([\w./]+)(?:=True)?`", text_of("CONTRIBUTING.md").partition("## How to add")[2]):
        is_path = "/" in name
        if is_path and not ((ROOT / name).exists() or (ROOT / "src" / "polyadic" / name).exists()):
            yield f"CONTRIBUTING.md names {name}, which does not exist"
        elif not is_path and not re.search(rf"\b{name.rpartition('.')[2]}\b", sources):
            yield f"CONTRIBUTING.md names {name}, which is not in the source"


def unknown_messages() -> Iterator[str]:
    """Messages quoted on the page on troubleshooting, `…` for what varies, are those of the source."""
    texts = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    for _, message in re.findall(r"^\| (`+) ?(.+?) ?\1 \|", text_of("docs/troubleshooting.md"), re.MULTILINE):
        parts = [part.strip() for part in message.split("…") if part.strip(" :;,.?()")]
        wanted = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
        if not any(wanted.search(text) for text in texts if max(parts, key=len) in text):
            yield f"docs/troubleshooting.md quotes a message that is not in the source: {message}"


def contradictory_metadata() -> Iterator[str]:
    from polyadic import __version__

    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    cited = re.search(r"^version: (\S+)\ndate-released: (\S+)$", text_of("CITATION.cff"), re.MULTILINE)
    logged = re.search(r"^## (\d\S+) - (\d{4}-\d\d-\d\d)$", text_of("CHANGELOG.md"), re.MULTILINE)
    if not cited or not logged or cited.groups() != logged.groups() or cited[1] != __version__:
        yield "version or date differ between CITATION.cff, CHANGELOG.md and the package"
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", text_of("docs/install.md"), re.MULTILINE))
    for extra in set(rows) ^ (set(extras) - {"dev", "docs"}):
        yield f"docs/install.md and pyproject.toml differ in the extra {extra}"
    for extra in set(rows) & set(extras) - {"all"}:
        if sorted(rows[extra].split(", ")) != sorted(one.partition(">=")[0] for one in extras[extra]):
            yield f"docs/install.md has other packages for the extra {extra} than pyproject.toml"
    named = {
        extra for path in (ROOT / "src").rglob("*.py") for extra in re.findall(r"polyadic\[(\w+)\]", text_of(path))
    }
    recipe = yaml.safe_load(text_of("conda/recipe.yaml"))
    wanted = {one.replace(">=", " >=").replace("torch ", "pytorch ") for one in project["dependencies"]}
    if set(recipe["requirements"]["run"]) != wanted | {f"python {project['requires-python']}"}:
        yield "conda/recipe.yaml has other requirements than pyproject.toml"
    if recipe["context"]["version"] != __version__:
        yield "conda/recipe.yaml has another version than the package"
    yield from (f"a message names the extra {extra}, which does not exist" for extra in named - set(extras))


def main() -> None:
    checks = (
        broken_links,
        promises_without_tests,
        outdated_pages,
        unknown_names,
        unknown_messages,
        contradictory_metadata,
    )
    problems = [problem for check in checks for problem in check()]
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
