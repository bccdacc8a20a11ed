"""Reducer.mean(): a step out of place, of arrays that nobody may change."""

import numpy as np
import pytest
from rank_processes import in_threads

import gradwire

SHAPES = [("w", (30, 7)), ("b", (7,)), ("s", ()), ("k", (3, 4, 5))]


def arrays(rank, step, dtype=np.float32):
    rng = np.random.default_rng([rank, step])
    return [np.asarray(rng.standard_normal(shape), dtype) for _, shape in SHAPES]


def frozen(values):
    for value in values:
        value.flags.writeable = False
    return values


def reducer_of(transport, spec="topk:10%", dtype="float32", **options):
    plan = gradwire.make_plan(SHAPES, spec, dtype=dtype, bucket_bytes=400)
    return gradwire.Reducer(plan, transport, **options)


def in_place(transport, steps):
    """What a Reducer gives that is written to."""
    reducer, results = reducer_of(transport), []
    for step in range(steps):
        for p, values in enumerate(arrays(transport.rank, step)):
            reducer.gradient(p)[...] = values
            reducer.grad_ready(p)
        reducer.wait()
        results.append([reducer.gradient(p).copy() for p in range(len(SHAPES))])
    return results


def same(found, expected):
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
        assert one.shape == other.shape


def test_means_have_the_bits_of_steps_in_place():
    def body(transport):
        expected = in_place(transport, 4)
        reducer = reducer_of(transport.split(0))
        results = [reducer.mean(frozen(arrays(transport.rank, step))) for step in range(4)]
        for found, wanted in zip(results, expected):  # earlier ones stay what they were
            same(found, wanted)
        assert reducer.committed_steps == 4

    for end in in_threads(3, body):
        end.result()


def test_arrays_of_jax():
    jax = pytest.importorskip("jax")

    def body(transport):
        expected = in_place(transport, 3)
        reducer = reducer_of(transport.split(0))
        for step in range(3):
            given = [jax.numpy.asarray(values) for values in arrays(transport.rank, step)]
            found = reducer.mean(given, convert=jax.numpy.asarray)
            assert all(isinstance(each, jax.Array) for each in found)
            same(found, expected[step])
            same(given, arrays(transport.rank, step))

    for end in in_threads(2, body):
        end.result()


@pytest.mark.parametrize("kind", ["bfloat16 of ml_dtypes", "bits in uint16", "float16", "jax"])
def test_gradients_of_16_bits(kind):
    if kind == "float16":
        dtype, of = np.dtype(np.float16), lambda values: values
    else:
        dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
        of = {"bits in uint16": lambda values: values.view(np.uint16)}.get(kind, lambda values: values)
        if kind == "jax":
            of = pytest.importorskip("jax").numpy.asarray

    def body(transport):
        reducer = reducer_of(transport, "none", dtype.name)
        found = reducer.mean([of(values) for values in arrays(transport.rank, 0, dtype)])
        for i, mean in enumerate(found):
            pair = [arrays(rank, 0, dtype)[i].astype(np.float64) for rank in range(2)]
            assert mean.dtype == (np.uint16 if kind == "bits in uint16" else dtype)
            np.testing.assert_array_equal(mean.view(dtype), (sum(pair) / 2).astype(dtype))

    for end in in_threads(2, body):
        end.result()


def test_a_skipped_step_has_no_means():
    def body(transport):
        reducer = reducer_of(transport, on_nonfinite="skip")
        broken = arrays(transport.rank, 0)
        broken[0][3, 3] = np.nan if transport.rank == 1 else 0
        assert reducer.mean(broken) is None
        assert reducer.mean(arrays(transport.rank, 1)) is not None
        assert (reducer.committed_steps, reducer.skipped_steps) == (1, 1)

    for end in in_threads(2, body):
        end.result()


class OnGpu:
    def __dlpack__(self, **options):
        raise AssertionError("is not looked at")

    def __dlpack_device__(self):
        return (2, 1)


def test_what_does_not_fit_is_refused_before_anything_leaves():
    reducer = reducer_of(gradwire.make_transport("in_process"), "none")
    good = arrays(0, 0)
    refused = [
        (good[:3], r"holds 3 arrays, must hold 4"),
        ([good[0], good[1], good[2], good[3][:2]], r"gradients\[3\]: has 40 elements, must have 60"),
        ([good[0].T, *good[1:]], r"gradients\[0\]: is not contiguous"),
        ([good[0].astype(np.float64), *good[1:]], r"gradients\[0\]: dtype is float64, must be float32"),
        ([good[0].astype(">f4"), *good[1:]], r"gradients\[0\]: dtype is >f4"),
        ([OnGpu(), *good[1:]], r"gradients\[0\]: is on a device \(DLPack's type 2, number 1\)"),
        ([object(), *good[1:]], r"gradients\[0\]: dtype is object"),
    ]
    for given, words in refused:
        with pytest.raises(gradwire.InvalidArgument, match=words):
            reducer.mean(given)
        assert reducer.gradient_timings() == []
    same(reducer.mean(good), good)
