"""`polyadic.tune`: unbiased scores, shared fits, journals, interrupts, and data without a fair comparison."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from command_line import polyadic
from polyadic.engine import second_moments
from typer.testing import CliRunner

from polyadic import ATD, load, plot, tune
from polyadic.cli import app
from polyadic.cli import tune as command
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import labels_of
from polyadic.spectral import recommended_stft
from polyadic.tuning import nested
from polyadic.tuning.judging import Judged, difference, judge
from polyadic.tuning.search import Budget, Search, Try
from polyadic.tuning.space import NO_VIEW, Settings, Space, views_for


@pytest.fixture(scope="module")
def windows():
    return synthetic(96, n_channels=3, length=64, n_classes=2)  # too few labels for the probe to validate: fast


@pytest.fixture(autouse=True)
def _small_space(monkeypatch):
    """Ranks of which a fit takes little time."""
    whole = Space.of

    def small(given):
        space = whole(given)
        values = {**space.values, "rank": (2, 4), "parts": ("log_amplitude",), "view": (NO_VIEW, "shift")}
        return Space(replace(space.recommended, rank=4), values, space.views)

    monkeypatch.setattr(nested.Space, "of", small)


def relabelled(windows, label, subject=None):
    kept = windows.subject if subject is None else subject
    return Windows(windows.X, fs=windows.fs, label=label, subject=kept, recording=windows.recording)


# --------------------------------------------------------------------- honesty


def test_random_labels_are_worth_chance_on_subjects_the_search_did_not_see(windows):
    label = np.random.default_rng(0).integers(0, 2, len(windows))
    found = tune(relabelled(windows, label), tries=5, folds=2)
    assert max(one.judged.score for one in found.tries) > found.nested_score - 0.05
    assert abs(found.nested_score - 0.5) < 0.15
    assert not found.tuned
    assert found.reason.startswith("Kept the recommended settings")


def test_no_search_sees_windows_of_the_subjects_it_is_judged_on(windows, monkeypatch):
    seen = []

    class Recorded(Search):
        def run(self):
            seen.append(set(self.windows.subject.tolist()))
            return super().run()

    monkeypatch.setattr(nested, "Search", Recorded)
    found = tune(windows, tries=1, folds=3)
    everyone = set(windows.subject.tolist())
    assert seen[0] == everyone
    left_out = [everyone - one for one in seen[1:]]
    assert len(left_out) == 3
    assert set().union(*left_out) == set(found.nested) == everyone
    assert sum(map(len, left_out)) == len(everyone)


def test_settings_that_are_clearly_better_are_chosen(windows):
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, 160)
    subject = np.arange(160) % 8
    X = rng.normal(size=(160, 3, 64)).astype(np.float32)
    X[:, 0] += 0.5 * (2 * label - 1)[:, None]  # the class is in the sign of a level, which a spectrum has not
    own = Windows(X, fs=64.0, label=label, subject=subject)
    space = Space.of(own)
    start = replace(space.recommended, rank=4, levels=0.0)
    narrow = Space(start, {"levels": (0.0, 0.25)} | {name: (getattr(start, name),) for name in _others()}, space.views)
    search = Search(own, narrow, 0, "cpu", Budget(tries=4))
    best = search.run()
    assert best.settings.levels == 0.25
    assert best.judged.score > search.tries[0].judged.score + 0.2


def test_a_steady_gain_is_preferred_to_a_larger_one_of_a_single_subject(windows):
    space = Space.of(windows)
    search = Search(windows, space, 0, "cpu", Budget(tries=1))
    shares = {32: [0.2, 0.2, 0.2, 0.2], 16: [0.21, 0.21, 0.21, 0.21], 8: [0.2, 0.2, 0.2, 0.25]}
    for rank, own in shares.items():
        judged = Judged(sum(own), np.array(own))
        search.tries.append(Try(replace(space.recommended, rank=rank), judged, 0.0, True, True))
    assert search.best().settings.rank == 16
    del search.tries[1:2]
    search.tries[1] = replace(search.tries[1], judged=Judged(0.8, np.array([0.1, 0.2, 0.2, 0.3])))
    assert search.best().settings.rank == 32


def _others():
    return ("n_fft", "hop", "rank", "nonnegative", "parts", "view", "whiten", "shrinkage", "recenter")


def test_shares_of_subjects_add_up_to_the_balanced_accuracy_of_left_out_subjects():
    rng = np.random.default_rng(0)
    y, subject = rng.integers(0, 3, 150), rng.integers(0, 6, 150)
    Z = rng.normal(size=(150, 4)) + y[:, None]
    for full in (False, True):
        found = judge(Z, y, subject, np.empty(0, np.intp), full)
        assert found.score == pytest.approx(found.shares.sum())
        assert 0.5 < found.score <= 1
    other = Judged(found.score - 0.06, found.shares - 0.01)
    assert difference(found, other) == (pytest.approx(0.06), pytest.approx(0.0, abs=1e-9))


# --------------------------------------------------------------------- sharing


def test_fits_share_second_moments_and_come_out_the_same(windows, monkeypatch):
    passes = []
    monkeypatch.setattr(second_moments.SecondMoments, "finish", _counted(second_moments.SecondMoments.finish, passes))
    frames = recommended_stft(64, 64.0)
    alone = [ATD(rank, tensorize=frames, solver="moments", device="cpu").fit(windows) for rank in (2, 3)]
    assert len(passes) == 2
    with second_moments.sharing():
        together = [ATD(rank, tensorize=frames, solver="moments", device="cpu").fit(windows) for rank in (2, 3)]
        assert len(passes) == 3
        ATD(2, tensorize=replace(frames, hop=16), solver="moments", device="cpu").fit(windows)
        assert len(passes) == 4
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one.factors_, other.factors_, strict=True):
            np.testing.assert_array_equal(a, b)


def _counted(function, calls):
    def called(*given):
        calls.append(1)
        return function(*given)

    return called


def test_tries_that_differ_in_the_readout_alone_share_a_fit(windows):
    found = tune(windows, tries=16, folds=2)
    fits = {one.settings.fitted for one in found.tries}
    assert sum(one.fitted for one in found.tries) == len(fits) < len(found.tries)


# ------------------------------------------------------------ stopped, resumed


def test_the_same_seed_gives_the_same_tries_and_a_journal_resumes_them(windows, tmp_path):
    path = tmp_path / "tries.jsonl"
    first = tune(windows, tries=4, folds=2, journal=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:30])
    fitted = []
    again = tune(windows, tries=4, folds=2, journal=path, on_try=lambda *given: fitted.append(given[2].seconds))
    assert [one.settings for one in again.tries] == [one.settings for one in first.tries]
    assert [one.judged.score for one in again.tries] == [one.judged.score for one in first.tries]
    assert again.nested == first.nested
    assert again.settings == first.settings
    assert len(path.read_bytes().splitlines()) == len(lines) + 1  # the broken line stays, what it said is written anew
    with pytest.raises(PolyadicError, match="journal of other windows or another seed"):
        tune(windows[:80], tries=1, folds=2, journal=path)
    path.write_text("no journal\n")
    with pytest.raises(PolyadicError, match="not a journal of polyadic tune"):
        tune(windows, tries=1, folds=2, journal=path)


def test_an_interrupt_keeps_the_best_so_far(windows):
    def stop(number, count, one):
        if (number, len(done)) == (0, 2):
            raise KeyboardInterrupt
        done.append(one)

    done = []
    found = tune(windows, tries=50, folds=2, on_try=stop)
    assert found.interrupted
    assert not found.nested
    assert len(found.tries) == 3
    assert found.reason.startswith("Stopped before the search could be validated on left-out subjects")
    assert found.model.predict(windows[:3]).shape == (3,)


def test_an_interrupt_while_the_search_is_validated_reports_no_score_of_left_out_subjects(windows):
    def stop(number, count, one):
        if number == 2:
            raise KeyboardInterrupt

    found = tune(windows, tries=2, folds=2, on_try=stop)
    assert found.interrupted
    assert (found.nested, str(found.nested_score)) == ({}, "nan")


def test_the_command_keeps_its_journal_when_interrupted_and_resumes_without_force(windows, tmp_path, monkeypatch):
    np.savez(tmp_path / "w.npz", X=windows.X, fs=64.0, label=windows.label, subject=windows.subject)
    monkeypatch.chdir(tmp_path)
    words = ["tune", "w.npz", "--folds", "2", "--device", "cpu"]
    real, seen = nested.Journal.note, []

    def stop_at_the_third(self, search, one):
        real(self, search, one)
        seen.append(one)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(nested.Journal, "note", stop_at_the_third)
    stopped = CliRunner().invoke(app, [*words, "--tries", "3"])
    assert "Stopped before the search could be validated" in stopped.output
    assert load(tmp_path / "model.safetensors").rank == 4
    assert len((tmp_path / "model.tries.jsonl").read_text().splitlines()) == 1 + 3
    again = CliRunner().invoke(app, [*words, "--tries", "3", "--resume"])
    assert again.exit_code == 0, again.output
    searched = [entry.seconds for entry in seen[3:]]
    assert searched[:3] == [entry.seconds for entry in seen[:3]]  # from the journal, not measured again
    assert not (tmp_path / "model.tries.jsonl").exists()
    nothing = CliRunner().invoke(app, [*words, "--tries", "3", "--resume"])
    assert nothing.exit_code != 0


def test_a_choice_of_recentring_says_what_it_excludes(windows):
    found = tune(windows, minutes=0.0, folds=2)
    assert "cannot be exported" not in found.summary()
    recentred = replace(found, settings=replace(found.settings, recenter=True))
    assert "predictions need at least 20 windows of each subject" in recentred.summary()
    assert "cannot be exported to C or ONNX" in recentred.summary()


def test_arrays_without_labels_and_subjects_are_refused(windows):
    with pytest.raises(PolyadicError, match=r"must be Windows or a WindowStore, but is a ndarray: use Windows\("):
        tune(windows.X)


def test_minutes_bound_it(windows):
    found = tune(windows, minutes=0.0, folds=2)
    assert len(found.tries) == 1
    assert found.settings == found.recommended


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
    assert "a search could not be validated, because without some of the subjects only" in unvalidated.reason
    assert "0 tries" not in unvalidated.summary()
    assert (unvalidated.settings, unvalidated.tries, unvalidated.nested) == (unvalidated.recommended, [], {})
    with pytest.raises(PolyadicError, match="all labels are of one class; a classifier needs"):
        tune(relabelled(windows, np.zeros(len(windows), int)))
    with pytest.raises(PolyadicError, match="no window has both a label and a subject"):
        tune(relabelled(windows, np.full(len(windows), -1)))


def test_recentred_features_are_validated_with_all_windows_of_the_left_out_subjects(windows, monkeypatch):
    small = nested.Space.of

    def recentred(given):
        space = small(given)
        return Space(replace(space.recommended, recenter=True), space.values, space.views)

    monkeypatch.setattr(nested.Space, "of", recentred)
    subject = np.array([f"s{number % 4}" for number in range(len(windows))])  # 24 windows each
    label = np.where(np.arange(len(windows)) < 60, windows.label, -1)  # 15 labels each, too few to recentre by
    own = Windows(windows.X, fs=windows.fs, label=label, subject=subject)
    found = tune(own, tries=1, folds=2)
    assert found.settings.recenter
    assert set(found.nested) == {"s0", "s1", "s2", "s3"}


# ----------------------------------------------------------------------- space


def test_the_space_has_the_recommended_settings_and_only_views_that_suit(windows):
    space = nested.Space.of(windows)
    assert all(getattr(space.recommended, name) in values for name, values in space.values.items())
    assert "band-pass" in space.views
    assert not any(name.startswith("rotation") for name in space.views)
    bare = views_for(Windows(np.zeros((4, 1, 64))))
    assert list(bare) == ["jitter 0.05", "jitter 0.3", "shift", "scale"]
    triads = views_for(
        Windows(np.zeros((4, 7, 64)), channels=["acc_y", "acc_x", "t", "acc_z", "gyr.x", "gyr.y", "gyr.z"])
    )
    assert triads["rotation 20°"].triads == ((1, 0, 3), (4, 5, 6))


def test_neighbours_differ_in_one_thing_and_hops_follow_frames(windows):
    space = Space.of(windows)
    for name in space.values:
        for one in space.neighbours(space.recommended, 64, (name,)):
            assert set(one.changed_from(space.recommended)) <= {name, "hop"}
            assert name != "shrinkage" or space.recommended.whiten != NO_VIEW
    longer = space.with_value(Settings(32, 4), "n_fft", 64, 64)
    assert (longer.n_fft, longer.hop) == (64, 8)
    assert [one.hop for one in space.neighbours(Settings(32, 4), 64, ("hop",))] == [8, 16]


# --------------------------------------------------------------------- command


def test_the_command_writes_a_model_a_table_the_result_and_a_picture(windows, tmp_path):
    pytest.importorskip("plotly")
    np.savez(tmp_path / "w.npz", X=windows.X, fs=64.0, label=windows.label, subject=windows.subject)
    done = polyadic("tune", "w.npz", "--tries", 2, "--folds", 2, "--device", "cpu", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "model.tuning.json").read_text())["tries"] == result["tries"]
    assert len((tmp_path / "model.tries.csv").read_text().splitlines()) == 1 + len(result["tries"]) == 3
    assert len({tuple(one[name] for name in result["settings"]) for one in result["tries"]}) == 2
    assert result["tries"][0]["full"]  # evaluated coarsely, too, but counted once
    assert all(one["score"] == round(one["score"], 6) for one in result["tries"])
    assert "scored with all probe settings" in (tmp_path / "model.tuning.html").read_text()
    assert not (tmp_path / "model.tries.jsonl").exists()
    polyadic("predict", "model.safetensors", "w.npz", "-o", "labels.csv", cwd=tmp_path)
    head, *rows = [line.split(",") for line in (tmp_path / "labels.csv").read_text().splitlines()]
    assert {row[head.index("unusual")] for row in rows} <= {"0", "1"}
    (tmp_path / "model.tries.jsonl").write_text("left behind\n")
    failed = polyadic("tune", "w.npz", "--tries", 2, "--force", cwd=tmp_path, code=1).stderr
    assert "resume it with --resume, or remove the file" in " ".join(failed.split())


def test_there_is_no_plot_without_other_settings(windows, tmp_path, capsys):
    found = tune(windows, minutes=0.0, folds=2)
    files = {kind: tmp_path / f"m.{kind}" for kind in ("tries.csv", "tuning.json", "tuning.html")}
    files["tuning.html"].write_text("of an earlier search")
    command._write(found, files)
    assert found.reason == "Kept the recommended settings: ended before any other was tried."
    assert "no plot: only the recommended settings were tried" in capsys.readouterr().err
    assert [path.exists() for path in files.values()] == [True, True, False]


def test_the_plot_has_a_row_for_each_value_of_a_setting_that_was_varied():
    tries = [
        {"n_fft": 32, "rank": 8, "view": NO_VIEW, "score": 0.7, "full": True},
        {"n_fft": 32, "rank": 16, "view": NO_VIEW, "score": 0.8, "full": False},
    ]
    figure = plot.tuning(tries, {"n_fft": 32, "rank": 16, "view": NO_VIEW})
    assert list(figure.layout.yaxis.ticktext) == ["rank: 8", "16 *"]
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data] == [
        ("scored with two probe settings", [80.0], [1]),
        ("scored with all probe settings", [70.0], [0]),
    ]
