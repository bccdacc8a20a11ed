"""JAX on several ranks, with compressed gradients: torchrun --nproc-per-node 4 examples/jax_ranks.py

(mpirun and srun start it as well; without any, one rank runs alone.)
"""

import os

import jax
import jax.numpy as jnp

import gradwire

jax.config.update("jax_platforms", "cpu")
started = any(name in os.environ for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
place = gradwire.from_environment() if started else {"rank": 0, "world_size": 1}
transport = gradwire.make_transport("gloo" if started else "in_process", **place)

keys = jax.random.split(jax.random.key(0), 4)
inputs = jax.random.normal(keys[0], (2048, 32))
targets = jnp.tanh(inputs @ jax.random.normal(keys[1], (32, 4)) / 4)
mine = inputs[transport.rank :: transport.world_size], targets[transport.rank :: transport.world_size]
params = {
    "hidden": {"w": jax.random.normal(keys[2], (32, 64)) / 6, "b": jnp.zeros(64)},
    "out": {"w": jax.random.normal(keys[3], (64, 4)) / 8},
}


def loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((hidden @ params["out"]["w"] - targets) ** 2)


first = loss(params, inputs, targets)
# [loop]
leaves, tree = jax.tree.flatten(params)
shapes = [(str(i), leaf.shape) for i, leaf in enumerate(leaves)]
reducer = gradwire.Reducer(gradwire.make_plan(shapes, "topk:10%,int8"), transport)
optimizer = gradwire.FunctionalOptimizer("adamw", leaves, lr=0.01, convert=jnp.asarray)
gradients_of = jax.jit(jax.grad(loss))
for step in range(200):
    means = reducer.mean(jax.tree.leaves(gradients_of(params, *mine)))
    params = jax.tree.unflatten(tree, optimizer.update(means))
# [loop-end]
last = loss(params, inputs, targets)
if transport.rank == 0:
    print(f"{transport.world_size} ranks, loss {first:.4f} became {last:.4f}")
assert last < 0.1 * first, "the loss falls to a tenth"
flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])
for other in transport.split(0).all_gather(flat):
    assert (other == jax.device_get(flat).view("uint8")).all(), "all ranks have the same parameters"
del reducer
transport.close()
