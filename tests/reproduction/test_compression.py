"""The comparison of compressed with uncompressed fits."""

from __future__ import annotations

import pytest

from paper import compression


def fit(compressed: bool, seed: int, loss: float, accuracy: float) -> dict:
    scores = {"10": [accuracy - 1, accuracy + 1], "all": [accuracy, accuracy]}
    row = {"set": "har", "title": "HAR", "seed": seed, "compressed": compressed, "loss": loss, "accuracy": scores}
    return row | {"tensor": [9, 33, 9], "ranks": [9, 17, 4], "seconds": 1.0 if compressed else 3.0}


def test_gains_are_means_over_seeds_of_differences_within_a_seed_in_any_order_of_the_rows():
    rows = [fit(False, 1, 0.10, 70), fit(True, 0, 0.12, 81), fit(False, 0, 0.10, 80), fit(True, 1, 0.12, 73)]
    ((row, means),) = compression.compared(rows)
    assert (row["title"], row["compressed"]) == ("HAR", True)
    assert means["loss"] == pytest.approx(12)
    assert means["more"] == pytest.approx(2)
    assert (means["10"], means["gain 10"], means["error 10"]) == pytest.approx((75, 2, 1))
    assert (means["seconds"], means["seconds of all"]) == (1, 3)
    assert "| +2.00 ± 1.00 |" in f"| {' | '.join(compression.cells(row, means))} |"


def test_a_set_with_unfinished_fits_is_left_out():
    assert compression.compared([fit(True, 0, 0.1, 80)]) == []
