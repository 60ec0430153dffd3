"""Plots, axes and heads: the numbers in the figures against the numbers they show."""

from __future__ import annotations

import numpy as np
import pytest
from problems import paper

from polyadic import ATD, CPD, SALS, plot
from polyadic.augment import Jitter
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.explain import Components
from polyadic.explain.electrodes import position, positions
from polyadic.explain.expression import profiles
from polyadic.plot.electrodes import interpolated
from polyadic.plot.style import short
from polyadic.spectral import STFT

CHANNELS = ["Fz", "C3", "C4", "Pz", "Oz", "EMG"]


@pytest.fixture(scope="module")
def windows():
    signals = synthetic(60, n_channels=6)
    return Windows(
        signals.X,
        signals.fs,
        subject=signals.subject,
        label=signals.label,
        channels=CHANNELS,
        start=np.arange(60) * 256,
        recording=[f"night {s}" for s in signals.subject],
    )


@pytest.fixture(scope="module")
def model(windows):
    views = {"augment": Jitter(0.05), "tensorize": STFT(32, 16, parts="re_im")}
    return paper(ATD, rank=3, max_sweeps=3, **views).fit(windows)


# ----------------------------------------------------------------------- modes


def test_frequencies_are_those_of_the_fourier_transform_and_times_the_middles_of_the_frames(model, windows):
    channel, frequency, time = model.axes(windows)
    assert np.allclose(frequency.positions, np.fft.rfftfreq(32, 1 / 64))
    middles = [np.arange(start, start + 32).mean() / 64 for start in range(0, 256 - 32 + 1, 16)]
    assert np.allclose(time.positions, middles)
    assert (channel.labels, channel.parts) == (tuple(CHANNELS), ("Re", "Im"))
    assert (frequency.unit, time.unit) == ("Hz", "s")
    assert [axis.unit for axis in model.axes()] == ["", "Hz", "s"]  # the model knows the rate and the channels
    assert model.axes()[0].labels == channel.labels
    _, frequency, time = paper(SALS, rank=2, tensorize=STFT(32, 16), max_sweeps=1).fit(windows.X).axes()
    assert (frequency.unit, time.unit) == ("cycles per sample", "samples")
    assert frequency.positions[-1] == 0.5


# ----------------------------------------------------------------------- scalp


def test_electrodes_are_where_the_10_20_system_has_them():
    for left, right in (("Fp1", "Fp2"), ("F7", "F8"), ("C3", "C4"), ("PO7", "PO8"), ("T3", "T4")):
        (x, y), (x_right, y_right) = position(left), position(right)
        assert (x, y) == pytest.approx((-x_right, y_right))
        assert x < 0
    # Tenths and fifths of the arc from nose to neck and from ear to ear, 180° each.
    for number, name in enumerate(["Fpz", "Fz", "Cz", "Pz", "Oz"]):
        assert position(name) == pytest.approx((0, (72 - 36 * number) / 90))
    for number, name in enumerate(["T7", "C3", "Cz", "C4", "T8"]):
        assert position(name) == pytest.approx(((-72 + 36 * number) / 90, 0))
    ring = [np.hypot(*position(name)) for name in ("Fp1", "F7", "T7", "P7", "O1", "Oz", "O2", "P8", "T8", "F8")]
    assert ring == pytest.approx([0.8] * 10, abs=1e-3)
    # F3 is the middle of the arc from Fz to F7: as far from one as from the other.
    assert angle("F3", "Fz") == pytest.approx(angle("F3", "F7"), abs=0.1)
    assert (position("T5"), position("T4")) == (position("P7"), position("T8"))
    others = ("", "EMG", "Fz7", "Tz", "T1", "FP3", "O9", "C7", "II", "V1", "total_acc_x", "Q3")
    assert [name for name in others if position(name) is not None] == []


def angle(first: str, second: str) -> float:
    points = []
    for x, y in (position(first), position(second)):
        radius = np.hypot(x, y)
        polar = np.radians(90 * radius)
        points.append([np.sin(polar) * x / radius, np.sin(polar) * y / radius, np.cos(polar)])
    return float(np.degrees(np.arccos(np.dot(*points))))


def test_maps_go_through_the_electrodes_and_never_beyond_their_values():
    places = np.array(list(positions(tuple(CHANNELS)).values()))
    values = np.array([1.0, -2.0, 0.5, 0.0, 1.5])
    picture = interpolated(places, values, size=201)
    rows = np.rint((places + 1) * 100).astype(int)
    assert picture[rows[:, 1], rows[:, 0]] == pytest.approx(values, abs=0.05)
    assert picture.min() >= -2.0
    assert picture.max() <= 1.5
    line = np.array([[0.0, -0.8], [0.0, -0.4], [0.0, 0.0], [0.0, 0.4], [0.0, 0.4]])
    assert np.isfinite(interpolated(line, values)).all()


# -------------------------------------------------------------------- figures


def test_channels_have_a_head_for_each_part_and_other_channels_are_named_below(model, windows):
    figure = plot.profile(model, 1, 0, windows)
    assert [trace.type for trace in figure.data] == ["heatmap", "scatter", "heatmap", "scatter"]
    parts = model.factors_[0][:, 1].reshape(2, 6)
    for head, part in ((1, 0), (3, 1)):
        assert list(figure.data[head].text) == CHANNELS[:5]
        assert np.allclose(figure.data[head].customdata, parts[part, :5])
    below = f"EMG {parts[0, 5]:.2g} / {parts[1, 5]:.2g}"
    assert [note.text for note in figure.layout.annotations] == ["Re", "Im", below]


def test_profiles_are_the_columns_of_the_bases(model, windows):
    for mode in (1, 2):
        line = plot.profile(model, 2, mode, windows).data[0]
        assert np.allclose(line.y, model.factors_[mode][:, 2])
        assert np.allclose(line.x, model.axes(windows)[mode].positions)
    assert len(plot.components(model, windows).data) == 3 * (2 + 1 + 1)
    assert len(plot.components(model, windows, count=1).data) == 4
    with pytest.raises(PolyadicError, match="r must be below 3"):
        plot.profile(model, 3, 1, windows)


def test_class_means_are_means_and_unlabelled_windows_do_not_count():
    rng = np.random.default_rng(0)
    Z, label = rng.normal(size=(50, 2)), rng.integers(-1, 3, 50)
    trace = plot.class_means(Z[:, 1], label, ["a", "b", "c"]).data[0]
    assert np.allclose(trace.x, [Z[label == code, 1].mean() for code in range(3)])
    assert np.allclose(trace.error_x.array, [Z[label == code, 1].std() for code in range(3)])
    label = np.repeat([0, 1, -1], 2000)
    values = rng.normal(size=6000) + 1.5 * (label == 1)
    assert plot.class_means(values, label, ["W", "N2"]).layout.yaxis.ticktext == ("W, d −1.5", "N2, d +1.5")


def test_non_negative_profiles_are_in_percent_and_have_the_bands_of_components_for_people(windows):
    fitted = CPD(rank=2).fit(windows)
    line = plot.profile(fitted, 1, 1, windows).data[0]
    assert np.allclose(line.y, 100 * profiles(fitted.factors_[1])[:, 1])
    own = CPD(rank=3, nonnegative=True, readout=None).fit(windows)
    bands = [np.stack([0.5 * profiles(factor), 2 * profiles(factor)]) for factor in own.factors_]
    fitted.components_ = Components(own, 4, 1, {4: 3}, 12, bands)
    low, high, line = plot.profile(fitted, 2, 1, windows).data
    assert np.allclose(line.y, 100 * profiles(own.factors_[1])[:, 2])
    assert np.allclose(low.y, 0.5 * line.y)
    assert np.allclose(high.y, 2 * line.y)
    bars = plot.components(fitted, windows).data[0]
    assert np.allclose(bars.y, 100 * profiles(own.factors_[0])[:, 0])
    assert np.allclose(bars.error_y.array, bars.y)
    fitted.components_ = Components(None, 0, 0, {}, 12, None)
    with pytest.raises(PolyadicError, match="no component of this model replicates"):
        plot.components(fitted, windows)


def test_signals_are_plotted_to_scale_with_the_names_of_their_channels(windows):
    figure = plot.signals(windows, [3, 7])
    drawn = np.array([trace.y for trace in figure.data]).reshape(2, 6, -1)
    X = windows.read(np.array([3, 7]))
    for channel in range(6):
        assert np.corrcoef(drawn[:, channel].ravel(), X[:, channel].ravel())[0, 1] == pytest.approx(1, abs=1e-5)
    assert figure.data[0].dx == pytest.approx(1 / 64)
    some = plot.signals(windows, [3, 7], channels=[1, 4])
    assert [text.split()[0] for text in some.layout.yaxis.ticktext] == ["C3", "Oz"]
    assert np.allclose(some.data[1].y + 1, figure.data[4].y + 4, atol=1e-5)
    part = plot.signals(windows, 3, points=64, centre=40).data[0]  # samples 8 to 72
    assert (part.x0, len(part.y)) == (8 / 64, 64)
    assert np.corrcoef(part.y, X[0, 0, 8:72])[0, 1] == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("error")
def test_missing_samples_are_gaps_and_a_missing_channel_leaves_the_others(windows):
    X = np.array(windows.X[:2], np.float64)
    X[0, 2], X[1, 3, :9] = np.nan, np.nan
    X[:, 5] = np.nan
    drawn = np.array([trace.y for trace in plot.signals(Windows(X, 64.0), [0, 1]).data]).reshape(X.shape)
    assert np.array_equal(np.isnan(drawn), np.isnan(X))


def test_confusions_are_coloured_by_their_share_of_the_true_class():
    counts = np.array([[3, 1, 0], [0, 0, 0], [1.5, 0.5, 2]])
    trace = plot.confusion(counts, ["a", "b", "c"]).data[0]
    assert np.array_equal(trace.customdata, counts)
    assert trace.z.tolist() == [[75, 25, 0], [0, 0, 0], [37.5, 12.5, 50]]
    assert list(trace.text[2]) == ["1.5", "0.5", "2"]


def test_names_are_plain_text_and_not_too_long():
    assert short("<img src=x>") == "&lt;img src=x&gt;"
    assert len(short("x" * 100)) == 28
    assert short("a\nb") == "a b"


@pytest.mark.parametrize("channels", [1, 2])
def test_one_window_of_few_channels_can_be_plotted(channels):
    figure = plot.signals(Windows(np.random.default_rng(0).normal(size=(5, channels, 300)), 100), [0])
    assert len(figure.data) == channels


def test_the_map_has_windows_without_a_class_below_all_others_and_tells_long_names_apart():
    rng = np.random.default_rng(0)
    windows = Windows(
        rng.normal(size=(30, 1, 8)), label=np.arange(30) % 3 - 1, classes=["x" * 30 + "1", "x" * 30 + "2"]
    )
    figure = plot.features(rng.normal(size=(30, 4)), windows)
    assert [trace.name for trace in figure.data] == ["unknown", *2 * [short("x" * 30)]]
    assert [len(trace.x) for trace in figure.data] == [10, 10, 10]
    colours = {trace.marker.color for trace in figure.data}
    assert len(colours) == 3
    assert figure.data[0].marker.opacity < figure.data[1].marker.opacity


# ------------------------------------------------------------------- timelines


def night(**columns) -> Windows:
    """Six windows of one recording, with a gap before the fifth."""
    start = np.array([0, 1, 2, 3, 6, 7]) * 300
    label = [0, 0, 1, -1, 2, 2]
    columns = {"start": start, "label": label, "recording": ["night"] * 6} | columns
    return Windows(np.zeros((6, 1, 300)), fs=10.0, classes=["W", "N2", "N3"], **columns)


def test_a_timeline_has_a_cell_for_each_window_in_the_row_of_its_class():
    figure = plot.timeline(night(), predicted=["W", "N2", "N2", "N2", "N3", ""])
    with pytest.raises(PolyadicError, match="must be classes of the windows, 'W', 'N2', 'N3', '', but there is '0'"):
        plot.timeline(night(), predicted=np.zeros(6, int))
    predicted, true = figure.data
    assert (predicted.x0, predicted.dx) == (0.25, 0.5)  # minutes
    assert figure.layout.xaxis2.title.text == "time (min)"
    for trace, expected in ((predicted, [0, 1, 1, 1, -1, -1, 2, -1]), (true, [0, 0, 1, -1, -1, -1, 2, 2])):
        cells = np.asarray(trace.z)
        assert cells.shape == (3, 8)
        found = [int(np.flatnonzero(column)[0]) if column.any() else -1 for column in np.isfinite(cells).T]
        assert found == expected
    assert list(figure.layout.yaxis.ticktext) == ["W", "N2", "N3"]
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]  # the true class stands below
