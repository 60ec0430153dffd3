"""Settings files: each option is a key, flags take precedence, and wrong keys are named with file and line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from polyadic import load
from polyadic.cli import app
from polyadic.cli.errors import SettingsError
from polyadic.cli.settings import _line, model_of, read_settings
from polyadic.data import WindowStore, synthetic


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    signals = synthetic(90)
    np.savez(tmp_path / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, code: int = 0):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


def test_a_file_sets_options_and_flags_win(folder):
    text = '[fit]\nrank = 3\nsweeps = 2\nbatch-size = 16\nmethod = "SALS"\nprobe = "auto"\nout = "s.safetensors"\n'
    (folder / "p.toml").write_text(text)
    outcome = json.loads(run("fit", "w.npz", "--settings", "p.toml", "--rank", "5", "--json").stdout)
    model = load(folder / "s.safetensors")
    assert (outcome["method"], outcome["sweeps"], model.rank, model.batch_size) == ("SALS", 2, 5, 16)
    assert model.probe_.classes_.tolist() == outcome["classes"]


def test_the_order_of_flag_and_file_does_not_matter(folder):
    (folder / "p.toml").write_text("[fit]\nrank = 3\nsweeps = 1\n")
    for words in (("--rank", "2", "--settings", "p.toml"), ("--settings", "p.toml", "--rank", "2")):
        run("fit", "w.npz", "--json", "--force", *words)
        assert load(folder / "model.safetensors").rank == 2


def test_a_command_within_a_group_has_a_table_within_a_table(folder):
    rows = "\n".join(f"{n / 50},{n % 7},{n % 3}" for n in range(500))
    (folder / "own").mkdir()
    (folder / "own" / "a.csv").write_text(f"time,left,right\n{rows}\n")
    (folder / "p.toml").write_text('[prepare.folder]\nseconds = 2\nchannel = ["right"]\n[fit]\nrank = 2\n')
    run("prepare", "folder", "own", "s.store", "--settings", "p.toml")
    store = WindowStore(folder / "s.store")
    assert (store.shape, store.channels) == ((5, 1, 100), ("right",))
    # A flag that may be given several times replaces the whole list.
    run("prepare", "folder", "own", "t.store", "--settings", "p.toml", "--channel", "left", "--channel", "right")
    assert WindowStore(folder / "t.store").channels == ("left", "right")


WRONG = [
    ("[fit]\nrnak = 3", 2, "'rnak' is not an option of polyadic fit; did you mean 'rank'?"),
    ("[fit]\n\n# many\nbatch_size = 3", 4, "'batch_size' is not an option of polyadic fit; did you mean 'batch-size'?"),
    ("[fti]\nrank = 3", 1, "'fti' is not a command of polyadic; did you mean 'fit'?"),
    ("batch = 3", 1, "'batch' is not a command of polyadic; "),
    ("[prepare.foldr]\nseconds = 3", 1, "'foldr' is not a command of polyadic prepare; did you mean 'folder'?"),
    ("[prepare.folder]\nsecond = 3", 2, "'second' is not an option of polyadic prepare folder; did you mean 'seconds'"),
    ('[fit]\nrank = "three"', 2, "fit.rank is 'three', but should be a valid integer"),
    ("[fit]\nrank = 0", 2, "fit.rank is 0, but should be greater than or equal to 1"),
    ("[fit]\nrank = 2.5", 2, "fit.rank is 2.5, but should be a valid integer"),
    ("[fit]\nrank = true", 2, "fit.rank is True, but should be a valid integer"),
    ("[fit]\nlearning-rate = nan", 2, "fit.learning-rate is nan, but should be a finite number"),
    ("[fit]\nprobe = 1", 2, "fit.probe is 1, but should be 'auto', 'plain' or 'standardised'"),
    ('[fit]\nsolver = "blur"', 2, "fit.solver is 'blur', but should be 'auto', 'moments', 'blend' or 'memory'"),
    ('[fit]\nchannel = "C3"', 2, "fit.channel is 'C3', but should be a valid"),
    ('[fit]\nchannel = [\n  "C3",\n  4,\n]', 2, "fit.channel is 4, but should be a valid string"),
    ("fit = 3", 1, "fit is 3, but should be"),
    ("[fit]\nrank = 3\n[predict]\nout = 5", 4, "predict.out is 5, but"),
    ("fit = {rank = 2, hop = 'x'}", 1, "fit.hop is 'x', but"),
    ('[fit]\nout = """\nrnak = 3\n"""\nrnak = 4', 5, "'rnak' is not an option"),
    ("[fit]\nout = 2026-01-02\nrank = 1.5", 3, "fit.rank is 1.5, but"),
    ("[fit]\njson = true", 2, "'json' is not an option of polyadic fit"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG)
def test_a_wrong_key_is_named_with_file_and_line(text, line, message, folder):
    (folder / "p.toml").write_text(text + "\n")
    # Whichever command it is given to, all of the file is looked at.
    with pytest.raises(SettingsError) as caught:
        read_settings(folder / "p.toml", model_of(app))
    assert str(caught.value).startswith(f"p.toml, line {line}: {message}")


@pytest.mark.parametrize(("text", "line"), [("[fit]\nrank = 0\n", 2), ("fit = 3\n", 1)])
def test_a_byte_order_mark_as_windows_editors_write_it_changes_nothing(text, line, folder):
    (folder / "p.toml").write_bytes(b"\xef\xbb\xbf[fit]\r\nrank = 3\r\n")
    assert read_settings(folder / "p.toml", model_of(app)) == {"fit": {"rank": 3}}
    (folder / "p.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    with pytest.raises(SettingsError, match=f"p.toml, line {line}: fit"):
        read_settings(folder / "p.toml", model_of(app))


def test_all_faults_are_named_at_once(folder):
    (folder / "p.toml").write_text("[fit]\nrank = 0\nhpo = 3\n")
    with pytest.raises(SettingsError) as caught:
        read_settings(folder / "p.toml", model_of(app))
    assert [line[:14] for line in str(caught.value).splitlines()] == ["p.toml, line 2", "p.toml, line 3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[fit\n", "is not TOML.*line 1"),
        (b"[fit]\nrank = \n", "is not TOML.*line 2"),
        (b"\xff\xfe", "UTF-8"),
        (b"[fit]\n" + b"a." * 30_000 + b"b = 1\n", "line 2: a line must have at most 200 dots"),
        (b"\n" * 70_000, "must have at most 65536 bytes, but has 70000"),
        (b"[" + b"a." * 150 + b"b]\n" + b"x." * 190 + b"c = " + b"[" * 150 + b"]" * 150, "is invalid|nested tables"),
    ],
)
def test_a_file_that_is_not_toml_is_refused(content, message, folder):
    (folder / "p.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_settings(folder / "p.toml", model_of(app))


def test_every_option_of_every_command_can_be_set(folder):
    """The model of a settings file knows exactly the options that the commands have."""

    def keys(model):
        return {field.alias: field.annotation for field in model.model_fields.values()}

    def compare(command, model):
        if hasattr(command, "commands"):
            assert keys(model).keys() == command.commands.keys()
            for name, inner in command.commands.items():
                compare(inner, keys(model)[name])
            return
        options = {
            opt.removeprefix("--")
            for parameter in command.params
            if parameter.param_type_name == "option"
            for opt in parameter.opts
            if opt.startswith("--")
        }
        assert set(keys(model)) == options - {"json", "quiet", "settings"}

    compare(typer.main.get_command(app), model_of(app))


def test_every_command_but_info_takes_a_settings_file():
    def leaves(command, path=()):
        if not hasattr(command, "commands"):
            yield path, command
        else:
            for name, inner in command.commands.items():
                yield from leaves(inner, (*path, name))

    for path, command in leaves(typer.main.get_command(app)):
        names = {opt for parameter in command.params for opt in parameter.opts}
        assert "--json" in names, path
        if path != ("info",):
            assert {"--settings", "--quiet"} <= names, path


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\nb = 2\n", ["b"], 2),
        ("# b = 1\n\n[t]\n# b\n\nb = [\n1,\n2]\n", ["t", "b"], 6),
        ("[t]\na = 1\n[u]\na = 2\n", ["u", "a"], 4),
        ("[u.v]\n'a b' = 2", ["u", "v", "a b"], 2),
        ("u.v = 1\nu.w = 2", ["u", "w"], 2),
        ('s = """\nb = 1\n"""\nb = 2', ["b"], 4),
        ("[t]\r\na = 1\r\nb = 2\r\n", ["t", "b"], 3),
    ],
)
def test_the_line_of_a_key_is_where_its_statement_begins(text, path, line):
    tomllib.loads(text)
    assert _line(text, path) == line
