"""Ranks on two machines whose names do not mean the same on both, as hosts files and launchers leave
them; on network namespaces."""

import re
import sys
from pathlib import Path

import pytest
from machines import MACHINES, Machines, after, outputs

from gradwire import paths

_TRAINER = Path(__file__).parent / "machines_trainer.py"
_LATER_S = 3


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    machines = Machines(tmp_path_factory.mktemp("hosts"))
    yield machines
    machines.close()


@pytest.fixture
def machines(network):
    """As Debian writes /etc/hosts: a machine's own name is 127.0.1.1 to itself."""
    for machine in range(MACHINES):
        network.know(machine, **{
            f"worker{other}": "127.0.1.1" if other == machine else network.address(other)
            for other in range(MACHINES)})
    return network


def expect_all_ok(ends, ranks=MACHINES):
    codes, said = ends
    everything = "".join(said)
    found = re.findall(rf"^gloo: rank (\d+) of {ranks} on worker\d: OK, ", everything, re.MULTILINE)
    assert (codes, sorted(map(int, found))) == ([0] * MACHINES, list(range(ranks))), everything


def expect_trained(ends, ranks=MACHINES):
    codes, said = ends
    everything = "".join(said)
    found = re.findall(rf"^rank (\d+) of {ranks} has trained$", everything, re.MULTILINE)
    assert (codes, sorted(map(int, found))) == ([0] * MACHINES, list(range(ranks))), everything


def of_rank(rank, variables):
    """Each is a value for all ranks, or a function of the rank."""
    return {name: value(rank) if callable(value) else value for name, value in variables.items()}


def check(machines, **variables):
    """`gradwire check` on each machine."""
    return outputs([
        machines.start(rank, [paths.checker(), "--timeout", 20], **of_rank(rank, variables))
        for rank in range(MACHINES)])


def check_by_hand(machines, store, **variables):
    return check(machines, GRADWIRE_RANK=lambda rank: rank, GRADWIRE_WORLD_SIZE=MACHINES,
                 GRADWIRE_STORE=store, **variables)


def torchrun(machines, port, per_machine, *command, **variables):
    return outputs([
        machines.start(rank, [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", MACHINES,
            "--nproc-per-node", per_machine, "--node-rank", rank, "--master-addr", "worker0",
            "--master-port", port, *command], **variables)
        for rank in range(MACHINES)])


def train(machines, *arguments, **variables):
    return outputs([
        machines.start(rank, [sys.executable, _TRAINER, *arguments], RANK=rank, WORLD_SIZE=MACHINES,
                       **of_rank(rank, variables))
        for rank in range(MACHINES)])


# ---- gradwire check


def test_a_machine_whose_own_name_is_a_loopback_address_serves_the_store(machines):
    expect_all_ok(check_by_hand(machines, "tcp:worker0:29400"))


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_launcher_may_give_rank_0_a_loopback_address(machines, name):
    expect_all_ok(check(machines, RANK=lambda rank: rank, WORLD_SIZE=MACHINES, LOCAL_RANK=0,
                        LOCAL_WORLD_SIZE=1, MASTER_PORT=29410,
                        MASTER_ADDR=lambda rank: "worker0" if rank else name))


def test_a_name_that_appears_later_is_waited_for(machines):
    machines.know(1, worker1="127.0.1.1")
    with after(_LATER_S, lambda: machines.learn(1, "worker0", machines.address(0))):
        expect_all_ok(check_by_hand(machines, "tcp:worker0:29420"))


def test_a_name_that_never_appears_is_named_at_the_deadline(machines):
    machines.know(1, worker1="127.0.1.1")
    process = machines.start(1, [paths.checker(), "--timeout", 2], GRADWIRE_RANK=1,
                             GRADWIRE_WORLD_SIZE=MACHINES, GRADWIRE_STORE="tcp:worker0:29421")
    codes, said = outputs([process])
    assert codes == [1]
    assert re.search(r"rank 0 did not answer at worker0:29421 within 2 s \(the timeout: --timeout .*\): "
                     "(Temporary failure in name|Name or)", said[0]), said


def test_names_that_stand_for_addresses_of_ipv6(network):
    network.give_ipv6()
    network.know(0, worker0="::1", worker1="fd77::2")
    network.know(1, worker0="fd77::1", worker1="::1")
    expect_all_ok(check_by_hand(network, "tcp:worker0:29430"))
    expect_all_ok(check_by_hand(network, "tcp:[fd77::1]:29431"))


def test_of_two_addresses_of_a_name_the_one_that_answers_is_taken(network):
    network.give_ipv6()
    network.know(0, worker0="127.0.1.1")
    network.know(1, worker0=network.address(0))
    network.learn(1, "worker0", "fd77::99")  # nobody's
    expect_all_ok(check_by_hand(network, "tcp:worker0:29440"))


@pytest.mark.parametrize("variable, value", [
    ("GRADWIRE_INTERFACE", "eth0"), ("GLOO_SOCKET_IFNAME", "eth7,eth0"),
    ("NCCL_SOCKET_IFNAME", "^docker,lo"), ("NCCL_SOCKET_IFNAME", "=eth0"), ("NCCL_SOCKET_IFNAME", "et")])
def test_ranks_that_share_a_folder_take_the_interface_that_is_named(machines, tmp_path, variable, value):
    expect_all_ok(check_by_hand(machines, f"file:{tmp_path}/store", **{variable: value}))


def test_ranks_that_share_a_folder_need_name_no_interface(machines, tmp_path):
    expect_all_ok(check_by_hand(machines, f"file:{tmp_path}/store"))


# ---- under torch


def test_torchrun_with_the_name_of_the_first_machine(machines):
    pytest.importorskip("torch", reason="torch is not installed")
    expect_all_ok(torchrun(machines, 29500, 2, "--no-python", paths.checker(), "--timeout", 20), ranks=4)


def test_register_under_torchrun(machines):
    pytest.importorskip("torch", reason="torch is not installed")
    expect_trained(torchrun(machines, 29510, 2, _TRAINER, "env", "auto", "eth0"), ranks=4)


@pytest.mark.parametrize("carrier", ["gloo", "torch"])
def test_register_by_an_init_method(machines, carrier):
    pytest.importorskip("torch", reason="torch is not installed")
    port = {"gloo": 29520, "torch": 29521}[carrier]
    expect_trained(train(machines, f"tcp://{machines.address(0)}:{port}", carrier, "",
                         GLOO_SOCKET_IFNAME="eth0"))


def test_register_by_an_init_method_with_a_name_and_no_interface_named(machines):
    pytest.importorskip("torch", reason="torch is not installed")
    expect_trained(train(machines, "tcp://worker0:29530", "gloo", "eth0"))


def test_register_where_a_launcher_gives_rank_0_localhost(machines):
    pytest.importorskip("torch", reason="torch is not installed")
    expect_trained(train(machines, "env", "gloo", "eth0", MASTER_PORT=29540,
                         MASTER_ADDR=lambda rank: "worker0" if rank else "localhost"))


def test_register_of_ranks_that_share_a_folder(machines, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    expect_trained(train(machines, f"file://{tmp_path}/torch", "gloo", "eth0"))


def test_an_interface_that_one_machine_has_not_is_named_to_all(machines):
    pytest.importorskip("torch", reason="torch is not installed")
    codes, said = train(machines, f"tcp://{machines.address(0)}:29550", "gloo", "eth0",
                        GRADWIRE_INTERFACE=lambda rank: "eth9" if rank else "eth0")
    assert all(codes), said
    for one in said:
        assert "meeting: rank 1: address: interface 'eth9' has no address here, known: lo, eth0" in one
