"""Steps of optimizers in PyTorch, on any device: torch.optim's, and those that torch does not have, as
published, tensor by tensor (naive), and with foreach operations. For optimizer_peers.py and gpu_peers.py.
"""

import torch

RATE, MOMENTUM, BETA1, BETA2, EPSILON, TRUST = 1e-4, 0.9, 0.9, 0.999, 1e-6, 1e-3


class TorchSteps:
    """Lists of values and gradients, and state beside them."""

    def __init__(self, values, gradients):
        self.steps = 0
        self.w, self.g = values, gradients
        self.m = self.v = None

    def with_state(self, buffers):
        """Makes m or, with 2, m and v."""
        self.m = [torch.zeros_like(w) for w in self.w]
        self.v = [torch.zeros_like(w) for w in self.w] if buffers == 2 else None
        return self

    def of_optim(self, kind, **settings):
        """A step of torch.optim."""
        for w, g in zip(self.w, self.g):
            w.grad = g
        return kind(self.w, lr=RATE, **settings).step

    def naive_lars(self, decay=1e-4):
        for w, g, m in zip(self.w, self.g, self.m):
            w_norm, g_norm = w.norm(), g.norm()
            ratio = TRUST * w_norm / (g_norm + decay * w_norm + EPSILON)
            m.mul_(MOMENTUM).add_((g + decay * w) * (RATE * ratio))
            w.sub_(m)

    def foreach_lars(self, decay=1e-4):
        ratios = [RATE * TRUST * w / (g + decay * w + EPSILON) for w, g in
                  zip(torch._foreach_norm(self.w), torch._foreach_norm(self.g))]  # fmt: skip
        updates = torch._foreach_add(self.g, self.w, alpha=decay)
        torch._foreach_mul_(updates, ratios)
        torch._foreach_mul_(self.m, MOMENTUM)
        torch._foreach_add_(self.m, updates)
        torch._foreach_sub_(self.w, self.m)

    def corrections(self):
        self.steps += 1
        return 1 - BETA1**self.steps, 1 - BETA2**self.steps

    def naive_lamb(self, decay=0.01):
        first, second = self.corrections()
        for w, g, m, v in zip(self.w, self.g, self.m, self.v):
            m.mul_(BETA1).add_(g, alpha=1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            update = (m / first) / ((v / second).sqrt() + EPSILON) + decay * w
            w.sub_(update * (RATE * w.norm() / update.norm()))

    def foreach_lamb(self, decay=0.01, gradients=None):
        first, second = self.corrections()
        g = self.g if gradients is None else gradients
        torch._foreach_mul_(self.m, BETA1)
        torch._foreach_add_(self.m, g, alpha=1 - BETA1)
        torch._foreach_mul_(self.v, BETA2)
        torch._foreach_addcmul_(self.v, g, g, value=1 - BETA2)
        denominators = torch._foreach_div(self.v, second)
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, EPSILON)
        updates = torch._foreach_div(self.m, first)
        torch._foreach_div_(updates, denominators)
        torch._foreach_add_(updates, self.w, alpha=decay)
        ratios = torch._foreach_div(torch._foreach_norm(self.w), torch._foreach_norm(updates))
        torch._foreach_mul_(updates, torch._foreach_mul(ratios, RATE))
        torch._foreach_sub_(self.w, updates)

    def apex_lamb(self, decay=0.01, largest_norm=1.0):
        """Apex's FusedLAMB in foreach operations: gradients are clipped by the norm of all of them first."""
        whole = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(self.g)))
        factor = 1.0 / torch.clamp(whole / largest_norm, min=1.0)
        self.foreach_lamb(decay, torch._foreach_mul(self.g, factor))

    def all_of(self, name):
        """Name of a form -> step, for "sgd", "adamw", "lars" or "lamb"."""
        if name == "lars":
            self.with_state(1)
            return {"torch foreach": self.foreach_lars, "torch naive": self.naive_lars}
        if name == "lamb":
            self.with_state(2)
            return {"torch foreach": self.foreach_lamb, "torch naive": self.naive_lamb}
        kind, settings = {
            "sgd": (torch.optim.SGD, {"momentum": MOMENTUM, "weight_decay": 1e-4}),
            "adamw": (torch.optim.AdamW, {"weight_decay": 0.01}),
        }[name]
        return {"torch fused": self.of_optim(kind, fused=True, **settings),
                "torch foreach": self.of_optim(kind, foreach=True, **settings),
                "torch naive": self.of_optim(kind, foreach=False, fused=False, **settings)}  # fmt: skip
