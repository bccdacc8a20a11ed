"""Ranks that are processes, in plain NumPy: torchrun --nproc-per-node 4 examples/numpy_ranks.py

(mpirun and srun start it as well; without any, one rank runs alone.)
"""

import os

import numpy as np

import gradwire

random = np.random.default_rng(0)
features, truth = random.standard_normal((4096, 200)), random.standard_normal(200)

started = any(name in os.environ for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
place = gradwire.from_environment() if started else {"rank": 0, "world_size": 1}
name = "gloo" if started else "in_process"
with gradwire.make_transport(name, **place) as transport:
    mine = features[transport.rank :: transport.world_size].astype(np.float32)
    wanted = mine @ truth.astype(np.float32)
    # [loop]
    plan = gradwire.make_plan([("weights", (200,))], "topk:10%", exempt_1d="never")
    reducer = gradwire.Reducer(plan, transport)
    weights = np.zeros(200, np.float32)
    gradient = reducer.gradient(0)  # where the reducer wants it, and gives the mean
    for step in range(300):
        gradient[...] = mine.T @ (mine @ weights - wanted) / len(mine)
        reducer.grad_ready(0)
        reducer.wait()
        weights -= 0.1 * gradient
    # [loop-end]
    error = np.abs(weights - truth).max()
    if transport.rank == 0:
        print(f"{transport.world_size} ranks, largest error {error:.5f}")
    assert error < 0.01, "the weights reach the truth"
    del gradient, reducer
