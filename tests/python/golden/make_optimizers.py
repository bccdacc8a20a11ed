"""Writes optimizers.json beside this file: what public implementations of LARS and LAMB make of the same
parameters and gradients, in float32 on a CPU. test_optimizer_golden.py holds gradwire to it.

    python -m venv golden && golden/bin/pip install jax optax torch torch_optimizer
    golden/bin/pip install --no-deps timm
    golden/bin/python tests/python/golden/make_optimizers.py
"""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch_optimizer

SHAPES = [(5, 7), (13,), (3, 2, 4), (1,)]
STEPS = 20
RATE = 0.02


def timm_optimizer(module, name):
    """A class of timm.optim, without the models that importing timm brings along."""
    for package in ("timm", "timm.optim"):
        if package not in sys.modules:
            origin = Path(importlib.metadata.distribution("timm").locate_file(package.replace(".", "/")))
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [str(origin)]
    return getattr(importlib.import_module(f"timm.optim.{module}"), name)


def data(scale):
    """Parameters, and gradients of every step; every third step's are ten times as large."""
    random = np.random.default_rng(2026)
    values = [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    gradients = [[(random.standard_normal(shape) * scale * (10 if step % 3 == 2 else 1)).astype(np.float32)
                  for shape in SHAPES] for step in range(STEPS)]  # fmt: skip
    return values, gradients


def run_torch(make, scale):
    values, gradients = data(scale)
    parameters = [torch.nn.Parameter(torch.from_numpy(v)) for v in values]
    optimizer = make(parameters)
    for step in gradients:
        for parameter, gradient in zip(parameters, step):
            parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


def run_optax(transformation, scale):
    values, gradients = data(scale)
    parameters = [jnp.asarray(v) for v in values]
    state = transformation.init(parameters)
    for step in gradients:
        updates, state = transformation.update([jnp.asarray(g) for g in step], state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return [np.asarray(p) for p in parameters]


def cases():
    """What ran, gradwire's spec for it, the gradients' scale, and the parameters after STEPS steps."""
    lamb, lars = timm_optimizer("lamb", "Lamb"), timm_optimizer("lars", "Lars")

    def of_timm(kind, scale, **settings):
        return run_torch(lambda parameters: kind(parameters, lr=RATE, **settings), scale)

    for scale in (0.02, 3.0):  # below and above a norm of all gradients of 1
        yield ("timm Lamb", "lamb:preset=timm,weight_decay=0.01", scale,
               of_timm(lamb, scale, weight_decay=0.01))
        yield ("timm Lamb, trust_clip", "lamb:preset=lambc,weight_decay=0.01", scale,
               of_timm(lamb, scale, weight_decay=0.01, trust_clip=True))
        yield ("timm Lamb, no decay", "lamb:preset=timm", scale, of_timm(lamb, scale, weight_decay=0))
        yield ("timm Lamb, always_adapt", "lamb:preset=nvlamb", scale,
               of_timm(lamb, scale, weight_decay=0, always_adapt=True))
        yield ("timm Lars", "lars:preset=timm,momentum=0.9,weight_decay=0.01", scale,
               of_timm(lars, scale, momentum=0.9, weight_decay=0.01))
        yield ("timm Lars, nesterov", "lars:preset=timm,momentum=0.9,nesterov=1,weight_decay=0.01", scale,
               of_timm(lars, scale, momentum=0.9, weight_decay=0.01, nesterov=True))
        yield ("timm Lars, no decay", "lars:preset=timm,momentum=0.9", scale,
               of_timm(lars, scale, momentum=0.9))
        yield ("torch_optimizer LARS", "lars:preset=torch-optimizer,momentum=0.9,weight_decay=0.01", scale,
               run_torch(lambda p: torch_optimizer.LARS(p, lr=RATE, momentum=0.9, weight_decay=0.01), scale))
        yield ("optax lamb", "lamb:preset=optax,weight_decay=0.01", scale,
               run_optax(optax.lamb(RATE, weight_decay=0.01), scale))
        yield ("optax lamb, no decay", "lamb:preset=optax", scale, run_optax(optax.lamb(RATE), scale))
        yield ("optax lars", "lars:preset=optax,momentum=0.9,weight_decay=0.01", scale,
               run_optax(optax.lars(RATE, weight_decay=0.01, momentum=0.9), scale))
        yield ("optax lars, nesterov", "lars:preset=optax,momentum=0.9,nesterov=1,weight_decay=0.01", scale,
               run_optax(optax.lars(RATE, weight_decay=0.01, momentum=0.9, nesterov=True), scale))


def main():
    versions = {name: importlib.metadata.version(name)
                for name in ("jax", "optax", "timm", "torch", "torch_optimizer")}  # fmt: skip
    document = {"made_by": versions, "rate": RATE, "data": {}, "cases": []}
    for name, spec, scale, values in cases():
        if str(scale) not in document["data"]:
            start, gradients = data(scale)
            document["data"][str(scale)] = {
                "values": [v.ravel().tolist() for v in start],
                "gradients": [[g.ravel().tolist() for g in step] for step in gradients],
            }
        document["cases"].append({"name": name, "spec": spec, "data": str(scale),
                                  "values": [v.ravel().tolist() for v in values]})  # fmt: skip
    out = Path(__file__).with_name("optimizers.json")
    # Nine digits say which float32 it is.
    text = json.dumps(json.loads(json.dumps(document), parse_float=lambda t: float(f"{float(t):.9g}")))
    out.write_text(text.replace('{"name"', '\n{"name"') + "\n")
    print(f"{out}: {len(document['cases'])} cases, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
