"""Workers forked from processes that have imported torch: the launcher's side of a fork server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Dict, List, Optional, Sequence, Tuple

from gradwire.bench.processes import describe_exit, is_stopped, stop
from gradwire.bench.torch_trainer.fork_server import NUMBER

_TELL_S = 2.0  # within which a server tells that its worker, which was killed, has ended


class ServerLost(OSError):
    """A fork server that has ended, and how."""


class ForkServer:
    """One server: its process, the socket to it, and what it says on standard error."""

    def __init__(self, rank: int, command: List[str], environment: Dict[str, str]):
        self._rank = rank
        self._stderr = tempfile.TemporaryFile()
        self._control, theirs = socket.socketpair()
        self.closed = False
        with theirs:
            fd = str(theirs.fileno())
            self.process = subprocess.Popen(
                [*command, "--control", fd, "--die-with-parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C of the terminal is for the launcher alone
            )

    def name(self) -> str:
        return f"the fork server of worker {self._rank} (pid {self.process.pid})"

    def fork(
        self, words: List[str], environment: Dict[str, str], files: Sequence[int], timeout_s: float
    ) -> int:
        """The pid of a worker with this command line and these standard output and error.

        :raises OSError: the server has ended, or does not answer; either way it is closed.
        """
        asked = json.dumps([words, environment]).encode()
        try:
            self._control.settimeout(timeout_s)
            with contextlib.suppress(ConnectionError):  # answer() says how it ended
                socket.send_fds(self._control, [NUMBER.pack(len(asked))], files)
                self._control.sendall(asked)
            pid = self.answer(timeout_s)
            if pid is None:
                why = ": it is suspended" if is_stopped(self.process.pid) else ""
                raise OSError(f"{self.name()} has not answered for {timeout_s:.0f} s{why}")
            return pid
        except BaseException:
            self.close()
            raise

    def answer(self, timeout_s: float) -> Optional[int]:
        """The next number that it tells; None: not within ``timeout_s``.

        :raises ServerLost: it has ended.
        """
        self._control.settimeout(timeout_s)
        try:
            told = self._control.recv(NUMBER.size)
        except (BlockingIOError, socket.timeout):
            return None
        except ConnectionError:
            told = b""
        if told:
            return int(NUMBER.unpack(told)[0])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_TELL_S)
        stop([self.process])
        end = self._end()
        self.close()
        raise ServerLost(end)

    def close(self) -> None:
        """Ends it, and its worker with it."""
        self.closed = True
        stop([self.process])
        self._control.close()
        self._stderr.close()

    def _end(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()][-1:]
        return ": ".join([f"{self.name()} {describe_exit(self.process.returncode)}", *words])


class ForkedProcess:
    """A worker as subprocess.Popen shows one, which is its server's child."""

    def __init__(self, server: ForkServer, pid: int, stdout: IO[bytes], log: Path):
        self.pid = pid
        self.returncode: Optional[int] = None
        self.stdout = stdout
        self._server = server
        self._log = log

    def poll(self) -> Optional[int]:
        return self._await(0.0)

    def wait(self) -> int:
        """Of one that was killed: a server that does not tell of its end is ended, too."""
        code = self._await(_TELL_S)
        if code is not None:
            return code
        self._server.close()
        return self._lost(f"{self._server.name()} did not tell how its worker ended")

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _await(self, seconds: float) -> Optional[int]:
        if self.returncode is None:
            try:
                self.returncode = self._server.answer(seconds)
            except ServerLost as error:
                return self._lost(str(error))
        return self.returncode

    def _lost(self, why: str) -> int:
        """The kernel kills a worker whose server has ended; its log says why."""
        with open(self._log, "ab") as file:
            file.write(f"{why}\n".encode())
        self.returncode = -signal.SIGKILL
        return self.returncode


class ForkServers:
    """Those of one network, each of which begins when it is first asked for, and again where it ended."""

    def __init__(self) -> None:
        self._servers: Dict[Tuple[str, ...], ForkServer] = {}

    def open(
        self, prefixes: List[List[str]], program: List[str], environment: Dict[str, str]
    ) -> List[ForkServer]:
        """One for each rank; they import at the same time.

        :param prefixes: of every rank's command.
        :param program: 'python -m PACKAGE', whose module fork_server is the server.
        """
        *python, package = program
        found = []
        for rank, prefix in enumerate(prefixes):
            command = [*prefix, *python, f"{package}.fork_server", "--rank", str(rank)]
            key = (environment["OMP_NUM_THREADS"], *command)
            if key not in self._servers or self._servers[key].closed:
                self._servers[key] = ForkServer(rank, command, environment)
            found.append(self._servers[key])
        return found

    def close(self) -> None:
        stop([server.process for server in self._servers.values()])
        for server in self._servers.values():
            server.close()
        self._servers = {}


def fork(
    server: ForkServer, words: List[str], environment: Dict[str, str], log: Path, timeout_s: float
) -> ForkedProcess:
    """A worker with these words behind its program; it appends standard error to ``log``.

    :raises OSError: as ForkServer.fork() does.
    """
    reading, writing = os.pipe()
    stdout = open(reading, "rb")
    try:
        with open(writing, "wb") as pipe, open(log, "ab") as stderr:
            pid = server.fork(words, environment, [pipe.fileno(), stderr.fileno()], timeout_s)
    except BaseException:
        stdout.close()
        raise
    return ForkedProcess(server, pid, stdout, log)
