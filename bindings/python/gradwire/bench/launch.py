"""Starts the worker processes of one case, reads their events, and ends them.

A worker that dies ends the run within a second. Which worker to blame: one killed by a signal;
else one that reports a fault of its own; else one that ended without a word; else the first that
lost its peer. What the others say about lost connections only follows from that.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Protocol, Type

from gradwire.bench.errors import BenchError, RunError, UsageError
from gradwire.bench.forked import ForkServer, fork
from gradwire.bench.job import TRAINER, Case
from gradwire.bench.links import Network
from gradwire.bench.processes import Process, begin, describe_exit, is_stopped, stop
from gradwire.bench.types import Event

_GRACE_S = 0.4  # after the first death: time for the others to tell their part
_TICK_S = 0.05
_SLACK_S = 5.0  # beyond the workers' own deadline
_PROGRAM = 3  # words of 'python -m PACKAGE', behind which a fork's own begin
Observer = Callable[[Event], None]


class Launched(Protocol):
    """What the launcher asks of a job."""

    @property
    def processes(self) -> int: ...

    @property
    def threads(self) -> int:
        """Of each process's loops."""

    @property
    def transport(self) -> str:
        """in_process: ranks are threads, and meet nowhere."""

    @property
    def forked(self) -> bool:
        """Whether workers are forks of a process that has imported what they need."""

    @property
    def timeout_s(self) -> float:
        """How long a worker may be silent."""

    def command(self, case: Case) -> List[str]:
        """The worker's program and all of its options that no network and no rank decide."""


class Worker:
    """One process, its events and its log."""

    def __init__(self, rank: int, log: Path, process: Process):
        self.rank = rank
        self.log = log
        self.errors: List[Event] = []
        self.done = False
        self.code: Optional[int] = None
        self._rest = b""
        self.process = process
        assert process.stdout is not None
        self.pipe = process.stdout
        os.set_blocking(self.pipe.fileno(), False)

    def name(self) -> str:
        return f"worker {self.rank} (pid {self.process.pid})"

    def read_events(self) -> Optional[List[Event]]:
        """What arrived since the last call; None once the worker closed its end."""
        try:
            data = os.read(self.pipe.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = [event for event in map(self._parse, lines) if event]
        for event in events:
            if event["event"] == "error":
                self.errors.append(event)
            self.done = self.done or event["event"] == "done"
        return events

    def last_words(self) -> str:
        """The last lines of its log, on one line."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return " | ".join([line.strip() for line in lines if line.strip()][-3:])

    def _parse(self, line: bytes) -> Optional[Event]:
        try:
            event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                return event
        except ValueError:
            pass
        with open(self.log, "ab") as file:  # not an event: keep it where people look
            file.write(line + b"\n")
        return None


def prepare(job: Launched, case: Case, network: Network) -> None:
    """Begins what the job's workers are forked from, so that no run waits for all of it."""
    if job.forked:
        prefixes = [network.prefix(rank) for rank in range(job.processes)]
        network.servers.open(prefixes, job.command(case)[:_PROGRAM], _environment(job))


def _environment(job: Launched) -> Dict[str, str]:
    threads = str(job.threads)
    return dict(os.environ, OPENBLAS_NUM_THREADS=threads, OMP_NUM_THREADS=threads)


class Run:
    """The workers of one case, from start to end; a context manager that leaves none behind."""

    def __init__(self, job: Launched, case: Case, network: Network, logs: Path, store: Path):
        self._job = job
        self._case = case
        self.workers: List[Worker] = []
        self.stopped_early = False
        logs.mkdir(parents=True, exist_ok=True)
        store.mkdir(parents=True)
        self._logs = logs
        self._selector = selectors.DefaultSelector()
        try:
            self._start(network, store)
        except OSError as error:
            self.close()
            raise RunError(f"a worker could not be started: {error}") from error
        except BaseException:
            self.close()
            raise

    def _start(self, network: Network, store: Path) -> None:
        job, ranks = self._job, range(self._job.processes)
        common = job.command(self._case) + network.options(self._case.link)
        prefixes = [network.prefix(rank) for rank in ranks]
        servers: List[ForkServer] = []
        program = common[:_PROGRAM]
        if job.forked:
            servers = network.servers.open(prefixes, program, _environment(job))
        # Left-over workers of another run, and strangers, do not meet these.
        environment = dict(_environment(job), GRADWIRE_JOB_SECRET=secrets.token_hex(16))
        for rank in ranks:
            log = self._logs / f"worker{rank}.log"
            command = list(common)
            if job.transport != "in_process":
                command += ["--rank", str(rank), "--store", f"file:{store}"]
                command += ["--interface", network.interface]
            if servers:
                words, patience_s = command[_PROGRAM:], job.timeout_s + _SLACK_S
                process: Process = fork(servers[rank], words, environment, log, patience_s)
            else:
                process = begin(prefixes[rank] + command, environment, log)
            worker = Worker(rank, log, process)
            self.workers.append(worker)
            self._selector.register(worker.pipe, selectors.EVENT_READ, worker)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        stop([worker.process for worker in self.workers])
        self._selector.close()
        for worker in self.workers:
            worker.pipe.close()

    def watch(self, observe: Observer, end_at: Optional[float] = None) -> None:
        """Passes events on until all workers have ended well.

        :param end_at: on the monotonic clock; then the workers are stopped and ``stopped_early``
            is set.
        :raises RunError: a worker died or failed, or none was heard for the deadline.
        """
        heard = time.monotonic()
        died: Optional[float] = None
        while self._selector.get_map() or any(worker.code is None for worker in self.workers):
            if self._pump(observe):
                heard = time.monotonic()
            now = time.monotonic()
            if self._reap() and died is None:
                died = now
            if died is not None:
                if now > died + _GRACE_S or all(w.code is not None for w in self.workers):
                    break
            elif end_at is not None and now > end_at:
                self.stopped_early = True
                return
            elif now > heard + self._job.timeout_s + _SLACK_S:
                raise self._silence(now - heard)
        while self._pump(observe):  # what the dead still had in their pipes
            pass
        if died is not None:
            raise self._blame()

    def _pump(self, observe: Observer) -> bool:
        """Reads what is there, or waits one tick for it."""
        heard = False
        if not self._selector.get_map():
            time.sleep(_TICK_S)
        for key, _ in self._selector.select(_TICK_S):
            events = key.data.read_events()
            if events is None:
                self._selector.unregister(key.fileobj)
                continue
            heard = True
            for event in events:
                observe(dict(event, rank=event.get("rank", key.data.rank)))
        return heard

    def _reap(self) -> bool:
        """Notes who has ended; true when someone ended otherwise than well."""
        bad = False
        for worker in self.workers:
            if worker.code is None:
                worker.code = worker.process.poll()
            if worker.code is not None and (worker.code != 0 or not self._finished(worker)):
                bad = True
        return bad

    def _finished(self, worker: Worker) -> bool:
        """Ended with code 0 and said so, as far as its pipe has been read."""
        return worker.done or worker.pipe in self._open_pipes()

    def _open_pipes(self) -> List[object]:
        return [key.fileobj for key in self._selector.get_map().values()]

    def _blame(self) -> BenchError:
        dead = [worker for worker in self.workers if worker.code is not None]
        killed = [worker for worker in dead if (worker.code or 0) < 0]
        if killed:
            worker = killed[0]
            words = worker.last_words()
            detail = f": {words}" if words else ""
            return self._error(f"{worker.name()} {describe_exit(worker.code or 0)}{detail}")
        told = [(worker, event) for worker in self.workers for event in worker.errors]
        told.sort(key=lambda pair: pair[1].get("kind") == "transport")
        silent = [w for w in dead if w.code and not w.errors]
        if told and not (silent and told[0][1].get("kind") == "transport"):
            worker, event = told[0]
            usage = event.get("kind") == "invalid_argument"
            kind: Type[BenchError] = UsageError if usage else RunError
            return self._error(f"{worker.name()}: {event.get('message')}{self._suspended()}", kind)
        worker = next((w for w in silent or dead if w.code != 0), dead[0])
        words = worker.last_words() or "it left no message"
        if worker.code == 2:  # bad arguments: which worker found out does not matter
            return UsageError(words.replace(f"{TRAINER}: ", "", 1))
        how = describe_exit(worker.code) if worker.code else "ended before its work was done"
        return self._error(f"{worker.name()} {how}: {words}{self._suspended()}")

    def _silence(self, seconds: float) -> BenchError:
        return self._error(
            f"no worker was heard for {seconds:.0f} s, expected an event within "
            f"{self._job.timeout_s + _SLACK_S:.0f} s (--timeout {self._job.timeout_s:g})"
            f"{self._suspended()}"
        )

    def _suspended(self) -> str:
        """Who cannot answer because someone stopped it."""
        names = [worker.name() for worker in self.workers if is_stopped(worker.process.pid)]
        return f"; suspended: {', '.join(names)}" if names else ""

    def _error(self, text: str, kind: Type[BenchError] = RunError) -> BenchError:
        return kind(f"{self._case.describe()}: {text}")
