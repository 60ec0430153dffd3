"""Package metadata: version, extras and bounds agree in all files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from polyadic import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def text(name):
    return (ROOT / name).read_text("utf-8")


def test_the_version_and_its_date_are_the_same_everywhere():
    version, date = re.search(r"^version: (\S+)\ndate-released: (\S+)$", text("CITATION.cff"), re.MULTILINE).groups()
    heading, released = re.search(r"^## (\d\S+) - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE).groups()
    assert version == heading == __version__
    assert date == released


def test_all_is_every_extra_of_users():
    (every,) = EXTRAS["all"]
    assert set(re.fullmatch(r"polyadic\[(.*)\]", every)[1].split(",")) == set(EXTRAS) - {"all", "dev", "docs"}


def test_the_installation_page_names_every_extra_and_what_it_installs():
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", text("docs/install.md"), re.MULTILINE))
    assert set(rows) == set(EXTRAS) - {"dev", "docs"}
    for extra, installed in rows.items():
        if extra != "all":
            assert sorted(installed.split(", ")) == sorted(one.partition(">=")[0] for one in EXTRAS[extra])


def test_errors_name_extras_that_exist():
    named = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r"polyadic\[(\w+)\]", path.read_text("utf-8"))
    }
    assert named
    assert named <= set(EXTRAS)


def test_locked_versions_are_within_the_bounds():
    every = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    for one in [one for one in every if not one.startswith("polyadic[")]:
        name, _, bound = one.partition(";")[0].strip().partition(">=")
        locked = re.search(rf"^{re.escape(name)}==([\d.]+)", text("requirements.lock"), re.MULTILINE | re.IGNORECASE)
        assert locked is not None, f"{name} is not in requirements.lock"
        assert numbers(locked[1]) >= numbers(bound)


def numbers(version):
    return [int(part) for part in version.split(".")]


def test_the_conda_recipe_has_the_version_and_the_requirements_of_the_package():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load(text("conda/recipe.yaml"))
    assert recipe["context"]["version"] == __version__
    wanted = {f"python {PROJECT['requires-python']}"}
    wanted |= {one.replace(">=", " >=").replace("torch ", "pytorch ") for one in PROJECT["dependencies"]}
    assert set(recipe["requirements"]["run"]) == wanted
