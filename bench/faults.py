"""What ranks see when something happens to one of them: real processes over Gloo, one table.

    python bench/faults.py [--program PATH] [--only WORDS] [--markdown | --json]

Each event is run once with three ranks. `after` counts from the event (a signal, the start of the
last rank, the stranger's end) to the line each rank prints; the limit is 200 ms where a process
ends, and the deadline of 1.5 s + 0.5 s where somebody is only silent. Cut and slow links need root
and are skipped otherwise, with the reason. Exit code 1 when a check fails that is not known to, 2 for
bad arguments, before anything is started. Needs the build with -DGRADWIRE_BENCH=ON, and the Python
package for cut and slow links.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fault_job import DEADLINE_MS, Job

ROOT = Path(__file__).resolve().parent.parent
SILENCE_LIMIT_MS = DEADLINE_MS + 500
DEATH_LIMIT_MS = 200
JOIN_MS = 10000


def seen(job, numbers, since, limit_ms, names=("error",)):
    """What these ranks said, and whether in time."""
    job.wait_for(names, numbers, limit_ms + 3000)
    rows, good = [], True
    for number in numbers:
        event = job.ranks[number].last(*names)
        after = (event["at"] - since) * 1000 if event else None
        text = event.get("message", event["event"]) if event else job.ranks[number].end()
        text = text.replace(job.folder, "DIR")
        rows.append({"rank": number, "saw": text, "after_ms": after})
        good = good and after is not None and after <= limit_ms
    return rows, good


def mentions(rows, *words):
    """Every rank's message has one of the words."""
    return all(any(word in row["saw"] for word in words) for row in rows)


def running(job, numbers=(0, 1, 2)):
    if not job.wait_for(("running", "error"), numbers, JOIN_MS):
        raise RuntimeError("the ranks did not start")


def killed(program, victim):
    with Job(program) as job:
        job.start_all(rebuild=1)
        running(job)
        others = [number for number in range(3) if number != victim]
        job.ranks[victim].process.kill()
        since = time.monotonic()
        rows, good = seen(job, others, since, DEATH_LIMIT_MS)
        good = good and mentions(rows, f"rank {victim} died")
        job.wait_for(("done",), others, JOIN_MS)
        ends = [job.ranks[number].last("done") for number in others]
        same = all(ends) and len({end["digest"] for end in ends}) == 1
        for row, number in zip(rows, others):
            error, rebuilt = (job.ranks[number].last(name) for name in ("error", "rebuilt"))
            took = f"{(rebuilt['at'] - error['at']) * 1000:.0f} ms" if rebuilt else "never"
            row["then"] = f"rebuilt {took} later, 50 steps, {'same' if same else 'OTHER'} bits"
        return rows, good and same, f"{DEATH_LIMIT_MS} ms, then rebuild()"


def stopped(program):
    with Job(program) as job:
        job.start_all()
        running(job)
        os.kill(job.ranks[1].process.pid, signal.SIGSTOP)
        rows, good = seen(job, (0, 2), time.monotonic(), SILENCE_LIMIT_MS)
        return rows, good and mentions(rows, "rank 1 stayed silent"), f"{SILENCE_LIMIT_MS} ms"


def on_machines(body):
    """body(program, network), where this machine can have three of them."""

    def run(program):
        try:
            from gradwire.bench.netns import Namespaces, Unavailable
        except ImportError as error:
            return None, f"the Python package is not installed ({error})", ""
        try:
            network = Namespaces(3)
        except Unavailable as error:
            return None, str(error), ""
        try:
            return body(program, network)
        finally:
            network.close()

    return run


@on_machines
def cut(program, network):
    with Job(program, network.enter, "eth0") as job:
        job.start_all()
        running(job)
        bridge = ["nsenter", "-t", str(network.pids()[0]), "-n"]
        subprocess.run(bridge + ["ip", "link", "set", "p1", "down"], check=True)
        rows, good = seen(job, (0, 1, 2), time.monotonic(), SILENCE_LIMIT_MS)
        good = good and mentions(rows, "stayed silent", "closed the group")
        return rows, good, f"{SILENCE_LIMIT_MS} ms"


def slow_uplink(exchange):
    @on_machines
    def run(program, network):
        shaped = "tc qdisc add dev eth0 root tbf rate 5mbit burst 16kb latency 50ms".split()
        subprocess.run(network.enter(1) + shaped, check=True)
        with Job(program, network.enter, "eth0") as job:
            since = time.monotonic()
            job.start_all(steps=1, numel=100000, exchange=exchange, timeout_ms=10000)
            return all_done(job, since)

    return run


def never_joins(program):
    with Job(program) as job:
        since = time.monotonic()
        job.start(0)
        job.start(1)
        rows, good = seen(job, (0, 1), since, SILENCE_LIMIT_MS)
        return rows, good and mentions(rows, "1 of 3 ranks"), f"{SILENCE_LIMIT_MS} ms"


def never_calls(program):
    with Job(program) as job:
        for number in range(3):
            job.start(number, sleep_ms=6000 if number == 2 else 0)
        job.wait_for(("joined",), (0, 1, 2), JOIN_MS)
        since = max(rank.last("joined")["at"] for rank in job.ranks.values())
        # The plans are compared first, then the first step waits.
        rows, good = seen(job, (0, 1), since, SILENCE_LIMIT_MS + 200)
        return rows, good and mentions(rows, "rank 2 stayed silent", "closed the group"), (
            f"{SILENCE_LIMIT_MS} ms from the call"
        )


def disagree(option, values, *words):
    def run(program):
        with Job(program) as job:
            since = time.monotonic()
            for number in range(3):
                job.start(number, **{option: values[number == 2]})
            rows, good = seen(job, (0, 1, 2), since, SILENCE_LIMIT_MS)
            return rows, good and mentions(rows, *words), f"{SILENCE_LIMIT_MS} ms"

    return run


def corrupted(program):
    with Job(program) as job:
        since = time.monotonic()
        job.start_all(corrupt_step=3)
        rows, good = seen(job, (0, 1, 2), since, SILENCE_LIMIT_MS)
        first = mentions(rows[:1], "changed on the way")
        return rows, good and first, f"{SILENCE_LIMIT_MS} ms"


def stranger(say, expected, secret=None):
    """A stranger at the store before all ranks are there; the job must not notice."""

    def run(program):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with Job(program, store=f"tcp:127.0.0.1:{port}") as job:
            job.start(0, steps=30, timeout_ms=8000)
            visitor = None
            for _ in range(500):
                try:
                    visitor = socket.create_connection(("127.0.0.1", port), timeout=5)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            if visitor is None:
                raise RuntimeError("the store did not start")
            since = time.monotonic()
            with visitor:
                if secret is not None:
                    job.start(3, secret=secret, world_size=4, timeout_ms=8000)  # left over
                    job.wait_for(("error",), (3,), JOIN_MS)
                elif say:
                    visitor.sendall(say)
                else:
                    job.wait_for(("log",), (0,), 4000)  # refused while the job waits
                for number in (1, 2):
                    job.start(number, steps=30, timeout_ms=8000)
                rows, good = seen(job, (0, 1, 2), since, 8000, ("done", "error"))
                logged = [e["line"] for e in job.ranks[0].events if e["event"] == "log"]
            good = good and all(row["saw"] == "done" for row in rows)
            good = good and any(expected in line for line in logged)
            rows[0]["then"] = f"log: {logged[0] if logged else 'nothing'}"
            if secret is not None:
                event = job.ranks[3].last("error")
                rows.append({"rank": "stranger", "saw": event["message"] if event else "nothing",
                             "after_ms": (event["at"] - since) * 1000 if event else None})
                good = good and event is not None and "another job secret" in event["message"]
            return rows, good, "the job goes on"

    return run


def header_flipped(program):
    with Job(program) as job:
        since = time.monotonic()
        job.start_all(flip_message=40, flip_byte=16)  # which buffer it is for
        rows, good = seen(job, (0, 1, 2), since, SILENCE_LIMIT_MS)
        return rows, good and mentions(rows, "rank"), f"{SILENCE_LIMIT_MS} ms"


def all_done(job, since):
    rows, good = seen(job, (0, 1, 2), since, 20000, ("done", "error"))
    digests = {rank.last("done")["digest"] for rank in job.ranks.values() if rank.last("done")}
    good = good and all(row["saw"] == "done" for row in rows) and len(digests) == 1
    return rows, good, "no error, same bits"


def harmless(**options):
    def run(program):
        with Job(program) as job:
            since = time.monotonic()
            for number in range(3):
                job.start(number, **{name: value(number) for name, value in options.items()})
            return all_done(job, since)

    return run


EVENTS = {
    "rank 0 killed (SIGKILL)": lambda program: killed(program, 0),
    "rank 1 killed (SIGKILL)": lambda program: killed(program, 1),
    "rank 1 stopped (SIGSTOP)": stopped,
    "link of rank 1 cut": cut,
    "rank 2 never joins": never_joins,
    "rank 2 never calls": never_calls,
    "rank 2 has another world size": disagree("world_size", (3, 4), "disagree on the world size"),
    "rank 2 has another shape": disagree("numel", (200000, 200002), "rank 2"),
    "rank 2 has another spec": disagree("method", ("int8", "int4"), "rank 2"),
    "a bit changes on the way to rank 0": corrupted,
    "a bit changes in Gloo's own header": header_flipped,
    "stranger with garbage at the store": stranger(b"GET / HTTP/1.1\r\n\r\n", "another protocol"),
    "stranger that is silent": stranger(b"", "did not prove itself"),
    "rank of another job": stranger(b"", "another job secret", secret="of another job"),
    "rank 1 slow, 50 ms a step": harmless(steps=lambda _: 20,
                                          sleep_ms=lambda number: 50 * (number == 1)),
    "200 steps with random delays": harmless(steps=lambda _: 200, jitter_ms=lambda _: 5,
                                             numel=lambda _: 20000),
    **{f"rank 1 closes first, its uplink at 5 Mbit/s, {exchange}": slow_uplink(exchange)
       for exchange in ("dense", "ring", "gather")},
}
# What cannot be mended here, and is no failure of a run.
KNOWN = {"a bit changes in Gloo's own header": "Gloo ends the process"}


def find_program():
    """The newest one that was built. Raises ValueError where there is none."""
    found = sorted(ROOT.glob("build/*/bench/gradwire-fault-rank"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ValueError("no build/*/bench/gradwire-fault-rank; build the target "
                         "gradwire_fault_rank or give --program")
    return found[-1]


def checked_program(path):
    """Raises ValueError for what cannot be run."""
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError(f"--program: {path} is "
                         f"{'not executable' if path.is_file() else 'no file'}, expected "
                         "gradwire-fault-rank of a build with GRADWIRE_BENCH=ON")
    return path.resolve()


def chosen_events(words):
    """Raises ValueError listing the known events."""
    chosen = {name: run for name, run in EVENTS.items() if words in name}
    if not chosen:
        raise ValueError(f"--only: no event has the words {words!r}, known: " + "; ".join(EVENTS))
    return chosen


def short(text, most=150):
    return text if len(text) <= most else text[: most - 1] + "…"


def describe(row):
    after = "" if row["after_ms"] is None else f" ({row['after_ms']:.0f} ms)"
    then = f" → {row['then']}" if "then" in row else ""
    who = row["rank"] if row["rank"] == "stranger" else f"rank {row['rank']}"
    return f"{who}{after}: {short(row['saw'])}{then}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, help="gradwire-fault-rank, of a build with BENCH")
    parser.add_argument("--only", default="", help="events whose name has these words")
    parser.add_argument("--markdown", action="store_true", help="the table as in docs/faults.md")
    parser.add_argument("--json", action="store_true", help="all messages and times instead of a table")
    arguments = parser.parse_args()
    try:
        events = chosen_events(arguments.only)
        program = checked_program(arguments.program or find_program())
    except ValueError as error:
        parser.error(str(error))
    results = []
    for name, run in events.items():
        rows, good, limit = run(program)
        verdict = f"skipped: {good}" if rows is None else "pass" if good else "FAIL"
        if verdict == "FAIL" and name in KNOWN:
            verdict = f"known failure: {KNOWN[name]}"
        results.append({"event": name, "limit": limit, "ranks": rows, "verdict": verdict})
        if not arguments.json and not arguments.markdown:
            print(f"{results[-1]['verdict']:5} {name} ({limit})")
            for row in rows or []:
                print(f"      {describe(row)}")
            sys.stdout.flush()
    if arguments.json:
        print(json.dumps(results, indent=1))
    if arguments.markdown:
        print("| event | what each rank saw, and after how long | limit | |\n|---|---|---|---|")
        for result in results:
            saw = "<br>".join(describe(row).replace("|", "\\|") for row in result["ranks"] or [])
            print(f"| {result['event']} | {saw} | {result['limit']} | {result['verdict']} |")
    return any(result["verdict"] == "FAIL" for result in results)


if __name__ == "__main__":
    sys.exit(main())
