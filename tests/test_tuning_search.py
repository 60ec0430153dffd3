"""`polyadic.tune`: unbiased scores, the search, and data without a fair comparison."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from polyadic import CPD, tune, tuning
from polyadic.cli import app
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import cross_validate, labels_of
from polyadic.tuning import Settings, Try, best_try, choices, score_subjects, search


@pytest.fixture(scope="module")
def windows():
    return synthetic(96, n_channels=3, length=64, n_classes=2)  # too few labels for the probe to validate: fast


@pytest.fixture(autouse=True)
def _small_space(monkeypatch):
    """Ranks of which a fit takes little time."""
    usual = Settings.recommended
    monkeypatch.setattr(tuning, "_RANKS", (2, 4))
    monkeypatch.setattr(Settings, "recommended", lambda given: replace(usual(given), rank=4))


def relabelled(windows, label, subject=None):
    kept = windows.subject if subject is None else subject
    return Windows(windows.X, fs=windows.fs, label=label, subject=kept, recording=windows.recording)


# --------------------------------------------------------------------- honesty


def test_random_labels_are_worth_chance_on_subjects_the_search_did_not_see(windows):
    label = np.random.default_rng(0).integers(0, 2, len(windows))
    found = tune(relabelled(windows, label), tries=5, folds=2)
    score = found.nested["tuned"].balanced_accuracy
    assert max(tried.score for tried in found.tries) > score - 0.05
    assert abs(score - 0.5) < 0.15
    assert not found.tuned
    assert found.reason.startswith("Kept the recommended settings")


def test_no_search_sees_windows_of_the_subjects_it_is_judged_on(windows, monkeypatch):
    seen = []

    def recorded(part, *words):
        seen.append(set(part.subject.tolist()))
        return search(part, *words)

    monkeypatch.setattr(tuning, "search", recorded)
    found = tune(windows, tries=1, folds=3)
    everyone = set(windows.subject.tolist())
    left_out = [everyone - subjects for subjects in seen[:-1]]
    assert (seen[-1], len(left_out)) == (everyone, 3)
    assert set().union(*left_out) == set(found.used.per_subject) == everyone
    assert sum(map(len, left_out)) == len(everyone)


def test_the_scores_are_those_of_cross_validation_and_so_of_evaluate(windows):
    found = tune(windows, tries=1, folds=3)
    expected = cross_validate(found.recommended.estimator(0, "auto"), windows, folds=3)
    assert {result.balanced_accuracy for result in found.nested.values()} == {expected.balanced_accuracy}
    assert {name: row["recommended"] for name, row in found.to_dict()["subjects"].items()} == {
        name: row["balanced_accuracy"] for name, row in expected.per_subject.items()
    }


def test_the_search_walks_uphill_by_single_changes(windows, monkeypatch):
    """Scores are known: best at rank 2 with profiles of either sign."""
    monkeypatch.setattr(CPD, "fit", lambda self, windows: self)
    monkeypatch.setattr(tuning, "features_of", lambda model, windows: model)
    monkeypatch.setattr(
        tuning,
        "score_subjects",
        lambda model, *_: np.full(4, 0.1 + 0.02 * (model.rank == 2) + 0.02 * (not model.nonnegative)),
    )
    recommended = Settings.recommended(windows)
    tries = search(windows, recommended, most=40)
    assert best_try(tries).settings == replace(recommended, rank=2, nonnegative=False)
    assert len({tried.settings for tried in tries}) == len(tries) < 40  # no change is left to try


def test_a_steady_gain_is_preferred_to_a_larger_one_of_a_single_subject():
    def tried(rank, *shares):
        return Try(Settings(32, 4, rank=rank), CPD(rank), np.array(shares), 0.0)

    first, noisy = tried(32, 0.2, 0.2, 0.2, 0.2), tried(8, 0.2, 0.2, 0.2, 0.25)
    assert best_try([first, tried(16, 0.21, 0.21, 0.21, 0.21), noisy]).settings.rank == 16
    assert best_try([first, tried(8, 0.1, 0.2, 0.2, 0.3)]) is first


def test_shares_of_subjects_add_up_to_the_balanced_accuracy_of_left_out_subjects():
    rng = np.random.default_rng(0)
    y, subject = rng.integers(0, 3, 150), rng.integers(0, 6, 150)
    Z = rng.normal(size=(150, 4)) + y[:, None]
    shares = score_subjects(Z, y, subject, np.empty(0, np.intp))
    assert shares.shape == (6,)
    assert 0.5 < shares.sum() <= 1
    perfect = score_subjects(100.0 * np.eye(3)[y], y, subject, np.empty(0, np.intp))
    assert perfect.sum() == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_tries(windows):
    first, again = (tune(windows, tries=4, folds=2) for _ in range(2))
    assert again.to_dict() | {"seconds": 0} == first.to_dict() | {"seconds": 0}
    assert len(again.tries) == 4


# ------------------------------------------------------------- nothing to judge


def test_where_nothing_can_be_judged_it_says_why_and_keeps_the_recommended_settings(windows):
    alone = relabelled(windows, windows.label, np.full(len(windows), "a"))
    found = tune(alone)
    assert "labels from one subject only" in found.reason
    assert found.settings == found.recommended
    assert found.model.classes_.tolist() == sorted(set(labels_of(alone).tolist()))
    assert json.loads(json.dumps(found.to_dict()))["nested"] is None
    few = windows.label.copy()
    few[12:] = -1
    assert "only 12 windows have a label, and at least 20 are needed." in tune(relabelled(windows, few)).reason
    few = windows.label.copy()
    few[24:] = -1
    unvalidated = tune(relabelled(windows, few))  # without some of the subjects, fewer than 20 labels are left
    assert "a search cannot be validated, because without some of the subjects only" in unvalidated.reason
    assert "0 tries" not in unvalidated.summary()
    assert (unvalidated.settings, unvalidated.tries, unvalidated.nested) == (unvalidated.recommended, [], {})
    with pytest.raises(PolyadicError, match="all labels are of one class; a classifier needs"):
        tune(relabelled(windows, np.zeros(len(windows), int)))
    with pytest.raises(PolyadicError, match="no window has both a label and a subject"):
        tune(relabelled(windows, np.full(len(windows), -1)))


# ----------------------------------------------------------------------- space


def test_single_changes_suit_the_windows_and_are_not_repeated(windows):
    recommended = Settings.recommended(windows)
    changes = list(choices(recommended, 64, recommended))
    assert len(set(changes)) == len(changes)
    assert recommended not in changes
    assert all(other.hop <= other.n_fft // 2 < 64 for other in changes)
    assert {name for other in changes for name in other.changed_from(recommended)} == set(asdict(recommended))


# --------------------------------------------------------------------- command


def test_the_command_writes_a_model_and_the_result(windows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("w.npz", X=windows.X, fs=64.0, label=windows.label, subject=windows.subject)
    words = ["tune", "w.npz", "--tries", "2", "--folds", "2", "--device", "cpu"]
    result = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert json.loads((tmp_path / "model.tuning.json").read_text())["tries"] == result["tries"]
    assert len({tuple(row[name] for name in result["settings"]) for row in result["tries"]}) == 2
    assert all(row["score"] == round(row["score"], 6) for row in result["tries"])
    CliRunner().invoke(app, ["predict", "model.safetensors", "w.npz", "-o", "labels.csv"])
    head, *rows = [line.split(",") for line in (tmp_path / "labels.csv").read_text().splitlines()]
    assert {row[head.index("unusual")] for row in rows} <= {"0", "1"}


def test_without_time_only_the_recommended_settings_are_tried(windows):
    found = tune(windows, minutes=0.0, folds=2)
    assert (len(found.tries), found.settings) == (1, found.recommended)
    assert found.reason == "Kept the recommended settings: the search ended before any other was tried."
