"""Plots of windows: their features in two dimensions, and the windows themselves as signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from polyadic.errors import PolyadicError
from polyadic.plot.style import PALETTE, SYMBOLS, compact, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["Outlines", "features", "outlines", "signals"]

_MOST_CHANNELS = 16
_HALF_ROW = 0.45
"""Height at which the largest value of a channel is drawn; rows are 1 apart."""
_GROUPS = ("class", "subject", "recording")
_MOST_NAMED = 14


def features(
    Z: ArrayLike,
    windows: Any = None,
    colour: Literal["class", "subject", "recording"] = "class",
    standardise: bool = True,
) -> Figure:
    """Plot a map of features, one point per window; hovering over a point shows its class, subject and recording.

    Parameters
    ----------
    Z : (N, rank), features, shown by their first two principal components; or points (N, 2), shown as they are. The
        `customdata` of a point is its row
    windows : the `Windows` of the points, for their colours and hover texts
    colour : "class", "subject" or "recording"
    standardise : whether to scale each feature to variance 1 first. Use False for features of a `Readout`, whose
        distances are meaningful; scaling would amplify the weakest features

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(12)
    >>> len(features(np.zeros((12, 2)), signals).data)
    4
    """
    xy = np.asarray(Z, dtype=np.float64)
    if xy.ndim != 2 or len(xy) < 3:
        raise PolyadicError(f"Z must have shape (N, rank) with N at least 3, but has shape {xy.shape}")
    if xy.shape[1] != 2:
        scaled = StandardScaler(with_std=standardise).fit_transform(xy)
        xy = PCA(2, svd_solver="full").fit_transform(np.pad(scaled, ((0, 0), (0, max(0, 2 - scaled.shape[1])))))
    if colour not in _GROUPS:
        raise PolyadicError(f"colour must be one of {', '.join(_GROUPS)}, but is {colour!r}")
    if windows is not None and len(windows) != len(xy):
        raise PolyadicError(f"windows and Z must have the same length, but have {len(windows)} and {len(xy)}")
    names = np.full(len(xy), "", dtype=object) if windows is None else _column(windows, colour)
    texts = [f"window {n + 1}" for n in range(len(xy))] if windows is None else _window_texts(windows)
    present = set(names.tolist())
    # Numbers by value, before other names.
    groups = sorted(present, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
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


def _column(windows: Any, name: str) -> NDArray[Any]:
    """Return the class, subject or recording of each window as text, "" where it is not known."""
    if name != "class":
        return np.asarray(getattr(windows, name), dtype=object)
    names: NDArray[Any] = np.array([*windows.classes, ""], dtype=object)[windows.label]
    return names


def _window_texts(windows: Any, most: int = 28, lines: int = 5) -> list[str]:
    """Return what is known of each window, names with at most `most` characters, on at most `lines` lines."""
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

    A window with more samples than `points` is drawn as a band between minimum and maximum or, with `centre`, as a
    segment, sample by sample; the title says which. Decimating the window would show spurious rhythms.

    Parameters
    ----------
    windows : `Windows`
    rows : (n,), numbers of the windows, from 0
    points : maximum number of values drawn per window and channel; a band needs two per position
    channels : numbers of the channels to draw; by default the first 16
    centre : (n,), the centre of the segment of each window, in samples; by default whole windows are drawn

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(5, n_channels=3)
    >>> len(signals(windows, [0, 4]).data), len(signals(windows, 4, points=100).data)
    (6, 6)
    """
    chosen = np.atleast_1d(np.asarray(rows, dtype=np.intp))
    if not len(chosen) or chosen.min() < 0 or chosen.max() >= len(windows):
        raise PolyadicError(f"rows must be between 0 and {len(windows) - 1}, but are {chosen.tolist()}")
    shown = np.arange(windows.shape[1])[:_MOST_CHANNELS] if channels is None else np.asarray(channels, dtype=np.intp)
    X, length = np.asarray(windows.read(chosen))[:, shown], windows.shape[2]
    rate, unit = (windows.fs, "s") if windows.fs else (1.0, "samples")
    titles, begins = _window_texts(windows[chosen], most=14, lines=2), np.zeros(len(chosen), np.intp)
    if centre is not None and points < length:
        begins = np.clip(np.rint(np.broadcast_to(centre, len(X)) - points / 2), 0, length - points).astype(np.intp)
        X = np.stack([window[:, begin : begin + points] for begin, window in zip(begins, X, strict=True)])
        times = np.stack([begins, begins + points]).T / rate
        titles = [
            f"{title}<br>{first:.3g} to {last:.3g} of {length / rate:.3g} {unit}"
            for title, (first, last) in zip(titles, times.tolist(), strict=True)
        ]
    lines = outlines(X, points)
    above = 12 + 14 * (1 + max(title.count("<br>") for title in titles))
    figure = new_figure(height=40 + above + max(120, 34 * len(shown)), showlegend=False, margin_t=above)
    texts = _scale_texts(windows, shown, lines.spread)
    for number, (begin, values, title) in enumerate(zip(begins.tolist(), lines.values, titles, strict=True)):
        width = 1.0 / len(chosen)
        x = {"domain": [number * width + 0.015 * (number > 0), (number + 1) * width], "zeroline": False}
        y = {"tickvals": [-row for row in range(len(texts))], "ticktext": texts, "showticklabels": number == 0}
        y |= {"range": [-len(texts) + 0.4, 0.6], "zeroline": False}
        where = panel(figure, number, x | {"title": {"text": f"time ({unit})"}}, y)
        place = {"x": 0, "y": 1, "xref": f"{where['xaxis']} domain", "yref": f"{where['yaxis']} domain"}
        style = {"showarrow": False, "align": "left", "font": {"size": 11}}
        figure.add_annotation(text=title, **place, xanchor="left", yanchor="bottom", **style)
        for channel, edge in np.ndindex(values.shape[:2]):
            figure.add_scatter(
                x0=(begin + lines.first) / rate,
                dx=lines.step / rate,
                y=compact(_HALF_ROW * values[channel, edge] - channel),
                mode="lines",
                line={"width": 0.5 if values.shape[1] > 1 else 1, "color": PALETTE[0]},
                name=texts[channel].rpartition(" ±")[0],
                hoverinfo="name+x",
                # A line between the edges of a band would show a spurious rhythm.
                **({"fill": "tonexty", "fillcolor": PALETTE[0]} if edge else {}),
                **where,
            )
    return figure


def _scale_texts(windows: Any, shown: NDArray[np.intp], spread: NDArray[np.float64]) -> list[str]:
    """Return row labels: the channel name and what half a row stands for, such as "Fz ±150 µV"."""
    names = windows.channels or [str(number + 1) for number in range(windows.shape[1])]
    units = windows.units or [""] * windows.shape[1]
    # Two significant digits, or an integer from 100: 150, 15, 1.5, 1.5e-06.
    sizes = [f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}" for value in spread.tolist()]
    return [
        f"{short(names[number], 16)} ±{size} {short(units[number], 8)}".rstrip()
        for number, size in zip(shown.tolist(), sizes, strict=True)
    ]


class Outlines(NamedTuple):
    """Outlines of windows, scaled for drawing."""

    values: NDArray[np.float64]  # (n, channels, lines, points), -1 to 1: every sample, or the two edges of a band
    spread: NDArray[np.float64]  # (channels,), what a value of 1 stands for in the unit of the channel
    first: float  # position of the first point, in samples
    step: float  # distance between points, in samples


def outlines(X: NDArray[Any], points: int) -> Outlines:
    """Return the outlines of windows (n, channels, time), with at most `points` values per channel.

    If there are more samples, an outline is the band between the minimum and the maximum around each position. The
    ranges of neighbouring positions overlap, because otherwise a rhythm with a period of one or two steps would alias.
    A channel has one scale for all windows.
    """
    values = np.asarray(X, dtype=np.float64)
    observed = [own[np.isfinite(own)] for own in values.swapaxes(0, 1)]
    centred = values - np.array([np.median(own) if own.size else 0.0 for own in observed])[:, None]
    spread = np.abs(np.nan_to_num(centred)).max(axis=(0, 2))
    scaled, length = centred / np.where(spread > 0, spread, 1.0)[:, None], values.shape[2]
    if length <= points:
        return Outlines(scaled[:, :, None], spread, 0.0, 1.0)
    count = max(1, points // 2)
    step, places = length / count, np.arange(count)
    ends = np.stack([np.floor(step * (places - 1)), np.ceil(step * (places + 2))], axis=1)
    # `reduceat` takes alternating starts and ends, and only results of starts are used. Padding keeps indices valid.
    ranges, padded = ends.clip(0, length).astype(np.intp).ravel(), np.concatenate([scaled, scaled[..., -1:]], axis=-1)
    edges = [of.reduceat(padded, ranges, axis=-1)[..., ::2] for of in (np.minimum, np.maximum)]
    return Outlines(np.stack(edges, axis=-2), spread, step / 2, step)
