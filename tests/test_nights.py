"""The report of a folder of EEG with planted rhythms: its first components name band, channel and stage of each."""

from __future__ import annotations

import re

import pytest
from command_line import polyadic
from nights import PLANTED, SECONDS, STAGES, write_nights

pytest.importorskip("edfio")


def write_report(folder, fit=()) -> str:
    """What a new user would do: a folder, a fit, a report."""
    write_nights(folder / "nights")
    stages = [word for stage in STAGES for word in ("--class", stage)]
    cut = ("--seconds", str(SECONDS), *stages)
    polyadic("prepare", "folder", "nights", "my.store", *cut, cwd=folder)
    polyadic("fit", "my.store", *fit, "-o", "m.safetensors", cwd=folder)
    polyadic("report", "m.safetensors", "--data", "my.store", "--transductive", cwd=folder)
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return write_report(tmp_path_factory.mktemp("nights"), fit=("--rank", "6"))


SENTENCE = re.compile(r'data-sentence="([^;]+); (\w+), (\d+) Hz .*? Highest in (\w+) \(\+[\d.]+ dB, d \+([\d.]+)\)')


def assert_first_three_are_planted(page: str, least_effect: float) -> None:
    rows = re.findall(r"<tr data-component=.*?</tr>", page, re.DOTALL)[:3]
    assert len(rows) == 3
    found = {}
    for row in rows:
        assert "folded" not in row.partition(">")[0]
        channel, name, peak, stage, effect = SENTENCE.search(row).groups()
        found[name] = (channel, stage)
        low, high = PLANTED[name][2]
        assert low <= float(peak) <= high
        assert float(effect) > least_effect
    assert found == {name: (channel, stage) for name, (channel, stage, _) in PLANTED.items()}


def test_the_first_components_name_the_planted_rhythms(page):
    assert_first_three_are_planted(page, 1.5)


def test_each_subject_has_a_timeline(page):
    assert re.findall(r"<option value=\"timeline-\d\">(person\d)</option>", page) == [f"person{n}" for n in range(1, 7)]
