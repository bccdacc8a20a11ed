"""Strangers that call at every port a process opens while its groups form: the groups form."""

import contextlib
import itertools
import os
import re
import socket
import threading

import gradwire

RANKS = 3
_CALLS, _MOST_FORMATIONS = 12, 300  # a group listens for a few milliseconds
_SAY = (b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), None)  # None: hangs up at once


def own_ports():
    """Ports of the loopback at which this process listens."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed in the meantime
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}"))
            inodes.update(found.groups() if found else ())
    with open("/proc/self/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


class Scanner(threading.Thread):
    """Calls once at each port that it finds; some of its connections stay open."""

    def __init__(self):
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._open = []
        self.called = 0

    def run(self):
        say, known = itertools.cycle(_SAY), set()
        while not self._over.is_set():
            ports = own_ports()
            for port in ports - known:
                with contextlib.suppress(OSError):  # closed in the meantime
                    visitor = socket.create_connection(("127.0.0.1", port), timeout=5)
                    self.called += 1
                    words = next(say)
                    if words is None:
                        visitor.close()
                        continue
                    self._open.append(visitor)
                    visitor.sendall(words)
            known = ports

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()
        for visitor in self._open:
            visitor.close()


def form_and_reduce(folder):
    """What went wrong on each rank of a group of threads, if anything."""
    errors = [None] * RANKS

    def run(rank):
        try:
            with gradwire.make_transport("gloo", rank=rank, world_size=RANKS, interface="lo",
                                         store=f"file:{folder}", timeout=5.0) as transport:
                assert len(transport.all_gather(bytes([rank]))) == RANKS
        except Exception as error:
            errors[rank] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_a_group_forms_although_strangers_call_at_its_ports(tmp_path):
    with Scanner() as scanner:
        for formation in range(_MOST_FORMATIONS):
            assert form_and_reduce(tmp_path / str(formation)) == [None] * RANKS, formation
            if scanner.called >= _CALLS:
                return
    raise AssertionError(f"strangers found {scanner.called} ports, expected {_CALLS} at least")
