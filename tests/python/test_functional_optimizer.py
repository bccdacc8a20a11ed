"""Optimizer steps that return new arrays: those of an Optimizer in place, bit for bit."""

import numpy as np
import pytest

import gradwire

SHAPES = [(30, 7), (7,), (), (3, 4, 5)]
SPECS = ["sgd", "adamw", "lars", "lamb:weight_decay=0.01"]


def arrays(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


def frozen(values):
    for value in values:
        value.flags.writeable = False
    return values


def in_place(spec, steps):
    values, gradients = arrays(0), arrays(1)
    optimizer = gradwire.Optimizer(spec, values, gradients, 0.1)
    for step in range(steps):
        for gradient, new in zip(gradients, arrays(1 + step)):
            gradient[...] = new
        optimizer.step()
    return values


@pytest.mark.parametrize("spec", SPECS)
def test_updates_have_the_bits_of_steps_in_place(spec):
    start = frozen(arrays(0))
    optimizer = gradwire.FunctionalOptimizer(spec, start, 0.1, threads=2)
    results = [optimizer.update(frozen(arrays(1 + step))) for step in range(3)]
    for steps, result in enumerate(results, 1):  # earlier ones stay what they were
        for value, expected in zip(result, in_place(spec, steps)):
            np.testing.assert_array_equal(value, expected)
            assert value.shape == expected.shape and value.flags.writeable
    for value, expected in zip(start, arrays(0)):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("spec", SPECS)
def test_arrays_of_jax(spec):
    jax = pytest.importorskip("jax")
    optimizer = gradwire.FunctionalOptimizer(
        spec, [jax.numpy.asarray(v) for v in arrays(0)], 0.1, convert=jax.numpy.asarray)
    for step in range(2):
        result = optimizer.update([jax.numpy.asarray(g) for g in arrays(1 + step)])
    for value, expected in zip(result, in_place(spec, 2)):
        assert isinstance(value, jax.Array)
        np.testing.assert_array_equal(value, expected)


def test_it_goes_on_from_its_state():
    first = gradwire.FunctionalOptimizer("adamw", arrays(0), 0.1)
    first.update(arrays(1))
    saved = first.state_dict()
    expected = first.update(arrays(2))
    second = gradwire.FunctionalOptimizer("adamw", arrays(5), 0.7)
    second.load_state_dict(saved)
    assert second.lr == 0.1
    for value, wanted in zip(second.update(arrays(2)), expected):
        np.testing.assert_array_equal(value, wanted)


def test_what_does_not_fit_changes_nothing():
    optimizer = gradwire.FunctionalOptimizer("sgd", arrays(0), 0.1)
    good = arrays(1)
    for bad, words in ((good[:3], "gradients: holds 3 arrays, must hold 4"),
                       ([*good[:3], np.zeros(3, np.float32)],
                        r"gradients\[3\]: has 3 elements, must have 60"),
                       ([*good[:3], good[3].astype(np.float64)], r"gradients\[3\]: dtype is float64"),
                       ([good[0].T, *good[1:]], r"gradients\[0\]: is not contiguous")):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=words):
            optimizer.update(bad)
    nan = arrays(1)
    nan[3][1, 2, 3] = np.nan
    with pytest.raises(gradwire.NonFiniteGradient, match="parameter '3'"):
        optimizer.update(nan)
    for broken in ({"values": arrays(0)[:2]}, {}):
        with pytest.raises(gradwire.InvalidArgument, match=r"state\['values'\]"):
            optimizer.load_state_dict({**optimizer.state_dict(), "values": None, **broken})
    for value, expected in zip(optimizer.parameters(), arrays(0)):
        np.testing.assert_array_equal(value, expected)
    for value, expected in zip(optimizer.update(good), in_place("sgd", 1)):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("spec", ["onebit-adam", "onebit-lamb:freeze_step=2", "diloco"])
def test_what_exchanges_more_than_gradients_is_refused(spec):
    with pytest.raises(gradwire.InvalidArgument, match="steps on gradients alone"):
        gradwire.FunctionalOptimizer(spec, arrays(0), 0.1)
