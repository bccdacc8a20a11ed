"""Runs a command until it ends or its time is over, and ends all that it has started."""

import os
import signal
import subprocess
import time
from pathlib import Path

GRACE_S = 1.0  # between asking a process to end and ending it
LET_GO_S = 3.0  # for the kernel to let go of one; then it is left behind


def members(session):
    """Processes of a session that still run."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry))
    return found


def send(pids, what):
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass


class Running:
    """A command in a session of its own, its output in a log."""

    def __init__(self, command, log, environment=None):
        self.began = time.monotonic()
        self.output = open(log, "wb")
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1", **(environment or {})},
        )

    def seconds(self):
        return time.monotonic() - self.began

    def wait(self, limit, on_tick=None):
        """The exit status, or None when the limit passed. @param on_tick: called now and then."""
        end, tick = time.monotonic() + limit, time.monotonic() + 1
        pause = 0.005
        while True:
            code = self.process.poll()
            if code is not None:
                return code
            now = time.monotonic()
            if now >= end:
                return None
            if on_tick is not None and now >= tick:
                on_tick()
                tick = now + 1
            time.sleep(min(pause, max(0.0, end - now)))
            pause = min(0.1, 2 * pause)

    def end(self):
        """Ends what is left of the session."""
        began = time.monotonic()
        alive = members(self.process.pid)
        send(alive, signal.SIGTERM)
        while alive and time.monotonic() < began + GRACE_S:
            self.process.poll()
            time.sleep(0.05)
            alive = members(self.process.pid)
        while alive and time.monotonic() < began + LET_GO_S:
            send(alive, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.05)
            alive = members(self.process.pid)
        self.output.close()


def text_of(command, limit, environment=None):
    """Exit status and output of a short command; the status None: it did not end within the limit.

    @raises OSError: it could not be started.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            output, _ = process.communicate(timeout=1)
        except subprocess.TimeoutExpired:  # a child of it holds the pipe
            output = ""
        return None, output


def last_lines(text, count):
    """The last lines that say something."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])
