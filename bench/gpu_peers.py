"""What one writes in PyTorch instead of gradwire's CUDA kernels, timed on the first GPU.

    python bench/gpu_peers.py [--numel N]... [--repeats 15] [--only TEXT] [--json FILE]

The operations have the names of cuda_bench's rows, so that the two JSON files can be laid side by
side; the ratio to the floor is against a device copy of this process. Milliseconds are medians of
CUDA events over three sets of memory in turn. Needs torch with CUDA; without it, it says so.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

SETS = 3
BLOCK = 256
RANKS = 16
LAYER = 1_000_003  # elements of a parameter, as in cuda_bench
STEPS = [("sgd", "torch fused", 20.0), ("sgd", "torch foreach", 20.0), ("adamw", "torch fused", 28.0),
         ("adamw", "torch foreach", 28.0), ("lars", "torch foreach", 28.0),
         ("lamb", "torch foreach", 40.0)]  # fmt: skip


class Data:
    """Gradients and residuals of all sets: normal numbers of standard deviation 1e-3."""

    def __init__(self, numel):
        random = torch.Generator(device="cuda").manual_seed(42)
        self.numel = numel
        self.g, self.e = (
            [torch.randn(numel, device="cuda", generator=random) * 1e-3 for _ in range(SETS)]
            for _ in range(2)
        )
        self.out = torch.empty(numel, device="cuda")


def top_k(data, k):
    """Leaves the residual of e + g in place, as gradwire's in-place form does."""

    def run(i):
        acc = data.e[i].add_(data.g[i])
        indices = torch.topk(acc.abs(), k, sorted=False).indices
        values = acc[indices]
        acc[indices] = 0.0
        return indices, values

    return run


def chunk_top_k(data):
    whole = data.numel // 4096 * 4096

    def run(i):
        acc = data.e[i][:whole].add_(data.g[i][:whole]).view(-1, 4096)
        indices = torch.topk(acc.abs(), 41, dim=1, sorted=False).indices
        values = acc.gather(1, indices)
        acc.scatter_(1, indices, 0.0)
        return indices, values

    return run


def quantize(data, levels, stochastic):
    whole = data.numel // BLOCK * BLOCK

    def run(i):
        acc = (data.g[i] + data.e[i])[:whole].view(-1, BLOCK)
        scale = acc.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30) / levels
        scaled = acc / scale
        rounded = torch.floor(scaled + torch.rand_like(scaled)) if stochastic else scaled.round()
        codes = rounded.clamp_(-levels, levels).to(torch.int8)
        return codes, acc - codes * scale

    return run


def index_add(data):
    k = data.numel // 100
    lists = []
    for rank in range(RANKS):
        index = torch.topk(data.g[rank % SETS].roll(rank * 1001).abs(), k).indices.sort().values
        lists.append((index, data.g[0][index]))

    def run(_):
        data.out.zero_()
        for index, values in lists:
            data.out.index_add_(0, index, values)
        return data.out.div_(RANKS)

    return run


def cases(data):
    """Name, work, bytes that nobody can avoid."""
    n = data.numel
    yield "copy", lambda i: data.out.copy_(data.g[i]), 8.0 * n
    for name, density in (("0.1%", 0.001), ("1%", 0.01), ("10%", 0.1)):
        yield f"compress topk:{name}", top_k(data, int(n * density)), n * (12 + 6 * density)
    yield "compress chunktopk:41/4096", chunk_top_k(data), n * (12 + 6 * 41 / 4096)
    for name, levels, bits in (("int8", 127, 8), ("int4", 7, 4)):
        moved = n * (12 + bits / 8 + 4 / BLOCK)
        yield f"compress {name}", quantize(data, levels, False), moved
        yield f"compress {name},stochastic", quantize(data, levels, True), moved
    yield "compress fp16", lambda i: data.g[i].to(torch.float16), 6.0 * n
    yield "compress bf16", lambda i: data.g[i].to(torch.bfloat16), 6.0 * n
    yield f"mean of {RANKS} x topk:1%", index_add(data), n * (4 + RANKS * 0.06)
    for name, form, per_element in STEPS:
        yield f"step {name} ({form})", steps(data, name, form), per_element * n
    yield "sum of squares", lambda i: torch.dot(data.g[i], data.g[i]), 4.0 * n


def steps(data, name, form):
    """The optimizer's step on layers of a million elements, as cuda_bench cuts them."""
    from torch_steps import TorchSteps

    calls = [TorchSteps(list(data.e[i].split(LAYER)), list(data.g[i].split(LAYER))).all_of(name)[form]
             for i in range(SETS)]  # fmt: skip
    return lambda i: calls[i]()


def median_ms(work, repeats):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for i in range(repeats + SETS):
        begin.record()
        work(i % SETS)
        end.record()
        end.synchronize()
        if i >= SETS:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measure(numel, args):
    data = Data(numel)
    rows, copy_ms = [], None
    for name, work, moved in cases(data):
        if name != "copy" and args.only not in name:
            continue
        row = {"op": name, "by": "torch", "numel": numel, "bytes": moved}
        try:
            row["ms"] = median_ms(work, args.repeats)
        except RuntimeError as error:  # out of memory, or a shape that this version refuses
            row["absent"] = str(error).splitlines()[0]
        if name == "copy":
            copy_ms = row["ms"]
        if "ms" in row:
            row["floor_ms"] = copy_ms * moved / (8.0 * numel)
            row["of_floor"] = row["floor_ms"] / row["ms"]
            print(f"{name:28} {numel:>12,} {row['ms']:10.3f} ms   {row['of_floor']:.2f} of the floor")
        else:
            print(f"{name:28} {numel:>12,} absent: {row['absent']}")
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numel", type=int, action="append", help="may be given several times")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="operations whose name holds this")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.repeats < 1 or any(numel < 4096 for numel in args.numel or []):
        parser.error("expected at least 1 repeat and 4096 elements")
    if torch is None or not torch.cuda.is_available():
        print("gpu_peers.py: " + ("torch is not installed" if torch is None else
                                  "torch sees no GPU"))
        return 0
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, median of {args.repeats}")
    rows = []
    for numel in args.numel or [25_600_000, 110_000_000]:
        rows += measure(numel, args)
        torch.cuda.empty_cache()
        if args.json:
            scratch = Path(args.json + ".new")
            scratch.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
            scratch.replace(args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
