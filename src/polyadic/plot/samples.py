"""Plots of windows: their features in two dimensions, and the windows themselves as signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.errors import PolyadicError
from polyadic.plot.canvas import PALETTE, SYMBOLS, blank, compact, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["embedded", "features", "signals", "thinned_lines"]

_GROUPS = ("class", "subject", "recording")
_MOST_NAMED = 14
_MOST_CHANNELS = 16
_TSNE_STEPS = 500


def embedded(Z: ArrayLike, method: Literal["pca", "t-sne"] = "pca") -> NDArray[np.float64]:
    """Features in two dimensions, after each was brought to mean 0 and variance 1.

    Parameters
    ----------
    Z : (N, rank), features
    method : "pca" for the two directions of largest variance, "t-sne" for a map in which neighbours stay neighbours and
        large distances mean nothing

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

    values = np.asarray(Z, dtype=np.float64)
    if method not in ("pca", "t-sne"):
        raise PolyadicError(f"method must be 'pca' or 't-sne', but is {method!r}")
    if values.ndim != 2 or len(values) < 3:
        raise PolyadicError(f"Z must have shape (N, rank) with N at least 3, but has shape {values.shape}")
    scaled = StandardScaler().fit_transform(values)
    if method == "t-sne":
        perplexity = min(30.0, (len(values) - 1) / 3)
        found: NDArray[np.float64] = TSNE(
            max_iter=_TSNE_STEPS, random_state=0, perplexity=perplexity, init="pca"
        ).fit_transform(np.pad(scaled, ((0, 0), (0, max(0, 2 - scaled.shape[1])))))
        return found
    flat = PCA(min(2, scaled.shape[1]), svd_solver="full").fit_transform(scaled)
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def features(
    points: ArrayLike, windows: Any = None, colour: Literal["class", "subject", "recording"] = "class"
) -> Figure:
    """A map of features, a point for each window; pointing at one tells which it is.

    Parameters
    ----------
    points : (N, 2), of `embedded`; or features (N, rank), which are then embedded by PCA. A point's number is its
        `customdata`
    windows : the `Windows` of the points, for their colours and what is told of them
    colour : "class", "subject" or "recording"

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(12)
    >>> len(features(np.zeros((12, 2)), signals).data)
    4
    """
    go = graph_objects()
    xy = np.asarray(points, dtype=np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2:
        xy = embedded(xy)
    if colour not in _GROUPS:
        raise PolyadicError(f"colour must be one of {', '.join(_GROUPS)}, but is {colour!r}")
    if windows is not None and len(windows) != len(xy):
        raise PolyadicError(f"windows must be as many as points, {len(xy)}, but are {len(windows)}")
    names = _group_names(windows, colour, len(xy))
    texts = np.array(_hover_texts(windows, len(xy)), dtype=object)
    groups = sorted(set(names.tolist()), key=_natural_order)
    if colour == "class" and windows is not None:
        groups = [name for name in (*windows.classes, "") if name in set(names.tolist())]
    figure = blank(height=520, showlegend=1 < len(groups) <= _MOST_NAMED)
    for number, name in enumerate(groups):
        mine = names == name
        known = name != "" or len(groups) == 1
        turn, hue = divmod(number, len(PALETTE))
        figure.add_trace(
            go.Scatter(
                x=compact(xy[mine, 0]),
                y=compact(xy[mine, 1]),
                mode="markers",
                name=short(name) or ("window" if len(groups) == 1 else "unknown"),
                text=texts[mine].tolist(),
                customdata=np.flatnonzero(mine),
                hovertemplate="%{text}<extra></extra>",
                marker={
                    "size": 6,
                    "opacity": 0.8 if known else 0.35,
                    "color": PALETTE[hue] if known else "#999999",
                    "symbol": SYMBOLS[turn % len(SYMBOLS)],
                },
            )
        )
    plain = {"showticklabels": False, "zeroline": False, "title": None}
    figure.update_layout(xaxis=plain, yaxis=plain | {"scaleanchor": "x"}, hovermode="closest")
    return figure


def _natural_order(name: str) -> tuple[int, int, str]:
    """Numbers by size, before other names."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _group_names(windows: Any, colour: str, count: int) -> NDArray[Any]:
    if windows is None:
        return np.full(count, "", dtype=object)
    if colour == "class":
        table = np.array([*windows.classes, ""], dtype=object)
        found: NDArray[Any] = table[windows.label]
        return found
    return np.asarray(getattr(windows, colour), dtype=object)


def _hover_texts(windows: Any, count: int, most: int = 28, lines: int = 5) -> list[str]:
    """What is told of each window: class, subject, recording and time, as far as they are known.

    Parameters
    ----------
    most : letters of a name
    lines : over how many lines it is spread, at most
    """
    if windows is None:
        return [f"window {number}" for number in range(count)]
    rows = zip(
        windows.source(np.arange(count)).tolist(),
        _group_names(windows, "class", count).tolist(),
        windows.subject.tolist(),
        windows.recording.tolist(),
        windows.start.tolist(),
        strict=True,
    )
    found = []
    for row, name, subject, recording, start in rows:
        told = [f"window {row}"]
        told += [short(name, most)] if name else []
        told += [f"subject {short(subject, most)}"] if subject else []
        told += [f"recording {short(recording, most)}"] if recording and recording != subject else []
        if start >= 0:
            told.append(f"at {start / windows.fs:,.6g} s" if windows.fs else f"at sample {start}")
        share = -(-len(told) // lines)
        found.append("<br>".join(" · ".join(told[first : first + share]) for first in range(0, len(told), share)))
    return found


def signals(windows: Any, rows: ArrayLike, points: int = 600, channels: ArrayLike | None = None) -> Figure:
    """Windows drawn as signals side by side, channel below channel, each to the scale of that channel in all of them.

    Parameters
    ----------
    windows : `Windows`
    rows : (n,), which windows
    points : at most so many points a channel; longer windows are drawn by their lowest and highest values
    channels : numbers of the channels to draw; by default the first 16

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> len(signals(synthetic(5, n_channels=3), [0, 4]).data)
    6
    """
    go = graph_objects()
    chosen = np.atleast_1d(np.asarray(rows, dtype=np.intp))
    whole = np.asarray(windows.read(chosen), dtype=np.float64)
    names = windows.channels or [str(number + 1) for number in range(whole.shape[1])]
    shown = np.arange(whole.shape[1])[:_MOST_CHANNELS] if channels is None else np.asarray(channels, dtype=np.intp)
    X, labels = whole[:, shown], [names[number] for number in shown]
    count = X.shape[1]
    middle = np.median(X, axis=(0, 2), keepdims=True)
    spread = np.abs(X - middle).max(axis=(0, 2), keepdims=True)
    # A unit of height for each channel.
    scaled = (X - middle) / np.where(spread > 0, spread, 1.0) * 0.45 - np.arange(count)[None, :, None]
    unit, rate = ("s", windows.fs) if windows.fs else ("samples", 1.0)
    step, drawn = thinned_lines(scaled, points)
    figure = blank(height=80 + max(120, 34 * count), showlegend=False, margin_t=40)
    titles = _hover_texts(windows[chosen], len(chosen), most=14, lines=2)
    width = 1.0 / len(chosen)
    for number, window in enumerate(drawn):
        name = "" if number == 0 else str(number + 1)
        for channel, line in enumerate(window):
            figure.add_trace(
                go.Scatter(
                    x0=0,
                    dx=step / rate,
                    y=compact(line),
                    mode="lines",
                    line={"width": 1, "color": PALETTE[0]},
                    name=short(labels[channel]),
                    hoverinfo="name+x",
                    xaxis=f"x{name}",
                    yaxis=f"y{name}",
                )
            )
        figure.update_layout(
            {
                f"xaxis{name}": {
                    "domain": [number * width + 0.015 * (number > 0), (number + 1) * width],
                    "anchor": f"y{name}",
                    "title": {"text": f"time ({unit})"},
                    "zeroline": False,
                },
                f"yaxis{name}": {
                    "anchor": f"x{name}",
                    "tickvals": [-channel for channel in range(count)],
                    "ticktext": [short(labels[channel]) for channel in range(count)],
                    "showticklabels": number == 0,
                    "range": [-count + 0.4, 0.6],
                    "zeroline": False,
                },
            }
        )
        figure.add_annotation(
            text=titles[number],
            x=0,
            y=1,
            xref=f"x{name} domain",
            yref=f"y{name} domain",
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            align="left",
            font={"size": 11},
        )
    return figure


def thinned_lines(lines: NDArray[np.float64], points: int) -> tuple[float, NDArray[np.float64]]:
    """Lines with at most so many points: all samples, or the lowest and the highest of stretches of them.

    Parameters
    ----------
    lines : (…, time)

    Returns
    -------
    samples from one point to the next, and the points (…, n)

    Examples
    --------
    >>> thinned_lines(np.array([0.0, 3.0, 1.0, 2.0, 9.0, 5.0]), 4)
    (1.5, array([0., 3., 2., 9.]))
    """
    length = lines.shape[-1]
    if length <= points:
        return 1.0, lines
    stretches = max(1, points // 2)
    edges = np.linspace(0, length, stretches + 1).astype(np.intp)[:-1]
    low, high = np.minimum.reduceat(lines, edges, axis=-1), np.maximum.reduceat(lines, edges, axis=-1)
    return length / (2 * stretches), np.stack([low, high], axis=-1).reshape(*lines.shape[:-1], -1)
