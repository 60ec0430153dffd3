"""Which components come back: kept with the model, computed on halves of the subjects."""

from __future__ import annotations

import numpy as np
import pytest

from polyadic import SALS, load
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.explain.replicability import Replicability
from polyadic.model_files import read, write


def _checked_model():
    X = np.random.default_rng(0).normal(size=(30, 3, 4))
    model = SALS(rank=2, tensorize=None, max_sweeps=2).fit(X)
    model.replicability_ = Replicability(np.array([0.97, 0.5]), np.array([1.0, 0.25]), refits=4, halves=False)
    return model, X


def test_a_model_file_holds_the_replicability(tmp_path):
    model, X = _checked_model()
    model.save(tmp_path / "m.safetensors")
    same = load(tmp_path / "m.safetensors")
    assert same.replicability_.to_dict() == model.replicability_.to_dict()
    same.partial_fit(X)
    assert not hasattr(same, "replicability_")  # it was of other bases


@pytest.mark.parametrize(
    "damage",
    [{"match": [0.5]}, {"match": [2.0, 0.0]}, {"refits": 0}, {"returned": "no"}, {"threshold": None}, {"more": 1}],
)
def test_a_damaged_replicability_is_refused(tmp_path, damage):
    model, _ = _checked_model()
    model.save(tmp_path / "m.safetensors")
    arrays, header = read(tmp_path / "m.safetensors")
    write(tmp_path / "m.safetensors", arrays, {**header, "replicability": {**header["replicability"], **damage}})
    with pytest.raises(ModelFileError, match="replicability"):
        load(tmp_path / "m.safetensors")


def test_replicability_refuses_what_is_no_share():
    with pytest.raises(PolyadicError, match="match must be"):
        Replicability(np.array([1.5]), np.array([1.0]), refits=1)
