"""Pictures for the documentation, plotted by the library and saved by kaleido: `python docs/pictures.py`.

They are committed under `docs/_static/pictures`, so that pages also show them in the repository.
"""

from __future__ import annotations

import io
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

FS = 128.0
CHANNELS = ("frontal", "central", "occipital")
FRAMES = STFT(n_fft=64, hop=8, parts="amplitude")


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


def training() -> Any:
    """Plot the terms of the loss over the sweeps of a fit."""
    augment = Bandpass([(2, 24), (3, 22)], fs=64)
    frames = STFT(n_fft=32, hop=16, parts="amplitude")
    return plot.training(ATD(rank=6, tensorize=frames, augment=augment, beta=2.0, max_sweeps=12).fit(synthetic(400)))


def start() -> Any:
    """Plot the components of the first example."""
    X = synthetic(400)
    return plot.components(ATD(rank=4).fit(X), X)


def save(figures: dict[str, Any], folder: Path) -> None:
    """Save plotly figures as small PNG files, 800 pixels wide."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, figure in figures.items():
        figure.update_layout(template="plotly_white")
        picture = Image.open(io.BytesIO(figure.to_image("png", width=800, scale=1.5))).convert("RGB")
        picture.quantize(64).save(folder / f"{name}.png", optimize=True)
        print(f"{name}.png: {(folder / f'{name}.png').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    signals, slices = tensor()
    found = {"window": signals, "tensor": slices, "components": model(), "sum": sum_of_components()}
    found |= {"views": views(), "training": training(), "start": start()}
    save(found, Path(__file__).parent / "_static" / "pictures")
