"""Messages between processes contain numbers, names and tensors; nothing is unpickled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from polyadic.engine.loop import FitProgress
from polyadic.engine.messages import decode_message, encode_message

from polyadic.core.step import State, Statistics
from polyadic.errors import CheckpointError, DataError, PolyadicError


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "name", [1, [2.0, "x"]], ("a", 1), {"a": {"b": None}}, [], {}])
def test_plain_values_come_through(value):
    assert decode_message(encode_message(value)) == value
    assert type(decode_message(encode_message(value))) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_tensors_come_through_with_their_layout(dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype).permute(2, 0, 1)
    again = decode_message(encode_message([tensor, tensor[0, 0, 0]]))
    assert torch.equal(again[0], tensor)
    assert again[0].stride() == tensor.stride()
    assert again[0].dtype == again[1].dtype == dtype
    assert again[1].shape == ()


def test_the_state_of_a_fit_comes_through():
    memory = Statistics(torch.randn(2, 3, 4), torch.eye(2, dtype=torch.float64))
    state = State([torch.randn(3, 2), torch.randn(4, 2)], memory, None, torch.ones(2))
    progress = FitProgress(batch=3, bases=0.5, seconds=1.25)
    first, second = decode_message(encode_message((progress, state)))
    assert (first.batch, first.bases, first.seconds, first.history) == (3, 0.5, 1.25, progress.history)
    assert all(torch.equal(one, other) for one, other in zip(second.factors, state.factors, strict=True))
    assert torch.equal(second.memory.Y, memory.Y)
    assert second.coefficients is None


@pytest.mark.parametrize("error", [PolyadicError("a"), CheckpointError("b"), DataError("c")])
def test_errors_of_ours_are_raised_as_they_were(error):
    with pytest.raises(type(error), match=f"^{error}$"):
        decode_message(encode_message(None, error))


def test_errors_of_the_system_keep_their_number_and_others_their_words():
    with pytest.raises(FileNotFoundError, match="No such file") as found:
        decode_message(encode_message(None, FileNotFoundError(2, "No such file", "there")))
    assert found.value.filename == "there"
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        decode_message(encode_message(None, ZeroDivisionError("division by zero")))
    with pytest.raises(InterruptedError):
        decode_message(encode_message(None, InterruptedError()))


def test_values_that_a_message_cannot_hold_are_refused():
    with pytest.raises(TypeError, match="a message cannot hold a ndarray"):
        encode_message(np.ones(2))
