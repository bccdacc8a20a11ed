"""Compressors that know parameters apart: shapes, against NumPy, and steps of two rounds."""

import math
import pickle

import numpy as np
import pytest

import gradwire

HEADER = 32  # bytes
MIXED = [(19,), (30, 14), (5, 7), (8, 3, 3, 3), (), (12, 50)]  # under rank 3 (5, 7) stays as it is
FORMS = ["powersgd:3", "powersgd:3,rounds=2"]


def sizes(shapes):
    return [math.prod(shape) for shape in shapes]


def parts(flat, shapes):
    """Each parameter's elements; those of two dimensions and more as matrices."""
    return [part.reshape(shape[0], -1) if len(shape) >= 2 else part
            for part, shape in zip(np.split(flat, np.cumsum(sizes(shapes))[:-1]), shapes)]


def normal(rng, shapes):
    return rng.standard_normal(sum(sizes(shapes))).astype(np.float32)


def group(spec, shapes, ranks=1, **options):
    return [gradwire.Feedback(spec, sum(sizes(shapes)), rank=r, world_size=ranks, shapes=shapes,
                              **options) for r in range(ranks)]


def step(feedbacks, gradients):
    """What all ranks decode, and the payloads; without the commit."""
    scale = 1 / len(feedbacks)
    payloads = [f.compress(g) for f, g in zip(feedbacks, gradients)]
    if feedbacks[0].compressor.rounds == 2:
        for f in feedbacks:
            f.take_first(payloads, scale)
        payloads = [f.compress_second(g) for f, g in zip(feedbacks, gradients)]
    decoded = [f.decompress(payloads, scale) for f in feedbacks]
    for other in decoded[1:]:
        np.testing.assert_array_equal(other, decoded[0])
    return decoded[0], payloads


def commit(feedbacks):
    for f in feedbacks:
        f.commit()


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def factors(payload, length):
    """The vectors that a payload of one matrix holds, as columns."""
    return np.frombuffer(payload.tobytes(), np.float32, offset=HEADER).reshape(-1, length).T


def basis_of(matrix):
    return np.linalg.qr(matrix.astype(np.float64))[0]


def test_powersgd_is_half_of_a_power_iteration_in_numpy(rng):
    rows, cols, rank, ranks = 40, 28, 4, 3
    feedbacks = group(f"powersgd:{rank}", [(rows, cols)], ranks)
    residuals = [np.zeros((rows, cols))] * ranks
    left = right = None
    for t in range(6):
        gradients = [normal(rng, [(rows, cols)]) for _ in range(ranks)]
        matrices = [g.reshape(rows, cols) + e for g, e in zip(gradients, residuals)]
        mean, payloads = step(feedbacks, gradients)
        if t == 0:  # the first basis is drawn: of what was decoded
            p = np.mean([factors(payload, rows) for payload in payloads], axis=0)
            right = np.linalg.lstsq(p, mean.reshape(rows, cols).astype(np.float64), rcond=None)[0].T
            assert_close(right.T @ right, np.eye(rank))
        # D = M Q Q^T or P P^T M: of the basis its space alone matters.
        project = ((lambda m: m @ right @ right.T) if t % 2 == 0 else  # noqa: B023
                   (lambda m: left @ left.T @ m))  # noqa: B023  # not called in later rounds
        assert_close(mean.reshape(rows, cols), project(np.mean(matrices, axis=0)))
        if t % 2 == 0:
            left = basis_of(np.mean(matrices, axis=0) @ right)
        else:
            right = basis_of(np.mean(matrices, axis=0).T @ left)
        residuals = [m - project(m) for m in matrices]
        commit(feedbacks)
        for f, e in zip(feedbacks, residuals):
            assert_close(f.residual.reshape(rows, cols), e)


def test_a_matrix_of_rank_r_comes_back_in_two_steps_of_one_round(rng):
    shapes, rank = [(31, 7), (17,), (4, 5, 5)], 2
    gradient = np.concatenate([
        (rng.standard_normal((31, rank)) @ rng.standard_normal((rank, 7))).ravel(),
        rng.standard_normal(17),
        (rng.standard_normal((4, rank)) @ rng.standard_normal((rank, 25))).ravel()])
    gradient = gradient.astype(np.float32)
    feedbacks = group(f"powersgd:{rank}", shapes)
    first, _ = step(feedbacks, [gradient])
    commit(feedbacks)
    assert np.abs(first[:31 * 7] - gradient[:31 * 7]).max() > 0.1
    np.testing.assert_array_equal(first[31 * 7:31 * 7 + 17], gradient[31 * 7:31 * 7 + 17])
    second, _ = step(feedbacks, [gradient])
    commit(feedbacks)
    assert_close(first.astype(np.float64) + second, 2.0 * gradient)
    assert np.abs(feedbacks[0].residual).max() < 1e-4


def test_a_mean_of_rank_r_comes_back_in_one_step_of_two_rounds(rng):
    shapes, rank, ranks = [(24, 40)], 3, 4
    mean = (rng.standard_normal((24, rank)) @ rng.standard_normal((rank, 40))).ravel()
    noise = rng.standard_normal((ranks, mean.size))
    gradients = list((mean + noise - noise.mean(axis=0)).astype(np.float32))
    feedbacks = group(f"powersgd:{rank},rounds=2", shapes, ranks)
    decoded, _ = step(feedbacks, gradients)
    commit(feedbacks)
    assert_close(decoded, mean)
    left = basis_of(mean.reshape(24, 40)[:, :rank])
    for f, g in zip(feedbacks, gradients):
        m = g.reshape(24, 40).astype(np.float64)
        assert_close(f.residual.reshape(24, 40), m - left @ left.T @ m)


def test_payloads_have_the_bytes_of_the_formula(rng):
    # 32, of each matrix 4 R rows or 4 R columns, of all others 4 an element.
    rank, matrices, plain = 3, [(30, 14), (8, 27), (12, 50)], 19 + 35 + 1
    rows, cols = (4 * rank * sum(m[i] for m in matrices) for i in (0, 1))
    one, two = (group(form, MIXED)[0] for form in FORMS)
    assert (one.compressor.rounds, one.compressor.first_bytes) == (1, 0)
    assert (two.compressor.rounds, two.compressor.first_bytes) == (2, HEADER + rows)
    for t in range(4):
        g = normal(rng, MIXED)
        _, payloads = step([one], [g])
        assert payloads[0].nbytes == HEADER + 4 * plain + (rows if t % 2 == 0 else cols)
        assert payloads[0].nbytes <= one.compressor.capacity_bytes
        assert two.compress(g).nbytes == HEADER + rows
        _, payloads = step([two], [g])
        assert payloads[0].nbytes == HEADER + 4 * plain + cols
        commit([one, two])
    unknown = gradwire.Feedback("powersgd:3", sum(sizes(MIXED)))
    assert unknown.compress(g).nbytes == HEADER + 4 * sum(sizes(MIXED))


def largest(x, density):
    k = max(1, math.ceil(density * x.size))
    kept = np.zeros(x.size, np.float32)
    order = np.lexsort((np.arange(x.size), -np.abs(x.ravel())))[:k]
    kept[order] = x.ravel()[order]
    return kept


def largest_blocks(flat, shapes, density, width):
    """Blocks begin anew in each parameter; the largest of all are kept."""
    begins = np.cumsum([0] + sizes(shapes))
    blocks = [(b, min(b + width, end)) for begin, end in zip(begins, begins[1:])
              for b in range(begin, end, width)]
    norms = [float(np.square(flat[a:b].astype(np.float64)).sum()) for a, b in blocks]
    kept = np.zeros_like(flat)
    for i in np.argsort(norms)[::-1][:max(1, math.ceil(density * len(blocks)))]:
        kept[slice(*blocks[i])] = flat[slice(*blocks[i])]
    return kept


def test_selectors_choose_by_parameter_as_numpy_does(rng):
    shapes = [(700,), (90, 50), (3,), (64, 3, 3)]
    scales = np.repeat([1.0, 1e-3, 30.0, 0.1], sizes(shapes)).astype(np.float32)
    x = normal(rng, shapes) * scales
    numel = x.size
    sent = {}
    for spec in ("tensortopk:2%", "blocktopk:10%,width=16"):
        compressor = gradwire.Compressor(spec, numel, shapes=shapes)
        sent[spec] = compressor.decompress(compressor.compress(x))
        unknown = gradwire.Compressor(spec, numel)
        assert (unknown.decompress(unknown.compress(x)) != sent[spec]).any()
    each = np.concatenate([largest(p, 0.02) for p in parts(x, shapes)])
    np.testing.assert_array_equal(sent["tensortopk:2%"], each)
    np.testing.assert_array_equal(sent["blocktopk:10%,width=16"],
                                  largest_blocks(x, shapes, 0.1, 16))


@pytest.mark.parametrize("form", FORMS)
def test_a_plan_of_the_same_parameter_gives_the_same_bits(form, rng):
    plan = gradwire.make_plan([("w", (33, 20))], form, seed=5)
    reducer = gradwire.Reducer(plan, gradwire.make_transport("in_process"))
    feedbacks = group(form, [(33, 20)], seed=5)
    for _ in range(4):
        g = normal(rng, [(33, 20)])
        reducer.gradient(0)[...] = g.reshape(33, 20)
        reducer.grad_ready(0)
        assert reducer.wait()
        decoded, _ = step(feedbacks, [g])
        commit(feedbacks)
        np.testing.assert_array_equal(reducer.gradient(0).ravel(), decoded)
        np.testing.assert_array_equal(reducer.residual(0).ravel(), feedbacks[0].residual)


@pytest.mark.parametrize("form", [*FORMS, "tensortopk:5%", "powersgd:2,momentum=0.5"])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_state_goes_on_bit_for_bit_and_belongs_to_its_shapes(form, before, rng):
    straight = group(form, MIXED, seed=4)
    for _ in range(before):
        step(straight, [normal(rng, MIXED)])
        commit(straight)
    state = pickle.loads(pickle.dumps(straight[0].state_dict()))
    assert state["shapes"] == [list(shape) for shape in MIXED]
    assert bool(state["learned"]) == (form.startswith("powersgd") and before > 0)
    resumed = group(form, MIXED, seed=4)
    resumed[0].load_state_dict(state)
    for _ in range(3):
        g = normal(rng, MIXED)
        mean, payloads = step(straight, [g])
        again, same = step(resumed, [g])
        assert payloads[0].tobytes() == same[0].tobytes()
        np.testing.assert_array_equal(mean, again)
        commit(straight + resumed)
        np.testing.assert_array_equal(straight[0].residual, resumed[0].residual)
    if form.startswith("powersgd") and before > 0:
        for learned in ([1, 2, 3], state["learned"][:-1]):
            with pytest.raises(gradwire.InvalidArgument, match=r"state\['learned'\]: "):
                resumed[0].load_state_dict(dict(state, learned=learned))
            assert resumed[0].step == straight[0].step
            np.testing.assert_array_equal(straight[0].residual, resumed[0].residual)
    for other in (None, [(sum(sizes(MIXED)),)]):
        mine = gradwire.Feedback(form, sum(sizes(MIXED)), seed=4, shapes=other)
        with pytest.raises(gradwire.InvalidArgument, match=r"state\['shapes'\]: is \[\[19\], \[30"):
            mine.load_state_dict(state)
        assert mine.step == 0
    with pytest.raises(gradwire.InvalidArgument, match=r"state\['shapes'\]: is None, must be \[\["):
        resumed[0].load_state_dict({k: v for k, v in state.items() if k != "shapes"})


@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_is_not_decoded_or_taken_back_teaches_nothing(form, rng):
    feedbacks, never = group(form, MIXED), group(form, MIXED)
    g, h = normal(rng, MIXED), normal(rng, MIXED)
    step(feedbacks, [h])
    feedbacks[0].rollback()
    with pytest.raises(gradwire.InvalidArgument, match="nothing is pending"):
        feedbacks[0].commit()
    expected, _ = step(never, [g])
    found, payloads = step(feedbacks, [g])
    np.testing.assert_array_equal(found, expected)
    if feedbacks[0].compressor.rounds == 2:
        feedbacks[0].compress(g)
        with pytest.raises(gradwire.InvalidArgument, match=r"must follow a compress_second\(\)"):
            feedbacks[0].commit()
        feedbacks[0].take_first([feedbacks[0].compress(g)])
        feedbacks[0].compress_second(g)
    else:
        feedbacks[0].compress(g)
    with pytest.raises(gradwire.InvalidArgument,
                       match=f"'{form}' learns from the payloads of all ranks, must follow a decom"):
        feedbacks[0].commit()
    assert feedbacks[0].step == 0
    feedbacks[0].decompress(payloads)
    commit(feedbacks + never)
    np.testing.assert_array_equal(step(feedbacks, [h])[0], step(never, [h])[0])


@pytest.mark.parametrize("form", FORMS)
def test_gradients_that_are_not_finite_teach_nothing(form, rng):
    feedbacks, never = group(form, MIXED), group(form, MIXED)
    bad = normal(rng, MIXED)
    bad[100] = np.nan
    first = feedbacks[0].compress(bad)
    assert gradwire.payload_info(first)["finite"] is False
    take = (feedbacks[0].take_first if feedbacks[0].compressor.rounds == 2
            else feedbacks[0].decompress)
    with pytest.raises(gradwire.NonFiniteGradient, match=r"payloads\[0\]"):
        take([first])
    with pytest.raises(gradwire.InvalidArgument):
        feedbacks[0].commit()
    g = normal(rng, MIXED)
    np.testing.assert_array_equal(step(feedbacks, [g])[0], step(never, [g])[0])


def test_rounds_out_of_order_are_refused(rng):
    numel = sum(sizes(MIXED))
    g = normal(rng, MIXED)
    one, two = (gradwire.Compressor(form, numel, shapes=MIXED) for form in FORMS)
    payload = one.compress(g)
    for refused in (lambda: one.take_first([payload]), lambda: one.compress_second(g)):
        with pytest.raises(gradwire.InvalidArgument, match="powersgd"):
            refused()
    first = two.compress(g)
    with pytest.raises(gradwire.InvalidArgument, match=r"comes before take_first\(\)"):
        two.compress_second(g)
    with pytest.raises(gradwire.InvalidArgument, match="payloads: is empty"):
        two.take_first([])
    with pytest.raises(gradwire.InvalidArgument, match="spec fingerprint"):
        two.take_first([payload])
    two.take_first(first)
    assert two.compress_second(g).tobytes() == two.compress_second(g).tobytes()
    assert gradwire.Compressor(FORMS[1], numel).rounds == 1  # nothing to send in a first round


def test_shapes_are_kept_and_take_what_models_have(rng):
    shapes = [[2, 3], (4,), np.array([5, 1]), ()]
    compressor = gradwire.Compressor("fp16", 16, shapes=shapes)
    assert compressor.shapes == [[2, 3], [4], [5, 1], []]
    assert gradwire.Compressor("fp16", 16).shapes is None
    assert gradwire.Compressor("fp16", 0, shapes=[]).shapes == []


@pytest.mark.parametrize("shapes, message", [
    ([(2, 3), (5,)], "shapes: have 11 elements, must have numel = 12"),
    ([(2, 3), (7,)], "shapes: have 13 elements, must have numel = 12"),
    ([], "shapes: have 0 elements, must have numel = 12"),
    ([(12,), (0, 4)], r"shapes\[1\]: is \(0, 4\), must hold integers from 1 on alone"),
    ([(-3, -4)], r"shapes\[0\]: is \(-3, -4\), must hold"),
    ([(1 << 31, 2)], r"shapes\[0\]: is \(2147483648, 2\), must have at most 2147483648 elements"),
    ([(1 << 40,)], r"shapes\[0\]: is \(1099511627776,\), must have at most"),
])
def test_shapes_that_are_none_are_refused(shapes, message):
    for make in (gradwire.Compressor, gradwire.Feedback):
        with pytest.raises(gradwire.InvalidArgument, match=message):
            make("powersgd:2", 12, shapes=shapes)


def test_shapes_of_another_type_are_refused():
    for shapes in ("12", [12], [("3", "4")], 12, [(3.5, 4)]):
        with pytest.raises(TypeError):
            gradwire.Compressor("powersgd:2", 12, shapes=shapes)
    with pytest.raises(TypeError):
        gradwire.Compressor("fp16", 12, "float32", 0, 0, 1, 1, [(12,)])  # by name alone
