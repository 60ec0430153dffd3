"""The reported outcome of a fit: the warning if max_sweeps ends it, and what repr, str and notebooks show."""

from __future__ import annotations

import json
import warnings
from functools import partial

import numpy as np
import pytest
from command_line import polyadic
from sklearn.exceptions import ConvergenceWarning

from polyadic import ATD, CPD, SALS, load
from polyadic.augment import Compose, Jitter
from polyadic.data import synthetic
from polyadic.readout import Readout
from polyadic.spectral import STFT

STOPPED = r"The fit stopped at max_sweeps=2 before the loss converged\. Increase max_sweeps, or set tol=0"


def tensors(count=40):
    return np.random.default_rng(0).normal(size=(count, 4, 6))


def unwarned(model, X):
    """Fit, with every warning as an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(X)


@pytest.mark.parametrize("kind", [CPD, ATD])
def test_a_fit_that_max_sweeps_ends_warns_at_the_line_that_called_it(kind):
    with pytest.warns(ConvergenceWarning, match=STOPPED) as caught:
        model = kind(rank=3, tensorize=None, max_sweeps=2).fit(tensors())
    assert [warning.filename for warning in caught] == [__file__]
    assert "--" not in str(caught[0].message)  # options are for the command line
    assert model.converged_ is False


@pytest.mark.parametrize("kind", [CPD, SALS])
def test_a_fit_that_converges_even_in_its_last_sweep_does_not_warn(kind):
    model = unwarned(kind(rank=3, tensorize=None, max_sweeps=500), tensors())
    last = model.n_sweeps_
    assert last < 500
    assert model.converged_ is True
    assert unwarned(kind(rank=3, tensorize=None, max_sweeps=last), tensors()).n_sweeps_ == last
    with pytest.warns(ConvergenceWarning, match=f"max_sweeps={last - 1} "):
        kind(rank=3, tensorize=None, max_sweeps=last - 1).fit(tensors())


@pytest.mark.parametrize("kind", [CPD, partial(SALS, batch_size=None)])
def test_with_tol_0_all_sweeps_are_done_without_a_warning_even_if_the_loss_is_constant(kind):
    silence = np.zeros((10, 4, 6))
    settings = {"rank": 2, "tensorize": None, "readout": None, "max_sweeps": 500, "patience": 1}
    assert unwarned(kind(tol=0, **settings), silence).n_sweeps_ == 500
    assert unwarned(kind(tol=1e-3, **settings), silence).n_sweeps_ < 500


def test_the_command_line_warns_in_one_line_and_tells_programs_whether_the_loss_converged(tmp_path):
    np.savez(tmp_path / "windows.npz", X=np.random.default_rng(0).normal(size=(30, 2, 64)), fs=64.0)
    words = ("fit", "windows.npz", "--rank", 2, "--json", "--force", "--sweeps")
    done = polyadic(*words, 2, cwd=tmp_path)
    assert json.loads(done.stdout)["converged"] is False
    (line,) = done.stderr.splitlines()
    assert line.startswith("polyadic: warning: The fit stopped at max_sweeps=2 before the loss converged. Increase ")
    done = polyadic(*words, 500, cwd=tmp_path)
    assert json.loads(done.stdout)["converged"] is True
    assert done.stderr == ""


# ---------------------------------------------------------------------------------------------------------- texts


@pytest.fixture(scope="module")
def windows():
    return synthetic(60, n_channels=3)


@pytest.fixture(scope="module")
def model(windows):
    return CPD(rank=3, max_sweeps=3).fit(windows)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (CPD(rank=4, tensorize=STFT(32, 16)), "CPD(rank=4, tensorize=STFT(n_fft=32, hop=16))"),
        (CPD(readout=Readout(statistics=0)), "CPD(readout=Readout(statistics=0))"),
        (ATD(beta=1.0, augment=Jitter(0.1)), "ATD(augment=Jitter(degree=0.1), beta=1.0)"),
        (STFT(4, 2, mean=np.zeros((9, 3))), "STFT(n_fft=4, hop=2, mean=<9 × 3 numbers>)"),
        (Compose([Jitter(0.1), Jitter(0.2)]), "Compose(steps=(Jitter(degree=0.1), Jitter(degree=0.2)))"),
    ],
)
def test_reprs_show_only_what_differs_from_the_defaults(value, text):
    assert repr(value) == text


def test_a_fit_does_not_change_the_repr_and_str_shows_its_result(windows, model, tmp_path):
    assert repr(model) == "CPD(max_sweeps=3, rank=3)"
    sweeps = f"3 sweeps, loss {model.history_['loss'][-1]:.4g}, not converged"
    outcome = f"fitted to 60 windows of 3 × 256, as tensors 3 × 33 × 25; rank 3, 390 parameters; {sweeps}"
    assert str(model) == f"CPD(max_sweeps=3, rank=3)\n{outcome}"
    assert str(CPD()) == "CPD()"
    model.save(tmp_path / "m.safetensors")
    assert str(load(tmp_path / "m.safetensors")).endswith(outcome)
