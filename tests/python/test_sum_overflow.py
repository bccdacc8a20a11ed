"""Gradients that are finite on every rank and whose sum is not: 3e38 twice is infinity in float32."""

import numpy as np
import pytest
from rank_processes import in_threads
from reducer_case import assert_same, gradients, hand_over, means, plan_of, residuals, take_steps

import gradwire

LARGE = np.float32(3e38)
CASES = [
    ("int8", "gather"), ("int4", "two_shot"), ("2bit", "gather"), ("e4m3", "gather"), ("e5m2", "two_shot"),
    ("topk:5%", "gather"), ("topk:5%", "two_shot"), ("topk:5%", "gtopk"), ("chunktopk:64/4096", "gather"),
    ("dgc:5%", "gather"), ("threshold:5%", "gtopk"), ("ternary", "gather"), ("natural", "two_shot"),
    ("qsgd:7", "gather"), ("1bit", "gather"), ("none", "sum"), ("none", "dense"), ("bf16", "gather"),
    ("randomk:50%", "ring"), ("topk:5%,ef21", "gather"),
]  # fmt: skip


def results(ends):
    return [end.result() for end in ends]


@pytest.mark.parametrize("spec, exchange", CASES)
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_step_whose_sum_overflows_leaves_no_trace(spec, exchange, policy):
    def body(transport, overflow):
        plan = plan_of(spec, exchange=exchange)
        reducer = gradwire.Reducer(plan, transport, on_nonfinite=policy)
        take_steps(reducer, transport.rank, 0, 2)
        if overflow:
            before = residuals(reducer)
            large = gradients(transport.rank, 5)
            large[1][...] = LARGE
            hand_over(reducer, large)
            if policy == "error":
                with pytest.raises(gradwire.NonFiniteGradient) as raised:
                    reducer.wait()
                bucket = next(b for b, each in enumerate(plan.layout)
                              if any(1 in group["parameters"] for group in each["groups"]))
                assert f"bucket {bucket} ({exchange}, " in str(raised.value)
                assert "the sum of the ranks' finite gradients overflows float32" in str(raised.value)
            else:
                assert not reducer.wait()
                assert all((mean == 0).all() for mean in means(reducer))
            assert reducer.committed_steps == 2 and reducer.skipped_steps == 1
            for found, expected in zip(residuals(reducer), before):
                np.testing.assert_array_equal(found, expected)
        after = take_steps(reducer, transport.rank, 2, 3)
        return after, [np.zeros(0) if each is None else each for each in residuals(reducer)]

    clean = results(in_threads(2, lambda transport: body(transport, False)))
    for found, expected in zip(results(in_threads(2, lambda t: body(t, True))), clean):
        assert_same(found[0], expected[0])
        assert_same(found[1], expected[1])


@pytest.mark.parametrize("spec", ["int8", "topk:25%", "1bit", "none", "fp16", "bf16", "randomk:50%"])
def test_a_payload_sum_that_overflows_is_refused_and_not_committed(spec):
    ranks = [gradwire.Feedback(spec, 100, rank=rank) for rank in range(2)]
    large = np.full(100, LARGE)
    payloads = [each.compress(large) for each in ranks]
    if spec == "fp16":  # saturates at 65504
        np.testing.assert_array_equal(ranks[0].decompress(payloads, 0.5), np.full(100, np.float32(65504)))
        return
    for each in ranks:
        with pytest.raises(gradwire.NonFiniteGradient, match="sum of the payloads overflows float32"):
            each.decompress(payloads, 0.5)
        with pytest.raises(gradwire.NonFiniteGradient, match="the last sum of payloads overflows"):
            each.commit()
        assert each.step == 0
    calm = [each.compress(np.ones(100, np.float32)) for each in ranks]
    for each in ranks:
        assert np.isfinite(each.decompress(calm, 0.5)).all()
        each.commit()
        assert each.step == 1


def test_the_largest_sum_that_fits_is_taken():
    ranks = [gradwire.Feedback("none", 7, rank=rank) for rank in range(2)]
    largest = np.finfo(np.float32).max
    payloads = [each.compress(np.full(7, largest if i == 0 else 1, np.float32))
                for i, each in enumerate(ranks)]  # fmt: skip
    np.testing.assert_array_equal(ranks[0].decompress(payloads, 0.5), np.full(7, largest / 2))
