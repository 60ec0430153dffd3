"""Output to a terminal or a pipe: names without control codes, in any encoding."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from command_line import Command, polyadic

from polyadic import load
from polyadic._util.terminal import printable
from polyadic.data import synthetic

HOSTILE = "a\x1b]0;owned\x07\x9b31m\x08[/b][red]b\u202e\r\nZZ"
"""A name that sets a terminal's title, rings, colours, goes back, is no sound markup, turns the text round, goes on."""


# ----------------------------------------------------------------------------------------------------------- names


def test_a_name_is_one_line_of_signs_that_can_be_seen():
    assert printable("night 1, C3–A2 µV °") == "night 1, C3–A2 µV °"
    assert printable(HOSTILE) == "a�]0;owned��31m�[/b][red]b���ZZ"
    assert printable("\udcff") == "�"  # a byte of a file name that is no text


def test_a_name_with_a_line_break_cannot_pass_for_a_message(tmp_path):
    name = "x\npolyadic: all is well.npz"
    (tmp_path / name).write_bytes(b"damaged")
    done = polyadic("info", name, cwd=tmp_path, code=1)
    assert [line for line in done.stderr.splitlines() if line.startswith("polyadic: ")] == done.stderr.splitlines()[:1]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    signals = synthetic(60, 2, 64)
    given = {"X": signals.X, "fs": signals.fs, "subject": signals.subject}
    np.savez(tmp_path / "w.npz", y=signals.label, **given)
    return tmp_path


FIT = "polyadic fit w.npz --rank 2 --sweeps 5 -o m.safetensors"


def test_a_reader_that_goes_away_does_not_cost_the_model(here):
    os.mkfifo(here / "pipe")
    running = Command(FIT.split()[1:], here, [os.devnull, *[str(here / "pipe")] * 2])
    with (here / "pipe").open() as reader:
        assert reader.readline()
    running.wait()
    assert load(here / "m.safetensors").n_sweeps_ >= 2


@pytest.mark.parametrize(
    "encoding",
    ["ascii", pytest.param("cp1252", marks=pytest.mark.long)],
)
def test_results_come_in_whatever_encoding_the_terminal_has(encoding, here):
    lines = [
        f"{FIT} --probe",
        "polyadic info m.safetensors",
        "polyadic fit --help",
    ]
    for line in lines:
        done = polyadic(*line.split()[1:], cwd=here, PYTHONIOENCODING=encoding, PYTHONWARNINGS="ignore")
        assert done.stdout
