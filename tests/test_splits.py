"""Splits separate subjects, or report that they do not, and remove windows that overlap another part."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic.data.splits import _CANDIDATES, Split, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

SHARED = settings(derandomize=True, deadline=None, max_examples=60)
NAMES = ("unlabelled", "train", "test")


def windows_of(count: int, length: int = 8, **columns) -> Windows:
    return Windows(np.zeros((count, 1, length), np.int8), **columns)


def parts_of(made: Split) -> list[list[int]]:
    return [getattr(made, name).tolist() for name in NAMES]


def people_of(made: Split) -> list[set[str]]:
    return [set(made.windows.subject[getattr(made, name)].tolist()) for name in NAMES]


def nights(recordings: int, each: int = 3, people: int | None = None, dataset: str = "sleep_edf", **more) -> Windows:
    """Return recordings of `each` windows that do not overlap; two nights per subject by default."""
    recording = np.repeat(np.arange(recordings), each)
    given = {
        "subject": recording % (people or (recordings + 1) // 2),
        "recording": [f"night {number}" for number in recording],
        "start": np.tile(np.arange(each) * 8, recordings),
        "label": np.arange(recordings * each) % 2,
        "dataset": dataset,
    }
    return windows_of(recordings * each, **(given | more))


# ------------------------------------------------------------------ by subject


@SHARED
@given(people=st.integers(3, 12), count=st.integers(12, 80), classes=st.integers(1, 4), seed=st.integers(0, 99))
def test_by_subject_every_window_and_every_subject_is_in_one_part(people, count, classes, seed):
    rng = np.random.default_rng(seed)
    windows = windows_of(
        count, subject=rng.permutation(np.arange(count) % people), label=rng.integers(0, classes, count)
    )
    made = split(windows, random_state=seed)
    assert sorted(np.concatenate(parts_of(made))) == list(range(count))
    assert sum(map(len, people_of(made))) == people
    assert all(people_of(made))
    assert all(part == sorted(part) for part in parts_of(made))


@SHARED
@given(people=st.integers(3, 60), shares=st.tuples(*[st.floats(0.01, 1)] * 3))
def test_subjects_are_divided_by_the_fractions_as_closely_as_possible(people, shares):
    made = split(windows_of(people, subject=np.arange(people), label=np.arange(people) % 2), fractions=shares)
    sizes = np.array([len(who) for who in people_of(made)])
    wanted = np.array(shares) / sum(shares) * people
    assert sizes.sum() == people
    assert sizes.min() >= 1
    if wanted.min() >= 1:
        assert (np.abs(sizes - wanted) < 1 + 1e-9).all()


def lacking_and_gap(windows: Windows, made: list[np.ndarray]) -> tuple[int, float]:
    """Classes that training and test lack, and the largest distance of a part's class shares from all windows'."""
    known = range(windows.label.max() + 1)
    whole = np.array([(windows.label == k).mean() for k in known])
    lacking, gaps = 0, []
    for name, rows in zip(NAMES, made, strict=True):
        shares = np.array([(windows.label[rows] == k).mean() for k in known])
        lacking += 0 if name == "unlabelled" else int(((shares == 0) & (whole > 0)).sum())
        gaps.append(np.abs(shares - whole).sum())
    return lacking, max(gaps)


def random_ways(windows: Windows, sizes: list[int], seed: int, count: int) -> list[list[np.ndarray]]:
    """Random ways to share people out, in a plain loop."""
    rng, people = np.random.default_rng(seed), np.unique(windows.subject)
    ways = []
    for _ in range(count):
        order = people[rng.permutation(len(people))]
        edges = np.cumsum([0, *sizes])
        groups = [order[a:b] for a, b in pairwise(edges)]
        ways.append([np.flatnonzero(np.isin(windows.subject, group)) for group in groups])
    return ways


def uneven(people: int, classes: int, seed: int) -> Windows:
    """Return windows of subjects who each have mostly one class."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(people), rng.integers(5, 40, people))
    favourite = rng.integers(0, classes, people)[subject]
    label = np.where(rng.random(len(subject)) < 0.8, favourite, rng.integers(0, classes, len(subject)))
    return windows_of(len(subject), subject=subject, label=label)


@pytest.mark.parametrize("seed", range(2))
def test_classes_are_spread_as_evenly_as_in_the_best_of_the_draws_and_better_than_on_average(seed):
    windows = uneven(20, 4, seed)
    made = split(windows, random_state=seed)
    ways = [lacking_and_gap(windows, way) for way in random_ways(windows, [16, 2, 2], seed, _CANDIDATES)]
    ours = lacking_and_gap(windows, [made.unlabelled, made.train, made.test])
    assert ours[0] == min(ways)[0]
    assert ours[1] == pytest.approx(min(ways)[1])
    assert ours[1] < 0.7 * np.mean([gap for _, gap in ways])


@pytest.mark.parametrize("people", [2, 3])
def test_no_class_is_missing_from_training_or_test_if_a_draw_has_it_there_however_uneven_that_is(people):
    # A rare class with one window of each of a few people; where both sides have it, the common ones are uneven.
    subject = np.repeat(np.arange(10), 40)
    label = np.where(subject < 5, 0, 1)
    label[[0, 40, 80][:people]] = 2
    windows = windows_of(400, subject=subject, label=label)
    found = 0
    for seed in range(8):
        possible = min(lacking_and_gap(windows, way)[0] for way in random_ways(windows, [6, 2, 2], seed, _CANDIDATES))
        made = split(windows, fractions=(0.6, 0.2, 0.2), random_state=seed)
        assert lacking_and_gap(windows, [made.unlabelled, made.train, made.test])[0] == possible
        found += possible == 0
    assert found >= 5


# ------------------------------------------------------------------- by the paper


@pytest.mark.parametrize(
    ("dataset", "recordings", "sizes"),
    [
        ("sleep_edf", 153, [122, 16, 15]),
        ("ptb_xl", 1000, [800, 100, 100]),
        ("mgh", 1000, [900, 50, 50]),
        ("mgh", 3, [1, 1, 1]),
    ],
)
def test_the_paper_splits_three_datasets_by_recording(dataset, recordings, sizes):
    windows = nights(recordings, dataset=dataset)
    made = split(windows, "paper", random_state=5)
    names = [set(windows.recording[getattr(made, name)].tolist()) for name in NAMES]
    assert [len(found) for found in names] == sizes
    assert len(set.union(*names)) == recordings
    assert [len(part) for part in parts_of(made)] == [3 * size for size in sizes]


@SHARED
@given(count=st.integers(3, 200), seed=st.integers(0, 99))
def test_other_data_is_split_by_window_under_the_papers_protocol(count, seed):
    windows = windows_of(count, start=8 * np.arange(count), label=np.zeros(count, int))
    made = split(windows, "paper", random_state=seed)
    assert sorted(np.concatenate(parts_of(made))) == list(range(count))
    edges = np.rint([0.8 * count, 0.9 * count])
    if count >= 20:
        assert abs(len(made.unlabelled) - edges[0]) <= 1
        assert abs(len(made.train) - (edges[1] - edges[0])) <= 1


def har(**changes) -> Windows:
    subject = np.repeat(np.arange(30), 10)
    given = {
        "subject": subject,
        "start": np.tile(np.arange(10) * 4, 30),
        "label": np.arange(300) % 6,
        "part": np.where(subject < 21, "train", "test"),
        "dataset": "har",
    }
    return windows_of(300, **(given | changes))


# -------------------------------------------------------------- missing labels


@SHARED
@given(data=st.data(), protocol=st.sampled_from(["subject", "paper"]), dataset=st.sampled_from(["", "mgh", "har"]))
def test_windows_without_a_label_are_never_trained_or_tested_on(data, protocol, dataset):
    label = np.array(data.draw(st.lists(st.integers(-1, 1), min_size=60, max_size=60)))
    label[[0, 9, 18, 27]] = [0, 1, 0, 1]
    label[30:60] = np.where(np.arange(30) < 21, label[30:60], -1)
    part = np.repeat(["train", "test"], 30)[::-1] if dataset == "har" else None
    windows = nights(20, people=20, dataset=dataset, label=label, part=part)
    made = split(windows, protocol, random_state=data.draw(st.integers(0, 9)))
    for rows in (made.train, made.test):
        assert len(rows)
        assert (windows.label[rows] >= 0).all()
    if dataset != "har":
        # Nights without any label are all for learning; the others' windows without one are left out.
        dropped = np.setdiff1d(np.arange(60), np.concatenate(parts_of(made)))
        assert (windows.label[dropped] == -1).all()
        labelled = np.unique(windows.recording[windows.label >= 0])
        without = np.flatnonzero(~np.isin(windows.recording, labelled))
        assert np.isin(without, made.unlabelled).all()


# ------------------------------------------------------------------------ seeds


@pytest.mark.parametrize("protocol", ["subject", "paper"])
@pytest.mark.parametrize("windows", [har(), nights(40), har(part=None)], ids=["har", "nights", "other"])
def test_the_same_seed_gives_the_same_split_and_another_another(protocol, windows):
    first, again, other = (split(windows, protocol, random_state=seed) for seed in (3, 3, 4))
    assert parts_of(first) == parts_of(again)
    assert first.hash == again.hash
    assert parts_of(first) != parts_of(other)
    assert first.hash != other.hash


# ----------------------------------------------------------------------- checks


def test_a_subject_on_both_sides_is_refused_unless_allowed_explicitly():
    windows = windows_of(6, subject=list("aabbcc"))
    with pytest.raises(PolyadicError, match=r"one part of a split, but 'b' is in train and in test;"):
        Split(windows, [0, 1], [2], [3, 4])
    with pytest.raises(PolyadicError, match="but 'a' is in unlabelled and in test; set shared_subjects=True"):
        Split(windows, [0], [], [1])
    assert parts_of(Split(windows, [0, 1], [2], [3, 4], shared_subjects=True)) == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize("row", [0.5, -1, 8])
def test_parts_that_are_no_rows_are_refused(row):
    with pytest.raises(PolyadicError, match="must be row numbers of windows from 0 to 7"):
        Split(windows_of(8), [row], [1], [2])


@pytest.mark.parametrize("shared", [(0, 1), (0, 2), (1, 2)])
def test_a_window_in_two_parts_is_refused_also_if_it_was_chosen_twice(shared):
    for windows, twice in ((windows_of(4), (3, 3)), (windows_of(4)[[0, 1, 2, 3, 3]], (3, 4))):
        parts = [[0], [1], [2]]
        for number, row in zip(shared, twice, strict=True):
            parts[number].append(row)
        with pytest.raises(PolyadicError, match="must not share windows"):
            Split(windows, *parts)


@pytest.mark.parametrize(
    ("windows", "arguments", "message"),
    [
        (windows_of(10), ("subject",), "protocol='subject' needs the subject of every window, .* missing for 10"),
        (windows_of(9, subject=[*range(8), -1]), ("subject",), "missing for 1"),
        (windows_of(10), ("random",), "protocol must be one of subject, paper, but is 'random'"),
        (windows_of(10, subject=[1] * 10), ("subject",), "3 parts needs at least 3 subjects, but got 1$"),
        (windows_of(2), ("paper",), "at least 3 windows, but got 2$"),
        (nights(9, label=[0] * 6 + [-1] * 21), ("paper",), "at least 3 recordings with labels, but got 2$"),
        (har()[:220], ("subject",), "2 parts needs at least 2 subjects, but got 1$"),
        (har(), ("subject", (1, 1)), r"fractions must be three positive numbers, but are \(1, 1\)"),
        (har(), ("subject", (1, 0, 1)), "fractions must be three"),
    ],
)
def test_an_impossible_split_is_refused(windows, arguments, message):
    with pytest.raises(PolyadicError, match=message):
        split(windows, *arguments)


# ------------------------------------------------------------------------ purge


def slow_purge(windows: Windows, parts: list[list[int]]) -> list[list[int]]:
    """Compare every window with every other."""

    def overlap(a: int, b: int) -> bool:
        starts = windows.start[[a, b]]
        together = windows.recording[a] == windows.recording[b] and starts.min() >= 0
        return bool(together and abs(starts[0] - starts[1]) < windows.shape[-1])

    unlabelled, train, test = parts
    train = [row for row in train if not any(overlap(row, other) for other in test)]
    unlabelled = [row for row in unlabelled if not any(overlap(row, other) for other in train + test)]
    return [unlabelled, train, test]


@SHARED
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.integers(-1, 4) | st.integers(0, 40), st.integers(0, 3)),
        min_size=1,
        max_size=25,
    ),
    length=st.integers(1, 9),
)
def test_overlapping_windows_are_purged_as_by_comparing_every_two(rows, length):
    recording, start, side = np.array(rows).T
    windows = windows_of(len(rows), length, recording=recording, start=start)
    parts = [np.flatnonzero(side == number).tolist() for number in range(3)]
    made = Split(windows, *parts)
    assert parts_of(made) == slow_purge(windows, parts)
    assert made.test.tolist() == parts[2]
    assert parts_of(Split(windows, *parts, purge=False)) == parts


# ------------------------------------------------------------------------- hash


def hashed(parts=((0, 1), (2,), (3, 4)), rows=slice(None), X=None, **changes) -> str:
    given = {"recording": list("rrsstu"), "subject": list("aabbcc"), "start": [0, 9, 0, 9, 0, 0]}
    windows = Windows(np.zeros((6, 1, 8)) if X is None else X, **(given | changes))[rows]
    return Split(windows, *map(list, parts), shared_subjects=True, purge=False).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ((0,), (1, 2), (3, 4))},
        {"parts": ((0, 1), (), (2, 3, 4))},
        {"parts": ((0, 1), (2,), (3,))},
        {"parts": ((0, 1), (2,), (3, 5))},
        {"start": [0, 9, 1, 9, 0, 0]},
        {"recording": list("qqsstu")},
        {"subject": list("aabbdd")},
        {"rows": [1, 0, 2, 3, 4, 5]},
    ],
)
def test_the_hash_changes_with_any_window_its_origin_and_its_side(changes):
    assert hashed(**changes) != hashed()


@pytest.mark.parametrize("fractions", [None, (8, 1, 1)])
def test_windows_of_other_data_that_overlap_those_of_another_part_are_left_out(fractions):
    made = split(windows_of(200, start=4 * np.arange(200)), "paper", fractions)
    unlabelled, train, test = (4 * np.array(part) for part in parts_of(made))
    for one, other in ((unlabelled, train), (unlabelled, test), (train, test)):
        assert np.abs(one[:, None] - other).min() >= 8
    assert len(test) == 20
    assert len(unlabelled) > 50
    assert sum(map(len, parts_of(split(har(), "paper", (8, 1, 1))))) == 300  # the paper's data as it split them


def test_har_test_subjects_are_halved_by_window_under_protocol_paper_and_by_subject_otherwise():
    by_window, by_person = split(har(), "paper"), split(har(), "subject")
    for made in (by_window, by_person):
        assert made.unlabelled.tolist() == list(range(210))
        assert sorted([*made.train, *made.test]) == list(range(210, 300))
    assert len(by_window.train) == len(by_window.test) == 45
    assert len(people_of(by_window)[1] & people_of(by_window)[2]) == 9
    assert {len(who) for who in people_of(by_person)[1:]} == {4, 5}
    assert not people_of(by_person)[1] & people_of(by_person)[2]


def test_unlabelled_subjects_of_the_publisher_need_no_names():
    people = np.repeat(np.arange(30), 10)
    windows = har(subject=np.where(people < 21, -1, people))
    assert split(windows).unlabelled.tolist() == list(range(210))


def test_a_subject_in_both_published_parts_is_refused_except_under_protocol_paper():
    windows = har(subject=np.repeat(np.arange(15), 20))
    with pytest.raises(PolyadicError, match="a subject must be in one part"):
        split(windows, "subject")
    assert len(split(windows, "paper").test) == 45


def test_fractions_refer_to_subjects_with_labels():
    label = np.where(np.arange(120) < 60, np.arange(120) % 2, -1)
    made = split(nights(40, label=label, dataset="mgh"), "paper", (2, 1, 1))
    assert [len(part) for part in parts_of(made)] == [60 + 30, 15, 15]


def test_the_draw_does_not_depend_on_the_order_of_the_windows():
    windows = nights(40)
    order = np.random.default_rng(0).permutation(len(windows))
    made, other = split(windows), split(windows[order])
    for name in NAMES:
        assert sorted(order[getattr(other, name)]) == getattr(made, name).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"X": np.ones((6, 1, 8), np.int16)},
        {"start": np.array([0, 9, 0, 9, 0, 0], np.uint16)},
        {"parts": ((1, 0), (2,), (4, 3))},
        {"fs": 100, "label": [0, 1, 2, 0, 1, 2], "classes": ("x", "y", "z"), "channels": ("c",)},
        {"recording": list("rrsstv")},
        {"rows": [0, 1, 2, 3, 4]},
        {"recording": np.array(list("rrsstu"), "U50")},
    ],
)
def test_the_hash_does_not_depend_on_irrelevant_details_and_is_the_same_on_every_machine(changes):
    assert hashed(**changes) == hashed() == "526b43a1b75ba3f9"


def test_parts_have_the_rows_of_the_split():
    made = split(har())
    parts = list(made)
    for name, part in zip(NAMES, parts, strict=True):
        assert part.start.tolist() == made.windows.start[getattr(made, name)].tolist()
        assert part.subject.tolist() == made.windows.subject[getattr(made, name)].tolist()
