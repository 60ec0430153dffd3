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

__all__ = ["KAPPAS", "LONGEST_GAP", "Chain", "Segments", "choose_chain", "rows_along", "segments_of", "usual_step"]

KAPPAS = (1.0, 0.5, 0.25)
"""Exponents of the emissions that are tried; the first wins ties, and is used without validation."""
LONGEST_GAP = 20
"""Maximum number of steps between two windows of one segment: after a longer gap the chain starts anew."""
_STAY, _STRENGTH = 0.9, 10.0
"""Dirichlet prior of the transitions from each class: probability of staying, and its weight in transitions."""
_FEWEST_PAIRS = 20
"""Minimum number of labelled pairs per class to learn transitions from labels."""
_FEWEST_SUBJECTS, _FEWEST_FOR_DEFAULT = 3, 4
"""Minimum number of subjects to state the gain of a chain, and to use it by default."""
_FEWEST_LABELS = 100
"""Minimum number of labels to choose the exponent."""
_ITERATIONS, _TOLERANCE, _SINKHORN = 30, 1e-3, 100
_TINY = 1e-300
_MOST_WINDOWS = 20_000
_LONGEST_PIECE = 2000
"""Maximum length of a segment that transitions are learned from, in windows; longer ones are cut."""

_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]


# ------------------------------------------------------------------------------------------------ order of windows


class Segments(NamedTuple):
    """Consecutive windows of recordings, without long gaps; the longest segment first.

    rows : (S, T), rows of the windows in order of time; -1 after the end of a segment
    steps : (S, T), number of transitions from the previous window to this one; 0 for the first of a segment
    lengths : (S,), number of windows of each segment, descending
    """

    rows: _Rows
    steps: _Rows
    lengths: _Rows

    def active(self, place: int) -> int:
        """Return how many segments, counted from the first, have a window at this place."""
        return int(np.searchsorted(-self.lengths, -place, side="left"))


def usual_step(windows: Windows) -> int:
    """Return the most frequent distance between successive windows of a recording, in samples.

    Examples
    --------
    >>> usual_step(Windows(np.zeros((4, 1, 8)), recording=["night"] * 4, start=[0, 4, 8, 24]))
    4
    """
    _, distance, same = _in_order(windows)
    distances, counts = np.unique(distance[same], return_counts=True)
    if not len(counts):
        raise PolyadicError("the order of windows needs a recording with two windows or more, but there is none")
    return int(distances[counts.argmax()])


def segments_of(windows: Windows, step: int, longest: int | None = None) -> Segments:
    """Return the segments of all recordings: successive windows at most `LONGEST_GAP` steps apart.

    Parameters
    ----------
    windows : with the recording and the start of every window; those of a recording in order of time
    step : distance of successive windows in samples, as from `usual_step`
    longest : maximum number of windows of a segment; longer ones are cut

    Examples
    --------
    >>> night = Windows(np.zeros((4, 1, 8)), recording=["night"] * 4, start=[0, 8, 24, 800])
    >>> segments = segments_of(night, step=8)
    >>> segments.rows.tolist(), segments.steps.tolist()
    ([[0, 1, 2], [3, -1, -1]], [[0, 1, 2], [0, 0, 0]])
    """
    order, distance, same = _in_order(windows)
    close = same & (2 * distance < step)
    if close.any():
        raise PolyadicError(
            f"the classifier knows the order of windows that start every {step:,} samples, but these start "
            f"{int(distance[close][0]):,} samples apart: cut windows with the same stride, or predict each window by "
            "itself (--no-along)"
        )
    steps = np.where(same, np.maximum(np.rint(distance / step), 1), 0).astype(np.intp)
    steps[steps > LONGEST_GAP] = 0
    place = np.arange(len(steps)) - np.flatnonzero(steps == 0)[np.cumsum(steps == 0) - 1]
    if longest is not None:
        place %= longest
        steps[place == 0] = 0
    number = np.cumsum(steps == 0) - 1
    lengths = np.bincount(number)
    rank = np.argsort(-lengths, kind="stable")
    where, shape = np.argsort(rank)[number], (len(lengths), int(lengths.max(initial=0)))
    rows, between = np.full(shape, -1, np.intp), np.zeros(shape, np.intp)
    rows[where, place], between[where, place] = order, steps
    return Segments(rows, between, lengths[rank])


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

    Parameters
    ----------
    scores : (N, K), logarithms of the emissions, up to a constant in each row
    segments : the order of the rows
    transitions : (K, K), probability of the next class (column) after a class (row)
    initial : (K,), class probabilities at the start of a segment
    """
    emissions, powers = _emissions(scores), _powers(transitions)
    filtered, scale = np.empty_like(emissions), np.empty(len(emissions))
    before = np.tile(initial, (len(segments.lengths), 1))
    for place in range(segments.rows.shape[1]):
        count = segments.active(place)
        rows, steps = segments.rows[:count, place], segments.steps[:count, place]
        before = np.einsum("sk,skl->sl", before[:count], powers[steps]) * emissions[rows]
        scale[rows] = before.sum(axis=1)
        before /= scale[rows][:, None]
        filtered[rows] = before
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
    for place in range(segments.rows.shape[1] - 1, 0, -1):
        count = segments.active(place)
        rows, previous = segments.rows[:count, place], segments.rows[:count, place - 1]
        steps = segments.steps[:count, place]
        after[previous] = np.einsum("skl,sl->sk", powers[steps], weight[rows] * after[rows])
    follows = segments.steps > 0
    previous, rows, steps = segments.rows[:, :-1][follows[:, 1:]], segments.rows[follows], segments.steps[follows]
    joint = np.zeros((LONGEST_GAP + 1, *transitions.shape))
    for n in np.unique(steps).tolist():
        pair = steps == n
        joint[n] = filtered[previous[pair]].T @ (weight[rows[pair]] * after[rows[pair]])
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
    powers = np.log(np.maximum(_powers(transitions), _TINY))
    came_from = np.zeros(scores.shape, np.intp)
    best = np.tile(np.log(np.maximum(initial, _TINY)), (len(segments.lengths), 1))
    ends = np.empty_like(best)
    for place in range(segments.rows.shape[1]):
        count = segments.active(place)
        rows, steps = segments.rows[:count, place], segments.steps[:count, place]
        if place:
            reached = best[:count, :, None] + powers[steps]
            came_from[rows] = reached.argmax(axis=1)
            best = reached.max(axis=1)
        best = best[:count] + scores[rows]
        ends[:count] = best
    path = np.zeros(len(scores), np.intp)
    if len(ends):
        path[segments.rows[np.arange(len(ends)), segments.lengths - 1]] = ends.argmax(axis=1)
    for place in range(segments.rows.shape[1] - 1, 0, -1):
        count = segments.active(place)
        rows = segments.rows[:count, place]
        path[segments.rows[:count, place - 1]] = came_from[rows, path[rows]]
    return path


# ------------------------------------------------------------------------------------------------ learning


def _dirichlet(classes: int) -> _Floats:
    """Return the prior of the transitions, which favours staying, in numbers of transitions: (K, K)."""
    leave = (1 - _STAY) / max(classes - 1, 1)
    return np.asarray(_STRENGTH * (leave + (_STAY - leave) * np.eye(classes)))


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
    """Iterate from the prior: transitions (K, K) from their expected counts and the prior."""
    prior = _dirichlet(classes)
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
    first, classes = segments.rows[:, :1].ravel(), scores.shape[1]
    initial, smoothed = np.full(classes, 1 / classes), np.full(scores.shape, 1 / classes)

    def expected(transitions: _Floats) -> _Floats:
        nonlocal initial, smoothed
        smoothed, counts = forward_backward(scores, segments, transitions, initial)
        initial = _start_from(smoothed[first].sum(axis=0), smoothed.mean(axis=0))
        return counts

    return _estimate(expected, classes), initial


def labelled_pairs(codes: _Rows, segments: Segments, classes: int) -> tuple[_Floats, _Floats]:
    """Count pairs of successive windows with labels (LONGEST_GAP + 1, K, K), by steps, and labelled starts (K,)."""
    pairs, first = np.zeros((LONGEST_GAP + 1, classes, classes)), segments.rows[:, :1].ravel()
    follows = segments.steps > 0
    before, after = codes[segments.rows[:, :-1][follows[:, 1:]]], codes[segments.rows[follows]]
    known = (before >= 0) & (after >= 0)
    np.add.at(pairs, (segments.steps[follows][known], before[known], after[known]), 1)
    return pairs, np.bincount(codes[first][codes[first] >= 0], minlength=classes).astype(np.float64)


def transitions_of_pairs(pairs: _Floats, starts: _Floats) -> tuple[_Floats, _Floats]:
    """Learn transitions (K, K) and initial distribution (K,) from `labelled_pairs`, as `baum_welch` does without."""

    def expected(transitions: _Floats) -> _Floats:
        return _expected_transitions(pairs / np.maximum(_powers(transitions), _TINY), transitions)

    shares = pairs.sum(axis=(0, 1))
    return _estimate(expected, len(starts)), _start_from(starts, shares / max(shares.sum(), 1))


# ------------------------------------------------------------------------------------------------ the chain


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
        """Return the most probable sequence of classes (Viterbi), as numbers from 0: (N,).

        Parameters
        ----------
        likelihoods : (N, K), from `Probe.log_likelihoods`
        windows : (N,), their recordings and starts
        """
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
        arrays = {"transitions": self.transitions.tolist(), "initial": self.initial.tolist()}
        return {**{name: getattr(self, name) for name in _PLAIN}, **arrays, "validation": dict(self.validation)}

    @classmethod
    def from_dict(cls, content: Any, classes: int) -> Self:
        """Build the chain of this many classes from the output of `to_dict`."""
        try:
            transitions, initial = (np.array(content[name], np.float64) for name in ("transitions", "initial"))
            plain = {name: kind(content[name]) for name, kind in _PLAIN.items()}
            validation = dict(content["validation"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the file's probe has an invalid chain: {error}") from error
        if transitions.shape != (classes, classes) or initial.shape != (classes,) or plain["step"] < 1:
            raise ModelFileError(f"the file's probe must have a chain of {classes} classes")
        if not (_are_distributions(transitions) and _are_distributions(initial) and 0 < plain["kappa"] <= 1):
            raise ModelFileError("the file's probe has a chain whose rows are not probabilities")
        return cls(transitions, initial, validation=validation, **plain)


_PLAIN: dict[str, Any] = {"kappa": float, "step": int, "is_default": bool, "reason": str}


def _are_distributions(rows: _Floats) -> bool:
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=-1), 1))


def choose_chain(
    likelihoods: _Floats, codes: _Rows, fold: _Rows, groups: NDArray[Any] | None, windows: Windows
) -> Chain:
    """Learn a chain, and whether it helps on left-out subjects.

    Parameters
    ----------
    likelihoods : (N, K), as from `Probe.left_out_likelihoods`
    codes : (N,), class of each window from 0, -1 without a label
    fold : (N,), windows of one fold are left out together; -1 for windows that are not
    groups : (N,), subject of each window; None if unknown, and without validation
    windows : the recording and the start of each window; whole recordings, in order of time
    """
    step, classes, tested = usual_step(windows), likelihoods.shape[1], (codes >= 0) & (fold >= 0)
    segments = segments_of(windows, step, _LONGEST_PIECE)
    pairs, starts = labelled_pairs(codes, segments, classes)
    supervised = pairs.sum() >= _FEWEST_PAIRS * classes
    origin = f"transitions by Baum-Welch on {len(codes):,} windows"
    if supervised:
        origin = f"transitions of {int(pairs.sum()):,} pairs of labelled windows"

    def learn(kappa: float, left_out: int | None = None) -> tuple[_Floats, _Floats]:
        if not supervised:
            return baum_welch(kappa * likelihoods, segments)
        if left_out is None:
            return transitions_of_pairs(pairs, starts)
        return transitions_of_pairs(*labelled_pairs(np.where(fold == left_out, -1, codes), segments, classes))

    if groups is None or len(np.unique(groups[tested])) < _FEWEST_SUBJECTS:
        why = f"not validated, because labels are from fewer than {_FEWEST_SUBJECTS} subjects"
        return Chain(*learn(1.0), 1.0, step, False, f"{origin}; {why}; not used by default")
    paths: dict[float, _Rows] = {}
    for kappa in KAPPAS if tested.sum() >= _FEWEST_LABELS else KAPPAS[:1]:
        paths[kappa] = np.empty(len(codes), np.intp)
        for number in range(int(fold.max()) + 1) if supervised else (None,):
            mine = fold == number if supervised else tested
            paths[kappa][mine] = viterbi(kappa * likelihoods, segments, *learn(kappa, number))[mine]
    truth, alone = codes[tested], likelihoods[tested].argmax(axis=1)
    kappa = max(paths, key=lambda kappa: round(float(_weights(truth) @ (paths[kappa][tested] == truth)), 12))
    is_default, validation, verdict = _judge(truth, alone, paths[kappa][tested], groups[tested], classes)
    return Chain(*learn(kappa), kappa, step, is_default, f"{origin}, kappa {kappa:g}; {verdict}", validation)


def _weights(truth: _Rows) -> _Floats:
    """Return weights of windows with the sum 1 and the same sum in each class, for a balanced accuracy: (n,)."""
    weight = 1 / np.bincount(truth)[truth]
    return np.asarray(weight / weight.sum())


def _judge(
    truth: _Rows, alone: _Rows, along: _Rows, groups: NDArray[Any], classes: int
) -> tuple[bool, dict[str, Any], str]:
    """Return whether to predict along the recording, the scores, and both in words; arguments (n,) are of windows."""
    weight, subjects = _weights(truth), len(np.unique(groups))
    # The standard error of the gain over subjects, each with the sum of its windows' contributions.
    difference = weight * ((along == truth).astype(float) - (alone == truth))
    share = np.bincount(np.unique(groups, return_inverse=True)[1], difference)
    gain, error = float(share.sum()), float(np.sqrt(subjects * share.var(ddof=1)))
    names = np.arange(classes)
    recalls = [recall_score(truth, guess, labels=names, average=None, zero_division=0) for guess in (alone, along)]
    scores = [float(weight @ (guess == truth)) for guess in (alone, along)]
    validation = {
        "window": scores[0],
        "along": scores[1],
        "error": error,
        "recall_window": recalls[0].tolist(),
        "recall_along": recalls[1].tolist(),
    }
    # The error of few subjects is uncertain itself: the quantile of t that one standard error is of many.
    is_beyond = gain > error * stdtrit(subjects - 1, ndtr(1.0))
    lost, few = bool((recalls[1] < recalls[0] / 2).any()), subjects < _FEWEST_FOR_DEFAULT
    why = ", because the recall of a class halves" if lost else ""
    if few and is_beyond:
        why = f", because {subjects} subjects are too few to be sure"
    is_default = bool(is_beyond and not lost and not few)
    verdict = (
        f"balanced accuracy on {subjects} left-out subjects {100 * scores[0]:.1f} % for each window by itself, "
        f"{100 * scores[1]:.1f} % along the recording, gain {100 * gain:+.1f} ± {100 * error:.1f} points; "
        f"{'used by default' if is_default else 'not used by default'}{why}"
    )
    return is_default, validation, verdict
