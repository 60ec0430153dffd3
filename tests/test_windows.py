"""Windows keep their index through slicing, selecting and joining, and read samples only on request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

SHARED = settings(derandomize=True, deadline=None, max_examples=60)
COLUMNS = ("subject", "recording", "start", "label", "part")


def a_dozen(**changes) -> Windows:
    given = {
        "fs": 50,
        "subject": np.repeat(["ann", "bob", "cy"], 4),
        "recording": np.repeat(["a1", "a2", "b1", "b2", "c1", "c2"], 2),
        "start": np.tile([0, 8], 6),
        "label": [0, 1, 2, -1] * 3,
        "part": np.repeat(["train", "test"], [8, 4]),
        "classes": ("rest", "walk", "run"),
        "channels": ("x", "y"),
        "units": ("g", "g"),
        "dataset": "steps",
    }
    return Windows(np.arange(12 * 2 * 8).reshape(12, 2, 8).astype(np.float32), **(given | changes))


def assert_are(chosen: Windows, windows: Windows, rows) -> None:
    """That the chosen windows are these rows of the others, samples and index and all else."""
    rows = np.asarray(rows, np.intp)
    assert len(chosen) == len(rows)
    assert chosen.shape == (len(rows), *windows.shape[1:])
    np.testing.assert_array_equal(chosen.X, windows.X[rows])
    for name in COLUMNS:
        assert getattr(chosen, name).tolist() == getattr(windows, name)[rows].tolist()
    for name in ("fs", "channels", "units", "classes", "dataset", "dtype"):
        assert getattr(chosen, name) == getattr(windows, name)


class Fake:
    """Samples that are generated when they are read, and record what was read."""

    dtype = np.dtype(np.float32)
    on_disk = True

    def __init__(self, count: int) -> None:
        self.shape = (count, 1, 4)
        self.asked: list[list[int]] = []

    def read(self, rows):
        self.asked.append(rows.tolist())
        return np.broadcast_to(np.asarray(rows, np.float32)[:, None, None], (len(rows), 1, 4)).copy()


# ------------------------------------------------------------------- choosing


@SHARED
@given(
    rows=st.slices(12)
    | st.lists(st.integers(-12, 11), max_size=20)
    | st.lists(st.booleans(), min_size=12, max_size=12)
    | st.lists(st.integers(0, 11), max_size=20).map(lambda rows: np.array(rows, np.uint8))
)
def test_any_choice_of_rows_is_that_of_numpy(rows):
    windows = a_dozen()
    assert_are(windows[rows], windows, np.arange(12)[slice(0) if isinstance(rows, list) and not rows else rows])


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ({"subject": "bob"}, [4, 5, 6, 7]),
        ({"recording": ("a2", "b1")}, [2, 3, 4, 5]),
        ({"part": "test"}, [8, 9, 10, 11]),
        ({"label": 1}, [1, 5, 9]),
        ({"label": "walk"}, [1, 5, 9]),
        ({"label": ["run", 0]}, [0, 2, 4, 6, 8, 10]),
        ({"label": [1, 2], "subject": "cy", "part": "test"}, [9, 10]),
        ({"subject": "bob", "part": "test"}, []),
        ({}, range(12)),
    ],
)
def test_windows_are_selected_by_subject_recording_part_and_label(wanted, rows):
    assert_are(a_dozen().select(**wanted), a_dozen(), list(rows))


# -------------------------------------------------------------------- samples


def test_samples_of_an_array_and_of_a_memory_map_are_not_copied(tmp_path):
    X = np.random.default_rng(0).normal(size=(5, 2, 3))
    windows = Windows(X)
    assert windows.X is X
    assert np.asarray(windows) is X
    assert not windows.on_disk
    assert not np.shares_memory(np.array(windows), X)
    assert np.asarray(windows, np.float32).dtype == np.float32
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    windows = Windows(mapped)
    assert windows.X is mapped
    assert windows.on_disk
    assert windows[1:].on_disk
    np.testing.assert_array_equal(windows[[3, 1]].X, X[[3, 1]])


def test_only_the_requested_windows_are_read():
    samples = Fake(10)
    windows = Windows(samples, subject=np.arange(10) % 3)
    chosen = windows.select(subject=1)[::-1]
    assert samples.asked == []
    assert chosen.on_disk
    assert chosen.read(np.array([0, 2])).tolist() == [[[7.0] * 4], [[1.0] * 4]]
    assert samples.asked == [[7, 1]]


# --------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("label", "classes", "codes", "names"),
    [
        (["b", "a", "", "b"], (), [1, 0, -1, 1], ("a", "b")),
        (["b", "a", "", "b"], ("b", "c", "a"), [0, 2, -1, 0], ("b", "c", "a")),
        ([3, 10, -1, 3], (), [0, 1, -1, 0], ("3", "10")),
        ([2, 0, -1, 2], ("x", "y", "z"), [2, 0, -1, 2], ("x", "y", "z")),
        (np.array([3, 200, 3, 9], np.uint8), (), [0, 2, 0, 1], ("3", "9", "200")),
        ([1.0, -1.0, 4.0, 1.0], (), [0, -1, 1, 0], ("1", "4")),
        ([-1, -1, -1, -1], (), [-1, -1, -1, -1], ()),
        (None, ("x", "y"), [-1, -1, -1, -1], ("x", "y")),
        (None, (), [-1, -1, -1, -1], ()),
    ],
)
def test_labels_are_numbers_from_0_on_with_names(label, classes, codes, names):
    windows = Windows(np.zeros((4, 1, 4)), label=label, classes=classes)
    assert windows.label.tolist() == codes
    assert windows.label.dtype == np.int32
    assert windows.classes == names
    assert all(type(name) is str for name in windows.classes)


def test_an_index_describes_every_window_and_its_class():
    windows = Windows(np.zeros((4, 1, 4)), label=[0, 1, 0, 1])
    for columns in ({"X": np.zeros((3, 1, 4))}, {"X": np.zeros((4, 1, 4)), "label": [0, 1, 0, 1]}):
        with pytest.raises(PolyadicError, match="index must have a row for each of"):
            Windows(**columns, index=windows.index)


ZEROS = np.zeros((4, 2, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subject": ["a"]}, r"subject must have shape \(4,\), one entry per window, but has shape \(1,\)"),
        ({"start": [1.0, 2.0, 3.0, 4.0]}, "start must hold whole numbers of samples, but has type float64"),
        ({"start": [0, -1, -2, 4]}, "start must be a sample number, or -1 .*, but got -2"),
        ({"label": [0.5, 1, 1, 1]}, "label must hold classes .* but holds fractions"),
        ({"label": [0, 1, -2, 1]}, "label must lie between -1 .*, but reaches from -2 to 1"),
        ({"label": [0, 1, 2, 1], "classes": ("a", "b")}, "label must lie between -1 and 1, but reaches from 0 to 2"),
        ({"label": list("abca"), "classes": ("a", "b")}, "label must be one of a, b, but there is 'c'"),
        ({"classes": ("a", "b", "a")}, "classes must have different names, but are a, b, a"),
        ({"channels": ("x",)}, "channels must name 2 channels, but names 1"),
        ({"units": ("x", "y", "z")}, "units must name 2 channels, but names 3"),
        ({"fs": 0}, "fs must be a positive sampling rate in Hz, but is 0"),
        ({"X": np.zeros(4)}, r"X must have shape \(N, channels, time\), but has shape \(4,\)"),
        ({"subject": list("aabb"), "recording": list("xyyz")}, "one subject and one part, but recording 'y' has sev"),
    ],
)
def test_arguments_that_do_not_fit_the_windows_are_refused_by_name(arguments, message):
    with pytest.raises(PolyadicError, match=message):
        Windows(**({"X": ZEROS} | arguments))
