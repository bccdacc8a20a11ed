"""Ranks over networks that are cut in two, while the cut moves and ranks are killed: there are never two
groups, rebuild() always ends, and once the network is whole again who can go on does."""

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bench_support import need_namespaces
from sampling import SEED, SOAK, sample

_RANK = Path(__file__).parent / "rebuilding_rank.py"
SIZE = 5
_TIMES = {"timeout": 0.8, "rebuild": 1.5, "silence": 0.25}
_START_S = 60.0
# rebuild() waits for others, then connects; a machine with more to do than it has cores for is late.
_LONGEST_REBUILD_S = _TIMES["rebuild"] + _TIMES["timeout"] + 10.0
_PEACE_S = 60.0  # in which a group must come; where none can, the trial waits for it all the same
_GROUPS, _EACH = 60, 5  # of the trials; those of a group share their processes


class Network:
    """Ranks, each in a namespace, and two bridges: who is at one reaches each other."""

    def __init__(self, folder):
        from gradwire.bench.netns import Namespaces

        self.namespaces = Namespaces(SIZE)
        self._ranks = []
        try:
            self._ip("link add br1 type bridge stp_state 0 forward_delay 0", "link set br1 up")
            self._ranks = [subprocess.Popen(
                [*self.namespaces.enter(rank), sys.executable, _RANK, str(rank), str(SIZE), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for rank in range(SIZE)]
        except BaseException:
            self.close()
            raise
        self.sides = [0] * SIZE
        self._said = queue.Queue()
        for rank in range(SIZE):
            threading.Thread(target=self._listen, args=(rank,), daemon=True).start()

    def _ip(self, *lines):
        bridge = str(self.namespaces.pids()[0])
        subprocess.run(["nsenter", "-t", bridge, "-n", "ip", "-batch", "-"],
                       input="\n".join(lines) + "\n", text=True, check=True)

    def _listen(self, rank):
        for line in self._ranks[rank].stdout:
            self._said.put((rank, json.loads(line)))

    def cut(self, sides):
        moved = [rank for rank in range(SIZE) if sides[rank] != self.sides[rank]]
        if moved:
            self._ip(*(f"link set p{rank} master br{sides[rank]}" for rank in moved))
        self.sides = list(sides)

    def begin(self, trial):
        for process in self._ranks:
            process.stdin.write(json.dumps({**_TIMES, **trial}) + "\n")
            process.stdin.flush()

    def said(self, timeout):
        """The next line of a rank, or None."""
        try:
            return self._said.get(timeout=max(timeout, 0))
        except queue.Empty:
            return None

    def close(self):
        for process in self._ranks:
            process.kill()
            process.wait()
        self.namespaces.close()


class Trial:
    def __init__(self, network, number):
        self.network = network
        self.number = number
        self.rows = []  # (rank, what it said)
        self.pids = {}
        self.killed = set()
        network.begin({"number": number})

    def listen(self, until, done=lambda: False):
        """Whether it was done before that time."""
        while not done():
            heard = self.network.said(until - time.monotonic())
            if heard is None:
                return done()
            rank, row = heard
            if row["trial"] == self.number:
                self.rows.append((rank, row))
                if row["kind"] == "pid":
                    self.pids[rank] = row["pid"]
        return True

    def of_kind(self, *kinds):
        return [(rank, row) for rank, row in self.rows if row["kind"] in kinds]

    def has_begun(self):
        """Whether all have taken a step, or never will."""
        stepped = {rank for rank, _ in self.of_kind("group")}
        return stepped == set(range(SIZE)) or bool(self.of_kind("broken", "ended"))

    def kill(self, rank):
        if rank not in self.killed and not any(r == rank for r, _ in self.of_kind("ended")):
            self.killed.add(rank)
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pids[rank], signal.SIGKILL)

    def groups(self):
        """Those that worked, as living ranks have seen it."""
        return {tuple(row["members"]) for rank, row in self.of_kind("group") if rank not in self.killed}

    def works(self, since):
        """Whether a group has worked after that time, all of whose members live."""
        steps = {tuple(row["members"]) for _, row in self.of_kind("group", "step") if row["at"] > since + 0.3}
        return any(not self.killed & set(members) for members in steps)

    def undecided(self, since):
        """Living ranks of which nothing has become after that time: no step, no end and no error."""
        decided = {rank for rank, row in self.of_kind("group", "step", "error") if row["at"] > since}
        return set(range(SIZE)) - self.killed - decided - {rank for rank, _ in self.of_kind("left", "ended")}

    def end(self):
        assert self.listen(time.monotonic() + _START_S, lambda: len(self.pids) == SIZE), "a rank never began"
        for rank in range(SIZE):
            self.kill(rank)
        everyone = self.listen(time.monotonic() + _START_S,
                               lambda: len({rank for rank, _ in self.of_kind("ended")}) == SIZE)
        assert everyone, (self.number, "a rank's parent does not answer")


def begin(network, number):
    """A trial whose ranks all take steps; begun anew where a busy machine missed the short deadlines."""
    for attempt in range(10):
        trial = Trial(network, number + attempt * 100_000)

        begun = trial.listen(time.monotonic() + _START_S, trial.has_begun)
        if begun and not trial.of_kind("broken", "ended"):
            return trial
        trial.end()
    raise AssertionError((number, "no group to begin with", trial.rows))


def run(network, number, events):
    """A trial with (pause, event) one after another, where an event is a rank to kill or the sides."""
    trial = begin(network, number)
    try:
        for pause, event in events:
            trial.listen(time.monotonic() + pause)
            if isinstance(event, int):
                trial.kill(event)
            else:
                network.cut(event)
        network.cut([0] * SIZE)
        healed, killed = time.monotonic(), set(trial.killed)
        trial.listen(healed + _PEACE_S, lambda: trial.works(healed) and not trial.undecided(healed))
        went_on = trial.works(healed)
        check(trial, number, events, healed)
        # Where two have died they may have been who had gone on.
        assert went_on or len(killed) > 1, (number, events, "nobody went on", trial.rows)
        return {"went on": went_on, "killed": len(killed), "groups": sorted(trial.groups()),
                "longest rebuild": max([row["took"] for _, row in trial.rows if "took" in row], default=0.0)}
    finally:
        trial.end()


def check(trial, number, events, healed):
    assert not trial.of_kind("wrong"), (number, events, trial.of_kind("wrong"))
    for rank, row in trial.of_kind("ended"):
        assert rank in trial.killed or row["how"] == 0, (number, events, "a process ended", rank, row)
    groups = sorted(map(set, trial.groups()), key=len)
    for one, other in zip(groups, groups[1:]):  # each is of those that followed one another
        assert one <= other, (number, events, "two groups", one, other, trial.rows)
    for rank, row in trial.rows:
        assert row.get("took", 0) < _LONGEST_REBUILD_S, (number, events, rank, row)
    assert not trial.undecided(healed), (number, events, "hang", trial.undecided(healed), trial.rows)


def drawn(number):
    """What happens in a trial: at first the group breaks, then all is done while the others rebuild it."""
    draw = random.Random(SEED * 1000 + number)

    def sides():
        return [draw.randrange(2) for _ in range(SIZE)]

    events = [(0.0, draw.choice([sides(), draw.randrange(SIZE)])), (draw.uniform(0.0, 1.8), sides())]
    for _ in range(draw.randrange(3)):
        events.append((draw.choice([draw.uniform(0.0, 0.1), draw.uniform(0.0, 0.9)]),
                       draw.choice([sides(), sides(), draw.randrange(SIZE)])))
    return [*events, (draw.uniform(0.0, 1.5), sides())]


@pytest.fixture
def network(tmp_path):
    need_namespaces()
    made = Network(tmp_path)
    yield made
    made.close()


def test_a_cut_that_moves_while_ranks_are_collected_makes_no_second_group(network):
    draw = random.Random(SEED)
    cut, moved = [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]
    run(network, 0, [(0.0, cut), (_TIMES["timeout"] + draw.uniform(0.05, 0.5), moved), (1.5, moved)])


@pytest.mark.soak
@pytest.mark.parametrize("group", sample(range(_GROUPS), 1))
def test_no_second_group_comes_of_cuts_and_kills_at_random(network, group):
    for number in range(group * _EACH, group * _EACH + (_EACH if SOAK else 1)):
        print(f"trial {number}: {json.dumps(run(network, number, drawn(number)))}")
