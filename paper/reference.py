"""The results reported in the paper, Tables 1 to 13, for comparison with ours."""

from __future__ import annotations

from typing import TypeVar

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "DISTRIBUTION",
    "JITTER",
    "MAIN",
    "PARAMETERS",
    "P_VALUES",
    "QUALITY",
    "RANKS",
    "ROUNDS",
    "SECONDS",
    "SIZES",
    "SUPERVISED",
]

_T = TypeVar("_T")

MeanAndStd = tuple[float, float]
"""Mean and standard deviation of an accuracy in percent."""

DATASETS = {"sleep_edf": "Sleep-EDF", "har": "HAR", "ptb_xl": "PTB-XL", "mgh": "MGH"}

SIZES = {
    "sleep_edf": (331_208, 42_803, 41_078),
    "har": (7_352, 1_473, 1_474),
    "ptb_xl": (17_469, 2_183, 2_185),
    "mgh": (4_377_170, 238_312, 248_041),
}
"""Table 1: unlabelled, training and test windows."""

DISTRIBUTION = {
    "sleep_edf": (68.8, 5.2, 16.6, 3.2, 6.2),
    "har": (16.72, 14.99, 13.65, 17.25, 18.51, 18.88),
    "ptb_xl": (52.11, 47.89),
    "mgh": (44.3, 9.9, 14.4, 17.6, 13.8),
}
"""Table 5: classes in percent."""


def _by_dataset(rows: dict[str, tuple[_T, _T, _T, _T]]) -> dict[str, dict[str, _T]]:
    return {method: dict(zip(DATASETS, values, strict=True)) for method, values in rows.items()}


MAIN: dict[str, dict[str, MeanAndStd]] = _by_dataset(
    {
        "SimCLR-32": ((84.98, 0.358), (74.75, 0.723), (69.25, 0.355), (67.34, 0.970)),
        "SimCLR-128": ((85.19, 0.358), (76.69, 0.697), (68.19, 0.793), (66.98, 1.331)),
        "BYOL-32": ((84.29, 0.405), (73.71, 2.832), (65.08, 1.535), (68.83, 1.168)),
        "BYOL-128": ((83.26, 0.337), (71.79, 1.866), (65.49, 0.612), (68.55, 1.339)),
        "AE-32": ((74.78, 0.723), (63.13, 0.775), (59.01, 0.896), (68.58, 0.427)),
        "AE-128": ((75.17, 0.897), (60.52, 1.604), (58.29, 0.412), (67.05, 1.375)),
        "AE_ss-32": ((80.92, 0.345), (71.70, 2.135), (68.47, 0.231), (71.46, 0.386)),
        "AE_ss-128": ((81.84, 0.259), (72.43, 1.370), (68.88, 0.604), (70.19, 0.617)),
        "SALS": ((84.27, 0.481), (91.86, 0.295), (69.15, 0.483), (71.93, 0.379)),
        "GR-SALS": ((84.33, 0.356), (92.33, 0.282), (69.02, 0.477), (72.35, 0.228)),
        "ATD_ss-": ((84.19, 0.221), (92.41, 0.391), (69.38, 0.612), (72.78, 0.522)),
        "ATD": ((85.01, 0.224), (93.35, 0.357), (70.26, 0.523), (74.15, 0.431)),
    }
)
"""Table 2: accuracy by method and dataset."""

PARAMETERS: dict[str, dict[str, int]] = _by_dataset(
    {
        "SimCLR-32": (210_384, 53_286, 200_960, 212_624),
        "SimCLR-128": (222_768, 65_670, 237_920, 246_608),
        "BYOL-32": (211_440, 54_342, 202_016, 214_736),
        "BYOL-128": (239_280, 82_182, 254_432, 279_632),
        "AE-32": (217_216, 62_940, 224_528, 220_088),
        "AE-128": (241_888, 87_612, 298_352, 257_048),
        "AE_ss-32": (217_216, 62_940, 224_528, 220_088),
        "AE_ss-128": (241_888, 87_612, 298_352, 257_048),
        "SALS": (7_328, 2_688, 7_296, 9_984),
        "GR-SALS": (7_328, 2_688, 7_296, 9_984),
        "ATD_ss-": (7_328, 2_688, 7_296, 9_984),
        "ATD": (7_328, 2_688, 7_296, 9_984),
    }
)
"""Table 2: learnable parameters."""

SECONDS: dict[str, dict[str, float]] = _by_dataset(
    {
        "SimCLR-32": (260.299, 8.459, 18.714, 1449.368),
        "SimCLR-128": (265.809, 8.532, 19.037, 1457.283),
        "BYOL-32": (255.614, 8.430, 18.410, 1451.468),
        "BYOL-128": (257.266, 8.478, 18.680, 1461.181),
        "AE-32": (153.684, 7.530, 11.229, 851.118),
        "AE-128": (156.813, 7.662, 11.396, 815.858),
        "AE_ss-32": (301.773, 7.765, 18.263, 1486.244),
        "AE_ss-128": (307.546, 7.804, 18.465, 1504.545),
        "SALS": (86.281, 7.535, 8.988, 782.763),
        "GR-SALS": (109.916, 7.829, 9.747, 970.292),
        "ATD_ss-": (147.568, 8.604, 12.560, 1327.188),
        "ATD": (148.375, 8.672, 12.599, 1360.569),
    }
)
"""Tables 11 and 12: seconds per sweep or epoch, on the authors' GPUs."""

P_VALUES: dict[str, dict[str, float]] = _by_dataset(
    {
        "SALS": (0.0041, 2e-5, 0.0023, 5e-6),
        "GR-SALS": (0.0019, 0.0003, 0.0012, 8e-6),
        "ATD_ss-": (9e-5, 0.0011, 0.0129, 0.0005),
    }
)
"""Tables 11 and 12: p-values against ATD; the paper does not name the test."""

ROUNDS: dict[str, dict[int, tuple[float, MeanAndStd]]] = {
    "har": {
        1: (8.774, (93.30, 0.413)),
        2: (10.316, (93.35, 0.172)),
        3: (11.224, (93.35, 0.150)),
        4: (12.781, (93.35, 0.122)),
        8: (17.402, (93.35, 0.122)),
    },
    "sleep_edf": {
        1: (148.375, (85.25, 0.209)),
        2: (160.924, (85.33, 0.173)),
        3: (173.361, (85.31, 0.178)),
        4: (188.193, (85.31, 0.177)),
        8: (242.386, (85.31, 0.177)),
    },
}
"""Tables 3 and 4: seconds per sweep and accuracy by rounds of the iterative rule."""

AUGMENTATIONS: dict[str, dict[str, MeanAndStd]] = {
    "mgh": {"(a)": (72.53, 0.652), "(b)": (73.60, 0.270), "(a)+(b)": (74.15, 0.203)},
    "har": {
        "(a)": (92.06, 0.621),
        "(b)": (91.99, 0.274),
        "(c)": (92.29, 0.330),
        "(a)+(b)": (92.70, 0.266),
        "(a)+(c)": (92.93, 0.590),
        "(b)+(c)": (92.26, 0.479),
        "(a)+(b)+(c)": (93.35, 0.357),
    },
}
"""Tables 6 and 7: accuracy by augmentations: (a) jittering, (b) bandpass, (c) rotation."""

JITTER: dict[str, dict[float, MeanAndStd]] = {
    "mgh": {0.02: (74.18, 0.326), 0.05: (74.10, 0.302), 0.1: (73.85, 0.530), 0.5: (73.39, 0.493), 5.0: (72.18, 0.676)}
}
"""Table 8: accuracy by degree of the jitter."""

QUALITY: dict[str, dict[str, MeanAndStd]] = {
    "mgh": {
        "SALS": (71.93, 0.379),
        "ATD": (74.15, 0.431),
        "(A)": (72.73, 0.624),
        "(B)": (72.10, 0.719),
        "(C)": (70.75, 0.771),
    },
    "har": {
        "SALS": (91.86, 0.295),
        "ATD": (93.35, 0.357),
        "(A)": (92.04, 0.308),
        "(B)": (92.48, 0.469),
        "(C)": (91.43, 0.835),
    },
}
"""Table 8: accuracy with low-quality augmentations."""

_RANKS = (8, 16, 32, 64, 128)


def _by_rank(rows: dict[str, tuple[MeanAndStd, ...]]) -> dict[str, dict[int, MeanAndStd]]:
    return {method: dict(zip(_RANKS, values, strict=True)) for method, values in rows.items()}


RANKS: dict[str, dict[str, dict[int, MeanAndStd]]] = {
    "har": _by_rank(
        {
            "SALS": ((69.59, 0.526), (83.92, 0.416), (91.84, 0.295), (91.89, 0.217), (91.55, 0.388)),
            "GR-SALS": ((69.62, 0.458), (84.20, 0.727), (92.33, 0.282), (92.28, 0.359), (91.84, 0.534)),
            "ATD_ss-": ((70.27, 0.488), (84.84, 0.557), (92.41, 0.391), (92.71, 0.243), (92.32, 0.330)),
            "ATD": ((71.91, 0.253), (85.61, 0.294), (93.35, 0.357), (93.43, 0.411), (92.97, 0.273)),
        }
    ),
    "sleep_edf": _by_rank(
        {
            "SALS": ((81.26, 0.345), (82.59, 0.638), (84.27, 0.481), (84.55, 0.527), (84.49, 0.317)),
            "GR-SALS": ((81.72, 0.664), (82.74, 0.481), (84.33, 0.356), (84.87, 0.486), (84.90, 0.781)),
            "ATD_ss-": ((81.27, 0.568), (82.5, 0.674), (84.19, 0.221), (84.47, 0.258), (84.44, 0.577)),
            "ATD": ((82.49, 0.464), (83.31, 0.591), (85.01, 0.224), (85.30, 0.483), (85.32, 0.305)),
        }
    ),
}
"""Tables 9 and 10: accuracy by rank."""

SUPERVISED: dict[str, dict[str, MeanAndStd]] = _by_dataset(
    {
        "UMLDA": ((81.06, 0.093), (85.73, 1.169), (65.55, 0.267), (62.04, 0.722)),
        "STL": ((77.86, 0.816), (80.52, 0.189), (61.83, 0.712), (41.44, 0.597)),
        "ATD": ((85.01, 0.224), (93.35, 0.357), (70.26, 0.523), (74.15, 0.431)),
    }
)
"""Table 13: supervised tensor learning."""
