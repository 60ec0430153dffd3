"""Every table and figure of the paper as an experiment."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from paper import figures, reference, tables
from paper.methods import PROTOCOLS, ExperimentSettings, Row, Variant
from paper.runner import Experiment
from polyadic.augment import Augmentation, Compose, Jitter
from polyadic.core import alignment
from polyadic.core.algebra import gram, initial_factors, project, ridge_inverse
from polyadic.core.tensorizer import tensors
from polyadic.presets import preset

TENSOR = ("SALS", "GR-SALS", "ATD_ss-", "ATD")
DEEP = ("SimCLR-32", "SimCLR-128", "BYOL-32", "BYOL-128", "AE-32", "AE-128", "AE_ss-32", "AE_ss-128")
SIMPLE = ("PCA-32", "Hand", "MiniRocket")

_ROUNDS = (1, 2, 3, 4, 8)
_RANKS = (8, 16, 32, 64, 128)
_ALPHAS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_BETAS = (0.0, 1.0, 2.0, 5.0, 25.0, 125.0, 1e3, 1e4, 1e5)
_GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
_LOW_QUALITY_BANDS = {"har": ((1, 5), (20, 24.5)), "mgh": ((1, 10), (30, 50))}
_DEGREES = (0.02, 0.05, 0.1, 0.5, 5.0)
_COUNTS = (12, 24, 60, 120, 300, 600, 1200)
_CONVERGENCE_ROUNDS = 8

# ------------------------------------------------------------------------------------------------ methods and settings


def _methods(*names: str) -> Callable[[ExperimentSettings], list[Variant]]:
    """Return a function that returns these methods, for `Experiment.variants`."""
    return lambda settings: [Variant(name) for name in names]


def _round_variants(settings: ExperimentSettings) -> list[Variant]:
    return [Variant("ATD", {"rounds": rounds}, {"rounds": rounds}) for rounds in _ROUNDS]


def _steps(settings: ExperimentSettings) -> list[Augmentation]:
    """Return the single augmentations of a dataset, which the paper calls (a), (b) and (c)."""
    return list(settings.augment.steps) if isinstance(settings.augment, Compose) else [settings.augment]


def _augmentation_variants(settings: ExperimentSettings) -> list[Variant]:
    """Return ATD with every combination of the augmentations."""
    steps = list(zip(("(a)", "(b)", "(c)"), _steps(settings), strict=False))
    variants = []
    for chosen in (some for count in range(len(steps)) for some in combinations(steps, count + 1)):
        letters, views = zip(*chosen, strict=True)
        variants.append(Variant("ATD", {"augmentations": "+".join(letters)}, augment=Compose(views)))
    return variants


def _quality_variants(settings: ExperimentSettings) -> list[Variant]:
    """Return SALS and ATD as references, degrees of jitter, and the paper's (A), (B), (C) if defined."""
    views: dict[str, Augmentation] = {f"d={d:g}": Compose([Jitter(d), *_steps(settings)[1:]]) for d in _DEGREES}
    if settings.dataset in _LOW_QUALITY_BANDS:
        for letter in "ABC":
            views[f"({letter})"] = low_quality_augmentation(settings.dataset, settings.windows.fs, letter)
    # The table has a single row, which is identified by this label in stored results.
    line = {"arm": "accuracy"}
    references = [Variant(name, {"augmentations": name, **line}) for name in ("SALS", "ATD")]
    return references + [Variant("ATD", {"augmentations": name, **line}, {}, one) for name, one in views.items()]


def low_quality_augmentation(dataset: str, fs: float | None, letter: str) -> Compose:
    """Return an augmentation of Table 8: noise as large as the signal (A), no middle frequencies (B), or both (C)."""
    jitter, bandpass, *rest = preset(dataset, fs).augment.steps
    if letter in "AC":
        jitter = Jitter(1.0)
    if letter in "BC":
        bandpass = replace(bandpass, bands=_LOW_QUALITY_BANDS[dataset])
    return Compose([jitter, bandpass, *rest])


def _rank_variants(settings: ExperimentSettings) -> list[Variant]:
    ranks = _RANKS if settings.dataset != "synthetic" else (2, 4)
    return [Variant(name, {"rank": rank}, {"rank": rank}) for name in TENSOR for rank in ranks]


def _label_count_variants(settings: ExperimentSettings) -> list[Variant]:
    counts = _COUNTS if settings.dataset != "synthetic" else (9, 12)
    names = (*TENSOR, "SimCLR-32", "BYOL-32", "AE-32", "AE_ss-32", "CNN")
    return [Variant(name, label_counts=counts) for name in names]


def _hyperparameter_variants(settings: ExperimentSettings) -> list[Variant]:
    """Return ATD with one of its hyperparameters changed at a time."""
    gammas = tuple(share * settings.parameters["batch_size"] for share in _GAMMAS)
    grids: dict[str, tuple[Any, ...]] = {"rank": _RANKS, "alpha": _ALPHAS, "beta": _BETAS, "gamma": gammas}
    if settings.dataset == "synthetic":
        grids = {"beta": (0.0, 2.0)}
    return [
        Variant("ATD", {"parameter": name, "value": value}, {name: value})
        for name, values in grids.items()
        for value in values
    ]


# ----------------------------------------------------------------------------------------------- rows without methods


def _size_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the sizes of the parts of the split, by protocol."""
    rows: list[Row] = []
    for protocol in PROTOCOLS:
        part = settings.split_for(protocol, 0)
        row: Row = {"protocol": protocol, "seed": 0, "split": part.hash}
        row |= {name: len(getattr(part, name)) for name in ("unlabelled", "train", "test")}
        row["subjects"] = [len(set(windows.subject.tolist())) for windows in part]
        rows.append(row | {"tensor": list(settings.tensorize.shape(*settings.windows.shape[1:]))})
    return rows


def _class_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the number of windows of every class."""
    labels = settings.windows.label[settings.windows.label >= 0]
    counts = np.bincount(labels, minlength=len(settings.windows.classes))
    return [
        {"class": name, "seed": 0, "windows": int(count), "percent": 100 * float(count) / len(labels)}
        for name, count in zip(settings.windows.classes, counts, strict=True)
    ]


def _convergence_rows(settings: ExperimentSettings) -> list[Row]:
    """Return the mean relative change of a row by round, on a batch, at random and at learned bases (appendix B)."""
    rows: list[Row] = []
    size = settings.parameters["batch_size"]
    for seed in settings.seeds:
        unlabelled, _, _ = settings.split_for("subject", seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the experiment measures convergence
            model = Variant("ATD").build(settings, seed).fit(unlabelled)
        batch = torch.from_numpy(unlabelled.read(np.arange(min(size, len(unlabelled))))).float()
        views = torch.cat([batch, settings.augment(batch, torch.arange(len(batch)), seed=seed, sweep=0)])
        T = tensors(model.tensorize_, views).double()
        learned = [torch.from_numpy(factor).double() for factor in model.factors_]
        random = initial_factors(T.shape[1:], model.rank, seed, torch.float64, torch.device("cpu"))
        for bases, factors in (("random", random), ("learned", learned)):
            V = ridge_inverse(gram(factors), model.alpha)
            first, second = (project(T, factors) @ V).chunk(2)
            v2 = alignment.pull(second, float(len(first)))
            differences = alignment.convergence(first, V, v2, model.beta, rounds=_CONVERGENCE_ROUNDS)
            rows += [
                {"bases": bases, "seed": seed, "round": number + 1, "difference": float(value)}
                for number, value in enumerate(differences)
            ]
    return rows


# --------------------------------------------------------------------------------------------- the paper's experiments


_ALL = tuple(reference.DATASETS)
_BATCH_64 = {"har": {"batch_size": 64}}
# A sweep over few windows has few steps: 50 sweeps are not enough for the tensor methods to converge.
_CONVERGED = {"ptb_xl": {"max_sweeps": 300}}
_ROUND_TABLE: dict[str, Any] = {
    "title": "Rounds of the iterative rule",
    "variants": _round_variants,
    "table": tables.grid_table("method", "rounds", reference.ROUNDS, seconds=True),
}
_AUGMENTATION_TABLE: dict[str, Any] = {
    "title": "Augmentations: (a) jittering, (b) bandpass, (c) rotation",
    "variants": _augmentation_variants,
    "table": tables.grid_table("method", "augmentations", reference.AUGMENTATIONS),
    "ablation": True,
    "parameters": _BATCH_64,
}
_RANK_TABLE: dict[str, Any] = {
    "title": "Tensor methods by rank",
    "variants": _rank_variants,
    "table": tables.grid_table("method", "rank", reference.RANKS),
    "ablation": True,
}
_TIMED_TABLE: dict[str, Any] = {
    "title": "Significance and time",
    "variants": _methods(*DEEP, *TENSOR),
    "table": tables.timed_table,
    "parameters": _CONVERGED,
}
_EVERY_METHOD = _methods(*DEEP, "CNN", *SIMPLE, "UMLDA", "STL", *TENSOR)
_SUPERVISED = _methods("UMLDA", "STL", "ATD")
_QUALITY_GRID = tables.grid_table("arm", "augmentations", reference.QUALITY)
_LABEL_GRID = tables.grid_table("method", "labels", {})

EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment("Sizes", _ALL, tables.sizes_table, build_rows=_size_rows),
    "table2": Experiment("Main comparison", _ALL, tables.main_table, _EVERY_METHOD, parameters=_CONVERGED),
    "table3": Experiment(datasets=("har",), **_ROUND_TABLE),
    "table4": Experiment(datasets=("sleep_edf",), **_ROUND_TABLE),
    "table5": Experiment("Classes", _ALL, tables.distribution_table, build_rows=_class_rows),
    "table6": Experiment(datasets=("mgh",), **_AUGMENTATION_TABLE),
    "table7": Experiment(datasets=("har",), **_AUGMENTATION_TABLE),
    "table8": Experiment("Low-quality augmentations", ("mgh", "har"), _QUALITY_GRID, _quality_variants, ablation=True,
                         parameters=_BATCH_64),
    "table9": Experiment(datasets=("har",), **_RANK_TABLE),
    "table10": Experiment(datasets=("sleep_edf",), **_RANK_TABLE),
    "table11": Experiment(datasets=("sleep_edf", "har"), **_TIMED_TABLE),
    "table12": Experiment(datasets=("ptb_xl", "mgh"), **_TIMED_TABLE),
    "table13": Experiment("Supervised tensor learning", _ALL, tables.main_table, _SUPERVISED, parameters=_CONVERGED),
    "figure1": Experiment("The framework", _ALL, tables.shapes_table, build_rows=figures.framework_rows,
                          plot=figures.plot_boxes),
    "figure2": Experiment("Accuracy by labelled windows", ("mgh", "har"), _LABEL_GRID, _label_count_variants,
                          plot=figures.plot_label_counts),
    "figure3": Experiment("Convergence of the iterative rule", ("har", "sleep_edf"), tables.convergence_table,
                          build_rows=_convergence_rows, plot=figures.plot_convergence),
    "figure4": Experiment("The backbone", _ALL, tables.shapes_table, build_rows=figures.backbone_rows,
                          plot=figures.plot_boxes),
    "figure5": Experiment("Hyperparameters of ATD", ("sleep_edf", "har"), tables.hyperparameter_table,
                          _hyperparameter_variants, plot=figures.plot_hyperparameters, ablation=True),
}  # fmt: skip
