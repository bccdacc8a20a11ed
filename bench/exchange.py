"""Exchanges and collectives on shaped links: time, bytes against formulas, speed-ups, crossing points.

    python bench/exchange.py [--quick] [--links 100mbit,1gbit] [--ranks 4,8] [--numel 10000000]
                             [--json FILE] [--markdown] [--plots DIR]

As root every rank gets a network namespace with a link shaped both ways; otherwise ranks share the
loopback, the transport paces itself, and the first line says so. `B` is a rank's payload, `share`
the part of the link's rate that the busiest sender used, `ring x` the time of the dense ring in the
same run over the row's. Sparse rows are timed twice: up to the merged payloads, and with the dense
mean made of them. Exit code 1 when counted bytes differ from a formula; goals that are missed are
only told. Needs the installed package with its bench extra, and gradwire-exchange-bench.
"""

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

from text_table import print_table

from gradwire.bench import arguments, errors, files, job, launch, links, machine, signals

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "gradwire-exchange-bench"
DENSITIES = "0.1%,1%,10%"
SUPPORTS = ("skewed", "half", "overlap")
SPARSE = ("two_shot", "gather", "gtopk")
RING = "ring"
START_UP = "all_gather:direct"  # of a few bytes: its time over P - 1 is alpha
# What a row is held to: of the link's rate, or times the dense ring at its number of ranks.
SHARE_GOALS = {"all_reduce:ring": 0.90, "all_to_all": 0.85}
SPEED_GOALS = {
    ("two_shot", "topk:1%", "100mbit"): {4: 33, 8: 33},
    ("two_shot", "topk:1%", "1gbit"): {4: 12, 8: 10},
    ("two_shot", "int4", "100mbit"): {4: 5.5, 8: 5.5, 16: 5.5},
}
SKEW_GOAL = 1.5
BYTES_GOAL = 2.2


@dataclasses.dataclass(frozen=True)
class Line:
    """What one row measures; the program's case."""

    what: str
    numel: int
    spec: str = "none"
    support: str = "uniform"
    mean: str = "dense"
    repetitions: int = 3

    def text(self):
        return ";".join(f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self))

    @property
    def density(self):
        return self.spec.partition(":")[2] if self.spec.startswith("topk") else ""


@dataclasses.dataclass(frozen=True)
class ExchangeJob:
    """What launch.Run asks of a job."""

    program: Path
    processes: int
    threads: int
    timeout_s: float
    transport: str = "gloo"
    forked: bool = False

    def command(self, case):
        command = [str(self.program), "--world-size", str(self.processes)]
        command += ["--threads", str(self.threads), "--timeout-s", f"{self.timeout_s:g}"]
        command += ["--die-with-parent", str(os.getpid())]
        return command + [text for line in case.lines for text in ("--case", line.text())]


@dataclasses.dataclass(frozen=True)
class ExchangeCase:
    link: arguments.Link
    ranks: int
    lines: tuple

    def describe(self):
        return f"{self.ranks} ranks, {self.link.name}"


def find_program(given):
    for path in [Path(given)] if given else [ROOT / "build" / "default" / "bench" / PROGRAM]:
        if path.is_file() and os.access(path, os.X_OK):
            return path.resolve()
    raise errors.UsageError(
        f"{given or PROGRAM}: no such program; build the target gradwire_exchange_bench "
        "(GRADWIRE_BENCH=ON) and pass --program FILE"
    )


def known_exchanges(program):
    """Names of the registry's rows."""
    done = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True)
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


def verb_lines(link, quick):
    """Enough bytes for about a second of the line each."""
    rate = link.bits_per_s or 10**9
    numel = max(rate // 8 // 4 // (4 if quick else 1), 10_000) * 4 // 5
    verbs = ["all_reduce:ring", "all_to_all", "all_reduce:rank_order", "all_reduce:rabenseifner"]
    if not quick:
        verbs += ["all_gather:direct", "all_gather:ring", "all_gather:bruck"]
    return [Line(verb, numel, repetitions=2) for verb in verbs]


def exchange_lines(exchanges, densities, numel, quick):
    dense = 1  # seconds each on a slow link
    lines = [Line(START_UP, 256, repetitions=20)]
    lines += [Line(name, numel, repetitions=dense) for name in (RING, "dense") if name in exchanges]
    if "two_shot" in exchanges:
        lines.append(Line("two_shot", numel, "int4", repetitions=dense))
    for name in (name for name in SPARSE if name in exchanges):
        for density in densities:
            for mean in ("none", "dense"):
                spec = f"topk:{density}"
                lines.append(Line(name, numel, spec, mean=mean, repetitions=2 if quick else 5))
        for support in SUPPORTS if name == "two_shot" and "1%" in densities else ():
            lines.append(Line(name, numel, "topk:1%", support, "none", 2 if quick else 5))
    return lines


def run_case(the_job, case, network, folder):
    """Rows of one group of ranks on one link."""
    rows = []

    def observe(event):
        if event["event"] == "case":
            rows.append(row_of(case, event))

    with launch.Run(the_job, case, network, folder / "logs", folder / "store") as run:
        run.watch(observe)
    return rows


def row_of(case, event):
    """A line of the table out of the program's event."""
    fields = dict(field.split("=", 1) for field in event["case"].split(";"))
    line = Line(**{f.name: f.type(fields[f.name]) for f in dataclasses.fields(Line)})
    seconds = statistics.median(event["seconds"])
    bits = case.link.bits_per_s
    sent = max(event["bytes_sent"])
    return {
        "link": case.link.name,
        "ranks": case.ranks,
        **dataclasses.asdict(line),
        "density": line.density,
        "seconds": seconds,
        "all_seconds": event["seconds"],
        "cpu_seconds": statistics.fmean(event["cpu_seconds"]) / event["repetitions"],
        "bytes_sent": sent,
        "bytes_as_formula": event["bytes_sent"] == event["formula_bytes"],
        "payload_bytes": max(event["payload_bytes"]),
        "bytes_per_payload": statistics.fmean(event["bytes_sent"])
        / statistics.fmean(event["payload_bytes"]),
        "result_bytes": max(event["result_bytes"]),
        "share": sent * 8 / seconds / bits if bits else None,
        "times_ring": None,
    }


def compare_with_ring(rows):
    """Adds to each exchange how many times faster than the dense ring of its run it was."""
    for row in rows:
        for ring in rows:
            same = all(row[key] == ring[key] for key in ("link", "ranks", "numel"))
            if same and ring["what"] == RING:
                row["times_ring"] = ring["seconds"] / row["seconds"]


def checks_of(rows):
    """(what, value, goal, whether it was reached) of every goal that some row is held to."""
    checks = []
    for row in rows:
        where = f"{row['what']} {row['spec']} {row['link']} {row['ranks']} ranks"
        goal = SHARE_GOALS.get(row["what"]) if row["ranks"] == 4 else None
        if goal and row["share"]:
            checks.append((f"share of the line, {where}", row["share"], goal, row["share"] >= goal))
        if row["support"] != "uniform":
            base = next((r for r in rows if r["support"] == "uniform" and all(
                r[k] == row[k] for k in ("what", "spec", "link", "ranks", "numel", "mean"))), None)
            if base and row["support"] == "skewed":
                ratio = row["seconds"] / base["seconds"]
                checks.append((f"skewed / uniform, {where}", ratio, SKEW_GOAL, ratio <= SKEW_GOAL))
            continue
        goal = SPEED_GOALS.get((row["what"], row["spec"], row["link"]), {}).get(row["ranks"])
        if goal and row["times_ring"] and (row["mean"] == "none" or row["spec"] == "int4"):
            value = row["times_ring"]
            checks.append((f"times the dense ring, {where}", value, goal, value >= goal))
        if row["what"] == "two_shot" and row["mean"] == "none":
            value = row["bytes_per_payload"]
            checks.append((f"bytes / B, {where}", value, BYTES_GOAL, value <= BYTES_GOAL))
    return checks


def crossings(rows, link, ranks):
    """[(density, cheaper below, cheaper above)]: where curves of time against density cross."""
    curves = density_curves(rows, link, ranks)
    found = []
    for a in curves:
        for b in curves:
            shared = sorted(set(curves[a]) & set(curves[b]))
            for low, high in zip(shared, shared[1:]):
                before = math.log(curves[a][low] / curves[b][low])
                after = math.log(curves[a][high] / curves[b][high])
                if before < 0 < after:
                    part = before / (before - after)
                    found.append((low * (high / low) ** part, a, b))
    return sorted(found)


def density_curves(rows, link, ranks):
    """{exchange: {density: seconds}}; a dense row is the same at every density."""
    mine = [r for r in rows if (r["link"], r["ranks"], r["support"]) == (link, ranks, "uniform")
            and ":" not in r["what"] and r["what"] != "all_to_all"]
    densities = sorted({float(r["density"][:-1]) / 100 for r in mine if r["density"]})
    curves = {}
    for row in mine:
        if row["density"] and row["mean"] == "none":
            curves.setdefault(row["what"], {})[float(row["density"][:-1]) / 100] = row["seconds"]
        elif not row["density"]:
            label = row["what"] if row["spec"] == "none" else f"{row['what']} {row['spec']}"
            curves[label] = dict.fromkeys(densities, row["seconds"])
    return curves


def predictions(program, rows):
    """What comm/choose.h makes of alpha as measured, of the link's rate and of each payload: one row
    per link, ranks and density, with the cheapest as predicted and as measured."""
    found = []
    for row in rows:
        bits = arguments.parse_link(row["link"]).bits_per_s
        if not (bits and row["what"] == "gather" and row["mean"] == "none"):
            continue
        here = [r for r in rows if (r["link"], r["ranks"]) == (row["link"], row["ranks"])]
        alpha = next(r["seconds"] for r in here if r["what"] == START_UP and r["numel"] == 256)
        alpha /= row["ranks"] - 1
        density = float(row["density"][:-1]) / 100
        numbers = (alpha, bits / 8, row["ranks"], row["numel"], row["payload_bytes"], density)
        done = subprocess.run([str(program), "--predict", *map(str, numbers)],
                              capture_output=True, text=True, check=True)
        seconds = json.loads(done.stdout)
        del seconds["event"]
        measured = {name: curve[density] for name, curve in
                    density_curves(rows, row["link"], row["ranks"]).items() if name in seconds}
        found.append({"link": row["link"], "ranks": row["ranks"], "density": density,
                      "alpha_s": alpha, "predicted": seconds, "measured": measured,
                      "choice": next(iter(seconds)), "fastest": min(measured, key=measured.get)})
    return found


HEADER = ["link", "ranks", "exchange", "spec", "support", "mean", "ms", "ring x", "share", "MB sent",
          "bytes / B", "as formula", "CPU ms"]


def cells(row):
    def number(value, text):
        return "" if value is None else format(value, text)

    exchange = "result" if row["mean"] == "none" else "mean"
    verb = ":" in row["what"] or row["what"] == "all_to_all"
    return [row["link"], str(row["ranks"]), row["what"], "" if verb else row["spec"],
            row["support"] if row["density"] else "", exchange if row["density"] else "",
            f"{row['seconds'] * 1e3:.1f}", number(row["times_ring"], ".1f"),
            "" if row["share"] is None else f"{row['share']:.0%}", f"{row['bytes_sent'] / 1e6:.3f}",
            f"{row['bytes_per_payload']:.2f}", "equal" if row["bytes_as_formula"] else "DIFFER",
            f"{row['cpu_seconds'] * 1e3:.1f}"]


def measure(args, the_links, folder):
    """Rows of all links and numbers of ranks, and a line about the network of each."""
    program = find_program(args.program)
    exchanges = known_exchanges(program)
    for name in (name for name in (RING, "dense") + SPARSE if name not in exchanges):
        print(f"not in this build: the exchange {name}")
    exchanges = [name for name in exchanges if name in args.exchanges]
    rows, networks = [], []
    for ranks in args.ranks:
        network = links.open_network(args.link_mode, ranks, "gloo", the_links)
        networks.append(f"{ranks} ranks: {network.describe()}")
        print(networks[-1], flush=True)
        the_job = ExchangeJob(program, ranks, job.threads_per_rank(ranks), args.timeout)
        try:
            for link in the_links:
                lines = () if args.only == "exchanges" else tuple(verb_lines(link, args.quick))
                if args.only != "verbs":
                    lines += tuple(exchange_lines(exchanges, args.densities, args.numel, args.quick))
                network.set_link(link)
                case = ExchangeCase(link, ranks, lines)
                rows += run_case(the_job, case, network, folder / f"{link.name}-{ranks}")
        finally:
            network.close()
    compare_with_ring(rows)
    return rows, networks


def print_predictions(found):
    for each in found:
        costs = ", ".join(f"{name} {seconds * 1e3:.1f} ({each['measured'].get(name, math.nan) * 1e3:.1f})"
                          for name, seconds in each["predicted"].items())
        print(f"{each['link']} {each['ranks']} ranks, density {each['density']:.2%}: the rule takes "
              f"{each['choice']}, fastest was {each['fastest']}; ms predicted (measured): {costs}")


def report(args, rows, networks):
    """Prints the table and what follows from it; whether all bytes are as the formulas say."""
    print_table(HEADER, [cells(row) for row in rows], args.markdown)
    checks = checks_of(rows)
    for what, value, goal, reached in checks:
        print(f"{'reached' if reached else 'missed '}  {what}: {value:.2f} (goal {goal:g})")
    found = {f"{link} {ranks}": crossings(rows, link, ranks)
             for link, ranks in dict.fromkeys((r["link"], r["ranks"]) for r in rows)}
    for where, points in found.items():
        for density, below, above in points:
            print(f"{where} ranks: {below} is faster below a density of {density:.2%}, {above} above")
    rule = predictions(find_program(args.program), rows)
    print_predictions(rule)
    if args.json:
        document = {"machine": machine.machine(), "commit": machine.commit(), "networks": networks,
                    "rows": rows, "checks": checks, "crossings": found,
                    "rule": rule}
        files.write_whole(args.json, json.dumps(document, indent=1) + "\n")
    if args.plots:
        from exchange_plots import write_plots

        for path in write_plots(rows, found, rule, args.plots):
            print(f"wrote {path}")
    return all(row["bytes_as_formula"] for row in rows)


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1M floats, 4 ranks, 100mbit")
    parser.add_argument("--links", help="comma-separated [100mbit,1gbit]")
    parser.add_argument("--ranks", help="comma-separated [4,8,16]")
    parser.add_argument("--numel", type=int, help="floats of the exchanges [10000000]")
    parser.add_argument("--exchanges", help="comma-separated [all]",
                        default=",".join((RING, "dense") + SPARSE))
    parser.add_argument("--densities", help="comma-separated [0.1%%,1%%,10%%]", default=DENSITIES)
    parser.add_argument("--only", choices=["verbs", "exchanges"])
    parser.add_argument("--link-mode", default="auto", choices=links.MODES)
    parser.add_argument("--program", help=f"{PROGRAM} [build/default/bench]")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a peer may stay silent")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--plots", type=Path, help="folder for time against density and ranks, SVG")
    args = parser.parse_args(argv)
    args.exchanges, args.densities = args.exchanges.split(","), args.densities.split(",")
    args.links = args.links or ("100mbit" if args.quick else "100mbit,1gbit")
    args.numel = args.numel or (1_000_000 if args.quick else 10_000_000)
    try:
        args.ranks = [int(text) for text in (args.ranks or ("4" if args.quick else "4,8,16")).split(",")]
    except ValueError:
        parser.error(f"--ranks {args.ranks}: expected numbers separated by commas")
    if min(args.ranks) < 2 or args.numel < 100:
        parser.error("expected at least 2 ranks and 100 floats")
    return args


def main(argv=None):
    args = parse(argv)
    try:
        with signals.interruptible(), files.scratch_folder() as folder:
            rows, networks = measure(args, arguments.parse_links(args.links), folder)
            return 0 if report(args, rows, networks) else 1
    except errors.BenchError as error:
        print(f"exchange.py: {error}", file=sys.stderr)
        return error.exit_code
    except errors.Interrupted as error:
        print(f"exchange.py: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
