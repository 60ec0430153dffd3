"""Partner windows compared with a slow search, and the allowed positions of pairings among augmentations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from polyadic.augment import Compose, Jitter, Neighbour, OneOf, WindowIndex
from polyadic.data import Windows
from polyadic.errors import PolyadicError


def search_one_by_one(index: WindowIndex, gap_samples: float) -> list[int]:
    """Apply the rule literally, window by window."""
    partners = []
    for recording, start in zip(index.recording, index.start, strict=True):
        least, most = start + index.length + gap_samples, start + 2 * index.length + gap_samples
        later = [
            (other_start, number)
            for number, (other, other_start) in enumerate(zip(index.recording, index.start, strict=True))
            if other == recording and other >= 0 <= start and least <= other_start <= most
        ]
        partners.append(min(later)[1] if later else -1)
    return partners


@st.composite
def indices(draw: st.DrawFn) -> WindowIndex:
    """Recordings interleaved in any order, with gaps, overlaps, duplicates, and windows of which little is known."""
    count = draw(st.integers(0, 30))
    recording = draw(st.lists(st.sampled_from([-1, 0, 3, 2**31 - 1]), min_size=count, max_size=count))
    far = draw(st.sampled_from([0, 10**15]))
    start = draw(st.lists(st.integers(-1, 40), min_size=count, max_size=count))
    moved = [
        value if value < 0 else value + far * (number % 4 == 3) for value, number in zip(start, recording, strict=True)
    ]
    return WindowIndex(np.array(recording, int), np.array(moved, int), draw(st.integers(1, 9)), fs=10.0)


@given(indices(), st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0]), st.randoms(use_true_random=False))
@example(WindowIndex([0, 0], [5, 13], length=4, fs=10.0), 0.0, None)
@example(WindowIndex([0, 0], [5, 14], length=4, fs=10.0), 0.0, None)
@example(WindowIndex([0, 0], [5, 8], length=4, fs=10.0), 0.0, None)
@example(WindowIndex([0, 0, 0], [0, 4, 4], length=4, fs=10.0), 0.0, None)
def test_partners_are_those_of_a_search_one_by_one(index, gap, random):
    expected = search_one_by_one(index, round(gap * 10, 6))
    ids = list(range(len(index)))
    if random is not None:
        random.shuffle(ids)
    found = Neighbour(gap).partners(index, torch.tensor(ids, dtype=torch.int64))
    assert found.dtype == torch.int64
    assert found.tolist() == [expected[number] for number in ids]


# --------------------------------------------------------------------- windows and arrays


def windows(**columns) -> Windows:
    return Windows(np.zeros((4, 2, 100), np.float32), fs=50.0, **columns)


def test_windows_without_recording_or_start_have_no_partner_and_are_no_partners():
    index = WindowIndex.of(windows(recording=["a", "", "a", "a"], start=[0, 100, -1, 150]))
    assert Neighbour().partners(index, torch.arange(4)).tolist() == [3, -1, -1, -1]


# ------------------------------------------------------------------- among augmentations


def test_pairings_come_first_in_compose_or_not_at_all():
    assert Compose([Neighbour(), Jitter(0.1)]).steps[0] == Neighbour()
    for wrong in ([Jitter(0.1), Neighbour()], [Neighbour(), Neighbour()], [Jitter(0.1), Compose([Neighbour()])]):
        with pytest.raises(
            PolyadicError, match=r"^Neighbour selects partner windows and may only come first in Compose"
        ):
            Compose(wrong)
    for wrong in ([Neighbour(), Jitter(0.1)], [Jitter(0.1), Compose([Neighbour(), Jitter(0.1)])]):
        with pytest.raises(PolyadicError, match="cannot be a choice of OneOf"):
            OneOf(wrong)
