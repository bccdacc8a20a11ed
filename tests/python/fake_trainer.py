#!/usr/bin/env python3
"""A worker that fails on purpose, in ways the real trainer cannot: for the launcher's tests.

It speaks the trainer's events. GRADWIRE_FAKE holds JSON: {"rank": 1, "step": 3, "do": "crash"}.
What it can do: crash (segmentation fault), quiet (exit code 3, no message), leave (exit code 0
before the work is done), garbage (lines that are no events, then done), silent (no further event),
stubborn (ignores SIGTERM and goes silent), fault (an error event; the others then lose their peer),
differ (parameters that are not equal on all ranks). GRADWIRE_FAKE_ONLY ("seed=2") spares other runs.
"""

import argparse
import json
import os
import signal
import sys
import time

STEP_S = 0.01


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--method")
    parser.add_argument("--transport")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--seed")
    return parser.parse_known_args()[0]


def say(event, **fields):
    print(json.dumps(dict(event=event, **fields)), flush=True)


def hang(rank):
    """Leaves a mark where the test asked for one, and is not heard again."""
    mark = os.environ.get("GRADWIRE_FAKE_MARKS")
    if mark:
        open(os.path.join(mark, str(rank)), "w").close()
    time.sleep(1000)


def misbehave(what, rank):
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "quiet":
        os._exit(3)
    elif what == "leave":
        os._exit(0)
    elif what == "garbage":
        print('not json\n[1, 2]\n{"no": "event"}', flush=True)
    elif what in ("silent", "stubborn"):
        if what == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang(rank)
    elif what == "fault":
        time.sleep(0.1)  # its peers are quicker to say that they lost it
        say("error", rank=rank, kind="internal", message="the fault itself")
        os._exit(1)


def main():
    args = options()
    fault = json.loads(os.environ.get("GRADWIRE_FAKE", "{}"))
    name, _, value = os.environ.get("GRADWIRE_FAKE_ONLY", "").partition("=")
    spared = name and getattr(args, name) != value
    if args.transport == "in_process" or spared:  # the rehearsal, or another run
        fault = {}
    do = fault.get("do")
    say("start", rank=args.rank, pid=os.getpid(), method=args.method, steps_per_epoch=10)
    for step in range(1, (args.max_steps or 20) + 1):
        time.sleep(STEP_S)
        if step == fault.get("step"):
            if args.rank == fault.get("rank"):
                misbehave(do, args.rank)
            elif do == "fault":
                say("error", rank=args.rank, kind="transport", message="lost a peer")
                sys.exit(1)
            elif do in ("silent", "stubborn", "crash", "quiet", "leave"):
                hang(args.rank)  # as if it waited for its peer
        if args.rank == 0:
            numbers = dict(step_ms=10.0, compute_ms=5.0, exposed_exchange_ms=4.0)
            say("step", step=step, epoch=0, seconds=step * STEP_S, bytes_sent=1000, **numbers)
            if step % 10 == 0:
                say("evaluate", step=step, seconds=step * STEP_S, accuracy=step / 25)
    if args.rank == 0:
        say("epoch", epoch=1, seconds=1.0, hashes_equal=do != "differ")
    say("done", rank=args.rank, steps=20, epochs=2, seconds=0.2, final_accuracy=0.8, step_ms=10.0)


main()
