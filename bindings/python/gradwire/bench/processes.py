"""Child processes that do not outlive the launcher, and their end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Any, Dict, Iterable, List, Optional, Protocol


class Process(Protocol):
    """What is asked of a child, or of a child's child: as subprocess.Popen has it."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> Optional[IO[Any]]: ...

    def poll(self) -> Optional[int]: ...

    def wait(self) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def die_with_launcher() -> List[str]:
    """A command prefix: the kernel kills what follows when the launcher's main thread ends.

    The setting survives exec, so it holds through nsenter and unshare as well. Without setpriv
    (util-linux) the trainer's own --die-with-parent remains.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def begin(command: List[str], environment: Dict[str, str], log: Path) -> Process:
    """A process whose standard output is a pipe; it appends standard error to ``log``."""
    with open(log, "ab") as stderr:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,  # a Ctrl-C of the terminal is for the launcher alone
        )


def stop(processes: Iterable[Process], patience_s: float = 1.0) -> None:
    """Asks the living to end, kills by pid what is left after ``patience_s``, reaps all."""
    living = [process for process in processes if process.poll() is None]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and any(process.poll() is None for process in living):
        time.sleep(0.01)
    for process in living:
        if process.poll() is None:
            process.kill()
    for process in living:
        process.wait()


def describe_exit(code: int) -> str:
    """'was killed by SIGKILL' or 'ended with code 3'."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def is_stopped(pid: int) -> bool:
    """True for a process that someone suspended (state T): it will never answer."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
