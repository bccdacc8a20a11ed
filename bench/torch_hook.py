"""What gradwire.torch.register() costs beside plain DDP, with 'none': a backward, and the hook alone.

    python bench/torch_hook.py [--ranks 2,4] [--rounds 60] [--json FILE] [--markdown]
    python bench/torch_hook.py --memory [--width 2048]      (torch_memory.py)

Ranks are processes on one machine, over loopback; every rank trains the same six layers of 512 x 512
(1.6 million parameters, six buckets) once under DDP and once under the hook, a backward of each in
turn. A line for each way: least and median milliseconds of a backward (all ranks wait for each other
before it), the ratio of the medians to DDP's, the median of the milliseconds that processors spend on
it in one rank, all threads together, which other load on the machine hardly changes, and the hook's own
microseconds a bucket: handing over and taking back, without waiting.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
import torch_memory
from text_table import print_table
from torch.nn.parallel import DistributedDataParallel
from torch_group import free_port, leave

import gradwire.torch

LAYERS, WIDTH, BATCH = 6, 512, 16
WARM_UP = 5  # DDP makes its buckets anew behind the first, the hook its plan behind the second
WAYS = {"DDP": None, "none": "gloo", "none, carried by torch": "torch"}


def model():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)


def rank_main(rank, ranks, rounds, port, pipe):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    models, exchanges, seconds, own = {}, {}, {way: [] for way in WAYS}, {way: [] for way in WAYS}
    processors = {way: [] for way in WAYS}
    for way, carrier in WAYS.items():
        models[way] = model()
        if carrier:
            exchanges[way] = gradwire.torch.register(models[way], "none", carrier=carrier)
    inputs = torch.randn(BATCH, WIDTH)
    for _ in range(WARM_UP + rounds):
        for way, each in models.items():
            each.zero_grad()
            loss = each(inputs).square().sum()
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            loss.backward()
            seconds[way].append(time.perf_counter() - begin)
            processors[way].append(time.process_time() - used)
            if way in exchanges:
                own[way].append(exchanges[way].seconds / exchanges[way].stats()["buckets"])
    for exchange in exchanges.values():
        exchange.close()
    if rank == 0:
        pipe.put((seconds, processors, own))
    models.clear(), exchanges.clear()
    del each, exchange
    leave()


def measure(ranks, rounds):
    pipe = processes.get_context("spawn").SimpleQueue()
    context = processes.spawn(rank_main, (ranks, rounds, free_port(), pipe), nprocs=ranks, join=False)
    seconds, processors, own = pipe.get()
    context.join()
    rows = []
    plain = statistics.median(seconds["DDP"][WARM_UP:])
    for way in WAYS:
        times = seconds[way][WARM_UP:]
        rows.append({
            "ranks": ranks,
            "way": way,
            "least_ms": 1e3 * min(times),
            "median_ms": 1e3 * statistics.median(times),
            "ratio": statistics.median(times) / plain,
            "processor_ms": 1e3 * statistics.median(processors[way][WARM_UP:]),
            "hook_us_a_bucket": 1e6 * statistics.median(own[way][WARM_UP:]) if own[way] else None,
        })
    return rows


def print_machine():
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, torch {torch.__version__}, commit "
          f"{gradwire.build_info()['commit']}")


def write_json(path, rows):
    if path:
        with open(path, "w") as file:
            json.dump(rows, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default="2,4", help="of each run")
    parser.add_argument("--rounds", type=int, default=60, help="backward passes of each way")
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--markdown", action="store_true", help="prints the table so")
    parser.add_argument("--memory", action="store_true", help="memory in place of time, of 2 ranks")
    parser.add_argument("--width", type=int, default=2048, help="with --memory: of 16 square matrices")
    arguments = parser.parse_args()
    if arguments.memory:
        rows = torch_memory.measure(2, arguments.width)
        print_table(
            ["way", "behind register()", "stays", "peak", "adds to DDP's peak"],
            [[row["way"], *(f"{row[name]:.2f}" for name in ("made", "stays", "peak", "adds"))]
             for row in rows],
            arguments.markdown,
        )
        print_machine()
        write_json(arguments.json, rows)
        return
    rows = [row for ranks in arguments.ranks.split(",") for row in measure(int(ranks), arguments.rounds)]
    print_table(
        ["ranks", "way", "least ms", "median ms", "of DDP's", "processor ms", "hook, us a bucket"],
        [[str(row["ranks"]), row["way"], f"{row['least_ms']:.1f}", f"{row['median_ms']:.1f}",
          f"{row['ratio']:.2f}", f"{row['processor_ms']:.1f}",
          "" if row["hook_us_a_bucket"] is None else f"{row['hook_us_a_bucket']:.0f}"] for row in rows],
        arguments.markdown,
    )
    print_machine()
    write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
