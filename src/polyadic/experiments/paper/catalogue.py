"""Every table and figure of the paper as an experiment."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from polyadic import ATD, alignment
from polyadic.algebra import gram, project, ridge_inverse
from polyadic.als import initial_factors
from polyadic.augment import Augmentation, Compose, Jitter
from polyadic.errors import PolyadicError
from polyadic.evaluate import seconds_per_sweep
from polyadic.experiments.paper import figures, reference, tables, tuning
from polyadic.experiments.paper.methods import Arm, Context, Row, fitted, method
from polyadic.experiments.paper.runner import Experiment
from polyadic.presets import preset
from polyadic.tensorize import tensors

__all__ = ["EXPERIMENTS", "experiment"]

TENSOR = ("SALS", "GR-SALS", "ATD_ss-", "ATD")
DEEP = ("SimCLR-32", "SimCLR-128", "BYOL-32", "BYOL-128", "AE-32", "AE-128", "AE_ss-32", "AE_ss-128")
SIMPLE = ("PCA-32", "Hand", "MiniRocket", "CP-ALS")

_ROUNDS = (1, 2, 3, 4, 8)
_RANKS = (8, 16, 32, 64, 128)
_ALPHAS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_BETAS = (0.0, 1.0, 2.0, 5.0, 25.0, 125.0, 1e3, 1e4, 1e5)
_GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
_DEGREES = (0.02, 0.05, 0.1, 0.5, 5.0)
_COUNTS = (12, 24, 60, 120, 300, 600, 1200)
_CONVERGENCE_ROUNDS = 8


def _main(context: Context) -> list[Arm]:
    return [method(name) for name in (*DEEP, "CNN", *SIMPLE, "UMLDA", "STL", *TENSOR)]


def _timed(context: Context) -> list[Arm]:
    return [method(name) for name in (*DEEP, *TENSOR)]


def _views(context: Context) -> list[Arm]:
    """Those that learn from pairs of views, by what their views are made of, and their networks before they learn."""
    kinds: dict[str, dict[str, Any]] = {"untrained": {"max_epochs": 0}}
    kinds |= {name: {"views": name} for name in ("jitter alone", "jitter 0.05", "jitter 0.3", "no rotation", "all")}
    names = ("SimCLR-32", "BYOL-32", "AE_ss-32")
    return [method(name, {"views": word}, **changes) for word, changes in kinds.items() for name in names]


def _first_seed(context: Context) -> Context:
    return replace(context, seeds=range(1), protocols=context.protocols[:1])


def _eight(context: Context) -> list[Arm]:
    """The methods that work in sweeps or epochs, made to do eight of them."""
    deep = [method(name, max_epochs=8, patience=8) for name in (*DEEP, "CNN")]
    return deep + [method(name, max_sweeps=8, tol=0.0) for name in TENSOR]


def _clocked(arm: Arm, context: Context, seed: int) -> list[Row]:
    """Seconds a sweep by the rule of appendix D.7, and those of every sweep."""
    part = context.parts(context.protocols[0], seed)
    model, _ = fitted(arm, context, part, seed)
    every = [float(value) for value in model.history_["seconds"]]
    known = {"seconds": seconds_per_sweep(every), "every": every, "sweeps": len(every)}
    learned = len(part.unlabelled) if arm.kind == "features" else len(part.train)
    labels = {**arm.labels, "seed": seed, "protocol": context.protocols[0], "split": part.hash}
    return [{**labels, **known, "windows": learned, "parameters": int(model.n_parameters_)}]


def _rounds(context: Context) -> list[Arm]:
    return [method("ATD", {"rounds": rounds}, rounds=rounds) for rounds in _ROUNDS]


def _steps(context: Context) -> list[tuple[str, Augmentation]]:
    """The single augmentations of a dataset with the paper's letters."""
    steps = context.augment.steps if isinstance(context.augment, Compose) else (context.augment,)
    return list(zip(("(a)", "(b)", "(c)"), steps, strict=False))


def _augmentations(context: Context) -> list[Arm]:
    steps = _steps(context)
    arms = []
    for count in range(1, len(steps) + 1):
        for chosen in combinations(steps, count):
            name = "+".join(letter for letter, _ in chosen)
            views = Compose([step for _, step in chosen])
            arms.append(method("ATD", {"augmentations": name}, augment=views))
    return arms


def _quality(context: Context) -> list[Arm]:
    """SALS and ATD as references, the degrees of the jitter, and the paper's (A), (B), (C) where it defines them."""
    steps = [step for _, step in _steps(context)]
    one = {"arm": "accuracy"}
    arms = [method(name, {"augmentations": name, **one}) for name in ("SALS", "ATD")]
    for degree in _DEGREES:
        views = Compose([Jitter(degree), *steps[1:]])
        arms.append(method("ATD", {"augmentations": f"d={degree:g}", **one}, augment=views))
    if context.dataset in ("har", "mgh"):
        for letter in ("A", "B", "C"):
            poor = preset(context.dataset, context.windows.fs, quality=letter).augment
            arms.append(method("ATD", {"augmentations": f"({letter})", **one}, augment=poor))
    return arms


def _ranks(context: Context) -> list[Arm]:
    ranks = _RANKS if context.dataset != "synthetic" else (2, 4)
    return [method(name, {"rank": rank}, rank=rank) for name in TENSOR for rank in ranks]


def _supervised(context: Context) -> list[Arm]:
    return [method(name) for name in ("UMLDA", "STL", "ATD")]


def _labels(context: Context) -> list[Arm]:
    counts = _COUNTS if context.dataset != "synthetic" else (9, 12)
    names = (*TENSOR, "SimCLR-32", "BYOL-32", "AE-32", "AE_ss-32", "CNN")
    return [method(name, counts=counts) for name in names]


def _hyperparameters(context: Context) -> list[Arm]:
    batch = int(context.parameters.get("batch_size", 128))
    if context.dataset == "synthetic":
        return [method("ATD", {"parameter": "beta", "value": value}, beta=value) for value in (0.0, 2.0)]
    grids: dict[str, tuple[Any, ...]] = {
        "rank": _RANKS,
        "alpha": _ALPHAS,
        "beta": _BETAS,
        "gamma": tuple(share * batch for share in _GAMMAS),
    }
    return [
        method("ATD", {"parameter": name, "value": value}, **{name: value})
        for name, values in grids.items()
        for value in values
    ]


def _sizes(context: Context) -> list[Row]:
    rows: list[Row] = []
    for protocol in context.protocols:
        part = context.parts(protocol, 0)
        rows.append(
            {
                "protocol": protocol,
                "seed": 0,
                "split": part.hash,
                "unlabelled": len(part.unlabelled),
                "train": len(part.train),
                "test": len(part.test),
                "subjects": [len(set(windows.subject.tolist())) for windows in part],
                "tensor": list(context.tensorize.shape(*context.windows.shape[1:])),
            }
        )
    return rows


def _distribution(context: Context) -> list[Row]:
    labels = context.windows.label[context.windows.label >= 0]
    counts = np.bincount(labels, minlength=len(context.windows.classes))
    return [
        {"class": name, "seed": 0, "windows": int(count), "percent": 100 * float(count) / len(labels)}
        for name, count in zip(context.windows.classes, counts, strict=True)
    ]


def _convergence(context: Context) -> list[Row]:
    """Mean relative change of a row by round, on a batch, at random and at learned bases (appendix B)."""
    rows: list[Row] = []
    size = int(context.parameters.get("batch_size", 128))
    for seed in context.seeds:
        unlabelled, _, _ = context.parts(context.protocols[0], seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # whether it converges is what is measured here
            model = method("ATD").make(context, seed).fit(unlabelled)
        assert isinstance(model, ATD)
        batch = torch.from_numpy(unlabelled.read(np.arange(min(size, len(unlabelled))))).float()
        views = torch.cat([batch, context.augment(batch, torch.arange(len(batch)), seed=seed, sweep=0)])
        T = tensors(model.tensorize_, views).double()
        learned = [torch.from_numpy(factor).double() for factor in model.factors_]
        random = initial_factors(T.shape[1:], model.rank, seed, torch.float64, torch.device("cpu"))
        for bases, factors in (("random", random), ("learned", learned)):
            V = ridge_inverse(gram(factors), float(model.alpha))
            first, second = (project(T, factors) @ V).chunk(2)
            v2 = alignment.pull(second, float(len(first)))
            differences = alignment.convergence(first, V, v2, float(model.beta), rounds=_CONVERGENCE_ROUNDS)
            rows += [
                {"bases": bases, "seed": seed, "round": number + 1, "difference": float(value)}
                for number, value in enumerate(differences)
            ]
    return rows


def _their_rounds(dataset: str, row: Any, value: Any) -> reference.Figure | None:
    found = reference.ROUNDS.get(dataset, {}).get(value)
    return None if found is None else found[1]


def _their_augmentations(dataset: str, row: Any, value: Any) -> reference.Figure | None:
    return reference.AUGMENTATIONS.get(dataset, {}).get(value)


def _their_quality(dataset: str, row: Any, value: Any) -> reference.Figure | None:
    degree = float(value.removeprefix("d=")) if str(value).startswith("d=") else None
    if degree is not None:
        return reference.JITTER.get(dataset, {}).get(degree)
    return reference.QUALITY.get(dataset, {}).get(value)


def _their_ranks(dataset: str, row: Any, value: Any) -> reference.Figure | None:
    return reference.RANKS.get(dataset, {}).get(row, {}).get(value)


def _their_views(dataset: str, row: Any, value: Any) -> reference.Figure | None:
    return reference.MAIN.get(row, {}).get(dataset) if value == "all" else None


def _unknown(dataset: str, row: Any, value: Any) -> None:
    return None


_BATCH_64 = {"har": {"batch_size": 64}}
# A sweep over few windows has few steps: 50 of them end before the tensor methods have converged.
_CONVERGED = {"ptb_xl": {"max_sweeps": 300}}
_ROUND_TABLE: dict[str, Any] = {
    "title": "Rounds of the iterative rule",
    "arms": _rounds,
    "markdown": tables.grid("method", "rounds", _their_rounds, seconds=True),
}
_AUGMENTATION_TABLE: dict[str, Any] = {
    "title": "Augmentations: (a) jittering, (b) bandpass, (c) rotation",
    "arms": _augmentations,
    "markdown": tables.grid("method", "augmentations", _their_augmentations),
    "ablation": True,
    "change": _BATCH_64,
}
_RANK_TABLE: dict[str, Any] = {
    "title": "Tensor methods by rank",
    "arms": _ranks,
    "markdown": tables.grid("method", "rank", _their_ranks),
    "ablation": True,
}
_TIMED_TABLE: dict[str, Any] = {
    "title": "Significance and time",
    "arms": _timed,
    "markdown": tables.timed_table,
    "change": _CONVERGED,
}

EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment("Sizes", tuple(reference.DATASETS), figures.sizes_table, special=_sizes),
    "table2": Experiment(
        "Main comparison", tuple(reference.DATASETS), tables.main_table, arms=_main, change=_CONVERGED
    ),
    "table3": Experiment(datasets=("har",), **_ROUND_TABLE),
    "table4": Experiment(datasets=("sleep_edf",), **_ROUND_TABLE),
    "table5": Experiment("Classes", tuple(reference.DATASETS), figures.distribution_table, special=_distribution),
    "table6": Experiment(datasets=("mgh",), **_AUGMENTATION_TABLE),
    "table7": Experiment(datasets=("har",), **_AUGMENTATION_TABLE),
    "table8": Experiment(
        "Low-quality augmentations",
        ("mgh", "har"),
        tables.grid("arm", "augmentations", _their_quality),
        arms=_quality,
        ablation=True,
        change=_BATCH_64,
    ),
    "table9": Experiment(datasets=("har",), **_RANK_TABLE),
    "table10": Experiment(datasets=("sleep_edf",), **_RANK_TABLE),
    "table11": Experiment(datasets=("sleep_edf", "har"), **_TIMED_TABLE),
    "table12": Experiment(datasets=("ptb_xl", "mgh"), **_TIMED_TABLE),
    "table13": Experiment(
        "Supervised tensor learning", tuple(reference.DATASETS), tables.main_table, arms=_supervised, change=_CONVERGED
    ),
    "tune": Experiment(
        "Settings by the same number of tries",
        tuple(reference.DATASETS),
        tuning.tuning_table,
        arms=tuning.arms,
        prepare=tuning.untested,
        judge=tuning.tried,
        also=tuning.chosen,
        change=_CONVERGED,
    ),
    "views": Experiment(
        "What views are made of, for those that learn from pairs of them",
        ("har",),
        tables.grid("method", "views", _their_views),
        arms=_views,
    ),
    "seconds": Experiment(
        "Seconds a sweep or epoch: eight, the first three dropped",
        ("har", "sleep_edf", "ptb_xl", "mgh"),
        tables.seconds_table,
        arms=_eight,
        prepare=_first_seed,
        judge=_clocked,
        alone=True,
    ),
    "figure1": Experiment(
        "The framework",
        tuple(reference.DATASETS),
        figures.shapes_table,
        special=figures.framework_rows,
        plot=figures.framework,
    ),
    "figure2": Experiment(
        "Accuracy by labelled windows",
        ("mgh", "har"),
        tables.grid("method", "labels", _unknown),
        arms=_labels,
        plot=figures.by_labels,
    ),
    "figure3": Experiment(
        "Convergence of the iterative rule",
        ("har", "sleep_edf"),
        figures.convergence_table,
        special=_convergence,
        plot=figures.convergence,
    ),
    "figure4": Experiment(
        "The backbone",
        tuple(reference.DATASETS),
        figures.shapes_table,
        special=figures.backbone_rows,
        plot=figures.backbone,
    ),
    "figure5": Experiment(
        "Hyperparameters of ATD",
        ("sleep_edf", "har"),
        figures.hyperparameter_table,
        arms=_hyperparameters,
        plot=figures.hyperparameters,
        ablation=True,
    ),
}


def experiment(name: str) -> Experiment:
    """An experiment by its name."""
    if name not in EXPERIMENTS:
        raise PolyadicError(f"NAME must be one of {', '.join(EXPERIMENTS)}, speed or race, but is {name!r}")
    return EXPERIMENTS[name]
