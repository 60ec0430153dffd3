"""`polyadic.tune`: unbiased scores, journals, interrupts, and data without a fair comparison."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from polyadic import tune, tuning
from polyadic.cli import app
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import cross_validate, labels_of
from polyadic.tuning import Search, Settings, Try, best_try, choices, score_subjects


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
    assert max(tried.score for tried in found.tries) > found.nested_score - 0.05
    assert abs(found.nested_score - 0.5) < 0.15
    assert not found.tuned
    assert found.reason.startswith("Kept the recommended settings")


def test_no_search_sees_windows_of_the_subjects_it_is_judged_on(windows, monkeypatch):
    seen = []

    class Recorded(Search):
        def run(self):
            seen.append(set(self.windows.subject.tolist()))
            return super().run()

    monkeypatch.setattr(tuning, "Search", Recorded)
    found = tune(windows, tries=1, folds=3)
    everyone = set(windows.subject.tolist())
    left_out = [everyone - subjects for subjects in seen[:-1]]
    assert (seen[-1], len(left_out)) == (everyone, 3)
    assert set().union(*left_out) == set(found.nested) == everyone
    assert sum(map(len, left_out)) == len(everyone)


def test_the_scores_are_those_of_cross_validation_and_so_of_evaluate(windows):
    found = tune(windows, tries=1, folds=3)
    expected = cross_validate(found.recommended.estimator(0, "auto"), windows, folds=3)
    assert found.nested_score == found.recommended_score == expected.balanced_accuracy
    assert {name: row["recommended"] for name, row in found.nested.items()} == {
        name: row["balanced_accuracy"] for name, row in expected.per_subject.items()
    }


def test_the_search_walks_uphill_by_single_changes(windows):
    class Known(Search):
        """A search whose scores are known: best at rank 2 with profiles of either sign."""

        def _try(self, settings):
            score = 0.1 + 0.02 * (settings.rank == 2) + 0.02 * (not settings.nonnegative)
            self.tries.append(Try(settings, np.full(4, score), 0.0))

    recommended = Settings.recommended(windows)
    found = Known(windows, recommended, 0, "cpu", max_tries=40)
    assert found.run() == replace(recommended, rank=2, nonnegative=False)
    assert len({tried.settings for tried in found.tries}) == len(found.tries) < 40  # no change is left to try


def test_a_steady_gain_is_preferred_to_a_larger_one_of_a_single_subject():
    def tried(rank, *shares):
        return Try(Settings(32, 4, rank=rank), np.array(shares), 0.0)

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


# ------------------------------------------------------------ stopped, resumed


def test_the_same_seed_gives_the_same_tries_and_a_journal_resumes_them(windows, tmp_path):
    path, tried = tmp_path / "tries.jsonl", []
    first = tune(windows, tries=4, folds=2, journal=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    again = tune(windows, tries=4, folds=2, journal=path, on_try=lambda *args: tried.append(args[-1].seconds))
    assert len(path.read_bytes().splitlines()) == len(lines) == 1 + len(tried)
    assert [json.loads(line)[-1] for line in lines[1:-2]] == tried[:-2]  # taken from the journal
    assert [(tried.settings, tried.score) for tried in again.tries] == [
        (old.settings, old.score) for old in first.tries
    ]
    assert (again.nested, again.settings) == (first.nested, first.settings)
    path.write_text("no journal\n")
    with pytest.raises(PolyadicError, match="not a journal of polyadic tune"):
        tune(windows, tries=1, folds=2, journal=path)


def test_a_journal_of_other_data_or_options_is_refused_with_the_difference(windows, tmp_path):
    path = tmp_path / "tries.jsonl"
    tune(windows, tries=1, folds=2, journal=path)
    noise = windows.X.copy()
    noise[-1, -1, -1] += 1e-3

    def changed(**values):
        kept = {"X": windows.X, "label": windows.label, "subject": windows.subject, "fs": windows.fs}
        return Windows(**{**kept, "recording": windows.recording, "start": windows.start, **values})

    for given, options, said in (
        (changed(X=noise), {}, r"\(samples was \"\w+\" and is \"\w+\" now\)"),
        (changed(label=1 - windows.label), {}, r"\(labels was"),
        (changed(subject=[f"other {name}" for name in windows.subject]), {}, r"\(subjects was"),
        (changed(start=windows.start + 1), {}, r"\(recordings was"),
        (changed(fs=32.0), {}, r"\(fs was 64\.0 and is 32\.0 now\)"),
        (windows[:80], {}, r"; shape was \[96, 3, 64\] and is \[80, 3, 64\] now; "),
        (windows, {"folds": 3}, r"\(folds was 2 and is 3 now\): use the same data and options"),
        (windows, {"random_state": 1}, r"\(random_state was 0 and is 1 now\)"),
    ):
        with pytest.raises(PolyadicError, match=said):
            tune(given, **{"tries": 1, "folds": 2, "journal": path, **options})
    tune(windows, tries=2, folds=2, journal=path)  # a longer search of the same kind


def test_the_command_keeps_its_journal_when_interrupted_and_resumes(windows, tmp_path, monkeypatch):
    np.savez(tmp_path / "w.npz", X=windows.X, fs=64.0, label=windows.label, subject=windows.subject)
    monkeypatch.chdir(tmp_path)
    words = ["tune", "w.npz", "--folds", "2", "--device", "cpu"]
    real, written = tuning._Journal.record, []

    def stop_at_the_third(self, search, tried):
        real(self, search, tried)
        written.append((search, tried.settings))
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(tuning._Journal, "record", stop_at_the_third)
    stopped = CliRunner().invoke(app, [*words, "--tries", "3"])
    assert "the tries so far are saved in model.tries.jsonl. To resume:" in " ".join(stopped.output.split())
    assert not (tmp_path / "model.safetensors").exists()
    assert len((tmp_path / "model.tries.jsonl").read_text().splitlines()) == 1 + 3
    other = CliRunner().invoke(app, ["tune", "w.npz", "--folds", "3", "--device", "cpu", "--resume"])
    assert other.exit_code == 1
    assert "(folds was 2 and is 3 now)" in other.output
    again = CliRunner().invoke(app, [*words, "--tries", "3", "--resume"])
    assert again.exit_code == 0, again.output
    assert not (tmp_path / "model.tries.jsonl").exists()


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
    assert not (tmp_path / "model.tries.jsonl").exists()
    CliRunner().invoke(app, ["predict", "model.safetensors", "w.npz", "-o", "labels.csv"])
    head, *rows = [line.split(",") for line in (tmp_path / "labels.csv").read_text().splitlines()]
    assert {row[head.index("unusual")] for row in rows} <= {"0", "1"}
    (tmp_path / "model.tries.jsonl").write_text("left behind\n")
    failed = CliRunner().invoke(app, [*words, "--force"])
    assert failed.exit_code == 1
    assert "resume it with --resume, or remove the file" in " ".join(failed.stderr.split())


def test_without_time_only_the_recommended_settings_are_tried(windows):
    found = tune(windows, minutes=0.0, folds=2)
    assert (len(found.tries), found.settings) == (1, found.recommended)
    assert found.reason == "Kept the recommended settings: the search ended before any other was tried."
