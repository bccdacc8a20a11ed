"""One rank that takes a step and closes its transport at once, trial after trial; for test_closing.py.

    python closing_rank.py RANK SIZE FOLDER < trials

A line of JSON is a trial (see Trial); answered with a line each: "fine", or what went wrong.
"""

import json
import sys
import time

import numpy as np

import gradwire


def gradient(rank, numel):
    """Whole numbers, of which float32 adds a few without rounding."""
    return ((np.arange(numel) * 7 + 13 * rank) % 101 - 50).astype(np.float32)


def expected(ranks, numel):
    return np.mean([gradient(rank, numel).astype(np.float64) for rank in ranks], axis=0)


def step(transport, ranks, trial):
    numel = trial["numel"]
    plan = gradwire.make_plan([("weight", (numel,))], "none", exchange=trial["exchange"],
                              exempt_1d="never", bucket_bytes=trial["bucket_bytes"])
    reducer = gradwire.Reducer(plan, transport)
    reducer.gradient(0)[...] = gradient(ranks[transport.rank], numel)
    reducer.grad_ready(0)
    assert reducer.wait()
    np.testing.assert_allclose(reducer.gradient(0), expected(ranks, numel), rtol=1e-6, atol=1e-6)
    return reducer


def join(rank, size, place, trial):
    return gradwire.make_transport("gloo", rank=rank, world_size=size, store=f"file:{place}",
                                   interface="eth0", timeout=trial["timeout"])


def run(rank, size, place, trial):
    ranks = list(range(size))
    transport = join(rank, size, place, trial)
    if trial["way"] == "split":  # the whole is closed first, the part is the last to use the wire
        color = trial["colors"][rank]
        part = transport.split(color)
        transport.close()
        reducer = step(part, [r for r in ranks if trial["colors"][r] == color], trial)
        transport = part
    else:
        reducer = step(transport, ranks, trial)
    if trial["way"] == "rebuild":
        transport = transport.rebuild()
        reducer.rebuild(transport)
        reducer = step(transport, ranks, trial)
    time.sleep(trial["pause"][rank])
    del reducer
    transport.close()


def main():
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for number, line in enumerate(sys.stdin):
        try:
            run(rank, size, f"{folder}/{number}", json.loads(line))
            print("fine", flush=True)
        except (gradwire.Error, AssertionError) as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
