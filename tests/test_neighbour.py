"""Partner windows compared with a slow search, and the allowed positions of `Neighbour` among augmentations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polyadic.augment import Compose, Jitter, Neighbour, OneOf
from polyadic.data import Windows
from polyadic.errors import PolyadicError


@dataclass
class Places:
    """Windows of one channel at 10 Hz that have no samples, only recordings (negative if unknown) and starts."""

    recording: list[int]
    start: list[int]
    length: int

    def windows(self) -> Windows:
        names = ["" if number < 0 else f"r{number}" for number in self.recording]
        X = np.zeros((len(names), 1, self.length), np.float32)
        return Windows(X, fs=10.0, recording=names, start=self.start)

    def search_one_by_one(self, gap_samples: float) -> list[int]:
        """Apply the rule literally, window by window."""
        partners = []
        for recording, start in zip(self.recording, self.start, strict=True):
            least, most = start + self.length + gap_samples, start + 2 * self.length + gap_samples
            later = [
                (other_start, number)
                for number, (other, other_start) in enumerate(zip(self.recording, self.start, strict=True))
                if other == recording and other >= 0 <= start and least <= other_start <= most
            ]
            partners.append(min(later)[1] if later else -1)
        return partners


@st.composite
def places(draw: st.DrawFn) -> Places:
    """Recordings interleaved in any order, with gaps, overlaps, duplicates, and windows of which little is known."""
    count = draw(st.integers(1, 30))
    recording = draw(st.lists(st.sampled_from([-1, 0, 3, 2**31 - 1]), min_size=count, max_size=count))
    far = draw(st.sampled_from([0, 10**15]))
    start = draw(st.lists(st.integers(-1, 40), min_size=count, max_size=count))
    moved = [
        value if value < 0 else value + far * (number % 4 == 3) for value, number in zip(start, recording, strict=True)
    ]
    # One window is known, so that there are recordings and starts at all.
    return Places([*recording, 7], [*moved, 0], draw(st.integers(1, 9)))


@given(places(), st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0]))
@example(Places([0, 0], [5, 13], length=4), 0.0)
@example(Places([0, 0], [5, 14], length=4), 0.0)
@example(Places([0, 0], [5, 8], length=4), 0.0)
@example(Places([0, 0, 0], [0, 4, 4], length=4), 0.0)
def test_partners_are_those_of_a_search_one_by_one(where, gap):
    found = Neighbour(gap).partners(where.windows())
    assert found.tolist() == where.search_one_by_one(round(gap * 10, 6))


def test_windows_without_recording_and_start_have_no_partners():
    with pytest.raises(PolyadicError, match="no window of X has both"):
        Neighbour().partners(Windows(np.zeros((4, 2, 100), np.float32), fs=50.0))


# ------------------------------------------------------------------- among augmentations


def test_a_neighbour_comes_first_in_compose_or_not_at_all():
    assert Compose([Neighbour(), Jitter(0.1)]).steps[0] == Neighbour()
    for wrong in ([Jitter(0.1), Neighbour()], [Neighbour(), Neighbour()], [Jitter(0.1), Compose([Neighbour()])]):
        with pytest.raises(
            PolyadicError, match=r"^Neighbour selects partner windows and may only come first in Compose"
        ):
            Compose(wrong)
    for wrong in ([Neighbour(), Jitter(0.1)], [Jitter(0.1), Compose([Neighbour(), Jitter(0.1)])]):
        with pytest.raises(PolyadicError, match="cannot be a choice of OneOf"):
            OneOf(wrong)
