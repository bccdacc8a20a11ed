"""Optimizers whose parameters every rank has slices of: the steps of the whole."""

import numpy as np
import pytest
from rank_processes import in_threads

import gradwire

SIZES = (1000, 7, 2)


def arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).astype(np.float32) for n in SIZES]


def cut(whole, rank):
    """A third each; of the smallest, rank 0 has none."""
    ends = [0, len(whole) // 3, 2 * len(whole) // 3, len(whole)]
    return whole[ends[rank] : ends[rank + 1]].copy()


@pytest.mark.parametrize("spec", ["sgd", "adamw:max_grad_norm=1", "lars", "lamb:weight_decay=0.01"])
def test_slices_step_as_the_whole(spec):
    whole, gradients = arrays(0), arrays(1)
    optimizer = gradwire.Optimizer(spec, whole, gradients, 0.1)
    for _ in range(3):
        optimizer.step()

    def body(transport):
        values = [cut(v, transport.rank) for v in arrays(0)]
        mine = [cut(g, transport.rank) for g in gradients]
        of_slices = gradwire.Optimizer(spec, values, mine, 0.1, slices=transport)
        for _ in range(3):
            of_slices.step()
        return values

    for rank, end in enumerate(in_threads(3, body)):
        for found, expected in zip(end.result(), whole):
            np.testing.assert_allclose(found, cut(expected, rank), rtol=3e-6, atol=3e-7)


def test_a_bad_gradient_on_one_rank_leaves_the_step_out_on_all():
    def body(transport):
        values = [cut(v, transport.rank) for v in arrays(0)]
        gradients = [cut(g, transport.rank) for g in arrays(1)]
        optimizer = gradwire.LAMB(values, gradients, 0.1, slices=transport)
        before = [v.copy() for v in values]
        if transport.rank == 1:
            gradients[0][5] = np.inf
        with pytest.raises(gradwire.NonFiniteGradient) as error:
            optimizer.step()
        for value, old in zip(values, before):
            np.testing.assert_array_equal(value, old)
        gradients[0][...] = 1
        optimizer.step()
        return str(error.value)

    said = [end.result() for end in in_threads(3, body)]
    assert "element 5 is inf" in said[1]
    assert all("another rank's slice" in said[r] for r in (0, 2))


def test_one_bit_rows_refuse_slices():
    transport = gradwire.make_transport("in_process")
    optimizer = gradwire.Optimizer("onebit-adam", arrays(0), arrays(1), 0.1, slices=transport)
    with pytest.raises(gradwire.InvalidArgument, match="expected whole parameters"):
        optimizer.step()
