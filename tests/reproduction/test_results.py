"""The results in `docs/results`: small files, from which every table can be rendered and every run resumed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from paper.catalogue import EXPERIMENTS
from paper.runner import read_cells, render
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


PAGES = {"onnx_latency": "onnx/cpu", "microcontroller": "microcontroller/cortex-m"}


@pytest.mark.parametrize(("script", "path"), PAGES.items())
def test_the_page_of_a_benchmark_is_rendered_from_its_json(script, path):
    module = importlib.import_module(f"paper.benchmarks.{script}")
    assert module.page(content(RESULTS / f"{path}.json")) == (RESULTS / f"{path}.md").read_text()


def test_a_run_is_resumed_from_the_kept_cells():
    path = RESULTS / "har" / "table2-har.json"
    result = content(path)
    cells = read_cells(path)
    assert sum(map(len, cells.values())) == len(result["rows"])
    for row in result["rows"]:
        assert {"commit": result["commit"], **row} in cells[row["key"]]
