"""The plots of the paper's figures, and the data of the diagrams of the framework and the backbone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paper.baselines.networks import Backbone
from paper.results import new_figure
from paper.tables import PROBES, Result, distinct_values, percentages, select_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from paper.methods import ExperimentSettings

Row = dict[str, Any]


def _draw_line(axis: Axes, x: Sequence[float], samples: list[list[float]], label: str) -> None:
    """Draw means with error bars of one standard deviation."""
    spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in samples]
    middle = [float(np.mean(values)) for values in samples]
    axis.errorbar(x, middle, spread, marker="o", markersize=4, capsize=2, linewidth=1.3, label=label)


def _name_ticks(axis: Axes, x: Sequence[float]) -> None:
    """Write all values below a logarithmic axis, and nothing else."""
    axis.set_xticks(x, [f"{value:g}" for value in x])
    axis.minorticks_off()


def plot_label_counts(result: Result, path: Path) -> None:
    """Draw Figure 2: accuracy against the number of labelled windows."""
    protocols = result["protocols"]
    figure, axes = new_figure(len(protocols), width=5.2, height=3.8)
    for axis, protocol in zip(axes[0], protocols, strict=True):
        for name in distinct_values(result["rows"], "method"):
            counts = distinct_values([row for row in result["rows"] if row["method"] == name], "labels")
            rows = [select_rows(result, protocol=protocol, method=name, labels=count) for count in counts]
            _draw_line(axis, counts, [percentages(some) for some in rows], name)
        axis.set(xscale="log", xlabel="labelled windows", ylabel="accuracy (%)", title=f"protocol {protocol}")
        _name_ticks(axis, sorted(distinct_values(result["rows"], "labels")))
    axes[0][-1].legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=130)


def plot_convergence(result: Result, path: Path) -> None:
    """Draw Figure 3: mean relative change of a row by round, at random and at learned bases."""
    figure, axes = new_figure(2)
    for axis, bases in zip(axes[0], ("random", "learned"), strict=True):
        rounds = distinct_values(result["rows"], "round")
        for seed in result["seeds"]:
            values = [row["difference"] for row in select_rows(result, bases=bases, seed=seed)]
            axis.plot(rounds, np.maximum(values, 1e-17), marker="o", markersize=3, linewidth=1, color="C0", alpha=0.6)
        axis.set(yscale="log", xlabel="round", ylabel="mean relative change", title=f"{bases} bases")
    figure.savefig(path, dpi=130)


def plot_hyperparameters(result: Result, path: Path) -> None:
    """Draw Figure 5: accuracy by rank, α, β, γ."""
    names = distinct_values(result["rows"], "parameter")
    figure, axes = new_figure(len(names), len(result["protocols"]), width=3.4, height=2.8)
    for line, protocol in zip(axes, result["protocols"], strict=True):
        line[0].set_ylabel("accuracy (%)")
        for axis, name in zip(line, names, strict=True):
            values = distinct_values([row for row in result["rows"] if row["parameter"] == name], "value")
            # A logarithmic axis cannot show 0, so draw it one step to the left of the smallest value.
            least = min(value for value in values if value > 0)
            x = [value if value > 0 else least / 5 for value in values]
            for probe in PROBES:
                rows = [select_rows(result, protocol=protocol, parameter=name, value=value) for value in values]
                _draw_line(axis, x, [percentages(some, probe) for some in rows], probe)
            axis.set(xscale="log", xlabel=name, title=f"protocol {protocol}")
            if name in ("rank", "gamma"):
                _name_ticks(axis, x)
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=130)


def framework_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the boxes of Figure 1: the steps from a window to its features, with actual shapes."""
    window, rank = list(settings.windows.shape[1:]), settings.parameters["rank"]
    shape = settings.tensorize.shape(*window)
    rows: list[Row] = [
        {"name": "window", "shape": window, "note": "channels × time"},
        {"name": "its augmentation", "shape": window, "note": repr(settings.augment)},
        {"name": "tensor of each", "shape": list(shape), "note": repr(settings.tensorize)},
        *(
            {"name": f"basis {name}", "shape": [size, rank], "note": ""}
            for name, size in zip("ABC", shape, strict=True)
        ),
        {"name": "features", "shape": [rank], "note": "ridge least squares on the bases"},
    ]
    return [{"seed": 0, **row} for row in rows]


def backbone_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the boxes of Figure 4: the layers of the backbone with the shapes of their outputs."""
    shape = settings.tensorize.shape(*settings.windows.shape[1:])
    network, T = Backbone(shape), torch.zeros(2, *shape)
    rows: list[Row] = [{"seed": 0, "note": "", "name": "STFT tensor", "shape": list(shape)}]
    with torch.no_grad():
        for part, layers in (("stem", network.stem), ("blocks", network.blocks)):
            for number, layer in enumerate(layers):
                T = layer(T)
                count = sum(weight.numel() for weight in layer.parameters())
                name, note = f"{part} {number} {type(layer).__name__}", f"{count:,} parameters"
                rows.append({"seed": 0, "note": note, "name": name, "shape": list(T.shape[1:])})
    return rows


def plot_boxes(result: Result, path: Path) -> None:
    """Draw Figures 1 and 4: the steps one below the other."""
    rows = result["rows"]
    figure, axes = new_figure(1, width=7.0, height=0.45 * len(rows) + 0.5)
    axis = axes[0, 0]
    axis.axis("off")
    axis.set(xlim=(0, 1), ylim=(-len(rows), 0.5))
    box = {"boxstyle": "round", "facecolor": "#e8eef7", "edgecolor": "#5b7bb2"}
    for number, row in enumerate(rows):
        text = f"{row['name']}:  {' × '.join(map(str, row['shape']))}  {row['note']}"
        axis.text(0.5, -number, text, ha="center", va="center", fontsize=8, bbox=box)
        if number:
            axis.annotate("", (0.5, -number + 0.3), (0.5, -number + 0.7), arrowprops={"arrowstyle": "->"})
    figure.savefig(path, dpi=130)
