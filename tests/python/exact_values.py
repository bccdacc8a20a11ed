"""Gradients whose bits are the same on every machine, for digests."""

import numpy as np

SEED = 20261127


def values(shape, rank, step, which):
    """Made of integers and products alone, so that every machine has the same bits."""
    numel = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = (np.arange(numel, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
             + np.uint64(SEED + (rank << 40) + (step << 20) + which))  # fmt: skip
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    u = ((x >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(2.0**-23)
    cube = u * u * u
    return cube.reshape(shape) * np.float32(0.125 if step % 3 == 2 else 1.0)
