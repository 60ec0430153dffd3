"""The page on commands names every command, and every command line that a page shows is valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from polyadic.cli import app

ROOT_FOLDER = Path(__file__).parents[1]
PAGE = ROOT_FOLDER / "docs" / "commands.md"
PAGES = [
    ROOT_FOLDER / "README.md",
    *sorted((ROOT_FOLDER / "docs").glob("*.md")),
    ROOT_FOLDER / "docs" / "results" / "README.md",
    *sorted((ROOT_FOLDER / "examples").glob("*.py")),
]
STARTS = re.compile(r"(?:\w+=\w+ )*(?:torchrun .*-m )?polyadic (.*)")
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


def test_commands_have_the_options_that_messages_about_recordings_recommend():
    def recommended(*patterns: str) -> set[str]:
        files = [file for pattern in patterns for file in (ROOT_FOLDER / "src" / "polyadic" / "data").glob(pattern)]
        assert files
        return {
            option for file in files for option in re.findall(r"(?<=[\s\"'(])--[a-z][a-z-]+", file.read_text("utf-8"))
        }

    options = {" ".join(path): {name for one in command.params for name in one.opts} for path, command in leaves()}
    readers = [name for name, known in options.items() if "--scoring" in known]
    expected = {
        "prepare folder",
        "label",
        "fit",
        "tune",
        "predict",
        "transform",
        "evaluate",
        "report",
        "compare",
        "rank",
        "moments",
    }
    assert set(readers) == expected
    for name in readers:
        # An existing file of labels is continued, never replaced; rank writes no file.
        own = {"--force"} if name in ("label", "rank") else set()
        assert recommended("**/*.py") - own <= options[name], name
    assert recommended("readers/table*.py", "recordings.py") <= options["info"]


@pytest.mark.parametrize("path", [path for path, _ in leaves()], ids=" ".join)
def test_every_command_is_on_the_page(path):
    text = PAGE.read_text(encoding="utf-8")
    assert f"\n## {path[0]}\n" in text
    assert f"\npolyadic {' '.join(path)}" in text


def test_the_exit_codes_of_the_page_are_those_of_the_help():
    codes = set(re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert codes == set(re.findall(r"^  (\d+) ", ROOT.epilog, re.MULTILINE)) == {"0", "1", "2", "129", "130", "143"}
