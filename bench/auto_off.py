"""What does 'auto' do to a job in which nothing can be gained: loss and steps beside DDP and 'none'.

    python bench/auto_off.py [--seeds 5] [--steps 100] [--methods "ddp;none;auto"] [--json FILE] [--markdown]

A GPT of 6.5 million parameters (8 layers of width 256, the bytes of Python's standard library) is trained
by AdamW on --ranks processes of this machine, over loopback: with every method in turn for each seed, the
order of which moves by one from seed to seed, so that a busy minute hits all alike. Weights and batches
are the seed's, the same for all. FILE keeps every step; runs that it has are not repeated, and --no-run
only prints.

A line per method: the mean loss of the ten batches before some steps, and that of held-out rows at the
end, each minus ddp's with the same seed, mean and 95% interval; the median step, all but the first five,
and that of the second half, over ddp's, likewise; how many steps ran with another plan than the last one,
a seed each; and the verdict: at the end losses are within noise where their intervals hold 0 and are at
most 0.02 wide on either side, of five seeds and more; and whether mean ratios of steps are at most 1.03.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from text_table import print_table
from torch.nn.parallel import DistributedDataParallel
from torch_group import free_port, leave

import gradwire.torch
from gradwire.bench.intervals import mean_interval
from gradwire.bench.torch_trainer import data, workloads

LAYERS, WIDTH = 8, 256
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.01
SETTLING = 5  # steps in which DDP makes its buckets anew and memory grows
TOGETHER = 10  # steps whose losses are one
MOST_NATS, MOST_RATIO = 0.02, 1.03


def rank_main(rank, arguments, method, seed, port, pipe):
    ranks = arguments.ranks
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(seed)
    workload = workloads.Training(workloads.ByteModel(WIDTH, LAYERS), data.text(None), "cpu")
    workload.test_examples = min(arguments.held_out, workload.test_examples)
    model = DistributedDataParallel(workload.model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    exchange = None if method == "ddp" else gradwire.torch.register(model, method)
    order = torch.randperm(workload.train_examples, generator=torch.Generator().manual_seed(seed))
    seconds, losses, plans = [], [], []
    for step in range(arguments.steps):
        begin = (step * ranks + rank) * arguments.batch_size
        rows = order[torch.arange(begin, begin + arguments.batch_size) % len(order)]
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = workload.loss(model, rows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if exchange is not None:
            plans.append(exchange.spec)
            exchange.note_loss(losses[-1])
        seconds.append(time.perf_counter() - began)
    mean_losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean_losses)
    held_out = workload.evaluate(rank, ranks)
    dist.all_reduce(held_out)
    decisions = []
    if exchange is not None:
        decisions = exchange.decisions()
        exchange.close()
    if rank == 0:
        pipe.put(json.dumps({
            "method": method, "seed": seed, "ranks": ranks, "batch_size": arguments.batch_size,
            "parameters": sum(p.numel() for p in model.parameters()), "seconds": seconds,
            "losses": (mean_losses / ranks).tolist(),
            "held_out_loss": float(held_out[0] / held_out[2]), "plans": plans, "decisions": decisions,
        }))  # fmt: skip
    del model, exchange
    leave()


def run(arguments, method, seed):
    pipe = processes.get_context("spawn").SimpleQueue()
    context = processes.spawn(
        rank_main, (arguments, method, seed, free_port(), pipe), nprocs=arguments.ranks, join=False
    )
    while pipe.empty():  # a rank that fails puts nothing
        if context.join(timeout=0.2):
            break
    row = json.loads(pipe.get())
    context.join()
    return row


def measure(arguments, methods, document):
    rows = document["rows"]
    for seed in range(1, arguments.seeds + 1):
        for turn in range(len(methods)):
            method = methods[(turn + seed - 1) % len(methods)]
            if any((row["method"], row["seed"]) == (method, seed) for row in rows):
                continue
            row = run(arguments, method, seed)
            rows.append(row)
            print(f"seed {seed}, {method}: median step {1e3 * step_s(row):.1f} ms, loss "
                  f"{loss_at(row, arguments.steps):.4f}", flush=True)  # fmt: skip
            if arguments.json:
                arguments.json.write_text(json.dumps(document, indent=1))


def loss_at(row, step):
    """Of the batches of the last steps before it."""
    return statistics.fmean(row["losses"][max(0, step - TOGETHER) : step])


def step_s(row, share=1.0):
    """Median of the last such part of the steps."""
    steps = row["seconds"][SETTLING:] or row["seconds"]
    return statistics.median(steps[len(steps) - max(1, round(share * len(steps))) :])


def tried(row):
    """Steps with another plan than the last one: none of a method that has one."""
    return sum(plan != row["plans"][-1] for plan in row["plans"])


def paired(rows, method, first, number, by):
    """by(number of the method, number of the first) of each seed that both have."""
    of = {(row["method"], row["seed"]): number(row) for row in rows}
    seeds = [seed for name, seed in of if name == method and (first, seed) in of]
    return [by(of[method, seed], of[first, seed]) for seed in seeds]


def told(values, digits):
    interval = mean_interval(values)
    if interval is None:
        return f"{values[0]:.{digits}f}" if values else "not measured"
    return f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"


def within_noise(values):
    """None: too few seeds to say."""
    found = mean_interval(values)
    if found is None or found.count < 5:
        return None
    return not found.excludes_zero() and found.half_width <= MOST_NATS


def table(document):
    rows = document["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    first = "ddp" if "ddp" in methods else methods[0]
    steps = min(len(row["losses"]) for row in rows)
    moments = sorted({max(1, round(steps * part)) for part in (0.2, 0.4, 0.6, 0.8, 1.0)})
    header = ["method", *(f"loss at {step}" for step in moments), "held out", "median step", "second half",
              "steps of trials", "loss within noise", "step at most 1.03"]  # fmt: skip
    found = []
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        if method == first:
            means = [statistics.fmean(loss_at(row, step) for row in own) for step in moments]
            held_out = statistics.fmean(row["held_out_loss"] for row in own)
            medians = [statistics.median(step_s(row, share) for row in own) for share in (1, 0.5)]
            found.append([method, *(f"{loss:.3f}" for loss in means), f"{held_out:.3f}",
                          *(f"{1e3 * seconds:.0f} ms" for seconds in medians), "", "", ""])  # fmt: skip
            continue
        numbers = [lambda row, step=step: loss_at(row, step) for step in moments]
        numbers.append(lambda row: row["held_out_loss"])
        losses = [paired(rows, method, first, each, lambda a, b: a - b) for each in numbers]
        ratios = [paired(rows, method, first, lambda row, share=share: step_s(row, share),
                         lambda a, b: a / b) for share in (1, 0.5)]  # fmt: skip
        noise = [within_noise(values) for values in losses[-2:]]  # at the end
        fast = [statistics.fmean(values) <= MOST_RATIO for values in ratios if values]
        found.append([
            method, *(told(values, 3) for values in losses), *(told(values, 3) for values in ratios),
            ", ".join(str(tried(row)) for row in own if row["plans"]),
            "too few seeds" if None in noise else "yes" if all(noise) else "no",
            "yes" if fast and all(fast) else "no",
        ])  # fmt: skip
    return header, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="rows of 64 bytes, of each rank")
    parser.add_argument("--held-out", type=int, default=512, help="rows evaluated at the end")
    parser.add_argument("--methods", default="ddp;none;auto", help="ddp, or specs of gradwire, by ';'")
    parser.add_argument("--json", type=Path, help="file to write, or to go on with")
    parser.add_argument("--no-run", action="store_true", help="print what FILE has")
    parser.add_argument("--markdown", action="store_true", help="prints the table so")
    parser.add_argument("--log", action="store_true", help="print auto's decisions too")
    arguments = parser.parse_args()
    known = arguments.json is not None and arguments.json.exists()
    asked = {name: getattr(arguments, name) for name in ("steps", "ranks", "batch_size", "held_out")}
    if arguments.no_run and not known:
        parser.error(f"--no-run: there is no file {arguments.json}, expected one to print")
    if known:
        document = json.loads(arguments.json.read_text())
        if document["asked"] != asked and not arguments.no_run:
            parser.error(f"--json: {arguments.json} is of {document['asked']}, expected {asked}")
    else:
        info = gradwire.build_info()
        document = {"asked": asked, "commit": info["commit"], "torch": torch.__version__,
                    "cores": os.cpu_count(), "rows": []}  # fmt: skip
    if not arguments.no_run:
        measure(arguments, arguments.methods.split(";"), document)
    print_table(*table(document), arguments.markdown)
    millions = document["rows"][0]["parameters"] / 1e6
    print(f"load {os.getloadavg()[0]:.1f}, {document['cores']} cores, torch {document['torch']}, commit "
          f"{document['commit']}, {millions:.2f} million parameters")  # fmt: skip
    if arguments.log:
        for row in document["rows"]:
            for d in row["decisions"]:
                print(f"{row['method']}, seed {row['seed']}, step {d['step']}, {d['what']}: {d['from']} -> "
                      f"{d['to']}: {d['reason']}: {d['numbers']}")  # fmt: skip


if __name__ == "__main__":
    main()
