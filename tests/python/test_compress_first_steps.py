"""Feedback with start= and warmup=: other compressors in the first steps, counted as commits."""

import math

import numpy as np
import pytest

import gradwire

SEED = 20261126
NUMEL = 5000


def normal(count):
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    return [random.standard_normal(NUMEL).astype(np.float32) for _ in range(count)]


def sent(feedback, gradient):
    decoded = feedback.decompress(feedback.compress(gradient))
    feedback.commit()
    return decoded


@pytest.mark.parametrize("spec", ["topk:10%,int4", "int8,stochastic", "randomk:5%", "threshold:5%", "dgc:5%"])
def test_the_first_steps_send_everything_and_the_others_are_the_spec_alone(spec):
    feedback, alone = gradwire.Feedback(f"{spec},start=2", NUMEL), gradwire.Feedback(spec, NUMEL)
    alone.compressor.step = 2
    for step, gradient in enumerate(normal(6)):
        got = sent(feedback, gradient)
        assert feedback.step == step + 1
        if step < 2:
            np.testing.assert_array_equal(got, gradient)
            assert feedback.residual is None
        else:
            np.testing.assert_array_equal(got, sent(alone, gradient))
            np.testing.assert_array_equal(feedback.residual, alone.residual)


def test_bf16_may_be_sent_and_what_it_leaves_out_is_owed():
    feedback = gradwire.Feedback("topk:10%,start=1:bf16", NUMEL)
    first, second = normal(2)
    got = sent(feedback, first)
    assert 0 < np.abs(got - first).max() < 0.02
    np.testing.assert_array_equal(feedback.residual, first - got)
    np.testing.assert_array_equal(sent(feedback, second) + feedback.residual, second + (first - got))


@pytest.mark.parametrize("spec", ["topk:1%", "chunktopk:1%", "tensortopk:1%", "threshold:1%", "randomk:1%"])
def test_the_density_falls_by_quarters(spec):
    feedback = gradwire.Feedback(f"{spec},warmup=2", NUMEL)
    last = gradwire.parse_spec(spec).density
    for step, gradient in enumerate(normal(8)):
        density = (0.25, 0.0625, 0.015625, last)[step // 2]
        count = np.count_nonzero(sent(feedback, gradient))
        wanted = math.ceil(density * NUMEL)
        slack = 0.5 * wanted if "threshold" in spec else 2  # chunks round up; a threshold is about right
        assert abs(count - wanted) <= slack, (step, count, wanted)


def test_a_velocity_and_an_estimate_go_on():
    gradients = normal(4)
    feedback = gradwire.Feedback("int8,momentum=0.5,start=2", NUMEL)
    velocity = np.zeros(NUMEL, np.float32)
    for step, gradient in enumerate(gradients):
        velocity = np.float32(0.5) * velocity + gradient
        error = np.abs(sent(feedback, gradient) - velocity).max()
        assert error < (1e-6 if step < 2 else 0.05)
    feedback = gradwire.Feedback("topk:10%,ef21,start=2", NUMEL)
    for gradient in gradients[:2]:
        np.testing.assert_allclose(sent(feedback, gradient), gradient, atol=1e-6)
    np.testing.assert_allclose(sent(feedback, gradients[1]), gradients[1], atol=1e-6)  # nothing left to send


@pytest.mark.parametrize("spec, steps", [
    ("topk:10%,start=2", 1), ("topk:10%,start=2", 2), ("topk:10%,start=2", 3), ("threshold:5%,warmup=2", 2),
    ("int8,momentum=0.5,start=2", 2), ("topk:10%,ef21,start=2:bf16", 2), ("dgc:5%,start=1,warmup=1", 2)])
def test_a_state_goes_on_with_the_same_bits(spec, steps):
    gradients = normal(steps + 3)
    feedback, again = gradwire.Feedback(spec, NUMEL), gradwire.Feedback(spec, NUMEL)
    for gradient in gradients[:steps]:
        sent(feedback, gradient)
    sent(again, gradients[-1])  # of which nothing may be left
    again.load_state_dict(feedback.state_dict())
    assert again.step == steps
    for gradient in gradients[steps:]:
        np.testing.assert_array_equal(sent(again, gradient), sent(feedback, gradient))


def test_states_of_others_are_refused():
    feedback = gradwire.Feedback("topk:10%,start=2", NUMEL)
    state = feedback.state_dict()
    for change, message in (({"spec": "topk:10%"}, "is 'topk:10%', must be 'topk:10%,start=2'"),
                            ({"step": -1}, "state..step..: is -1"), ({"step": "x"}, "state..step..: is 'x'"),
                            ({"seed": 9}, "state..seed..: is 9, must be 0")):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=message):
            feedback.load_state_dict({**state, **change})


def test_a_compressor_alone_is_refused_by_name():
    with pytest.raises(gradwire.InvalidArgument, match="'topk:1%,start=5' is 'none' in its first step"):
        gradwire.Compressor("topk:1%,start=5", 10)


def test_spec_says_what_it_is_in_which_step():
    spec = gradwire.parse_spec("topk:1%,warmup=3,start=10")
    assert [str(spec.in_step(i)) for i in (0, 10, 13, 16, 19)] == [
        "none", "topk:25%", "topk:6.25%", "topk:1.5625%", "topk:1%"]
    assert [spec.next_change(i) for i in (0, 10, 18, 19)] == [10, 13, 19, None]
    assert (spec.start, spec.warmup, str(spec.lasting)) == (10, 3, "topk:1%")
