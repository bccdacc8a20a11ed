"""LAMB on ResNet-50's parameters, and the same written in PyTorch, for peers.py: tensor by tensor as
published, and with foreach operations. All read the same gradients; each steps values of its own.
"""

import numpy as np

import gradwire

LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 1e-4, 0.9, 0.999, 1e-6, 0.01


def resnet50_shapes():
    """Numbers of elements of the 161 parameters, in forward order."""
    sizes = []

    def convolution(inputs, outputs, kernel):
        sizes.extend([outputs * inputs * kernel * kernel, outputs, outputs])

    convolution(3, 64, 7)
    inputs = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(depth):
            convolution(inputs, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return sizes + [inputs * 1000, 1000]


class Model:
    """Values and gradients of all parameters."""

    def __init__(self):
        random = np.random.default_rng(7)
        self.values = [random.standard_normal(n, np.float32) * 0.01 for n in resnet50_shapes()]
        self.gradients = [random.standard_normal(n, np.float32) * 0.01 for n in resnet50_shapes()]
        self.numel = sum(resnet50_shapes())


def ours(model):
    optimizer = gradwire.LAMB([v.copy() for v in model.values], model.gradients, LEARNING_RATE,
                              beta1=BETA1, beta2=BETA2, epsilon=EPSILON, weight_decay=WEIGHT_DECAY)
    return optimizer.step


class TorchLamb:
    """State of LAMB in torch, and two ways to step."""

    def __init__(self, torch, model):
        self.torch, self.steps = torch, 0
        self.w = [torch.from_numpy(v.copy()) for v in model.values]
        self.g = [torch.from_numpy(g) for g in model.gradients]
        self.m = [torch.zeros_like(w) for w in self.w]
        self.v = [torch.zeros_like(w) for w in self.w]

    def corrections(self):
        self.steps += 1
        return 1 - BETA1**self.steps, 1 - BETA2**self.steps

    def naive(self):
        first, second = self.corrections()
        for w, g, m, v in zip(self.w, self.g, self.m, self.v):
            m.mul_(BETA1).add_(g, alpha=1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            update = (m / first) / ((v / second).sqrt() + EPSILON) + WEIGHT_DECAY * w
            w.sub_(update * (LEARNING_RATE * w.norm() / update.norm()))

    def foreach(self):
        torch = self.torch
        first, second = self.corrections()
        torch._foreach_mul_(self.m, BETA1)
        torch._foreach_add_(self.m, self.g, alpha=1 - BETA1)
        torch._foreach_mul_(self.v, BETA2)
        torch._foreach_addcmul_(self.v, self.g, self.g, value=1 - BETA2)
        denominators = torch._foreach_div(self.v, second)
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, EPSILON)
        updates = torch._foreach_div(self.m, first)
        torch._foreach_div_(updates, denominators)
        torch._foreach_add_(updates, self.w, alpha=WEIGHT_DECAY)
        ratios = torch._foreach_div(torch._foreach_norm(self.w), torch._foreach_norm(updates))
        torch._foreach_mul_(updates, [LEARNING_RATE * float(r) for r in ratios])
        torch._foreach_sub_(self.w, updates)


def peers(torch, model):
    """Name -> (call, goal of peer / ours); none without torch."""
    if torch is None:
        return {}
    return {"torch LAMB foreach": (TorchLamb(torch, model).foreach, 3.0),
            "torch LAMB naive": (TorchLamb(torch, model).naive, 8.0)}
