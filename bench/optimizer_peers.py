"""A step of every optimizer on the parameters of real networks, beside PyTorch's ways to do the same.

    python bench/optimizer_peers.py [--models resnet50,gpt2,bert-large] [--rounds 5] [--only lamb]

For each: CPU milliseconds of ours and of each peer (medians of interleaved rounds, one thread), peer /
ours with the goal, and ours against the memory's own speed: the bytes that the formula must move when
nothing stays in a cache, as optimizers_bench.cc counts them. SGD and AdamW: torch.optim's fused,
foreach and loop over tensors. LARS and LAMB, which torch does not have: as published, tensor by tensor
(naive), and with foreach operations. All read the same gradients; each steps values of its own.
BERT-large takes 12 GB of memory.
"""

import argparse
import gc
import json
import os

import numpy as np

import gradwire

from peer_cases import HEADING, Case, Memory, about, measure, show, torch

RATE, MOMENTUM, BETA1, BETA2, EPSILON, TRUST = 1e-4, 0.9, 0.9, 0.999, 1e-6, 1e-3
# Spec, bytes per element of its formula, goal of floor, goals of peers.
OPTIMIZERS = {
    "sgd": ("sgd:weight_decay=1e-4", 20.0, 0.90, {}),
    "adamw": ("adamw", 28.0, 0.90, {"torch fused": 1.3}),
    "lars": (f"lars:weight_decay=1e-4,epsilon={EPSILON}", 28.0, 0.90, {}),
    "lamb": (f"lamb:weight_decay=0.01,epsilon={EPSILON}", 40.0, 0.90,
             {"torch foreach": 3.0, "torch naive": 8.0}),
}  # fmt: skip


def resnet50():
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


def linear(inputs, outputs):
    return [inputs * outputs, outputs]


def gpt2():
    """GPT-2's smallest: 12 blocks of width 768, 124 million parameters; the head shares the embedding."""
    width = 768
    norm = [width, width]
    block = [*norm, *linear(width, 3 * width), *linear(width, width),
             *norm, *linear(width, 4 * width), *linear(4 * width, width)]  # fmt: skip
    return [50257 * width, 1024 * width, *(12 * block), *norm]


def bert_large():
    """24 layers of width 1024, with the pooler: 335 million parameters."""
    width = 1024
    norm = [width, width]
    layer = [*(4 * linear(width, width)), *norm, *linear(width, 4 * width), *linear(4 * width, width), *norm]
    embeddings = [30522 * width, 512 * width, 2 * width, *norm]
    return [*embeddings, *(24 * layer), *linear(width, width)]


MODELS = {"resnet50": resnet50, "gpt2": gpt2, "bert-large": bert_large}


class Model:
    """Values and gradients of all parameters: a million normal numbers again and again."""

    def __init__(self, name):
        self.sizes = MODELS[name]()
        self.numel = sum(self.sizes)
        self.random = np.random.default_rng(7)
        self.gradients = self.draw()

    def draw(self):
        """A list of arrays in one piece of memory, 64 bytes aligned, as a trainer would have them."""
        padded = [(n + 15) // 16 * 16 for n in self.sizes]
        normal = self.random.standard_normal(1 << 20, np.float32) * np.float32(0.01)
        flat = np.resize(normal, sum(padded) + 16)
        first = -flat.ctypes.data % 64 // 4
        begins = first + np.cumsum([0, *padded[:-1]])
        return [flat[b : b + n] for b, n in zip(begins, self.sizes)]


class InTorch:
    """Values, gradients and state as tensors, and the steps that torch does not have."""

    def __init__(self, model):
        self.steps = 0
        self.w = [torch.from_numpy(w) for w in model.draw()]
        self.g = [torch.from_numpy(g) for g in model.gradients]
        self.m = [torch.zeros_like(w) for w in self.w]

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
        ratios = [RATE * TRUST * float(w / (g + decay * w + EPSILON)) for w, g in
                  zip(torch._foreach_norm(self.w), torch._foreach_norm(self.g))]  # fmt: skip
        updates = torch._foreach_add(self.g, self.w, alpha=decay)
        torch._foreach_mul_(updates, ratios)
        torch._foreach_mul_(self.m, MOMENTUM)
        torch._foreach_add_(self.m, updates)
        torch._foreach_sub_(self.w, self.m)

    def with_moments(self):
        self.v = [torch.zeros_like(w) for w in self.w]
        return self

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

    def foreach_lamb(self, decay=0.01):
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
        torch._foreach_add_(updates, self.w, alpha=decay)
        ratios = torch._foreach_div(torch._foreach_norm(self.w), torch._foreach_norm(updates))
        torch._foreach_mul_(updates, [RATE * float(r) for r in ratios])
        torch._foreach_sub_(self.w, updates)


def peers_of(name, model):
    """Name -> step; none without torch."""
    if torch is None:
        return {}
    own = InTorch(model)
    if name == "lars":
        return {"torch foreach": own.foreach_lars, "torch naive": own.naive_lars}
    if name == "lamb":
        own.with_moments()
        return {"torch foreach": own.foreach_lamb, "torch naive": own.naive_lamb}
    own.m = None
    kind, settings = {
        "sgd": (torch.optim.SGD, {"momentum": MOMENTUM, "weight_decay": 1e-4}),
        "adamw": (torch.optim.AdamW, {"weight_decay": 0.01}),
    }[name]
    return {"torch fused": own.of_optim(kind, fused=True, **settings),
            "torch foreach": own.of_optim(kind, foreach=True, **settings),
            "torch naive": own.of_optim(kind, foreach=False, fused=False, **settings)}  # fmt: skip


def case_of(name, model, label):
    """The optimizer on the model, and its peers."""
    spec, bytes_per_element, floor_goal, goals = OPTIMIZERS[name]
    optimizer = gradwire.Optimizer(spec, model.draw(), model.gradients, RATE)
    peers = {peer: (step, goals.get(peer)) for peer, step in peers_of(name, model).items()}
    return Case(label, optimizer.step, model.numel, bytes_per_element * model.numel,
                floor_goal=floor_goal, peers=peers)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="optimizers whose name holds this")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    models = args.models.split(",")
    unknown = [name for name in models if name not in MODELS]
    if unknown or args.rounds < 1:
        parser.error(f"--models {args.models} --rounds {args.rounds}: expected some of "
                     f"{', '.join(MODELS)}, and at least 1")  # fmt: skip
    if torch:
        torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(about(f"float32, 1 thread, median of {args.rounds}"))
    print(HEADING)
    memory = Memory(25_000_000)
    results = []
    for model_name in models:
        model = Model(model_name)
        for name in (name for name in OPTIMIZERS if args.only in name):
            result = measure(case_of(name, model, f"{name}, {model_name}"), memory, args.rounds)
            results.append(result)
            show(result)
            gc.collect()  # the tensors' memory, before the next need theirs
    if not torch:
        print("PyTorch is not installed: its peers were left out")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"load": load, "torch": torch.__version__ if torch else None,
                       "results": results}, file, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
