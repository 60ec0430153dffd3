"""What the report says, against the numbers it is made of; how it behaves is for the browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import polyadic
from problems import paper
from typer.testing import CliRunner

from polyadic import ATD, SALS, report
from polyadic.augment import Jitter
from polyadic.cli import app
from polyadic.data import Header, StoreWriter, Windows, WindowStore, split, synthetic
from polyadic.data.recordings import Recording
from polyadic.errors import PolyadicError
from polyadic.evaluate import cross_validate, probe_accuracy
from polyadic.report.citation import AUTHORS, TITLE, VENUE, YEAR
from polyadic.report.contents import collect_contents, headline, methods_of
from polyadic.report.page import render
from polyadic.report.scores import interval, score_probe
from polyadic.spectral import STFT


@pytest.fixture(scope="module")
def windows():
    return synthetic(300)


@pytest.fixture(scope="module")
def model(windows):
    views = {"tensorize": STFT(64, 32), "augment": Jitter(0.05)}
    return paper(ATD, rank=4, max_sweeps=3, **views).fit(next(iter(split(windows))))


def content(page: str) -> dict:
    packed = re.search(r'id="figures">([^<]*)</script>', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


# --------------------------------------------------------------------- content


def test_shares_are_the_energies_of_the_components(model, windows):
    contents = collect_contents(model, windows)
    Z = model.transform(windows)
    energies = []
    for r in range(4):
        alone = np.zeros_like(Z)
        alone[:, r] = Z[:, r]
        energies.append(np.sum(model.inverse_transform(alone).astype(np.float64) ** 2))
    shares = [component.share for component in contents.components]
    assert shares == pytest.approx(100 * np.array(energies) / np.sum(energies), rel=1e-4)
    assert sum(shares) == pytest.approx(100)


def test_means_by_class_and_the_windows_that_express_a_component_most(model, windows):
    contents = collect_contents(model, windows)
    Z = model.transform(windows).astype(np.float64)
    for r, component in enumerate(contents.components):
        assert component.means == pytest.approx([Z[windows.label == c, r].mean() for c in range(4)])
        scaled = (Z[:, r] - Z[:, r].mean()) / Z[:, r].std()
        assert component.levels == pytest.approx([scaled[windows.label == c].mean() for c in range(4)])
        size = np.abs(Z[:, r])
        assert size[component.windows] == pytest.approx(np.sort(size)[::-1][:3])
    assert contents.sample.fit == pytest.approx(model.score(windows))


def test_a_large_set_is_looked_at_evenly(model, monkeypatch, windows):
    monkeypatch.setattr("polyadic.report.contents._SAMPLED", 50)
    sample = collect_contents(model, windows).sample
    assert (len(sample.Z), sample.total) == (50, 300)
    assert np.diff(sample.windows.source(np.arange(50))).max() <= 7


def test_the_probe_is_cross_validated_on_the_subjects_that_the_model_has_not_seen(model, windows):
    probe = score_probe(model, windows, None, 0)
    part = split(windows, "subject")
    rows = np.sort(np.concatenate([part.train, part.test]))
    expected = cross_validate(model, windows, 5, rows=rows)
    assert probe.scores["balanced_accuracy"] == pytest.approx(expected.balanced_accuracy)
    assert probe.scores["accuracy"] == pytest.approx(expected.accuracy)
    assert [windows.classes[code] for code in probe.predicted] == expected.predicted[0].tolist()
    assert (probe.protocol, probe.how, probe.seen) == ("subject", "5 folds of subjects", False)
    assert probe.features == expected.features
    assert probe.reason == expected.reasons[0]
    assert probe.n_test == len(rows)
    assert probe.by_people
    assert probe.groups == len(set(windows.subject[rows]))
    assert probe.low <= probe.scores["balanced_accuracy"] <= probe.high
    row = probe.classes[2]
    mine, called = probe.y == 2, probe.predicted == 2
    assert (row["recall"], row["precision"]) == pytest.approx((called[mine].mean(), mine[called].mean()))
    # All labels of the first fold stand at the end of the curve, with a value for each fold.
    assert len(list(probe.curve.values())[-1]) == 5
    assert np.mean(list(probe.curve.values())[-1]) == pytest.approx(100 * expected.accuracy, abs=5)
    assert list(probe.curve) == sorted(probe.curve)


def test_a_random_split_is_scored_by_the_probe_that_is_asked_for(model, windows):
    part = split(windows, "paper", seed=2)
    Z = model.transform(windows).astype(np.float64)
    halves = (Z[part.train], windows.label[part.train], Z[part.test], windows.label[part.test])
    for kind in ("plain", "standardised"):
        probe = score_probe(model, windows, "paper", 2, kind)
        assert probe.scores["accuracy"] == pytest.approx(probe_accuracy(kind, *halves))
        assert probe.curve[probe.n_train] == pytest.approx([100 * probe.scores["accuracy"]])
        assert (probe.reason, probe.how) == ("", f"one split, hash {part.hash}")
    assert "the fixed choice, because 30 labels are too few" in score_probe(model, windows, "paper", 2).reason


def test_an_interval_of_the_balanced_accuracy_lies_around_it():
    y = np.repeat([0, 1], [900, 100])
    right = np.concatenate([np.ones(900, bool), np.arange(100) < 50])
    low, high = interval(right, None, y)
    assert low < 0.75 < high < 0.95
    assert interval(right)[0] > 0.93


def test_an_interval_by_people_is_wider_than_one_by_windows():
    people = np.repeat(np.arange(10), 50)
    right = np.random.default_rng(0).uniform(size=500) < np.linspace(0.4, 1.0, 10)[people]
    low, high = interval(right, people)
    narrow_low, narrow_high = interval(right)
    assert high - low > 2 * (narrow_high - narrow_low)
    # Of windows one by one, it is about that of the binomial distribution.
    share = right.mean()
    assert narrow_high - narrow_low == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / 500), rel=0.1)


@pytest.mark.long
def test_what_the_features_were_learned_from_is_said(model, windows):
    assert "Features were learned once, from other subjects than those tested." in render(model, windows)
    everything = paper(SALS, rank=2, tensorize=STFT(64, 32), max_sweeps=1).fit(windows)
    page = render(everything, windows)
    assert "Features were learned anew in every fold, without the test subjects." in page
    assert 'class="note"' not in page
    assert "Transductive: features were not refitted" in render(everything, windows, transductive=True)
    assert "does not say which windows" in render(everything, windows, protocol="paper")
    assert "a part of another split" in render(model, windows, protocol="paper", seed=1)
    part = split(windows, "paper")
    own = paper(SALS, rank=2, tensorize=STFT(64, 32), max_sweeps=1).fit(next(iter(part)))
    assert "were held out when the model was fitted" in render(own, windows, protocol="paper")


def test_labels_that_no_probe_can_learn_are_said(model, windows):
    one = Windows(windows.X, windows.fs, subject=["only"] * 300, label=windows.label)
    page = render(model, one)
    assert "no probe could be trained: at least two subjects must have labels, but only" in page
    assert 'id="probe"' not in page


def result(protocols=("subject",)) -> dict:
    rows = [
        {"method": name, "protocol": protocol, "seed": seed, "standardised": 90.0 + seed + bonus, "plain": 80.0}
        for protocol, bonus in zip(protocols, (0, 5), strict=False)
        for seed in range(3)
        for name in ("ATD", "SALS")
    ]
    numbers = {"parameters": 432.0, "seconds_per_sweep": 0.5, "sweeps": 3.0, "fit": 0.4}
    summary = [
        {"method": name, "protocol": protocol, "standardised": 91.0 + bonus, "plain": 80.0, **numbers}
        for protocol, bonus in zip(protocols, (0, 5), strict=False)
        for name in ("ATD", "SALS")
    ]
    return {"rows": rows, "summary": summary, "seeds": [0, 1, 2], "command": "polyadic run"}


def test_intervals_over_seeds_are_students(model, windows):
    first = methods_of(result())[0]
    assert (first.low, first.high) == pytest.approx((91 - 4.302653 / np.sqrt(3), 91 + 4.302653 / np.sqrt(3)))
    best = headline(methods_of(result()), 3, None)
    assert (best.accuracy, best.low) == (91.0, first.low)
    assert "mean over 3 seeds" in best.words


def test_the_models_own_method_and_protocol_come_first(model, windows):
    probe = score_probe(model, windows, None, 0)
    found = methods_of(result(("paper", "subject")), "SALS", probe)
    assert [(m.protocol, m.name) for m in found][:2] == [("subject", "SALS"), ("subject", "ATD")]
    assert found[0].accuracy == 96.0
    assert found[0].measure == "accuracy, standardised probe"
    assert found[0].other == ("accuracy, plain probe", 80.0)
    page = render(model, windows, result=result(("paper", "subject")))
    assert page.index("Protocol subject") < page.index("Protocol paper")


def test_a_result_that_is_none_is_refused(model):
    with pytest.raises(PolyadicError, match=r"results\.json"):
        render(model, result={"summary": [{"method": "ATD"}], "rows": [], "seeds": []})


def test_what_was_skipped_in_a_store_and_why_is_told(tmp_path, windows, model):
    header = Header(fs=64.0, channels=tuple("abcdefgh"), units=("",) * 8, length=256, dtype="float32")
    with StoreWriter(tmp_path / "s", header) as writer:
        for number in range(3):
            signal = np.concatenate(list(windows.X[number * 5 : number * 5 + 5]), axis=1)
            signal[2] = 0.0
            recording = Recording(
                f"r{number}", f"s{number}", 64.0, header.channels, header.units, signal, np.ones(8), np.zeros(8)
            )
            writer.add(recording, np.arange(5) * 256, np.full(5, -1))
        writer.skip("broken <night>", "the file is cut short")
    page = render(model, WindowStore(tmp_path / "s"))
    assert "<code>broken &lt;night&gt;</code>: the file is cut short" in page
    assert "3 recordings, 1 skipped" in page
    assert "<strong>flat</strong> in some recordings: c (3)" in page


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
    page = render(model, hostile, title=bad, origin={"command": bad, "commit": bad, "sha256": {bad: bad}})
    assert "<script>alert" not in page
    assert page.count("<script") == 3 == page.count("</script>")
    for trace in content(page)["figures"]["map pca class"]["data"]:
        assert "<script" not in trace["name"] + "".join(trace["text"])


def test_the_citation_is_that_of_the_file():
    cff = yaml.safe_load((Path(__file__).parent.parent / "CITATION.cff").read_text())
    paper = cff["references"][0]
    assert (paper["title"], paper["year"], paper["collection-title"]) == (TITLE, YEAR, VENUE)
    assert [(author["family-names"], author["given-names"]) for author in paper["authors"]] == list(AUTHORS)


@pytest.mark.long
def test_the_same_model_gives_the_same_page(model, windows):
    assert render(model, windows) == render(model, windows)


@pytest.mark.parametrize("rank", [64])
@pytest.mark.long
def test_many_components_of_long_windows_stay_below_6_mb(tmp_path, rank):
    rng = np.random.default_rng(0)
    n = 1100
    windows = Windows(rng.normal(size=(n, 12, 1000)).astype(np.float32), 100.0, label=np.arange(n) % 5)
    model = paper(SALS, rank=rank, tensorize=STFT(128, 128), max_sweeps=1).fit(windows)
    report.write(tmp_path / "large.html", model, windows)
    assert (tmp_path / "large.html").stat().st_size < 6_000_000


# ---------------------------------------------------------------- command line


@pytest.mark.long
def test_the_command_writes_a_report_that_says_where_it_is_from(tmp_path, model, windows):
    model.save(tmp_path / "m.safetensors")
    np.savez(tmp_path / "w.npz", X=windows.X, y=windows.label, subject=windows.subject)
    (tmp_path / "results.json").write_text(json.dumps(result()))
    arguments = ["report", str(tmp_path / "m.safetensors"), "--data", str(tmp_path / "w.npz")]
    arguments += ["-o", str(tmp_path / "r.html"), "--results", str(tmp_path / "results.json"), "--json"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    page = (tmp_path / "r.html").read_text()
    assert json.loads(found.stdout) == {"report": "r.html", "bytes": len(page.encode())}
    assert '<h1 id="result-h">w.npz</h1>' in page
    assert "frequency (Hz)" in page
    assert "95 % interval" in page
    assert str(tmp_path) not in page
    assert hashlib.sha256((tmp_path / "m.safetensors").read_bytes()).hexdigest() in page


def test_the_command_does_with_the_model_alone(tmp_path, model):
    model.save(tmp_path / "m.safetensors")
    found = CliRunner().invoke(app, ["report", str(tmp_path / "m.safetensors"), "-o", str(tmp_path / "r.html")])
    assert found.exit_code == 0, found.output
    assert "open it in a browser" in found.stdout
    assert "Made from the model alone" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "nowhere/r.html"), "--out must lie in an existing folder"),
        (("--results", "text.json"), "is no JSON"),
        (("--results", "list.json"), "holds no object"),
        (("--data", "other.npz"), "must have shape"),
    ],
)
def test_what_cannot_be_reported_is_said(tmp_path, model, arguments, message):
    model.save(tmp_path / "m.safetensors")
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    np.savez(tmp_path / "other.npz", X=np.ones((9, 2, 300)), fs=64)
    found = polyadic("report", "m.safetensors", *arguments, cwd=tmp_path, code=1)
    assert message in " ".join(found.stderr.split())
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.long
def test_a_run_without_plotly_says_so_and_writes_all_else(tmp_path):
    code = "import sys; sys.modules['plotly'] = None\nfrom polyadic.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "--seeds", "1", "--sweeps", "1", "--quiet", "--out", "out"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert found.returncode == 0, found.stderr
    assert "No report.html: plots need plotly" in " ".join(found.stdout.split())
    assert (tmp_path / "out" / "results.md").exists()
    assert not (tmp_path / "out" / "report.html").exists()
