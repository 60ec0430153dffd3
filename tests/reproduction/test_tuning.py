"""Settings are tuned with the same number of tries for every method, and without the tested subjects."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from paper import tuning
from paper.catalogue import EXPERIMENTS
from paper.methods import family, variant
from paper.runner import Request, experiment_settings, run
from polyadic.augment import Compose, Jitter, Rotate3D
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.presets import preset
from polyadic.spectral import STFT


def quick_settings(tmp_path, name="tune", **words):
    return experiment_settings(Request(name, tmp_path, quick=True, **words), EXPERIMENTS[name])


def official(count=120):
    """Return signals of 12 subjects, 4 of them in the published test part."""
    signals = synthetic(count, n_channels=3, length=64, n_classes=2)
    person = np.arange(count) % 12
    return Windows(signals.X, 64.0, subject=person, label=signals.label, part=np.where(person < 8, "train", "test"))


def test_tuning_never_reads_a_window_of_a_tested_subject(tmp_path, monkeypatch):
    """Windows of tested subjects are replaced by windows that raise an error when they are read."""
    windows = official()
    spoilt = windows.X.copy()
    spoilt[np.isin(windows.subject, ["8", "9", "10", "11"])] = np.nan
    np.savez(
        tmp_path / "w.npz",
        **{f"X_{part}": spoilt[side] for part, side in sides(windows)},
        **{f"y_{part}": windows.label[side] for part, side in sides(windows)},
        **{f"subject_{part}": windows.subject[side].astype(int) for part, side in sides(windows)},
        fs=64,
    )
    import paper.runner as runner

    monkeypatch.setattr(runner, "preset", small_preset)
    names = ("ATD", "UMLDA", "Hand")
    request = Request("tune", tmp_path, "har", tmp_path / "w.npz", epochs=1, methods=names, tries=1)
    result = run(request, EXPERIMENTS["tune"], quiet=True)
    assert not [row for row in result["rows"] if "failed" in row]
    with pytest.raises(PolyadicError, match="must be finite"):
        run(replace(request, name="table2", methods=("Hand",)), EXPERIMENTS["table2"], quiet=True)


def sides(windows):
    person = windows.subject.astype(int)
    return ("train", person < 8), ("test", person >= 8)


def small_preset(name, fs):
    return replace(
        preset(name),
        tensorize=STFT(16, 8),
        augment=Compose([Jitter(0.1), Rotate3D([(0, 1, 2)])]),
        parameters={"rank": 3, "max_sweeps": 1},
    )


def test_every_method_of_the_main_comparison_has_the_same_number_of_tries(tmp_path):
    many = replace(quick_settings(tmp_path), tries=12, augment=Compose([Jitter(0.1), Rotate3D([(0, 1, 2)])]))
    variants = tuning.variants_to_try(many)
    counts = {name: sum(one.method == name for one in variants) for name in tuning.SPACES}
    sizes = {one.method: one.labels["of"] for one in variants}
    assert {family(one.method) for one in EXPERIMENTS["table2"].variants(many)} == {family(n) for n in counts}
    for name, count in counts.items():
        assert count == min(12, sizes[name]), name
    assert {name for name, size in sizes.items() if size < 12} == {"Hand", "MiniRocket"}
    assert counts["ATD"] == counts["SimCLR-32"] == 12


def test_the_score_of_a_try_is_over_all_held_out_subjects(tmp_path):
    """Compare with a plain loop: each half of the held-out subjects trains the probe for the other."""
    from polyadic.evaluate.probe import make_probe as probe

    inner = quick_settings(tmp_path)
    one = tuning.variants_to_try(inner)[0]
    assert one.method == "SimCLR-32"
    row = tuning.run_try(one, inner, 0)[0]
    part = inner.split_for("subject", 0)
    unlabelled, *halves = part
    model = variant("SimCLR-32").build(inner, 0).fit(unlabelled)
    right = total = 0
    for train, test in (halves, halves[::-1]):
        fitted = probe("standardised").fit(model.transform(train), train.label)
        right += int((fitted.predict(model.transform(test)) == test.label).sum())
        total += len(test)
    assert row["standardised"]["accuracy"] == pytest.approx(right / total)
    assert row["n_test"] == total


def test_settings_are_chosen_by_their_gain_less_half_its_standard_error_over_subjects():
    def row(number, shares, **more):
        accuracy = {"accuracy": sum(shares)}
        scores = {"standardised": accuracy, "plain": accuracy, "settings": {"alpha": number}}
        return {"method": "SALS", "try": number, "shares": shares, **scores, **more}

    steady, lucky = [0.22, 0.22, 0.22, 0.22], [0.2, 0.2, 0.2, 0.3]
    rows = [row(0, [0.2] * 4), row(1, lucky), row(2, steady)]
    result = {"rows": rows, "dataset": "d", "command": "c", "date": "t", "commit": "h"}
    assert tuning.best_settings(result)["settings"]["SALS"] == {"alpha": 2}
    for entry in rows:
        del entry["shares"]  # as in early files
    assert tuning.best_settings(result)["settings"]["SALS"] == {"alpha": 1}


def test_the_best_try_of_each_method_is_chosen_and_the_comparison_takes_it(tmp_path):
    found = run(Request("tune", tmp_path, quick=True, methods=("SALS", "SimCLR-32", "Hand")), EXPERIMENTS["tune"], True)
    file = tmp_path / "tune-synthetic.settings.json"
    chosen = json.loads(file.read_text())
    for name in ("SALS", "SimCLR-32", "Hand"):
        rows = [row for row in found["rows"] if row["method"] == name]
        gaps = np.array([np.subtract(row["shares"], rows[0]["shares"]) for row in rows])
        assert [sum(row["shares"]) for row in rows] == pytest.approx([row["standardised"]["accuracy"] for row in rows])
        gains = gaps.sum(axis=1) - 0.5 * np.sqrt(gaps.shape[1]) * gaps.std(axis=1, ddof=1)
        best = rows[int(np.argmax(gains))]
        assert chosen["held_out"][family(name)]["standardised"] == best["standardised"]["accuracy"]
        assert chosen["tries"][family(name)] == len(rows)
    chosen["settings"] = {"SimCLR": {"window": "rectangular", "temperature": 0.1}, "SALS": {"alpha": 0.5}}
    file.write_text(json.dumps(chosen))
    tuned = quick_settings(tmp_path, "table2", tuned=file)
    for name in ("SimCLR-32", "SimCLR-128"):
        model = variant(name).build(tuned, 0)
        assert (model.tensorize.window, model.temperature) == ("rectangular", 0.1)
    assert variant("SALS").build(tuned, 0).alpha == 0.5
    assert variant("ATD").build(tuned, 0).alpha == 1e-3
    result = run(Request("table2", tmp_path, quick=True, tuned=file, methods=("SALS",)), EXPERIMENTS["table2"], True)
    assert result["settings"]["tuned"] == chosen["settings"]
    plain = run(Request("table2", tmp_path, quick=True, methods=("SALS",)), EXPERIMENTS["table2"], True)
    assert plain["rows"][0]["key"] != result["rows"][0]["key"]
    assert {p.name for p in tmp_path.glob("table2*.json")} == {"table2-synthetic-tuned.json", "table2-synthetic.json"}
