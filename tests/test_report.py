"""The content of the report compared with its data; `test_report_browser` tests its behaviour."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import warnings
import xml.etree.ElementTree as ElementTree
from copy import copy
from dataclasses import replace
from functools import partial

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
from polyadic.data import Windows, synthetic, synthetic_nights
from polyadic.data.readers.arrays import open_windows
from polyadic.evaluate import cross_validate
from polyadic.explain import Components, compare, expression, level, spectra
from polyadic.explain.expression import profiles, with_bases
from polyadic.explain.replicability import Replicability
from polyadic.explain.spectra import effect_sizes, shares
from polyadic.report.components import describe_components, picture, sentence, strongest_class
from polyadic.report.contents import collect_contents
from polyadic.report.page import render
from polyadic.report.probe import interval, score_probe, thinned
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
    return paper(ATD, rank=4, max_sweeps=3, **views).fit(windows)


@pytest.fixture(scope="module")
def probe(model, windows):
    return score_probe(model, windows, transductive=True)


@pytest.fixture
def simple(monkeypatch):
    """Probes of reports have fixed settings, which takes a fraction of the time."""
    monkeypatch.setattr("polyadic.report.probe.cross_validate", partial(cross_validate, probe="plain"))


@pytest.fixture(scope="module")
def contents(model, windows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyadic.report.probe.cross_validate", partial(cross_validate, probe="plain"))
        return collect_contents(model, windows, transductive=True)


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
    # Without subjects there is no probe, which takes most of the time.
    windows = Windows(windows.X, windows.fs, label=windows.label)
    contents = collect_contents(plain, windows)
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
    page = " ".join(render(plain, windows).split())
    assert "shown: 4. Each is found again in at least half of 4 refits on halves of the 12 subjects" in page
    assert "at rank 6; of its components, 2 did not replicate or nearly copied another one." in page
    assert "Bands contain 90 % of bootstrap samples of the subjects." in page
    drawn = content(page)
    assert drawn["component-1-classes"]["layout"]["xaxis"]["title"]["text"] == "relative expression (dB)"
    assert len(drawn["component-1-1"]["data"]) == 3  # a band and a line
    assert drawn["level"]["layout"]["xaxis"]["title"]["text"] == "level (dB)"
    none = copy(plain)
    none.components_ = Components(None, 0, 0, {1: 0}, 12, None)
    assert "No component replicates in halves of the 12 subjects, so none is shown" in render(none)


def test_components_of_nights_name_band_channels_and_stage_of_each_rhythm():
    nights = synthetic_nights(n_dead=0)
    model = CPD(rank=8).fit(nights)
    about = model.coefficients(nights), expression(model, nights, relative=True), nights.label
    described = describe_components(model, model.axes(nights), *about)
    told = " ".join(sentence(component, list(nights.classes)) for component in described)
    rhythms = {"alpha": ("10", "wake"), "delta": ("1", "deep"), "sigma": ("13", "light")}
    for name, (hertz, stage) in rhythms.items():
        assert re.search(rf"EMG; {name}, {hertz}\.\d Hz [^;]+; throughout\. Highest in {stage} ", told)
    assert re.search(r" EMG; beta, 2\d\.\d Hz [^;]+; throughout\. Highest in wake ", told)


def test_a_comparison_comes_first_and_few_subjects_are_no_findings(plain, windows):
    group = np.where(windows.label < 2, "low", "high")
    compared = compare(plain, windows, group, paired=True, permutations=99)
    page = " ".join(render(plain, Windows(windows.X, windows.fs), comparison=compared).split())
    assert html.unescape(page).index(compared.words()) < page.index("so there is no score")
    assert content(page)["groups"]["data"]
    few = np.isin(windows.subject, np.unique(windows.subject)[:3])
    compared = compare(plain, windows[few], group[few], paired=True, permutations=9)
    page = " ".join(render(plain, comparison=compared).split())
    assert "3 pairs. Too few for a test or an interval" in page
    assert "95 % interval" not in page


def place(text: str, weights: list[float], step: float = 0.5) -> str:
    axis = Axis(text, text, np.arange(len(weights)) * step, {"time": "s", "frequency": "Hz"}[text])
    return spectra.place(axis, np.array(weights), [axis])


def test_places_name_the_peak_its_width_and_other_peaks_unless_the_profile_is_flat():
    assert place("time", [1.0, 0.98, 1.0, 0.99]) == "throughout"
    assert place("frequency", [1.0, 0.98, 1.0, 0.99]) == "all frequencies"
    assert place("time", [0.0] * 3 + [1.0] + [0.0] * 6) == "1.5 s"
    assert place("frequency", [0.0] * 10 + [0.6, 1.0, 0.6] + [0.0] * 10) == "5.5 Hz (5.0–6.0)"
    assert place("time", [0.0, 0.0, 1.0], step=16) == "32 s"
    axis = Axis("channel", "channel", np.arange(5.0), "", ("ax", "ay", "az", "gx", "gy"))
    weights = np.array([1.0, 0.8, 0.6, 0.7, 0.1])
    assert [spectra.place(axis, row, [axis]) for row in (weights, np.ones(5))] == ["all but gy", "all channels"]
    assert spectra.place(axis, np.array([1.0, 0.8, 0.1, 0.1, 0.1]), [axis]) == "ax, ay"
    assert place("frequency", [0.0, 0.0, 0.6, 1.0, 0.0, 0.0], step=25 / 16) == "4.7 Hz (3.1–4.7)"  # coarse bins
    assert place("time", [0.0, 0.8, 0.0, 0.0, 1.0, 0.0, 0.6, 0.6, 0.0, 0.4]) == "2.0 s and 2 more"


def test_components_that_do_not_replicate_come_last_and_are_grey(model, unlabelled):
    largest = int(np.argmax(shares(model, np.asarray(model.coefficients(unlabelled)))))
    lost = np.arange(4) == largest
    checked = Replicability(np.where(lost, 0.85, 0.99), np.where(lost, 0.4, 1.0), refits=10)
    alone = copy(model)
    alone.replicability_ = checked
    page = render(alone, unlabelled)
    rows = re.findall(r'<tr data-component="(\d)"[^>]*?(class="[^"]*")?>', page)
    assert rows[-1] == (str(largest + 1), 'class="gone"')
    assert [kind for _, kind in rows[:-1]] == [""] * 3
    assert "3 of 4 components replicate: they are found again in at least half of 10 refits" in page
    assert "The others are grey" in page
    assert "components are sorted by share times match" in page
    assert "has not been checked" in render(model)


def test_the_probe_is_cross_validated_by_subject(model, windows, probe):
    expected = cross_validate(model, windows, transductive=True)
    assert probe.result.to_dict() == expected.to_dict()
    assert probe.how == "5-fold cross-validation by subject, repeated 2 times"
    assert probe.result.subjects == len(set(windows.subject))
    assert probe.interval[0] < expected.balanced_accuracy < probe.interval[1]


def test_the_headline_has_an_interval_over_subjects(model, windows, probe, contents):
    low, high = (100 * end for end in probe.interval)
    ends = f"95 % interval {low:.1f} to {high:.1f} %"
    assert probe.headline.startswith(f"{ends}, by resampling {probe.result.subjects} subjects; 5-fold")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyadic.report.page.collect_contents", lambda *_: contents)
        page, probe = " ".join(render(model, windows).split()), contents.probe
    result = probe.result
    assert f'class="big">{100 * result.balanced_accuracy:.1f}<span' in page
    assert "Chance: 25.0 %." in page
    assert f"<dd>{result.windows}</dd><dt>windows tested</dt>" in page
    assert f"<dd>{len(windows)}</dd><dt>windows</dt>" in page
    explained = 1 - (1 - contents.fit) ** 2
    assert f"<dd>{100 * explained:.1f} %</dd><dt>of the variation explained" in page
    assert f"accuracy {100 * result.accuracy:.1f} % (majority class" in page


@pytest.mark.parametrize(("people", "folds", "repeats"), [(6, 6, 1), (30, 5, 2)])
def test_evaluate_and_the_report_have_the_same_numbers(tmp_path, windows, people, folds, repeats):
    subject = [f"S{number % people}" for number in range(300)]
    np.savez(tmp_path / "w.npz", X=windows.X, y=windows.label, subject=subject, fs=64)
    own = open_windows(tmp_path / "w.npz")
    model = paper(SALS, rank=2, tensorize=STFT(64, 32), max_sweeps=1).fit(own)
    model.save(tmp_path / "m.safetensors")
    words = ["evaluate", str(tmp_path / "m.safetensors"), str(tmp_path / "w.npz"), "--transductive"]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    probe = score_probe(load(tmp_path / "m.safetensors"), own, 0, transductive=True)
    assert (found["folds"], found["repeats"]) == (folds, repeats)
    assert probe.how == (
        "leave-one-subject-out cross-validation"
        if repeats == 1
        else "5-fold cross-validation by subject, repeated 2 times"
    )
    for name in ("balanced_accuracy", "accuracy", "macro_f1", "kappa", "over_subjects"):
        assert found[name] == pytest.approx(getattr(probe.result, name))
    # Every window counts once, whatever the number of repeats.
    assert ("mean of 2 repeats" in CliRunner().invoke(app, words).stdout) == (repeats == 2)
    counts = plot.confusion(probe.result.confusion, probe.result.classes).data[0].customdata
    assert found["confusion"] == counts.tolist()
    assert counts.sum(axis=1).tolist() == [found["per_class"][name]["windows"] for name in own.classes]


def test_accuracy_without_channels_is_that_of_predictions_by_probes_that_did_not_train_on_the_subject(simple):
    # Two classes that differ on channel 0 alone, and on no other.
    rng = np.random.default_rng(0)
    label, X = np.arange(120) % 2, rng.normal(size=(120, 4, 64))
    X[label == 1, 0] *= 5
    one = Windows(X, fs=64.0, label=label, subject=np.repeat(["a", "b", "c", "d"], 30))
    model = CPD(rank=2, max_sweeps=5).fit(one)
    probe = score_probe(model, one, 0, transductive=True)
    assert list(probe.without) == [0, 1, 2]  # a quarter and a half of four
    assert probe.n_without == 120
    assert probe.without[0] == pytest.approx(probe.result.balanced_accuracy) == pytest.approx(1, abs=0.02)
    # The channel is missing in a quarter and in a half of the windows, and the others say nothing.
    assert probe.without[1] == pytest.approx(1 - 0.25 / 2, abs=0.08)
    assert probe.without[2] == pytest.approx(1 - 0.5 / 2, abs=0.08)
    page = render(model, one, transductive=True)
    drawn = content(page)["missing"]
    assert drawn["data"][0]["x"] == [0, 1, 2]
    assert "Balanced accuracy on 120 windows of 4 left-out subjects" in page


def test_an_interval_resamples_subjects_and_lies_around_the_balanced_accuracy():
    y = np.repeat([0, 1], [900, 100])
    right = np.concatenate([np.ones(900, bool), np.arange(100) < 50])
    low, high = interval(right, np.arange(1000), y)
    assert low < 0.75 < high < 0.95
    people, one = np.repeat(np.arange(10), 50), np.zeros(500)
    right = np.random.default_rng(0).uniform(size=500) < np.linspace(0.4, 1.0, 10)[people]
    low, high = interval(right, people, one)
    narrow_low, narrow_high = interval(right, np.arange(500), one)
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
    for trace in content(page)["map class"]["data"]:
        assert "<script" not in trace["name"] + "".join(trace["hovertext"])


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
    page = (tmp_path / "r.html").read_text()
    assert "Created from the model alone" in page
    assert f"<dt>polyadic</dt><dd><code>{__version__}</code></dd>" in page


@pytest.mark.filterwarnings("ignore:dead or stuck channels")
def test_data_quality_names_channels_that_are_missing_or_dead_and_the_fit_is_of_windows_from_all_of_the_data(
    windows, monkeypatch
):
    monkeypatch.setattr("polyadic.report.contents._SCORED", 30)
    X = windows.X.copy()
    X[:30, 2] = 1.0
    broken = Windows(X, windows.fs, channels=[f"c{number}" for number in range(8)], recording=["r1"] * len(X))
    fitted = CPD(rank=2, max_sweeps=3).fit(broken)
    contents = collect_contents(fitted, broken)
    assert contents.missing == {"c2": 0.1}
    assert contents.fit == pytest.approx(fitted.score(broken[thinned(np.arange(300), 30)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the page says it, not a warning for each fold
        assert "and those of noise: c2 in 10.0 % of the windows. Recordings: c2: r1 (30 windows)." in render(
            fitted, broken
        )


def test_models_of_the_paper_show_coefficients_and_say_so(model, windows, contents):
    Z = model.coefficients(windows).astype(np.float64)
    for component in contents.components:
        own = Z[:, component.number - 1]
        means = [own[windows.label == c].mean() for c in range(4)]
        assert component.means == pytest.approx((np.array(means) - own.mean()) / own.std())  # in SD
        assert component.effects == pytest.approx(effect_sizes(own, windows.label).tolist())
        # Signs are arbitrary: most of a component is the largest coefficient of either sign.
        assert np.abs(own)[component.windows] == pytest.approx(np.sort(np.abs(own))[::-1][:3])
    assert contents.fit == pytest.approx(model.score(windows))
    assert (contents.unit, contents.quantity) == ("SD", "coefficient")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyadic.report.page.collect_contents", lambda *_: contents)
        assert "Values are coefficients in standard deviations, which may fall" in render(model, windows)


def test_components_that_vary_together_are_named(plain, windows):
    twin = copy(plain)
    own = plain.components_.model
    doubled = with_bases(own, [factor[:, [0, 0, 1]] for factor in own.factors_], Replicability([1] * 3, [1] * 3, 4))
    twin.components_ = Components(doubled, 3, 0, {3: 3}, 12, None)
    found = {one.number: one.alike for one in collect_contents(twin, windows[:60], transductive=True).components}
    assert (2 in found[1], 1 in found[2]) == (True, True)


def test_a_component_that_peaks_at_0_hz_is_slow_and_perhaps_an_offset():
    channel = Axis("channel", "channel", np.arange(4.0), "", ("Fz", "Cz", "C3", "C4"))
    frequency = Axis("frequency", "frequency", np.arange(8) * 0.8, "Hz")
    texts = [spectra.place(frequency, np.eye(8)[peak], [channel, frequency]) for peak in (0, 1)]
    assert texts == ["slow, 0.0 Hz, perhaps an offset", "delta, 0.8 Hz"]


def test_a_class_that_has_hardly_more_of_a_component_is_not_called_strongest(model):
    component = collect_contents(model).components[0]
    rare = replace(component, effects=[0.1, -0.9, 0.05, 0.19], means=[0.0, -1.0, 0.0, 0.04])
    assert strongest_class(rare, ["a", "b", "c", "d"]) == "no class"
    assert strongest_class(replace(rare, effects=[0.1, -0.9, 0.05, 0.3]), ["a", "b", "c", "d"]) == "d +0.0 dB, d +0.3"


def test_pictures_are_sound_svg(model, windows):
    heads = Axis("channel", "channel", np.arange(4.0), "", ("Fz", "Cz", "C3", "C4"))
    for axis, factor in [*zip(model.axes(windows), model.factors_, strict=True), (heads, np.ones((4, 1)))]:
        root = ElementTree.fromstring(f"<p>{picture(axis, factor[:, 0])}</p>")
        assert {one.tag for one in root} == {"svg"}


def test_a_timeline_has_the_predictions_for_its_windows(simple, windows):
    order = np.lexsort([np.arange(300), windows.subject.astype(int)])
    place = np.arange(300) - np.searchsorted(windows.subject.astype(int)[order], windows.subject.astype(int)[order])
    start = np.empty(300, int)
    start[order] = 256 * place
    named = Windows(
        windows.X,
        windows.fs,
        subject=windows.subject,
        recording=[f"night {name}" for name in windows.subject],
        start=start,
        label=windows.label,
        classes=["W", "N2", "N3", "R"],
    )
    everything = paper(SALS, rank=2, tensorize=STFT(64, 32), max_sweeps=1).fit(named)
    contents = collect_contents(everything, named, transductive=True)
    assert 1 < len(contents.timelines) <= 12
    x = everything.coefficients(named).astype(np.float64)
    for one in contents.timelines:
        rows = np.flatnonzero(named.recording == one.name)
        rows = rows[np.argsort(named.start[rows])]
        assert np.array_equal(one.windows.start, named.start[rows])
        expected = dict(
            zip(contents.probe.result.rows.tolist(), contents.probe.result.predicted[0].tolist(), strict=True)
        )
        assert one.predicted.tolist() == [expected[row] for row in rows.tolist()]
        # Each window has the probabilities of a probe that was trained without its subject.
        assert one.probability.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert [named.classes[code] for code in one.probability.argmax(axis=1)] == one.predicted.tolist()
        columns = [int(name.removeprefix("component ")) - 1 for name in one.names]
        scaled = (x[rows] - x.mean(axis=0)) / x.std(axis=0)
        assert one.strengths == pytest.approx(scaled[:, columns], abs=1e-3)
    able = [name for name in np.unique(named.recording) if (named.recording == name).sum() >= 8]
    assert contents.recordings == len(able) > len(contents.timelines) == 12
    page = render(everything, named, transductive=True)
    assert f"12 of {len(able)} recordings, evenly spaced." in page
    figure = content(page)["timeline-0"]
    titles = [axis["title"]["text"] for name, axis in figure["layout"].items() if name.startswith("yaxis")]
    assert titles == ["predicted", "true", "probability", ""]
