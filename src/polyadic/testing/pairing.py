"""Contract tests for pairings: inherit from the class and set the pairing to test.

They check what a fit relies on: the partner of a window is another window of the same recording, and depends only on
the index, not on the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyadic.augment import Pairing, WindowIndex

__all__ = ["PairingContract"]


class PairingContract:
    """A base class of pytest tests; a subclass sets `pairing`, as an attribute or a fixture.

    Attributes
    ----------
    pairing : the pairing to test

    Examples
    --------
    >>> from polyadic.augment import Neighbour
    >>> class TestNeighbour(PairingContract):
    ...     pairing = Neighbour()
    >>> TestNeighbour().test_partners_are_other_windows_of_the_same_recording()
    """

    pairing: Pairing

    def index(self) -> WindowIndex:
        """Return the test windows, shuffled: half-overlapping ones of three recordings, and some without a position."""
        recording = np.repeat([0, 1, 5, -1, 2], [30, 20, 10, 3, 3])
        start = np.concatenate([np.arange(count) * 50 for count in (30, 20, 10, 3, 3)])
        start[-3:] = -1
        order = np.random.default_rng(0).permutation(len(recording))
        return WindowIndex(recording[order], start[order], length=100, fs=100.0)

    def _partners(self) -> tuple[WindowIndex, Tensor, Tensor]:
        index = self.index()
        ids = torch.arange(len(index))
        return index, ids, self.pairing.partners(index, ids)

    def test_partners_are_numbers_of_windows_or_minus_one(self) -> None:
        index, ids, partners = self._partners()
        assert partners.dtype == torch.int64, f"partners have type {partners.dtype}"
        assert partners.shape == ids.shape, f"{len(ids)} windows have partners of shape {tuple(partners.shape)}"
        assert -1 <= int(partners.min()) <= int(partners.max()) < len(index)
        assert self.pairing.partners(index, ids[:0]).shape == (0,)

    def test_partners_are_other_windows_of_the_same_recording(self) -> None:
        index, ids, partners = self._partners()
        paired = (partners >= 0).numpy()
        assert bool(paired.any()), "no window has a partner"
        assert not bool((partners == ids).any()), "a window is its own partner"
        same = index.recording[partners.numpy()[paired]] == index.recording[paired]
        assert bool(same.all()), "partners are of different recordings"

    def test_windows_without_recording_or_start_have_no_partner(self) -> None:
        index, _, partners = self._partners()
        unknown = np.flatnonzero((index.recording < 0) | (index.start < 0))
        assert bool((partners.numpy()[unknown] == -1).all())
        assert not np.isin(partners.numpy(), unknown).any()

    def test_partners_depend_on_the_index_alone(self) -> None:
        index, ids, partners = self._partners()
        assert torch.equal(self.pairing.partners(self.index(), ids), partners)
        for part in (ids[:7], ids[7:9], ids.flip(0), ids[::3]):
            assert torch.equal(self.pairing.partners(index, part), partners[part])

    def test_ids_and_index_are_not_changed(self) -> None:
        index, ids, _ = self._partners()
        assert torch.equal(ids, torch.arange(len(index))), "the ids were changed"
        assert np.array_equal(index.recording, self.index().recording), "the index was changed"
        assert np.array_equal(index.start, self.index().start), "the index was changed"
