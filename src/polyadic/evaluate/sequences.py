"""Predictions along a recording: a hidden Markov model over the calibrated probabilities of its windows.

Stages and activities last longer than one window. A `Chain` knows how often one class follows another; the
probability of a window by itself, divided by the class frequencies that the probe assumes, is its emission, to the
power κ ≤ 1 because overlapping and neighbouring windows are not independent. How long a class lasts is geometric:
minimum durations are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit
from sklearn.metrics import recall_score

from polyadic.data.windows import Windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate.scoring import balanced_weights, gain_over_subjects

__all__ = ["KAPPAS", "LONGEST_GAP", "Chain", "Segments", "choose_chain", "rows_along", "segments_of", "usual_step"]

KAPPAS = (1.0, 0.5, 0.25)
"""Exponents of the emissions that are tried; the first wins ties, and is used without validation."""
LONGEST_GAP = 20
"""Maximum number of steps between two windows of one segment: after a longer gap the chain starts anew."""
_STAY, _STRENGTH = 0.9, 10.0  # Dirichlet prior of transitions: probability of staying, weight
_FEWEST_PAIRS = 20  # fewest labelled pairs per class to learn transitions from labels
_FEWEST_SUBJECTS, _FEWEST_FOR_DEFAULT = 3, 4  # subjects to state the gain of a chain, and to use it
_FEWEST_LABELS = 100  # fewest labels to choose the exponent
_ITERATIONS, _TOLERANCE, _SINKHORN = 30, 1e-3, 100
_TINY = 1e-300
_MOST_WINDOWS = 20_000
_LONGEST_PIECE = 2000  # longest segment that transitions are learned from, in windows; longer ones are cut

_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]


# ------------------------------------------------------------------------------------------------ order of windows


class Segments(NamedTuple):
    """Consecutive windows of recordings, without long gaps."""

    order: _Rows  # (N,), rows, segment after segment, the longest first
    places: list[_Rows]  # the rows of the first window of every segment, those of the second, and so on
    before: _Rows  # (N,), the row of the window before in the segment; -1 for the first
    steps: _Rows  # (N,), number of transitions from there; 0 for the first


def usual_step(windows: Windows) -> int:
    """Return the most frequent distance between successive windows of a recording, in samples."""
    _, distance, same = _in_order(windows)
    distances, counts = np.unique(distance[same], return_counts=True)
    if not len(counts):
        raise PolyadicError("the order of windows needs a recording with two windows or more, but there is none")
    return int(distances[counts.argmax()])


def segments_of(windows: Windows, step: int, longest: int | None = None) -> Segments:
    """Return the segments of all recordings: successive windows at most `LONGEST_GAP` steps of this many samples apart.

    Segments of more windows than `longest` are cut.

    Examples
    --------
    >>> night = Windows(np.zeros((4, 1, 8)), recording=["night"] * 4, start=[0, 8, 24, 800])
    >>> segments = segments_of(night, step=8)
    >>> segments.before, segments.steps
    (array([-1,  0,  1, -1]), array([0, 1, 2, 0]))
    """
    order, distance, same = _in_order(windows)
    close = same & (2 * distance < step)
    if close.any():
        raise PolyadicError(
            f"the classifier knows the order of windows that start every {step:,} samples, but these start "
            f"{int(distance[close][0]):,} samples apart: cut windows with the same stride, or predict each window by "
            "itself (--no-along)"
        )
    gap = np.where(same, np.maximum(np.rint(distance / step), 1), 0).astype(np.intp)
    gap[gap > LONGEST_GAP] = 0
    place = np.arange(len(gap)) - np.flatnonzero(gap == 0)[np.cumsum(gap == 0) - 1]
    if longest is not None:
        place %= longest
        gap[place == 0] = 0
    segment = np.cumsum(gap == 0) - 1
    longest_first = np.argsort(-np.bincount(segment)[segment], kind="stable")
    order, gap, place = order[longest_first], gap[longest_first], place[longest_first]
    before, steps = np.full(len(order), -1, np.intp), np.empty(len(order), np.intp)
    steps[order] = gap
    before[order[1:]] = np.where(gap[1:] > 0, order[:-1], -1)
    places = np.split(order[np.argsort(place, kind="stable")], np.cumsum(np.bincount(place))[:-1])
    return Segments(order, places, before, steps)


def rows_along(windows: Any, known: NDArray[np.bool_]) -> _Rows:
    """Return the rows of whole recordings with labels, at most 20,000 windows, to learn a chain from: (n,), sorted.

    There are none if the windows have no known order, or were picked so that most are not next to each other. `known`
    (N,) says which have a label.
    """
    try:
        segments_of(windows, usual_step(windows))
    except PolyadicError:
        return np.zeros(0, np.intp)
    recording = windows.index.recording
    sizes = np.bincount(recording)
    labelled = np.random.default_rng(0).permutation(np.unique(recording[known]))
    chosen = labelled[np.cumsum(sizes[labelled]) <= _MOST_WINDOWS]
    return np.flatnonzero(np.isin(recording, chosen))


def _in_order(windows: Windows) -> tuple[_Rows, NDArray[np.int64], NDArray[np.bool_]]:
    """Return rows sorted by recording, the distance to the row before, and whether that is of the same recording."""
    if not isinstance(windows, Windows):
        raise PolyadicError(
            "predictions along a recording need Windows with the recording and the start of each, but got "
            f"{type(windows).__name__}"
        )
    for what, missing in (("recording", windows.recording == ""), ("start", windows.start < 0)):
        if missing.any():
            raise PolyadicError(
                f"predictions along a recording need the {what} of every window, but {int(missing.sum()):,} of "
                f"{len(windows):,} have none"
            )
    order = np.argsort(windows.index.recording, kind="stable")
    same = np.diff(windows.index.recording[order], prepend=-1) == 0
    distance = np.diff(windows.start[order], prepend=0)
    wrong = same & (distance <= 0)
    if wrong.any():
        name = str(windows.recording[order[wrong.argmax()]])
        raise PolyadicError(
            f"windows of a recording must be in order of time, each once, but those of {name!r} are not: sort them by "
            "start, or predict each window by itself"
        )
    return order, distance, same


# ------------------------------------------------------------------------------------------------ recursions


def _powers(transitions: _Floats) -> _Floats:
    """Return the transitions over 0 to `LONGEST_GAP` steps: (LONGEST_GAP + 1, K, K)."""
    powers = [np.eye(len(transitions))]
    for _ in range(LONGEST_GAP):
        powers.append(powers[-1] @ transitions)
    return np.array(powers)


def _emissions(scores: _Floats) -> _Floats:
    """Return emissions from their logarithms (N, K), with a maximum of 1 in each row."""
    return np.asarray(np.exp(scores - scores.max(axis=1, keepdims=True)))


def forward(scores: _Floats, segments: Segments, transitions: _Floats, initial: _Floats) -> tuple[_Floats, _Floats]:
    """Filter: return the class probabilities of each window given it and all before it (N, K), and the scales (N,).

    `scores` (N, K) are logarithms of the emissions, up to a constant in each row; `transitions` (K, K) hold the
    probability of the next class (column) after a class (row), and `initial` (K,) those at the start of a segment.
    """
    emissions, powers = _emissions(scores), _powers(transitions)
    filtered, scale = np.empty_like(emissions), np.empty(len(emissions))
    for place, rows in enumerate(segments.places):
        found = emissions[rows]
        if place == 0:
            found = initial * found
        else:
            found = np.einsum("sk,skl->sl", filtered[segments.before[rows]], powers[segments.steps[rows]]) * found
        scale[rows] = found.sum(axis=1)
        filtered[rows] = found / scale[rows][:, None]
    return filtered, scale


def forward_backward(
    scores: _Floats, segments: Segments, transitions: _Floats, initial: _Floats
) -> tuple[_Floats, _Floats]:
    """Smooth: return the class probabilities given the whole segment (N, K), and expected transitions (K, K).

    A gap of n steps has n transitions, and windows without evidence between them. Arguments are those of `forward`.
    """
    filtered, scale = forward(scores, segments, transitions, initial)
    weight, powers = _emissions(scores) / scale[:, None], _powers(transitions)
    after = np.ones_like(filtered)
    for rows in segments.places[:0:-1]:
        steps = segments.steps[rows]
        after[segments.before[rows]] = np.einsum("skl,sl->sk", powers[steps], weight[rows] * after[rows])
    joint = np.zeros((LONGEST_GAP + 1, *transitions.shape))
    for n in np.unique(segments.steps[segments.steps > 0]).tolist():
        rows = segments.order[segments.steps[segments.order] == n]
        joint[n] = filtered[segments.before[rows]].T @ (weight[rows] * after[rows])
    return filtered * after, _expected_transitions(joint, transitions)


def _expected_transitions(joint: _Floats, transitions: _Floats) -> _Floats:
    """Return the expected number of single transitions (K, K).

    `joint` (LONGEST_GAP + 1, K, K) is the sum of the messages from both sides for each number of steps, whose product
    with the transitions over these steps is the probability of both classes.
    """
    powers, counts = _powers(transitions), np.zeros_like(transitions)
    for n in np.flatnonzero(joint.any(axis=(1, 2))).tolist():
        for m in range(n):  # the transition after m of the n steps
            counts += powers[m].T @ joint[n] @ powers[n - 1 - m].T
    return np.asarray(counts * transitions)


def viterbi(scores: _Floats, segments: Segments, transitions: _Floats, initial: _Floats) -> _Rows:
    """Return the most probable sequence of classes: (N,); arguments as for `forward`."""
    powers, before = np.log(np.maximum(_powers(transitions), _TINY)), segments.before
    came_from, best = np.zeros(scores.shape, np.intp), np.log(np.maximum(initial, _TINY)) + scores
    for rows in segments.places[1:]:
        reached = best[before[rows], :, None] + powers[segments.steps[rows]]
        came_from[rows] = reached.argmax(axis=1)
        best[rows] = reached.max(axis=1) + scores[rows]
    path: _Rows = best.argmax(axis=1)  # right at the end of each segment, and followed back from there
    for rows in segments.places[:0:-1]:
        path[before[rows]] = came_from[rows, path[rows]]
    return path


def _balanced(transitions: _Floats) -> _Floats:
    """Scale rows and columns (Sinkhorn) so that all classes are equally frequent, as the probe assumes: (K, K)."""
    balanced = transitions
    for _ in range(_SINKHORN):
        balanced = balanced / balanced.sum(axis=0)
        balanced = balanced / balanced.sum(axis=1, keepdims=True)
    return balanced


def _start_from(starts: _Floats, shares: _Floats) -> _Floats:
    """Return the initial distribution: how much more frequent each class is among starts (K,) than in all (K,)."""
    initial = (starts + 1) / (shares * starts.sum() + 1)
    return np.asarray(initial / initial.sum())


def _estimate(expected: Callable[[_Floats], _Floats], classes: int) -> _Floats:
    """Iterate from the prior: transitions (K, K) from their expected counts and the prior, which favours staying."""
    leave = (1 - _STAY) / max(classes - 1, 1)
    prior = _STRENGTH * (leave + (_STAY - leave) * np.eye(classes))
    transitions: _Floats = prior / prior.sum(axis=1, keepdims=True)
    for _ in range(_ITERATIONS):
        last, counts = transitions, expected(transitions) + prior
        transitions = _balanced(counts / counts.sum(axis=1, keepdims=True))
        if np.abs(transitions - last).max() < _TOLERANCE:
            break
    return transitions


def baum_welch(scores: _Floats, segments: Segments) -> tuple[_Floats, _Floats]:
    """Learn transitions (K, K) and initial distribution (K,) from windows without labels; emissions stay as they are.

    The Dirichlet prior has the weight of ten transitions from each class, nine of which stay, and one start in each.
    After every step the transitions are scaled so that all classes are equally frequent: emissions assume the same,
    and with few labels the frequencies that would be learned are wrong.
    """
    classes = scores.shape[1]
    initial = np.full(classes, 1 / classes)

    def expected(transitions: _Floats) -> _Floats:
        nonlocal initial
        smoothed, counts = forward_backward(scores, segments, transitions, initial)
        initial = _start_from(smoothed[segments.places[0]].sum(axis=0), smoothed.mean(axis=0))
        return counts

    return _estimate(expected, classes), initial


def labelled_pairs(codes: _Rows, segments: Segments, classes: int) -> tuple[_Floats, _Floats]:
    """Count pairs of successive windows with labels (LONGEST_GAP + 1, K, K), by steps, and labelled starts (K,)."""
    pairs, starts = np.zeros((LONGEST_GAP + 1, classes, classes)), codes[segments.places[0]]
    rows = np.flatnonzero((segments.before >= 0) & (codes >= 0) & (codes[segments.before] >= 0))
    np.add.at(pairs, (segments.steps[rows], codes[segments.before[rows]], codes[rows]), 1)
    return pairs, np.bincount(starts[starts >= 0], minlength=classes).astype(np.float64)


def transitions_of_pairs(pairs: _Floats, starts: _Floats) -> tuple[_Floats, _Floats]:
    """Learn transitions (K, K) and initial distribution (K,) from `labelled_pairs`, as `baum_welch` does without."""

    def expected(transitions: _Floats) -> _Floats:
        return _expected_transitions(pairs / np.maximum(_powers(transitions), _TINY), transitions)

    shares = pairs.sum(axis=(0, 1))
    return _estimate(expected, len(starts)), _start_from(starts, shares / max(shares.sum(), 1))


@dataclass(frozen=True, eq=False)
class Chain:
    """A Markov chain of classes along a recording, over the emissions of a probe.

    transitions : (K, K), probability of the next class (column) after a class (row), one step later
    initial : (K,), class probabilities at the start of a recording and after a long gap
    kappa : exponent of the emissions
    step : distance of successive windows in samples
    is_default : whether `polyadic predict` uses it: on 4 left-out subjects or more it gains beyond the standard error
    reason : one sentence on how it was learned and what it gains
    validation : scores on left-out subjects by window and along, their recalls and standard error; {} if not validated
    """

    transitions: _Floats
    initial: _Floats
    kappa: float
    step: int
    is_default: bool = False
    reason: str = ""
    validation: Mapping[str, Any] = field(default_factory=dict)

    def path(self, likelihoods: _Floats, windows: Windows) -> _Rows:
        """Return the most probable sequence of classes (Viterbi) from `Probe.log_likelihoods` (N, K), from 0: (N,)."""
        segments = segments_of(windows, self.step)
        return viterbi(self.kappa * likelihoods, segments, self.transitions, self.initial)

    def smooth(self, likelihoods: _Floats, windows: Windows) -> _Floats:
        """Return the class probabilities of each window given its whole recording: (N, K); arguments as for `path`."""
        segments = segments_of(windows, self.step)
        return forward_backward(self.kappa * likelihoods, segments, self.transitions, self.initial)[0]

    def filter(self, likelihoods: _Floats, windows: Windows) -> _Floats:
        """Return the class probabilities of each window given those up to it: (N, K); arguments as for `path`."""
        segments = segments_of(windows, self.step)
        return forward(self.kappa * likelihoods, segments, self.transitions, self.initial)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the chain ready for JSON."""
        return {**vars(self), "transitions": self.transitions.tolist(), "initial": self.initial.tolist()}

    @classmethod
    def from_dict(cls, content: dict[str, Any], classes: int) -> Self:
        """Build the chain of this many classes from the output of `to_dict`."""
        arrays = {name: np.array(content[name], np.float64) for name in ("transitions", "initial")}
        chain, shapes = cls(**content | arrays), [array.shape for array in arrays.values()]
        valid = shapes == [(classes, classes), (classes,)] and 0 < chain.kappa <= 1 and chain.step >= 1
        if not (valid and all((rows >= 0).all() and np.allclose(rows.sum(axis=-1), 1) for rows in arrays.values())):
            raise ModelFileError(f"the file's probe must have a chain of {classes} classes, in probabilities")
        return chain


def choose_chain(likelihoods: _Floats, codes: _Rows, fold: _Rows, groups: NDArray[Any], windows: Windows) -> Chain:
    """Learn a chain from whole recordings in order of time, and whether it helps on left-out subjects.

    Likelihoods (N, K) and folds (N,) are from `Probe.left_out_likelihoods`, `codes` (N,) are classes from 0, or -1.
    Without folds, as without known subjects in `groups` (N,), there is no validation.
    """
    step, classes, tested = usual_step(windows), likelihoods.shape[1], (codes >= 0) & (fold >= 0)
    segments = segments_of(windows, step, _LONGEST_PIECE)
    pairs = labelled_pairs(codes, segments, classes)[0].sum()
    supervised = pairs >= _FEWEST_PAIRS * classes
    origin = f"transitions by Baum-Welch on {len(codes):,} windows"
    if supervised:
        origin = f"transitions of {int(pairs):,} pairs of labelled windows"

    def learn(kappa: float, left_out: int | None = None) -> tuple[_Floats, _Floats]:
        if not supervised:
            return baum_welch(kappa * likelihoods, segments)
        kept = codes if left_out is None else np.where(fold == left_out, -1, codes)
        return transitions_of_pairs(*labelled_pairs(kept, segments, classes))

    if len(np.unique(groups[tested])) < _FEWEST_SUBJECTS:
        why = f"not validated, because labels are from fewer than {_FEWEST_SUBJECTS} subjects"
        return Chain(*learn(1.0), 1.0, step, False, f"{origin}; {why}; not used by default")
    paths: dict[float, _Rows] = {}
    for kappa in KAPPAS if tested.sum() >= _FEWEST_LABELS else KAPPAS[:1]:
        paths[kappa] = np.empty(len(codes), np.intp)
        for number in range(int(fold.max()) + 1) if supervised else (None,):
            mine = fold == number if supervised else tested
            paths[kappa][mine] = viterbi(kappa * likelihoods, segments, *learn(kappa, number))[mine]
    truth, alone = codes[tested], likelihoods[tested].argmax(axis=1)
    kappa = max(paths, key=lambda kappa: round(float(balanced_weights(truth) @ (paths[kappa][tested] == truth)), 12))
    is_default, validation, verdict = _judge(truth, alone, paths[kappa][tested], groups[tested], classes)
    return Chain(*learn(kappa), kappa, step, is_default, f"{origin}, kappa {kappa:g}; {verdict}", validation)


def _judge(
    truth: _Rows, alone: _Rows, along: _Rows, groups: NDArray[Any], classes: int
) -> tuple[bool, dict[str, Any], str]:
    """Return whether to predict along the recording, the scores, and both in words; arguments (n,) are of windows."""
    weight, subjects = balanced_weights(truth), len(np.unique(groups))
    gain, error = gain_over_subjects(truth, alone, along, groups)
    names = np.arange(classes)
    recalls = [recall_score(truth, guess, labels=names, average=None, zero_division=0) for guess in (alone, along)]
    window, path = (float(weight @ (guess == truth)) for guess in (alone, along))
    validation = {"window": window, "along": path, "error": error}
    validation |= {"recall_window": recalls[0].tolist(), "recall_along": recalls[1].tolist()}
    # The error of few subjects is uncertain itself: the quantile of t that one standard error is of many.
    is_beyond = gain > error * stdtrit(subjects - 1, ndtr(1.0))
    why = ""
    if is_beyond and subjects < _FEWEST_FOR_DEFAULT:
        why = f", because {subjects} subjects are too few to be sure"
    elif (recalls[1] < recalls[0] / 2).any():
        why = ", because the recall of a class halves"
    is_default = bool(is_beyond and not why)
    verdict = (
        f"balanced accuracy on {subjects} left-out subjects {100 * window:.1f} % for each window by itself, "
        f"{100 * path:.1f} % along the recording, gain {100 * gain:+.1f} ± {100 * error:.1f} points; "
        f"{'used' if is_default else 'not used'} by default{why}"
    )
    return is_default, validation, verdict
