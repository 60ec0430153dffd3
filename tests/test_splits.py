"""Splits keep people apart, or say that they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic.data import split_labelled, split_windows
from polyadic.errors import PolyadicError

SHARED = settings(derandomize=True, deadline=None, max_examples=60)


@SHARED
@given(people=st.integers(3, 12), count=st.integers(12, 80), seed=st.integers(0, 99))
def test_by_subject_every_window_is_in_one_part_and_every_person_too(people, count, seed):
    subject = np.arange(count) % people
    split = split_windows(count, subject, "subject", seed=seed)
    parts = (split.unlabelled, split.train, split.test)
    assert sorted(np.concatenate(parts)) == list(range(count))
    assert sum(len(np.unique(subject[part])) for part in parts) == people
    assert all(len(part) for part in parts)


@SHARED
@given(count=st.integers(3, 200), seed=st.integers(0, 99))
def test_by_the_papers_protocol_every_window_is_in_one_part(count, seed):
    split = split_windows(count, None, "paper", seed=seed)
    assert sorted(np.concatenate([split.unlabelled, split.train, split.test])) == list(range(count))


def test_fractions_are_those_asked_for():
    split = split_windows(1000, None, "paper", fractions=(0.9, 0.05, 0.05))
    assert [len(split.unlabelled), len(split.train), len(split.test)] == [900, 50, 50]


def test_halves_of_the_labelled_windows_keep_people_apart():
    subject = np.repeat(np.arange(9), [5, 30, 7, 9, 20, 11, 3, 8, 10])
    for seed in range(10):
        train, test = split_labelled(len(subject), subject, "subject", seed)
        assert not set(subject[train]) & set(subject[test])
        assert len(train) + len(test) == len(subject)


def test_the_same_seed_gives_the_same_split_and_another_another():
    first, again, other = (split_labelled(100, None, "paper", seed)[0] for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, None, "subject"), "protocol='subject' needs to know who"),
        ((10, None, "random"), "protocol must be one of subject, paper, but is 'random'"),
        ((10, np.zeros(10), "subject"), "as many subjects, but there are 1"),
        ((2, None, "paper"), "as many windows, but there are 2"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(arguments, message):
    with pytest.raises(PolyadicError, match=message):
        split_windows(*arguments)
