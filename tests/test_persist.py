"""Model files: saved models are loaded exactly, and invalid files are refused with a reason."""

from __future__ import annotations

import bisect
import json
import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import paper
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import Tensor

import polyadic
from polyadic import ATD, GRSALS, SALS, load
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter, OneOf, Rotate3D
from polyadic.core import persist
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.presets import preset
from polyadic.spectral import STFT

Model = ATD | SALS | GRSALS

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
TURN = Compose([OneOf([Jitter(0.2), Bandpass([(1, 20), (5, 24)], fs=50)]), Rotate3D([(0, 1, 2)], independent=True)])

FLAT, CUBE, FOUR = (np.random.default_rng(0).normal(size=shape) for shape in ((24, 5), (24, 3, 40), (24, 4, 5, 3)))


def fainter(batch: Tensor) -> Tensor:
    return 0.8 * batch


def doubled(batch: Tensor) -> Tensor:
    return torch.stack([batch, batch**2], dim=1)


CASES: dict[str, tuple[Callable[..., Model], dict[str, Any], Any]] = {
    "SALS, two dimensions": (SALS, {}, FLAT),
    "SALS, three dimensions, float32": (SALS, {}, CUBE.astype(np.float32)),
    "SALS, four dimensions, memory": (SALS, MEMORY, FOUR),
    "SALS, four dimensions, float32, memory": (SALS, MEMORY, FOUR.astype(np.float32)),
    "SALS, names": (SALS, {}, pd.DataFrame(FLAT).add_prefix("x")),
    "SALS, full batch": (SALS, {"batch_size": None}, CUBE),
    "SALS, STFT": (SALS, {"tensorize": SHORT_TIME}, CUBE),
    "SALS, STFT of fixed floor": (SALS, {"tensorize": STFT(8, 4, parts="log_amplitude", floor=0.5)}, CUBE),
    "SALS, numpy parameters": (
        SALS,
        {"rank": np.int64(3), "alpha": np.float32(0.01), "tol": np.float16(0.01)},
        CUBE,
    ),
    "GRSALS": (GRSALS, {"graph_weight": 0.5}, FOUR),
    "ATD, STFT": (ATD, {"tensorize": SHORT_TIME, "augment": TURN, "beta": 0.05, "gamma": 3.0}, CUBE),
    "ATD, STFT, memory": (ATD, {"tensorize": SHORT_TIME, "augment": TURN, "beta": 0.05, **MEMORY}, CUBE),
    "ATD without alignment": (ATD, {"augment": Jitter(0.1), "beta": 0.0, "rounds": 2}, CUBE),
}


@pytest.fixture(params=CASES)
def fitted(request: pytest.FixtureRequest) -> tuple[Model, Any]:
    kind, settings, X = CASES[request.param]
    return paper(kind, **SETTINGS | settings).fit(X), X


@pytest.fixture
def model() -> ATD:
    """A model with everything a file can hold."""
    return paper(ATD, tensorize=SHORT_TIME, augment=TURN, beta=0.05, **SETTINGS | MEMORY).fit(CUBE)


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
    assert (one._memory is None) == (other._memory is None)
    if one._memory is not None and other._memory is not None:
        assert torch.equal(one._memory.Y, other._memory.Y)
        assert torch.equal(one._memory.S, other._memory.S)
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


def test_a_model_fitted_only_by_partial_fit_can_be_saved(path: Path) -> None:
    model = paper(ATD, tensorize=SHORT_TIME, augment=TURN, beta=0.05, **SETTINGS | MEMORY).partial_fit(CUBE)
    model.save(path)
    assert_same(load(path), model, CUBE)


def test_a_loaded_model_is_saved_as_the_same_bytes(fitted: tuple[Model, Any], path: Path, tmp_path: Path) -> None:
    fitted[0].save(path)
    load(path).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_the_fitted_floor_is_stored_next_to_its_parameter(model: ATD, path: Path) -> None:
    model.save(path)
    again = load(path)
    assert again.tensorize == SHORT_TIME
    assert again.tensorize.floor == "channel"
    assert again.tensorize_ == SHORT_TIME.calibrated(torch.tensor(CUBE))


@pytest.mark.parametrize("name", ["sleep_edf", "har", "ptb_xl", "mgh"])
def test_the_preprocessing_of_the_presets_survives_json(name: str) -> None:
    settings = preset(name)
    for value in (settings.tensorize, settings.augment):
        assert persist.decode(json.loads(json.dumps(persist.encode(value)))) == value


def test_a_path_may_be_a_string_and_an_older_file_is_replaced(model: ATD, path: Path) -> None:
    path.write_text("something older")
    model.save(str(path))
    assert_same(load(str(path)), model, CUBE)


def test_a_device_is_stored_by_name(path: Path) -> None:
    paper(SALS, **SETTINGS | {"device": torch.device("cpu")}).fit(CUBE).save(path)
    assert load(path).device == "cpu"


def test_a_random_state_is_stored_as_the_seed_it_gave(path: Path) -> None:
    model = paper(SALS, **SETTINGS | {"random_state": np.random.RandomState(3)}).fit(CUBE)
    model.save(path)
    again = load(path)
    assert again.random_state is None
    assert again.seed_ == model.seed_


def test_a_graph_is_not_stored_and_must_be_set_again_to_fit(path: Path) -> None:
    graph = np.ones((24, 24))
    model = paper(GRSALS, graph=graph, graph_weight=0.5, **SETTINGS).fit(CUBE)
    model.save(path)
    again = load(path)
    np.testing.assert_array_equal(again.transform(CUBE), model.transform(CUBE))
    with pytest.raises(PolyadicError, match=r"graph must be .* set it again before refitting a loaded model"):
        again.fit(CUBE)
    again.set_params(graph=graph).fit(CUBE)
    np.testing.assert_array_equal(again.factors_[0], model.factors_[0])


def test_a_rank_set_after_fit_is_not_saved(model: ATD, path: Path) -> None:
    with pytest.raises(PolyadicError, match="rank must stay 3 as in fit, but is now 5"):
        model.set_params(rank=5).save(path)
    assert not path.exists()


# -------------------------------------------------------------------------------------------- functions of one's own


@pytest.mark.parametrize("tensorize", [doubled, lambda batch: batch.flatten(1)])
def test_a_function_for_the_tensors_must_be_given_again(tensorize: Any, path: Path) -> None:
    model = paper(SALS, tensorize=tensorize, **SETTINGS).fit(CUBE)
    model.save(path)
    with pytest.raises(ModelFileError, match=r"contain no code: pass it again, load\(path, tensorize=...\)"):
        load(path)
    assert_same(load(path, tensorize=tensorize), model, CUBE)


def test_another_function_than_that_of_the_fit_is_noticed(path: Path) -> None:
    paper(SALS, tensorize=doubled, **SETTINGS).fit(CUBE).save(path)
    again = load(path, tensorize=lambda batch: batch[:, None])
    with pytest.raises(
        PolyadicError, match=r"tensorize must return tensors of shape \(2, 3, 40\).*but returned \(1, 3, 40\)"
    ):
        again.transform(CUBE)


def test_a_function_for_the_augmentation_is_needed_only_to_fit(path: Path) -> None:
    model = paper(ATD, augment=fainter, beta=0.01, **SETTINGS).fit(CUBE)
    model.save(path)
    without = load(path)
    np.testing.assert_array_equal(without.transform(CUBE), model.transform(CUBE))
    with pytest.raises(PolyadicError, match="augment is None"):
        without.fit(CUBE)
    assert_same(load(path, augment=fainter).partial_fit(CUBE), model.partial_fit(CUBE), CUBE)


@dataclass(frozen=True)
class Own(Augmentation):
    share: float = 0.5

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        return self.share * X


def test_a_custom_augmentation_within_a_library_one_is_identified_by_its_fields(path: Path) -> None:
    augment = Compose([Jitter(0.1), OneOf([Own(), Jitter(0.2)])])
    model = paper(ATD, augment=augment, beta=0.01, **SETTINGS).fit(CUBE)
    model.save(path)
    assert load(path).augment == augment
    assert_same(load(path).partial_fit(CUBE), model.partial_fit(CUBE), CUBE)


def test_a_custom_class_with_the_name_of_a_library_class_is_not_confused_with_it() -> None:
    @dataclass(frozen=True)
    class Jitter(Augmentation):
        degree: float = 0.5

        def apply(self, X: Tensor, keys: Tensor) -> Tensor:
            return X

    assert persist.encode(Jitter())["type"].endswith("<locals>.Jitter")
    assert persist.decode({"type": "Jitter", "degree": 0.5}).__class__ is not Jitter


@pytest.mark.parametrize("name", ["tensorize", "augment"])
def test_a_function_the_file_does_not_ask_for_is_refused(model: ATD, name: str, path: Path) -> None:
    model.save(path)
    with pytest.raises(PolyadicError, match=f"{name} was given, but the model in"):
        load(path, **{name: fainter})


# ---------------------------------------------------------------------------------------------- the file itself


def test_the_file_can_be_read_by_safetensors_and_json_alone(model: ATD, path: Path) -> None:
    model.save(path)
    arrays = load_file(path)
    assert sorted(arrays) == ["factors.0", "factors.1", "factors.2", "memory.S", "memory.Y"]
    for mode, factor in enumerate(model.factors_):
        np.testing.assert_array_equal(arrays[f"factors.{mode}"], factor, strict=True)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert list(metadata) == ["polyadic"]
    header = json.loads(metadata["polyadic"])
    assert header["schema"] == persist.SCHEMA == 3
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
        raise OSError("no space left on device")


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


def test_a_first_write_that_fails_leaves_nothing(model: ATD, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", Failure())
        with pytest.raises(OSError, match="no space left"):
            model.save(path)
    assert list(path.parent.iterdir()) == []


def test_the_file_appears_only_when_it_is_whole(model: ATD, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save(path)
    size, flush = path.stat().st_size, os.fsync
    path.unlink()

    def look(descriptor: int) -> None:
        assert not path.exists()
        assert os.fstat(descriptor).st_size == size
        flush(descriptor)

    monkeypatch.setattr("os.fsync", look)
    model.save(path)
    assert path.stat().st_size == size


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_the_file_has_the_mode_of_any_new_file(model: ATD, path: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    model.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


# -------------------------------------------------------------------------------------------------- damaged files


def parts(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with safe_open(path, framework="numpy") as file:
        return load_file(path), json.loads(file.metadata()["polyadic"])


def rewritten(path: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any]], object]) -> None:
    """The same file with arrays or header changed, as it was written before files had checksums."""
    arrays, header = parts(path)
    del header["sha256"]
    header["schema"] = 1
    change(arrays, header)
    save_file(arrays, path, metadata={"polyadic": json.dumps(header)})


def test_the_damage_of_these_tests_is_the_only_damage(model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: None)
    assert_same(load(path), model, CUBE)


def test_a_file_of_a_newer_schema_is_refused_with_advice(model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header.update(schema=4, parameters="of the future"))
    with pytest.raises(ModelFileError, match="schema 4, but this version of polyadic reads up to 3: upgrade polyadic"):
        load(path)


@pytest.mark.parametrize("schema", [0, -1, "1", 1.5, None, [1]])
def test_a_schema_that_is_not_a_version_is_refused(schema: Any, model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header.update(schema=schema))
    with pytest.raises(ModelFileError, match="damaged header: its schema must be a whole number"):
        load(path)


def test_a_truncated_file_is_refused_at_every_length(model: ATD, path: Path) -> None:
    model.save(path)
    content = path.read_bytes()
    lengths = {*range(40), *range(40, len(content), 97), len(content) - 1}
    for length in sorted(lengths):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match=r"model\.safetensors is damaged, truncated or not a model file"):
            load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ModelFileError, match="damaged, truncated or not a model file"):
        load(path)


def assert_refused_or_whole(path: Path, shapes: list[tuple[int, ...]]) -> bool:
    """Whether the file was read; then with bases of the right shapes and nothing but finite numbers."""
    try:
        again = load(path)
    except ModelFileError:
        return False
    assert [factor.shape for factor in again.factors_] == shapes
    assert all(np.isfinite(factor).all() for factor in again.factors_)
    if again._memory is not None:
        assert torch.isfinite(again._memory.Y).all()
    return True


@pytest.mark.parametrize("missing", [False, True])
def test_a_changed_number_or_setting_is_noticed(missing: bool, model: ATD, path: Path) -> None:
    model.save(path)
    for change in (filled("factors.0", 0.5), lambda arrays, header: header["parameters"].update(alpha=0.25)):
        arrays, header = parts(path)
        change(arrays, header)
        if missing:
            del header["sha256"]
        save_file(arrays, path, metadata={"polyadic": json.dumps(header)})
        with pytest.raises(ModelFileError, match="is damaged: its checksum does not match"):
            load(path)
        model.save(path)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
def test_every_flipped_byte_is_noticed(step: int, model: ATD, path: Path) -> None:
    model.save(path)
    content = path.read_bytes()
    generator = np.random.default_rng(2)
    read = []
    for where in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[where] ^= int(generator.integers(1, 256))
        path.write_bytes(damaged)
        try:
            assert_same(load(path), model, CUBE)
        except ModelFileError:
            continue
        read.append(where)
    # JSON takes one blank for another between two entries: what the file says is the same.
    assert {content[where : where + 1] for where in read} <= {b" "}
    assert len(read) < 5


def test_random_byte_flips_of_an_older_file_are_refused_or_leave_a_whole_model(model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: None)
    shapes = [factor.shape for factor in model.factors_]
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    generator = np.random.default_rng(0)
    outcomes = []
    for number in range(300):
        # Two in three within the header, where a flip does most harm.
        where = int(generator.integers(0, len(content) if number % 3 == 0 else header))
        damaged = bytearray(content)
        damaged[where] ^= int(generator.integers(1, 256))
        path.write_bytes(damaged)
        outcomes.append(assert_refused_or_whole(path, shapes))
    assert 50 < sum(outcomes) < 250, "both outcomes must occur, or the test is of no use"


def test_random_changes_of_an_older_header_are_refused_or_leave_a_whole_model(model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: None)
    shapes = [factor.shape for factor in model.factors_]
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    generator = np.random.default_rng(1)
    signs = b'0123456789-.eE[]{},:" aNtf'
    outcomes = []
    for _ in range(300):
        damaged = bytearray(content)
        damaged[int(generator.integers(8, header))] = signs[int(generator.integers(len(signs)))]
        path.write_bytes(damaged)
        outcomes.append(assert_refused_or_whole(path, shapes))
    assert 20 < sum(outcomes) < 280, "both outcomes must occur, or the test is of no use"


NOT_HEADERS: list[Any] = [None, True, 7, -1.5, 1e400, "text", [], [[]], {}, {"type": "Jitter"}, {"type": "function"}]
KEYS = ["estimator", "parameters", "tensorize", "sample_shape", "feature_names", "seed", "n_seen", "history"]


@pytest.mark.parametrize("key", KEYS)
def test_a_header_without_one_of_its_entries_is_refused(key: str, model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header.pop(key))
    with pytest.raises(ModelFileError, match=f"damaged header: KeyError.*{key}"):
        load(path)


@pytest.mark.parametrize("key", KEYS)
def test_an_entry_of_another_kind_is_refused_or_leaves_a_whole_model(key: str, model: ATD, path: Path) -> None:
    model.save(path)
    content, shapes = path.read_bytes(), [factor.shape for factor in model.factors_]
    for value in NOT_HEADERS:
        path.write_bytes(content)
        rewritten(path, lambda arrays, header, value=value: header.__setitem__(key, value))
        if assert_refused_or_whole(path, shapes):
            load(path).transform(CUBE)


@pytest.mark.parametrize("name", ["rank", "alpha"])
def test_a_header_without_a_parameter_that_features_depend_on_is_refused(name: str, model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header["parameters"].pop(name))
    with pytest.raises(ModelFileError, match=f"damaged header: KeyError.*{name}"):
        load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", 4), ("rank", "3"), ("rank", 0), ("alpha", -1), ("alpha", None), ("alpha", math.nan), ("unheard_of", 1)],
)
def test_a_parameter_that_cannot_be_is_refused(name: str, value: Any, model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header["parameters"].update({name: value}))
    with pytest.raises(ModelFileError, match=name if name != "rank" or value != 4 else "factors have shapes"):
        load(path)


TENSORIZE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"type": "Wavelet"}, "preprocessing of type 'Wavelet' that cannot be built"),
    "no type": ({}, "preprocessing of type None that cannot be built"),
    "fields missing": ({"type": "STFT", "n_fft": 8}, "preprocessing of type 'STFT' that cannot be built"),
    "wrong fields": ({"type": "STFT", "n_fft": 8, "hop": 4, "speed": 2}, "preprocessing of type 'STFT'"),
    "wrong values": ({"type": "STFT", "n_fft": -8, "hop": 4}, "preprocessing of type 'STFT'.* n_fft must be"),
    "floor of two": (
        {"type": "STFT", "n_fft": 8, "hop": 4, "floor": [1, 2]},
        r"floor \(1.0, 2.0\), which does not fit",
    ),
    "floor unknown": ({"type": "STFT", "n_fft": 8, "hop": 4, "floor": "auto"}, "floor 'auto', which does not fit"),
    "other frames": ({"type": "STFT", "n_fft": 8, "hop": 2, "floor": 1}, "factors have shapes .* header calls for"),
    "too long": ({"type": "STFT", "n_fft": 64, "hop": 4, "floor": 1}, "n_fft=64"),
    "several": ({"type": "Compose", "steps": [{"type": "Zoom"}]}, "preprocessing of type 'Zoom'"),
}


@pytest.mark.parametrize("what", TENSORIZE)
def test_impossible_preprocessing_is_refused(what: str, model: ATD, path: Path) -> None:
    entry, message = TENSORIZE[what]
    model.save(path)
    rewritten(path, lambda arrays, header: header.update(tensorize=entry))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def cut(name: str, *slices: slice) -> Callable[[dict[str, np.ndarray], dict[str, Any]], object]:
    return lambda arrays, header: arrays.update({name: np.ascontiguousarray(arrays[name][slices])})


def filled(name: str, value: float) -> Callable[[dict[str, np.ndarray], dict[str, Any]], object]:
    return lambda arrays, header: arrays.update({name: np.full_like(arrays[name], value)})


WRONG_ARRAYS: dict[str, tuple[Callable[[dict[str, np.ndarray], dict[str, Any]], object], str]] = {
    "a row less": (cut("factors.1", slice(1, None)), r"factors have shapes .*\(4, 3\).* calls for .*\(5, 3\)"),
    "a column less": (cut("factors.1", slice(None), slice(1, None)), "factors have shapes .* calls for"),
    "a column less in all": (
        lambda arrays, header: arrays.update({f"factors.{m}": arrays[f"factors.{m}"][:, 1:].copy() for m in range(3)}),
        "factors have shapes .* calls for",
    ),
    "a vector": (lambda arrays, header: arrays.update({"factors.0": np.ones(3)}), "factors have shapes"),
    "a number": (lambda arrays, header: arrays.update({"factors.0": np.ones(())}), "factors have shapes"),
    "a mode less": (lambda arrays, header: arrays.pop("factors.2"), "factors have shapes"),
    "a mode left out": (lambda arrays, header: arrays.pop("factors.1"), "damaged"),
    "a mode more": (lambda arrays, header: arrays.update({"factors.3": np.ones((2, 3))}), "factors have shapes"),
    "no modes": (lambda arrays, header: [arrays.pop(f"factors.{m}") for m in range(3)], "factors have shapes"),
    "other windows": (lambda arrays, header: header.update(sample_shape=[3, 44]), "factors have shapes"),
    "other channels": (lambda arrays, header: header.update(sample_shape=[4, 40]), "does not fit"),
    "flat windows": (lambda arrays, header: header.update(sample_shape=[120]), "damaged"),
    "NaN": (filled("factors.0", np.nan), "NaN, infinity or no floating-point numbers"),
    "infinity": (filled("factors.2", np.inf), "NaN, infinity or no floating-point numbers"),
    "integers": (
        lambda arrays, header: arrays.update({"factors.0": np.ones((6, 3), dtype=np.int64)}),
        "NaN, infinity or no floating-point numbers",
    ),
    "half a memory": (lambda arrays, header: arrays.pop("memory.S"), "damaged"),
    "another memory": (cut("memory.Y", slice(1, None)), "solver memory has shapes .* do not match"),
    "another Gram matrix": (cut("memory.S", slice(1, None)), "solver memory has shapes .* do not match"),
    "NaN in memory": (filled("memory.S", np.nan), "NaN, infinity or no floating-point numbers"),
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_arrays_that_do_not_fit_are_refused(what: str, model: ATD, path: Path) -> None:
    change, message = WRONG_ARRAYS[what]
    model.save(path)
    rewritten(path, change)
    with pytest.raises(ModelFileError, match=message):
        load(path)


@pytest.mark.parametrize("change", ["a vector", "a number", "no modes", "a column less"])
def test_arrays_that_do_not_fit_are_refused_where_a_function_makes_the_tensors(change: str, path: Path) -> None:
    paper(SALS, tensorize=doubled, **SETTINGS).fit(CUBE).save(path)
    rewritten(path, WRONG_ARRAYS[change][0])
    with pytest.raises(ModelFileError):
        load(path, tensorize=doubled)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "I16", "U16"])
def test_arrays_of_a_foreign_type_are_refused(dtype: str, model: ATD, path: Path) -> None:
    """The same bytes under another type, four times as many numbers: the header is made by hand."""
    model.save(path)
    rewritten(path, lambda arrays, header: None)  # without the checksum, which would notice it first
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["factors.0"] |= {"dtype": dtype, "shape": [24, 3]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    with pytest.raises(ModelFileError, match=r"factors have shapes|not a model file"):
        load(path)


def test_another_safetensors_file_is_refused(path: Path) -> None:
    save_file({"weight": np.ones((2, 2))}, path, metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match="is a safetensors file, but not a polyadic model"):
        load(path)
    save_file({"weight": np.ones((2, 2))}, path)
    with pytest.raises(ModelFileError, match="is a safetensors file, but not a polyadic model"):
        load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '"text"', "{}", "[" * 100_000, '{"schema": [[1]]}'])
def test_a_header_that_is_not_a_polyadic_json_object_is_refused(text: str, path: Path) -> None:
    save_file({"factors.0": np.ones((2, 2))}, path, metadata={"polyadic": text})
    with pytest.raises(ModelFileError, match="damaged header"):
        load(path)


@pytest.mark.parametrize("schema", [1, 2])
def test_a_header_nested_beyond_reason_is_refused(schema: int, model: ATD, path: Path) -> None:
    """Shallow headers are refused for what they say, deep ones for their depth, and so are those in between."""
    model.save(path)
    arrays, header = parts(path)
    header |= {"schema": schema, "tensorize": "HERE"}
    if schema == 1:
        del header["sha256"]

    def too_deep(depth: int) -> bool:
        text = json.dumps(header).replace('"HERE"', '{"type":"Compose","steps":[' * depth + "1" + "]}" * depth)
        save_file(arrays, path, metadata={"polyadic": text})
        with pytest.raises(ModelFileError, match=r"damaged|preprocessing of type 'Compose' that cannot be") as refused:
            load(path)
        return "RecursionError" in str(refused.value)

    assert not too_deep(1)
    assert too_deep(100_000)
    deepest = bisect.bisect_left(range(100_000), True, key=too_deep)
    # Reading, checking and decoding give up at slightly different depths. A level of the header takes two of Python's
    # levels, so that one call more on the way there makes a difference.
    for depth in range(max(1, deepest - 40), deepest + 10):
        too_deep(depth)
        (lambda depth: too_deep(depth))(depth)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + bytes(100), b"\x80\x04\x95" + bytes(50), bytes(64)])
def test_a_file_of_another_kind_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged, truncated or not a model file"):
        load(path)


def test_a_folder_is_refused_and_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder, but must be a regular file"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors"):
        load(tmp_path / "nowhere.safetensors")


def test_saving_into_a_folder_that_is_not_there_is_an_error(model: ATD, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        model.save(tmp_path / "nowhere" / "model.safetensors")
    with pytest.raises(PolyadicError, match="it is a folder, not a regular file"):
        model.save(tmp_path)
    assert not [file for file in tmp_path.parent.iterdir() if file.suffix == ".tmp"]


def test_the_errors_of_files_are_errors_of_ours_and_of_values() -> None:
    assert issubclass(ModelFileError, PolyadicError)
    assert issubclass(PolyadicError, ValueError)


# ------------------------------------------------------------------------------------------- forged or unusable


@pytest.mark.parametrize("change", [{"n_seen": 10**30}, {"n_seen": -1}])
def test_a_number_of_windows_that_no_fit_has_is_refused(change: dict[str, int], model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header.update(change))
    with pytest.raises(ModelFileError, match="which is out of range"):
        load(path)


def test_rounds_beyond_reason_are_refused_in_a_file_and_in_a_fit(model: ATD, path: Path) -> None:
    model.save(path)
    rewritten(path, lambda arrays, header: header["parameters"].update(rounds=10**30))
    with pytest.raises(ModelFileError, match="which is out of range"):
        load(path)
    with pytest.raises(PolyadicError, match="rounds must be"):
        paper(ATD, rank=2, augment=Jitter(0.1), rounds=10**12).fit(CUBE)


def test_bases_that_load_would_refuse_are_not_written(model: ATD, path: Path) -> None:
    model.save(path)
    before = path.read_bytes()
    model.factors_[0][0, 0] = np.nan
    with pytest.raises(PolyadicError, match="could not be loaded"):
        model.save(path)
    assert path.read_bytes() == before


def test_a_wrong_alpha_is_refused_by_transform_too(model: ATD) -> None:
    with pytest.raises(PolyadicError, match="alpha must be a number of at least 0"):
        model.set_params(alpha=-5).transform(CUBE)
