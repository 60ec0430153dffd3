"""The commands of the README and of docs/recordings.md on folders as users have them, one command per step.

And every wrong use, with its message.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from pathlib import Path

import edfio
import numpy as np
import people
import pytest
from command_line import polyadic

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "recordings.md", ROOT / "README.md"
KINDS = {"sleep": people.sleep, "wearables": people.wearables, "ecg": people.ecg, "bids": people.bids}
QUICK = ("--rank", 3, "--sweeps", 2)


def commands_of(folder: str, page: Path = PAGE) -> list[list[str]]:
    """The commands of a page that begin with a fit of this folder, or with its labels, as words."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    begins = (f"polyadic fit {folder} ", f"polyadic label {folder} ")
    found = [block for block in blocks if block.startswith(begins)]
    assert len(found) == 1
    return [shlex.split(line, comments=True)[1:] for line in found[0].splitlines()]


LONGER = {"sleep": {"epoch_seconds": 30}, "wearables": {"each": 750}, "ecg": {"seconds": 30}, "bids": {"seconds": 30}}
"""For the windows of 30 s of the README."""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_the_readme_do_for_every_kind_of_folder(kind: str, tmp_path: Path) -> None:
    if kind == "bids":
        pytest.importorskip("mne_bids")
        pytest.importorskip("pybv")
    KINDS[kind](tmp_path / "recordings", **LONGER[kind])
    KINDS[kind](tmp_path / "new-recordings", 1, **LONGER[kind])
    commands = commands_of("recordings", README)
    assert [words[0] for words in commands] == ["label", "fit", "report", "predict"]
    # These recordings have labels: as the README says below its commands, the first one and --labels are left out.
    _, fit, *others = [[word for word in words if word not in ("--labels", "labels.csv")] for words in commands]
    if kind == "wearables":
        refused = polyadic(*fit, cwd=tmp_path, code=1).stderr
        assert "use --label activity" in " ".join(refused.split())  # the message has what the README's comment says
        fit = [*fit, "--label", "activity"]
    said = {words[0]: polyadic(*words, cwd=tmp_path) for words in (fit, *others)}
    assert ["subjects", "4"] in [line.split() for line in said["fit"].stdout.splitlines()]
    assert (tmp_path / "report.html").exists()
    with (tmp_path / "predicted.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["label"] for row in rows}) > 1
    assert all(0 < float(row["confidence"]) <= 1 for row in rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of sleep and of wearables, and a model of the latter."""
    folder = tmp_path_factory.mktemp("made")
    people.sleep(folder / "sleep", 2, epochs=6)
    people.wearables(folder / "wearables", 2)
    options = ("--seconds", 2, "--label", "activity", "--probe", *QUICK)
    polyadic("fit", "wearables", *options, "-o", "m.safetensors", cwd=folder)
    people.table(folder / "fast.csv", ["walk"], 0, fs=50, each=400)
    shutil.copytree(folder / "wearables", folder / "twice")
    shutil.copy(folder / "twice" / "p01.csv", folder / "twice" / "p07.csv")
    edfio.Edf([edfio.EdfSignal(np.zeros(100), 10, label=label) for label in ("C3", "C4")]).write(folder / "two.edf")
    mixed = [edfio.EdfSignal(np.arange(1.0, fs * 10 + 1), fs, label=f"at {fs}") for fs in (100, 60)]
    edfio.Edf(mixed).write(folder / "mixed.edf")
    people.night_and_hypnogram(folder / "psg")
    for name, rate, channels in (("a", 10, "C3 C4"), ("b", 20, "C3 C4"), ("c", 10, "O1 O2")):
        signals = [edfio.EdfSignal(np.arange(100.0), rate, label=label) for label in channels.split()]
        for kind in ("rates", "channels"):
            if (kind == "rates") != (name == "c") or name == "a":
                (folder / kind).mkdir(exist_ok=True)
                edfio.Edf(signals).write(folder / kind / f"{name}.edf")
    (folder / "uneven.csv").write_text("time,x\n" + "".join(f"{n * n / 100},{n}\n" for n in range(100)))
    (folder / "codes.csv").write_text(
        "time,x,code\n" + "".join(f"{n / 10},{n / 7:.3f},{n // 50}\n" for n in range(200))
    )
    people.table(folder / "short.csv", ["walk"], 0, each=30)
    (folder / "scored").mkdir()
    shutil.copy(folder / "two.edf", folder / "scored" / "S1.edf")
    (folder / "scored" / "S1_events.csv").write_text("onset,duration,stage\n0,5,W\n5,5,N2\n")
    (folder / "empty").mkdir()
    (folder / "notes.py").touch()
    np.savez(folder / "w.npz", X=np.random.default_rng(0).normal(size=(9, 4, 50)), fs=25)
    return folder


WRONG = {
    "fit wearables --seconds 2": "polyadic: wearables: p01.csv: the column 'activity' looks like a label (by its name)",
    "fit wearables --seconds 2 --label activty": "did you mean 'activity'?",
    "fit wearables --label activity --class walking": "there are 'rest', 'run', 'walk'; did you mean 'walk'?",
    "fit sleep --class 'Sleep stage w'": "did you mean 'Sleep stage W'?",
    "fit sleep --channel 'EEG Fpz-CZ'": "did you mean 'EEG Fpz-Cz'?",
    "fit sleep --label stage": "--class selects annotations, --scoring names",
    "fit sleep --scoring *.txt": "--scoring '*.txt' matches no file",
    "fit psg --seconds 30": "use --scoring '*-Hypnogram.edf'",
    "fit mixed.edf": "--resample polyphase",
    "fit sleep -o m.safetensors": "m.safetensors already exists: use --force to overwrite it",
    "predict m.safetensors wearables --seconds 3": "--seconds is 3 s, but the model has 2 s",
    "predict m.safetensors wearables --stride 1": "--stride is 1 s, but the model has 2 s: leave the option out",
    "fit rates": "b is sampled at 20 Hz, but the recordings before it at 10 Hz: --fs 10 --resample polyphase",
    "fit channels": "c has the channels 'O1', 'O2', but the recordings before it have 'C3', 'C4': --rename OLD=NEW",
    "fit uneven.csv": "times must be evenly spaced by",
    "fit codes.csv": "the column 'code' looks like a label (it has only 4 distinct values, all whole numbers)",
    "fit short.csv --label activity": "no recording has a window of 10 s: choose shorter windows (--seconds)",
    "fit scored --probe --seconds 5": "S1_events.csv: a table of events: use --scoring '*_events.csv' to read",
    "fit wearable": "Did you mean 'wearables'?",
    "fit notes.py": "notes.py is neither windows (.npz, .npy, .mat or a store) nor a recording (.edf,",
    "evaluate wearables m.safetensors": "'wearables' is not a model file. The model comes first",
    "predict m.safetensor wearables": "Did you mean 'm.safetensors'?",
    "fit empty": "No recordings found in empty (looked for .edf, .bdf, .hea, .csv",
    "fit wearables --label activity --subject who": "there is no column 'who' (--subject)",
    "fit sleep --subject 'X(.)'": "--subject must find the subject in every path, but 'X(.)'",
    "predict m.safetensors fast.csv": "--resample polyphase resamples (the model was fitted at",
    "predict m.safetensors wearables -o a.edf": "holds the labels of one recording",
    "prepare folder sleep s --seconds -1": "seconds must be a positive number",
    "info sleep --verify": "--verify is for stores",
    "fit w.npz --seconds 3": "--seconds is for recordings",
    "fit w.npz --probe": "--probe needs windows of at least two classes",
    "transform m.safetensors w.npz": "X must have shape",
    "evaluate m.safetensors twice": "are the same recording with two subjects",
}
SKIPS = ("fit rates", "fit channels", "fit psg --seconds 30")
"""Commands whose error is of one recording, so that it helps to skip it."""


MISSING = {
    "edfio": ("fit sleep", "night.edf needs the package edfio, which is not installed: pip install 'polyadic[edf]'"),
    "wfdb": ("fit ecg/S01/r.hea", "pip install 'polyadic[wfdb]'"),
    "mne": (
        "fit vision.vhdr",
        "vision.vhdr needs the package mne, which is not installed: pip install 'polyadic[mne]'",
    ),
    "plotly": ("report m.safetensors -o q.html", "pip install 'polyadic[report]'"),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_noticed_before_the_computation(package: str, made: Path) -> None:
    command, message = MISSING[package]
    (made / "vision.vhdr").touch()
    if not (made / "ecg").exists():
        people.ecg(made / "ecg", 1)
    program = f"import sys; sys.modules[{package!r}] = None\nfrom polyadic.cli import main\nsys.argv[0] = 'p'; main()"
    said = polyadic("-c", program, *shlex.split(command), cwd=made, code=1)
    assert message in " ".join((said.stdout + said.stderr).split())
    assert "sweep" not in said.stderr


@pytest.mark.parametrize("command", WRONG)
def test_the_error_for_wrong_use_says_how_to_fix_it(command: str, made: Path) -> None:
    said = polyadic(*shlex.split(command), cwd=made, code=(1, 2)).stderr
    assert WRONG[command] in " ".join(said.replace("│", " ").split()), said
    assert ("--on-error" in said) == (command in SKIPS), said
    assert "()" not in said
