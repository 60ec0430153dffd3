"""The results in `docs/results`: small files, from which every table can be rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paper.catalogue import EXPERIMENTS
from paper.runner import render
from paper.speed import tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
BENCH = sorted(
    path
    for path in RESULTS.glob("*/*.json")
    if path.name.split("-")[0] in EXPERIMENTS and not path.name.endswith(".settings.json")
)
SPEED = sorted(RESULTS.glob("speed/speed-*.json"))


def named(path: Path) -> str:
    return str(path.relative_to(RESULTS))


def content(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", BENCH, ids=named)
def test_the_table_of_a_paper_experiment_is_rendered_from_its_json(path):
    result = content(path)
    assert render(result, EXPERIMENTS[result["experiment"]]) == path.with_suffix(".md").read_text()


@pytest.mark.parametrize("path", SPEED, ids=named)
def test_the_tables_of_speed_are_rendered_from_their_json(path):
    assert tables.markdown(content(path)) == path.with_suffix(".md").read_text()
