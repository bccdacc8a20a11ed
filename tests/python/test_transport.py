"""Transports and the Reducer from Python, over every way to join ranks: in_process as threads, gloo
and torch.distributed as processes."""

import gc
import json
import os
import re
import signal
import time

import numpy as np
import pytest
from rank_processes import in_threads, needs_torch, run_ranks

import gradwire

KINDS = ["gloo", pytest.param("torch", marks=needs_torch)]
gloo_reason = next(r.unavailable_reason for r in gradwire.transports() if r.name == "gloo")


@pytest.fixture(autouse=True)
def usable(request):
    kind = getattr(request.node, "callspec", None) and request.node.callspec.params.get("kind")
    if kind == "gloo" and gloo_reason:
        pytest.skip(gloo_reason)


# ---- bodies: run in a process per rank


def verify(transport):
    transport.verify(largest_bytes=9001, calls_in_flight=1)
    return transport.counters()


def every_verb(transport):
    rank, size = transport.rank, transport.world_size
    parts = transport.all_gather(bytes([rank]) * (rank + 1), capacity=size, what="letters")
    assert [bytes(part) for part in parts] == [bytes([r]) * (r + 1) for r in range(size)]
    gathered = transport.all_gather(np.full(3, rank, np.float32))
    assert [part.view(np.float32).tolist() for part in gathered] == [[r] * 3 for r in range(size)]
    received = transport.all_to_all([b"%d>%d" % (rank, d) for d in range(size)], capacity=8)
    assert [bytes(part) for part in received] == [b"%d>%d" % (s, rank) for s in range(size)]
    values = np.arange(7, dtype=np.float32) + rank
    total = sum(np.arange(7, dtype=np.float32) + r for r in range(size))
    shard = transport.reduce_scatter(values)
    assert shard.tolist() == np.array_split(total, size)[rank].tolist()
    assert transport.all_reduce_sum(values) is values and values.tolist() == total.tolist()
    data = np.full((2, 3), rank, np.int64)
    transport.broadcast(data, root=size - 1)
    assert (data == size - 1).all()
    transport.barrier(what="the end")
    half = transport.split(rank % 2)
    assert half.world_size == len(range(rank % 2, size, 2))
    assert [int(p[0]) for p in half.all_gather(bytes([rank]))] == list(range(rank % 2, size, 2))
    half.close()
    with pytest.raises(gradwire.InvalidArgument, match="capacity: is 1 bytes, must be at least 2"):
        transport.all_gather(b"12", capacity=1)
    with pytest.raises(gradwire.InvalidArgument, match="more than any machine has"):
        transport.all_gather(b"12", capacity=2**63)  # of two ranks 2**64 bytes
    transport.barrier()


def check_last_step(reducer):
    """Its times are those of the trace for Perfetto."""
    last = reducer.last_step()
    spans = [e for e in json.loads(reducer.chrome_trace())["traceEvents"]
             if e["ph"] == "X" and e["args"]["step"] == last["step"]]
    found = {(span["tid"], span["name"]): (span["ts"], span["ts"] + span["dur"]) for span in spans}
    assert found.pop((0, "wait")) == (last["wait_begin_us"], last["wait_end_us"])
    assert found.pop((0, "backward"))
    for number, bucket in enumerate(last["buckets"]):
        name = f"bucket {number}"
        assert found.pop((1, name)) == (bucket["begin_us"], bucket["compressed_us"])
        assert found.pop((2 + bucket["stream"], name)) == (bucket["exchange_us"], bucket["end_us"])
        assert 0 <= bucket["codec_us"]
    assert found == {} and last["buckets"]


def reduce_steps(transport, spec="topk:10%", steps=3):
    shapes = [("first", (70, 30)), ("bias", (30,)), ("last", (30, 11))]
    plan = gradwire.make_plan(shapes, spec, bucket_bytes=4096, seed=5)
    reducer = gradwire.Reducer(plan, transport, trace_steps=2)
    rng = np.random.default_rng(transport.rank)
    out = []
    assert reducer.last_step() == {}
    for _ in range(steps):
        for p in reversed(range(len(shapes))):
            reducer.gradient(p)[...] = rng.normal(size=shapes[p][1])
            reducer.grad_ready(p)
        assert reducer.wait()
        check_last_step(reducer)
        out += [reducer.gradient(p).tobytes() for p in range(len(shapes))]
    own = [None if reducer.residual(p) is None else reducer.residual(p).tobytes() for p in range(3)]
    assert reducer.committed_steps == steps and len(reducer.trace()) == 2
    assert '"traceEvents"' in reducer.chrome_trace()
    return out, own


def reduce_dense(transport):
    return reduce_steps(transport, "fp16")


def disagree_on_sizes(transport):
    transport.all_gather(np.zeros(100 + transport.rank % 2), what="bucket 3")
    transport.barrier()


def disagree_on_verbs(transport):
    if transport.rank == 1:
        transport.barrier(what="the end")
    else:
        transport.all_reduce_sum(np.zeros(5, np.float32), what="bucket 3")
    transport.barrier()


def die(transport):
    transport.barrier()
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    transport.barrier(what="step 5")


def stop(transport):
    transport.barrier()
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    transport.barrier(what="step 5")


def give_up(transport):
    transport.barrier()
    if transport.rank == 1:
        time.sleep(0.1)
        transport.abort("the user pressed stop")
    transport.barrier(what="step 5")


def raise_inside(transport):
    with transport:
        if transport.rank == 1:
            raise KeyError("not ours")
        transport.barrier(what="step 5")


def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def come_and_go(transport):
    counts = []
    for cycle in range(20):
        half = transport.split(0)
        half.barrier()
        half.close()
        transport.barrier()  # a rank that has left may not be missed yet
        counts.append(open_files())
    return counts


def join_and_leave(transport):
    from gradwire.torch import transport as join

    counts = []
    for cycle in range(20):
        with join(timeout=20.0) as other:
            other.barrier()
        transport.barrier()
        counts.append(open_files())
    return counts


# ---- the tests


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_is_verified(kind, world_size, tmp_path):
    for end in run_ranks(kind, world_size, verify, folder=tmp_path):
        counters = end.result()
        assert (counters["bytes_sent"] > 0) == (world_size > 1)


@needs_torch
def test_every_verb_is_verified_through_copies_as_for_a_device(tmp_path):
    for end in run_ranks("torch_staged", 3, verify, folder=tmp_path):
        end.result()


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_take_and_give_arrays(kind, tmp_path):
    for end in run_ranks(kind, 3, every_verb, folder=tmp_path):
        end.result()


def test_verbs_take_and_give_arrays_between_threads():
    for end in in_threads(3, every_verb):
        end.result()


@pytest.mark.parametrize("body", [reduce_steps, reduce_dense])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_the_same_bits_as_between_threads(kind, body, tmp_path):
    expected = [end.result() for end in in_threads(3, body)]
    ends = [end.result() for end in run_ranks(kind, 3, body, folder=tmp_path)]
    assert all(means == expected[0][0] for means, _ in ends), "ranks and transports agree"
    assert [residual for _, residual in ends] == [residual for _, residual in expected]


@pytest.mark.parametrize("body, says", [
    (disagree_on_sizes, "ranks disagree on sizes"),
    (disagree_on_verbs, "ranks disagree on the order of calls")])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_disagree_are_told(kind, body, says, tmp_path):
    ends = run_ranks(kind, 3, body, folder=tmp_path)
    assert {end.error for end in ends} == {"TransportError"}
    assert any(says in end.message for end in ends), [end.message for end in ends]
    assert all("rank " in end.message for end in ends)


@pytest.mark.parametrize("kind", KINDS)
def test_survivors_are_told_who_died_long_before_the_deadline(kind, tmp_path):
    ends = run_ranks(kind, 4, die, folder=tmp_path, timeout=30.0, killed={1})
    for rank in (0, 2, 3):
        assert ends[rank].error == "TransportError", ends[rank]
        # What rank 1 had sent can be lost with it, so that the barrier before fails as well.
        assert re.match("barrier( of step 5)?: .*rank 1 died", ends[rank].message), ends[rank]
        assert ends[rank].peer == 1 and ends[rank].seconds < 10


@needs_torch
def test_a_stopped_rank_is_named_at_the_deadline(tmp_path):
    ends = run_ranks("torch", 3, stop, folder=tmp_path, timeout=1.5, killed={1})
    for rank in (0, 2):
        assert ends[rank].message == "barrier of step 5: rank 1 stayed silent past the deadline"
        assert ends[rank].peer == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_ends_the_calls_of_all(kind, tmp_path):
    ends = run_ranks(kind, 3, give_up, folder=tmp_path)
    assert {end.error for end in ends} == {"TransportError"}
    assert ends[1].message == "the user pressed stop"
    assert all(end.seconds < 10 for end in ends), "nobody waited for the deadline"
    if kind == "torch":
        assert ends[0].message == ("barrier of step 5: rank 1 ended the group: "
                                   "the user pressed stop")


@needs_torch
def test_an_error_inside_with_frees_the_others(tmp_path):
    ends = run_ranks("torch", 3, raise_inside, folder=tmp_path)
    assert ends[1].error == "KeyError"
    for rank in (0, 2):
        assert "rank 1 ended the group: KeyError: 'not ours'" in ends[rank].message


@needs_torch
@pytest.mark.parametrize("body", [come_and_go, join_and_leave])
def test_nothing_is_left_behind(body, tmp_path):
    for end in run_ranks("torch", 2, body, folder=tmp_path):
        counts = end.result()
        assert max(counts[10:]) <= max(counts[:10]), counts


def test_a_closed_transport_says_so():
    transport = gradwire.make_transport("in_process")
    with transport as entered:
        assert entered is transport and not transport.closed
        transport.barrier()
    assert transport.closed and repr(transport) == "<gradwire.Transport in_process, rank 0 of 1>"
    transport.close()
    transport.abort("too late to matter")
    with pytest.raises(gradwire.InvalidArgument, match="has been closed, must be open"):
        transport.barrier()


def test_views_of_gradients_outlive_what_they_came_from():
    transport = gradwire.make_transport("in_process")
    reducer = gradwire.Reducer(gradwire.make_plan([("w", (2, 3)), ("scalar", ())], "none"),
                               transport)
    view, scalar = reducer.gradient(0), reducer.gradient(1)
    assert view.shape == (2, 3) and scalar.shape == () and view.flags.writeable
    view[...] = 7
    transport.close()
    reducer.accumulate(1, np.ones((), np.float32))
    reducer.grad_ready(0), reducer.grad_ready(1)
    assert reducer.wait() and reducer.residual(0) is None
    del reducer, transport
    gc.collect()
    assert (view == 7).all() and scalar[()] == 1


def test_bad_arguments_of_the_reducer_are_named():
    transport = gradwire.make_transport("in_process")
    plan = gradwire.make_plan([("w", (2, 3))])
    assert plan.parameters == ["w"] and plan.buckets == 1 and "topk:1%" in str(plan)
    with pytest.raises(gradwire.InvalidArgument, match="unknown name 'no', known: error, skip"):
        gradwire.Reducer(plan, transport, on_nonfinite="no")
    reducer = gradwire.Reducer(plan, transport)
    with pytest.raises(gradwire.InvalidArgument, match="parameter: is 1, must be below 1"):
        reducer.gradient(1)
    with pytest.raises(gradwire.InvalidArgument, match="values: has 5 elements, must have 6"):
        reducer.accumulate(0, np.zeros(5, np.float32))
    reducer.gradient(0)[...] = np.nan
    reducer.grad_ready(0)
    with pytest.raises(gradwire.NonFiniteGradient, match="rank 0"):
        reducer.wait()
    assert reducer.committed_steps == 0


class Alone:
    """A carrier of one rank, which keeps the memory it was lent."""

    rank, world_size, closed = 0, 1, False

    def __init__(self):
        self.lent = None

    def all_gather(self, mine, all):
        all[:] = mine

    def all_to_all(self, send, send_lengths, receive, receive_lengths):
        assert send_lengths == receive_lengths
        receive[:] = send
        self.lent = send

    def broadcast(self, data, root):
        pass

    def split(self, groups):
        return Alone()

    def interrupt(self):
        pass

    def close(self):
        self.closed = True


def test_any_object_with_the_methods_carries():
    carrier = Alone()
    with gradwire.make_carrier_transport("mine", carrier) as transport:
        transport.verify(largest_bytes=5000)
        assert transport.name == "mine"
    assert carrier.closed
    with pytest.raises(ValueError, match="released memoryview"):
        bytes(carrier.lent)  # lent for the length of a call


class Asking(Alone):
    """A carrier that calls the transport it carries."""

    transport = None

    def all_to_all(self, send, send_lengths, receive, receive_lengths):
        if self.transport:
            self.transport.barrier()


def test_a_carrier_that_calls_its_own_transport_is_refused_and_not_stuck():
    carrier = Asking()
    carrier.transport = transport = gradwire.make_carrier_transport("asking", carrier)
    with pytest.raises(gradwire.TransportError, match="a callback called an object that another"):
        transport.all_to_all([b"1"])
    transport.close()


def test_a_transport_joins_by_the_environment(monkeypatch):
    monkeypatch.setenv("GRADWIRE_RANK", "2")
    monkeypatch.setenv("GRADWIRE_WORLD_SIZE", "4")
    monkeypatch.setenv("GRADWIRE_STORE", "file:/tmp/x")
    found = gradwire.from_environment()
    assert (found["rank"], found["world_size"], found["store"]) == (2, 4, "file:/tmp/x")
    monkeypatch.setenv("GRADWIRE_RANK", "four")
    with pytest.raises(gradwire.InvalidArgument, match="GRADWIRE_RANK is 'four'"):
        gradwire.from_environment()


def test_torch_is_not_imported_by_gradwire():
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", "import gradwire, sys; assert 'torch' not in sys.modules"],
                   check=True, timeout=60)
