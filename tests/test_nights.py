"""The report of a folder of EEG with planted rhythms: its first components name band, channel and stage of each."""

from __future__ import annotations

import re

import pytest
from command_line import polyadic
from nights import PLANTED, SECONDS, STAGES, write_nights

pytest.importorskip("edfio")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """What a new user would do: a folder, a fit, a report."""
    folder = tmp_path_factory.mktemp("nights")
    write_nights(folder / "nights")
    stages = [word for stage in STAGES for word in ("--class", stage)]
    cut = ("--seconds", str(SECONDS), *stages)
    polyadic("prepare", "folder", "nights", "my.store", *cut, cwd=folder)
    polyadic("fit", "my.store", "--rank", "6", "-o", "m.safetensors", cwd=folder)
    polyadic(
        "report", "m.safetensors", "--data", "my.store", "--transductive", "--probe", "plain", "--no-check", cwd=folder
    )
    return (folder / "report.html").read_text()


def cells(row: str, label: str) -> str:
    found = re.search(rf'data-label="{label}".*?class="at">(.*?)</span>', row, re.DOTALL)
    return found[1]


def test_the_first_components_name_the_planted_rhythms(page):
    rows = re.findall(r"<tr data-component=.*?</tr>", page, re.DOTALL)[:3]
    assert len(rows) == 3
    found = {}
    for row in rows:
        name, _, frequency = cells(row, "frequency").partition(", ")
        peak = float(frequency.split()[0])
        stage, _, effect = cells(row, "by class").partition(", d ")
        found[name] = (cells(row, "channel"), stage)
        low, high = PLANTED[name][2]
        assert low <= peak <= high
        assert float(effect) > 2
    assert found == {name: (channel, stage) for name, (channel, stage, _) in PLANTED.items()}


def test_the_timeline_of_each_person_is_there(page):
    assert re.findall(r"<option value=\"\d\">(person\d)</option>", page) == [f"person{n}" for n in range(1, 7)]
