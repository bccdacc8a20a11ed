"""The torch optimizers that tests run over, on the CPU and on a GPU, and what they step."""

import gradwire.torch as gt

SHAPES = [(40, 30), (30,), (), (0,), (5000,), (6, 3, 5, 5)]
OPTIMIZERS = {
    "SGD": lambda p, **k: gt.SGD(p, lr=0.05, momentum=0.9, **k),
    "AdamW": lambda p, **k: gt.AdamW(p, lr=0.01, **k),
    "LARS": lambda p, **k: gt.LARS(p, lr=0.5, **k),
    "LARC": lambda p, **k: gt.LARC(p, lr=0.05, **k),
    "LAMB": lambda p, **k: gt.LAMB(p, lr=0.01, **k),
    "AdamW8": lambda p, **k: gt.AdamW(p, lr=0.01, state="8bit", **k),
    "SGD8": lambda p, **k: gt.SGD(p, lr=0.05, momentum=0.9, state="8bit", **k),
}
