"""The model of many processes in `benchmarks/scale.py`: its predictions for known timings, and its files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from polyadic.engine import processes

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "scale"
FOUND = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks" / "scale.py")
scale = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(scale)

MESSAGES = {size: 1e-4 + 1e-9 * size for size in scale.MESSAGES}
"""A latency of a tenth of a millisecond, and a gigabyte a second."""


def run(kind: str, batch: int, windows: int, sweep: float, exchange: str = "none") -> dict:
    row = {"shape": "HAR", "kind": kind, "exchange": exchange, "batch": batch, "windows": windows}
    return {**row, "sweep": sweep, "messages": 0.1 * sweep}


@pytest.mark.parametrize("exchange", ["block", "modes"])
def test_timings_that_follow_the_model_are_predicted_exactly(exchange):
    # A window takes a millisecond, a step three; two processes have half of the windows each, and the messages.
    sizes = scale.message_sizes(scale.modes_of("HAR"), exchange)
    sending = sum(1e-4 + 1e-9 * size for size in sizes)
    one = [run("half", 64, 1024, 16 * (0.064 + 0.003)), run("strong", 128, 1024, 8 * (0.128 + 0.003))]
    two = [
        run("strong", 128, 1024, 8 * (0.064 + 0.003 + sending), exchange),
        run("weak", 256, 2048, 8 * (0.128 + 0.003 + sending), exchange),
    ]
    strong, weak = scale.checked(one, two, MESSAGES)
    assert strong["predicted over measured"] == pytest.approx(1.0)
    assert weak["predicted over measured"] == pytest.approx(1.0)
    assert strong["speed-up"] == pytest.approx(0.131 / (0.067 + sending))
    assert weak["speed-up"] == pytest.approx(2 * 0.131 / (0.131 + sending))
    assert strong["communication share"] == pytest.approx(0.1)


def test_the_block_is_too_large_where_three_messages_take_as_long():
    three = 3 * (1e-4 + 1e-9 * 8 * scale.RANK * 100)
    assert scale.crossover(MESSAGES) == pytest.approx((three - 1e-4) / 1e-9, rel=0.05)


def test_shapes_are_measured_on_both_sides_of_the_choice():
    sizes = {name: 4 * scale.RANK * scale.math.prod(scale.modes_of(name)) for name in scale.SHAPES}
    assert min(sizes.values()) < processes._BLOCK_BYTES < max(sizes.values())
    rows = [run("strong", 128, 1024, 3.0, "block"), run("strong", 128, 1024, 2.0, "modes")]
    (found,) = scale.better(rows)
    assert (found["faster"], found["taken"], found["lost"]) == ("modes", "modes", 0.0)


def test_more_machines_are_never_slower_and_batches_of_512_do_not_feed_them():
    found = {
        (row["windows"], row["batch"], row["machines"] * row["GPUs in each"]): row for row in scale.larger_machines()
    }
    for windows, batch in {key[:2] for key in found}:
        times = [found[windows, batch, count]["seconds a sweep"] for count in (1, 8, 512)]
        assert times == sorted(times, reverse=True)
    small, large = (found[scale.MGH["windows"], batch, 512] for batch in (512, 65_536))
    assert small["seconds a sweep"] > 5 * large["seconds a sweep"]


def test_the_tables_of_the_page_are_those_of_the_files():
    kept = json.loads((KEPT / "model.json").read_text())
    assert scale.model_table(kept["sweeps"]) == (KEPT / "model.md").read_text()
    assert kept["sweeps"] == scale.larger_machines()
    if (KEPT / "cpu.json").exists():
        measured = json.loads((KEPT / "cpu.json").read_text())
        assert not measured["quick"]
        assert scale.measured_table(measured) == (KEPT / "measured.md").read_text()
    page = (ROOT / "docs" / "scale.md").read_text()
    assert all(f"<!-- table: scale-{name} -->" in page for name in ("measured", "model"))
