"""Predictions along a recording: recursions against all paths, learning, order of windows, classifier, command line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import pairwise, product

import edfio
import numpy as np
import pytest
from c_code import CLibrary, missing
from command_line import polyadic
from scipy import stats

from polyadic import CPD, export, plot, tune
from polyadic.data import Windows
from polyadic.data.readers.edf import EdfFile
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.evaluate.sequences import (
    LONGEST_GAP,
    Chain,
    _judge,
    baum_welch,
    choose_chain,
    forward,
    forward_backward,
    labelled_pairs,
    rows_along,
    segments_of,
    transitions_of_pairs,
    usual_step,
    viterbi,
)
from polyadic.report.contents import collect_contents

STEP = 8


def positions(*starts, order=None) -> Windows:
    """Windows without samples: one recording for each list of starts, in steps."""
    recording = np.repeat([f"r{number}" for number in range(len(starts))], [len(each) for each in starts])
    start = np.concatenate([np.asarray(each, int) * STEP for each in starts])
    windows = Windows(np.zeros((len(start), 1, 4)), recording=recording, start=start)
    return windows if order is None else windows[order]


def random_chain(rng, classes):
    return rng.dirichlet(np.ones(classes), classes), rng.dirichlet(np.ones(classes))


def all_paths(scores, steps, transitions, initial):
    """The probability of every path through a segment, one window after another."""
    emissions, powers = np.exp(scores), [np.linalg.matrix_power(transitions, n) for n in range(LONGEST_GAP + 1)]
    found = {}
    for path in product(range(scores.shape[1]), repeat=len(scores)):
        probability = initial[path[0]] * emissions[0, path[0]]
        for t in range(1, len(path)):
            probability *= powers[steps[t]][path[t - 1], path[t]] * emissions[t, path[t]]
        found[path] = probability
    return found


# ---------------------------------------------------------------------------------------------------- recursions


@pytest.mark.parametrize("starts", [[0], [0, 1, 2, 3, 4], [3, 4, 9, 10]])
def test_recursions_agree_with_all_paths(starts):
    rng = np.random.default_rng(len(starts))
    transitions, initial = random_chain(rng, 3)
    scores = rng.normal(size=(len(starts), 3))
    segments = segments_of(positions(starts), STEP)
    paths = all_paths(scores, np.diff(starts, prepend=starts[0]), transitions, initial)
    total = sum(paths.values())
    expected = np.zeros_like(scores)
    for path, probability in paths.items():
        expected[np.arange(len(starts)), path] += probability / total
    smoothed, counts = forward_backward(scores, segments, transitions, initial)
    np.testing.assert_allclose(smoothed, expected, atol=1e-12)
    assert tuple(viterbi(scores, segments, transitions, initial)) == max(paths, key=paths.get)
    # Every step, inside gaps too, is one transition.
    assert counts.sum() == pytest.approx(starts[-1] - starts[0])
    filtered, _ = forward(scores, segments, transitions, initial)
    for t in range(len(starts)):
        before = segments_of(positions(starts[: t + 1]), STEP)
        given = forward_backward(scores[: t + 1], before, transitions, initial)[0][-1]
        np.testing.assert_allclose(filtered[t], given, atol=1e-12)


def test_expected_transitions_are_those_of_all_paths_through_the_gap():
    rng = np.random.default_rng(0)
    transitions, initial = random_chain(rng, 2)
    scores = rng.normal(size=(2, 2))
    whole = np.zeros((4, 2))
    whole[[0, 3]] = scores
    paths = all_paths(whole, [0, 1, 1, 1], transitions, initial)
    expected = np.zeros((2, 2))
    for path, probability in paths.items():
        np.add.at(expected, (path[:-1], path[1:]), probability / sum(paths.values()))
    counts = forward_backward(scores, segments_of(positions([0, 3]), STEP), transitions, initial)[1]
    np.testing.assert_allclose(counts, expected, atol=1e-12)


def test_recordings_of_different_lengths_are_independent_of_each_other():
    rng = np.random.default_rng(1)
    transitions, initial = random_chain(rng, 3)
    starts = ([0, 1], [0, 1, 2, 5], [2], [0, 1, 40, 41])  # the last has a long gap
    windows = positions(*starts)
    scores = rng.normal(size=(len(windows), 3))
    segments = segments_of(windows, STEP)
    smoothed = forward_backward(scores, segments, transitions, initial)[0]
    path = viterbi(scores, segments, transitions, initial)
    for rows in ([0, 1], [2, 3, 4, 5], [6], [7, 8], [9, 10]):
        alone = segments_of(windows[rows], STEP)
        np.testing.assert_allclose(
            smoothed[rows], forward_backward(scores[rows], alone, transitions, initial)[0], atol=1e-12
        )
        np.testing.assert_array_equal(path[rows], viterbi(scores[rows], alone, transitions, initial))


def test_extreme_scores_stay_finite():
    scores = np.array([[0.0, -2000.0], [-2000.0, 0.0], [0.0, -2000.0]])
    segments = segments_of(positions([0, 1, 2]), STEP)
    transitions, initial = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])
    smoothed = forward_backward(scores, segments, transitions, initial)[0]
    np.testing.assert_allclose(smoothed, [[1, 0], [0, 1], [1, 0]], atol=1e-12)


# ------------------------------------------------------------------------------------------------ order of windows


def test_gaps_are_transitions_and_long_ones_start_anew():
    windows = positions([0, 1, 4, 4 + LONGEST_GAP, 5 + 2 * LONGEST_GAP])
    segments = segments_of(windows, usual_step(positions([0, 1, 2])))
    assert segments.steps.tolist() == [0, 1, 3, LONGEST_GAP, 0]
    assert segments.before.tolist() == [-1, 0, 1, 2, -1]


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (positions(range(4), order=[0, 2, 1, 3]), "in order of time, each once, but those of 'r0'"),
        (positions([0, 1, 1]), "in order of time, each once"),
        (Windows(np.zeros((2, 1, 4)), start=[0, 8]), "need the recording of every window, but 2 of 2"),
        (Windows(np.zeros((2, 1, 4)), recording=["a", "a"]), "need the start of every window"),
        (np.zeros((2, 1, 4)), "need Windows with the recording and the start of each, but got ndarray"),
        (Windows(np.zeros((2, 1, 4)), recording=["a", "a"], start=[0, 2]), "start every 8 samples, but these start 2"),
    ],
)
def test_windows_without_a_known_order_are_refused(windows, message):
    with pytest.raises(PolyadicError, match=message):
        segments_of(windows, STEP)


# ---------------------------------------------------------------------------------------------------- learning


def planted(rng, transitions, people=12, length=200, noise=1.0):
    """Scores, classes and positions of recordings whose classes are a planted chain."""
    classes = len(transitions)
    codes = np.empty((people, length), np.intp)
    codes[:, 0] = rng.integers(classes, size=people)
    for t in range(1, length):
        for person in range(people):
            codes[person, t] = rng.choice(classes, p=transitions[codes[person, t - 1]])
    codes = codes.ravel()
    # Gaussian observations around the corners have these logarithms of likelihoods.
    x = np.eye(classes)[codes] + noise * rng.normal(size=(len(codes), classes))
    return x / noise**2, codes, positions(*[range(length)] * people)


PLANTED = np.array([[0.92, 0.06, 0.02], [0.02, 0.92, 0.06], [0.06, 0.02, 0.92]])


def test_planted_transitions_are_recovered_from_labels_and_without():
    scores, codes, windows = planted(np.random.default_rng(0), PLANTED)
    segments = segments_of(windows, STEP)
    from_labels, _ = transitions_of_pairs(*labelled_pairs(codes, segments, 3))
    np.testing.assert_allclose(from_labels, PLANTED, atol=0.03)
    without, _ = baum_welch(scores, segments)
    np.testing.assert_allclose(without, PLANTED, atol=0.05)


def chosen(rng, scores, codes, windows, labelled=1.0):
    people = windows.index.recording
    known = rng.random(len(codes)) < labelled
    return choose_chain(scores, np.where(known, codes, -1), people % 5, people, windows)


@pytest.mark.parametrize("labelled", [1.0, 0.1])
def test_lasting_classes_make_the_chain_the_default(labelled):
    rng = np.random.default_rng(0)
    scores, codes, windows = planted(rng, PLANTED)
    chain = chosen(rng, scores, codes, windows, labelled)
    assert chain.is_default
    assert ("pairs of labelled windows" in chain.reason) == (labelled == 1.0)
    assert ("Baum-Welch on 2,400 windows" in chain.reason) == (labelled < 1.0)
    alone = (scores.argmax(axis=1) == codes).mean()
    assert (chain.path(scores, windows) == codes).mean() > alone + 0.1


def test_classes_in_random_order_leave_the_chain_off_and_cost_nothing():
    rng = np.random.default_rng(0)
    scores, codes, windows = planted(rng, np.full((3, 3), 1 / 3))
    chain = chosen(rng, scores, codes, windows)
    assert not chain.is_default
    assert (chain.path(scores, windows) == codes).mean() > (scores.argmax(axis=1) == codes).mean() - 0.01


def test_shuffled_labels_give_chance():
    rng = np.random.default_rng(0)
    scores, codes, windows = planted(rng, PLANTED)
    chain = chosen(rng, scores[rng.permutation(len(scores))], codes, windows)
    assert not chain.is_default
    assert abs(chain.validation["along"] - 1 / 3) < 0.06


# ------------------------------------------------------------------------------------------------ classifier


def lasting(people=8, length=80, seed=0) -> Windows:
    """Noisy windows of two channels at 64 Hz whose class, one of three frequencies, lasts for ten windows or so."""
    rng = np.random.default_rng(seed)
    _, codes, _ = planted(rng, PLANTED, people, length)
    time = np.arange(64) / 64
    phase = rng.uniform(0, 2 * np.pi, (len(codes), 2, 1))
    X = 0.35 * np.sin(2 * np.pi * np.array([6.0, 10.0, 14.0])[codes][:, None, None] * time + phase)
    X += rng.normal(size=X.shape)
    person = np.repeat(np.arange(people), length)
    start = np.tile(np.arange(length) * 64, people)
    names = np.array(["rest", "stand", "walk"])[codes]
    subject = [f"s{number}" for number in person]
    return Windows(X.astype(np.float32), 64.0, subject=subject, recording=subject, start=start, label=names)


@pytest.fixture(scope="module")
def train():
    return lasting()


@pytest.fixture(scope="module")
def classifier(train):
    return WindowClassifier(CPD(rank=6, device="cpu").fit(train)).fit(train)


def test_classifier_predicts_better_along_the_recording(classifier):
    new = lasting(seed=1)
    truth = np.array(new.classes)[new.label]
    labels, probabilities = classifier.predict_sequence(new)
    assert classifier.chain_.is_default
    assert classifier.chain_.reason.startswith("transitions of")
    assert (labels == truth).mean() > (classifier.predict(new) == truth).mean() + 0.1
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_classifier_of_windows_in_random_order_has_no_chain(classifier, train):
    shuffled = train[np.random.default_rng(0).permutation(len(train))]
    other = WindowClassifier(classifier.features_).fit(shuffled)
    assert other.chain_ is None
    with pytest.raises(PolyadicError, match="does not know the order of windows"):
        other.predict_sequence(train)


def test_model_files_keep_the_chain(classifier, train, tmp_path):
    classifier.save(tmp_path / "model.safetensors")
    read = WindowClassifier.load(tmp_path / "model.safetensors")
    assert read.chain_.reason == classifier.chain_.reason
    assert read.chain_.validation == classifier.chain_.validation
    labels, probabilities = classifier.predict_sequence(train)
    np.testing.assert_array_equal(read.predict_sequence(train)[0], labels)
    np.testing.assert_allclose(read.predict_sequence(train)[1], probabilities, atol=1e-12)


def test_left_out_likelihoods_do_not_depend_on_labels_of_the_subject(classifier, train):
    Z, mine = np.asarray(classifier.features_.transform(train), float), train.subject == "s0"
    wrong = train.label.copy()
    wrong[mine] = np.roll(train.label[mine], 7)
    found = []
    for y in (train.label, wrong):
        probe = Probe(classifier.probe_.C_, "plain").fit(Z, y, train.subject)
        likelihoods, fold = probe.left_out_likelihoods(Z, train.subject)
        assert len(np.unique(fold[mine])) == 1
        found.append(probe.temperature_ * (likelihoods - likelihoods[:, :1])[mine])  # the temperature is of all labels
    np.testing.assert_allclose(*found, atol=1e-6)


# ------------------------------------------------------------------------------------------------ command line

STAGES = ("W", "N1", "N2", "N3", "R")
NIGHT = np.array(
    [
        [0.90, 0.09, 0.01, 0.00, 0.00],
        [0.10, 0.50, 0.37, 0.00, 0.03],
        [0.02, 0.04, 0.86, 0.05, 0.03],
        [0.01, 0.01, 0.07, 0.91, 0.00],
        [0.02, 0.04, 0.02, 0.00, 0.92],
    ]
)
"""Transitions between sleep stages from one epoch of 30 s to the next."""
RHYTHMS = {"W": 10.0, "N1": 6.0, "N2": 13.0, "N3": 2.0, "R": 8.0}
FS, EPOCH = 32, 30


def write_night(path, seed, epochs=100):
    """Write an EDF+ file of two noisy channels, in which each stage has its rhythm, with the stages as annotations."""
    rng = np.random.default_rng(seed)
    stages = [0]
    for _ in range(epochs - 1):
        stages.append(int(rng.choice(5, p=NIGHT[stages[-1]])))
    names = [STAGES[stage] for stage in stages]
    time = np.arange(EPOCH * FS) / FS
    signal = np.concatenate(
        [
            rng.lognormal(0.0, 0.5) * np.sin(2 * np.pi * rng.normal(RHYTHMS[name], 1.2) * time + phase) * 9
            + 30 * rng.normal(size=(2, len(time)))
            for name, phase in zip(names, rng.uniform(0, 6, (epochs, 2, 1)), strict=True)
        ],
        axis=1,
    )
    signals = [
        edfio.EdfSignal(row.clip(-300, 300), FS, label=label, physical_dimension="uV", physical_range=(-300, 300))
        for row, label in zip(signal, ("EEG Fz", "EEG Oz"), strict=True)
    ]
    notes = [edfio.EdfAnnotation(EPOCH * number, EPOCH, name) for number, name in enumerate(names)]
    edfio.Edf(signals, annotations=notes).write(path)
    return names


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """A folder with five scored nights, a model of them with a probe, and a sixth night with its true stages."""
    folder = tmp_path_factory.mktemp("nights")
    (folder / "scored").mkdir()
    for number in range(5):
        write_night(folder / "scored" / f"person{number}.edf", number)
    truth = write_night(folder / "new.edf", 99)
    words = ("--seconds", EPOCH, "--rank", 8, "--probe", "--no-components", "-o", "model.safetensors")
    told = polyadic("fit", "scored", *words, cwd=folder).stdout
    return folder, truth, told


def changes(names):
    return sum(one != other for one, other in pairwise(names))


def test_smoothed_stages_of_a_night_are_annotations_of_a_copy(nights):
    folder, truth, told = nights
    assert "used by default" in " ".join(told.split())
    found = {}
    for out, words in (("along.edf", ()), ("alone.edf", ("--no-along",))):
        polyadic("predict", "model.safetensors", "new.edf", "-o", out, *words, cwd=folder)
        notes = EdfFile(folder / out).annotations
        assert [note.onset for note in notes] == [EPOCH * number for number in range(len(truth))]
        found[out] = [note.text for note in notes]
    right = {out: np.mean(np.array(names) == truth) for out, names in found.items()}
    assert right["along.edf"] > right["alone.edf"] + 0.03
    assert changes(found["along.edf"]) < changes(found["alone.edf"]) / 1.5


def test_tables_have_labels_along_the_recording_and_of_each_window_by_itself(nights):
    folder, _, _ = nights
    rows = {}
    for out, words in (("along.csv", ("--along",)), ("alone.csv", ("--no-along",))):
        told = polyadic("predict", "model.safetensors", "new.edf", "-o", out, "--json", *words, cwd=folder).stdout
        assert json.loads(told)["along"] is (out == "along.csv")
        with (folder / out).open() as file:
            rows[out] = list(csv.DictReader(file))
    assert list(rows["along.csv"][0])[3:9] == ["time", "label", "confidence", "unusual", "missing", "label_window"]
    assert "label_window" not in rows["alone.csv"][0]
    assert [row["label_window"] for row in rows["along.csv"]] == [row["label"] for row in rows["alone.csv"]]
    for row in rows["along.csv"]:
        assert float(row["confidence"]) == float(row[f"p({row['label']})"])


def test_evaluate_gives_both_scores_and_says_which_one_predict_uses(nights):
    folder, _, _ = nights
    told = json.loads(
        polyadic("evaluate", "model.safetensors", "scored", "--transductive", "--folds", 2, "--json", cwd=folder).stdout
    )
    assert told["along"]["balanced_accuracy"] > told["balanced_accuracy"]
    assert set(told["along"]["recall"]) == set(STAGES)
    text = " ".join(polyadic("evaluate", "model.safetensors", "scored", "--transductive", cwd=folder).stdout.split())
    assert "predict labels along the recording (--no-along overrides it)" in text


@pytest.mark.skipif(bool(missing("gcc")), reason=missing("gcc"))
def test_stream_in_c_is_the_causal_filter_also_after_windows_without_a_result(train, tmp_path):
    uneven = train[np.flatnonzero((train.label > 0) | (np.arange(len(train)) % 3 > 0))]
    classifier = WindowClassifier(CPD(rank=4, device="cpu").fit(train), prior="training").fit(uneven)
    classifier.probe_.chain_ = replace(classifier.chain_, kappa=0.5, step=64, is_default=True)
    written = export.c(classifier, tmp_path / "model.c")
    assert written.along
    assert written.stride == 64
    new = lasting(people=1, length=60, seed=1)
    signal = new.X.copy()
    signal[0, 0, 3] = signal[10, 1, 5] = np.nan
    signal[20:41, 0, 0] = np.nan  # 21 windows: a gap of 22 steps, so the chain starts anew
    seen = np.isfinite(signal).all(axis=(1, 2))
    found = CLibrary(written).push(signal.transpose(0, 2, 1).reshape(-1, 2))
    kept = new[np.flatnonzero(seen)]
    likelihoods = classifier.probe_.log_likelihoods(classifier.features_.transform(kept))
    expected = classifier.chain_.filter(likelihoods, kept)
    results = np.array([found[64 * (number + 1)] for number in np.flatnonzero(seen)])
    np.testing.assert_allclose(results, expected, atol=1e-5)
    assert not np.array([found[64 * (number + 1)] for number in np.flatnonzero(~seen)]).any()
    assert np.abs(expected - classifier.predict_proba(kept)).max() > 0.1


def test_one_class_and_no_windows():
    segments = segments_of(positions([0, 1, 2]), STEP)
    assert baum_welch(np.zeros((3, 1)), segments)[0].tolist() == [[1.0]]
    assert viterbi(np.zeros((3, 1)), segments, np.ones((1, 1)), np.ones(1)).tolist() == [0, 0, 0]
    nothing = segments_of(positions([0])[:0], STEP)
    assert forward_backward(np.zeros((0, 2)), nothing, np.eye(2), np.ones(2) / 2)[0].shape == (0, 2)
    assert viterbi(np.zeros((0, 2)), nothing, np.eye(2), np.ones(2) / 2).shape == (0,)


def test_long_segments_can_be_cut():
    segments = segments_of(positions(range(5)), STEP, longest=2)
    assert [rows.tolist() for rows in segments.places] == [[0, 2, 4], [1, 3]]
    assert segments.steps.tolist() == [0, 1, 0, 1, 0]


def test_recordings_may_be_interleaved():
    windows = positions([0, 1], [0, 1])
    assert segments_of(windows[[0, 2, 1, 3]], STEP).before.tolist() == [-1, -1, 0, 1]


def test_chain_is_learned_from_whole_recordings_with_labels():
    windows = positions([0, 1], [0, 1], [0])
    assert rows_along(windows, np.array([False, True, False, False, True])).tolist() == [0, 1, 4]
    assert rows_along(windows.X, np.ones(5, bool)).tolist() == []
    assert rows_along(windows[::-1], np.ones(5, bool)).tolist() == []
    picked = Windows(np.zeros((4, 1, 8)), recording=["night"] * 4, start=[0, 8, 48, 88])  # 40 apart, but two are closer
    assert rows_along(picked, np.ones(4, bool)).tolist() == []


def test_learned_chain_assumes_equally_frequent_classes():
    rare = np.array([[0.98, 0.02], [0.2, 0.8]])
    scores, codes, windows = planted(np.random.default_rng(0), rare, noise=0.5)
    segments = segments_of(windows, STEP)
    for transitions, _ in (baum_welch(scores, segments), transitions_of_pairs(*labelled_pairs(codes, segments, 2))):
        np.testing.assert_allclose(transitions.sum(axis=0), 1, atol=1e-6)


def test_initial_distribution_is_learned():
    codes = np.tile([0, 0, 1, 2, 1, 2], 30)
    segments = segments_of(positions(*[range(6)] * 30), STEP)
    for _, initial in (
        transitions_of_pairs(*labelled_pairs(codes, segments, 3)),
        baum_welch(20 * np.eye(3)[codes], segments),
    ):
        assert initial[0] > 0.8


def test_overlapping_windows_lower_kappa():
    rng = np.random.default_rng(0)
    codes = np.repeat(rng.integers(3, size=600), 10)
    x = np.eye(3)[codes] + np.repeat(rng.normal(size=(1200, 3)), 5, axis=0)  # the same noise in five windows
    windows = positions(*[range(500)] * 12)
    assert chosen(rng, 4 * x, codes, windows).kappa < 1


@pytest.mark.parametrize(
    ("people", "said"),
    [(2, "not validated, because labels are from fewer than 3 subjects"), (3, "because 3 subjects are too few to be")],
)
def test_few_subjects_do_not_make_the_chain_the_default(people, said):
    scores, codes, windows = planted(np.random.default_rng(0), PLANTED, people=people)
    chain = chosen(np.random.default_rng(0), scores, codes, windows)
    assert not chain.is_default
    assert bool(chain.validation) == (people == 3)
    assert said in chain.reason


@pytest.mark.parametrize("subjects", [4, 11])
def test_the_gain_must_exceed_its_standard_error_by_the_t_of_the_number_of_subjects(subjects):
    # Of 100 windows of each subject, some are right only along the recording, and one only by itself.
    bound = stats.t.ppf(stats.norm.cdf(1), subjects - 1)
    for better in np.random.default_rng(0).integers(0, 6, (40, subjects)):
        wrong = np.arange(100)[None] < better[:, None]
        alone, along = wrong.astype(int).ravel(), np.tile(np.arange(100) == 99, subjects).astype(int)
        gains = (better - 1) / 100
        expected = gains.mean() > bound * gains.std(ddof=1) / np.sqrt(subjects)
        groups = np.repeat(np.arange(subjects), 100)
        assert _judge(np.zeros(100 * subjects, int), alone, along, groups, 2)[0] == expected


def test_prior_has_no_effect_along_the_recording(classifier, train):
    other = WindowClassifier.of(classifier.as_model())
    other.probe_ = other.probe_.with_prior("training")
    np.testing.assert_allclose(other.predict_sequence(train)[1], classifier.predict_sequence(train)[1], atol=1e-9)


def test_damaged_chains_are_refused(classifier):
    content = classifier.chain_.to_dict()
    for damage in ({"initial": [1.0, 0.0]}, {"kappa": 2.0}, {"transitions": [[1.0] * 3] * 3}, {"step": 0}):
        with pytest.raises(ModelFileError, match="chain"):
            Chain.from_dict(content | damage, 3)
    arrays, header = classifier.probe_.pack()
    del header["chain"]  # files of earlier versions have none
    assert Probe.unpack(arrays, header, classifier.probe_.n_features_in_).chain_ is None


def test_another_stride_is_refused_if_asked_for_and_else_predicted_by_itself(nights):
    folder, _, _ = nights
    (folder / "dense").mkdir()
    (folder / "dense" / "new.edf").write_bytes((folder / "new.edf").read_bytes())
    polyadic("prepare", "folder", "dense", "dense.store", "--seconds", EPOCH, "--stride", 10, cwd=folder)
    words = ("predict", "model.safetensors", "dense.store", "-o", "dense.csv")
    refused = polyadic(*words, "--along", cwd=folder, code=1)
    assert "windows that start every 960 samples" in " ".join(refused.stderr.split())
    told = polyadic(*words, cwd=folder)
    assert "each window is predicted by itself" in " ".join(told.stderr.split())


def test_tune_gives_both_scores_on_left_out_subjects_and_says_which_one_predict_uses(train):
    tuning = tune(lasting(6, 60), tries=1, folds=2, device="cpu")
    along = tuning.used.along["balanced_accuracy"]
    assert along > tuning.used.balanced_accuracy
    assert f"Along the recording {100 * along:.1f} %, each window by itself" in tuning.summary()
    uses = "along the recording" if tuning.model.chain_.is_default else "each window by itself"
    assert f"predict labels {uses}." in tuning.summary()
    assert tuning.to_dict()["nested_along"] == pytest.approx(along, abs=1e-6)
    unordered = Windows(train.X[:240], 64.0, subject=train.subject[:240], label=train.label[:240])
    assert tune(unordered, tries=1, folds=2, device="cpu").used.along is None


def test_report_shows_the_path_with_single_windows_faintly_behind(train, classifier):
    contents = collect_contents(classifier.as_model(), train[train.subject < "s5"], transductive=True)
    said = contents.probe.result.along_the_recording
    assert "show a gain beyond its standard error." in said
    first = contents.timelines[0]
    assert (first.alone != first.predicted).any()
    np.testing.assert_allclose(first.probability.sum(axis=1), 1, atol=1e-5)
    figure = plot.timeline(first.windows, first.predicted, alone=first.alone)
    assert [layer.opacity for layer in figure.data][:2] == [0.35, 1.0]


def test_stream_in_c_needs_a_stride_that_is_a_multiple_of_the_step(classifier, tmp_path):
    assert classifier.chain_.is_default
    assert export.c(classifier, tmp_path / "model.c", stride=128).along
    assert not export.c(classifier, tmp_path / "model.c", stride=48).along
    assert "polyadic_filter" not in (tmp_path / "model.c").read_text()


def test_exports_say_that_they_leave_out_the_order(train, tmp_path):
    WindowClassifier(CPD(rank=4, readout=None, device="cpu").fit(train)).fit(train).save(tmp_path / "m.safetensors")
    told = polyadic("export", "m.safetensors", "-o", "m.onnx", cwd=tmp_path).stdout
    assert "the order of windows (--along) is not exported" in " ".join(told.split())
