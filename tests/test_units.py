"""Physical units: compatible units are converted, others are refused, and unknown ones are pointed out."""

from __future__ import annotations

import csv
from pathlib import Path

import edfio
import numpy as np
import pytest
from command_line import polyadic
from problems import paper

from polyadic import SALS
from polyadic.data import Windows
from polyadic.data.channels import conversion_factor, match_signals
from polyadic.errors import PolyadicError


@pytest.mark.parametrize(
    ("unit", "target", "factor"),
    [
        ("uV", "µV", 1),
        ("mV", "uV", 1e3),
        ("V", "\N{GREEK SMALL LETTER MU}V", 1e6),
        ("nV", "uV", 1e-3),
        ("g", "m/s²", 9.80665),
        ("m/s^2", "mg", 1e3 / 9.80665),
        ("deg/s", "rad/s", np.pi / 180),
        ("bpm", "bpm", 1),
        ("uV", "g", None),
        ("uV", "bpm", None),
        ("mV", "MV", 1e-9),
    ],
)
def test_units_of_one_quantity_are_converted(unit: str, target: str, factor: float | None) -> None:
    assert conversion_factor(unit, target) == (None if factor is None else pytest.approx(factor))


def windows(units: tuple[str, ...], factor: float = 1.0) -> Windows:
    X = np.random.default_rng(0).normal(size=(30, 2, 64)) * np.array([[factor], [1.0]])
    return Windows(X.astype(np.float32), 64, channels=["a", "b"], units=units)


def test_a_model_takes_windows_in_other_units_of_the_same_quantity() -> None:
    model = paper(SALS, rank=2, max_sweeps=2).fit(windows(("uV", "g")))
    expected = model.transform(windows(("uV", "g")))
    converted = windows(("mV", "g"), 1e-3)
    np.testing.assert_allclose(model.transform(converted), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(model.transform(converted.with_channels(["b", "a"])), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(model.transform(windows(("", "g"))), expected)
    with pytest.raises(PolyadicError, match="X has channel 'a' in bpm, but the model was fitted to uV"):
        model.transform(windows(("bpm", "g")))
    matched = match_signals(converted[::2], 64, ("a", "b"), units=("uV", "g"))
    assert matched.units == ("uV", "g")
    np.testing.assert_allclose(matched[1:].X, windows(("uV", "g"))[::2][1:].X, rtol=1e-6)


def nights(root: Path, unit: str, factor: float, people: range) -> None:
    root.mkdir(exist_ok=True)
    for number in people:
        rng = np.random.default_rng(number)
        signal = np.concatenate([rng.normal(size=1000) * (40 if n % 2 else 8) for n in range(8)]) * factor
        edf = edfio.Edf(
            [edfio.EdfSignal(signal, 100, label="C3", physical_dimension=unit)],
            annotations=[edfio.EdfAnnotation(10 * n, 10, "awake" if n % 2 else "rest") for n in range(8)],
        )
        edf.write(root / f"p{number}.edf")


def labels(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [row["label"] for row in csv.DictReader(file)]


def test_predict_converts_units_and_refuses_or_points_out_others(tmp_path: Path) -> None:
    nights(tmp_path / "uV", "uV", 1, range(4))
    polyadic("fit", "uV", "--seconds", 5, "--rank", 2, "--sweeps", 2, "--probe", cwd=tmp_path)
    for unit, factor in (("uV", 1), ("mV", 1e-3), ("V", 1e-6), ("", 1)):
        nights(tmp_path / f"new {unit}", unit, factor, range(4, 6))
        said = polyadic("predict", "model.safetensors", f"new {unit}", "-o", f"labels{unit}.csv", cwd=tmp_path).stderr
        assert (": unknown units: C3 is taken to be in uV, as in the fit" in said) is (unit == "")
    expected = labels(tmp_path / "labelsuV.csv")
    assert set(expected) == {"awake", "rest"}
    for unit in ("mV", "V", ""):
        assert labels(tmp_path / f"labels{unit}.csv") == expected
    nights(tmp_path / "bpm", "bpm", 1, range(1))
    failed = polyadic("predict", "model.safetensors", "bpm", "-o", "x.csv", cwd=tmp_path, code=1).stderr
    assert "bpm has channel 'C3' in bpm, but the model was fitted to uV" in failed
