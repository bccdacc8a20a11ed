"""The commands of docs/cluster.md, with network namespaces in the place of machines."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench_support import need_namespaces

from gradwire import paths

_HOSTS = 3
_TIMEOUT_S = 60

# What mpirun uses instead of ssh: `agent [options] HOST COMMAND...`.
_AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
host=$1; shift
case $host in
{cases}
  *) echo "no such host: $host" >&2; exit 1 ;;
esac
exec nsenter -t "$pid" -n -u -- sh -c "$*"
"""


@pytest.fixture(scope="module")
def hosts():
    need_namespaces()
    from gradwire.bench.netns import Namespaces

    network = Namespaces(_HOSTS)
    yield network
    network.close()


def _environment(**variables):
    ours = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GRADWIRE_", "SLURM_", "OMPI_", "PMIX_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return {**kept, **{k: str(v) for k, v in variables.items()}}


def _on_every_host(network, command, variables_of):
    """Runs the command (a list, or a list made for each rank) once per host; returns exit codes and
    all output."""
    command_of = command if callable(command) else lambda rank: command
    processes = [
        subprocess.Popen(
            [*network.enter(rank), *map(str, command_of(rank))],
            env=_environment(**variables_of(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(_HOSTS)
    ]
    try:
        outputs = [process.communicate(timeout=_TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], "".join(outputs)


def _expect_all_ok(transport, output, ranks=_HOSTS):
    found = re.findall(
        rf"^{transport}: rank (\d+) of {ranks} on \S+: OK, shift of 8 bytes \d+ us, "
        r"of 4 MiB \d+ Mbit/s$",
        output,
        re.MULTILINE,
    )
    assert sorted(map(int, found)) == list(range(ranks)), output


def _check(*arguments):
    return [paths.checker(), "--timeout", 20, *arguments]


def test_variables_set_by_hand(hosts):
    codes, output = _on_every_host(
        hosts,
        _check("--transport", "gloo"),
        lambda rank: {
            "GRADWIRE_RANK": rank,
            "GRADWIRE_WORLD_SIZE": _HOSTS,
            "GRADWIRE_STORE": f"tcp:{hosts.address(0)}:29400",
            "GRADWIRE_JOB_SECRET": "of this job alone",
        },
    )
    assert codes == [0] * _HOSTS, output
    _expect_all_ok("gloo", output)


def test_srun_by_its_variables(hosts):
    codes, output = _on_every_host(
        hosts,
        _check("--transport", "gloo"),
        lambda rank: {
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": _HOSTS,
            "SLURM_LOCALID": 0,
            "SLURM_NODEID": rank,
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{_HOSTS})",
            "SLURM_STEP_NODELIST": ",".join(hosts.address(r) for r in range(_HOSTS)),
            "SLURM_JOB_ID": 4711,
            "SLURM_STEP_ID": 0,
        },
    )
    assert codes == [0] * _HOSTS, output
    _expect_all_ok("gloo", output)


def test_a_secret_that_differs_is_refused(hosts):
    codes, output = _on_every_host(
        hosts,
        [paths.checker(), "--timeout", 3],
        lambda rank: {
            "GRADWIRE_RANK": rank,
            "GRADWIRE_WORLD_SIZE": _HOSTS,
            "GRADWIRE_STORE": f"tcp:{hosts.address(0)}:29401",
            "GRADWIRE_JOB_SECRET": f"of rank {rank}" if rank == 1 else "of this job alone",
        },
    )
    assert codes == [1] * _HOSTS, output
    assert "FAILED" in output and "rank 1" in output


def test_mpirun(hosts, tmp_path):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    if paths.plugin("mpi") is None:
        pytest.skip("this build has no MPI plug-in")
    cases = "\n".join(
        f"  worker{rank}) pid={pid} ;;" for rank, pid in enumerate(hosts.pids()[1:])
    )
    agent = Path(tmp_path) / "agent"
    agent.write_text(_AGENT.format(cases=cases))
    agent.chmod(0o755)
    names = ",".join(f"worker{rank}" for rank in range(_HOSTS))
    command = (
        f"mpirun --allow-run-as-root --timeout {_TIMEOUT_S} --mca plm rsh "
        f"--mca plm_rsh_agent {agent} --host {names} --mca pml ob1 --mca btl self,tcp "
        "--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0"
    ).split()
    done = subprocess.run(
        [*hosts.enter(0), *command, *map(str, _check("--transport", "mpi"))],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=2 * _TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _expect_all_ok("mpi", done.stdout)


def test_torchrun(hosts):
    pytest.importorskip("torch", reason="torch is not installed")
    codes, output = _on_every_host(
        hosts,
        lambda rank: [
            *(sys.executable, "-m", "torch.distributed.run", "--no-python"),
            *("--nnodes", _HOSTS, "--nproc-per-node", 1, "--node-rank", rank),
            *("--master-addr", hosts.address(0), "--master-port", 29500),
            *_check("--transport", "gloo"),
        ],
        lambda rank: {},
    )
    assert codes == [0] * _HOSTS, output
    _expect_all_ok("gloo", output)


def test_one_command_starts_it_here():
    done = subprocess.run(
        [sys.executable, "-c", "from gradwire.cli import main; main()", "check", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.startswith("Usage: gradwire-check"), done.stderr
