"""Output to a terminal or a pipe: names without control codes, any encoding, and closed pipes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import edfio
import numpy as np
import pytest
from command_line import Command, polyadic
from terminals import in_a_terminal

from polyadic import load
from polyadic._util.progress import file_bar, stage_bar, sweep_bar
from polyadic._util.terminal import echo, print_json, print_table, printable
from polyadic.data import synthetic

HOSTILE = "a\x1b]0;owned\x07\x9b31m\x08[/b][red]b\u202e\r\nZZ"
"""A name that sets a terminal's title, rings, colours, goes back, is no sound markup, turns the text round, goes on."""
FILE = HOSTILE.replace("/", "|")
CODES = ("\x1b]0;", "\x07", "\x9b", "\x08", "\u202e")
QUICK = ("--rank", "2", "--sweeps", "1")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def assert_harmless(shown: str) -> None:
    for code in CODES:
        assert code not in shown, repr(shown)
    assert "\nZZ" not in shown.replace("\r", "")


# ----------------------------------------------------------------------------------------------------------- names


def test_a_name_is_one_line_of_signs_that_can_be_seen():
    assert printable("night 1, C3–A2 µV °") == "night 1, C3–A2 µV °"
    assert printable(HOSTILE) == "a�]0;owned��31m�[/b][red]b���ZZ"
    assert printable("\udcff") == "�"  # a byte of a file name that is no text


def test_every_output_function_escapes_hostile_names(capsys):
    echo(HOSTILE)
    echo(HOSTILE, err=True, colour="red")
    print_table(("", "n"), [(HOSTILE, "1")], title=HOSTILE)
    print_json({HOSTILE: HOSTILE})
    out, err = capsys.readouterr()
    assert_harmless(out)
    assert_harmless(err)
    assert json.loads(out[out.index("{") :]) == {HOSTILE: HOSTILE}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which every file, channel and class has a hostile name."""
    folder = tmp_path_factory.mktemp("hostile")
    signals = synthetic(60, 2, 128)
    labels = np.array(["N2", HOSTILE])[np.arange(60) % 2]
    given = {"X": signals.X, "fs": signals.fs, "y": labels, "subject": signals.subject}
    np.savez(folder / f"w{FILE}.npz", channels=np.array(["C3", HOSTILE]), **given)
    own = folder / f"own{FILE}"
    own.mkdir()
    for number in range(2):
        edf = [edfio.EdfSignal(np.random.default_rng(number).normal(size=6000), 100, label="C3")]
        edfio.Edf(edf).write(own / f"{number}.edf")
        (own / f"{number}.edf").rename(own / f"{number}{FILE}.edf")
    (own / f"damaged{FILE}.edf").write_bytes(b"nothing")
    return folder


def shown_by(*words: str, cwd: Path, code: int = 0) -> str:
    found, shown = in_a_terminal(100, words, cwd, PYTHONWARNINGS="ignore")
    assert found == code, shown
    return shown


@pytest.mark.long
def test_names_from_data_and_files_never_command_the_terminal(hostile):
    w, own, m, s = (f"{name}{FILE}" for name in ("w", "own", "m", "s"))
    w, m = f"{w}.npz", f"{m}.safetensors"
    lines = [
        ("fit", w, *QUICK, "--probe", "-o", m),
        ("fit", w, *QUICK, "-o", m, "--checkpoint", f"kept{FILE}", "--force"),
        ("fit", w, *QUICK, "-o", m, "--probe", "--force"),
        ("predict", m, w, "-o", f"l{FILE}.csv"),
        ("transform", m, w, "-o", f"f{FILE}.npy"),
        ("evaluate", m, w, "--repeats", "1"),
        ("prepare", "arrays", w, s),
        ("info", s, "--verify"),
        ("info", s),
        ("info", m),
        ("info", own),
        ("rank", w, "--ranks", "1", "--restarts", "1", "-o", f"r{FILE}.html"),
        ("report", m, "-o", f"p{FILE}.html"),
        ("prepare", "folder", own, f"t{FILE}", "--seconds", "1", "--on-error", "skip"),
        ("fit", own, "--seconds", "1", *QUICK, "--on-error", "skip", "-o", f"n{FILE}.safetensors"),
        ("run", "--data", w, "--seeds", "1", *QUICK, "--out", f"run{FILE}"),
    ]
    for words in lines:
        assert_harmless(shown_by(*words, cwd=hostile))
    failing = [
        ("fit", own, "--seconds", "1"),
        ("fit", w, "-o", f"absent{FILE}/m"),
        ("fit", w, *QUICK, "-o", m, "--checkpoint", f"kept{FILE}", "--sweeps", "2", "--force"),
        ("info", str(Path(own, f"damaged{FILE}.edf"))),
        ("predict", m, own),
        ("predict", m, w, "-o", f"x{FILE}"),
    ]
    for words in failing:
        shown = shown_by(*words, cwd=hostile, code=1)
        assert "polyadic: " in shown
        assert_harmless(shown)


def test_a_name_with_a_line_break_cannot_pass_for_a_message(tmp_path):
    name = "x\npolyadic: all is well.npz"
    (tmp_path / name).write_bytes(b"damaged")
    done = polyadic("info", name, cwd=tmp_path, code=1)
    assert [line for line in done.stderr.splitlines() if line.startswith("polyadic: ")] == done.stderr.splitlines()[:1]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_bars_show_names_without_control_codes(terminal, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    history = {name: [1.0] for name in ("loss", "fit", "fit_augmented", "tikhonov", "self_supervised", "graph")}
    with sweep_bar(HOSTILE, 2, 10) as sweep:
        sweep.windows(5, 100)
        sweep(history)
    with file_bar(HOSTILE) as file:
        file(HOSTILE, 1, 2, 3, 4)
    with stage_bar(HOSTILE, unit=HOSTILE) as stage:
        stage(1, 2, HOSTILE)
    shown = stream.getvalue()
    assert ("[/b][red]b" in shown) or not terminal
    assert_harmless(shown)


# --------------------------------------------------------------------------------------- streams that cannot be written


@pytest.fixture
def here(tmp_path: Path) -> Path:
    signals = synthetic(60, 2, 64)
    given = {"X": signals.X, "fs": signals.fs, "subject": signals.subject}
    np.savez(tmp_path / "w.npz", y=signals.label, **given)
    return tmp_path


def in_a_shell(line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    words = f"{sys.executable} -m polyadic"
    line = line.replace("polyadic", words, 1)
    environment = ENVIRONMENT | {"PYTHONWARNINGS": "ignore"} | variables
    return subprocess.run(["bash", "-c", line], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def read_a_line(words: list[str], cwd: Path) -> None:
    """Run a command whose streams are one pipe, from which a reader reads only the first line."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        running = Command(words, cwd, [os.devnull, str(pipe), str(pipe)])
        with pipe.open() as reader:
            assert reader.readline()
        running.wait()


FIT = "polyadic fit w.npz --rank 2 --sweeps 5 -o m.safetensors"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_progress_on_a_full_disk_does_not_end_the_fit(here):
    streams = [os.devnull, str(here / "said"), "/dev/full"]
    assert Command(FIT.split()[1:], here, streams).wait() == 0
    assert (here / "said").read_text().startswith("m.safetensors: cpd of 60 windows")
    assert load(here / "m.safetensors").n_sweeps_ >= 2


@pytest.mark.parametrize(
    "end",
    [
        "a pipe",
        *(pytest.param(end, marks=pytest.mark.long) for end in ("2>&1 | true", "2>&-", ">&- 2>&-")),
    ],
)
def test_a_reader_that_goes_away_does_not_end_the_fit(end, here):
    if end == "a pipe":
        read_a_line(FIT.split()[1:], here)
    else:
        in_a_shell(f"{FIT} {end}", here)
    assert load(here / "m.safetensors").n_sweeps_ >= 2
    assert sorted(path.name for path in here.iterdir()) == ["m.safetensors", "w.npz"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_result_that_cannot_be_printed_is_an_error_with_a_sentence(here):
    done = in_a_shell("polyadic info w.npz >/dev/full", here)
    assert done.returncode == 1
    assert done.stderr == "polyadic: [Errno 28] No space left on device\n"


# -------------------------------------------------------------------------------------------------------- encodings


@pytest.mark.parametrize(
    "encoding",
    ["ascii", pytest.param("cp1252", marks=pytest.mark.long)],
)
def test_results_come_in_whatever_encoding_the_terminal_has(encoding, here):
    lines = [
        f"{FIT} --probe",
        "polyadic evaluate m.safetensors w.npz --repeats 2",
        "polyadic info m.safetensors",
        "polyadic prepare arrays w.npz w.store",
        "polyadic info w.store",
        "polyadic rank w.npz --ranks 1,2 --restarts 1",
        "polyadic run --data w.npz --seeds 2 --rank 2 --sweeps 1",
        "polyadic --help",
        "polyadic fit --help",
    ]
    for line in lines:
        done = polyadic(*line.split()[1:], cwd=here, PYTHONIOENCODING=encoding, PYTHONWARNINGS="ignore")
        assert done.stdout
