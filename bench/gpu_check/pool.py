"""Several commands at a time, each with a limit of its own, for the programs of stages."""

import os
import signal
import subprocess
import tempfile
import time


class Job:
    """A command in a process group of its own, so that all of it can be ended."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.command = [str(word) for word in command]
        self.environment = environment or {}
        self.code = None  # None: it was stopped, or never began
        self.seconds = 0.0
        self.output = ""
        self.began = None

    def start(self):
        self.began = time.monotonic()
        self.file = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self.file,
            stderr=subprocess.STDOUT,
            preexec_fn=os.setpgrp,
            env={**os.environ, **self.environment},
        )

    def look(self, limit):
        """Whether it is over; it is ended when its time is."""
        self.seconds = round(time.monotonic() - self.began, 2)
        code = self.process.poll()
        if code is None and self.seconds < limit:
            return False
        try:  # what it has left running, too
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if code is None:
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:  # the kernel does not let go of it
                pass
        self.code = code
        self.file.seek(0)
        self.output = self.file.read().decode(errors="replace")
        self.file.close()
        return True


def run(jobs, at_once, each, until, ended):
    """Runs them in this order; ended(job) behind each that was begun.

    @param each: seconds that one may take. @param until: of time.monotonic(), when all must be over.
    @returns those that were never begun.
    """
    waiting, running = list(jobs), []
    while waiting or running:
        now = time.monotonic()
        while waiting and len(running) < at_once and now < until:
            job = waiting.pop(0)
            try:
                job.start()
                running.append(job)
            except OSError as error:
                job.output = str(error)
                ended(job)
        left = []
        for job in running:
            if job.look(min(each, until - job.began)):
                ended(job)
            else:
                left.append(job)
        running = left
        if now >= until and not running:
            break
        time.sleep(0.01)
    return waiting
