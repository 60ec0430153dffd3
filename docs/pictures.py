"""Pictures for the documentation, plotted by the library and saved by kaleido: `python docs/pictures.py`.

They are committed under `docs/_static/pictures`, so that pages also show them in the repository.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from polyadic import ATD, SALS, plot
from polyadic.augment import Bandpass, Jitter
from polyadic.data import Windows, synthetic
from polyadic.plot.style import PALETTE, new_figure
from polyadic.spectral import STFT

sys.path.insert(0, str(Path(__file__).parents[1]))  # `paper` is in no installed package
from paper.missing import means

FS = 128.0
CHANNELS = ("frontal", "central", "occipital")
FRAMES = STFT(n_fft=64, hop=8, parts="amplitude")
SETS = {"har": "HAR", "geotec": "GeoTec phone", "sisfall": "SisFall", "eegmat": "EEGMAT", "ludb": "LUDB"}


def windows(count: int = 90) -> Windows:
    """Return noise with two oscillations of random strength, which differ in channels, frequency and time."""
    rng = np.random.default_rng(0)
    time = np.arange(256) / FS
    X = 0.1 * rng.normal(size=(count, 3, len(time)))
    for weights, frequency, middle in (((0.1, 0.4, 1.0), 10, 1.4), ((1.0, 0.5, 0.1), 24, 0.6)):
        burst = np.exp(-0.5 * ((time - middle) / 0.25) ** 2)
        phase = rng.uniform(0, 2 * np.pi, (count, 1))
        wave = rng.lognormal(0, 0.4, (count, 1)) * burst * np.sin(2 * np.pi * frequency * time + phase)
        X += np.array(weights)[:, None] * wave[:, None, :]
    return Windows(X, FS, channels=CHANNELS)


def fitted() -> tuple[Windows, SALS]:
    data = windows()
    return data, SALS(rank=2, tensorize=FRAMES, batch_size=None, max_sweeps=30).fit(data)


def _panels(pictures: list[np.ndarray], titles: list[str], height: int) -> Any:
    """Plot heat maps over time and frequency side by side, on one colour scale."""
    import plotly.graph_objects as go

    figure = new_figure(height=height, coloraxis={"showscale": False, "colorscale": "Blues"}, margin_t=30)
    width = 1 / len(pictures)
    step, resolution = FRAMES.hop / FS, FS / FRAMES.n_fft
    for number, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
        name = "" if number == 0 else str(number + 1)
        figure.add_trace(
            go.Heatmap(
                z=picture.astype(np.float32), x0=FRAMES.n_fft / 2 / FS, dx=step, y0=0, dy=resolution,
                coloraxis="coloraxis", xaxis=f"x{name}", yaxis=f"y{name}",
                hovertemplate="%{y:.3g} Hz, %{x:.2f} s: %{z:.3g}<extra></extra>",
            )
        )  # fmt: skip
        ends = [number * width + 0.02 * (number > 0), (number + 1) * width - 0.01]
        across = {
            "domain": ends,
            "anchor": f"y{name}",
            "title": {"text": "s"},
            "showgrid": False,
            "nticks": 4,
            "range": [0, 2],
        }
        along = {"anchor": f"x{name}", "showgrid": False, "showticklabels": number == 0, "range": [0, 40]}
        figure.update_layout({f"xaxis{name}": across, f"yaxis{name}": along})
        place = {"xref": f"x{name} domain", "yref": f"y{name} domain"}
        figure.add_annotation(text=title, x=0, y=1, yanchor="bottom", xanchor="left", showarrow=False, **place)
    figure.update_layout(yaxis_title_text="Hz")
    return figure


def tensor() -> tuple[Any, Any]:
    """Plot a window as signals, and as the slices of its tensor."""
    data = windows()
    T = FRAMES(torch.as_tensor(data.X[:1]))[0].numpy()
    return plot.signals(data, [0]), _panels(list(T), list(CHANNELS), 240)


def model() -> Any:
    """Plot the components of a fit."""
    data, bases = fitted()
    return plot.components(bases, data)


def sum_of_components() -> Any:
    """Plot one slice of a window's tensor, its reconstruction, and the two components of the reconstruction."""
    data, bases = fitted()
    slice_ = FRAMES(torch.as_tensor(data.X[:1]))[0, 1].numpy()
    A, B, C = (np.asarray(factor) for factor in bases.factors_)
    x = np.asarray(bases.coefficients(data[:1]))[0]
    parts = [x[r] * A[1, r] * np.outer(B[:, r], C[:, r]) for r in range(2)]
    return _panels(
        [slice_, parts[0] + parts[1], *parts], ["central", "≈ the model", "= x₁ · first", "+ x₂ · second"], 240
    )


def views() -> Any:
    """Plot a window and two augmentations of it."""
    data = windows()
    X = torch.as_tensor(data.X[:1])
    lines = {
        "as recorded": X,
        "jittered": Jitter(0.3)(X, seed=1),
        "band-passed": Bandpass([(14, 40), (14, 30)], fs=FS)(X, seed=1),
    }
    figure = new_figure(height=250)
    for number, (name, view) in enumerate(lines.items()):
        y = view[0, 1].numpy() - 2.5 * number
        figure.add_scatter(x=np.arange(256) / FS, y=y, name=name, line={"width": 1.5, "color": PALETTE[number]})
    figure.update_layout(xaxis_title_text="s", yaxis={"showticklabels": False, "zeroline": False, "showgrid": False})
    return figure


def start() -> Any:
    """Plot the components of the first example."""
    X = synthetic(400)
    return plot.components(ATD(rank=4).fit(X), X)


def missing() -> Any:
    """Plot accuracy against the number of missing channels, for each data set of `python -m paper missing`."""
    rows = json.loads((Path(__file__).parent / "results" / "missing" / "missing-final.json").read_text())["rows"]
    rivals = "PCA", "statistics", "MiniRocket"
    lines = {"polyadic": "polyadic"} | {f"{name}, nearest windows": f"{name}, nearest imputation" for name in rivals}
    sets = [name for name in SETS if any(row.get("set") == name for row in rows)]
    figure = new_figure(height=300, margin_t=70)
    figure.set_subplots(1, len(sets), subplot_titles=[SETS[name] for name in sets], horizontal_spacing=0.03)
    figure.update_annotations(font_size=13)
    for number, name in enumerate(sets):
        found = means(rows, name)
        for index, (title, method) in enumerate(lines.items()):
            counts = {0: "clean"} | {int(fault.split()[0]): fault for fault in found[method] if "channels" in fault}
            style = {"color": PALETTE[index], "width": 3 if method == "polyadic" else 1.5}
            y = [found[method][fault] for fault in counts.values()]
            line = {"name": title, "line": style, "mode": "lines", "showlegend": number == 0}
            figure.add_scatter(x=[*counts], y=y, row=1, col=number + 1, **line)
    figure.update_xaxes(nticks=6).update_yaxes(range=[0, 100])
    figure.update_layout(yaxis_title_text="balanced accuracy, %", legend_y=1.12)
    figure.update_layout({f"xaxis{len(sets) // 2 + 1}_title_text": "number of missing channels"})
    return figure


def component() -> Any:
    """Plot the component of EEGMAT with the largest difference between rest and arithmetic, and all differences."""
    found = json.loads((Path(__file__).parent / "results" / "components" / "eegmat.json").read_text(encoding="utf-8"))
    rows = found["rows"]
    best = max(range(1, len(rows)), key=lambda number: abs(rows[number]["statistic"])) - 1
    low, weight, high = (np.array(part)[:, best] for part in found["by_channel"])
    names = [name.removeprefix("EEG ") for name in found["channels"]]
    order = np.argsort(-weight)
    figure = new_figure(height=300, showlegend=False, margin={"t": 40, "b": 40})
    bars = {
        "type": "data",
        "array": (high - weight)[order],
        "arrayminus": (weight - low)[order],
        "thickness": 1,
        "width": 0,
    }
    figure.add_bar(x=[names[i] for i in order], y=weight[order], error_y=bars, marker_color=PALETTE[0])
    low, weight, high = (np.array(part)[:, best] for part in found["by_frequency"])
    hertz, hidden = found["frequencies"], {"mode": "lines", "line": {"width": 0}, "xaxis": "x2", "yaxis": "y2"}
    figure.add_scatter(x=hertz, y=low, **hidden)
    figure.add_scatter(x=hertz, y=high, fill="tonexty", fillcolor="rgba(68,119,170,.25)", **hidden)
    figure.add_scatter(x=hertz, y=weight, mode="lines", line_color=PALETTE[0], xaxis="x2", yaxis="y2")
    for number, row in enumerate(rows):
        (effect,), (limits,) = row["hedges_g"], row["interval_95"]
        colour = PALETTE[0] if number == best + 1 else "#888"
        figure.add_scatter(x=limits, y=[row["name"]] * 2, mode="lines", line_color=colour, xaxis="x3", yaxis="y3")
        figure.add_scatter(x=[effect], y=[row["name"]], mode="markers", marker_color=colour, xaxis="x3", yaxis="y3")
    titles = f"component {best + 1}: channels", "frequencies", "rest minus arithmetic"
    for number, (title, ends) in enumerate(zip(titles, ((0, 0.36), (0.43, 0.66), (0.8, 1)), strict=True)):
        suffix = "" if number == 0 else str(number + 1)
        figure.update_layout(
            {f"xaxis{suffix}": {"domain": ends, "anchor": f"y{suffix}"}, f"yaxis{suffix}": {"anchor": f"x{suffix}"}}
        )
        figure.add_annotation(
            text=title, x=ends[0], y=1.02, xref="paper", yref="paper", xanchor="left", yanchor="bottom", showarrow=False
        )
    figure.update_layout(
        xaxis={"tickangle": -90, "tickfont_size": 9},
        yaxis_title_text="weight (%), 90 % band",
        xaxis2={"title_text": "Hz", "range": [0, 30]},
        xaxis3={"title_text": "Hedges' g, 95 %", "range": [-1, 1], "zeroline": True, "zerolinecolor": "#444"},
        yaxis3={"autorange": "reversed", "tickfont_size": 10},
    )
    return figure


def save(figures: dict[str, Any], folder: Path, template: str = "plotly_white") -> None:
    """Save plotly figures as small PNG files, 800 pixels wide."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, figure in figures.items():
        figure.update_layout(template=template)
        picture = Image.open(io.BytesIO(figure.to_image("png", width=800, scale=1.5))).convert("RGB")
        picture.quantize(64).save(folder / f"{name}.png", optimize=True)
        print(f"{name}.png: {(folder / f'{name}.png').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    signals, slices = tensor()
    found = {"window": signals, "tensor": slices, "components": model(), "sum": sum_of_components()}
    found |= {"views": views(), "start": start(), "component": component()}
    pictures = Path(__file__).parent / "_static" / "pictures"
    save(found | {"missing-light": missing()}, pictures)
    save({"missing-dark": missing()}, pictures, "plotly_dark")
