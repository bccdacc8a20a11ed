"""Two machines for tests: network namespaces, each with a hosts file and a host name of its own.

The hosts files are mounted over /etc/hosts for the processes that are started there, and for nobody
else; nothing is named.
"""

import contextlib
import os
import subprocess
import threading
from pathlib import Path

from bench_support import need_namespaces

MACHINES = 2
_TIMEOUT_S = 120
_WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


class Machines:
    """Machine m is called worker<m> and has the address address(m); its hosts file is empty but for
    localhost."""

    def __init__(self, folder):
        need_namespaces()
        from gradwire.bench.netns import Namespaces

        self._network = Namespaces(MACHINES)
        self._files = [Path(folder) / f"hosts{machine}" for machine in range(MACHINES)]
        for machine in range(MACHINES):
            self.know(machine)

    def close(self):
        self._network.close()

    def address(self, machine):
        return self._network.address(machine)

    def know(self, machine, **addresses):
        """The whole hosts file of a machine, by name."""
        lines = ["127.0.0.1 localhost", *(f"{a} {name}" for name, a in addresses.items())]
        self._files[machine].write_text("\n".join(lines) + "\n")

    def learn(self, machine, name, address):
        """One more line, for processes that run as well."""
        with self._files[machine].open("a") as file:
            file.write(f"{address} {name}\n")

    def give_ipv6(self):
        """fd77::<m + 1> to machine m."""
        for machine in range(MACHINES):
            commands = (f"echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6; "
                        f"echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; "
                        f"ip -6 addr replace fd77::{machine + 1}/64 dev eth0 nodad")
            subprocess.run([*self._network.enter(machine), "sh", "-ec", commands], check=True)

    def start(self, machine, words, **variables):
        """A process there, with no variables of a launcher but these."""
        ours = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GRADWIRE_", "SLURM_", "OMPI_", "PMIX_",
                "GLOO_", "NCCL_", "TORCHELASTIC_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return subprocess.Popen(
            [*self._network.enter(machine), "unshare", "--mount", "--propagation", "private", "sh",
             "-c", _WITH_HOSTS, self._files[machine], *map(str, words)],
            env={**kept, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outputs(processes):
    """Exit codes and what each has said; all have ended."""
    try:
        said = [process.communicate(timeout=_TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], said


@contextlib.contextmanager
def after(seconds, what):
    """Calls it that much later, in a thread."""
    timer = threading.Timer(seconds, what)
    timer.start()
    try:
        yield
    finally:
        timer.join()
