"""What a ShardedReducer holds of a step's arrays."""

import time
import weakref

import numpy as np

import gradwire
from gradwire import _core

NUMEL = 1000


def _reducer(groups):
    (alone,) = gradwire.make_in_process_group(1)
    made = [(f"layer{g}", "float32", [[NUMEL]], g) for g in range(groups)]
    return _core.ShardedReducer(made, alone, "topk:10%")


def _reduce(reducer, group):
    """References to what nobody else holds."""
    gradient, shard = np.ones(NUMEL, np.float32), np.zeros(NUMEL, np.float32)
    reducer.reduce(group, gradient, shard, 1.0)
    return weakref.ref(gradient), weakref.ref(shard)


def test_gradients_go_before_the_step_ends():
    reducer = _reducer(groups=1000)
    gradient, shard = _reduce(reducer, 0)
    for group in range(1, 1000):
        if gradient() is None:
            break
        time.sleep(0.01)
        _reduce(reducer, group)
    assert gradient() is None and shard() is not None
    assert reducer.pending == group
    assert reducer.commit() and shard() is None


def test_an_abandoned_step_holds_nothing():
    reducer = _reducer(groups=2)
    held = [*_reduce(reducer, 0), *_reduce(reducer, 1)]
    reducer.abandon()
    assert all(each() is None for each in held) and reducer.pending == 0
    assert not reducer.residuals(0)[0].any()
