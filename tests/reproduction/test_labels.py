"""`python -m paper labels`: subjects, draws, scores, tests and tables of the label curve."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from paper.labels import methods, people, runner, tables
from paper.labels.runner import LabelRequest, run
from paper.scoring import statistic_columns
from paper.significance import corrected_resampled, holm
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, calibration

pytest.importorskip("matplotlib")


# ---------------------------------------------------------------------- people


def test_development_subjects_are_exactly_those_the_defaults_were_chosen_on(data_folder):
    sizes = {"har": (21, 9), "geotec": (14, 9), "sisfall": (23, 15), "eegmat": (22, 14), "ludb": (112, 75)}
    for name in people.FILES:
        found = people.read_set(data_folder, name)
        first, others = (set(part.subject.tolist()) for part in (found.unlabelled(), found.labelled()))
        assert not first & others
        assert len(first | others) == len(set(found.windows.subject.tolist()))
        assert (len(first), len(others)) == sizes[name]


@given(st.integers(0, 2**32 - 1), st.integers(4, 12), st.integers(2, 4))
@settings(max_examples=25)
def test_halves_divide_subjects_and_have_every_class_on_both_sides(seed, n_people, n_classes):
    rng = np.random.default_rng(seed)
    subject = np.repeat([f"p{number}" for number in range(n_people)], 8)
    label = rng.integers(0, n_classes, len(subject))
    classes = set(label.tolist())
    try:
        found = people.halves(label, subject, 4)
    except PolyadicError:
        return
    assert [len(half.train) for half in people.halves(label, subject, 2)] == [len(half.train) for half in found[:2]]
    for train, test in found:
        assert not set(subject[train]) & set(subject[test])
        assert len(set(subject[train])) == math.ceil(n_people / 2)
        assert sorted([*train, *test]) == list(range(len(subject)))
        assert set(label[train].tolist()) == set(label[test].tolist()) == classes


# ---------------------------------------------------------------------- scores


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("labels")
    chosen = ("polyadic", "the paper's SALS, plain probe")
    return out, run(LabelRequest(out, quick=True, seeds=2, device="cpu", methods=chosen), quiet=True)


def test_a_score_is_the_score_of_the_probe_on_the_sampled_rows_of_a_subject_wise_split(quick):
    _, result = quick
    data = people.read_set(Path(), "synthetic")
    windows = data.labelled()
    half = people.halves(windows.label, windows.subject, 2)[1]
    model = methods.method("polyadic").build(data, 1, "cpu").fit(data.unlabelled())
    Z, columns = np.asarray(model.transform(windows), np.float64), statistic_columns(model)
    scores = []
    for draw in range(3):
        rows = people.drawn(windows.label, half.train, 3, [1, draw])
        fitted = Probe().fit(Z[rows], windows.label[rows], windows.subject[rows], columns)
        scores.append(100 * balanced_accuracy_score(windows.label[half.test], fitted.predict(Z[half.test])))
    row = next(r for r in result["rows"] if (r["method"], r["seed"], r["labels"]) == ("polyadic", 1, "3"))
    assert row["score"][1] == pytest.approx(np.mean(scores), abs=0.01)
    assert row["score_by_draw"][1] == pytest.approx(scores, abs=0.01)


def test_finished_work_is_not_repeated_except_for_a_truncated_line(quick):
    out, result = quick
    journal = out / "labels.cells.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    chosen = tuple(dict.fromkeys(row["method"] for row in result["rows"]))
    again = run(LabelRequest(out, quick=True, seeds=2, device="cpu", methods=chosen), quiet=True)
    assert again["rows"] == result["rows"]
    assert len(journal.read_bytes().splitlines()) == len(lines) + 1


def test_calibration_errors_are_those_of_the_probabilities_with_and_without_the_temperature():
    rng = np.random.default_rng(0)
    y, subject = np.arange(400) % 2, np.arange(400) // 20
    Z = rng.normal(size=(400, 3)) + 0.7 * y[:, None]
    probe = Probe(C=1e-4).fit(Z, y, subject)
    found = dict(runner._calibration_errors(probe, Z, y))
    assert probe.temperature_ < 1  # a strong penalty makes the probe unsure
    assert found["ece"] < found["ece_before"]
    raw = 1 / (1 + np.exp(-(Z @ probe.coef_[0] + probe.intercept_[0]) * probe.temperature_))
    confidence, correct = np.maximum(raw, 1 - raw), (raw > 0.5) == y
    assert found["ece_before"] == pytest.approx(100 * calibration(confidence, correct).error)


# ---------------------------------------------------------------------- tables


def made_up(gap, rival="score"):
    """A result of two methods on one set, the rival `gap` points below with a little scatter, in one column."""
    rng = np.random.default_rng(0)
    base = 80 + rng.normal(0, 3, 10)
    rows = [
        {"set": "har", "method": name, "group": group, "seed": seed, "labels": str(count), column: values.tolist()}
        for seed in (0, 1)
        for count in people.COUNTS
        for name, group, column, values in (
            ("polyadic", "default", "score", base + seed),
            ("hand features", "rivals", rival, base + seed - gap + rng.normal(0, 0.1, 10)),
        )
    ]
    about = {"title": "HAR", "splits": 10, "classes": 6, "unlabelled_people": 21, "unlabelled_windows": 7428}
    sets = {"har": {**about, "people": 9, "windows": 3003, "test_share": 0.45}}
    machine = {"machine": {"processor": "cpu", "threads": 2}, "command": "python -m paper labels", "date": "2026-11-16"}
    return {
        "people": "new",
        "sets": sets,
        "draws": 3,
        "seeds": [0, 1],
        "jobs": 1,
        "commit": "c",
        "fits": [],
        "frozen": [],
        "rows": rows,
    } | machine


@pytest.mark.parametrize(("gap", "mark", "rival"), [(5.0, "▼", "score"), (-5.0, "▲", "with unlabelled")])
def test_a_method_that_is_clearly_better_or_worse_is_marked(gap, mark, rival):
    lines = tables.page(made_up(gap, rival)).splitlines()
    lines = lines[lines.index("## HAR") :]
    row = next(line for line in lines if line.startswith("| hand features"))
    assert row.count(mark) == len(people.COUNTS)
    assert not {"▲", "▼"} & set(next(line for line in lines if line.startswith("| polyadic")))


def test_a_method_that_is_level_is_not_marked_and_p_is_of_the_corrected_test():
    result = made_up(0.0)
    text = tables.page(result)
    assert not {"▲", "▼"} & set(text.split("## HAR")[1])
    own, other = (tables.split_scores(result, "har", name, 10) for name in ("polyadic", "hand features"))
    comparisons = tables.paired_tests(result)
    p = [corrected_resampled(own - other, 0.45)[1]]
    assert comparisons["har", "hand features", "score", "10"][1] == p[0]
    every = [value[1] for value in comparisons.values()]
    assert [value[2] for value in comparisons.values()] == holm(every).tolist()


def test_the_page_and_the_picture_are_written(quick):
    out, result = quick
    assert json.loads((out / "labels.json").read_text())["rows"] == result["rows"]
    assert (out / "labels-synthetic.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "labels.md").read_text()
    assert "on unseen subjects" in text
    assert "nan" not in text
