"""The content of the report compared with its data; `test_report_browser` tests its behaviour."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from copy import copy

import numpy as np
import pytest
import torch
from problems import paper
from typer.testing import CliRunner

from polyadic import ATD, CPD, SALS, load, plot
from polyadic._util.version import __version__
from polyadic.augment import Jitter
from polyadic.cli import app
from polyadic.core.algebra import khatri_rao
from polyadic.core.tensorizer import Axis
from polyadic.data import Windows, split, synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.evaluate import cross_validate
from polyadic.explain import Components, compare, expression, level
from polyadic.explain.expression import profiles
from polyadic.explain.replicability import Replicability
from polyadic.explain.spectra import effect_sizes, shares
from polyadic.report.components import _place, sentence
from polyadic.report.contents import collect_contents
from polyadic.report.page import render
from polyadic.report.probe import headline, interval, score_probe
from polyadic.spectral import STFT


@pytest.fixture(scope="module")
def windows():
    return synthetic(300, length=128)


@pytest.fixture(scope="module")
def unlabelled(windows):
    return Windows(windows.X, windows.fs)


@pytest.fixture(scope="module")
def model(windows):
    views = {"tensorize": STFT(64, 32), "augment": Jitter(0.05)}
    return paper(ATD, rank=4, max_sweeps=3, **views).fit(next(iter(split(windows))))


@pytest.fixture(scope="module")
def probe(model, windows):
    return score_probe(model, windows)


@pytest.fixture(scope="module")
def contents(model, windows):
    return collect_contents(model, windows, probe_kind="plain")


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    """Maps of few windows: t-SNE takes longer than all else."""
    monkeypatch.setattr("polyadic.report.figures._MAPPED", 40)


def content(page: str) -> dict:
    packed = re.search(r'id="figures">([^<]*)</script>', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_shares_add_up_and_the_largest_comes_first(model, windows, contents):
    components = contents.components
    shares = [component.share for component in components]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100)
    K = khatri_rao([torch.as_tensor(factor, dtype=torch.float64) for factor in model.factors_]).numpy()
    T = model.coefficients(windows).astype(np.float64) @ K.T
    T -= T.mean(axis=0)
    alone = K[:, [components[0].number - 1]]
    explained = np.sum((T @ alone @ np.linalg.pinv(alone)) ** 2) / np.sum(T**2)
    assert shares[0] == pytest.approx(100 * explained, rel=1e-4)


@pytest.fixture(scope="module")
def plain(windows):
    """A default model with components for people, and one component of each rhythm."""
    model = CPD(rank=3).fit(windows)
    own = CPD(rank=4, readout=None, nonnegative=True).fit(windows)
    own.replicability_ = Replicability([0.99] * 4, [1.0] * 4, refits=4)
    bands = [np.stack([0.9 * profiles(factor), 1.1 * profiles(factor)]) for factor in own.factors_]
    model.components_ = Components(own, 6, 2, {16: 3, 6: 4}, 12, bands)
    return model


def test_a_default_model_shows_level_and_relative_expression_of_its_components_for_people(plain, windows):
    contents = collect_contents(plain, windows, probe_kind="plain", transductive=True)
    relative = expression(plain, windows, relative=True)
    assert relative.shape == (300, 4)
    assert contents.level == pytest.approx(level(plain, windows))
    assert len(contents.components) == 4
    for component in contents.components:
        own = relative[:, component.number - 1]
        means = [own[windows.label == c].mean() for c in range(4)]
        assert component.means == pytest.approx(means)
        assert own[component.windows] == pytest.approx(np.sort(own)[::-1][:3])
        told = sentence(component, contents.classes)
        best, worst = (pick(component.effects) for pick in (np.argmax, np.argmin))
        assert f"Highest in {best} ({means[best]:+.1f} dB".replace("-", "−") in told
        assert f"lowest in {worst} ({means[worst]:+.1f} dB".replace("-", "−") in told
        # The sign is that of the power: louder on these channels, at these frequencies and times.
        absolute = expression(plain, windows)[:, component.number - 1] - level(plain, windows)
        assert np.sign(component.effects[best]) == np.sign(effect_sizes(absolute, windows.label)[best])
    page = " ".join(render(plain, windows, probe="plain", transductive=True).split())
    assert "These 4 components are found again in at least half of 4 refits on halves of the 12 subjects" in page
    assert "at rank 6; 2 others of it did not replicate or nearly copied one of these, and are not shown" in page
    assert "Bands contain 90 % of bootstrap samples of the subjects." in page
    drawn = content(page)["figures"]
    assert drawn["component-1-classes"]["layout"]["xaxis"]["title"]["text"] == "relative expression (dB)"
    assert len(drawn["component-1-1"]["data"]) == 3  # a band and a line
    assert drawn["level"]["layout"]["xaxis"]["title"]["text"] == "level (dB)"
    none = copy(plain)
    none.components_ = Components(None, 0, 0, {1: 0}, 12, None)
    page = render(none, windows, probe="plain", transductive=True)
    assert "No component replicates in halves of the 12 subjects, so none is shown" in page


def test_a_comparison_comes_first_and_few_subjects_are_no_findings(plain, windows):
    group = np.where(windows.label < 2, "low", "high")
    compared = compare(plain, windows, group, paired=True, permutations=99)
    page = " ".join(render(plain, windows, comparison=compared, probe="plain", transductive=True).split())
    assert html.unescape(page).index(compared.words()) < page.index('class="headline"')
    assert content(page)["figures"]["groups"]["data"]
    few = np.isin(windows.subject, np.unique(windows.subject)[:3])
    compared = compare(plain, windows[few], group[few], paired=True, permutations=9)
    page = " ".join(render(plain, comparison=compared).split())
    assert "3 pairs. Too few for a test or an interval" in page
    assert "95 % interval" not in page


def place(text: str, weights: list[float], step: float = 0.5) -> str:
    axis = Axis(text, text, np.arange(len(weights)) * step, {"time": "s", "frequency": "Hz"}[text])
    return _place(axis, np.array(weights), [axis]).text


def test_places_name_the_peak_its_width_and_other_peaks_unless_the_profile_is_flat():
    assert place("time", [1.0, 0.98, 1.0, 0.99]) == "throughout"
    assert place("frequency", [1.0, 0.98, 1.0, 0.99]) == "all frequencies"
    assert place("time", [0.0] * 3 + [1.0] + [0.0] * 6) == "1.5 s"
    assert place("frequency", [0.0] * 10 + [0.6, 1.0, 0.6] + [0.0] * 10) == "5.5 Hz (5.0–6.0)"
    assert place("time", [0.0, 0.0, 1.0], step=16) == "32 s"
    assert place("frequency", [0.0, 0.0, 0.6, 1.0, 0.0, 0.0], step=25 / 16) == "4.7 Hz (3.1–4.7)"  # coarse bins
    assert place("time", [0.0, 0.8, 0.0, 0.0, 1.0, 0.0, 0.6, 0.6, 0.0, 0.4]) == "2.0 s and 2 more"


def test_the_page_hides_components_that_do_not_replicate_and_says_so(model, unlabelled):
    explained = shares(model, np.asarray(model.coefficients(unlabelled)))
    largest = int(np.argmax(explained))
    lost = np.arange(4) == largest
    checked = Replicability(np.where(lost, 0.85, 0.99), np.where(lost, 0.4, 1.0), refits=10)
    alone = copy(model)
    alone.replicability_ = checked
    page = render(alone, unlabelled)
    rows = re.findall(r'<tr data-component="(\d)"[^>]*?(class="[^"]*")?>', page)
    assert {number for number, kind in rows if kind == 'class="folded gone"'} == {str(largest + 1)}
    assert "3 of 4 components replicate: they are found again in at least half of 10 refits" in page
    assert "The others are grey and hidden below the table" in page
    named = re.search(r"One of them accounts for much of .*?: component (\d) .* has a share of (\d+) %", page)
    assert (int(named[1]), int(named[2])) == (largest + 1, round(explained[largest]))
    assert "sorted by share times match, with those that do not replicate last; click a heading" in page
    alone.replicability_ = Replicability([0.5] * 4, [0.0] * 4, refits=10)
    page = render(alone)
    assert "None of the 4 components replicates, that is, none is found again in at least half of 10 refits" in page
    assert "has not been checked" in render(model)


def test_the_probe_is_cross_validated_on_the_subjects_that_the_model_has_not_seen(model, windows, probe):
    part = split(windows, "subject")
    rows = np.sort(np.concatenate([part.train, part.test]))
    expected = cross_validate(model, windows, "loso", rows=rows)
    assert probe.scores["balanced_accuracy"] == pytest.approx(expected.balanced_accuracy)
    assert probe.scores["accuracy"] == pytest.approx(expected.accuracy)
    assert probe.over_subjects == expected.over_subjects
    assert [windows.classes[code] for code in probe.predicted[0]] == expected.predicted[0].tolist()
    assert (probe.how, probe.seen) == ("leave-one-subject-out cross-validation", False)
    assert probe.features == expected.features
    assert probe.reason == expected.reasons[0]
    assert probe.n_test == len(rows)
    assert probe.by_people
    assert probe.groups == len(set(windows.subject[rows]))
    assert probe.low < probe.scores["balanced_accuracy"] < probe.high
    assert {row["name"]: row["recall"] for row in probe.classes} == {
        name: row["recall"] for name, row in expected.per_class.items()
    }
    # Each window has the probabilities of a probe that was trained without its subject.
    assert probe.probability.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(probe.probability.argmax(axis=1), probe.predicted[0])


def test_the_headline_is_the_number_of_evaluate_with_an_interval_over_subjects(model, windows, probe, contents):
    expected = cross_validate(model, windows, "loso", rows=probe.rows).balanced_accuracy
    assert probe.scores["balanced_accuracy"] == expected
    ends = f"95 % interval {100 * probe.low:.1f} to {100 * probe.high:.1f} %"
    assert headline(probe).startswith(f"{ends}, by resampling {probe.groups} subjects; leave-one-subject-out")
    page, probe = " ".join(render(model, windows, probe="plain").split()), contents.probe
    assert f'class="big">{100 * probe.scores["balanced_accuracy"]:.1f}<span' in page
    assert "Chance: 25.0 %." in page
    assert f"<dd>{probe.n_test}</dd><dt>windows tested, each by a probe trained on {probe.n_train} windows of" in page
    assert (f"<dd>{len(windows)}</dd><dt>windows</dt>" in page) == (probe.n_test != len(windows))
    assert "a pattern over channels, frequencies and time; " in page
    explained = 1 - (1 - contents.fit) ** 2
    assert f"<dd>{100 * explained:.1f} %</dd><dt>of the variation explained" in page
    assert f"accuracy {100 * probe.scores['accuracy']:.1f} % (majority class" in page


@pytest.mark.parametrize(("people", "folds", "repeats"), [(6, 6, 1), (30, 5, 2)])
def test_evaluate_and_the_report_have_the_same_numbers(tmp_path, windows, people, folds, repeats):
    subject = [f"S{number % people}" for number in range(300)]
    np.savez(tmp_path / "w.npz", X=windows.X, y=windows.label, subject=subject, fs=64)
    own = open_windows(tmp_path / "w.npz")
    model = paper(SALS, rank=2, tensorize=STFT(64, 32), max_sweeps=1).fit(own)
    model.save(tmp_path / "m.safetensors")
    words = ["evaluate", str(tmp_path / "m.safetensors"), str(tmp_path / "w.npz"), "--probe", "plain", "--transductive"]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    probe = score_probe(load(tmp_path / "m.safetensors"), own, 0, "plain", transductive=True)
    assert (found["folds"], found["repeats"]) == (folds, repeats)
    assert probe.how == (
        "leave-one-subject-out cross-validation"
        if repeats == 1
        else "5-fold cross-validation by subject, repeated 2 times"
    )
    assert {name: found[name] for name in probe.scores} == pytest.approx(probe.scores)
    assert found["over_subjects"] == pytest.approx(probe.over_subjects)
    # Every window counts once, whatever the number of repeats.
    assert ("windows, mean of 2 repeats" in CliRunner().invoke(app, words).stdout) == (repeats == 2)
    counts = plot.confusion(probe.y, probe.predicted, own.classes).data[0].customdata
    assert found["confusion"] == counts.tolist()
    assert counts.sum(axis=1).tolist() == [found["per_class"][name]["windows"] for name in own.classes]


def test_an_interval_resamples_subjects_and_lies_around_the_balanced_accuracy():
    y = np.repeat([0, 1], [900, 100])
    right = np.concatenate([np.ones(900, bool), np.arange(100) < 50])
    low, high = interval(right, None, y)
    assert low < 0.75 < high < 0.95
    assert interval(right)[0] > 0.93
    people = np.repeat(np.arange(10), 50)
    right = np.random.default_rng(0).uniform(size=500) < np.linspace(0.4, 1.0, 10)[people]
    low, high = interval(right, people)
    narrow_low, narrow_high = interval(right)
    assert high - low > 2 * (narrow_high - narrow_low)
    # Of windows one by one, it is about that of the binomial distribution.
    share = right.mean()
    assert narrow_high - narrow_low == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / 500), rel=0.1)


def test_names_from_the_data_are_escaped_in_the_page_itself(windows):
    bad = "</script><script>alert(1)</script>"
    hostile = Windows(
        windows.X,
        windows.fs,
        channels=[f"{bad}{number}" for number in range(8)],
        subject=[f"{bad}{s}" for s in windows.subject],
        recording=[f"{bad}{s}" for s in windows.subject],
        label=windows.label,
        classes=[f"{bad}{number}" for number in range(4)],
    )
    model = paper(SALS, rank=2, tensorize=STFT(64, 32), max_sweeps=1).fit(hostile)
    origin = {"command": bad, "commit": bad, "sha256": {bad: bad}}
    page = render(model, hostile, title=bad, origin=origin, transductive=True)
    assert "<script>alert" not in page
    assert page.count("<script") == 3 == page.count("</script>")
    for trace in content(page)["figures"]["map pca class"]["data"]:
        assert "<script" not in trace["name"] + "".join(trace["text"])


def test_the_command_writes_a_report_from_the_model_alone_and_refuses_impossible_ones(tmp_path, model):
    model.save(tmp_path / "m.safetensors")
    np.savez(tmp_path / "other.npz", X=np.ones((9, 2, 300)), fs=64)
    words = ["report", str(tmp_path / "m.safetensors"), "-o", str(tmp_path / "r.html")]
    for option, name, message in (
        ("-o", "nowhere/r.html", "--out must be in an existing folder"),
        ("--data", "other.npz", "must have shape"),
    ):
        found = CliRunner().invoke(app, [*words, option, str(tmp_path / name)])
        assert found.exit_code == 1
        assert message in found.output
        assert not list(tmp_path.glob("*.html"))
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "Open it in a browser" in found.stdout
    page = (tmp_path / "r.html").read_text()
    assert "Created from the model alone" in page
    assert f"<dt>polyadic</dt><dd>{__version__}</dd>" in page
