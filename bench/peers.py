"""Our CPU kernels beside what people use today, one thread each, in one process.

    python bench/peers.py [--numel 25000000] [--rounds 5] [--only topk] [--json FILE]

For each operation: CPU milliseconds of ours and of each peer (medians of interleaved rounds), peer /
ours with the goal, and ours against the memory's own speed: the time its bytes need at the best rate
of `out = a + b` and `b += a`, measured in the same rounds. Compression is with error feedback from
one residual buffer into another; peers that leave the feedback out are marked *. Needs the installed
package; PyTorch is optional, its rows are left out without it, and the last line says so.
"""

import argparse
import json
import os
from typing import List

import numpy as np
import optimizer_peers
from peer_cases import HEADING, Case, Memory, about, measure, show, torch

import gradwire

BLOCK = 256
RANKS = 8


class Data:
    """A gradient of normal numbers and residuals half as large, and room for results."""

    def __init__(self, numel: int):
        self.numel = numel
        self.memory = Memory(numel)
        self.g, self.e = self.memory.a, self.memory.b
        self.next = np.empty_like(self.e)


def compress_case(data: Data, spec: str, **rest) -> Case:
    compressor = gradwire.Compressor(spec, data.numel)
    out = np.empty(compressor.capacity_bytes, np.uint8)
    feedback = (data.e, data.next) if compressor.keeps_residual else (None, None)
    payload = compressor.compress(data.g, *feedback, out=out)
    moved = data.numel * (12.0 if compressor.keeps_residual else 4.0) + payload.nbytes
    return Case(spec, lambda: compressor.compress(data.g, *feedback, out=out),
                data.numel, moved, **rest)


def aggregate_case(data: Data, spec: str, **rest) -> Case:
    compressor = gradwire.Compressor(spec, data.numel)
    payloads = [compressor.compress(np.roll(data.g, r * 1001)).copy() for r in range(RANKS)]
    moved = data.numel * 4.0 + sum(payload.nbytes for payload in payloads)
    return Case(f"mean of {RANKS} x {spec}",
                lambda: compressor.decompress(payloads, 1 / RANKS, out=data.next),
                data.numel, moved, **rest)


def topk_peers(data: Data, density: float):
    k = int(data.numel * density)
    peers = {"np.argpartition *": (lambda: np.argpartition(np.abs(data.g), data.numel - k), None)}
    if torch:
        g = torch.from_numpy(data.g)
        peers["torch.topk *"] = (lambda: torch.topk(g.abs(), k), 40.0)
    return peers


def torch_int8(data: Data, stochastic: bool):
    """Feedback, a scale per block, rounding and the next residual, as one writes it in torch."""
    whole = data.numel // BLOCK * BLOCK
    g, e = (torch.from_numpy(x)[:whole].view(-1, BLOCK) for x in (data.g, data.e))

    def run():
        acc = g + e
        scale = acc.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30) / 127
        scaled = acc / scale
        rounded = torch.floor(scaled + torch.rand_like(scaled)) if stochastic else scaled.round()
        codes = rounded.clamp_(-127, 127).to(torch.int8)
        return codes, acc - codes * scale

    return run


def torch_index_add(data: Data):
    k = data.numel // 100
    lists = []
    for r in range(RANKS):
        index = torch.topk(torch.from_numpy(np.roll(data.g, r * 1001)).abs(), k).indices.sort().values
        lists.append((index, torch.from_numpy(data.g)[index]))

    def run():
        total = torch.zeros(data.numel)
        for index, values in lists:
            total.index_add_(0, index, values)
        return total.div_(RANKS)

    return run


def cases(data: Data) -> List[Case]:
    known = {row.name for row in gradwire.compressors()}
    tensor = torch.from_numpy(data.g) if torch else None

    def from_torch(name, make, goal):
        return {name: (make(), goal)} if torch else {}

    rows = [
        compress_case(data, "topk:1%", floor_goal=0.60, peers=topk_peers(data, 0.01)),
        compress_case(data, "topk:0.1%", floor_goal=0.70, peers=topk_peers(data, 0.001)),
    ]
    for spec in ("int8", "int4"):
        rows.append(compress_case(data, spec, floor_goal=0.55, peers=from_torch(
            "torch int8", lambda: torch_int8(data, False), 4.0)))
        rows.append(compress_case(data, spec + ",stochastic", floor_goal=0.40, peers=from_torch(
            "torch int8", lambda: torch_int8(data, True), 6.0)))
    if "chunktopk" in known:
        rows.append(compress_case(data, "chunktopk:41/4096", floor_goal=0.60))
    if "1bit" in known:
        rows.append(compress_case(data, "1bit", floor_goal=0.60, peers={
            "np.packbits *": (lambda: np.packbits(data.g >= 0), None)}))
    for spec, kind in (("fp16", "float16"), ("bf16", "bfloat16")):
        rows.append(compress_case(data, spec, floor_goal=0.80, peers=from_torch(
            f"torch {kind}", lambda kind=kind: lambda: tensor.to(getattr(torch, kind)), 1.0)))
    rows.append(aggregate_case(data, "topk:1%", floor_goal=0.45, peers=from_torch(
        "torch index_add", lambda: torch_index_add(data), 5.0)))
    model = optimizer_peers.Model("resnet50")
    rows.append(optimizer_peers.case_of("lamb", model, "lamb, ResNet-50"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="operations whose name holds this")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.numel < BLOCK or args.rounds < 1:
        parser.error(f"--numel {args.numel} --rounds {args.rounds}: expected at least {BLOCK} and 1")
    if torch:
        torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(about(f"{args.numel:,} float32, 1 thread, median of {args.rounds}"))
    data = Data(args.numel)
    results = []
    print(HEADING)
    for case in cases(data):
        if args.only not in case.name:
            continue
        result = measure(case, data.memory, args.rounds)
        results.append(result)
        show(result)
    if not torch:
        print("PyTorch is not installed: its peers were left out")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"load": load, "torch": torch.__version__ if torch else None,
                       "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
