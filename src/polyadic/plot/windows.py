"""Plots of windows: a map of their features, their signals, and one recording over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA

from polyadic.errors import PolyadicError
from polyadic.plot.style import NEUTRAL, PALETTE, SYMBOLS, compact, line_up, new_figure, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["features", "signals", "timeline"]

_MOST_CHANNELS = 16
_HALF_ROW = 0.45
"""Height at which the largest value of a channel is drawn; rows are 1 apart."""
_LANE, _BETWEEN = 28, 58
_GROUPS = ("class", "subject", "recording")
_MOST_NAMED = 14
_UNKNOWN = " "
"""Name of the trace of windows without a class, which no class has."""
_ROW, _AREA, _GAP = 17, 110, 34
_STRONG = 3.0
"""Smallest limit of the colour scale of strengths."""
_FAINT = 0.35
"""Opacity of windows without a class, and of classes of windows by themselves behind those along the recording."""
_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def features(Z: ArrayLike, windows: Any, colour: Literal["class", "subject", "recording"] = "class") -> Figure:
    """Plot a map of features, one point per window; hovering over a point shows its class, subject and recording.

    Parameters
    ----------
    Z : (N, features), shown by their first two principal components
    windows : the `Windows` of the points, for their colours and hover texts
    colour : "class", "subject" or "recording"

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(12)
    >>> len(features(signals.X.std(axis=2), signals).data)
    4
    """
    plain = new_figure()  # says how to install plotly
    import plotly.express as px

    values = np.asarray(Z, dtype=np.float64)
    if values.ndim != 2 or not 3 <= len(values) == len(windows):
        raise PolyadicError(f"Z must have one row for each of 3 or more windows, but has shape {values.shape}")
    if colour not in _GROUPS:
        raise PolyadicError(f"colour must be one of {', '.join(_GROUPS)}, but is {colour!r}")
    xy = PCA(2, svd_solver="full").fit_transform(np.pad(values, ((0, 0), (0, max(0, 2 - values.shape[1])))))
    names = [str(name) or _UNKNOWN for name in _column(windows, colour)]
    figure = px.scatter(
        {"x": compact(xy[:, 0]), "y": compact(xy[:, 1]), colour: names},
        *("x", "y", colour, colour),
        hover_name=["<br>".join(words) for words in _words(windows)],
        category_orders={"class": list(windows.classes)},
        # Grey is for windows without a class; 6 colours and 5 symbols make 30 different marks.
        color_discrete_sequence=PALETTE[:-1],
        symbol_sequence=SYMBOLS[:-1],
        template=plain.layout.template,
        render_mode="svg",
    )
    figure.update_traces(marker_size=6, marker_opacity=0.8, hovertemplate="%{hovertext}<extra></extra>")
    # Few labels would be hidden by many windows without one, so these are drawn first, and listed last.
    figure.data = sorted(figure.data, key=lambda trace: trace.name != _UNKNOWN)
    faint = {"color": NEUTRAL, "opacity": _FAINT, "size": 4, "symbol": "circle"}
    figure.update_traces(marker=faint, legendrank=2000, selector={"name": _UNKNOWN})
    figure.for_each_trace(lambda trace: trace.update(name="unknown" if trace.name == _UNKNOWN else short(trace.name)))
    figure.update_layout({"legend": plain.layout.legend, "margin": plain.layout.margin, "legend_title_text": ""})
    figure.update_layout(height=520, showlegend=1 < len(set(names)) <= _MOST_NAMED, hovermode="closest")
    bare = {"showticklabels": False, "zeroline": False, "title": None}
    return figure.update_layout(xaxis=bare, yaxis=bare | {"scaleanchor": "x"})


def _column(windows: Any, name: str) -> NDArray[Any]:
    """Return the class, subject or recording of each window as text, "" where it is not known."""
    return np.array([*windows.classes, ""])[windows.label] if name == "class" else np.asarray(getattr(windows, name))


def _words(windows: Any) -> list[list[str]]:
    """Return what is known of each window: its number, class, subject, recording and start."""
    columns = windows.source(np.arange(len(windows))), *(_column(windows, name) for name in _GROUPS), windows.start
    found = []
    for row, name, subject, recording, start in zip(*(column.tolist() for column in columns), strict=True):
        words = [f"window {row + 1}", short(name), subject and f"subject {short(subject)}"]
        words.append(f"recording {short(recording)}" if recording not in ("", subject) else "")
        if start >= 0:
            words.append(f"at {start / windows.fs:,.6g} s" if windows.fs else f"at sample {start}")
        found.append([word for word in words if word])
    return found


def signals(
    windows: Any,
    rows: ArrayLike,
    points: int | None = None,
    channels: ArrayLike | None = None,
    centre: ArrayLike | None = None,
) -> Figure:
    """Plot windows as signals, one above the other, one row per channel, each on the scale given next to its name.

    Parameters
    ----------
    windows : `Windows`
    rows : (n,), numbers of the windows, from 0
    points : number of samples to draw of each window, if not all; the title says which
    channels : numbers of the channels to draw; by default the first 16
    centre : (n,), the sample in the middle of the part that is drawn; by default that of the window

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(5, n_channels=3)
    >>> len(signals(windows, [0, 4]).data), len(signals(windows, 4, points=100).data[0].y)
    (6, 100)
    """
    chosen = np.atleast_1d(np.asarray(rows, dtype=np.intp))
    if not len(chosen) or chosen.min() < 0 or chosen.max() >= len(windows):
        raise PolyadicError(f"rows must be between 0 and {len(windows) - 1}, but are {chosen.tolist()}")
    shown = np.arange(windows.shape[1])[:_MOST_CHANNELS] if channels is None else np.asarray(channels, dtype=np.intp)
    length, rate, unit = windows.shape[2], windows.fs or 1.0, "s" if windows.fs else "samples"
    size = length if points is None else min(points, length)
    middle = np.broadcast_to(length / 2 if centre is None else centre, len(chosen))
    begins = np.clip(np.rint(middle - size / 2), 0, length - size).astype(np.intp).tolist()
    whole = np.asarray(windows.read(chosen), np.float64)[:, shown]
    X = np.stack([window[:, begin : begin + size] for begin, window in zip(begins, whole, strict=True)])
    # One scale per channel, around its median; a channel without any value is a gap.
    median: Any = np.ma.median(np.ma.masked_invalid(X), axis=(0, 2))  # type: ignore[no-untyped-call]
    centred = X - median.filled(0.0)[:, None]
    spread = np.abs(np.nan_to_num(centred)).max(axis=(0, 2))
    scaled = _HALF_ROW * centred / np.where(spread > 0, spread, 1.0)[:, None]
    names = [windows.channels[number] if windows.channels else str(number + 1) for number in shown.tolist()]
    units = [windows.units[number] if windows.units else "" for number in shown.tolist()]
    labels = [_scale_text(*about) for about in zip(names, spread.tolist(), units, strict=True)]
    titles = [[" · ".join(words[:3]), " · ".join(words[3:])] for words in _words(windows[chosen])]
    if size < length:
        for begin, lines in zip(begins, titles, strict=True):
            lines[1] += f" · {begin / rate:.3g} to {(begin + size) / rate:.3g} of {length / rate:.3g} {unit}"
    texts = ["<br>".join(line.removeprefix(" · ") for line in lines if line) for lines in titles]
    height = len(chosen) * (_LANE * len(shown) + _BETWEEN) - _BETWEEN
    spacing = _BETWEEN / height if len(chosen) > 1 else 0.0
    figure = new_figure(height=height + 90, showlegend=False, margin_t=42)
    figure.set_subplots(len(chosen), 1, subplot_titles=texts, vertical_spacing=spacing)
    figure.update_annotations(x=0, xanchor="left", align="left", font_size=11)
    for number, (begin, values) in enumerate(zip(begins, scaled, strict=True), start=1):
        for channel, line in enumerate(values):
            figure.add_scatter(
                x0=begin / rate,
                dx=1 / rate,
                y=compact(line - channel),
                mode="lines",
                line={"width": 1, "color": PALETTE[0]},
                name=short(names[channel], 16),
                hoverinfo="name+x",
                row=number,
                col=1,
            )
    figure.update_xaxes(title_text=f"time ({unit})", row=len(chosen)).update_xaxes(zeroline=False)
    ticks = {"tickvals": [-row for row in range(len(labels))], "ticktext": labels}
    return figure.update_yaxes(ticks, range=[0.6 - len(shown), 0.6], zeroline=False)


def _scale_text(name: str, size: float, unit: str) -> str:
    """Return the label of a row: the channel and what half a row stands for, such as "Fz ±150 µV"."""
    digits = f"{size:.0f}" if 100 <= size < 1e5 else f"{size:.2g}"
    return f"{short(name, 16)} ±{digits} {short(unit, 8)}".rstrip()


# -------------------------------------------------------------------------------------------------------- timeline


def timeline(
    windows: Any,
    predicted: ArrayLike | None = None,
    probability: ArrayLike | None = None,
    strengths: ArrayLike | None = None,
    names: Sequence[str] = (),
    alone: ArrayLike | None = None,
    unit: str = "dB",
) -> Figure:
    """Plot one recording over time: a hypnogram for sleep data, an activity strip for wearables.

    The panels, from top to bottom and as far as given, show the predicted class of each window, the true class, the
    stacked class probabilities, and the component strengths.

    Parameters
    ----------
    windows : `Windows` of one recording, in any order
    predicted : (N,), classes by name, as `WindowClassifier.predict` returns them; "" for windows without a prediction
    probability : (N, classes), probability of each class of `windows.classes`; NaN for windows without a prediction
    strengths : (N, n), the level and relative expressions of components
    names : names of these columns
    alone : (N,), with `predicted` along the recording: the class of each window by itself, drawn faintly behind
    unit : unit of the strengths

    Examples
    --------
    >>> from polyadic.data import Windows
    >>> windows = Windows(np.zeros((4, 1, 8)), fs=8, start=np.arange(4) * 8, label=[0, 0, 1, 1], classes=["W", "N2"])
    >>> figure = timeline(windows, predicted=["W", "N2", "N2", "N2"])
    >>> [axis.title.text for axis in figure.select_yaxes()]
    ['predicted', 'true']
    """
    count, classes = len(windows), [short(name) for name in windows.classes]
    true = windows.label if (windows.label >= 0).any() else None
    codes = {name: code for code, name in enumerate(windows.classes)} | {"": -1}
    try:
        guesses, others = (
            None if named is None else np.array([codes[str(name)] for name in np.asarray(named).tolist()])
            for named in (predicted, alone)
        )
    except KeyError as error:
        known = ", ".join(map(repr, codes))
        raise PolyadicError(f"predictions must be classes of the windows, {known}, but there is {error}") from error
    given = {"predicted": guesses, "true": true, "probability": probability, "strengths": strengths}
    panels = {kind: np.asarray(values) for kind, values in given.items() if values is not None}
    if not count or not panels:
        raise PolyadicError("a timeline needs windows, and predictions, labels or strengths of them")
    columns = {"probability": (len(classes),), "strengths": (len(names),)}
    for kind, values in panels.items():
        if values.shape != (shape := (count, *columns.get(kind, ()))):
            raise PolyadicError(f"{kind} must have shape {shape}, but has shape {values.shape}")
    slots, first, step, title = _time_grid(windows)
    names_of = {kind: [short(name) for name in names] if kind == "strengths" else classes for kind in panels}
    sizes = {kind: _AREA if kind == "probability" else _ROW * len(names_of[kind]) for kind in panels}
    height = sum(sizes.values()) + _GAP * (len(panels) - 1)
    figure = new_figure(height=height + 110, showlegend="probability" in panels, legend_traceorder="normal")
    figure.set_subplots(
        len(panels), 1, shared_xaxes=True, row_heights=list(sizes.values()), vertical_spacing=_GAP / height
    )
    figure.update_xaxes(zeroline=False, showgrid=False).update_xaxes(title_text=title, row=len(panels))
    cells = {"x0": first + step / 2, "dx": step, "y0": 0, "dy": 1}

    def on_grid(values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of the windows (N, …) in their slots, NaN where there is no window."""
        grid = np.full((int(slots.max()) + 1, *values.shape[1:]), np.nan)
        grid[slots] = values
        return grid

    for row, (kind, values) in enumerate(panels.items(), start=1):
        where = {"row": row, "col": 1}
        rows = {} if kind == "probability" else line_up(names_of[kind]) | {"tickfont": {"size": 11}}
        figure.update_yaxes({"range": [0, 1], "title": {"text": kind}} | rows, **where)
        if kind == "probability":
            _add_probabilities(figure, on_grid(values), first, step, classes, where)
        elif kind == "strengths":
            limit = max(_STRONG, float(np.ceil(np.nanpercentile(np.abs(values), 98)))) if values.size else _STRONG
            middle = sum(figure.layout[f"yaxis{row}"].domain) / 2
            bar = {"thickness": 8, "y": middle, "lenmode": "pixels", "len": 100, "outlinewidth": 0}
            bar |= {"tickvals": [-limit, 0, limit], "ticktext": [f"−{limit:g} {unit}", "0", f"+{limit:g} {unit}"]}
            figure.update_layout(coloraxis={"cmin": -limit, "cmax": limit, "autocolorscale": True, "colorbar": bar})
            hover = {"hovertemplate": f"%{{y}}: %{{z:+.1f}} {unit}<extra></extra>", "hoverongaps": False}
            figure.add_heatmap(z=compact(on_grid(values).T), **cells, coloraxis="coloraxis", **hover, **where)
            figure.update_yaxes(title_text="", **where)
        else:
            layers = [(values, 1.0)]
            if kind == "predicted" and others is not None:
                layers.insert(0, (others, _FAINT))
            for layer, opacity in layers:
                each = np.arange(len(classes))[:, None]
                z = compact(np.where(each == on_grid(layer), each, np.nan))
                colours = _class_colours(len(classes))
                figure.add_heatmap(z=z, **cells, **colours, hoverinfo="skip", opacity=opacity, **where)
    return figure


def _class_colours(count: int) -> dict[str, Any]:
    """Return a colour scale with one colour for each class."""
    colours = [PALETTE[code % len(PALETTE)] for code in range(count)]
    scale = [[(code + end) / count, colour] for code, colour in enumerate(colours) for end in (0, 1)]
    return {"zmin": -0.5, "zmax": count - 0.5, "colorscale": scale, "showscale": False}


def _time_grid(windows: Any) -> tuple[NDArray[np.intp], float, float, str]:
    """Return a regular grid: the slot of each window, the start of the first, their width, and a title of the axis."""
    start, count = np.asarray(windows.start), len(windows)
    between = np.diff(np.sort(start))
    step = int(np.median(between)) if count > 1 else windows.shape[2]
    slots = np.rint((start - start.min()) / max(step, 1)).astype(np.intp)
    # Without times, or with gaps that would dwarf the windows, in the order of time.
    if start.min() < 0 or len(np.unique(slots)) < count or slots.max() > 50 * count:
        return np.argsort(np.argsort(start, kind="stable")), 0.5, 1.0, "window"
    if not windows.fs:
        return slots, float(start.min()), float(step), "time (samples)"
    seconds = step / windows.fs
    whole = seconds * (int(slots.max()) + 1)
    unit, size = next((unit, size) for unit, size in _UNITS if whole >= 3 * size or size == 1.0)
    return slots, float(start.min()) / windows.fs / size, seconds / size, f"time ({unit})"


def _add_probabilities(
    figure: Figure, values: NDArray[np.float64], first: float, step: float, classes: list[str], where: dict[str, int]
) -> None:
    """Draw the class probabilities as a stacked area; empty for windows without a prediction."""
    # Steps are drawn from each window's start to the next one's; repeating the last value extends it to its end.
    steps = np.nan_to_num(np.concatenate([values, values[-1:]]))
    for code, name in enumerate(classes):
        colour = PALETTE[code % len(PALETTE)]
        figure.add_scatter(
            x0=first,
            dx=step,
            y=compact(steps[:, code]),
            mode="lines",
            line={"width": 0, "color": colour, "shape": "hv"},
            stackgroup="probability",
            fillcolor=colour,
            name=name,
            hovertemplate="%{y:.2f}<extra>%{fullData.name}</extra>",
            **where,
        )
