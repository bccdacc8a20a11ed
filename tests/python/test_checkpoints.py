"""What a Reducer saves and takes over from Python, and how it goes on after a rank was killed."""

import errno
import io
import os
import signal
import struct

import numpy as np
import pytest
from rank_processes import in_threads, run_ranks
from reducer_case import (
    DTYPE,
    SHAPES,
    TopK,
    assert_same,
    gradients,
    hand_over,
    plan_of,
    residuals,
    take_steps,
)

import gradwire

gloo_reason = next(r.unavailable_reason for r in gradwire.transports() if r.name == "gloo")


def saved(reducer):
    out = io.BytesIO()
    reducer.save(out)
    return out.getvalue()


def files_after(ranks, steps, plan=None, folder=None):
    """Runs the steps on each of `ranks`; what each saved."""
    def body(transport):
        reducer = gradwire.Reducer(plan or plan_of(), transport)
        take_steps(reducer, transport.rank, 0, steps)
        if folder is not None:
            reducer.save(folder / str(transport.rank))
        return saved(reducer)

    return [end.result() for end in in_threads(ranks, body)]


@pytest.mark.parametrize("before, after", [(4, 2), (2, 3), (3, 1)])
def test_a_checkpoint_moves_to_another_number_of_ranks(before, after, tmp_path):
    files = files_after(before, 4, folder=tmp_path)
    assert sorted(os.listdir(tmp_path)) == [str(r) for r in range(before)]
    asked = []

    def body(transport):
        reducer = gradwire.Reducer(plan_of(), transport)
        take_steps(reducer, transport.rank, 50, 52)  # another life, of which nothing may be left
        view = reducer.gradient(0)

        def open_of(rank):
            asked.append((transport.rank, rank))
            if rank >= before:
                return [None, tmp_path / "of nobody"][transport.rank % 2]
            return [tmp_path / str(rank), files[rank], io.BytesIO(files[rank])][rank % 3]

        reducer.load(open_of)
        assert reducer.committed_steps == 4
        kept = residuals(reducer)
        hand_over(reducer, gradients(transport.rank, 4))
        assert reducer.wait()
        return kept, view.copy()  # the same memory as before

    expected = TopK(before, plan_of())
    expected.steps(0, 4)
    expected.rescale(after)
    kept = [[e.copy() for e in own] for own in expected.residuals]
    mean = expected.steps(4, 5)
    for rank, end in enumerate(in_threads(after, body)):
        assert_same(end.result()[0], kept[rank])
        np.testing.assert_array_equal(end.result()[1], mean[0])
    needed = {(j, i) for j in range(after) for i in range(j, before, after)}
    assert needed <= set(asked) <= needed | {(j, r) for j in range(after) for r in (0, j)}


@pytest.mark.parametrize("spec", ["int4,stochastic", "threshold:5%"])
def test_the_same_ranks_continue_bit_for_bit(spec):
    plan = plan_of(spec)
    files = files_after(2, 3, plan)

    def body(transport):
        straight = gradwire.Reducer(plan, transport)
        expected = take_steps(straight, transport.rank, 0, 9), saved(straight)
        del straight
        reducer = gradwire.Reducer(plan, transport)
        reducer.load(files.__getitem__)
        assert saved(reducer) == files[transport.rank]
        found = take_steps(reducer, transport.rank, 3, 9), saved(reducer)
        assert_same(found[0], expected[0])
        assert found[1] == expected[1]

    for end in in_threads(2, body):
        end.result()


def test_the_bytes_are_those_of_the_format():
    file = io.BytesIO(files_after(2, 3)[1])
    magic, version, rank, world_size, committed, skipped = struct.unpack("<4sIIIQQ", file.read(32))
    assert (magic, version, rank, world_size, committed, skipped) == (b"GWCK", 2, 1, 2, 3, 0)
    _, fingerprint, parameters, buckets, _ = struct.unpack("<QQIIQ", file.read(32))
    assert fingerprint == plan_of().fingerprint and (parameters, buckets) == (len(SHAPES), 3)
    expected = TopK(2, plan_of())
    expected.steps(0, 3)
    for e in expected.residuals[1]:
        assert struct.unpack("<QQ", file.read(16)) == (e.size, e.size)
        np.testing.assert_array_equal(np.frombuffer(file.read(4 * e.size), "<f4"), e.ravel())
        assert struct.unpack("<Q", file.read(8)) == (0,)  # no velocity
    for _ in range(buckets):
        groups, words = struct.unpack("<IQ", file.read(12))
        assert (groups, words) == (1, 0)
        assert struct.unpack("<Q", file.read(8)) == (0,)
    body = file.getvalue()[:-8]
    checksum = 0xCBF29CE484222325
    for byte in body:
        checksum = (checksum ^ byte) * 0x100000001B3 % 2**64
    assert file.read() == struct.pack("<Q", checksum)


class Opaque(Exception):
    """Something of the caller's own."""


def fail(*_):
    raise Opaque("no such day")


@pytest.mark.parametrize("of_rank_1, error, says", [
    (lambda file, _: file[:-1], gradwire.InvalidArgument, "more bytes were expected"),
    (lambda file, _: file[:200] + b"?" + file[201:], gradwire.InvalidArgument, "fit their checksum"),
    (lambda file, _: file + b"x", gradwire.InvalidArgument, "bytes follow its end"),
    (lambda file, _: None, gradwire.InvalidArgument, "checkpoint of rank 1: there is none"),
    (lambda file, _: "/no/such/file", gradwire.InvalidArgument, "rank 1: there is none"),
    (lambda file, _: 5, gradwire.InvalidArgument, "open: returned a int, must be a path"),
    (lambda file, _: io.StringIO("text"), gradwire.InvalidArgument, "returned a str, expected byt"),
    (lambda file, reducer: reducer.plan, gradwire.InvalidArgument, "a callback called an object"),
    (lambda file, reducer: saved(reducer), gradwire.InvalidArgument, "a callback called an object"),
    (fail, Opaque, "no such day"),
])
def test_a_checkpoint_that_one_rank_cannot_take_changes_nothing_on_any(of_rank_1, error, says):
    files = files_after(2, 3)

    def body(transport):
        reducer = gradwire.Reducer(plan_of(), transport)
        take_steps(reducer, transport.rank, 10, 12)
        before = saved(reducer)
        if transport.rank == 1:
            with pytest.raises(error, match=says):
                reducer.load(lambda r: of_rank_1(files[r], reducer) if r == 1 else files[r])
        else:
            with pytest.raises(gradwire.InvalidArgument, match="rank 1's checkpoint differs"):
                reducer.load(files.__getitem__)
        assert saved(reducer) == before and reducer.committed_steps == 2
        reducer.load(files.__getitem__)
        assert saved(reducer) == files[transport.rank]
        return take_steps(reducer, transport.rank, 3, 4)

    expected = TopK(2, plan_of()).steps(0, 4)
    for end in in_threads(2, body):
        assert_same(end.result(), expected)


class Taker:
    """Takes a little at a time, and fails once it is full."""

    def __init__(self, most=1 << 30, answer=None):
        self.data, self.most, self.answer = b"", most, answer

    def write(self, data):
        if len(self.data) >= self.most:
            raise OSError(errno.ENOSPC, "full")
        took = min(1000, self.most - len(self.data), len(data))
        self.data += data[:took]
        return took if self.answer is None else self.answer


def test_what_a_file_does_not_take_is_told_and_the_old_one_stays(tmp_path, monkeypatch):
    reducer = gradwire.Reducer(plan_of(), gradwire.make_transport("in_process"))
    take_steps(reducer, 0, 0, 1)
    path = tmp_path / "0"
    reducer.save(str(path))
    old = path.read_bytes()
    take_steps(reducer, 0, 1, 2)
    new = saved(reducer)
    taker = Taker()
    reducer.save(taker)
    assert taker.data == new != old
    with pytest.raises(OSError, match="full"):
        reducer.save(Taker(most=2500))
    for answer, says in [("all", "returned a str"), (10**6, "took 1000000 of"), (0, "took 0 of")]:
        with pytest.raises(gradwire.InvalidArgument, match=says):
            reducer.save(Taker(answer=answer))
    monkeypatch.setattr(os, "fsync", lambda _: fail())
    with pytest.raises(Opaque):
        reducer.save(path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["0"]
    monkeypatch.undo()
    reducer.save(path)
    assert path.read_bytes() == new and os.listdir(tmp_path) == ["0"]
    with pytest.raises(FileNotFoundError):
        reducer.save(tmp_path / "no" / "folder")

    class Asks:
        def write(self, data):
            return reducer.committed_steps

    with pytest.raises(gradwire.InvalidArgument, match="a callback called an object"):
        reducer.save(Asks())
    assert saved(reducer) == new


# ---- a rank is killed: a process per rank over Gloo


VICTIM, LAST = 1, 3  # dies in this step


def lose_a_rank(transport):
    reducer, rank = gradwire.Reducer(plan_of(), transport), transport.rank
    take_steps(reducer, rank, 0, LAST)
    view = reducer.gradient(0)
    with pytest.raises(gradwire.InvalidArgument, match="has been closed"):
        closed = gradwire.make_transport("in_process")
        closed.close()
        reducer.rebuild(closed)
    transport.barrier()
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(gradwire.TransportError, match=f"rank {VICTIM}"):
        hand_over(reducer, gradients(rank, LAST))
        reducer.wait()
    with pytest.raises(gradwire.TransportError, match=f"rank {VICTIM}"):
        reducer.wait()
    survivors = transport.rebuild()
    assert survivors.old_ranks == [0, 2, 3]
    rebuilt = reducer.rebuild(survivors)
    transport.close()
    assert (rebuilt.committed_steps, rebuilt.source, rebuilt.behind) == (LAST, None, False)
    assert repr(rebuilt) == f"<gradwire.Rebuilt, {LAST} committed steps, source None>"
    kept = residuals(reducer)
    mean = take_steps(reducer, rank, LAST, LAST + 3)
    np.testing.assert_array_equal(view, mean[0])
    after = residuals(reducer)
    del reducer
    survivors.close()
    return kept, mean, after


@pytest.mark.skipif(bool(gloo_reason), reason=gloo_reason or "-")
def test_those_that_are_left_go_on_after_one_of_four_was_killed(tmp_path):
    ends = run_ranks("gloo", 4, lose_a_rank, folder=tmp_path, killed={VICTIM})
    left = [0, 2, 3]
    expected = TopK(4, plan_of())
    expected.steps(0, LAST)
    expected.residuals = [[(e.astype(np.float64) * 3 / 4).astype(DTYPE)
                           for e in expected.residuals[r]] for r in left]
    kept = [[e.copy() for e in own] for own in expected.residuals]
    mean = expected.steps(LAST, LAST + 3, ranks=left)
    for place, rank in enumerate(left):
        found = ends[rank].result()
        assert_same(found[0], kept[place])
        assert_same(found[1], mean)
        assert_same(found[2], expected.residuals[place])
