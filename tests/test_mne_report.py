"""polyadic's sections in an `mne.Report`, saved as a page."""

from __future__ import annotations

import pytest

from polyadic import CPD
from polyadic.data import synthetic_nights
from polyadic.evaluate import cross_validate
from polyadic.report import add_to_mne

mne = pytest.importorskip("mne")


def test_a_report_of_mne_has_score_components_and_classes(tmp_path):
    windows = synthetic_nights(4, 20, n_dead=0)
    model = CPD(rank=2, max_sweeps=5).fit(windows)
    scores = cross_validate(model, windows, folds=2)
    report = mne.Report(title="nights", verbose=False)
    add_to_mne(report, model, windows, scores=scores)
    report.save(tmp_path / "report.html", open_browser=False, verbose=False)
    page = (tmp_path / "report.html").read_text("utf-8")
    for title in ("Score on left-out subjects", "Components", "Level by class", "Component 2 by class"):
        assert title in page
    assert f"{100 * scores.balanced_accuracy:.1f}" in page
    assert page.count('class="plotly-graph-div"') == 4
