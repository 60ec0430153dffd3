"""Tables of the experiments that are not about accuracy, and the plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polyadic.engine.batches import tensors
from polyadic.experiments.paper import reference
from polyadic.experiments.paper.tables import Result, distinct, footer, heading, mean, of, percent, table
from polyadic.files import open_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from polyadic.experiments.paper.methods import Context

__all__ = [
    "backbone",
    "backbone_rows",
    "by_labels",
    "canvas",
    "convergence",
    "convergence_table",
    "distribution_table",
    "framework",
    "framework_rows",
    "hyperparameter_table",
    "hyperparameters",
    "save",
    "shapes_table",
    "sizes_table",
]

Row = dict[str, Any]

_PROBES = ("plain", "standardised", "augmented")


# ---------------------------------------------------------------------- tables


def sizes_table(result: Result) -> str:
    """Table 1."""
    lines = []
    for row in result["rows"]:
        people = " / ".join(str(count) for count in row["subjects"])
        shape = " × ".join(str(size) for size in row["tensor"])
        counts = [f"{row[part]:,}" for part in ("unlabelled", "train", "test")]
        lines.append([f"protocol {row['protocol']}", shape, *counts, people])
    theirs = reference.SIZES.get(result["dataset"])
    if theirs is not None:
        lines.append(["the paper", "", *(f"{count:,}" for count in theirs), ""])
    heads = ["", "tensor", "unlabelled", "training", "test", "people in each"]
    return "\n".join([heading(result), table(heads, lines), footer(result)])


def distribution_table(result: Result) -> str:
    """Table 5."""
    theirs = reference.DISTRIBUTION.get(result["dataset"], ())
    lines = [
        [row["class"], f"{row['windows']:,}", f"{row['percent']:.2f}", f"{theirs[n]:.2f}" if n < len(theirs) else "–"]
        for n, row in enumerate(result["rows"])
    ]
    return "\n".join([heading(result), table(["class", "windows", "percent", "paper"], lines), footer(result)])


def convergence_table(result: Result) -> str:
    """Figure 3 as numbers."""
    rounds = distinct(result["rows"], "round")
    lines = []
    for bases in ("random", "learned"):
        values = [[row["difference"] for row in of(result, bases=bases, round=number)] for number in rounds]
        lines.append([f"{bases} bases", *(f"{np.mean(found):.2e}" for found in values)])
    heads = ["mean relative change in round", *(str(number) for number in rounds)]
    return "\n".join([heading(result), table(heads, lines), footer(result)])


def hyperparameter_table(result: Result) -> str:
    """Figure 5 as numbers, with the self-supervised term relative to the fit term."""
    text = []
    for protocol in result["protocols"]:
        lines = []
        for name in distinct(result["rows"], "parameter"):
            for value in distinct([row for row in result["rows"] if row["parameter"] == name], "value"):
                rows = of(result, protocol=protocol, parameter=name, value=value)
                share = np.mean([row["share_of_self_supervised"] for row in rows])
                accuracies = [mean(percent(rows, probe)) for probe in _PROBES]
                rough = mean(percent(rows, "standardised perturbed"))
                lines.append([f"{name} = {value:g}", *accuracies, rough, f"{share:.1e}"])
        heads = ["", *_PROBES, "perturbed: standardised", "self-supervised / fit term"]
        text += [heading(result, protocol), table(heads, lines)]
    return "\n".join([*text, footer(result)])


def shapes_table(result: Result) -> str:
    """Names and shapes of what a drawing shows."""
    lines = [
        [row["name"], " × ".join(str(size) for size in row["shape"]), row.get("note", "")] for row in result["rows"]
    ]
    return "\n".join([heading(result), table(["", "shape", ""], lines), footer(result)])


# --------------------------------------------------------------------- drawing


def canvas(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """An empty drawing with a grid of axes: the figure, and its axes (rows, columns)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(rows, columns, squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return drawing, axes


def save(drawing: Figure, path: Path) -> None:
    """Write a drawing as a picture."""
    with open_atomically(path) as file:
        drawing.savefig(file, format=path.suffix[1:], dpi=130)


def _line(axis: Axes, x: list[float], rows: list[list[float]], label: str) -> None:
    middle = [float(np.mean(values)) for values in rows]
    spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in rows]
    axis.errorbar(x, middle, spread, marker="o", markersize=4, capsize=2, linewidth=1.3, label=label)


def by_labels(result: Result, path: Path) -> None:
    """Figure 2: accuracy against the number of labelled windows."""
    protocols = result["protocols"]
    drawing, axes = canvas(len(protocols), width=5.2, height=3.8)
    for axis, protocol in zip(axes[0], protocols, strict=True):
        for name in distinct(result["rows"], "method"):
            counts = distinct([row for row in result["rows"] if row["method"] == name], "labels")
            _line(axis, counts, [percent(of(result, protocol=protocol, method=name, labels=c)) for c in counts], name)
        axis.set(xscale="log", xlabel="labelled windows", ylabel="accuracy in %", title=f"protocol {protocol}")
        counts = sorted(distinct(result["rows"], "labels"))
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.minorticks_off()
    axes[0][-1].legend(fontsize=7, loc="lower right")
    save(drawing, path)


def convergence(result: Result, path: Path) -> None:
    """Figure 3: mean relative change of a row by round, at random and at learned bases."""
    drawing, axes = canvas(2)
    for axis, bases in zip(axes[0], ("random", "learned"), strict=True):
        rounds = distinct(result["rows"], "round")
        for seed in result["seeds"]:
            values = [of(result, bases=bases, round=number, seed=seed)[0]["difference"] for number in rounds]
            axis.plot(rounds, np.maximum(values, 1e-17), marker="o", markersize=3, linewidth=1, color="C0", alpha=0.6)
        axis.set(yscale="log", xlabel="round", ylabel="mean relative change", title=f"{bases} bases")
    save(drawing, path)


def hyperparameters(result: Result, path: Path) -> None:
    """Figure 5: accuracy by rank, α, β, γ."""
    names = distinct(result["rows"], "parameter")
    drawing, axes = canvas(len(names), len(result["protocols"]), width=3.4, height=2.8)
    for line, protocol in zip(axes, result["protocols"], strict=True):
        for axis, name in zip(line, names, strict=True):
            values = distinct([row for row in result["rows"] if row["parameter"] == name], "value")
            # A value of 0 has no place on a logarithmic axis; it stands a step to the left.
            least = min(value for value in values if value > 0)
            x = [value if value > 0 else least / 5 for value in values]
            for probe in _PROBES:
                found = [percent(of(result, protocol=protocol, parameter=name, value=v), probe) for v in values]
                _line(axis, x, found, probe)
            axis.set(xscale="log", xlabel=name, title=f"protocol {protocol}")
            if name in ("rank", "gamma"):
                axis.set_xticks(x, [f"{value:g}" for value in values])
                axis.minorticks_off()
    axes[0][0].legend(fontsize=7)
    for line in axes:
        line[0].set_ylabel("accuracy in %")
    save(drawing, path)


def framework_rows(context: Context) -> list[Row]:
    """Figure 1's boxes: what becomes of a window, with the shapes of the real things."""
    batch = torch.from_numpy(context.windows.read(np.arange(2))).float()
    T = tensors(context.tensorize.fitted(batch), batch)
    rank = int(context.parameters.get("rank", 32))
    rows: list[Row] = [
        {"name": "window", "shape": list(batch.shape[1:]), "note": "channels × time"},
        {"name": "its augmentation", "shape": list(batch.shape[1:]), "note": repr(context.augment)},
        {"name": "tensor of each", "shape": list(T.shape[1:]), "note": repr(context.tensorize)},
    ]
    for letter, size in zip("ABC", T.shape[1:], strict=False):
        rows.append({"name": f"basis {letter}", "shape": [size, rank]})
    rows.append({"name": "features", "shape": [rank], "note": "ridge least squares on the bases"})
    # The pictures themselves, small enough for a JSON file.
    view = context.augment(batch, torch.arange(2), seed=0, sweep=0)
    second = tensors(context.tensorize.fitted(batch), view)
    rows[0]["signal"], rows[1]["signal"] = (one[0, 0, :512].tolist() for one in (batch, view))
    rows[2]["pictures"] = [np.round(one[0, 0, :64, :64].tolist(), 3).tolist() for one in (T, second)]
    return [{"seed": 0, **row} for row in rows]


def framework(result: Result, path: Path) -> None:
    """Figure 1: a real window and its view, their tensors, and the bases that both are decomposed into."""
    rows = result["rows"]
    drawing, axes = canvas(3, 2, width=3.6, height=2.3)
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
    axes[1, 2].text(0, 1, "a logistic regression on\nfew labels judges x", va="top", fontsize=9)
    save(drawing, path)


def backbone_rows(context: Context) -> list[Row]:
    """Figure 4's boxes: the layers of the real backbone with the shapes that go through them."""
    from polyadic.baselines.backbone import Backbone

    shape = context.tensorize.shape(*context.windows.shape[1:])
    network = Backbone(shape)
    rows: list[Row] = [{"name": "STFT tensor", "shape": list(shape), "parameters": 0}]

    def seen(name: str) -> Any:
        def hook(module: Any, _: Any, output: Any) -> None:
            count = sum(weight.numel() for weight in module.parameters())
            rows.append({"name": name, "shape": list(output.shape[1:]), "parameters": count})

        return hook

    for name, module in network.named_children():
        children = list(module.named_children()) if isinstance(module, torch.nn.Sequential) else []
        for inner, child in children or [("", module)]:
            kind = type(child).__name__.strip("_")
            child.register_forward_hook(seen(" ".join(word for word in (name, inner, kind) if word)))
    with torch.no_grad():
        network(torch.zeros(2, *shape))
    return [{"seed": 0, "note": f"{row['parameters']:,} parameters", **row} for row in rows]


def backbone(result: Result, path: Path) -> None:
    """Figure 4: the backbone, layer by layer."""
    rows = result["rows"]
    drawing, axes = canvas(1, width=5.0, height=0.45 * len(rows) + 0.5)
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
    save(drawing, path)
