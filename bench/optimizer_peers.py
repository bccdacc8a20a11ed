"""A step of every optimizer on the parameters of real networks, beside PyTorch's ways to do the same.

    python bench/optimizer_peers.py [--models resnet50,gpt2,bert-large] [--rounds 5] [--only lamb]

For each: CPU milliseconds of ours and of each peer (medians of interleaved rounds, one thread), peer /
ours with the goal, and ours against the memory's own speed: the bytes that the formula must move when
nothing stays in a cache, as optimizers_bench.cc counts them. SGD and AdamW: torch.optim's fused,
foreach and loop over tensors. LARS and LAMB, which torch does not have: as published, tensor by tensor
(naive), and with foreach operations. Ours look at every gradient before they change anything, but
where it says known finite: torch's look at none. All read the same gradients; each steps values of its own.
BERT-large takes 12 GB of memory.
"""

import argparse
import gc
import json
import os

import numpy as np
from peer_cases import HEADING, Case, Memory, about, measure, show, torch

import gradwire

RATE, EPSILON = 1e-4, 1e-6  # as torch_steps has them
# Spec, bytes per element of its formula, goal of floor, goals of peers.
OPTIMIZERS = {
    "sgd": ("sgd:weight_decay=1e-4", 20.0, 0.90, {}),
    "adamw": ("adamw", 28.0, 0.90, {"torch fused": 1.3}),
    "lars": (f"lars:weight_decay=1e-4,epsilon={EPSILON}", 28.0, 0.90, {}),
    "lamb": (f"lamb:weight_decay=0.01,epsilon={EPSILON}", 40.0, 0.90,
             {"torch foreach": 3.0, "torch naive": 8.0}),
}  # fmt: skip
# Steps that look at no gradient before they change anything, as torch's; the others do.
UNCHECKED = ("sgd", "adamw")


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


def peers_of(name, model):
    """Name -> step; none without torch."""
    if torch is None:
        return {}
    from torch_steps import TorchSteps

    values, gradients = ([torch.from_numpy(x) for x in list_] for list_ in (model.draw(), model.gradients))
    return TorchSteps(values, gradients).all_of(name)


def case_of(name, model, label, known_finite=False):
    """The optimizer on the model, and its peers."""
    spec, bytes_per_element, floor_goal, goals = OPTIMIZERS[name]
    optimizer = gradwire.Optimizer(spec, model.draw(), model.gradients, RATE)
    peers = {peer: (step, goals.get(peer)) for peer, step in peers_of(name, model).items()}
    return Case(label, lambda: optimizer.step(known_finite=known_finite), model.numel,
                bytes_per_element * model.numel, floor_goal=floor_goal, peers=peers)  # fmt: skip


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
        rows = [(name, False) for name in OPTIMIZERS] + [(name, True) for name in UNCHECKED]
        for name, known_finite in (row for row in rows if args.only in row[0]):
            label = f"{name}{', known finite' if known_finite else ''}, {model_name}"
            result = measure(case_of(name, model, label, known_finite), memory, args.rounds)
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
