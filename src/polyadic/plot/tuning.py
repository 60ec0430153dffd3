"""A plot of the tries of `polyadic.tune`: the score of every try, by the value of each setting that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyadic.plot.canvas import NEUTRAL, PALETTE, blank, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["tuning"]

_LABELS = {
    "n_fft": "frame length",
    "nonnegative": "non-negative",
    "view": "view in the fit",
    "whiten": "whitening",
    "recenter": "recentring",
}
_KINDS = {False: ("scored with two probe settings", NEUTRAL), True: ("scored with all probe settings", PALETTE[0])}
_LEAST = 2
_ROW = 19


def tuning(
    tries: Sequence[dict[str, Any]], recommended: dict[str, Any], chosen: dict[str, Any] | None = None
) -> Figure:
    """Plot the balanced accuracy of every try, by the value of each setting that was varied.

    `*` marks the recommended value, `✓` the chosen one.

    Parameters
    ----------
    tries : as in `Tuning.to_dict()["tries"]`
    recommended : as in `Tuning.to_dict()["recommended"]`
    chosen : as in `Tuning.to_dict()["settings"]`

    Examples
    --------
    >>> tries = [{"rank": 8, "score": 0.7, "full": True}, {"rank": 16, "score": 0.8, "full": True}]
    >>> tuning(tries, {"rank": 16}, {"rank": 8}).layout.yaxis.ticktext
    ('rank: 8 ✓', '16 *')
    """
    go = graph_objects()
    places: dict[tuple[str, Any], int] = {}
    texts: list[str] = []
    rules: list[float] = []
    for name in recommended:
        values = sorted({one[name] for one in tries}, key=lambda value: (isinstance(value, str), value))
        if len(values) < _LEAST:
            continue
        rules.append(len(texts) - 0.5)
        for value in values:
            places[name, value] = len(texts)
            mark = " *" if value == recommended[name] else ""
            mark += " ✓" if chosen is not None and value == chosen[name] else ""
            first = f"{_LABELS.get(name, name)}: " if value == values[0] else ""
            texts.append(first + short(_text(value)) + mark)
    figure = blank(height=90 + _ROW * len(texts), showlegend=True)
    for full, (text, colour) in _KINDS.items():
        points = [
            (100 * one["score"], places[name, one[name]])
            for one in tries
            if one["full"] == full
            for name in recommended
            if (name, one[name]) in places
        ]
        figure.add_trace(
            go.Scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                mode="markers",
                name=text,
                marker={"size": 7, "opacity": 0.6, "color": colour},
                hovertemplate="%{x:.1f} %<extra></extra>",
            )
        )
    for rule in rules[1:]:
        figure.add_hline(y=rule, line={"color": "#e6e8ec", "width": 1})
    marks = "* recommended" + ("" if chosen is None else ", ✓ chosen")
    figure.update_xaxes(title_text=f"balanced accuracy on left-out subjects, % ({marks})")
    figure.update_yaxes(
        tickvals=list(range(len(texts))), ticktext=texts, range=[len(texts) - 0.5, -0.5], showgrid=False, zeroline=False
    )
    return figure


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
