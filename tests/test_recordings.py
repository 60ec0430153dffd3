"""Windows cut from recordings have the right position, and have a class only if it is certain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic.data.annotations import label_windows
from polyadic.data.labels import UNLABELLED
from polyadic.data.recordings import (
    Annotation,
    Recording,
    Segment,
    Unread,
    cut_windows,
    mark_missing,
    resample_polyphase,
    window_starts,
)
from polyadic.errors import PolyadicError

SHARED = settings(derandomize=True, deadline=None, max_examples=100)
CLASSES = {"W": 0, "N1": 1, "N2": 2, "deep": 2}


def recorded(signal, fs=10.0, **more) -> Recording:
    signal = np.atleast_2d(signal)
    count = len(signal)
    given = {
        "channels": tuple(f"c{number}" for number in range(count)),
        "units": ("uV",) * count,
    }
    return Recording("night", "ann", fs, signal=signal.astype(np.float32), **(given | more))


@st.composite
def with_gaps(draw, least=1, most=60):
    """A recording of some segments with gaps in time between them."""
    size = draw(st.integers(least, most))
    cuts = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=3)) - {size})
    firsts, onset, segments = [0, *cuts], 0.0, []
    for first, end in zip(firsts, [*cuts, size], strict=True):
        segments.append(Segment(first, onset))
        onset += (end - first) / 10 + draw(st.integers(0, 30)) / 10
    signal = np.arange(2 * size, dtype=np.int16).reshape(2, size)
    return recorded(signal, segments=tuple(segments))


def ends_of(recording: Recording) -> list[int]:
    return [*(segment.first for segment in recording.segments[1:]), recording.signal.shape[1]]


def test_a_value_that_marks_missing_samples_becomes_nan_also_in_a_file():
    recording = recorded([[1, -32.768, 3], [-32.768, 5, np.nan]])
    later = replace(recording, signal=Unread((2, 3), recording.read))
    for one in (recording, later):
        found = mark_missing(one, -32.768).in_memory().signal
        np.testing.assert_array_equal(found, np.array([[1, np.nan, 3], [np.nan, 5, np.nan]], np.float32))


# --------------------------------------------------------------------- windows


@SHARED
@given(recording=with_gaps(), length=st.integers(1, 70), step=st.none() | st.integers(1, 12))
def test_windows_are_all_that_fit_and_none_crosses_a_gap(recording, length, step):
    expected = []
    for segment, end in zip(recording.segments, ends_of(recording), strict=True):
        start = segment.first
        while start + length <= end:
            expected.append(start)
            start += step or length
    starts = window_starts(recording, length, step)
    assert starts.tolist() == expected
    assert starts.dtype == np.int64


@SHARED
@given(recording=with_gaps(least=8), length=st.integers(1, 8), data=st.data())
def test_cutting_windows_equals_slicing(recording, length, data):
    starts = data.draw(st.lists(st.integers(0, recording.signal.shape[1] - length), max_size=9))
    windows = cut_windows(recording.signal, starts, length)
    expected = [recording.signal[:, start : start + length] for start in starts]
    assert windows.flags.c_contiguous
    assert not np.shares_memory(windows, recording.signal)
    np.testing.assert_array_equal(windows, np.array(expected).reshape(len(starts), 2, length))


# ---------------------------------------------------------------------- labels


def slow_labels(recording, starts, length, classes) -> list[int]:
    """Sample by sample: which classes claim it; a window has the only class that claims each of its samples."""
    claims: list[set[int]] = []
    for segment, end in zip(recording.segments, ends_of(recording), strict=True):
        for sample in range(segment.first, end):
            claimed = set()
            for onset, duration, text in recording.annotations:
                begin = round(round((onset - segment.onset) * recording.fs, 6))
                stop = round(round((onset + duration - segment.onset) * recording.fs, 6))
                if text in classes and begin <= sample - segment.first < stop:
                    claimed.add(classes[text])
            claims.append(claimed)
    labels = []
    for start in starts:
        first = claims[start]
        agreed = len(first) == 1 and all(claim == first for claim in claims[start : start + length])
        labels.append(next(iter(first)) if agreed else UNLABELLED)
    return labels


times = st.integers(-20, 90).map(lambda tenths: tenths / 10) | st.floats(-2, 9)
durations = st.integers(0, 60).map(lambda tenths: tenths / 10) | st.floats(0, 6)
annotations = st.lists(st.builds(Annotation, times, durations, st.sampled_from([*CLASSES, "noise"])), max_size=6).map(
    tuple
)


@SHARED
@given(recording=with_gaps(least=10), found=annotations, length=st.integers(1, 9), step=st.integers(1, 5))
def test_a_window_has_the_class_that_all_its_samples_have_and_no_other(recording, found, length, step):
    recording = recorded(recording.signal, segments=recording.segments, annotations=found)
    starts = window_starts(recording, length, step)
    labels = label_windows(recording, starts, length, CLASSES)
    assert labels.dtype == np.int32
    assert labels.tolist() == slow_labels(recording, starts, length, CLASSES)


def test_annotations_that_meet_do_not_dispute_a_sample_for_the_last_bits_of_a_float():
    onset, duration, fs = 0.1, 0.2, 25 / 3
    assert round((onset + duration) * fs) != round(0.3 * fs)
    found = (Annotation(onset, duration, "N1"), Annotation(0.3, 3, "W"))
    recording = recorded(np.zeros(10, np.int16), fs, annotations=found)
    assert label_windows(recording, np.array([1, 2]), 1, CLASSES).tolist() == [1, 0]


def test_an_annotation_over_a_gap_covers_both_sides_by_the_clock():
    segments = (Segment(0, 0.0), Segment(20, 100.0))
    recording = recorded(np.zeros(40, np.int16), segments=segments, annotations=(Annotation(1, 100, "W"),))
    assert label_windows(recording, window_starts(recording, 10), 10, CLASSES).tolist() == [-1, 0, 0, -1]


# ----------------------------------------------------------------------- rates


@pytest.mark.parametrize(("fs", "target"), [(100, 128), (256, 64), (102.4, 100)])
def test_a_resampled_sine_is_that_sine_in_the_middle(fs, target):
    seconds, frequencies = 10, np.array([[3.0], [7.5]])
    sine = 100 + np.sin(2 * np.pi * frequencies * np.arange(round(seconds * fs)) / fs)
    result = resample_polyphase(sine, fs, target)
    assert result.dtype == np.float32
    assert result.shape == (2, seconds * target)
    expected = 100 + np.sin(2 * np.pi * frequencies * np.arange(seconds * target) / target)
    middle = slice(target, -target)
    np.testing.assert_allclose(result[:, middle], expected[:, middle], atol=5e-3)


@SHARED
@given(
    level=st.integers(-30000, 30000),
    count=st.integers(1, 50),
    rates=st.sampled_from([(1, 100), (100, 1), (100, 128), (512, 100), (200, 200)]),
)
def test_a_resampled_constant_stays_constant_to_its_ends(level, count, rates):
    result = resample_polyphase(np.full((2, count), level, np.int16), *rates)
    np.testing.assert_array_equal(result, np.full((2, -(-count * rates[1] // rates[0])), level))


def test_samples_that_are_still_in_a_file_cannot_be_taken_for_zeros() -> None:
    whole = recorded(np.arange(20)[None])
    later = replace(whole, signal=Unread((1, 20), whole.read))
    for use in (np.asarray, np.isfinite, lambda signal: signal[0], lambda signal: signal * np.ones(20)):
        with pytest.raises(PolyadicError, match=r"still in the file: use in_memory\(\)"):
            use(later.signal)
    assert np.array_equal(later.in_memory().signal, whole.signal)


@pytest.mark.parametrize("target", [50.0, 128.0, 200.0])
def test_resampling_interpolates_missing_samples_and_masks_them_again(target: float) -> None:
    sine = 5 + np.sin(2 * np.pi * 3 * np.arange(400) / 100)[None]
    holes = sine.copy()
    holes[0, 150:153] = np.nan
    result, expected = resample_polyphase(holes, 100, target), resample_polyphase(sine, 100, target)
    places = np.arange(result.shape[1]) * 100 / target
    missing = (places > 149 + 1e-6) & (places < 153 - 1e-6)
    assert np.array_equal(np.isnan(result[0]), missing)
    near = np.abs(places - 151.5) < 20
    np.testing.assert_allclose(result[0, ~missing & ~near], expected[0, ~missing & ~near], atol=2e-3)
    np.testing.assert_allclose(result[0, ~missing], expected[0, ~missing], atol=0.05)
