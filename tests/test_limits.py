"""Unreasonable numbers give an error that names the argument or option, never a traceback or exhausted memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import typer
from command_line import polyadic
from problems import paper
from typer.testing import CliRunner

from polyadic import ATD, GRSALS, SALS, suggest_rank
from polyadic.augment import Jitter
from polyadic.cli import app
from polyadic.cli.settings import _commands, _options
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import WindowClassifier
from polyadic.spectral import STFT

HUGE = 10**400


# ----------------------------------------------------------------------------------------------------- from Python


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", ["blend", "memory"])
@pytest.mark.parametrize("batch_size", [None, 7, 2**63 - 1])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1e308),
        ("gamma", 3e38),
        ("gamma", HUGE),
        ("alpha", HUGE),
        ("alpha", 1e308),
        ("beta", HUGE),
        ("beta", 1e308),
        ("tol", HUGE),
        ("learning_rate", HUGE),
        ("rank", 2**63),
        ("rank", 10**9),
        ("batch_size", 2**63),
        ("batch_size", HUGE),
        ("max_sweeps", HUGE),
        ("patience", HUGE),
        ("rounds", HUGE),
    ],
)
def test_a_number_beyond_reason_is_fitted_or_refused_by_its_name(name, value, solver, batch_size, dtype):
    X = np.random.default_rng(0).normal(size=(20, 3, 32)).astype(dtype)
    given = {"rank": 2, "max_sweeps": 2, "solver": solver, "batch_size": batch_size, name: value}
    model = paper(ATD, tensorize=STFT(16, 8), augment=Jitter(0.1), device="cpu", **given)
    said = ""
    try:
        model.fit(X).transform(X)
    except PolyadicError as error:
        said = str(error)
    assert not said or re.search(rf"\b{name}\b|not finite|did not stay finite", said)
    assert len(said) < 300


def test_other_estimators_and_transforms_refuse_them_too():
    X = np.random.default_rng(0).normal(size=(20, 3, 32)).astype(np.float32)
    with pytest.raises(PolyadicError, match="graph_weight must be a number"):
        paper(GRSALS, 2, graph_weight=HUGE, device="cpu").fit(X)
    with pytest.raises(PolyadicError, match="rank=1,000,000,000 needs"):
        paper(SALS, 10**9, device="cpu").fit(X)
    with pytest.raises(PolyadicError, match="rank=999,999,999 needs"):
        suggest_rank(X, [999_999_999])
    with pytest.raises(PolyadicError, match="hop must be a whole number"):
        paper(SALS, 2, tensorize=STFT(16, 2**63), device="cpu").fit(X)
    with pytest.raises(PolyadicError, match="degree must be a number"):
        paper(ATD, 2, augment=Jitter(HUGE), device="cpu").fit(X)


def test_a_rank_that_fits_into_memory_is_not_refused():
    X = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    assert paper(SALS, 300, max_sweeps=1, batch_size=2, device="cpu").fit(X).transform(X).shape == (4, 300)


# ------------------------------------------------------------------------------------------------ on the command line


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows, a recording and a model with a probe."""
    folder = tmp_path_factory.mktemp("made")
    signals = synthetic(60, 2, 64)
    np.savez(folder / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    (folder / "own").mkdir()
    rows = "\n".join(f"{n / 64},{n % 7},{n % 3}" for n in range(640))
    (folder / "own" / "night.csv").write_text(f"time,channel 1,channel 2\n{rows}\n")
    features = paper(SALS, 2, tensorize=STFT(16, 8), max_sweeps=1, device="cpu").fit(signals)
    WindowClassifier(features).fit(signals).save(folder / "m.safetensors")
    return folder


def leaves(group: typer.Typer, path: tuple[str, ...] = ()) -> Any:
    for name, function in _commands(group):
        if isinstance(function, typer.Typer):
            yield from leaves(function, (*path, name))
        else:
            yield (*path, name), function


GIVEN = {
    ("fit",): ("own", "--sweeps", "1", "--quiet", "-o", "z.safetensors"),
    ("rank",): ("w.npz", "--ranks", "1", "--restarts", "1", "--windows", "4"),
    ("run",): ("--data", "w.npz", "--seeds", "1", "--sweeps", "1", "--quiet", "--out", "z"),
    ("evaluate",): ("m.safetensors", "w.npz", "--seeds", "1"),
    ("report",): ("m.safetensors", "-o", "z.html"),
    ("export",): ("m.safetensors", "-o", "z.onnx"),
    ("prepare", "folder"): ("own", "z.store", "--seconds", "1"),
    ("prepare", "arrays"): ("w.npz", "z.store"),
}
VALUES = {int: ("9" * 19, "9" * 400), float: ("1e300", "inf", "nan")}
LOOPS = ("sweeps", "nuisance")
"""Options of which any number will do: how often something is done at most, and one for signals that are not given."""


def numbers() -> list[tuple[tuple[str, ...], str, str]]:
    """Every option of a command that is a number, with values beyond reason."""
    found = []
    for path, function in leaves(app):
        for key, (kind, _) in _options(function).values() if path in GIVEN else ():
            types = {kind, *get_args(kind)} & VALUES.keys()
            found += [(path, key, value) for one in types for value in VALUES[one] if key not in LOOPS]
    return found


@pytest.mark.parametrize(("path", "key", "value"), numbers(), ids=lambda given: str(given)[:30])
@pytest.mark.filterwarnings("ignore")
def test_every_number_on_the_command_line_may_be_beyond_reason(path, key, value, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("w.npz", "m.safetensors", "own"):
        (tmp_path / name).symlink_to(made / name)
    result = CliRunner().invoke(app, [*path, *GIVEN[path], f"--{key}", value])
    assert result.exception is None or isinstance(result.exception, PolyadicError | OSError | SystemExit)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fit", "w.npz", "--rank", "1000000000"), "rank=1,000,000,000 needs"),
        (("rank", "w.npz", "--ranks", "999999999"), "rank=999,999,999 needs"),
        (("fit", "w.npz", "--batch-size", "9" * 30), "batch_size must be a whole number"),
        (("fit", "own", "--seconds", "1e300"), "a window of 1e+300 s is too long"),
    ],
)
def test_the_error_says_what_is_too_large(words, message, made):
    done = polyadic(*words, cwd=made, code=1)
    assert "polyadic: " in done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "MASTER_PORT"),
        ({"RANK": "none", "WORLD_SIZE": "2"}, "RANK must be a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "many"}, "MASTER_PORT"),
        ({"RANK": "7", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}, "RANK must be below"),
    ],
)
@pytest.mark.parametrize("words", [("fit", "w.npz", "-o", "n.safetensors"), ("evaluate", "m.safetensors", "w.npz")])
def test_environment_variables_of_a_launcher_without_the_launcher_are_an_error(
    words, variables, message, made, monkeypatch
):
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC")]:
        monkeypatch.delenv(name)
    done = polyadic(*words, cwd=made, code=1, **variables)
    assert message in done.stderr
    assert "torchrun" in done.stderr


def test_a_single_rank_that_is_set_by_chance_does_not_matter(made, tmp_path):
    words = ("transform", "m.safetensors", "w.npz", "-o", tmp_path / "f.npy")
    polyadic(*words, cwd=made, RANK="0", WORLD_SIZE="1")
