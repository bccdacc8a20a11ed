"""Three ranks of bench/fault_rank.cc as processes: started, watched, and never left behind."""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

DEADLINE_MS = 1500
SECRET = "of the job"


class Rank:
    """One process and the events it printed."""

    def __init__(self, command, secret):
        environment = dict(os.environ, GRADWIRE_JOB_SECRET=secret)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.events = []
        self._rest = b""

    def read(self):
        try:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return bool(data)

    def end(self):
        """How it ended that has said nothing."""
        code = self.process.poll()
        return f"ended by {signal.Signals(-code).name}" if code and code < 0 else "nothing"

    def last(self, *names):
        return next((event for event in reversed(self.events) if event["event"] in names), None)


class Job:
    """Ranks that are started, watched and never left behind."""

    def __init__(self, program, prefix=None, interface="lo", store=None):
        self.folder = tempfile.mkdtemp(prefix="gradwire-faults-")
        self.store = store or f"file:{self.folder}"
        self._program, self._prefix, self._interface = program, prefix, interface
        self.ranks = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks.values():
            rank.process.kill()
            rank.process.wait()
            rank.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, number, secret=SECRET, **options):
        settings = {"timeout-ms": DEADLINE_MS, "interface": self._interface, "store": self.store}
        settings.update({name.replace("_", "-"): value for name, value in options.items()})
        command = [str(self._program), "--rank", str(number)]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        if self._prefix:
            command = self._prefix(number) + command
        self.ranks[number] = Rank(command, secret)

    def start_all(self, **options):
        for number in range(3):
            self.start(number, **options)

    def wait_for(self, names, numbers, limit_ms):
        """Until each of these ranks has printed one of these events, or the limit has passed."""
        end = time.monotonic() + limit_ms / 1000
        waiting = {number for number in numbers if not self.ranks[number].last(*names)}
        while waiting and time.monotonic() < end:
            pipes = {self.ranks[number].process.stdout: number for number in waiting}
            ready, _, _ = select.select(list(pipes), [], [], max(0, end - time.monotonic()))
            for pipe in ready:
                number = pipes[pipe]
                if not self.ranks[number].read() or self.ranks[number].last(*names):
                    waiting.discard(number)
        return not waiting
