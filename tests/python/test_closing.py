"""Ranks that close as soon as they are done, over uplinks that are slow and unequal: what a rank has
sent by then is still in its kernel, and the others need it for the same step."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from bench_support import need_namespaces
from sampling import SEED, sample

RANKS = 3
_RANK = Path(__file__).parent / "closing_rank.py"
_DEADLINE_S = 240
_TRIAL = {"numel": 100_000, "exchange": "dense", "bucket_bytes": 1 << 25, "timeout": 30.0,
          "way": "close", "colors": [0] * RANKS, "pause": [0.0] * RANKS}
_GROUPS, _EACH = 60, 5  # of the trials at random; those of a group share their processes


@pytest.fixture(scope="module")
def network():
    need_namespaces()
    from gradwire.bench.netns import Namespaces

    namespaces = Namespaces(RANKS)
    yield namespaces
    namespaces.close()


def shape(network, uplinks):
    """Mbit/s of each rank's uplink, None for as fast as it can."""
    for rank, rate in enumerate(uplinks):
        for line in ["del dev eth0 root"] + ([] if rate is None else [
                f"add dev eth0 root tbf rate {rate}mbit burst 16kb latency 50ms"]):
            # There may be nothing to delete.
            subprocess.run([*network.enter(rank), "tc", "qdisc", *line.split()],
                           check=line.startswith("add"), stderr=subprocess.DEVNULL)


def run(network, folder, uplinks, trials):
    """What each rank says of each trial."""
    shape(network, uplinks)
    lines = "".join(json.dumps({**_TRIAL, **trial}) + "\n" for trial in trials)
    processes = [subprocess.Popen([*network.enter(rank), sys.executable, _RANK, str(rank), str(RANKS),
                                   str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True) for rank in range(RANKS)]
    try:
        for process in processes:
            process.stdin.write(lines)
            process.stdin.close()
            process.stdin = None
        return [process.communicate(timeout=_DEADLINE_S)[0].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def expect_fine(network, folder, uplinks, trials):
    said = run(network, folder, uplinks, trials)
    assert said == [["fine"] * len(trials)] * RANKS, (uplinks, trials)


def test_the_last_step_arrives_although_the_rank_that_sent_it_has_closed(network, tmp_path):
    expect_fine(network, tmp_path, [None, 5, None],
                [{"exchange": exchange} for exchange in ("dense", "ring", "gather")])


def test_the_last_step_arrives_of_a_group_that_was_split_or_is_rebuilt(network, tmp_path):
    expect_fine(network, tmp_path, [None, 5, None],
                [{"way": "split", "colors": [0, 0, 1]}, {"way": "rebuild"}])


def drawn(group):
    """Uplinks, and trials over them."""
    draw = random.Random(SEED * 1000 + group)
    uplinks = [draw.choice([None, 5, 8, 20, 50]) for _ in range(RANKS)]
    uplinks[draw.randrange(RANKS)] = draw.choice([4, 5, 10])
    return uplinks, [{
        "numel": draw.randrange(1, 70_000), "exchange": draw.choice(["dense", "ring", "gather"]),
        "bucket_bytes": draw.choice([1 << 14, 1 << 25]),
        "way": draw.choice(["close", "close", "split", "rebuild"]),
        "colors": [draw.randrange(2) for _ in range(RANKS)],
        "pause": [draw.choice([0.0, 0.0, 0.05, 0.3]) for _ in range(RANKS)],
    } for _ in range(_EACH)]


@pytest.mark.soak
@pytest.mark.parametrize("group", sample(range(_GROUPS), 1))
def test_closes_at_random_over_slow_and_unequal_links(network, tmp_path, group):
    expect_fine(network, tmp_path, *drawn(group))
