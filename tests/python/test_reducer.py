"""The Reducer from Python beyond a plain step: plans that change, several passes, unused parameters,
whole buckets, payloads. Expectations are computed in NumPy."""

import contextlib
import gc
import subprocess
import sys

import numpy as np
import pytest
from rank_processes import in_threads
from reducer_case import (
    DENSITY,
    SHAPES,
    SPEC,
    TopK,
    assert_same,
    gradients,
    hand_over,
    means,
    plan_of,
    residuals,
    split,
    take_steps,
)

import gradwire

IDS = range(len(SHAPES))


def alone(plan=None, **options):
    return gradwire.Reducer(plan or plan_of(), gradwire.make_transport("in_process"), **options)


def results(ends):
    return [end.result() for end in ends]


def test_a_new_plan_takes_the_residuals_along():
    before, after = plan_of(), plan_of("topk:20%", bucket_bytes=1 << 20)
    assert (before.buckets, after.buckets) == (3, 1)

    def body(transport):
        reducer = gradwire.Reducer(before, transport)
        first = take_steps(reducer, transport.rank, 0, 3)
        reducer.set_plan(after)
        assert reducer.plan.fingerprint == after.fingerprint
        kept = residuals(reducer)
        return first, kept, take_steps(reducer, transport.rank, 3, 5), residuals(reducer)

    expected = TopK(3, before)
    first = expected.steps(0, 3)
    kept = [[e.copy() for e in own] for own in expected.residuals]
    expected.plan, expected.density = after, 0.2
    last = expected.steps(3, 5)
    for rank, found in enumerate(results(in_threads(3, body))):
        assert_same(found[0], first)
        assert_same(found[1], kept[rank])
        assert_same(found[2], last)
        assert_same(found[3], expected.residuals[rank])


def test_a_measured_plan_merges_what_is_cheap_to_merge():
    dear_starts = gradwire.LinkCosts(alpha_s=1.0, beta_s_per_byte=0.0)

    def body(transport):
        costs = gradwire.probe_link(transport, most_bytes=4096)
        assert costs.alpha_s >= 0 and costs.beta_s_per_byte >= 0
        reducer = gradwire.Reducer(plan_of(), transport, streams=2)
        take_steps(reducer, transport.rank, 0, 2)
        timings = {t["parameter"]: t for t in reducer.gradient_timings()}
        assert sorted(timings) == list(IDS) and timings[IDS[-1]]["ready_s"] == 0
        assert [timings[p]["bytes"] for p in IDS] == [4 * int(np.prod(s)) for _, s in SHAPES]
        assert [timings[p]["ready_s"] for p in IDS] == sorted(
            (t["ready_s"] for t in timings.values()), reverse=True)
        reducer.replan(SPEC, exempt_1d="never", link=dear_starts)
        one = reducer.plan
        take_steps(reducer, transport.rank, 2, 3)
        reducer.replan(SPEC, exempt_1d="never", link=dear_starts, most_bytes=4100)
        two = reducer.plan
        return one, two, take_steps(reducer, transport.rank, 3, 4), residuals(reducer)

    found = results(in_threads(3, body))
    one, two = found[0][:2]
    assert one.buckets == 1 and two.buckets > 1
    assert {f[1].fingerprint for f in found} == {two.fingerprint}
    for bucket in two.layout:
        members = [p for group in bucket["groups"] for p in group["parameters"]]
        assert 4 * bucket["numel"] <= 4100 or len(members) == 1
    expected = TopK(3, plan_of())
    expected.steps(0, 2)
    expected.plan = one
    expected.steps(2, 3)
    expected.plan = two
    last = expected.steps(3, 4)
    for rank, (_, _, mean, kept) in enumerate(found):
        assert_same(mean, last)
        assert_same(kept, expected.residuals[rank])


def test_a_plan_takes_buckets_and_says_its_layout():
    plan = gradwire.make_plan(SHAPES, "int8", buckets=[[4, 0], [2, 1, 3]],
                              exchanges=["gather", "two_shot"])
    assert [b["exchange"] for b in plan.layout] == ["gather", "two_shot"]
    exempt, others = plan.layout[1]["groups"]
    assert exempt == {"spec": "bf16", "offset": 0, "numel": 34, "parameters": [2, 3]}
    assert others["parameters"] == [1] and others["offset"] == 34 and others["numel"] == 660
    assert plan.layout[0]["numel"] == 1231 and plan.layout[0]["groups"][0]["parameters"] == [4, 0]
    with pytest.raises(gradwire.InvalidArgument, match="parameter 3 is in no bucket"):
        gradwire.make_plan(SHAPES, "int8", buckets=[[4, 0], [2, 1]])
    with pytest.raises(gradwire.InvalidArgument, match="buckets: is empty"):
        gradwire.make_plan(SHAPES, buckets=[])
    with pytest.raises(gradwire.InvalidArgument, match="1-D parameters beside 'topk:1%'.*'scalar'"):
        gradwire.make_plan(SHAPES, exchange="gtopk", dtype="float16")


def test_rules_give_parameters_specs_of_their_own():
    shapes = [("embed.weight", (50, 8)), ("head.weight", (8, 6)), ("head.bias", (6,))]
    plan = gradwire.make_plan(shapes, "int8", rules=[
        {"spec": "topk:1%,decay=0.95", "name": "embed.*"}, {"spec": "none", "least_ndim": 2}])
    groups = plan.layout[0]["groups"]
    assert [(g["spec"], g["parameters"]) for g in groups] == [
        ("bf16", [2]), ("topk:1%,decay=0.95", [0]), ("none", [1])]
    assert "residuals (two buffers) 3200 bytes of float32 and 0 bytes of bfloat16" in plan.describe()
    for rule, says in [({"name": "*"}, "rules\\[0\\]: has no 'spec'"),
                       ({"spec": "int8", "ndim": 2}, "unknown name 'ndim', known: spec, name, least_ndim"),
                       ({"spec": "int8", "least_ndim": -1}, "\\['least_ndim'\\]: is -1, must be an integer"),
                       ({"spec": 8}, "\\['spec'\\]: is 8, must be a string")]:
        with pytest.raises(gradwire.InvalidArgument, match=says):
            gradwire.make_plan(shapes, rules=[rule])


def test_residuals_in_memory_of_the_host_are_the_cpus_own():
    plan = plan_of(residual_memory="host")
    assert "residuals (two buffers in memory of the host) " in plan.describe()
    assert plan.fingerprint == plan_of().fingerprint
    reducer, usual = alone(plan), alone()
    assert_same(take_steps(reducer, 0, 0, 3), take_steps(usual, 0, 0, 3))
    assert_same(residuals(reducer), residuals(usual))
    reducer.replan(SPEC)
    assert "in memory of the host" in reducer.plan.describe()
    with pytest.raises(gradwire.InvalidArgument, match="unknown name 'gpu', known: device, host"):
        plan_of(residual_memory="gpu")


def test_a_plan_whose_arrays_are_in_use_stays():
    reducer = alone()
    row = reducer.gradient(0)[1:2]  # a view of a view
    for change in (lambda: reducer.set_plan(plan_of(bucket_bytes=64)),
                   lambda: reducer.replan(SPEC)):
        with pytest.raises(gradwire.InvalidArgument, match="1 arrays of gradient.. are in use"):
            change()
    assert reducer.plan.fingerprint == plan_of().fingerprint
    row[...] = 7
    assert (reducer.gradient(0)[1] == 7).all()
    del row
    gc.collect()
    reducer.set_plan(plan_of(bucket_bytes=64))
    assert reducer.plan.buckets == len(SHAPES)
    take_steps(reducer, 0, 0, 1)


def test_gradients_of_several_passes_are_exchanged_once():
    plan = plan_of("none")

    def body(transport):
        reducer, rank = gradwire.Reducer(plan, transport), transport.rank
        for p in IDS:
            reducer.gradient(p)[...] = 0
        scopes = [reducer.no_sync(), reducer.no_sync()]  # kept: leaving them is what counts
        for step, scope in enumerate([*scopes, contextlib.nullcontext()]):
            with scope:
                for p in IDS:
                    reducer.gradient(p)[...] += gradients(rank, step)[p]
                    reducer.grad_ready(p)
                if step < 2:
                    with pytest.raises(gradwire.InvalidArgument, match="wait: a NoSync lives"):
                        reducer.wait()
        assert reducer.wait() and reducer.committed_steps == 1
        in_place = means(reducer)
        for step in range(3):
            for p in IDS:
                reducer.accumulate(p, gradients(rank, step)[p])
        with pytest.raises(gradwire.InvalidArgument, match="save: step 1 has begun"):
            reducer.save(_NoFile())
        for p in IDS:
            reducer.grad_ready(p)
        with pytest.raises(gradwire.InvalidArgument, match="already ready"):
            with reducer.no_sync():
                pass
        assert reducer.wait()
        return in_place, means(reducer)

    ranks = 2
    sums = [[(gradients(r, 0)[p] + gradients(r, 1)[p]) + gradients(r, 2)[p] for p in IDS]
            for r in range(ranks)]
    expected = [(sums[0][p] + sums[1][p]) * np.float32(0.5) for p in IDS]
    for in_place, accumulated in results(in_threads(ranks, body)):
        assert_same(in_place, expected)
        assert_same(accumulated, expected)


class _NoFile:
    def write(self, data):
        raise AssertionError("nothing is to be written")


def test_what_one_rank_or_none_reached_is_told_apart():
    reached = [{0, 1}, {0, 4}]  # by rank

    def body(transport):
        reducer = gradwire.Reducer(plan_of("none"), transport, unused="zero")
        own = gradients(transport.rank, 0)
        for p in IDS:
            reducer.gradient(p)[...] = np.nan  # what nobody says is ready must not count
        for p in reached[transport.rank]:
            reducer.gradient(p)[...] = own[p]
            reducer.grad_ready(p)
        reducer.mark_unused(2)
        assert reducer.wait()
        return means(reducer), [reducer.unused_everywhere(p) for p in IDS]

    zero = [np.zeros(shape, np.float32) for _, shape in SHAPES]
    own = [[gradients(r, 0)[p] if p in reached[r] else zero[p] for p in IDS] for r in range(2)]
    expected = [(own[0][p] + own[1][p]) * np.float32(0.5) for p in IDS]
    for mean, unused in results(in_threads(2, body)):
        assert_same(mean, expected)
        assert unused == [False, False, True, True, False]
    with pytest.raises(gradwire.InvalidArgument, match="unused_everywhere: unused parameters are"):
        alone().unused_everywhere(0)


def test_a_bucket_is_handed_over_whole_and_kept_until_the_step_ends():
    plan = plan_of()

    def body(transport):
        reducer = gradwire.Reducer(plan, transport)
        own, mean = gradients(transport.rank, 0), [None] * len(SHAPES)
        given = []
        for b, bucket in enumerate(plan.layout):
            members = bucket["groups"][0]["parameters"]
            flat = np.concatenate([own[p].ravel() for p in members])
            with pytest.raises(gradwire.InvalidArgument, match=f"must have {flat.size}"):
                reducer.bucket_ready(b, flat[1:])
            with pytest.raises(gradwire.InvalidArgument, match="read-only"):
                reducer.bucket_ready(b, np.frombuffer(flat.tobytes(), np.float32))
            reducer.bucket_ready(b, flat)
            with pytest.raises(gradwire.InvalidArgument, match="already ready"):
                reducer.bucket_ready(b, flat)
            given.append(flat)
        kept = given.pop()  # the last one is let go of before it has come back
        last, size = kept.ctypes.data, kept.size
        del kept, flat
        gc.collect()
        other = np.full(size, 9, np.float32)
        assert other.ctypes.data != last and reducer.wait() and (other == 9).all()
        for bucket, flat in zip(plan.layout, given):
            for p, value in split(bucket["groups"][0]["parameters"], flat).items():
                mean[p] = value
        return mean, residuals(reducer)

    expected = TopK(2, plan)
    first = expected.steps(0, 1)
    for rank, (mean, kept) in enumerate(results(in_threads(2, body))):
        assert_same(kept, expected.residuals[rank])
        seen = [p for p in IDS if mean[p] is not None]
        assert len(seen) >= 3
        for p in seen:
            np.testing.assert_array_equal(mean[p], first[p])


@pytest.mark.parametrize("spec, exchange", [
    ("topk:5%", "gather"), ("tensortopk:5%", "gather"), ("blocktopk:5%,width=16", "gather"),
    ("int8", "two_shot")])
def test_payloads_decode_to_the_mean(spec, exchange):
    plan = plan_of(spec, exchange=exchange)

    def body(transport):
        reducer = gradwire.Reducer(plan, transport)
        mean = take_steps(reducer, transport.rank, 0, 1)
        other = gradwire.Reducer(plan, transport)
        for b in range(plan.buckets):
            other.deliver(b, "payloads")
            with pytest.raises(gradwire.InvalidArgument, match=f"bucket {b} has no payloads"):
                other.take_payloads(b)
        take_steps(other, transport.rank, 0, 1)
        taken = [other.take_payloads(b) for b in range(plan.buckets)]
        again = take_steps(other, transport.rank, 1, 2)  # what was taken is a copy
        assert again is not None
        with pytest.raises(gradwire.InvalidArgument, match="known: mean, payloads"):
            other.deliver(0, "sparse")
        decoded = [None] * len(SHAPES)
        for bucket, groups in zip(plan.layout, taken):
            for group, placed in zip(groups, bucket["groups"]):
                assert {"spec": group.spec, "offset": group.offset, "numel": group.numel,
                        "parameters": group.parameters} == placed
                assert all(not part.flags.writeable for part in group.payloads)
                compressor = gradwire.Compressor(group.spec, group.numel, shapes=group.shapes)
                flat = compressor.decompress(group.payloads, group.scale)
                for p, value in split(group.parameters, flat).items():
                    decoded[p] = value
        return mean, decoded

    for mean, decoded in results(in_threads(3, body)):
        assert_same(decoded, mean)


@pytest.mark.parametrize("call, says", [
    (lambda r: r.gradient(5), "parameter: is 5, must be below 5"),
    (lambda r: r.residual(9), "parameter: is 9, must be below 5"),
    (lambda r: r.grad_ready(5), "parameter 5 is not in the plan of 5"),
    (lambda r: r.mark_unused(5), "parameter 5 is not in the plan of 5"),
    (lambda r: r.accumulate(1, np.zeros((20, 33))), "dtype is float64, must be float32"),
    (lambda r: r.bucket_ready(3, np.zeros(1, np.float32)), "bucket: is 3, must be below 3"),
    (lambda r: r.deliver(3, "mean"), "bucket 3 is not in the plan of 3"),
    (lambda r: r.take_payloads(3), "bucket 3 is not in the plan of 3"),
    (lambda r: r.set_plan(gradwire.make_plan([("w", (2,))])), "parameters or dtype differ"),
    (lambda r: r.replan("topk:2"), "density is 2"),
    (lambda r: r.replan(SPEC, order="random"), "order: unknown name 'random', known: ready, need"),
    (lambda r: r.replan(SPEC, exchange="dense"), "exchange 'dense' cannot carry 'topk:5%'"),
    (lambda r: gradwire.LinkCosts(alpha_s=-1, beta_s_per_byte=0), "alpha_s: is -1, must be"),
    (lambda r: gradwire.LinkCosts(alpha_s=0, beta_s_per_byte=np.nan), "beta_s_per_byte: is nan"),
    (lambda r: r.wait(), "5 of 5 parameters have no gradient"),
])
def test_a_bad_call_is_named_and_loses_nothing(call, says):
    reducer = alone()
    take_steps(reducer, 0, 0, 2)
    with pytest.raises(gradwire.InvalidArgument, match=says):
        call(reducer)
    expected = TopK(1, plan_of())
    expected.steps(0, 2)
    assert_same(residuals(reducer), expected.residuals[0])
    assert_same(take_steps(reducer, 0, 2, 3), expected.steps(2, 3))
    assert reducer.committed_steps == 3


def test_a_plan_that_one_rank_alone_changes_is_refused_on_all():
    def body(transport):
        reducer = gradwire.Reducer(plan_of(), transport)
        take_steps(reducer, transport.rank, 0, 1)
        with pytest.raises(gradwire.InvalidArgument, match="rank 1's plan differs from rank 0's"):
            reducer.set_plan(plan_of("topk:1%" if transport.rank == 1 else SPEC))
        assert reducer.plan.fingerprint == plan_of().fingerprint
        return take_steps(reducer, transport.rank, 1, 2)

    expected = TopK(2, plan_of(), DENSITY).steps(0, 2)
    for mean in results(in_threads(2, body)):
        assert_same(mean, expected)


def test_nan_on_one_rank_commits_nothing_on_any():
    def body(transport):
        reducer = gradwire.Reducer(plan_of(), transport)
        take_steps(reducer, transport.rank, 0, 1)
        before = residuals(reducer)
        bad = gradients(transport.rank, 5)
        bad[1][0, 0] = np.nan if transport.rank == 1 else 0
        hand_over(reducer, bad)
        with pytest.raises(gradwire.NonFiniteGradient, match="rank 1's gradient"):
            reducer.wait()
        assert_same(residuals(reducer), before)
        return take_steps(reducer, transport.rank, 1, 2)

    expected = TopK(2, plan_of()).steps(0, 2)
    for mean in results(in_threads(2, body)):
        assert_same(mean, expected)


_TOO_LARGE = """
import resource
import gradwire
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
transport = gradwire.make_transport("in_process")
shapes = [(f"layer{i}", (2_000_000_000,)) for i in range(2)]
try:
    gradwire.Reducer(gradwire.make_plan(shapes, "topk:1%", bucket_bytes=1), transport)
except gradwire.DeviceError as error:
    print(error)
reducer = gradwire.Reducer(gradwire.make_plan([("small", (5,))], "none"), transport)
reducer.gradient(0)[...] = 3
reducer.grad_ready(0)
assert reducer.wait() and (reducer.gradient(0) == 3).all()
"""


def test_buckets_and_residuals_larger_than_memory_are_an_error_and_no_end():
    done = subprocess.run([sys.executable, "-c", _TOO_LARGE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "8000000000 bytes failed, out of memory" in done.stdout
