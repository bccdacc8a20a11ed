"""Does the exchange hide behind backward? Runs of one job over shaped links, in turn:

  compute   no exchange at all            serial    every bucket leaves when backward has ended
  overlap   buckets leave during backward, with one exchange in flight and with two

    python bench/overlap.py [--links 100mbit,1gbit] [--batch-size 6144,512] [--compute-cpus all]

Each rank computes on all processors but the last one, which is left to the exchange, as a GPU would
leave it; with `--compute-cpus all` backward fills every processor, and pays for the exchange's work.

Checks on the medians of the rounds, where backward is longer than the serial exchange:

  at most 100 Mbit/s    step(overlap) <= step(compute) + 0.1 * exchange
  faster links          the same + the exchange's own processor time / cores

exchange = step(serial) - step(compute); its processor time is that of all workers, serial less
compute. Where the exchange is the longer one, the step is compared with the bound in which all of
backward but a tenth is hidden: step(compute) + exchange - 0.9 * backward, + processor time.

Needs the installed package with its bench extra, and root for shaped links. The digits are repeated
to fill the batch: only times are looked at. Exit code 1 when a check fails.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from pathlib import Path

from gradwire.bench import arguments, digits, errors, files, job, launch, links, signals

SLOW_BITS_PER_S = 100e6  # links on which the exchange's own processor time is not counted


@dataclasses.dataclass(frozen=True)
class TracedJob(job.Job):
    """A job that may write its last steps for Perfetto to the file `trace`, and compute on the
    processors `compute_cpus` alone."""

    trace: str = ""
    compute_cpus: str = ""

    def command(self, case):
        options = {"--chrome-trace": self.trace, "--compute-cpus": self.compute_cpus}
        return super().command(case) + [
            word for name, value in options.items() if value for word in (name, value)]


def modes(streams):
    """{name: what differs from the job}."""
    return {
        "compute": {"compute_only": True},
        "serial": {"overlap": False},
        **{f"overlap {n}": {"overlap": True, "streams": n} for n in streams},
    }


COLUMNS = (
    "step_ms",
    "compute_ms",
    "backward_ms",
    "exposed_exchange_ms",
    "transfer_ms",
    "compression_ms",
    "cpu_ms",
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
    """Of each link: the link, the batch size and {mode: {column: median over rounds}}."""
    base = TracedJob(
        trainer=job.find_trainer(None),
        data=repeated_digits(scratch, 2 * args.workers * max(args.batch_size)),
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
        batch_size=max(args.batch_size),
        epochs=args.steps,
        max_steps=args.steps,
        eval_every=0,
        target_accuracy=0,
        stop_at_target=False,
        timeout_s=30,
        compute_cpus=args.compute_cpus,
    )
    the_links = arguments.parse_links(args.links)
    network = links.open_network("auto", args.workers, "gloo", the_links)
    print(f"{network.describe()}; {args.workers} workers on {job.cores()} core(s), "
          f"computing on {args.compute_cpus or 'all'}, {args.method}, "
          f"median of {args.rounds} rounds")
    cases = modes(args.streams)
    try:
        for link, batch_size in zip(the_links, args.batch_size * len(the_links)):
            network.set_link(link)
            case = job.Case(link, args.method, 1)
            runs = {mode: [] for mode in cases}
            for number in range(args.rounds):
                for mode, change in cases.items():
                    folder = scratch / f"{link.name}-{mode}-{number}".replace(" ", "-")
                    traced = args.traces is not None and mode != "compute"
                    trace = args.traces / f"{folder.name}.json" if traced else ""
                    the_job = dataclasses.replace(base, **change, batch_size=batch_size,
                                                  trace=str(trace))
                    runs[mode].append(one_run(the_job, case, network, folder))
            yield link, batch_size, {
                mode: {name: statistics.median(row[name] for row in rows) for name in COLUMNS}
                for mode, rows in runs.items()
            }
    finally:
        network.close()


def checks(link, times, workers):
    """One dictionary per number of streams: the step, its bound and what it is made of."""
    compute, serial = times["compute"], times["serial"]
    exchange = serial["step_ms"] - compute["step_ms"]
    backward = compute["backward_ms"]
    processor = max(0.0, serial["cpu_ms"] - compute["cpu_ms"]) * workers / job.cores()
    counted = processor if link.bits_per_s > SLOW_BITS_PER_S else 0.0
    hidden = 0.9 * min(backward, exchange)
    bound = compute["step_ms"] + exchange - hidden + counted
    return [
        {
            "link": link.name, "mode": mode, "step_ms": row["step_ms"], "bound_ms": bound,
            "compute_ms": compute["step_ms"], "exchange_ms": exchange, "backward_ms": backward,
            "processor_ms": processor, "processor_counts": counted > 0,
            "backward_is_longer": backward >= exchange, "holds": row["step_ms"] <= bound,
        }
        for mode, row in times.items() if mode.startswith("overlap")
    ]


def report(link, batch_size, times, workers):
    """Prints the table and the checks of one link; the checks."""
    print(f"\n{link.name}, batch {batch_size} per worker")
    print(f"{'ms':10}" + "".join(f"{name.removesuffix('_ms'):>18}" for name in COLUMNS))
    for mode, row in times.items():
        print(f"{mode:10}" + "".join(f"{row[name]:18.1f}" for name in COLUMNS))
    found = checks(link, times, workers)
    for check in found:
        print(f"{check['mode']}: step {check['step_ms']:.1f} ms, bound {check['compute_ms']:.1f} + "
              f"{check['exchange_ms']:.1f} - 0.9 * min({check['backward_ms']:.1f}, "
              f"{check['exchange_ms']:.1f})"
              + (f" + {check['processor_ms']:.1f} processor" if check["processor_counts"] else "")
              + f" = {check['bound_ms']:.1f} ms (exchange's processor time / cores "
              f"{check['processor_ms']:.1f}): {'holds' if check['holds'] else 'FAILS'}")
    return found


def numbers(text):
    """'1,2' -> [1, 2]"""
    return [int(part) for part in text.split(",")]


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--streams", type=numbers, default=[1, 2], help="exchanges in flight")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=numbers, default=[6144, 512],
                        help="per worker, for each link; the defaults make backward the longer part")
    parser.add_argument("--method", default="none")
    parser.add_argument("--hidden", default="64,128,256,512,512,512,512",
                        help="widths of the layers; narrow first, so that the last bucket is small")
    parser.add_argument("--bucket-kib", type=int, default=256)
    parser.add_argument("--compute-cpus", default="spare", metavar="C,C,…",
                        help="processors for forward and backward: a list, all, or spare: all but "
                        "the last; the exchange may use all [spare]")
    parser.add_argument("--steps", type=int, default=12, help="per run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all times and checks there")
    parser.add_argument("--traces", type=Path, metavar="DIR",
                        help="write a trace of each run's last steps there, for ui.perfetto.dev")
    args = parser.parse_args(argv)
    for name in ("rounds", "steps", "workers"):
        if getattr(args, name) < 1:
            parser.error(f"argument --{name}: {getattr(args, name)} is not positive")
    cpus = sorted(os.sched_getaffinity(0))
    known = {"all": "", "spare": ",".join(map(str, cpus[:-1]))}
    args.compute_cpus = known.get(args.compute_cpus, args.compute_cpus)
    if args.traces:
        args.traces = args.traces.resolve()
        args.traces.mkdir(parents=True, exist_ok=True)
    return args


def run(args):
    """The exit code: whether all checks hold."""
    documents = []
    with signals.interruptible(), files.scratch_folder() as scratch:
        for link, batch_size, times in measure(args, scratch):
            documents.append({"link": link.name, "batch_size": batch_size,
                              "compute_cpus": args.compute_cpus, "times": times,
                              "checks": report(link, batch_size, times, args.workers)})
    if args.json:
        args.json.write_text(json.dumps(documents, indent=1) + "\n")
    held = all(check["holds"] for document in documents for check in document["checks"])
    return 0 if held else 1


def main(argv=None):
    args = parse(argv)
    try:
        return run(args)
    except (errors.BenchError, errors.Interrupted) as error:
        print(f"overlap.py: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
