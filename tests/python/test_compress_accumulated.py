"""Gradients accumulated straight into the residual, in one buffer, and undone."""

import pickle

import numpy as np
import pytest

import gradwire

NUMEL = 5000
# dgc needs the gradient apart from the residual: it refuses.
FEEDBACK = [row.example for row in gradwire.compressors()
            if row.error_feedback and row.name != "dgc"]


def largest(x, count):
    """The `count` largest magnitudes, ties to the smaller index, element by element."""
    out = np.zeros_like(x)
    for i in sorted(range(x.size), key=lambda i: (-abs(float(x[i])), i))[:count]:
        out[i] = x[i]
    return out


def test_one_buffer_loses_nothing_over_steps(rng):
    compressor = gradwire.Compressor("topk:2%", NUMEL)
    x, reference = np.zeros(NUMEL, np.float32), np.zeros(NUMEL, np.float32)
    for _ in range(3):
        for _ in range(2):  # passes
            gradient = rng.standard_normal(NUMEL).astype(np.float32)
            x += gradient
            reference = reference + gradient
        payload = compressor.compress_accumulated(x)
        sent = largest(reference, NUMEL // 50)
        np.testing.assert_array_equal(compressor.decompress(payload), sent)
        reference = reference - sent
        np.testing.assert_array_equal(x, reference)
        compressor.commit()
    assert compressor.step == 3


@pytest.mark.parametrize("spec", FEEDBACK)
def test_it_writes_the_payload_of_compress_and_restore_undoes_it(spec, rng):
    compressor = gradwire.Compressor(spec, NUMEL, seed=4)
    total = rng.standard_normal(NUMEL).astype(np.float32)
    kept = np.empty(NUMEL, np.float32)
    payload = compressor.compress(total, np.zeros(NUMEL, np.float32), kept)
    x, room = total.copy(), bytearray(compressor.capacity_bytes)
    mine = compressor.compress_accumulated(x, room)
    assert mine.tobytes() == payload.tobytes() == bytes(room[:mine.nbytes])
    np.testing.assert_array_equal(x, kept)
    compressor.restore(mine, x)
    sent = compressor.decompress(payload).astype(np.float64)
    np.testing.assert_allclose(x, sent + kept, rtol=0, atol=3e-7 * np.abs(total).max())
    if spec.startswith(("topk", "chunktopk")):
        np.testing.assert_array_equal(x, total)


def test_values_that_are_not_finite_stay(rng):
    compressor = gradwire.Compressor("topk:2%", NUMEL)
    x = rng.standard_normal(NUMEL).astype(np.float32)
    x[17] = np.inf
    before = x.copy()
    payload = compressor.compress_accumulated(x)
    np.testing.assert_array_equal(x, before)
    assert not gradwire.payload_info(payload)["finite"]
    with pytest.raises(gradwire.NonFiniteGradient, match="nothing was committed"):
        compressor.commit()
    compressor.restore(payload, x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("spec, values, says", [
    ("topk:2%", np.ones(NUMEL - 1, np.float32), "values: has 4999 elements, must have 5000"),
    ("topk:2%", np.ones(NUMEL), "values: dtype is float64, must be float32"),
    ("topk:2%", np.frombuffer(bytes(4 * NUMEL), np.float32), "values: is read-only"),
    ("topk:2%", np.ones(2 * NUMEL, np.float32)[::2], "values: is not contiguous"),
    ("bf16", np.ones(NUMEL, np.float32), "bf16"),
])
def test_bad_values_are_named_and_unchanged(spec, values, says):
    compressor, before = gradwire.Compressor(spec, NUMEL), values.copy()
    payload = gradwire.Compressor("topk:2%", NUMEL).compress(np.ones(NUMEL, np.float32))
    for call in (lambda: compressor.compress_accumulated(values),
                 lambda: compressor.restore(payload, values)):
        with pytest.raises(gradwire.InvalidArgument, match=says):
            call()
    np.testing.assert_array_equal(values, before)


def test_bad_payloads_and_rooms_leave_the_values(rng):
    compressor = gradwire.Compressor("topk:2%", NUMEL)
    x = rng.standard_normal(NUMEL).astype(np.float32)
    payload = compressor.compress_accumulated(x)
    before = x.copy()
    other = gradwire.Compressor("topk:2%", NUMEL + 1).compress(np.ones(NUMEL + 1, np.float32))
    for bad in (b"", payload[:-1], payload[:40], other, np.zeros(64, np.uint8)):
        with pytest.raises(gradwire.InvalidArgument):
            compressor.restore(bad, x)
    with pytest.raises(gradwire.InvalidArgument, match="must have at least"):
        compressor.compress_accumulated(x, bytearray(compressor.capacity_bytes - 1))
    with pytest.raises(gradwire.InvalidArgument, match="out: shares memory with values"):
        compressor.compress_accumulated(x, x.view(np.uint8))
    np.testing.assert_array_equal(x, before)


def test_a_state_dict_has_what_was_learned(rng):
    gradients = [rng.standard_normal(NUMEL).astype(np.float32) for _ in range(6)]
    straight = gradwire.Feedback("threshold:2%", NUMEL)
    for gradient in gradients[:3]:
        straight.compress(gradient)
        straight.commit()
    state = pickle.loads(pickle.dumps(straight.state_dict()))
    assert len(state["learned"]) == 2 and state["learned"] != [0, 0]
    resumed = gradwire.Feedback("threshold:2%", NUMEL)
    resumed.load_state_dict(state)
    for learned, says in [([1], "has 1 words, expected 2"), ([-1, 0], "must be a list of integers"),
                          ([0x7FC00000, 1], "word of tau is"), ("all", "must be a list of integers")]:
        with pytest.raises(gradwire.InvalidArgument, match="learned.*" + says):
            resumed.load_state_dict(dict(state, learned=learned, step=9))
        assert resumed.step == 3 and resumed.state_dict()["learned"] == state["learned"]
    for gradient in gradients[3:]:
        assert straight.compress(gradient).tobytes() == resumed.compress(gradient).tobytes()
        straight.commit()
        resumed.commit()
