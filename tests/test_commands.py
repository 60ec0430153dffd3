"""The command line as users and scripts see it: exit codes, terminals, labels for new recordings."""

from __future__ import annotations

import csv
import json
import re
from importlib import import_module
from pathlib import Path

import edfio
import numpy as np
import pytest
import typer
from command_line import polyadic
from terminals import in_a_terminal
from typer.testing import CliRunner

from polyadic import load
from polyadic.cli import app
from polyadic.data import Windows, WindowStore, synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.evaluate import Probe, WindowClassifier, cross_validate, labels_of

STOPPED = r"polyadic: warning: The fit stopped at max_sweeps=2 [^\n]*\n"
"""What a fit of so few sweeps says on standard error."""
QUICK = ("--rank", "3", "--sweeps", "2")


def run(*words: object, code: int = 0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def recording(
    path: Path,
    seed: int,
    channels: tuple[str, ...] = ("C3", "C4"),
    classes: tuple[str, str] = ("slow", "fast"),
    seconds: int = 10,
) -> None:
    """Six stretches of slow and of fast waves in turn, as the annotations say.

    A channel's signal depends on the seed and its name: other channels and the order in the file do not matter.
    """
    fs = 100
    time_ = np.arange(6 * seconds * fs) / fs
    fast = (time_ // seconds) % 2 == 1
    waves = 3 * np.sin(2 * np.pi * np.where(fast, 20, 4) * time_)
    noise = {name: np.random.default_rng([seed, *name.encode()]).normal(size=len(time_)) for name in channels}
    signals = [edfio.EdfSignal(noise[name] + waves, sampling_frequency=fs, label=name) for name in channels]
    notes = [edfio.EdfAnnotation(seconds * n, seconds, classes[n % 2]) for n in range(6)]
    path.parent.mkdir(parents=True, exist_ok=True)
    edfio.Edf(signals, annotations=notes).write(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of six people, and a model with a probe from them."""
    root = tmp_path_factory.mktemp("made")
    for number, person in enumerate(("anna", "bert", "carl", "dora", "emil", "fred")):
        recording(root / "recordings" / person / "one.edf", number)
    options = ("--seconds", 2, "--class", "slow", "--class", "fast", "--probe", "--rank", 4, "--sweeps", 4)
    polyadic("fit", "recordings", *options, "-o", "model.safetensors", cwd=root)
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((made / "model.safetensors").read_bytes())
    return tmp_path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------- recordings to a model to labels


def test_from_a_folder_of_edf_files_to_labels_in_two_commands_after_the_set_up(made, tmp_path):
    recording(tmp_path / "new" / "gina.edf", 50)
    (tmp_path / "recordings").symlink_to(made / "recordings")
    polyadic("fit", "recordings", "--seconds", 2, "--class", "slow", "--class", "fast", "--probe", *QUICK, cwd=tmp_path)
    said = polyadic("predict", "model.safetensors", "new", cwd=tmp_path).stdout
    assert said.split()[:4] == ["labels", "labels.csv", "windows", "30"]
    found = rows_of(tmp_path / "labels.csv")
    heads = ["subject", "recording", "start", "time", "label", "confidence", "unusual", "missing", "p(fast)", "p(slow)"]
    assert list(found[0]) == heads
    assert [float(row["start"]) for row in found] == [2.0 * n for n in range(30)]
    truth = ["fast" if n // 5 % 2 else "slow" for n in range(30)]
    assert np.mean([row["label"] == name for row, name in zip(found, truth, strict=True)]) > 0.8
    assert not list(tmp_path.glob(".*"))


def test_predictions_are_those_of_the_classifier_on_the_windows_of_a_store(made, here):
    run("prepare", "folder", made / "recordings", "s.store", "--seconds", 2)
    outcome = json.loads(run("predict", "model.safetensors", "s.store", "-o", "a.csv", "--json").stdout)
    windows = WindowStore(here / "s.store").windows
    classifier = WindowClassifier.load(here / "model.safetensors")
    rows = rows_of(here / "a.csv")
    assert [row["label"] for row in rows] == classifier.predict(windows).tolist()
    assert [row["recording"] for row in rows] == windows.recording.tolist()
    assert [row["subject"] for row in rows] == windows.subject.tolist()
    values = [[float(row[f"p({name})"]) for name in classifier.classes_] for row in rows]
    np.testing.assert_allclose(values, classifier.predict_proba(windows), atol=1e-5)
    assert outcome["windows"] == len(windows) == sum(outcome["classes"].values())
    # The recordings themselves give the same file.
    run("predict", "model.safetensors", made / "recordings", "-o", "b.csv")
    assert (here / "b.csv").read_bytes() == (here / "a.csv").read_bytes()


def test_arrays_and_tables_are_predicted_too(here):
    rng = np.random.default_rng(0)
    np.savez(here / "w.npz", X=rng.normal(size=(5, 2, 200)), start=np.arange(5) * 50)
    run("predict", "model.safetensors", "w.npz")
    # The file does not say its rate; the model knows what it must be.
    assert [row["start"] for row in rows_of(here / "labels.csv")] == ["0", "0.5", "1", "1.5", "2"]
    values = rng.normal(size=(400, 3))
    lines = [",".join(map(str, row)) for row in values.tolist()]
    (here / "t.csv").write_text("\n".join(["C4,other,C3", *lines]) + "\n")
    run("predict", "model.safetensors", "t.csv", "--force")
    features = load(here / "model.safetensors").transform(
        values[:, [2, 0]].reshape(2, 200, 2).swapaxes(1, 2).astype("f4")
    )
    run("transform", "model.safetensors", "t.csv", "-o", "f.npy")
    np.testing.assert_allclose(np.load(here / "f.npy"), features, rtol=1e-3, atol=1e-3)
    assert len(rows_of(here / "labels.csv")) == 2


def test_recordings_that_lack_a_channel_are_predicted_and_the_channel_is_named(made, here):
    recording(here / "x.edf", 9)
    signals = {signal.label: signal.data for signal in edfio.read_edf(here / "x.edf").signals}
    for folder, channels, notes in (
        ("full", ["C3", "C4"], []),
        ("less", ["C3"], ["x: channels missing: 'C4'; if a channel only has another name: --rename OLD=NEW"]),
    ):
        (here / folder).mkdir()
        np.savetxt(
            here / folder / "x.csv",
            np.transpose([signals[name] for name in channels]),
            delimiter=",",
            header=",".join(channels),
            comments="",
        )
        said = polyadic("predict", "model.safetensors", folder, "-o", f"{folder}-labels.csv", cwd=here).stderr
        assert [line for line in said.splitlines() if "missing" in line] == notes
    full, less = (rows_of(here / f"{folder}-labels.csv") for folder in ("full", "less"))
    assert [row["missing"] for row in full] == ["0"] * 30
    assert [row["missing"] for row in less] == ["0.5"] * 30
    assert [row["label"] for row in less] == [row["label"] for row in full]
    assert sum(row["unusual"] == "1" for row in less) <= 3


def test_channels_of_another_name_give_a_hint_at_rename(made, here):
    recording(here / "all.edf", 9, channels=("EEG C3", "EEG C4"))
    recording(here / "part.edf", 9, channels=("C3", "EEG C4"))
    said = polyadic("predict", "model.safetensors", "all.edf", cwd=here, code=1).stderr
    assert "did you mean 'EEG C3'?\n  (if a channel only has another name: --rename OLD=NEW)" in said
    said = polyadic("predict", "model.safetensors", "part.edf", cwd=here).stderr
    assert "part: channels missing: 'C4'; if a channel only has another name: --rename OLD=NEW\n" in said
    said = polyadic("predict", "model.safetensors", "part.edf", "--rename", "EEG C4=C4", "--force", cwd=here).stderr
    assert "--rename" not in said


@pytest.mark.filterwarnings("always:dead or stuck channels", "ignore:the fixed-point rule")
def test_dead_channels_are_named_once_and_fit_says_that_it_looks_for_components(here, monkeypatch):
    monkeypatch.setattr(import_module("polyadic.explain.components"), "_RANKS", (2,))  # fewer than by default
    signals = synthetic(60, 2, 64)
    X = signals.X.copy()
    X[::3, 1] = 5.0
    np.savez(here / "w.npz", X=X, y=signals.label, subject=np.arange(60) // 15, fs=signals.fs)
    monkeypatch.setattr("polyadic.cli.files.STEP", 7)
    said = run("fit", "w.npz", "--probe", *QUICK, "--components", "--force").stderr
    assert said.count("dead or stuck channels") == 1
    where = "missing: 2: 0 (5 windows), 1 (5 windows), 2 (5 windows) and 1 more (fit --keep-flat"
    assert where in said
    assert said.count("Finding the components that replicate in other subjects") == 1
    assert run("predict", "model.safetensors", "w.npz").stderr.count(where) == 1
    said = run("moments", "w.npz", "--stage", "floor", "--allow-few", "-o", "floor.moments").stdout
    assert said.split()[:2] == ["path", "floor.moments"]
    assert " stage floor windows 60 subjects 4 " in " ".join(said.split())


@pytest.mark.filterwarnings("ignore:dead or stuck channels")
def test_keep_flat_takes_a_channel_that_is_constant_by_nature_as_it_is(here):
    signals = synthetic(60, 2, 64)
    X = signals.X.copy()
    X[::2, 1] = 5.0
    np.savez(here / "w.npz", X=X, y=signals.label, subject=signals.subject, fs=signals.fs)
    for name, words, missing in (("a", (), {"0", "0.5"}), ("b", ("--keep-flat",), {"0"})):
        run("fit", "w.npz", "--probe", "--rank", 2, "--sweeps", 2, "-o", f"{name}.safetensors", *words)
        run("predict", f"{name}.safetensors", "w.npz", "-o", f"{name}.csv")
        assert {row["missing"] for row in rows_of(here / f"{name}.csv")} == missing
    assert load(here / "b.safetensors").readout.keep_flat


# -------------------------------------------------------------------------------------------------------- scores


def labelled(count: int = 240) -> Windows:
    return synthetic(count)


def saved(folder: Path, count: int = 240) -> Windows:
    """Labelled windows, also in the file w.npz."""
    signals = labelled(count)
    np.savez(folder / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    return signals


def test_evaluate_is_the_cross_validation_by_subject(here):
    signals = saved(here, 120)  # four windows of each subject; in a fold too few for a probe to search long
    run("fit", "w.npz", *QUICK, "--method", "SALS", "-o", "m.safetensors")
    model, words = load(here / "m.safetensors"), ("evaluate", "m.safetensors", "w.npz", "--folds", 3)
    outcome = json.loads(run(*words, "--json").stdout)
    windows = open_windows(here / "w.npz")
    expected = cross_validate(model, windows, 3)
    assert outcome == json.loads(json.dumps({"model": "m.safetensors", "data": "w.npz", **expected.to_dict()}))
    assert not outcome["transductive"]
    assert set(outcome["per_subject"]) == set(signals.subject.tolist())
    shown = " ".join(run(*words).stdout.split())
    for line in expected.summary().splitlines():
        assert " ".join(line.split()) in shown
    assert "Features were refitted in every fold, without the test subjects." in shown
    assert re.search(r"Probe in the first of \d+ folds: C=", shown)


def test_evaluate_says_how_predict_labels_with_the_model(made, here):
    words = ("evaluate", "model.safetensors", made / "recordings", "--transductive", "--folds", 2, "--quiet")
    used = WindowClassifier.load(here / "model.safetensors").chain_.is_default
    way = "along the recording" if used else "each window by itself"
    assert f"With this model, predict labels {way}." in " ".join(run(*words).stdout.split())


def test_a_wide_confusion_matrix_loses_nothing(here):
    names = [f"Sleep stage {name} of the night" for name in "W123R"]
    signals = synthetic(100)
    given = {"y": np.array(names)[np.arange(100) % 5], "subject": np.arange(100) // 25, "fs": signals.fs}
    np.savez(here / "w.npz", X=signals.X, **given)
    run("fit", "w.npz", *QUICK, "-o", "m.safetensors")
    words = ("evaluate", "m.safetensors", "w.npz", "--transductive", "--folds", "2", "--quiet")
    _, shown = in_a_terminal(80, words, here)
    assert "…" not in shown
    assert all(shown.count(name) > 2 for name in names)


def test_evaluate_scores_the_probe_of_the_model_file(here):
    signals = saved(here)
    run("fit", "w.npz", *QUICK, "--probe", "-o", "m.safetensors")
    own = json.loads(run("evaluate", "m.safetensors", "w.npz", "--own-probe", "--json").stdout)
    predicted = WindowClassifier.load(here / "m.safetensors").predict(signals)
    assert own["accuracy"] == np.mean(predicted == labels_of(signals))
    assert own["tested"] == len(signals)


def test_fit_reports_how_its_probe_was_chosen(here):
    saved(here)
    said = run("fit", "--probe", "w.npz", *QUICK, "-o", "m.safetensors").stdout
    chosen = load(here / "m.safetensors").probe_
    assert isinstance(chosen, Probe)
    assert f"reason {chosen.reason_}" in " ".join(said.split())
    assert "by leaving out 30 subjects" in chosen.reason_
    assert "for the score on new subjects: polyadic evaluate m.safetensors w.npz\n" in said


def load_of(signals: Windows):
    from polyadic import SALS
    from polyadic.spectral import STFT

    return SALS(rank=2, tensorize=STFT(n_fft=32, hop=16), max_sweeps=1).fit(signals)


def test_windows_without_a_label_are_counted(here):
    signals = saved(here, 120)
    label = np.where(np.arange(120) % 4 == 0, -1, signals.label)
    np.savez(here / "part.npz", X=signals.X, y=label, subject=signals.subject, fs=signals.fs)
    said = polyadic("fit", "part.npz", *QUICK, "--probe", "-o", "m.safetensors", cwd=here).stderr
    assert "(no label) 30 25.0" in " ".join(said.split())


# ---------------------------------------------------------------------------------------------------------- info


@pytest.mark.filterwarnings("ignore:the fixed-point rule")
def test_info_describes_each_kind_of_file(made, here):
    store = ("prepare", "folder", made / "recordings", "s.store", "--seconds", 2, "--class", "slow")
    run(*store)
    np.savez(here / "w.npz", X=np.zeros((4, 2, 8)), y=np.zeros(4, int))
    run("moments", "s.store", "-o", "s.moments")
    lines = "\n".join(f"{n / 50},1" for n in range(100))
    (here / "r.csv").write_text(f"time,left\n{lines}\n")
    wanted = {
        "model.safetensors": {"kind": "model", "rank": 4, "fs": 100.0, "classes": ["fast", "slow"], "estimator": "CPD"},
        "s.store": {"kind": "store of windows", "shape": [180, 2, 200], "seconds": 2.0, "subjects": 6},
        "s.moments": {"kind": "sums over windows", "stage": "core", "windows": 180, "subjects": 6, "fs": 100.0},
        "w.npz": {"kind": "windows in arrays", "shape": [4, 2, 8], "classes": {"0": 4}, "subjects": 0},
        "r.csv": {"kind": "recording", "fs": 50.0, "seconds": 2.0},
        str(made / "recordings" / "anna" / "one.edf"): {
            "channels": ["C3", "C4"],
            "annotations": {"slow": 3, "fast": 3},
        },
        str(made / "recordings"): {"kind": "folder of recordings", "recordings": 6},
    }
    for path, facts in wanted.items():
        found = json.loads(run("info", path, "--json").stdout)
        assert facts.items() <= found.items() or found == facts, (path, found)
        shown = run("info", path).stdout
        assert found["kind"] in shown
        assert str(here) not in shown


def test_info_reads_tables_with_the_options_that_it_recommends(here):
    lines = [f"{n / 50},{np.sin(n)},{n // 50 % 2}" for n in range(100)]
    (here / "t.csv").write_text("\n".join(["when,left,walking", *lines]) + "\n")
    said = polyadic("info", "t.csv", cwd=here, code=1).stderr
    assert "name the column of times (--time), or give the rate in Hz (--fs" in " ".join(said.split())
    for words in (("--time", "when"), ("--time", "when", "--label", "walking")):
        facts = json.loads(run("info", "t.csv", *words, "--json").stdout)
        assert (facts["channels"], facts["fs"], facts["label"]) == (["left"], 50.0, "walking")
        assert facts["annotations"] == {"0": 1, "1": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.safetensors", b"nothing", "damaged, truncated or not a model file"),
        ("a.npz", b"PK nothing", "cannot be read"),
        ("a.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("notes.txt", b"hello", "is not a file that polyadic reads"),
        ("night.edf", b"nothing", "night.edf"),
    ],
)
def test_info_reports_damaged_and_unknown_files(name, content, message, here):
    (here / name).write_bytes(content)
    assert message in polyadic("info", name, cwd=here, code=1).stderr


# ---------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--version",), 0, ""),
        (("fit", "--help"), 0, ""),
        (("fti",), 2, "No such command"),
        (("fit", "absent"), 2, "does not exist"),
        (("predict", "plain.safetensors", "w.npz"), 1, "has no probe"),
        (("predict", "w.npz", "plain.safetensors"), 2, "'w.npz' is not a model file. The model comes"),
        (("predict", "model.safetensors", "w.npz", "-o", "x.txt"), 1, "--out must end in .csv"),
        (("transform", "plain.safetensors", "recordings"), 1, "Write a store with polyadic prepare"),
        (("evaluate", "model.safetensors", "w.npz", "--own-probe", "--folds", "2"), 1, "--own-probe uses no folds"),
        (("evaluate", "plain.safetensors", "y.npz", "--folds", "few"), 1, "--folds must be loso or an integer"),
        (("evaluate", "plain.safetensors", "y.npz"), 1, "windows must have subjects"),
        (("evaluate", "model.safetensors", "w.npz"), 1, "To label new recordings, use polyadic predict"),
    ],
)
def test_exit_codes_match_the_manual(words, code, message, here):
    X = np.random.default_rng(0).normal(size=(30, 2, 200)).astype("f4")
    np.savez(here / "w.npz", X=X)
    np.savez(here / "y.npz", X=X, y=np.arange(30) % 2)
    recording(here / "recordings" / "x.edf", 0)
    load_of(Windows(X)).save(here / "plain.safetensors")
    result = polyadic(*words, cwd=here, code=code)
    assert message in re.sub(r"[│\s]+", " ", result.stderr)
    if code == 0:
        assert result.stderr == ""


def test_results_for_programs_are_alone_on_standard_output(here):
    X = np.random.default_rng(0).normal(size=(40, 2, 200)).astype("f4")
    np.savez(here / "w.npz", X=X, fs=100, y=np.arange(40) % 2, subject=np.arange(40) // 5)
    for words in (
        ("fit", "w.npz", *QUICK, "--probe", "-o", "m.safetensors"),
        ("transform", "m.safetensors", "w.npz"),
        ("predict", "m.safetensors", "w.npz"),
        ("evaluate", "m.safetensors", "w.npz"),
        ("info", "m.safetensors"),
        ("prepare", "arrays", "w.npz", "w.store"),
        ("info", "w.store", "--verify"),
    ):
        result = polyadic(*words, "--json", cwd=here)
        assert isinstance(json.loads(result.stdout), dict)
        assert re.sub(STOPPED, "", result.stderr) == "", words


# ------------------------------------------------------------------------------------------------------ terminals


def test_a_terminal_shows_the_stage_and_the_time_left(here):
    saved(here)
    columns = 80
    code, shown = in_a_terminal(columns, ("fit", "w.npz", *QUICK, "-o", "m.safetensors"), here)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert code == 0
    assert re.search(r"CPD .*sweep [012]/2.* .*left", plain)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain) if "━" in line) <= columns
    code, shown = in_a_terminal(columns, ("transform", "m.safetensors", "w.npz"), here)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"transforming .*240/240 windows .*left", plain)


# ---------------------------------------------------------------------------------------------------- the manual


def commands(command=None, path=()):
    command = command or typer.main.get_command(app)
    if path:
        yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_help_has_examples_that_are_not_broken_over_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    for path, command in [((), typer.main.get_command(app)), *commands()]:
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).stdout
        lines = [line.strip() for line in shown.splitlines()]
        assert max(len(line) for line in shown.splitlines()) <= 80, path
        examples = [line.strip() for line in command.epilog.splitlines() if line.startswith("  ")]
        assert any(line.startswith("polyadic ") for line in examples), path
        for example in examples:
            assert example.replace("\\\\", "\\") in lines, (path, example)
