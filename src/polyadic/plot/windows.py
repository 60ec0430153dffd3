"""Plots of windows: their features in two dimensions, and the windows themselves as signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import check_integer
from polyadic.errors import PolyadicError
from polyadic.plot.style import PALETTE, SYMBOLS, compact, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = [
    "HALF_ROW",
    "MOST_CHANNELS",
    "Outlines",
    "embedded",
    "envelope",
    "features",
    "outlines",
    "preview",
    "preview_figure",
    "scale_texts",
    "signals",
]

MOST_CHANNELS = 16
HALF_ROW = 0.45
"""Height at which the largest value of a channel is drawn; rows are 1 apart."""
_GROUPS = ("class", "subject", "recording")
_MOST_NAMED = 14
_TSNE_STEPS = 500
_FEWEST_POINTS = 4


def embedded(Z: ArrayLike, method: Literal["pca", "t-sne"] = "pca", standardise: bool = True) -> NDArray[np.float64]:
    """Embed features in two dimensions.

    Parameters
    ----------
    Z : (N, rank), features
    method : "pca" for the first two principal components, "t-sne" for a map that preserves neighbourhoods (large
        distances in it are not meaningful)
    standardise : whether to scale each feature to variance 1 first. Use False for features of a `Readout`, whose
        distances are meaningful; scaling would amplify the weakest features

    Returns
    -------
    (N, 2)

    Examples
    --------
    >>> embedded(np.random.default_rng(0).normal(size=(30, 5))).shape
    (30, 2)
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    values = np.asarray(Z, dtype=np.float64)
    if method not in ("pca", "t-sne"):
        raise PolyadicError(f"method must be 'pca' or 't-sne', but is {method!r}")
    if values.ndim != 2 or len(values) < 3:
        raise PolyadicError(f"Z must have shape (N, rank) with N at least 3, but has shape {values.shape}")
    scaled = StandardScaler(with_std=standardise).fit_transform(values)
    scaled = np.pad(scaled, ((0, 0), (0, max(0, 2 - scaled.shape[1]))))
    perplexity = min(30.0, (len(values) - 1) / 3)
    tsne = TSNE(max_iter=_TSNE_STEPS, random_state=0, perplexity=perplexity, init="pca")
    embedding = tsne if method == "t-sne" else PCA(2, svd_solver="full")
    # t-SNE takes many short steps: synchronising threads costs more than it saves, especially on a busy machine.
    with threadpool_limits(1):
        return np.asarray(embedding.fit_transform(scaled))


def features(
    points: ArrayLike, windows: Any = None, colour: Literal["class", "subject", "recording"] = "class"
) -> Figure:
    """Plot a map of features, one point per window; hovering over a point shows its class, subject and recording.

    Parameters
    ----------
    points : (N, 2), result of `embedded`; or features (N, rank), which are then embedded by PCA. The `customdata` of
        a point is its row
    windows : the `Windows` of the points, for their colours and hover texts
    colour : "class", "subject" or "recording"

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(12)
    >>> len(features(np.zeros((12, 2)), signals).data)
    4
    """
    xy = np.asarray(points, dtype=np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2:
        xy = embedded(xy)
    if colour not in _GROUPS:
        raise PolyadicError(f"colour must be one of {', '.join(_GROUPS)}, but is {colour!r}")
    if windows is not None and len(windows) != len(xy):
        raise PolyadicError(f"windows and points must have the same length, but have {len(windows)} and {len(xy)}")
    names = np.full(len(xy), "", dtype=object) if windows is None else _column(windows, colour)
    texts = [f"window {n + 1}" for n in range(len(xy))] if windows is None else _window_texts(windows)
    present = set(names.tolist())
    groups = sorted(present, key=_natural_order)
    if colour == "class" and windows is not None:
        groups = [name for name in (*windows.classes, "") if name in present]
    figure = new_figure(height=520, showlegend=1 < len(groups) <= _MOST_NAMED, hovermode="closest")
    for number, name in enumerate(groups):
        rows = np.flatnonzero(names == name)
        known = name != "" or len(groups) == 1
        turn, hue = divmod(number, len(PALETTE))
        figure.add_scatter(
            x=compact(xy[rows, 0]),
            y=compact(xy[rows, 1]),
            mode="markers",
            name=short(name) or ("window" if len(groups) == 1 else "unknown"),
            text=[texts[row] for row in rows],
            customdata=rows,
            hovertemplate="%{text}<extra></extra>",
            marker={
                "size": 6,
                "opacity": 0.8 if known else 0.35,
                "color": PALETTE[hue] if known else "#999999",
                "symbol": SYMBOLS[turn % len(SYMBOLS)],
            },
        )
    plain = {"showticklabels": False, "zeroline": False, "title": None}
    return figure.update_layout(xaxis=plain, yaxis=plain | {"scaleanchor": "x"})


def _natural_order(name: str) -> tuple[int, int, str]:
    """Return a sort key that sorts numbers by value, before other names."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _column(windows: Any, name: str) -> NDArray[Any]:
    """Return the class, subject or recording of each window as text, "" where it is not known."""
    if name != "class":
        return np.asarray(getattr(windows, name), dtype=object)
    names: NDArray[Any] = np.array([*windows.classes, ""], dtype=object)[windows.label]
    return names


def _window_texts(windows: Any, most: int = 28, lines: int = 5) -> list[str]:
    """Return the class, subject, recording and time of each window, as far as they are known, for hovering or titles.

    Parameters
    ----------
    most : maximum number of characters of a name
    lines : maximum number of lines
    """
    columns = windows.source(np.arange(len(windows))), *(_column(windows, name) for name in _GROUPS), windows.start
    texts = []
    for row, name, subject, recording, start in zip(*(column.tolist() for column in columns), strict=True):
        words = [f"window {row + 1}"]
        words += [short(name, most)] if name else []
        words += [f"subject {short(subject, most)}"] if subject else []
        words += [f"recording {short(recording, most)}"] if recording and recording != subject else []
        if start >= 0:
            words.append(f"at {start / windows.fs:,.6g} s" if windows.fs else f"at sample {start}")
        per_line = -(-len(words) // lines)
        texts.append("<br>".join(" · ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)))
    return texts


def signals(
    windows: Any,
    rows: ArrayLike,
    points: int = 600,
    channels: ArrayLike | None = None,
    centre: ArrayLike | None = None,
) -> Figure:
    """Plot windows as signals side by side, one row per channel, each on the scale given next to its name.

    Every sample is drawn. Of a window with more samples than `points`, only a segment is drawn, and the title says
    which; decimating the window would show spurious rhythms.

    Parameters
    ----------
    windows : `Windows`
    rows : (n,), numbers of the windows, from 0
    points : maximum number of samples drawn per window
    channels : numbers of the channels to draw; by default the first 16
    centre : (n,), the centre of the segment of each window, in samples; by default the middle of the window

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> len(signals(synthetic(5, n_channels=3), [0, 4]).data)
    6
    """
    chosen = np.atleast_1d(np.asarray(rows, dtype=np.intp))
    whole = np.asarray(windows.read(chosen), dtype=np.float64)
    length = whole.shape[2]
    count = min(length, max(2, int(points)))
    shown = np.arange(whole.shape[1])[:MOST_CHANNELS] if channels is None else np.asarray(channels, dtype=np.intp)
    middles = np.broadcast_to(np.asarray(length / 2 if centre is None else centre, float), (len(whole),))
    first = np.clip(np.rint(middles - count / 2), 0, length - count).astype(np.intp)
    X = np.stack([window[shown, begin : begin + count] for begin, window in zip(first, whole, strict=True)])
    middle = np.median(X, axis=(0, 2), keepdims=True)
    spread = np.abs(X - middle).max(axis=(0, 2), keepdims=True)
    scaled = (X - middle) / np.where(spread > 0, spread, 1.0)
    rate, unit = (windows.fs, "s") if windows.fs else (1.0, "samples")
    titles = _window_texts(windows[chosen], most=14, lines=2)
    if count < length:
        ends = [f"{begin / rate:.3g} to {(begin + count) / rate:.3g} of {length / rate:.3g} {unit}" for begin in first]
        titles = [f"{title}<br>{part}" for title, part in zip(titles, ends, strict=True)]
    above = 12 + 14 * (1 + max(title.count("<br>") for title in titles))
    figure = new_figure(height=40 + above + max(120, 34 * len(shown)), showlegend=False, margin_t=above)
    texts = scale_texts(windows, shown, spread.ravel())
    for number, (begin, window, title) in enumerate(zip(first, scaled, titles, strict=True)):
        width = 1.0 / len(chosen)
        x = {"domain": [number * width + 0.015 * (number > 0), (number + 1) * width]}
        where = _signal_panel(figure, number, x, texts, unit)
        _add_signals(figure, window[:, None], begin / rate, 1 / rate, texts, where)
        _add_title(figure, title, where)
    return figure


def _signal_panel(figure: Figure, number: int, x: dict[str, Any], texts: list[str], unit: str) -> dict[str, str]:
    """Set up a panel with one row per channel; only the first one has their names."""
    rows = {"tickvals": [-row for row in range(len(texts))], "ticktext": texts, "showticklabels": number == 0}
    rows |= {"range": [-len(texts) + 0.4, 0.6], "zeroline": False}
    return panel(figure, number, x | {"title": {"text": f"time ({unit})"}, "zeroline": False}, rows)


def _add_signals(
    figure: Figure, values: NDArray[Any], x0: float, dx: float, names: list[str], where: dict[str, str]
) -> None:
    """Add channels (channels, lines, points), scaled to -1 … 1: one line each, or the two edges of a filled band."""
    for channel, lines in enumerate(values):
        for number, line in enumerate(lines):
            # A line between the edges would show a spurious rhythm.
            band = {"fill": "tonexty", "fillcolor": PALETTE[0]} if number else {}
            figure.add_scatter(
                x0=x0,
                dx=dx,
                y=compact(HALF_ROW * line - channel),
                mode="lines",
                line={"width": 0.5 if len(lines) > 1 else 1, "color": PALETTE[0]},
                name=names[channel],
                hoverinfo="name+x",
                **band,
                **where,
            )


def _add_title(figure: Figure, text: str, where: dict[str, str]) -> None:
    place = {"x": 0, "y": 1, "xref": f"{where['xaxis']} domain", "yref": f"{where['yaxis']} domain"}
    style = {"showarrow": False, "align": "left", "font": {"size": 11}}
    figure.add_annotation(text=text, **place, xanchor="left", yanchor="bottom", **style)


def scale_texts(windows: Any, shown: NDArray[np.intp], spread: NDArray[np.float64]) -> list[str]:
    """Return row labels: the channel name and what half a row stands for, such as "Fz ±150 µV"."""
    names = windows.channels or [str(number + 1) for number in range(windows.shape[1])]
    units = windows.units or [""] * windows.shape[1]
    # Two significant digits, or an integer from 100: 150, 15, 1.5, 1.5e-06.
    sizes = [f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}" for value in spread.tolist()]
    return [
        f"{short(names[number], 16)} ±{size} {short(units[number], 8)}".rstrip()
        for number, size in zip(shown.tolist(), sizes, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Outlines:
    """Outlines of windows, scaled for drawing.

    values : (n, channels, lines, points), from -1 to 1; one line with every sample, or the two edges of a band
    spread : (n, channels), what a value of 1 stands for in the unit of the channel
    first, step : position of the first point and distance between points, in samples
    """

    values: NDArray[np.float64]
    spread: NDArray[np.float64]
    first: float
    step: float


def preview(windows: Any, row: int = 0, points: int = 1000) -> Figure:
    """Plot one whole window, one row per channel, each on the scale given next to its name.

    A window with more samples than `points` is drawn as a band between minimum and maximum. `plot.signals` shows a part
    of such a window sample by sample.

    Parameters
    ----------
    windows : `Windows`
    row : number of the window, from 0
    points : maximum number of values drawn per channel; a band needs two per position

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(5, n_channels=3)
    >>> len(preview(signals, 4, points=256).data), len(preview(signals, 4, points=100).data)
    (3, 6)
    """
    check_integer("row", row, 0)
    check_integer("points", points, _FEWEST_POINTS)
    if row >= len(windows):
        raise PolyadicError(f"row must be below {len(windows)}, the number of windows, but is {row}")
    figure = preview_figure(windows, outlines(windows.read(np.array([row]))[:, :MOST_CHANNELS], points))
    _add_title(figure, _window_texts(windows[[row]], most=14, lines=2)[0], {"xaxis": "x", "yaxis": "y"})
    return figure.update_layout(margin_t=40, height=figure.layout.height + 32)


def preview_figure(windows: Any, drawn: Outlines) -> Figure:
    """Plot the first of the outlines of windows, without a title."""
    rate, unit = (windows.fs, "s") if windows.fs else (1.0, "samples")
    count = drawn.values.shape[1]
    names = [short(name) for name in (windows.channels or [str(number + 1) for number in range(count)])[:count]]
    figure = new_figure(height=max(220, 60 + 30 * count), showlegend=False)
    where = _signal_panel(figure, 0, {}, scale_texts(windows, np.arange(count), drawn.spread[0]), unit)
    _add_signals(figure, drawn.values[0], drawn.first / rate, drawn.step / rate, names, where)
    return figure


def outlines(X: NDArray[Any], points: int) -> Outlines:
    """Return the outlines of windows, with at most `points` values per channel.

    Parameters
    ----------
    X : (n, channels, time)

    Examples
    --------
    >>> outlines(np.ones((2, 3, 100)), 100).values.shape, outlines(np.ones((2, 3, 100)), 99).values.shape
    ((2, 3, 1, 100), (2, 3, 2, 49))
    """
    values = np.asarray(X, dtype=np.float64)
    centred = values - np.median(values, axis=2, keepdims=True)
    spread = np.abs(centred).max(axis=2)
    scaled = centred / np.where(spread > 0, spread, 1.0)[:, :, None]
    if values.shape[2] <= points:
        return Outlines(scaled[:, :, None], spread, 0.0, 1.0)
    step, band = envelope(scaled, points // 2)
    return Outlines(band, spread, step / 2, step)


def envelope(lines: NDArray[np.float64], points: int) -> tuple[float, NDArray[np.float64]]:
    """Return the minimum and maximum of lines around each of `points` positions.

    This envelope is drawn as a band, instead of a line with too many samples; a line that joins minima and maxima would
    show a spurious rhythm. The ranges of neighbouring positions overlap, because otherwise a rhythm with a period of
    one or two steps would alias.

    Parameters
    ----------
    lines : (…, time)

    Returns
    -------
    the number of samples from one position to the next, and the band (…, 2, n)

    Examples
    --------
    >>> envelope(np.arange(8.0), 4)
    (2.0, array([[0., 0., 2., 4.],
           [3., 5., 7., 7.]]))
    """
    length = lines.shape[-1]
    count = max(1, min(points, length))
    step, places = length / count, np.arange(count)
    ends = np.stack([np.floor(step * (places - 1)), np.ceil(step * (places + 2))], axis=1)
    # `reduceat` takes alternating starts and ends, and only results of starts are used. Padding keeps indices valid.
    ranges, padded = ends.clip(0, length).astype(np.intp).ravel(), np.concatenate([lines, lines[..., -1:]], axis=-1)
    return step, np.stack([of.reduceat(padded, ranges, axis=-1)[..., ::2] for of in (np.minimum, np.maximum)], axis=-2)
