"""The page on commands names every command, and every command line that a page shows is valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from polyadic.cli import app

ROOT_FOLDER = Path(__file__).parents[1]
PAGES = [
    ROOT_FOLDER / "README.md",
    *sorted((ROOT_FOLDER / "docs").glob("*.md")),
    ROOT_FOLDER / "docs" / "results" / "README.md",
    *sorted((ROOT_FOLDER / "examples").glob("*.py")),
]
STARTS = re.compile(r"(?:\w+=\w+ )*polyadic (.*)")
ROOT = typer.main.get_command(app)


def lines_shown() -> list[list[str]]:
    """Every `polyadic …` in the examples of the pages and of the help, as words."""
    texts = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fenced = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        texts += [block.replace("\\\n", " ") for kind, block in fenced if kind in ("", "sh", "bash")]
        # In running text a command alone is its name; with more it is a line, which may go on in the next.
        shown = re.findall(r"(?<!`)`(polyadic\s[^`\s]+\s[^`]*)`", text)
        texts += [" ".join(re.sub(r"\n#? *", " ", line).split()) for line in shown]
    texts += [command.epilog.replace("\\\\\n", " ").replace("\\\n", " ") for _, command in leaves(groups=True)]
    lines = {line.strip(): None for text in texts for line in text.splitlines()}
    return [shlex.split(found[1], comments=True) for line in lines if (found := STARTS.fullmatch(line))]


def leaves(command=ROOT, path=(), groups=False):
    inner = getattr(command, "commands", None)
    if inner is None or groups:
        yield path, command
    for name, below in (inner or {}).items():
        yield from leaves(below, (*path, name), groups)


def parsed(words: list[str], folder: Path) -> dict[str, object]:
    """Parse words as the command line does, in a folder that has all the files they name; the values of the options."""
    for word in words:
        path = folder / word
        if path.suffix in (".npz", ".safetensors", ".edf", ".hea", ".json", ".csv"):
            path.parent.mkdir(exist_ok=True, parents=True)
            path.touch()
        elif re.fullmatch(r"[a-z][a-z.-]*", word):
            path.mkdir(exist_ok=True)
    command, context, rest = ROOT, None, list(words)
    name = "polyadic"
    while hasattr(command, "commands"):
        context = command.context_class(command, info_name=name, parent=context)
        if not rest or rest == ["--help"]:
            return {}
        name, rest = rest[0], rest[1:]
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name}"
    return command.make_context(name, rest, parent=context).params


@pytest.mark.parametrize("words", lines_shown(), ids=" ".join)
def test_every_line_shown_can_be_given(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parsed(words, tmp_path)
