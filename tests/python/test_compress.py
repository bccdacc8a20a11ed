"""Compressors against references written here in NumPy, and the laws over every registry row."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradwire

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is the bfloat16 reference")

CHUNK = 4096  # elements; sizes around it are where the format changes
SPECS = sorted(
    {row.example for row in gradwire.compressors()}
    | {f"{row.name},stochastic" for row in gradwire.compressors() if row.takes_rounding}
    | {f"{row.name}:{d},{v}" for row in gradwire.compressors() if row.selector
       for d, v in (("1%", "fp32"), ("0.3", "fp16"), ("5%", "int4"), ("5%", "e4m3"))}
)
SIZES = [1, 2, 255, 257, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17]
NUMPY_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def normal(rng, numel, dtype="float32"):
    return rng.standard_normal(numel).astype(NUMPY_DTYPES[dtype])


def top_k(x, density):
    """Keeps the k largest magnitudes, ties to the smaller index."""
    k = max(1, math.ceil(density * x.size)) if x.size else 0
    order = np.lexsort((np.arange(x.size), -np.abs(x)))
    kept = np.zeros_like(x)
    kept[order[:k]] = x[order[:k]]
    return kept


def block_quantized(x, bits, block=256):
    """One scale max|x| / q per block that begins anew in every chunk; codes to nearest even."""
    q = np.float32(2 ** (bits - 1) - 1)
    out = np.zeros_like(x)
    for chunk in range(0, x.size, CHUNK):
        for begin in range(chunk, min(chunk + CHUNK, x.size), block):
            part = x[begin : min(begin + block, chunk + CHUNK)]
            largest = np.abs(part).max()
            codes = np.rint(part * (q / largest)) if largest > 0 else np.zeros_like(part)
            out[begin : begin + part.size] = codes * (largest / q)
    return out


def block_floats(x, dtype, block=256):
    """The same with floats of eight bits, which q is the largest of."""
    q = np.float32(ml_dtypes.finfo(dtype).max)
    out = np.zeros_like(x)
    for begin in range(0, x.size, block):  # chunks are whole blocks
        part = x[begin : begin + block]
        largest = np.abs(part).max()
        rounded = (part * (q / largest)).astype(dtype).astype(np.float32)
        out[begin : begin + part.size] = rounded * (largest / q)
    return out


REFERENCES = {
    "none": lambda x: x,
    "fp16": lambda x: np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32),
    "bf16": lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32),
    "int8": lambda x: block_quantized(x, 8),
    "int4": lambda x: block_quantized(x, 4),
    "2bit": lambda x: block_quantized(x, 2),
    "e4m3": lambda x: block_floats(x, ml_dtypes.float8_e4m3fn),
    "e5m2": lambda x: block_floats(x, ml_dtypes.float8_e5m2),
    "topk:1%": lambda x: top_k(x, 0.01),
    "topk:0.3": lambda x: top_k(x, 0.3),
}


@pytest.mark.parametrize("spec", REFERENCES)
def test_payload_decodes_to_the_numpy_reference(spec, rng):
    for numel in SIZES:
        gradient = normal(rng, numel)
        compressor = gradwire.Compressor(spec, numel)
        decoded = compressor.decompress(compressor.compress(gradient))
        np.testing.assert_array_equal(decoded, REFERENCES[spec](gradient), err_msg=f"n={numel}")


def test_ties_go_to_the_smaller_index():
    compressor = gradwire.Compressor("topk:0.25", 8)
    decoded = compressor.decompress(compressor.compress(np.array([1, -1] * 4, np.float32)))
    np.testing.assert_array_equal(decoded, [1, -1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_nothing_is_lost(spec, dtype, rng):
    for numel in SIZES:
        gradient = normal(rng, numel, dtype)
        residual = normal(rng, numel) * np.float32(0.1)
        next_residual = np.full(numel, np.nan, np.float32)
        compressor = gradwire.Compressor(spec, numel, dtype, seed=7)
        payload = compressor.compress(gradient, residual, next_residual)
        assert payload.nbytes <= compressor.capacity_bytes
        assert not compressor.fixed_length or payload.nbytes == compressor.capacity_bytes
        # Decoded in float32 where the payload allows it: the law is about what was sent.
        reader = gradwire.Compressor(spec, numel, dtype if spec == "none" else "float32", seed=7)
        decoded = reader.decompress(payload)
        before = gradient.astype(np.float64) + residual
        after = decoded.astype(np.float64) + next_residual
        np.testing.assert_allclose(after, before, rtol=0, atol=4e-7 * np.abs(before).max(),
                                   err_msg=f"n={numel}")


@given(numel=st.integers(1, 20000), spec=st.sampled_from(SPECS), seed=st.integers(0, 2**31),
       scale=st.sampled_from([1e-30, 1.0, 1e30]))
def test_law_holds_for_odd_sizes_and_scales(numel, spec, seed, scale):
    rng = np.random.default_rng(seed)
    gradient = (rng.standard_normal(numel) * scale).astype(np.float32)
    gradient[rng.random(numel) < 0.2] = 0
    zero, left = np.zeros(numel, np.float32), np.empty(numel, np.float32)
    compressor = gradwire.Compressor(spec, numel, seed=seed)
    payload = compressor.compress(gradient, zero, left)
    again = compressor.compress(gradient, zero, left)
    np.testing.assert_array_equal(payload, again)
    total = compressor.decompress(payload).astype(np.float64) + left
    bound = 4e-7 * max(float(np.abs(gradient).max()), 1e-38)
    np.testing.assert_allclose(total, gradient.astype(np.float64), rtol=0, atol=bound)


@pytest.mark.parametrize("spec", SPECS)
def test_payloads_of_ranks_add_up_in_order_and_scaled(spec, rng):
    numel = CHUNK + 5
    payloads, total = [], np.zeros(numel, np.float32)
    for rank in range(3):
        compressor = gradwire.Compressor(spec, numel, seed=3, rank=rank)
        payloads.append(compressor.compress(normal(rng, numel)))
        total += compressor.decompress(payloads[-1])
    merged = compressor.decompress(payloads, scale=1 / 3)
    np.testing.assert_array_equal(merged, np.float32(1 / 3) * total)


@pytest.mark.parametrize("spec", SPECS)
def test_any_number_of_threads_gives_the_same_bytes(spec, rng):
    numel = 20 * CHUNK + 3
    gradient, zero = normal(rng, numel), np.zeros(numel, np.float32)
    seen = set()
    for threads in (1, 2, 5):
        left = np.empty(numel, np.float32)
        compressor = gradwire.Compressor(spec, numel, seed=1, threads=threads)
        payload = compressor.compress(gradient, zero, left)
        seen.add((payload.tobytes(), left.tobytes(), compressor.decompress(payload).tobytes()))
    assert len(seen) == 1


def test_stochastic_rounding_changes_with_step_rank_and_seed_only(rng):
    gradient = normal(rng, 1000)
    def payload(**identity):
        compressor = gradwire.Compressor("int4,stochastic", 1000, **identity)
        first = compressor.compress(gradient).tobytes()
        compressor.commit()
        return first, compressor.compress(gradient).tobytes()
    assert payload(seed=1) == payload(seed=1)
    assert len({*payload(seed=1), payload(seed=2)[0], payload(seed=1, rank=1)[0]}) == 4


def test_stochastic_rounding_is_unbiased_and_within_one_step():
    numel, draws = 256, 2000
    x = np.linspace(-1, 1, numel, dtype=np.float32)
    compressor = gradwire.Compressor("int4,stochastic", numel, seed=5)
    mean = np.zeros(numel)
    for _ in range(draws):
        decoded = compressor.decompress(compressor.compress(x))
        assert np.abs(decoded - x).max() <= 1 / 7 * (1 + 1e-6)
        mean += decoded / draws
        compressor.commit()
    # Standard error of a mean of values one step (1/7) apart: at most 1/14/sqrt(draws); 5 of them.
    assert np.abs(mean - x).max() < 5 / 14 / math.sqrt(draws)


def test_an_estimate_of_ef21_that_overflows_is_not_committed():
    feedback = gradwire.Feedback("topk:50%,ef21", 4, world_size=2)
    gradient = np.array([2e38, -1, 2, 3e37], np.float32)
    feedback.decompress([feedback.compress(gradient)])
    feedback.commit()
    before = feedback.state_dict()
    payload = feedback.compress(np.array([3.4e38, 1, 1, 0], np.float32))
    estimate = feedback.decompress([payload] * 2)
    assert np.isinf(estimate[0]) and np.isfinite(estimate[1:]).all()
    with pytest.raises(gradwire.NonFiniteGradient, match="step 1: the estimate of ef21 overflows"):
        feedback.commit()
    after = feedback.state_dict()
    assert after["step"] == 1
    for name in ("residual", "estimate"):
        np.testing.assert_array_equal(after[name], before[name])
    feedback.decompress([payload] * 2, 0.5)
    feedback.commit()
    assert feedback.step == 2


def test_an_estimate_takes_the_mean_where_the_spec_has_one():
    arrays = [np.float32([1, 2, 3]), np.float32([10, 20, 30]), np.zeros(3, np.float32)]
    mean, estimate, following = arrays
    made = gradwire.Compressor("topk:50%,ef21", 3)
    made.add_estimate(mean, estimate, following)
    for array, wanted in zip(arrays, ([11, 22, 33], [10, 20, 30], [11, 22, 33])):
        np.testing.assert_array_equal(array, np.float32(wanted))
    with pytest.raises(gradwire.InvalidArgument, match="next_estimate: shares memory with estimate"):
        made.add_estimate(mean, estimate, estimate)
    with pytest.raises(gradwire.InvalidArgument, match="the spec is 'topk:50%', must have ef21"):
        gradwire.Compressor("topk:50%", 3).add_estimate(mean, estimate, following)


def test_ef21_finds_the_minimum_of_ranks_that_differ():
    rng = np.random.default_rng(21)
    targets = rng.normal(size=(4, 60)).astype(np.float32)
    ranks = [gradwire.Feedback("topk:10%,ef21", 60, rank=r, world_size=4) for r in range(4)]
    x = np.zeros(60, np.float32)
    for _ in range(600):
        payloads = [f.compress(x - t) for f, t in zip(ranks, targets)]
        estimates = [f.decompress(payloads, 0.25) for f in ranks]
        for f, estimate in zip(ranks, estimates):
            assert (estimate == estimates[0]).all()
            f.commit()
        sent = -sum(f.residual for f in ranks) / 4
        np.testing.assert_allclose(estimates[0], sent, atol=1e-5)
        x -= np.float32(0.05) * estimates[0]
    np.testing.assert_allclose(x, targets.mean(axis=0), atol=1e-4)
    resumed = gradwire.Feedback("topk:10%,ef21", 60, rank=2, world_size=4)
    resumed.load_state_dict(ranks[2].state_dict())
    payload = resumed.compress(x)
    assert (payload == ranks[2].compress(x)).all()
    with pytest.raises(gradwire.InvalidArgument, match="must follow a decompress"):
        resumed.commit()
    assert (resumed.decompress([payload]) == ranks[2].decompress([payload])).all()
    with pytest.raises(gradwire.InvalidArgument, match="must be float32 with ef21"):
        gradwire.Feedback("topk:1%,ef21", 10, dtype="float16")
    with pytest.raises(gradwire.InvalidArgument, match="must be one with float32 residuals"):
        gradwire.Feedback("topk:1%,residual=bf16", 10)
    assert gradwire.parse_spec("topk:1%,residual=bf16").residual == "bfloat16"
    assert gradwire.parse_spec("topk:1%,ef21").ef21 and not gradwire.parse_spec("topk:1%").ef21
    spec = gradwire.parse_spec("dgc:1%,clip=2,warmup=3,decay=0.5")
    assert (spec.momentum, spec.clip, spec.warmup, spec.decay) == (0.9, 2, 3, 0.5)


def test_a_velocity_takes_the_gradients_place_and_is_part_of_the_state(rng):
    numel, spec = 3000, "topk:2%,momentum=0.5"
    feedback, plain = gradwire.Feedback(spec, numel), gradwire.Feedback("topk:2%", numel)
    velocity = np.zeros(numel, np.float32)
    for step in range(4):
        x = normal(rng, numel)
        velocity = np.float32(0.5) * velocity + x
        assert (feedback.compress(x)[32:] == plain.compress(velocity)[32:]).all()  # but the header
        sent = plain.decompress(plain.compress(velocity))
        velocity[sent != 0] = 0
        feedback.commit(), plain.commit()
        np.testing.assert_array_equal(feedback.residual, plain.residual)
        np.testing.assert_array_equal(feedback.compressor.velocity, velocity)
    resumed = gradwire.Feedback(spec, numel)
    state = feedback.state_dict()
    resumed.load_state_dict(state)
    x = normal(rng, numel)
    assert (resumed.compress(x) == feedback.compress(x)).all()
    with pytest.raises(gradwire.InvalidArgument, match=r"state\['velocity'\]: is missing"):
        resumed.load_state_dict({k: v for k, v in state.items() if k != "velocity"})
    with pytest.raises(gradwire.InvalidArgument, match="velocity: holds NaN"):
        resumed.compressor.velocity = np.full(numel, np.nan, np.float32)
    assert plain.compressor.velocity is None
    with pytest.raises(gradwire.InvalidArgument, match="'topk:2%' keeps none"):
        plain.compressor.velocity = velocity
    assert gradwire.parse_spec(spec).keeps_velocity and gradwire.parse_spec("dgc:1%").keeps_velocity
    assert gradwire.parse_spec("int8,ef21,eta=0.25").eta == 0.25


def test_feedback_sends_everything_in_the_end(rng):
    numel = 5000
    feedback = gradwire.Feedback("topk:1%", numel)
    gradient, sent = normal(rng, numel), np.zeros(numel)
    for step in range(300):
        payload = feedback.compress(gradient if step == 0 else np.zeros(numel, np.float32))
        sent += feedback.decompress(payload)
        feedback.commit()
    np.testing.assert_array_equal(sent, gradient)
    assert feedback.step == 300 and not feedback.residual.any()


def test_rollback_leaves_the_step_as_it_was(rng):
    feedback = gradwire.Feedback("int4,stochastic", 1000, seed=4)
    gradient = normal(rng, 1000)
    feedback.compress(gradient)
    feedback.commit()
    residual = feedback.residual.copy()
    payload = feedback.compress(gradient).tobytes()
    feedback.rollback()
    np.testing.assert_array_equal(feedback.residual, residual)
    assert feedback.compress(gradient).tobytes() == payload
    feedback.rollback()
    with pytest.raises(gradwire.InvalidArgument, match="nothing is pending"):
        feedback.commit()


def test_non_finite_gradients_are_flagged_refused_and_never_committed(rng):
    for bad in (np.nan, np.inf, -np.inf):
        for spec in SPECS:
            feedback = gradwire.Feedback(spec, 5000)
            feedback.compress(normal(rng, 5000))
            feedback.commit()
            residual = None if feedback.residual is None else feedback.residual.copy()
            gradient = normal(rng, 5000)
            gradient[4321] = bad
            payload = feedback.compress(gradient)
            assert gradwire.payload_info(payload)["finite"] is False
            with pytest.raises(gradwire.NonFiniteGradient, match=r"payloads\[0\]"):
                feedback.decompress(payload)
            with pytest.raises(gradwire.NonFiniteGradient, match="nothing was committed"):
                feedback.commit()
            assert feedback.step == 1
            if residual is not None:
                np.testing.assert_array_equal(feedback.residual, residual)
            feedback.compress(normal(rng, 5000))
            feedback.commit()
            assert feedback.step == 2


def test_state_dict_resumes_bit_for_bit(rng):
    gradients = [normal(rng, 3000) for _ in range(6)]
    straight = gradwire.Feedback("int4,stochastic", 3000, seed=9, rank=2)
    resumed = gradwire.Feedback("int4,stochastic", 3000, seed=9, rank=2)
    for gradient in gradients[:3]:
        straight.compress(gradient)
        straight.commit()
    resumed.load_state_dict(pickle.loads(pickle.dumps(straight.state_dict())))
    for gradient in gradients[3:]:
        assert straight.compress(gradient).tobytes() == resumed.compress(gradient).tobytes()
        straight.commit()
        resumed.commit()


@pytest.mark.parametrize("field, value", [("spec", "int8"), ("numel", 7), ("dtype", "float16"),
                                          ("seed", 1), ("rank", 1), ("residual", np.zeros(3)),
                                          ("step", -1)])
def test_state_of_something_else_is_refused_and_changes_nothing(field, value, rng):
    feedback = gradwire.Feedback("int4", 100)
    feedback.compress(normal(rng, 100))
    feedback.commit()
    before = feedback.state_dict()
    state = dict(before, residual=np.ones(100, np.float32))
    with pytest.raises(gradwire.InvalidArgument, match=field):
        feedback.load_state_dict(dict(state, **{field: value}))
    del state[field]
    with pytest.raises(gradwire.InvalidArgument, match=f"{field}.*missing"):
        feedback.load_state_dict(state)
    np.testing.assert_array_equal(feedback.state_dict()["residual"], before["residual"])
    assert feedback.step == 1


def test_spec_is_parsed_and_printed():
    spec = gradwire.parse_spec("topk:0.01,int4")
    assert (spec.name, spec.density, spec.values) == ("topk", 0.01, "int4")
    assert spec.error_feedback and not gradwire.parse_spec("topk:1%,noef").error_feedback
    again = gradwire.parse_spec(str(spec))
    assert again == spec and hash(again) == hash(spec)
    assert gradwire.parse_spec("int8") != spec and spec != "topk:0.01,int4"
    assert gradwire.parse_spec("int8,stochastic").rounding == "stochastic"
    assert eval(repr(spec), {"parse_spec": gradwire.parse_spec}) == spec
