"""A plot of one whole window: every sample if there is room, otherwise a band between minimum and maximum.

The report shows it next to the map of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.checks import check_integer
from polyadic.errors import PolyadicError
from polyadic.plot.canvas import PALETTE, blank, compact, graph_objects, short
from polyadic.plot.samples import MOST_CHANNELS, add_title, scale_texts, window_titles

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["HALF_ROW", "Outlines", "envelope", "outlines", "preview", "preview_figure"]

HALF_ROW = 0.45
"""Height at which the largest value of a channel is drawn; rows are 1 apart."""
_FEWEST_POINTS = 4


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
    figure = preview_figure(windows, row, outlines(windows.read(np.array([row]))[:, :MOST_CHANNELS], points))
    add_title(figure, window_titles(windows, np.array([row]))[0], 0)
    figure.update_layout(margin_t=40, height=figure.layout.height + 32)
    return figure


def preview_figure(windows: Any, row: int, drawn: Outlines) -> Figure:
    """Plot the first of the outlines, which must belong to window `row`, without a title."""
    go = graph_objects()
    rate, unit = (windows.fs, "s") if windows.fs else (1.0, "samples")
    _, count, lines, _ = drawn.values.shape
    names = [short(name) for name in (windows.channels or [str(number + 1) for number in range(count)])[:count]]
    figure = blank(height=max(220, 60 + 30 * count), showlegend=False)
    for channel in range(count):
        for line, values in enumerate(drawn.values[0, channel]):
            figure.add_trace(
                go.Scatter(
                    x0=drawn.first / rate,
                    dx=drawn.step / rate,
                    y=compact(HALF_ROW * values - channel),
                    mode="lines",
                    line={"width": 0.5 if lines > 1 else 1, "color": PALETTE[0]},
                    name=names[channel],
                    hoverinfo="name+x",
                    # A line between the edges would show a spurious rhythm.
                    **({"fill": "tonexty", "fillcolor": PALETTE[0]} if line else {}),
                )
            )
    texts = scale_texts(windows, np.arange(count), drawn.spread[0])
    figure.update_layout(
        xaxis={"title": {"text": f"time ({unit})"}, "zeroline": False},
        yaxis={
            "tickvals": [-channel for channel in range(count)],
            "ticktext": texts,
            "zeroline": False,
            "range": [-count + 0.4, 0.6],
        },
    )
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
