"""The report of a folder of EEG with planted rhythms: its first components name band, channel and stage of each."""

from __future__ import annotations

import re

import pytest
from command_line import polyadic
from nights import PLANTED, SECONDS, STAGES, write_nights

pytest.importorskip("edfio")


def write_report(folder, seed=0, fit=(), report=()) -> str:
    """What a new user would do: a folder, a fit, a report."""
    write_nights(folder / "nights", seed=seed)
    stages = [word for stage in STAGES for word in ("--class", stage)]
    cut = ("--seconds", str(SECONDS), *stages)
    polyadic("prepare", "folder", "nights", "my.store", *cut, cwd=folder)
    polyadic("fit", "my.store", *fit, "-o", "m.safetensors", cwd=folder)
    quick = ("--transductive", "--probe", "plain")
    polyadic("report", "m.safetensors", "--data", "my.store", *quick, *report, cwd=folder)
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return write_report(tmp_path_factory.mktemp("nights"), fit=("--rank", "6"), report=("--no-check",))


def cells(row: str, label: str) -> str:
    found = re.search(rf'data-label="{label}".*?class="at">(.*?)</span>', row, re.DOTALL)
    return found[1]


def assert_first_three_are_planted(page: str, least_effect: float) -> None:
    rows = re.findall(r"<tr data-component=.*?</tr>", page, re.DOTALL)[:3]
    assert len(rows) == 3
    found = {}
    for row in rows:
        assert "folded" not in row.partition(">")[0]
        name, _, frequency = cells(row, "frequency").partition(", ")
        peak = float(frequency.split()[0])
        stage, _, effect = cells(row, "by class").partition(", d ")
        found[name] = (cells(row, "channel"), stage)
        low, high = PLANTED[name][2]
        assert low <= peak <= high
        assert float(effect) > least_effect
    assert found == {name: (channel, stage) for name, (channel, stage, _) in PLANTED.items()}


def test_the_first_components_name_the_planted_rhythms(page):
    assert_first_three_are_planted(page, 1.5)


def test_each_subject_has_a_timeline(page):
    assert re.findall(r"<option value=\"\d\">(person\d)</option>", page) == [f"person{n}" for n in range(1, 7)]
