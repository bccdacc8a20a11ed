"""An optimizer's state: what a checkpoint holds, in which form it is loaded, and what is refused."""

import pickle

import numpy as np
import pytest

import gradwire


@pytest.mark.parametrize("optimizer", [gradwire.SGD, gradwire.AdamW, gradwire.LARS, gradwire.LAMB])
def test_state_of_8_bits_takes_a_quarter_and_resumes_bit_for_bit(optimizer, rng):
    first = [rng.standard_normal(65536).astype(np.float32) for _ in range(2)]
    gradients = [np.empty_like(w) for w in first]
    groups = [{"parameters": [1], "full_state": True}]
    straight = optimizer(first, gradients, 1e-3, state="8bit", groups=groups)
    assert straight.spec.endswith(":state=8bit")
    moments = 1 if optimizer in (gradwire.SGD, gradwire.LARS) else 2
    assert straight.state_bytes == moments * 65536 * (1 + 4 / 256 + 4)
    for _ in range(3):
        for gradient in gradients:
            gradient[...] = rng.standard_normal(gradient.shape)
        straight.step()
    state = pickle.loads(pickle.dumps(straight.state_dict()))
    for name, piece in state["tensors"]["0"].items():
        wanted = (np.float32, 256) if name.endswith(".scale") else (np.uint8, 65536)
        assert (piece.dtype, piece.size) == wanted and piece.any()
    assert all(piece.dtype == np.float32 for piece in state["tensors"]["1"].values())
    second = [w.copy() for w in first]
    resumed = optimizer(second, gradients, 1e-3, state="8bit", groups=groups)
    resumed.load_state_dict(state)
    for _ in range(3):
        straight.step()
        resumed.step()
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def decoded(codes, scales, has_sign):
    """What docs/optimizer-state.md says of a code: three bits of mantissa, octaves below the scale."""
    code = codes.astype(np.int64)
    magnitude = code & (127 if has_sign else 255)
    value = np.ldexp((8.0 + magnitude % 8) / 8, magnitude // 8 - (15 if has_sign else 31))
    value = np.where(magnitude == 0, 0.0, value) * np.repeat(scales, 256)[:code.size]
    return (np.where(code > 127, -value, value) if has_sign else value).astype(np.float32)


@pytest.mark.parametrize("make, options", [
    (gradwire.AdamW, {}), (gradwire.LAMB, {}), (gradwire.SGD, {"nesterov": True}),
    (gradwire.OneBitLAMB, {"freeze_step": 2}),
])
def test_state_takes_the_form_of_the_optimizer_that_loads_it(make, options, rng):
    start = rng.standard_normal(5000).astype(np.float32)
    gradient = rng.standard_normal(5000).astype(np.float32)

    def made(form):
        return make([start.copy()], [gradient.copy()], 0.01, state=form, **options)

    coded, plain = made("8bit"), made("float32")
    for _ in range(3):
        coded.prepare(), coded.step()
    saved = coded.state_dict()
    plain.load_state_dict(saved)
    pieces, floats = saved["tensors"]["0"], plain.state_dict()["tensors"]["0"]
    names = [name for name, piece in pieces.items() if piece.dtype == np.uint8]
    assert names
    for name in names:
        expected = decoded(pieces[name], pieces[name + ".scale"], "sq" not in name)
        assert expected.any()
        np.testing.assert_array_equal(floats[name], expected)
    again = made("8bit")
    again.load_state_dict(plain.state_dict())
    back = again.state_dict()["tensors"]["0"]
    for name in names:
        np.testing.assert_array_equal(
            decoded(back[name], back[name + ".scale"], "sq" not in name), floats[name])
    assert plain.state_dict()["scalars"] == saved["scalars"]
    # A whole code apart, 1/8 of it, is the most that rounding can have done.
    free = made("float32")
    for _ in range(3):
        free.prepare(), free.step()
    again.load_state_dict(free.state_dict())
    back, floats = again.state_dict()["tensors"]["0"], free.state_dict()["tensors"]["0"]
    for name in names:
        near = decoded(back[name], back[name + ".scale"], "sq" not in name)
        assert np.abs(near - floats[name]).max() > 0
        np.testing.assert_allclose(near, floats[name], rtol=1 / 16, atol=np.abs(near).max() * 2**-15)
    again.prepare(), again.step()


@pytest.mark.parametrize("piece, index, value, says", [
    ("exp_avg.scale", 3, np.nan, r"\['exp_avg'\]: scale 3 is nan, must be 0 or a power of two"),
    ("exp_avg.scale", 0, -0.5, r"\['exp_avg'\]: scale 0 is -0.5"),
    ("exp_avg_sq.scale", 1, np.inf, r"\['exp_avg_sq'\]: scale 1 is inf"),
    ("exp_avg_sq.scale", 1, 0.0, r"\['exp_avg_sq'\]: code 256 is not 0, must be: the scale"),
])
def test_codes_that_no_optimizer_writes_are_refused(piece, index, value, says):
    array = np.ones(5000, np.float32)
    coded, plain = (gradwire.AdamW([array.copy()], [array], 0.1, state=s) for s in ("8bit", "float32"))
    coded.step()
    state = coded.state_dict()
    state["tensors"]["0"][piece][index] = value
    for optimizer in (coded, plain):
        before = optimizer.state_dict()
        with pytest.raises(gradwire.InvalidArgument, match=says):
            optimizer.load_state_dict(state)
        for name, kept in before["tensors"]["0"].items():
            np.testing.assert_array_equal(optimizer.state_dict()["tensors"]["0"][name], kept)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_floats_that_have_no_code_are_refused(value):
    array = np.ones(5000, np.float32)
    coded, plain = (gradwire.AdamW([array.copy()], [array], 0.1, state=s) for s in ("8bit", "float32"))
    plain.step()
    state = plain.state_dict()
    state["tensors"]["0"]["exp_avg"][4999] = value
    with pytest.raises(gradwire.InvalidArgument, match="element 4999 is .*, must be finite to become"):
        coded.load_state_dict(state)


def test_a_state_dict_is_a_copy():
    w, g = np.ones(3, np.float32), np.ones(3, np.float32)
    optimizer = gradwire.SGD([w], [g], 0.1)
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.step()
    np.testing.assert_array_equal(state["tensors"]["0"]["momentum"], [1, 1, 1])


def damaged_states(state):
    for key in state:
        yield f"state\\['{key}'\\].*missing", {k: v for k, v in state.items() if k != key}
    yield "spec.*must be 'lamb'", dict(state, spec="sgd")
    yield "scalars\\['a'\\]\\['step'\\].*missing", dict(state, scalars={})
    for bad in (-1, "x", 2**53 + 1, 2**80):
        yield (f"scalars\\['b'\\]\\['step'\\]: is {bad!r}",
               dict(state, scalars={"a": {"step": 9}, "b": {"step": bad}}))
    only_a = {"a": state["tensors"]["a"]}
    yield "state\\['b'\\]\\['exp_avg'\\].*missing", dict(state, tensors=only_a)
    short = dict(state["tensors"], b={"exp_avg": np.ones(2, np.float32),
                                      "exp_avg_sq": np.ones(2, np.float32)})
    yield "state\\['b'\\].*has 2 elements, must have 3", dict(state, tensors=short)
    wide = dict(state["tensors"], b={k: np.ones(3) for k in ("exp_avg", "exp_avg_sq")})
    yield "state\\['b'\\].*dtype is float64", dict(state, tensors=wide)


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    arrays = [np.ones(3, np.float32) for _ in range(4)]
    optimizer = gradwire.LAMB(arrays[:2], arrays[2:], 0.1, names=["a", "b"])
    optimizer.step()
    before = optimizer.state_dict()
    nines = {name: {k: np.full(3, 9, np.float32) for k in pieces}
             for name, pieces in before["tensors"].items()}
    changed = dict(before, scalars={n: {"step": 9} for n in "ab"}, tensors=nines)
    for message, state in damaged_states(changed):
        with pytest.raises(gradwire.InvalidArgument, match=message):
            optimizer.load_state_dict(state)
        after = optimizer.state_dict()
        assert after["scalars"] == before["scalars"] and after["lr"] == before["lr"]
        for name, pieces in before["tensors"].items():
            for piece, values in pieces.items():
                np.testing.assert_array_equal(after["tensors"][name][piece], values)
