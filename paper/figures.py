"""The plots of the paper's figures, and the data of the diagrams of the framework and the backbone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paper.results import new_figure
from paper.tables import Result, distinct_values, percentages, select_rows
from polyadic.core.tensorizer import tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from paper.methods import ExperimentSettings

Row = dict[str, Any]

_PROBES = ("plain", "standardised", "augmented")


def _draw_line(axis: Axes, x: list[float], samples: list[list[float]], label: str) -> None:
    """Draw means with error bars of one standard deviation."""
    middle = [float(np.mean(values)) for values in samples]
    spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in samples]
    axis.errorbar(x, middle, spread, marker="o", markersize=4, capsize=2, linewidth=1.3, label=label)


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
        counts = sorted(distinct_values(result["rows"], "labels"))
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.minorticks_off()
    axes[0][-1].legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=130)


def plot_convergence(result: Result, path: Path) -> None:
    """Draw Figure 3: mean relative change of a row by round, at random and at learned bases."""
    figure, axes = new_figure(2)
    for axis, bases in zip(axes[0], ("random", "learned"), strict=True):
        rounds = distinct_values(result["rows"], "round")
        for seed in result["seeds"]:
            values = [select_rows(result, bases=bases, round=number, seed=seed)[0]["difference"] for number in rounds]
            axis.plot(rounds, np.maximum(values, 1e-17), marker="o", markersize=3, linewidth=1, color="C0", alpha=0.6)
        axis.set(yscale="log", xlabel="round", ylabel="mean relative change", title=f"{bases} bases")
    figure.savefig(path, dpi=130)


def plot_hyperparameters(result: Result, path: Path) -> None:
    """Draw Figure 5: accuracy by rank, α, β, γ."""
    names = distinct_values(result["rows"], "parameter")
    figure, axes = new_figure(len(names), len(result["protocols"]), width=3.4, height=2.8)
    for line, protocol in zip(axes, result["protocols"], strict=True):
        for axis, name in zip(line, names, strict=True):
            values = distinct_values([row for row in result["rows"] if row["parameter"] == name], "value")
            # A logarithmic axis cannot show 0, so draw it one step to the left of the smallest value.
            least = min(value for value in values if value > 0)
            x = [value if value > 0 else least / 5 for value in values]
            for probe in _PROBES:
                rows = [select_rows(result, protocol=protocol, parameter=name, value=value) for value in values]
                _draw_line(axis, x, [percentages(some, probe) for some in rows], probe)
            axis.set(xscale="log", xlabel=name, title=f"protocol {protocol}")
            if name in ("rank", "gamma"):
                axis.set_xticks(x, [f"{value:g}" for value in values])
                axis.minorticks_off()
    axes[0][0].legend(fontsize=7)
    for line in axes:
        line[0].set_ylabel("accuracy (%)")
    figure.savefig(path, dpi=130)


def framework_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the boxes of Figure 1: the steps from a window to its features, with actual shapes."""
    batch = torch.from_numpy(settings.windows.read(np.arange(2))).float()
    T = tensors(settings.tensorize.calibrated(batch), batch)
    rank = int(settings.parameters.get("rank", 32))
    rows: list[Row] = [
        {"name": "window", "shape": list(batch.shape[1:]), "note": "channels × time"},
        {"name": "its augmentation", "shape": list(batch.shape[1:]), "note": repr(settings.augment)},
        {"name": "tensor of each", "shape": list(T.shape[1:]), "note": repr(settings.tensorize)},
    ]
    for letter, size in zip("ABC", T.shape[1:], strict=False):
        rows.append({"name": f"basis {letter}", "shape": [size, rank]})
    rows.append({"name": "features", "shape": [rank], "note": "ridge least squares on the bases"})
    # Store parts of the signals and tensors to plot, small enough for a JSON file.
    view = settings.augment(batch, torch.arange(2), seed=0, sweep=0)
    second = tensors(settings.tensorize.calibrated(batch), view)
    rows[0]["signal"], rows[1]["signal"] = (one[0, 0, :512].tolist() for one in (batch, view))
    rows[2]["pictures"] = [np.round(one[0, 0, :64, :64].tolist(), 3).tolist() for one in (T, second)]
    return [{"seed": 0, **row} for row in rows]


def plot_framework(result: Result, path: Path) -> None:
    """Draw Figure 1: a real window and its view, their tensors, and the bases that both share."""
    rows = result["rows"]
    figure, axes = new_figure(3, 2, width=3.6, height=2.3)
    for line, row, title in zip(axes, rows[:2], ("a window", "its augmentation"), strict=True):
        line[0].plot(row["signal"], linewidth=0.8)
        line[0].set_title(f"{title}, first channel", fontsize=9)
    for line, picture in zip(axes, rows[2]["pictures"], strict=True):
        line[1].imshow(picture, aspect="auto", origin="lower")
        line[1].grid(visible=False)
        line[1].set(xlabel="frame", ylabel="frequency")
        line[1].set_title("STFT: " + " × ".join(map(str, rows[2]["shape"])), fontsize=9)
    for axis in axes[:, 2]:
        axis.axis("off")
    bases = "\n".join(f"{row['name']}: {' × '.join(map(str, row['shape']))}" for row in rows[3:])
    text = "both ≈ x ∘ A ∘ B ∘ C\n\nfit + Tikhonov + self-supervised loss:\nx near its view's x, far from others'\n\n"
    axes[0, 2].text(0, 1, text + bases, va="top", fontsize=9)
    axes[1, 2].text(0, 1, "a logistic regression on\nfew labels scores x", va="top", fontsize=9)
    figure.savefig(path, dpi=130)


def backbone_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the boxes of Figure 4: the layers of the backbone with the shapes of their outputs."""
    from paper.baselines.networks import Backbone

    shape = settings.tensorize.shape(*settings.windows.shape[1:])
    network = Backbone(shape)
    rows: list[Row] = [{"name": "STFT tensor", "shape": list(shape), "parameters": 0}]

    def record_shape(name: str) -> Any:
        def hook(module: Any, _: Any, output: Any) -> None:
            count = sum(weight.numel() for weight in module.parameters())
            rows.append({"name": name, "shape": list(output.shape[1:]), "parameters": count})

        return hook

    for name, module in network.named_children():
        children = list(module.named_children()) if isinstance(module, torch.nn.Sequential) else []
        for inner, child in children or [("", module)]:
            kind = type(child).__name__.strip("_")
            child.register_forward_hook(record_shape(" ".join(word for word in (name, inner, kind) if word)))
    with torch.no_grad():
        network(torch.zeros(2, *shape))
    return [{"seed": 0, "note": f"{row['parameters']:,} parameters", **row} for row in rows]


def plot_backbone(result: Result, path: Path) -> None:
    """Draw Figure 4: the backbone, layer by layer."""
    rows = result["rows"]
    figure, axes = new_figure(1, width=5.0, height=0.45 * len(rows) + 0.5)
    axis = axes[0, 0]
    axis.axis("off")
    axis.set(xlim=(0, 1), ylim=(-len(rows), 0.5))
    for number, row in enumerate(rows):
        shape = " × ".join(str(size) for size in row["shape"])
        box = {"boxstyle": "round", "facecolor": "#e8eef7", "edgecolor": "#5b7bb2"}
        axis.text(
            0.5, -number, f"{row['name']}:  {shape}  ({row['note']})", ha="center", va="center", fontsize=8, bbox=box
        )
        if number:
            axis.annotate("", (0.5, -number + 0.3), (0.5, -number + 0.7), arrowprops={"arrowstyle": "->"})
    figure.savefig(path, dpi=130)
