"""What one writes in PyTorch instead of gradwire's CUDA kernels, timed on the first GPU.

    python bench/gpu_peers.py [--numel N]... [--repeats 15] [--only TEXT] [--json FILE]

The operations have the names of cuda_bench's rows, so that the two JSON files can be laid side by
side; the ratio to the floor is against a device copy of this process. Milliseconds are medians of
CUDA events over three sets of memory in turn. Optimizers step layers of a million elements; LAMB, which
torch does not have, is there in foreach operations as published, and as Apex's FusedLAMB, which clips by the
norm of all gradients first. Newton-Schulz is that of torch.optim.Muon, on one matrix. What this torch lacks
is named in its row. Needs torch with CUDA, and says so without it; --device cpu tries the script anywhere.
"""

import argparse
import json
import statistics
import sys
import time
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
         ("lamb", "torch foreach", 40.0), ("lamb", "torch as Apex", 44.0)]  # fmt: skip


class Absent(Exception):
    """What this torch does not have."""


class Data:
    """Gradients and residuals of all sets: normal numbers of standard deviation 1e-3."""

    def __init__(self, numel, device):
        random = torch.Generator(device=device).manual_seed(42)
        self.numel, self.device = numel, device
        self.g, self.e = (
            [torch.randn(numel, device=device, generator=random) * 1e-3 for _ in range(SETS)]
            for _ in range(2)
        )
        self.out = torch.empty(numel, device=device)


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
    """Name, whose way, what makes the work, bytes that nobody can avoid."""
    n = data.numel
    yield "copy", "torch", lambda: lambda i: data.out.copy_(data.g[i]), 8.0 * n
    for name, density in (("0.1%", 0.001), ("1%", 0.01), ("10%", 0.1)):
        yield (f"compress topk:{name}", "torch.topk chain", lambda k=int(n * density): top_k(data, k),
               n * (12 + 6 * density))  # fmt: skip
    yield ("compress chunktopk:41/4096", "torch.topk chain", lambda: chunk_top_k(data),
           n * (12 + 6 * 41 / 4096))  # fmt: skip
    for name, levels, bits in (("int8", 127, 8), ("int4", 7, 4)):
        moved = n * (12 + bits / 8 + 4 / BLOCK)
        for way, random in (("", False), (",stochastic", True)):
            yield (f"compress {name}{way}", "torch",
                   lambda levels=levels, random=random: quantize(data, levels, random), moved)  # fmt: skip
    yield "compress fp16", "torch", lambda: lambda i: data.g[i].to(torch.float16), 6.0 * n
    yield "compress bf16", "torch", lambda: lambda i: data.g[i].to(torch.bfloat16), 6.0 * n
    yield f"mean of {RANKS} x topk:1%", "torch index_add", lambda: index_add(data), n * (4 + RANKS * 0.06)
    for name, form, per_element in STEPS:
        yield (f"step {name}", form, lambda name=name, form=form: steps(data, name, form),
               per_element * n)  # fmt: skip
    yield "sum of squares", "torch.dot", lambda: lambda i: torch.dot(data.g[i], data.g[i]), 4.0 * n


def steps(data, name, form):
    """The optimizer's step on layers of a million elements, as cuda_bench cuts them."""
    from torch_steps import TorchSteps

    made = [TorchSteps(list(data.e[i].split(LAYER)), list(data.g[i].split(LAYER))) for i in range(SETS)]
    calls = [each.with_state(2).apex_lamb if form == "torch as Apex" else each.all_of(name)[form]
             for each in made]  # fmt: skip
    return lambda i: calls[i]()


def newton_schulz(side, device):
    """torch.optim.Muon's five steps on a matrix of that side."""
    if not hasattr(torch.optim, "Muon"):
        raise Absent(f"torch {torch.__version__} has no torch.optim.Muon")
    try:
        from torch.optim._muon import _zeropower_via_newtonschulz as orthogonalize
    except ImportError as error:
        raise Absent(f"torch {torch.__version__} keeps it elsewhere: {error}") from error
    matrices = [torch.randn(side, side, device=device) for _ in range(SETS)]
    return lambda i: orthogonalize(matrices[i], (3.4445, -4.7750, 2.0315), 5, 1e-7)


def median_ms(work, repeats, device):
    times = []
    on_gpu = device == "cuda"
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if on_gpu else (None, None)
    for i in range(repeats + SETS):
        if on_gpu:
            begin.record()
            work(i % SETS)
            end.record()
            end.synchronize()
            taken = begin.elapsed_time(end)
        else:
            began = time.perf_counter()
            work(i % SETS)
            taken = 1e3 * (time.perf_counter() - began)
        if i >= SETS:
            times.append(taken)
    return statistics.median(times)


def timed(row, make, args):
    try:
        row["ms"] = median_ms(make(), args.repeats, args.device)
    except (RuntimeError, AttributeError, TypeError, Absent) as error:
        # Out of memory, or what this version does not have or takes otherwise.
        row["absent"] = str(error).splitlines()[0]
    name = f"{row['op']:28} {row['by']:18} {row['numel']:>12,}"
    print(f"{name} {row['ms']:10.3f} ms" if "ms" in row else f"{name} absent: {row['absent']}", end="")
    return row


def measure(numel, args, keep):
    data = Data(numel, args.device)
    copy_ms = None
    for name, by, make, moved in cases(data):
        if name != "copy" and args.only not in name:
            continue
        row = timed({"op": name, "by": by, "numel": numel, "bytes": moved}, make, args)
        if name == "copy":
            copy_ms = row.get("ms")
        if "ms" in row and copy_ms:
            row["floor_ms"] = copy_ms * moved / (8.0 * numel)
            row["of_floor"] = row["floor_ms"] / row["ms"]
            print(f"   {row['of_floor']:.2f} of the floor", end="")
        print(flush=True)
        keep(row)


def measure_matrix(side, args, keep):
    row = {"op": f"newton-schulz {side} x {side}", "by": "torch.optim.Muon", "numel": side * side}
    timed(row, lambda: newton_schulz(side, args.device), args)
    if "ms" in row:
        row["tflops"] = 5 * 3 * 2 * side**3 / row["ms"] / 1e9
        print(f"   {row['tflops']:.1f} TFLOP/s", end="")
    print(flush=True)
    keep(row)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numel", type=int, action="append", help="may be given several times")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="operations whose name holds this")
    parser.add_argument("--matrix", type=int, default=4096, help="side of Newton-Schulz's (%(default)s)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.repeats < 1 or any(numel < 4096 for numel in args.numel or []):
        parser.error("expected at least 1 repeat and 4096 elements")
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        print("gpu_peers.py: " + ("torch is not installed" if torch is None else "torch sees no GPU"))
        return 3
    name = torch.cuda.get_device_name(0) if args.device == "cuda" else "the processor"
    print(f"{name}, torch {torch.__version__}, median of {args.repeats}")
    rows = []

    def keep(row):
        rows.append(row)
        if args.json:
            scratch = Path(args.json + ".new")
            scratch.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
            scratch.replace(args.json)

    for number, numel in enumerate(args.numel or [110_000_000, 25_600_000]):
        measure(numel, args, keep)
        if number == 0 and args.only in "newton-schulz":
            measure_matrix(args.matrix, args, keep)
        if args.device == "cuda":
            torch.cuda.empty_cache()
    absent = sum("absent" in row for row in rows)
    print(f"{len(rows)} rows, {absent} absent")
    return 0


if __name__ == "__main__":
    sys.exit(main())
