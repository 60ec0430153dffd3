"""Plots of windows: their features in two dimensions, and the windows themselves as signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.errors import PolyadicError
from polyadic.plot.canvas import PALETTE, SYMBOLS, blank, compact, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["MOST_CHANNELS", "add_title", "embedded", "features", "scale_texts", "signals", "window_titles"]

_GROUPS = ("class", "subject", "recording")
_MOST_NAMED = 14
MOST_CHANNELS = 16
_TSNE_STEPS = 500


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
    if method == "t-sne":
        perplexity = min(30.0, (len(values) - 1) / 3)
        map_ = TSNE(max_iter=_TSNE_STEPS, random_state=0, perplexity=perplexity, init="pca")
        # t-SNE takes many short steps: synchronising threads costs more than it saves, especially on a busy machine.
        with threadpool_limits(1):
            found: NDArray[np.float64] = map_.fit_transform(np.pad(scaled, ((0, 0), (0, max(0, 2 - scaled.shape[1])))))
        return found
    flat = PCA(min(2, scaled.shape[1]), svd_solver="full").fit_transform(scaled)
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


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
    go = graph_objects()
    xy = np.asarray(points, dtype=np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2:
        xy = embedded(xy)
    if colour not in _GROUPS:
        raise PolyadicError(f"colour must be one of {', '.join(_GROUPS)}, but is {colour!r}")
    if windows is not None and len(windows) != len(xy):
        raise PolyadicError(f"windows and points must have the same length, but have {len(windows)} and {len(xy)}")
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
    """Return a sort key that sorts numbers by value, before other names."""
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
    """Return the hover text of each window: class, subject, recording and time, as far as they are known.

    Parameters
    ----------
    most : maximum number of characters of a name
    lines : maximum number of lines
    """
    if windows is None:
        return [f"window {number + 1}" for number in range(count)]
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
        told = [f"window {row + 1}"]
        told += [short(name, most)] if name else []
        told += [f"subject {short(subject, most)}"] if subject else []
        told += [f"recording {short(recording, most)}"] if recording and recording != subject else []
        if start >= 0:
            told.append(f"at {start / windows.fs:,.6g} s" if windows.fs else f"at sample {start}")
        share = -(-len(told) // lines)
        found.append("<br>".join(" · ".join(told[first : first + share]) for first in range(0, len(told), share)))
    return found


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
    shown = np.arange(whole.shape[1])[:MOST_CHANNELS] if channels is None else np.asarray(channels, dtype=np.intp)
    first, X = _stretches(whole[:, shown], int(points), centre)
    middle = np.median(X, axis=(0, 2), keepdims=True)
    spread = np.abs(X - middle).max(axis=(0, 2), keepdims=True)
    # Each channel has height 1.
    scaled = (X - middle) / np.where(spread > 0, spread, 1.0) * 0.45 - np.arange(X.shape[1])[None, :, None]
    titles = _signal_titles(windows, chosen, first, X.shape[2], whole.shape[2])
    above = 12 + 14 * (1 + max(title.count("<br>") for title in titles))
    figure = blank(height=40 + above + max(120, 34 * len(shown)), showlegend=False, margin_t=above)
    ticks = scale_texts(windows, shown, spread.ravel())
    for number, (begin, window) in enumerate(zip(first, scaled, strict=True)):
        _add_window(figure, window, begin / (windows.fs or 1.0), windows.fs, ticks, number, len(chosen))
        add_title(figure, titles[number], number)
    return figure


def _stretches(X: NDArray[Any], points: int, centre: ArrayLike | None) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return the segment to draw of each window: its first sample (n,), and its samples (n, channels, points)."""
    length = X.shape[2]
    count = min(length, max(2, points))
    middles = np.full(len(X), length / 2) if centre is None else np.broadcast_to(np.asarray(centre, float), (len(X),))
    first = np.clip(np.rint(middles - count / 2), 0, length - count).astype(np.intp)
    return first, np.stack([window[:, begin : begin + count] for begin, window in zip(first, X, strict=True)])


def window_titles(windows: Any, rows: NDArray[Any]) -> list[str]:
    """Return titles for windows, each in at most two lines."""
    return _hover_texts(windows[rows], len(rows), most=14, lines=2)


def _signal_titles(windows: Any, rows: NDArray[Any], first: NDArray[Any], drawn: int, length: int) -> list[str]:
    """Return titles for windows, with the limits of the segment if only a part is drawn."""
    titles = window_titles(windows, rows)
    if drawn == length:
        return titles
    unit, rate = ("s", windows.fs) if windows.fs else ("samples", 1.0)
    ends = [(begin / rate, (begin + drawn) / rate) for begin in first.tolist()]
    whole = f"of {length / rate:.3g} {unit}"
    return [f"{title}<br>{a:.3g} to {b:.3g} {whole}" for title, (a, b) in zip(titles, ends, strict=True)]


def scale_texts(windows: Any, shown: NDArray[np.intp], spread: NDArray[np.float64]) -> list[str]:
    """Return row labels: the channel name and what half a row stands for, such as "Fz ±150 µV"."""
    names = windows.channels or [str(number + 1) for number in range(windows.shape[1])]
    units = windows.units or [""] * windows.shape[1]
    return [
        f"{short(names[number], 16)} ±{_two_digits(value)} {short(units[number], 8)}".rstrip()
        for number, value in zip(shown.tolist(), spread.tolist(), strict=True)
    ]


def _two_digits(value: float) -> str:
    """Format a number with two significant digits, or as an integer from 100: 150, 15, 1.5, 1.5e-06."""
    return f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


def _add_window(
    figure: Figure, lines: NDArray[Any], begin: float, fs: float | None, ticks: list[str], number: int, count: int
) -> None:
    """Draw one window as the `number`-th of `count` columns."""
    go = graph_objects()
    name = "" if number == 0 else str(number + 1)
    unit, rate = ("s", fs) if fs else ("samples", 1.0)
    for channel, line in enumerate(lines):
        figure.add_trace(
            go.Scatter(
                x0=begin,
                dx=1 / rate,
                y=compact(line),
                mode="lines",
                line={"width": 1, "color": PALETTE[0]},
                name=ticks[channel],
                hoverinfo="name+x",
                xaxis=f"x{name}",
                yaxis=f"y{name}",
            )
        )
    rows, width = len(lines), 1.0 / count
    across = {"domain": [number * width + 0.015 * (number > 0), (number + 1) * width], "anchor": f"y{name}"}
    down = {"tickvals": [-row for row in range(rows)], "ticktext": ticks, "showticklabels": number == 0}
    figure.update_layout(
        {
            f"xaxis{name}": across | {"title": {"text": f"time ({unit})"}, "zeroline": False},
            f"yaxis{name}": down | {"anchor": f"x{name}", "range": [-rows + 0.4, 0.6], "zeroline": False},
        }
    )


def add_title(figure: Figure, text: str, number: int) -> None:
    """Add a title above the `number`-th panel."""
    name = "" if number == 0 else str(number + 1)
    place = {"x": 0, "y": 1, "xref": f"x{name} domain", "yref": f"y{name} domain"}
    figure.add_annotation(
        text=text, **place, xanchor="left", yanchor="bottom", showarrow=False, align="left", font={"size": 11}
    )
