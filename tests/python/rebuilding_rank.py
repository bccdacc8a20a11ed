"""Ranks that take steps and rebuild their group whenever it breaks, for test_moving_cuts.py.

    python rebuilding_rank.py RANK SIZE FOLDER < trials

Each line of the input is a trial, taken by a child of this process, so that it may be killed. It
prints lines of JSON: "pid", "group" (after the first step of a group: whose values came), "step"
(some of the later ones), "broken" (a step failed), "rebuilt", "error" (rebuild() failed), "left"
(others went on without it), "wrong" (a mean that is none, or an error of another kind) and, from its
parent, "ended" (how).
"""

import json
import os
import sys
import time

import numpy as np

import gradwire

NUMEL = 64
STEP_S, TOLD_EVERY = 0.01, 10


def say(trial, kind, **more):
    line = json.dumps({"trial": trial, "kind": kind, "at": time.monotonic(), **more}) + "\n"
    os.write(1, line.encode())


def step(reducer, rank):
    """Whose values are in the mean of one step."""
    reducer.gradient(0)[...] = 0
    reducer.gradient(0)[rank] = 1
    reducer.grad_ready(0)
    assert reducer.wait()
    mean = np.array(reducer.gradient(0), dtype=np.float64)
    came = np.flatnonzero(mean)
    np.testing.assert_allclose(mean[came], 1 / len(came), rtol=1e-6)
    return came.tolist()


def work(trial, rank, size, place):
    transport = gradwire.make_transport("gloo", rank=rank, world_size=size, store=f"file:{place}",
                                        interface="eth0", timeout=trial["timeout"])
    members = list(range(size))
    while True:
        try:
            plan = gradwire.make_plan([("weight", (NUMEL,))], "none", exchange="dense", exempt_1d="never")
            reducer, steps = gradwire.Reducer(plan, transport), 0
            while True:
                came = step(reducer, rank)
                if came != members:
                    say(trial["number"], "wrong", members=members, came=came)
                if steps == 0 or steps % TOLD_EVERY == 0:
                    say(trial["number"], "step" if steps else "group", members=came)
                steps += 1
                time.sleep(STEP_S)
        except gradwire.TransportError as error:
            say(trial["number"], "broken", reason=str(error))
        reducer = None
        while True:
            began = time.monotonic()
            try:
                transport = transport.rebuild(timeout=trial["rebuild"], silence=trial["silence"])
                members = [members[old] for old in transport.old_ranks]
                say(trial["number"], "rebuilt", members=members, took=time.monotonic() - began)
                break
            except gradwire.TransportError as error:
                took = time.monotonic() - began
                left = "went on without" in str(error)
                say(trial["number"], "left" if left else "error", reason=str(error), took=took)
                if left:
                    return


def main():
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for line in sys.stdin:
        trial = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                say(trial["number"], "pid", pid=os.getpid())
                work(trial, rank, size, f"{folder}/{trial['number']}")
            except BaseException as error:  # whatever it is, the test must hear of it
                say(trial["number"], "wrong", reason=f"{type(error).__name__}: {error}")
            os._exit(0)
        how = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        say(trial["number"], "ended", how=how)


if __name__ == "__main__":
    main()
