"""Does the exchange hide behind backward? Three kinds of run of one job over shaped links, in turn:

  compute   no exchange at all            serial   every bucket leaves when backward has ended
  overlap   buckets leave during backward

    python bench/overlap.py [--link 1gbit] [--workers 4] [--batch-size 512] [--method none]

Checks, on the medians of the rounds, by the clock and by the reducer's trace:

  step(overlap)     <= step(compute) + exchange(serial) - 0.7 * min(backward, exchange(serial))
  exposed(overlap)  <=                 exchange(serial) - 0.7 * min(backward, exchange(serial))

Needs the installed package with its bench extra, and root for shaped links. The digits are repeated
to fill the batch: only times are looked at. Exit code 1 when a check fails.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

from gradwire.bench import arguments, digits, job, launch, links

MODES = {
    "compute": {"compute_only": True},
    "serial": {"overlap": False},
    "overlap": {"overlap": True},
}
COLUMNS = (
    "step_ms",
    "compute_ms",
    "backward_ms",
    "exposed_exchange_ms",
    "transfer_ms",
    "compression_ms",
)


def repeated_digits(folder: Path, rows_wanted: int) -> Path:
    """The digits as IDX files, the training rows repeated until there are enough."""
    source = digits.digits_folder()
    copies = -(-rows_wanted // digits.TRAIN_ROWS)
    for name in digits.IDX_NAMES:
        data = (source / name).read_bytes()
        if name.startswith("train"):
            head = 16 if "images" in name else 8
            rows = digits.TRAIN_ROWS * copies
            data = data[:4] + rows.to_bytes(4, "big") + data[8:head] + data[head:] * copies
        (folder / name).write_bytes(data)
    return folder


def one_run(the_job, case, network, scratch):
    """Mean times per step over all ranks in ms, the first step left out."""
    done = []

    def observe(event):
        if event["event"] == "done":
            done.append(event)

    with launch.Run(the_job, case, network, scratch / "logs", scratch / "store") as run:
        run.watch(observe)
    return {name: statistics.fmean(event[name] for event in done) for name in COLUMNS}


def measure(args, scratch):
    """{mode: {column: median over rounds}}."""
    base = job.Job(
        trainer=job.find_trainer(None),
        data=repeated_digits(scratch, 2 * args.workers * args.batch_size),
        workers=args.workers,
        threads=job.threads_per_rank(args.workers),
        transport="gloo",
        hidden=arguments.parse_widths(args.hidden),
        exchange="auto",
        bucket_kib=args.bucket_kib,
        overlap=True,
        optimizer="sgd:momentum=0.9",
        learning_rate=0.01,
        schedule="constant",
        warmup_steps=0,
        batch_size=args.batch_size,
        epochs=args.steps,
        max_steps=args.steps,
        eval_every=0,
        target_accuracy=0,
        stop_at_target=False,
        timeout_s=30,
    )
    the_links = arguments.parse_links(args.link)
    network = links.open_network("auto", args.workers, "gloo", the_links)
    print(f"{network.describe()}; {args.link}, {args.workers} workers on {job.cores()} core(s), "
          f"batch {args.batch_size} each, {args.method}, median of {args.rounds} rounds")
    runs = {mode: [] for mode in MODES}
    try:
        network.set_link(the_links[0])
        case = job.Case(the_links[0], args.method, 1)
        for number in range(args.rounds):
            for mode, change in MODES.items():
                folder = scratch / f"{mode}{number}"
                runs[mode].append(one_run(dataclasses.replace(base, **change), case, network, folder))
    finally:
        network.close()
    return {
        mode: {name: statistics.median(row[name] for row in rows) for name in COLUMNS}
        for mode, rows in runs.items()
    }


def report(times):
    """Prints the table and both checks; whether both hold."""
    print(f"{'':8}" + "".join(f"{name.removesuffix('_ms'):>18}" for name in COLUMNS) + "   (ms)")
    for mode, row in times.items():
        print(f"{mode:8}" + "".join(f"{row[name]:18.1f}" for name in COLUMNS))
    backward = times["compute"]["backward_ms"]
    by_clock = times["serial"]["step_ms"] - times["compute"]["step_ms"]
    by_trace = times["serial"]["exposed_exchange_ms"]
    checks = [
        ("clock: step", times["overlap"]["step_ms"], times["compute"]["step_ms"], by_clock),
        ("trace: exposed", times["overlap"]["exposed_exchange_ms"], 0.0, by_trace),
    ]
    held = True
    for what, value, compute, exchange in checks:
        bound = compute + exchange - 0.7 * min(backward, exchange)
        held = held and value <= bound
        print(f"{what} {value:.1f} ms, bound {compute:.1f} + {exchange:.1f} - 0.7 * "
              f"min({backward:.1f}, {exchange:.1f}) = {bound:.1f} ms: "
              f"{'holds' if value <= bound else 'FAILS'}")
    return held


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512, help="per worker")
    parser.add_argument("--method", default="none")
    parser.add_argument("--hidden", default="512,512,512,512,512")
    parser.add_argument("--bucket-kib", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=24, help="per run")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradwire-overlap-") as scratch:
        return 0 if report(measure(args, Path(scratch))) else 1


if __name__ == "__main__":
    sys.exit(main())
