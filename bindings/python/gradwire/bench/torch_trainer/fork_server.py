"""A process that has imported what a worker needs, and forks the workers of one rank.

To import torch takes seconds of every core; a run of a benchmark may take less. It trains nothing
itself, begins no thread of torch's and touches no GPU, so that every worker begins as a fresh process would.

Over the socket ``--control``, native 64-bit integers: the launcher sends the length of a JSON
document, [words of the worker's command line, its environment], with the file descriptors of the
worker's standard output and error; then the document. Answers: the worker's pid, then how it ended
(its exit code, or minus its signal). One worker at a time; the end of the socket ends the server.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import struct
import sys
from typing import Dict, List, Optional, Tuple

from gradwire.bench.torch_trainer import process

NUMBER = struct.Struct("=q")
# torch._dynamo: DDP imports it when it is made.
_IMPORTED = (
    "gradwire.bench.torch_trainer.loop",
    "gradwire.torch",
    "gradwire.torch.auto",
    "torch._dynamo",
)
_Asked = Tuple[List[str], Dict[str, str], List[int]]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--rank", type=int, required=True, help="whose workers: for lists of processes")
    made.add_argument("--control", type=int, required=True, metavar="FD")
    made.add_argument("--die-with-parent", type=int, required=True, metavar="PID")
    options = made.parse_args()
    process.die_with(options.die_with_parent)
    added = _import()
    server = os.getpid()
    words = _serve(socket.socket(fileno=options.control), added)
    if words is not None:
        from gradwire.bench.torch_trainer import __main__ as worker

        sys.argv = [worker.__file__, *words]
        process.leave(worker.main([*words, "--die-with-parent", str(server)]))


def _import() -> Dict[str, str]:
    """What modules have put into the environment, as they would in a fresh process."""
    before = dict(os.environ)
    for name in _IMPORTED:
        importlib.import_module(name)
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def _serve(control: socket.socket, added: Dict[str, str]) -> Optional[List[str]]:
    """Returns in every worker, with its words, and at the end of the socket."""
    worker = 0
    while (asked := _next(control)) is not None:
        words, environment, files = asked
        if worker:  # the launcher knows how it ended; until then no other process had its pid
            os.waitpid(worker, 0)
        worker = os.fork()
        if worker == 0:
            control.close()
            return _begin(words, {**environment, **added}, files)
        for file in files:
            os.close(file)
        control.sendall(NUMBER.pack(worker))
        control.sendall(NUMBER.pack(_how_it_ends(worker)))
    return None


def _next(control: socket.socket) -> Optional[_Asked]:
    header, files, _, _ = socket.recv_fds(control, NUMBER.size, 2)
    if not header:
        return None
    with control.makefile("rb") as stream:
        words, environment = json.loads(stream.read(NUMBER.unpack(header)[0]))
    return words, environment, files


def _begin(words: List[str], environment: Dict[str, str], files: List[int]) -> List[str]:
    """Makes of a fork what the launcher would have started: session, environment, streams."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    return words


def _how_it_ends(worker: int) -> int:
    """Its exit code, or minus its signal. It is left to be waited for, so that its pid stays its own."""
    ended = os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    assert ended is not None  # only with WNOHANG
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


if __name__ == "__main__":
    main()
