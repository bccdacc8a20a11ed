"""Compressors and Feedback on arrays of a GPU: the CPU's bytes, and commits that are decided there."""

import numpy as np
import pytest

import gradwire

NUMEL = 5000
SHAPES = [(60, 70), (800,)]
SPECS = [row.example for row in gradwire.compressors() if row.on_gpu] + [
    "topk:1%,int4", "int8,stochastic", "topk:1%,momentum=0.9", "int4,decay=0.5", "topk:1%,ef21",
    "int4,ef21", "topk:5%,ef21,eta=0.25", "powersgd:2,ef21"]  # fmt: skip


def values(seed):
    return np.random.default_rng(seed).standard_normal(NUMEL).astype(np.float32)


def pair(spec, **options):
    return (gradwire.Feedback(spec, NUMEL, shapes=SHAPES, seed=3, **options),
            gradwire.Feedback(spec, NUMEL, shapes=SHAPES, seed=3, device="cuda", **options))  # fmt: skip


def bytes_of(payload, like):
    return payload.to_numpy()[: like.size]


def step(gpu, here, there, gradient):
    """One step of both, up to the commit; returns the two means."""
    g = gpu.array(gradient)
    sent, payload = here.compress(gradient), there.compress(g, stream=gpu.stream)
    if here.compressor.rounds == 2:
        np.testing.assert_array_equal(bytes_of(payload, sent), sent)
        here.take_first([sent.copy()], 1.0), there.take_first([payload], 1.0, stream=gpu.stream)
        sent, payload = here.compress_second(gradient), there.compress_second(g, stream=gpu.stream)
    np.testing.assert_array_equal(bytes_of(payload, sent), sent)
    return here.decompress([sent, sent], 0.5), there.decompress([payload, payload], 0.5, stream=gpu.stream)


@pytest.mark.parametrize("spec", [*SPECS, "powersgd:2,rounds=2"])
def test_payloads_means_and_residuals_are_those_of_the_cpu(gpu, spec):
    here, there = pair(spec)
    for seed in range(3):
        mean, means = step(gpu, here, there, values(seed))
        np.testing.assert_array_equal(means.to_numpy(), mean)
        here.commit(), there.commit(stream=gpu.stream)
        there.check(gpu.stream)
        if here.residual is not None:
            np.testing.assert_array_equal(there.residual.to_numpy(), here.residual)
    assert there.step == here.step == 3 and there.compressor.capacity_bytes == here.compressor.capacity_bytes
    if here.compressor.velocity is not None:
        np.testing.assert_array_equal(there.compressor.velocity, here.compressor.velocity)


def test_a_step_that_is_not_committed_changes_nothing(gpu):
    here, there = pair("topk:1%")
    step(gpu, here, there, values(1))
    here.commit(), there.commit()
    step(gpu, here, there, values(2))
    here.rollback(), there.rollback()
    step(gpu, here, there, values(3))
    here.commit(), there.commit()
    np.testing.assert_array_equal(there.residual.to_numpy(), here.residual)
    with pytest.raises(gradwire.InvalidArgument, match="commit: nothing is pending"):
        there.commit()


def test_values_that_are_not_finite_stop_commits_until_they_are_asked_for(gpu):
    here, there = pair("int8")
    step(gpu, here, there, values(1))
    here.commit(), there.commit()
    bad = values(2)
    bad[17] = np.nan
    there.compress(gpu.array(bad), stream=gpu.stream)
    there.commit()  # nothing is raised here
    there.compress(gpu.array(values(3)), stream=gpu.stream)
    there.commit()
    with pytest.raises(gradwire.NonFiniteGradient, match="NaN or infinity in step 1"):
        there.check()
    assert there.step == 1
    np.testing.assert_array_equal(there.residual.to_numpy(), here.residual)
    there.compress(gpu.array(bad), stream=gpu.stream)
    there.commit(skip=True)
    there.check()
    step(gpu, here, there, values(4))
    here.commit(), there.commit()
    assert there.step == 2
    np.testing.assert_array_equal(there.residual.to_numpy(), here.residual)


def test_a_payload_that_does_not_belong_here_is_told_by_check(gpu):
    made = gradwire.Compressor("int8", NUMEL, device="cuda")
    other = gradwire.Compressor("int4", NUMEL).compress(values(1))
    room = np.zeros(made.capacity_bytes, np.uint8)
    room[: other.size] = other
    made.decompress(gpu.array(room), stream=gpu.stream)
    with pytest.raises(gradwire.InvalidArgument, match="payload part 0: its "):
        made.check()
    made.check()


def test_gradients_added_up_in_the_residual_are_compressed_and_restored(gpu):
    here = gradwire.Compressor("topk:1%", NUMEL)
    there = gradwire.Compressor("topk:1%", NUMEL, device="cuda")
    x, y = values(1), gpu.array(values(1))
    sent = here.compress_accumulated(x)
    payload = there.compress_accumulated(y, stream=gpu.stream)
    np.testing.assert_array_equal(bytes_of(payload, sent), sent)
    np.testing.assert_array_equal(gpu.host(y), x)
    there.restore(payload, y, stream=gpu.stream)
    np.testing.assert_array_equal(gpu.host(y), values(1))


@pytest.mark.parametrize("spec", ["int4", "dgc:1%", "topk:1%,momentum=0.5", "topk:1%,ef21",
                                  "topk:1%,ef21,eta=0.25"])  # fmt: skip
def test_a_checkpoint_moves_between_cpu_and_gpu(gpu, spec):
    here, there = pair(spec)
    for seed in range(3):
        step(gpu, here, there, values(seed))
        here.commit(), there.commit()
    back, forth = pair(spec)
    back.load_state_dict(there.state_dict())
    forth.load_state_dict(here.state_dict())
    for feedbacks in ((here, there), (back, forth)):
        mean, means = step(gpu, *feedbacks, values(9))
        np.testing.assert_array_equal(means.to_numpy(), mean)
    np.testing.assert_array_equal(back.compress(values(9)), here.compress(values(9)))


def test_estimates_of_steps_that_are_not_committed_are_forgotten(gpu):
    here, there = pair("topk:1%,ef21")
    for seed, committed in ((1, True), (2, False), (3, True), (4, False), (5, True)):
        mean, means = step(gpu, here, there, values(seed))
        np.testing.assert_array_equal(means.to_numpy(), mean)
        for each in (here, there):
            each.commit() if committed else each.rollback()
    there.check()
    assert there.step == here.step == 3
    np.testing.assert_array_equal(there.state_dict()["estimate"], here.state_dict()["estimate"])
    there.compress(gpu.array(values(6)), stream=gpu.stream)
    with pytest.raises(gradwire.InvalidArgument, match="the estimate is pending, must follow a decompr"):
        there.commit()


def test_an_estimate_that_overflows_is_not_committed(gpu):
    there = gradwire.Feedback("topk:50%,ef21", 4, world_size=2, device="cuda")

    def send(gradient):
        return there.compress(gpu.array(np.float32(gradient)), stream=gpu.stream)

    there.decompress([send([2e38, -1, 2, 3e37])], stream=gpu.stream)
    there.commit()
    before = there.state_dict()
    payload = send([3.4e38, 1, 1, 0])
    estimate = there.decompress([payload] * 2, stream=gpu.stream).to_numpy()
    assert np.isinf(estimate[0]) and np.isfinite(estimate[1:]).all()
    there.commit()
    with pytest.raises(gradwire.NonFiniteGradient, match="NaN or infinity in step 1"):
        there.check()
    after = there.state_dict()
    assert after["step"] == 1
    for name in ("residual", "estimate"):
        np.testing.assert_array_equal(after[name], before[name])
    there.decompress([send([3.4e38, 1, 1, 0])] * 2, 0.5, stream=gpu.stream)
    there.commit()
    there.check()
    assert there.step == 2


def test_what_is_not_there_is_refused_when_it_is_made(gpu):
    with pytest.raises(gradwire.InvalidArgument, match="device: is 'cpu', must be 'cuda'"):
        gradwire.DeviceArray("float32", [3], "cpu")
    with pytest.raises(gradwire.InvalidArgument, match="dtype: is 'float64', must be"):
        gradwire.DeviceArray("float64", [3])


def test_buffers_that_share_memory_are_refused(gpu):
    made = gradwire.Compressor("int8", NUMEL, device="cuda")
    e = gpu.array(values(1))
    with pytest.raises(gradwire.InvalidArgument, match="next_residual: shares memory with residual"):
        made.compress(gpu.array(values(2)), e, e, stream=gpu.stream)
