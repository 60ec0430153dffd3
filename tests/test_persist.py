"""Model files: saved models are loaded exactly, and invalid files are refused with a reason."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import OwnTensors, paper
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import polyadic
from polyadic import ATD, CPD, GRSALS, SALS, load, report
from polyadic._util import model_files
from polyadic.augment import Bandpass, Compose, Jitter, OneOf, Rotate3D
from polyadic.data import synthetic
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import WindowClassifier
from polyadic.readout import Readout
from polyadic.spectral import STFT

Model = CPD

SETTINGS: dict[str, Any] = {
    "rank": 3,
    "alpha": 0.01,
    "solver": "blend",
    "learning_rate": 0.5,
    "batch_size": 10,
    "max_sweeps": 2,
    "device": "cpu",
    "random_state": 4,
}
MEMORY = {"solver": "memory", "learning_rate": 0.3}
SHORT_TIME = STFT(n_fft=8, hop=4, window="hann", floor="channel")
TURN = Compose([OneOf([Jitter(0.2), Bandpass([(1, 20), (5, 24)], fs=50)]), Rotate3D([(0, 1, 2)])])

FLAT, CUBE, FOUR = (np.random.default_rng(0).normal(size=shape) for shape in ((24, 5), (24, 3, 40), (24, 4, 5, 3)))


CASES: dict[str, tuple[Callable[..., Model], dict[str, Any], Any]] = {
    "SALS, two dimensions": (SALS, {}, FLAT),
    "CPD": (CPD, {}, CUBE),
    "CPD, own readout": (CPD, {"readout": Readout(statistics=0.5)}, CUBE.astype(np.float32)),
    "SALS, four dimensions, float32, memory": (SALS, MEMORY, FOUR.astype(np.float32)),
    "SALS, names": (SALS, {}, pd.DataFrame(FLAT).add_prefix("x")),
    "SALS, STFT of fixed floor": (SALS, {"tensorize": STFT(8, 4, parts="log_amplitude", floor=0.5)}, CUBE),
    "SALS, numpy parameters": (
        SALS,
        {"rank": np.int64(3), "alpha": np.float32(0.01), "tol": np.float16(0.01)},
        CUBE,
    ),
    "GRSALS": (GRSALS, {"graph_weight": 0.5}, FOUR),
    "ATD, STFT, memory": (ATD, {"tensorize": SHORT_TIME, "augment": TURN, "beta": 0.05, "gamma": 3.0, **MEMORY}, CUBE),
}


@pytest.fixture(params=CASES)
def fitted(request: pytest.FixtureRequest) -> tuple[Model, Any]:
    kind, settings, X = CASES[request.param]
    if kind is CPD:
        return CPD(3, max_sweeps=2, device="cpu", **settings).fit(X), X
    return paper(kind, **SETTINGS | settings).fit(X), X


@pytest.fixture
def model() -> ATD:
    """A model with everything a file can hold."""
    return paper(ATD, tensorize=SHORT_TIME, augment=TURN, beta=0.05, readout="auto", **SETTINGS | MEMORY).fit(CUBE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def assert_same(one: Model, other: Model, X: Any) -> None:
    assert type(one) is type(other)
    for mine, theirs in zip(one.factors_, other.factors_, strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    assert one.get_params() == other.get_params()
    assert one.history_ == other.history_
    assert one.tensorize_ == other.tensorize_
    for name in ("n_sweeps_", "seed_", "n_parameters_", "n_features_in_", "_sample_shape", "_n_seen"):
        assert getattr(one, name) == getattr(other, name), name
    assert list(getattr(one, "feature_names_in_", [])) == list(getattr(other, "feature_names_in_", []))
    for name in ("readout_", "solver_", "batch_size_", "nonnegative_", "attempt_", "converged_"):
        assert repr(getattr(one, name, None)) == repr(getattr(other, name, None)), name
    assert (one._memory is None) == (other._memory is None)
    if one._memory is not None and other._memory is not None:
        assert torch.equal(one._memory.Y, other._memory.Y)
        assert torch.equal(one._memory.S, other._memory.S)
    np.testing.assert_array_equal(one.coefficients(X), other.coefficients(X), strict=True)
    if hasattr(one, "readout_"):
        np.testing.assert_array_equal(one.transform(X), other.transform(X), strict=True)
    assert one.score(X) == other.score(X)


# ------------------------------------------------------------------------------------------------- save and load


def test_save_and_load_are_equal_in_everything(fitted: tuple[Model, Any], path: Path) -> None:
    model, X = fitted
    model.save(path)
    assert_same(load(path), model, X)
    assert list(load(path).get_feature_names_out()) == list(model.get_feature_names_out())


def test_a_loaded_model_continues_like_the_saved_one(fitted: tuple[Model, Any], path: Path) -> None:
    model, X = fitted
    model.partial_fit(X[:7]).save(path)
    again = load(path)
    assert_same(again, model, X)
    for _ in range(2):
        assert_same(again.partial_fit(X[:9]), model.partial_fit(X[:9]), X)
    for refitted in (again, model):
        refitted.fit(X)
        refitted.history_.pop("seconds")
    assert_same(again, model, X)


def test_a_file_has_the_probe_and_gives_its_probabilities_to_the_bit(path: Path) -> None:
    windows = synthetic(120, n_channels=2, length=64)
    classifier = WindowClassifier(CPD(3, max_sweeps=3, tol=0, device="cpu")).fit(windows)
    classifier.save(path)
    again = WindowClassifier.load(path)
    np.testing.assert_array_equal(again.predict_proba(windows), classifier.predict_proba(windows))
    features = load(path)
    assert_same(features, classifier.features_, windows)
    np.testing.assert_array_equal(
        features.probe_.predict_proba(features.transform(windows)), classifier.predict_proba(windows)
    )


@pytest.mark.parametrize(
    "given", [{"tensorize": OwnTensors(torch.abs)}, {"tensorize": torch.abs}, {"augment": torch.neg, "beta": 0.01}]
)
def test_preprocessing_that_cannot_be_described_is_refused(given: dict[str, Any], path: Path) -> None:
    model = paper(ATD if "augment" in given else SALS, **given, **SETTINGS).fit(CUBE)
    with pytest.raises(PolyadicError, match="cannot be described in a file, which contains no code: preprocessing of"):
        model.save(path)
    assert not path.exists()


def test_a_model_whose_tensors_are_a_function_of_its_user_has_a_report_and_moments():
    windows = synthetic(60, n_channels=2)
    model = CPD(rank=2, tensorize=torch.abs)
    moments = model.fit_with_moments(windows, windows.subject)
    assert "built-in method abs" in report.render(model, windows[:3])
    with pytest.raises(PolyadicError, match="cannot be described in a file"):
        moments.save("moments.safetensors")


class Tuned(CPD):
    """A model of a user's own."""


def test_a_model_of_a_subclass_is_loaded_where_the_class_is_defined(path: Path) -> None:
    model = Tuned(rank=2).fit(synthetic(60, n_channels=2))
    model.save(path)
    assert type(load(path)) is Tuned
    rewritten(path, lambda arrays, header: header.update(estimator="Other"))
    with pytest.raises(ModelFileError, match="unknown type 'Other': import the module that defines it"):
        load(path)


# ---------------------------------------------------------------------------------------------- the file itself


def test_the_file_can_be_read_by_safetensors_and_json_alone(model: ATD, path: Path) -> None:
    model.save(path)
    arrays = load_file(path)
    assert {"factors.0", "factors.1", "factors.2", "memory.S", "memory.Y", "readout.matrix"} <= arrays.keys()
    for mode, factor in enumerate(model.factors_):
        np.testing.assert_array_equal(arrays[f"factors.{mode}"], factor, strict=True)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert list(metadata) == ["polyadic"]
    header = json.loads(metadata["polyadic"])
    assert header["schema"] == model_files.SCHEMA == 4
    assert header["version"] == polyadic.__version__
    assert header["estimator"] == "ATD"
    assert header["parameters"]["rank"] == 3
    assert header["parameters"]["augment"]["type"] == "Compose"
    assert header["tensorize"]["type"] == "STFT"
    assert header["tensorize"]["floor"] == list(model.tensorize_.floor)
    assert header["history"] == model.history_


def test_nothing_in_the_library_unpickles() -> None:
    source = Path(polyadic.__file__).parent
    files = sorted(source.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        if file.parent.name == "testing":  # baselines have to survive being sent to other processes
            continue
        text = file.read_text(encoding="utf-8")
        for word in ("pickle", "torch.load", "torch.save", "joblib.load", "marshal", "shelve"):
            assert word not in text.replace("allow_pickle=False", ""), f"{file.name} has {word}"


@dataclass
class Failure:
    """Stands for a system call, and fails from the given call on."""

    calls: list[Any] = field(default_factory=list)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.calls.append(arguments)
        raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize("broken", ["os.fsync", "os.replace", "os.chmod"])
def test_a_write_that_fails_leaves_the_older_file_and_nothing_else(
    broken: str, model: ATD, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(path)
    before = path.read_bytes()
    failure = Failure()
    model.partial_fit(CUBE)
    with monkeypatch.context() as patch:
        patch.setattr(broken, failure)
        with pytest.raises(OSError, match="no space left"):
            model.save(path)
    assert len(failure.calls) == 1
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    model.save(path)
    assert path.read_bytes() != before


# -------------------------------------------------------------------------------------------------- damaged files


def rewritten(path: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any]], object]) -> None:
    """The same file with arrays or header changed, and a checksum that fits."""
    arrays, header = model_files.read(path)
    change(arrays, header)
    model_files.write(path, arrays, header)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, r"^\S+model\.safetensors was written by polyadic of version 0\.2 or earlier: fit the model again$"),
        (5, r"^\S+model\.safetensors was written by polyadic of a later version: upgrade$"),
    ],
)
def test_files_of_other_versions_are_refused_in_one_sentence(schema: Any, message: str, model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header.update(schema=schema, parameters="of another time"))
    with pytest.raises(ModelFileError, match=message):
        load(path)


@pytest.mark.parametrize("missing", [False, True])
def test_a_changed_number_or_setting_is_noticed(missing: bool, model: ATD, path: Path) -> None:
    for change in (filled("factors.0", 0.5), lambda arrays, header: header["parameters"].update(alpha=0.25)):
        model.save(path)
        with safe_open(path, framework="numpy") as file:
            arrays, header = load_file(path), json.loads(file.metadata()["polyadic"])
        change(arrays, header)
        if missing:
            del header["sha256"]
        save_file(arrays, path, metadata={"polyadic": json.dumps(header)})
        with pytest.raises(ModelFileError, match="is damaged: its checksum does not match"):
            load(path)


# ------------------------------------------------------------------------ sound checksum, impossible content


def cut(name: str, *slices: slice) -> Callable[[dict[str, np.ndarray], dict[str, Any]], object]:
    return lambda arrays, header: arrays.update({name: np.ascontiguousarray(arrays[name][slices])})


def filled(name: str, value: float) -> Callable[[dict[str, np.ndarray], dict[str, Any]], object]:
    return lambda arrays, header: arrays.update({name: np.full_like(arrays[name], value)})


def described(**fields: Any) -> Callable[[dict[str, np.ndarray], dict[str, Any]], object]:
    return lambda arrays, header: header.update(tensorize=fields)


def with_parameter(name: str, value: Any) -> Callable[[dict[str, np.ndarray], dict[str, Any]], object]:
    return lambda arrays, header: header["parameters"].update({name: value})


FRAMES = {"type": "STFT", "n_fft": 8, "hop": 4}
IMPOSSIBLE: dict[str, tuple[Callable[[dict[str, np.ndarray], dict[str, Any]], object], str]] = {
    "another rank": (with_parameter("rank", 4), "factors have shapes"),
    "rounds beyond reason": (with_parameter("rounds", 10**30), "rounds must be"),
    "unknown transform": (described(type="Wavelet"), "preprocessing of type 'Wavelet' that cannot be built"),
    "floor of two": (described(**FRAMES, floor=[1, 2]), "floor must be one number or one for each of the 3 channels"),
    "a row less": (cut("factors.1", slice(1, None)), r"factors have shapes .*\(4, 3\).* calls for .*\(5, 3\)"),
    "NaN": (filled("factors.0", np.nan), "NaN or infinity"),
    "half a memory": (lambda arrays, header: arrays.pop("memory.S"), "damaged"),
    "no readout": (lambda arrays, header: header.update(readout=None), "arrays of a readout, but no description"),
    "another readout": (lambda arrays, header: arrays.update({"readout.matrix": np.eye(5)}), "readout"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_content_that_no_fit_gives_is_refused(what: str, model: ATD, path: Path) -> None:
    change, message = IMPOSSIBLE[what]
    model.save(path)
    rewritten(path, change)
    with pytest.raises(ModelFileError, match=message):
        load(path)
