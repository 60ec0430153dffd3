"""Sums over windows in a file: a fit without reading the data again, and over institutions that share no signals.

A default fit needs three sums over its windows, one after the other: `floor`, `axes` and `core`, see
`polyadic.core.passes`. Sums of several sites are merged to those of all, and each stage starts from the merged sums of
the one before. The model is that of a fit to the windows of all sites.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from polyadic._util import model_files
from polyadic._util.threads import thread_pool
from polyadic._util.torch_state import plain_torch
from polyadic._util.version import __version__
from polyadic.core import moments as core
from polyadic.core import passes, persist
from polyadic.core.passes import STAGES, Parts, Stage, add_windows
from polyadic.core.tensorizer import Tensorizer, as_tensorizer
from polyadic.data.batches import Samples, WindowSource, choose_device
from polyadic.data.channels import match_signals, recorded_signals
from polyadic.data.labels import known_labels
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.scale.checkpoints import differences
from polyadic.spectral import recommended_stft
from polyadic.statistics import window_statistics

__all__ = ["SHARED", "Moments", "MomentsSource", "check_subjects", "group_masks", "most_groups"]

SHARED = "group {}"
"""Name of a group that several subjects share, by its number from 1."""

_FEWEST_SUBJECTS = 5
"""Minimum number of subjects in sums that leave a site."""
_GROUPS_BYTES = 2**30
"""Memory for the moments of groups; there are fewer groups if each has large ones."""
_AT_A_TIME = 8


@dataclass
class MomentsSource:
    """What a fit asks of its source of windows, if these are known by their moments alone."""

    moments: core.Moments
    tensorize: Tensorizer | None
    window: tuple[int, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    waited: float = 0.0
    on_batch: Any = None

    def __post_init__(self) -> None:
        self.n_windows, self.dtype = self.moments.count, self.moments.dtype

    def example(self) -> Tensor:
        """Return a window of the right shape: (1, …)."""
        return torch.zeros(1, *self.window, dtype=self.dtype)


@dataclass
class Moments:
    """Sums over windows: those of one stage of a default fit.

    `collect` computes them, `merge` adds those of several sites, `save` and `load` write and read files. After the last
    stage, `CPD().fit(moments)`, `replicability(model, moments)` and `components(moments)` read no data.

    Parameters
    ----------
    stage : the pass, with the tensorizer and, in the last one, the axes of the modes, as far as they are known
    sums : the sums of each group of windows by its name; only the last stage has more than one
    windows : `shape` of a window, `channels`, `units`, `fs` and `dtype`
    settings : the parameters `tensorize` and `compression` of the fit, as JSON
    sites : `name`, number of `windows` and of `subjects` of each contribution, by the checksum of its sums
    reading : how recordings were cut into windows, as JSON

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> windows, merged = synthetic(60, n_channels=2), None
    >>> sites = {"north": windows[:40], "south": windows[40:]}
    >>> for stage in ("floor", "axes", "core"):
    ...     parts = [Moments.collect(own, stage, previous=merged, site=name) for name, own in sites.items()]
    ...     merged = Moments.merge(parts)
    >>> merged
    <Moments of stage 'core', 60 windows of north, south>
    >>> CPD(rank=2).fit(merged).transform(windows).shape
    (60, 33)
    """

    stage: Stage
    sums: dict[str, Any]
    windows: dict[str, Any]
    settings: dict[str, Any]
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)

    # ---------------------------------------------------------------- collecting

    @classmethod
    @plain_torch()
    def collect(
        cls,
        X: Any,
        stage: passes.Name = "core",
        *,
        previous: Moments | None = None,
        tensorize: Any = "auto",
        compression: Any = "auto",
        groups: ArrayLike | None = None,
        site: str = "",
        device: str | torch.device = "auto",
    ) -> Moments:
        """Compute the sums over windows.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `CPD.fit` reads
        stage : "floor", "axes" or "core" (default)
        previous : the merged sums of the stage before, in which X took part; without them, the stages before are
            computed from X alone
        tensorize, compression : as for `CPD`; with `previous`, they are those of the first stage
        groups : (N,), the subject of each window, to collect separate moments: `replicability`, `components` and a
            bootstrap need them. Subjects are put together into fewer groups if their moments would take more than
            1 GiB
        site : name of the contribution
        device : as for `CPD`
        """
        if stage not in STAGES:
            raise PolyadicError(f"stage must be one of {', '.join(STAGES)}, but is {stage!r}")
        if previous is not None and STAGES.index(previous.stage.name) + 1 != STAGES.index(stage):
            raise PolyadicError(
                f"stage {stage!r} must start from sums of the stage before, but previous is of stage "
                f"{previous.stage.name!r}"
            )
        moments = cls._begin(X, tensorize, compression) if previous is None else previous._following()
        known = moments.windows
        X = match_signals(X, known["fs"], known["channels"], units=known["units"])
        samples = Samples(X)
        if list(samples.shape[1:]) != known["shape"]:
            raise PolyadicError(f"X must have windows of shape {known['shape']}, but has {list(samples.shape[1:])}")
        source = WindowSource(samples, None, None, 0, choose_device(device, samples.data), moments._dtype)
        with thread_pool():
            while moments.stage.name != stage:
                moments._add(source)
                moments = moments._following()
            moments._add(source, groups)
        subjects = getattr(X, "subject", None) if groups is None else groups
        names = set() if subjects is None else set(np.asarray(subjects).astype(str).tolist()) - {""}
        entry = {"name": site, "windows": len(samples), "subjects": len(names)}
        sites = {model_files.checksum(moments._arrays()): entry}
        return replace(moments, sites=sites, reading=dict(getattr(X, "reading", {})))

    @classmethod
    def of_fit(cls, model: Any, passes: passes.Passes, names: Sequence[str]) -> Moments:
        """Return the moments of parts of the windows that the passes of a fit collected, by the names of the parts."""
        signals = model.fs_, model.channel_names_, model.units_
        windows = _description(model._sample_shape, passes.source.dtype, *signals)
        stage = replace(passes.stage, n_windows=0)
        settings = {"tensorize": persist.encode(stage.tensorize, own=True)}
        settings["compression"] = persist.encode(passes.compression)
        sums = dict(zip(names, passes.parts, strict=True))
        return cls(stage, sums, windows, settings, reading=dict(model.reading_))

    @classmethod
    def _begin(cls, X: Any, tensorize: Any, compression: Any) -> Moments:
        """Return the first stage, with the description of windows and settings, and without sums."""
        samples = Samples(X)
        fs, channels = recorded_signals(X)
        if isinstance(tensorize, str) and tensorize == "auto":
            tensorize = recommended_stft(samples.shape[-1], fs) if len(samples.shape) == 3 else None
        tensorize = as_tensorizer(tensorize)
        windows = _description(samples.shape[1:], samples.dtype, fs, channels, getattr(X, "units", ()))
        settings = {"tensorize": persist.encode(tensorize, own=True), "compression": persist.encode(compression)}
        return cls(_first_stage(windows, tensorize), {}, windows, settings)

    def _following(self) -> Moments:
        """Return the stage that follows from these sums, without sums of its own."""
        # All windows are known by their second moments alone, however few they are.
        stage = self.stage.following(self._sum(self.groups), self.settings["compression"], 10**9, self._dtype)
        tensorize = stage.tensorize
        if stage.name == "axes" and tensorize is not None and not tensorize.is_calibrated and not stage.finds_mean:
            raise PolyadicError(
                f"tensorize must be calibrated before sums are computed, but {type(tensorize).__name__} is not"
            )
        return replace(self, stage=stage, sums={}, sites={})

    def _add(self, source: WindowSource, groups: ArrayLike | None = None) -> None:
        """Set the sums of this stage to those over all windows of a source; moments by group."""
        stage, example = self.stage, source.example()
        whole = stage.start(example, source.device)
        self.sums, sums = {"all": whole}, whole
        if groups is not None and stage.name == "core":
            names, masks = group_masks(groups, source.n_windows, most_groups(len(whole.mean)))
            self.sums = {name: stage.start(example, source.device) for name in names}
            sums = Parts(list(self.sums.values()), masks)
        if stage.name == "floor" and (stage.tensorize is None or stage.tensorize.is_measured):
            return
        for _ in add_windows(stage, source, sums):
            pass
        if stage.name == "core":
            for part in self.sums.values():
                part.to_cpu()

    # ------------------------------------------------------------------- merging

    @classmethod
    def merge(cls, parts: Sequence[Moments]) -> Moments:
        """Add the sums of several sites, in the order of their names.

        Raises
        ------
        PolyadicError : if stages, windows, settings, floors or axes differ, or if a contribution occurs twice
        """
        if not parts:
            raise PolyadicError("there are no sums to merge")
        first, *others = sorted(parts, key=lambda part: part._names())
        sites = dict(first.sites)
        for other in others:
            here, there = (" and ".join(filter(None, part._names())) or "one without a name" for part in (first, other))
            changed = [
                f"{name} is {own} in {here}, but {others} in {there}"
                for name, own, others in differences(first._compared(), other._compared())
            ]
            if changed:
                raise PolyadicError(f"these sums cannot be merged: {'; '.join(changed)}")
            names = {entry["name"] for entry in sites.values()} - {""}
            for digest, entry in other.sites.items():
                if digest in sites or entry["name"] in names:
                    raise PolyadicError(f"{entry['name'] or 'a contribution'} is among the sums twice: merge it once")
            sites |= other.sites
        total = first._sum([])
        for part in (first, *others):
            for sums in part.sums.values():
                total.merge(sums)
        return replace(first, sites=sites, sums={"all": total})

    def _compared(self) -> dict[str, Any]:
        """Describe what must be equal in all sums that are merged; long lists by a checksum."""
        tensorize = {
            name: model_files.checksum({"": np.asarray(value)})[:8] if isinstance(value, list | tuple) else value
            for name, value in (persist.encode(self.stage.tensorize) or {}).items()
        }
        axes = self.stage.compression
        return {
            "stage": self.stage.name,
            "sampling rate": self.windows["fs"],
            **{name: self.windows[name] for name in ("shape", "channels", "units")},
            "compression": self.settings["compression"],
            "tensorize": tensorize,
            "axes": None if axes is None else model_files.checksum(axes.arrays())[:8],
        }

    def _names(self) -> list[str]:
        return sorted(entry["name"] for entry in self.sites.values())

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.windows["dtype"])
        return dtype

    def _sum(self, names: Sequence[str]) -> Any:
        """Return the sums of some groups, each as often as it is named."""
        total = self.stage.start(torch.zeros(1, *self.windows["shape"], dtype=self._dtype))
        for name in names:
            total.merge(self.sums[name])
        return total

    # ---------------------------------------------------------------------- use

    @property
    def n_windows(self) -> int:
        """Number of windows."""
        return sum(sums.count for sums in self.sums.values())

    @property
    def groups(self) -> list[str]:
        """Names of the groups with moments of their own."""
        return list(self.sums)

    def of(self, groups: Sequence[str] | None = None) -> core.Moments:
        """Return the second moments of some groups, by default of all; a group named twice counts twice (bootstrap)."""
        if self.stage.name != "core":
            following = STAGES[STAGES.index(self.stage.name) + 1]
            raise PolyadicError(
                f"a fit needs sums of stage 'core', but these are of stage {self.stage.name!r}: go on with stage "
                f"{following!r}"
            )
        total: core.Moments = self._sum(self.groups if groups is None else groups)
        total.finish()
        return total

    def resampled(self, counts: NDArray[np.intp]) -> Iterator[core.Moments]:
        """Yield the second moments of samples in which groups occur several times, for a bootstrap.

        Parameters
        ----------
        counts : (B, groups), how often each group occurs in each sample
        """
        parts = [self.of([name]) for name in self.groups]
        sample, size = parts[0], parts[0].compression.size
        second = torch.stack([part.second.flatten() for part in parts])
        energies = np.array([part.energy for part in parts])
        del parts
        for first in range(0, len(counts), _AT_A_TIME):
            weights = counts[first : first + _AT_A_TIME]
            sums = (torch.from_numpy(weights).to(second.dtype) @ second).view(len(weights), size, size)
            for row, summed in zip(weights, sums, strict=True):
                sample.second, sample.energy = summed, float(row @ energies)
                yield sample

    def source(self) -> MomentsSource:
        """Return the moments of all windows as the source of a fit."""
        return MomentsSource(self.of(), self.stage.tensorize, tuple(self.windows["shape"]))

    # --------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sums to one safetensors file with a JSON header, atomically."""
        arrays, header = self.stage.described()
        header |= {"version": __version__, "moments": self.stage.name, "groups": self.groups}
        header |= {name: getattr(self, name) for name in ("windows", "settings", "sites", "reading")}
        model_files.write(path, arrays | self._arrays(), header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Moments:
        """Read sums from a file."""
        arrays, header = model_files.read(path)
        if "moments" not in header:
            raise ModelFileError(f"{path} holds no sums: it is a model file or a checkpoint")
        try:
            windows, settings, sites, reading = (header[name] for name in ("windows", "settings", "sites", "reading"))
            stage = _first_stage(windows, persist.decode_tensorizer(header["tensorize"])).restored(arrays, header)
            moments = cls(stage, {}, windows, settings, sites, reading)
            for number, name in enumerate(header["groups"]):
                prefix, sums = f"{number}.", moments._sum([])
                sums.restore({key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)})
                moments.sums[name] = sums
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelFileError(f"{path} has a damaged header: {error!r}, or arrays that do not fit it") from error
        return moments

    def _arrays(self) -> dict[str, NDArray[Any]]:
        parts = enumerate(self.sums.values())
        return {f"{number}.{name}": array for number, sums in parts for name, array in sums.arrays().items()}

    def __repr__(self) -> str:
        names = ", ".join(filter(None, self._names()))
        return f"<Moments of stage {self.stage.name!r}, {self.n_windows:,} windows{f' of {names}' if names else ''}>"


def _first_stage(windows: dict[str, Any], tensorize: Tensorizer | None) -> Stage:
    """Return the first pass over windows of this description."""
    # Without a model that could fill them, missing entries are at the mean.
    describe = window_statistics if tensorize is not None and len(windows["shape"]) == 2 else None
    return Stage("floor", tensorize, windows["units"], windows["fs"], statistics=describe)


def most_groups(width: int) -> int:
    """Return how many groups may have moments of their own, with means of `width` entries."""
    return int(max(2, _GROUPS_BYTES // (8 * width**2)))


def group_masks(groups: ArrayLike, count: int, most: int) -> tuple[list[str], list[Tensor]]:
    """Return the names of the groups and the mask (N,) of each; subjects share groups if there are more than `most`.

    Windows of unknown subjects are a group of their own.
    """
    known, subjects = known_labels(groups, count, "groups")
    column = np.full(count, "(unknown)", dtype=object)
    column[known] = np.asarray(subjects).astype(str)
    names, codes = np.unique(column.astype(str), return_inverse=True)
    member = codes % most
    labels = names.tolist() if len(names) <= most else [SHARED.format(number + 1) for number in range(most)]
    return labels, [torch.from_numpy(member == number) for number in range(len(labels))]


def check_subjects(moments: Moments) -> None:
    """Raise if sums that leave a site are those of few subjects."""
    for entry in moments.sites.values():
        count = entry["subjects"]
        if count < _FEWEST_SUBJECTS:
            raise PolyadicError(
                f"sums of few subjects say much about each of them: at least {_FEWEST_SUBJECTS} known subjects are "
                f"wanted, and these are of {count}. Share sums of more subjects, or decide to share these (--allow-few)"
            )


def _description(shape: Sequence[int], dtype: torch.dtype, fs: Any, channels: Any, units: Any) -> dict[str, Any]:
    """Describe windows as JSON."""
    return {
        "shape": list(shape),
        "channels": list(channels),
        "units": [str(unit) for unit in units],
        "fs": fs,
        "dtype": str(dtype).removeprefix("torch."),
    }
