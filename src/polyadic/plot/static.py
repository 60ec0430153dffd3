"""Conversion of the plotly figures of this package to matplotlib, for papers and PDF files.

Lines, areas, markers, bars, heat maps, shapes and texts are converted, so both figures show the same numbers.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.checks import check_number
from polyadic.errors import MissingExtraError, PolyadicError
from polyadic.plot.canvas import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure
    from plotly.graph_objects import Figure

__all__ = ["static"]

_DOTS_PER_INCH = 100
_MARKERS = {"diamond": "D", "square": "s", "triangle-up": "^", "x": "x", "triangle-down": "v", "star": "*"}
_DASHES = {"dash": "--", "dot": ":", "dashdot": "-."}


def static(figure: Figure, width: int = 700) -> StaticFigure:
    """Convert a plot to a matplotlib figure.

    Parameters
    ----------
    figure : from a function of `polyadic.plot`
    width : in pixels of 1/100 inch; the height is taken from the figure

    Examples
    --------
    >>> from polyadic import plot
    >>> drawn = static(plot.low_label({10: [60.0, 70.0], 100: [90.0, 90.0]}))
    >>> drawn.axes[0].get_xlabel()
    'labelled windows'
    """
    try:
        from matplotlib.figure import Figure as StaticFigure
    except ImportError as error:
        raise MissingExtraError(
            "static plots need matplotlib, which is not installed: pip install 'polyadic[report]'"
        ) from error
    if not (hasattr(figure, "layout") and hasattr(figure, "data")):
        raise PolyadicError(f"figure must be a plotly figure from polyadic.plot, but is {type(figure).__name__}")
    margins = _margins(figure)
    check_number("width", width, margins["left"] + margins["right"] + 1)  # at least a pixel for the axes
    height = int(figure.layout.height or 400) + margins["bottom"] - 40
    drawn = StaticFigure(figsize=(width / _DOTS_PER_INCH, height / _DOTS_PER_INCH), dpi=_DOTS_PER_INCH)
    space = _space(margins, width, height)
    panels = _panels(figure, drawn, space)
    bars: dict[str, list[Any]] = {}
    for number, trace in enumerate(figure.data):
        key, colour = (trace.yaxis or "y").removeprefix("y"), PALETTE[number % len(PALETTE)]
        if trace.type == "heatmap":
            _draw_heatmap(panels[key], trace, figure, drawn)
        elif trace.type == "bar":
            bars.setdefault(key, []).append((trace, colour))
        else:
            _draw_scatter(panels[key], trace, colour)
    for key, traces in bars.items():
        _draw_bars(panels[key], traces, figure)
    for shape in figure.layout.shapes:
        _draw_shape(panels, shape)
    for note in figure.layout.annotations:
        _draw_note(drawn, panels, note, space)
    for key, panel in panels.items():
        _finish(panel, figure.layout[f"xaxis{key}"], figure.layout[f"yaxis{key}"])
    _match_axes(figure, panels)
    _add_legend(figure, drawn, panels)
    return drawn


def _margins(figure: Figure) -> dict[str, int]:
    """Return the margins around the axes in pixels, wide enough for the longest labels."""
    first = [axis for axis in figure.select_yaxes() if axis.showticklabels is not False]
    beside = max((len(_text(text)) for axis in first for text in axis.ticktext or ()), default=5)
    turned = [axis for axis in figure.select_xaxes() if axis.tickangle]
    below = max((len(_text(text)) for axis in turned for text in axis.ticktext or ()), default=0)
    notes = [note for note in figure.layout.annotations if "domain" in str(note.yref)]
    lines = max((_text(note.text).count("\n") + 1 for note in notes), default=0)
    scaled = figure.layout.coloraxis.colorbar.thickness is not None
    return {
        "left": 45 + 6 * beside,
        "right": 70 if scaled else 15,
        "bottom": 50 + 6 * below,
        "top": max(30 if figure.layout.showlegend is not False else 10, 14 * lines + 8),
    }


def _space(margins: dict[str, int], width: int, height: int) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of the space for axes, in fractions of the figure."""
    left, bottom = margins["left"] / width, margins["bottom"] / height
    return left, bottom, 1 - left - margins["right"] / width, 1 - bottom - margins["top"] / height


def _panels(figure: Figure, drawn: StaticFigure, space: tuple[float, float, float, float]) -> dict[str, Any]:
    """Add matplotlib axes, by the suffix of plotly's axis names, which is "" for the first."""
    keys = {(trace.yaxis or "y").removeprefix("y") for trace in figure.data} or {""}
    left, bottom, width, height = space
    found = {}
    for key in sorted(keys, key=lambda key: int(key or 1)):
        across = figure.layout[f"xaxis{key}"].domain or (0, 1)
        axis = figure.layout[f"yaxis{key}"]
        down = axis.domain or (0, 1)
        # Tick labels between panels need space, which plotly allocates automatically.
        numbered = axis.showticklabels is not False and axis.visible is None
        first = across[0] + (0.05 if across[0] > 0 and numbered else 0)
        size = width * (across[1] - first), height * (down[1] - down[0])
        found[key] = drawn.add_axes((left + width * first, bottom + height * down[0], *size))
    return found


def _match_axes(figure: Figure, panels: dict[str, Any]) -> None:
    """Set the same range for panels with shared axes."""
    matched = {key: str(figure.layout[f"xaxis{key}"].matches or f"x{key}")[1:] for key in panels}
    for leader in set(matched.values()):
        group = [panels[key] for key, value in matched.items() if value == leader]
        ends = np.array([panel.dataLim.intervalx for panel in group])
        if len(group) > 1:
            for panel in group:
                panel.set_xlim(ends[:, 0].min(), ends[:, 1].max())


def _text(value: Any) -> str:
    """Convert text with plotly markup (line breaks and entities) to plain text."""
    return html.unescape(re.sub(r"<br>", "\n", str(value or ""))).replace("$", r"\$")


def _colour(value: Any, default: str) -> Any:
    """Convert a colour to matplotlib's format."""
    if value is None:
        return default
    found = re.fullmatch(r"rgba\(([^)]*)\)", str(value))
    if found is None:
        return value
    *channels, alpha = (float(part) for part in found[1].split(","))
    return (*(channel / 255 for channel in channels), alpha)


def _places(trace: Any, name: str, count: int) -> NDArray[Any]:
    given = trace[name]
    if given is not None:
        return np.asarray(given)
    first, step = trace[f"{name}0"], trace[f"d{name}"]
    return (0 if first is None else first) + (1 if step is None else step) * np.arange(count)


def _draw_scatter(panel: Any, trace: Any, default: str) -> None:
    y = np.asarray(trace.y, np.float64)
    x = _places(trace, "x", len(y))
    label, mode = _text(trace.name), trace.mode or "lines"
    colour = _colour(trace.line.color or trace.marker.color if not _many(trace.marker.color) else None, default)
    if trace.stackgroup:
        below = getattr(panel, "_stacked", np.zeros(len(y)))
        panel.fill_between(x, below, below + y, step="post", color=_colour(trace.fillcolor, default), label=label, lw=0)
        panel._stacked = below + y
        return
    if trace.fill == "tozeroy":
        panel.fill_between(x, 0, y, color=_colour(trace.fillcolor, default), lw=0)
    if trace.fill == "tonexty" and panel.lines:
        panel.fill_between(x, panel.lines[-1].get_ydata(), y, color=_colour(trace.fillcolor, default), lw=0)
    if "lines" in mode:
        style = _DASHES.get(trace.line.dash or "", "-")
        panel.plot(x, y, color=colour, lw=trace.line.width or 1.5, ls=style, label=label)
    if "markers" in mode:
        many = _many(trace.marker.color)
        colours = [_colour(one, colour) for one in trace.marker.color] if many else _colour(trace.marker.color, colour)
        kind = _MARKERS.get(str(trace.marker.symbol or "circle"), "o")
        size = float(trace.marker.size or 6) ** 2 / 2
        panel.scatter(x, y, s=size, c=colours, marker=kind, label=None if "lines" in mode else label, zorder=3)
    _draw_errors(panel, trace, x, y)
    if "text" in mode:
        for a, b, text in zip(x, y, trace.text, strict=True):
            panel.annotate(_text(text), (a, b), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=7)


def _many(value: Any) -> bool:
    return value is not None and not isinstance(value, str)


def _draw_errors(panel: Any, trace: Any, x: NDArray[Any], y: NDArray[Any]) -> None:
    for key, bar in (("xerr", trace.error_x), ("yerr", trace.error_y)):
        if bar.array is not None:
            ends = [bar.array if bar.arrayminus is None else bar.arrayminus, bar.array]
            panel.errorbar(x, y, **{key: np.abs(np.array(ends, np.float64))}, fmt="none", ecolor="#888", lw=1, zorder=2)


def _draw_bars(panel: Any, traces: list[Any], figure: Figure) -> None:
    """Draw the bars of several traces side by side."""
    width = 0.7 / len(traces) if figure.layout.barmode == "group" else 0.7
    for number, (trace, default) in enumerate(traces):
        lying = trace.orientation == "h"
        sizes = np.asarray(trace.x if lying else trace.y, np.float64)
        places = _places(trace, "y" if lying else "x", len(sizes)).astype(float)
        if figure.layout.barmode == "group":
            places = places + width * (number - (len(traces) - 1) / 2)
        colour = _colour(None if _many(trace.marker.color) else trace.marker.color, default)
        if _many(trace.marker.color):
            colours, low, high = _colour_map(trace.marker, figure)
            colour = colours((np.asarray(trace.marker.color, np.float64) - low) / ((high - low) or 1.0))
        (panel.barh if lying else panel.bar)(places, sizes, width, color=colour, label=_text(trace.name))


def _colour_map(of: Any, figure: Figure) -> tuple[Any, float, float]:
    """Return the colour map of a heat map or of bars, and its limits."""
    from matplotlib.colors import LinearSegmentedColormap

    axis = figure.layout.coloraxis if of.coloraxis else None
    low, high = (of.zmin, of.zmax) if axis is None else (axis.cmin, axis.cmax)
    scales = figure.layout.template.layout.colorscale
    usual = scales.diverging if low < 0 else scales.sequential
    scale = of.colorscale if axis is None else axis.colorscale or usual
    return LinearSegmentedColormap.from_list("plot", [(share, colour) for share, colour in scale]), low, high


def _draw_heatmap(panel: Any, trace: Any, figure: Figure, drawn: StaticFigure) -> None:
    z = np.ma.masked_invalid(np.asarray(trace.z, np.float64))
    x, y = _places(trace, "x", z.shape[1]), _places(trace, "y", z.shape[0])
    colours, low, high = _colour_map(trace, figure)
    steps = [(places[1] - places[0]) if len(places) > 1 else 1.0 for places in (x, y)]
    edges = [np.append(places, places[-1] + step) - step / 2 for places, step in zip((x, y), steps, strict=True)]
    shown = panel.pcolormesh(*edges, z, cmap=colours, vmin=low, vmax=high, rasterized=True)
    if trace.texttemplate and trace.text is not None:
        for (row, column), value in np.ndenumerate(z):
            ink = "white" if (value - low) > 0.6 * (high - low) else "black"
            text = _text(trace.text[row][column])
            panel.text(x[column], y[row], text, ha="center", va="center", fontsize=8, color=ink)
    axis = figure.layout.coloraxis
    if trace.coloraxis and axis.showscale is not False:
        box = panel.get_position()
        bar = drawn.colorbar(shown, cax=drawn.add_axes((box.x1 + 0.01, box.y0, 0.012, box.height)))
        bar.set_label(_text(axis.colorbar.title.text), fontsize=8)
        bar.ax.tick_params(labelsize=7)
        if axis.colorbar.ticktext:
            bar.set_ticks(list(axis.colorbar.tickvals), labels=list(axis.colorbar.ticktext))


def _draw_shape(panels: dict[str, Any], shape: Any) -> None:
    from matplotlib.patches import Ellipse, PathPatch, Rectangle
    from matplotlib.path import Path

    key = (shape.yref or "y").removesuffix(" domain").removeprefix("y")
    panel = panels.get(key, panels[min(panels)])
    pen = {"ec": shape.line.color or "none", "fc": _colour(shape.fillcolor, "none"), "lw": shape.line.width or 0}
    if shape.type == "path":
        numbers = re.findall(r"([MLHVZ])\s*([-\d.]*)\s*([-\d.]*)", shape.path)
        # The shape that covers everything outside the head has no outline and lies below the electrode names.
        panel.add_patch(PathPatch(Path(*_path(numbers)), **pen, zorder=4 if shape.line.width else 2))
        return
    across, down = "domain" in str(shape.xref), "domain" in str(shape.yref)
    if shape.type == "line":
        line = {"color": shape.line.color, "lw": shape.line.width, "ls": _DASHES.get(shape.line.dash or "", "-")}
        panel.axvline(shape.x0, **line) if down else panel.axhline(shape.y0, **line) if across else None
    elif down:
        panel.axvspan(shape.x0, shape.x1, fc=pen["fc"], lw=0)
    else:
        size = (shape.x1 - shape.x0, shape.y1 - shape.y0)
        middle = ((shape.x0 + shape.x1) / 2, (shape.y0 + shape.y1) / 2)
        patch = (
            Ellipse(middle, *size, **pen) if shape.type == "circle" else Rectangle((shape.x0, shape.y0), *size, **pen)
        )
        patch.set_zorder(5)
        panel.add_patch(patch)


def _path(steps: list[tuple[str, str, str]]) -> tuple[list[tuple[float, float]], list[int]]:
    """Return the points and matplotlib codes of an SVG path of straight lines."""
    from matplotlib.path import Path

    points, codes, at = list[tuple[float, float]](), list[int](), (0.0, 0.0)
    for letter, first, second in steps:
        if letter == "Z":
            points.append(at)
            codes.append(int(Path.CLOSEPOLY))
            continue
        at = {"H": (float(first or 0), at[1]), "V": (at[0], float(first or 0))}.get(
            letter, (float(first or 0), float(second or 0))
        )
        points.append(at)
        codes.append(int(Path.MOVETO if letter == "M" else Path.LINETO))
    # matplotlib fills by winding direction: reverse the path of a hole.
    hole = next((number for number, code in enumerate(codes) if number and code == Path.MOVETO), len(codes))
    inside = points[hole:-1][::-1] + points[-1:] if hole < len(codes) else []
    return points[:hole] + inside, codes


def _draw_note(
    drawn: StaticFigure, panels: dict[str, Any], note: Any, space: tuple[float, float, float, float]
) -> None:
    sides = {"bottom": "bottom", "top": "top", "middle": "center"}
    how: dict[str, Any] = {"ha": note.xanchor or "center", "va": sides.get(note.yanchor or "middle", "center")}
    text, size = _text(note.text), note.font.size or 10
    if note.yref == "paper" or note.yref is None:
        left, bottom, width, height = space
        drawn.text(left + width * note.x, bottom + height * note.y, text, fontsize=size * 0.8, **how)
        return
    domain = "domain" in note.yref
    panel = panels[note.yref.removesuffix(" domain").removeprefix("y")]
    place = {"transform": panel.transAxes} if domain else {}
    panel.text(note.x, note.y, text, fontsize=size * 0.8, **how, **place)


def _finish(panel: Any, across: Any, down: Any) -> None:
    """Set titles, ticks, ranges and directions of the two axes of a panel."""
    if across.visible is False:
        panel.set_axis_off()
        panel.set_aspect("equal")
    for axis, name, limits in ((across, "x", panel.set_xlim), (down, "y", panel.set_ylim)):
        getattr(panel, f"set_{name}label")(_text(axis.title.text), fontsize=9)
        if axis.type == "log":
            getattr(panel, f"set_{name}scale")("log")
        if axis.tickvals is not None:
            turn = {"rotation": -axis.tickangle} if axis.tickangle else {}
            labels = [_text(text) for text in (axis.ticktext or axis.tickvals)]
            getattr(panel, f"set_{name}ticks")(list(axis.tickvals), labels, **turn)
        if axis.showticklabels is False:
            panel.tick_params(axis=name, **{"labelleft" if name == "y" else "labelbottom": False})
        if axis.range is not None:
            limits(*(10.0**end if axis.type == "log" else end for end in axis.range))
        elif axis.autorange == "reversed":
            getattr(panel, f"invert_{name}axis")()
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Figure, drawn: StaticFigure, panels: dict[str, Any]) -> None:
    if figure.layout.showlegend is False:
        return
    found: dict[str, Any] = {}
    hidden = {_text(trace.name) for trace in figure.data if trace.showlegend is False}
    for panel in panels.values():
        handles, labels = panel.get_legend_handles_labels()
        found |= {label: handle for label, handle in zip(labels, handles, strict=True) if label and label not in hidden}
    if len(found) > 1 or (found and figure.layout.showlegend):
        drawn.legend(
            found.values(), found.keys(), loc="upper center", ncols=min(len(found), 5), fontsize=8, frameon=False
        )
