"""Optimizer steps from a Reducer's payloads: the bits of steps from its means."""

import numpy as np
import pytest
from rank_processes import in_threads
from reducer_case import SHAPES, gradients, hand_over, plan_of

import gradwire

IDS = range(len(SHAPES))


def values_of(rank):
    rng = np.random.default_rng(7)  # the same on every rank
    del rank
    return [rng.standard_normal(shape).astype(np.float32) for _, shape in SHAPES]


def taken(reducer, plan):
    return [group for b in range(plan.buckets) for group in reducer.take_payloads(b)]


def deliver_payloads(reducer, plan):
    for b in range(plan.buckets):
        reducer.deliver(b, "payloads")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb:weight_decay=0.01", "lars"])
@pytest.mark.parametrize("spec, exchange", [
    ("topk:5%", "gather"), ("randomk:5%", "gather"), ("tensortopk:5%", "gather"), ("int8", "two_shot"),
    ("dgc:5%", "gather")])  # fmt: skip
def test_steps_from_payloads_have_the_bits_of_steps_from_means(spec, exchange, optimizer):
    plan = plan_of(spec, exchange=exchange)

    def body(transport):
        dense, fused = (gradwire.Reducer(plan, transport) for _ in range(2))
        deliver_payloads(fused, plan)
        of_means, of_payloads = values_of(transport.rank), values_of(transport.rank)
        zeros = [np.zeros_like(v) for v in of_payloads]  # whose memory nobody reads
        by_means = gradwire.Optimizer(optimizer, of_means, [dense.gradient(p) for p in IDS], 0.1)
        by_payloads = gradwire.Optimizer(optimizer, of_payloads, zeros, 0.1, threads=2)
        for step in range(3):
            for reducer in (dense, fused):
                hand_over(reducer, gradients(transport.rank, step))
                assert reducer.wait()
            by_means.step()
            by_payloads.step(known_finite=step == 2, payloads=taken(fused, plan))
        return of_means, of_payloads

    for end in in_threads(2, body):
        of_means, of_payloads = end.result()
        for a, b in zip(of_payloads, of_means):
            np.testing.assert_array_equal(a, b)


def test_parameters_without_payloads_step_from_memory():
    """And what is refused changes nothing."""
    plan = plan_of("topk:5%", exchange="gather")
    reducer = gradwire.Reducer(plan, gradwire.make_transport("in_process"))
    deliver_payloads(reducer, plan)
    hand_over(reducer, gradients(0, 0))
    assert reducer.wait()
    groups = taken(reducer, plan)
    values, zeros = values_of(0), [np.zeros(shape, np.float32) for _, shape in SHAPES]
    before = [v.copy() for v in values]
    optimizer = gradwire.SGD(values, zeros, 0.1, momentum=0.0)
    optimizer.step(payloads=groups[:1])
    moved = [p for p in IDS if (values[p] != before[p]).any()]
    assert moved == sorted(p for p in groups[0].parameters if p in moved) and moved
    optimizer.step()  # the gradients in memory again, which are zeros
    after = [v.copy() for v in values]
    with pytest.raises(gradwire.InvalidArgument, match=r"payloads\[1\]: parameter \d is in another group"):
        optimizer.step(payloads=[groups[0], groups[0]])
    with pytest.raises(gradwire.InvalidArgument, match=r"payloads\[0\]: is None"):
        optimizer.step(payloads=[None])
    other = gradwire.SGD([np.zeros(3, np.float32)], [np.zeros(3, np.float32)], 0.1)
    with pytest.raises(gradwire.InvalidArgument, match="expected one of the 1 here"):
        other.step(payloads=groups)
    optimizer.step()
    for a, b in zip(values, after):
        np.testing.assert_array_equal(a, b)
