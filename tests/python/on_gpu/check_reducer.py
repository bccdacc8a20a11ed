"""The Reducer over a transport of GPU memory: the CPU's bits, without a wait. Where the GPU is emulated
its ranks are threads, arrays are NumPy's, and the transport "nccl" is a stand-in that copies between
them (tests/simt/one_gpu_transport.cc); on a GPU bench/gpu_hook.py has two processes do the same."""

import io
import threading
import uuid

import ml_dtypes
import numpy as np
import pytest
from gpu_arrays import EMULATED, GpuArray

import gradwire

pytestmark = pytest.mark.skipif(not EMULATED, reason="ranks that are threads are emulated")

SHAPES = [("embed", (50, 40)), ("one", (64, 33)), ("bias", (33,)), ("two", (33, 200))]
SIZES = [int(np.prod(shape)) for _, shape in SHAPES]
RANKS = 2
STREAM = 7  # no number means anything to the emulator, but none is refused


def run_ranks(body, ranks=RANKS):
    """body(rank) on threads; what each returned, or the first error."""
    results, errors = [None] * ranks, []

    def run(rank):
        try:
            results[rank] = body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "ranks wait for each other"
    return results


def groups():
    """Transports of the CPU and of the GPU, by rank."""
    name = uuid.uuid4().hex
    cpu = gradwire.make_in_process_group(RANKS)

    def gpu(rank):
        return gradwire.make_transport("nccl", rank=rank, world_size=RANKS, store=name)

    return cpu, gpu


def gradients(rank, step, dtype=np.float32):
    rng = np.random.default_rng(1000 * rank + step)
    return [rng.standard_normal(size).astype(dtype) for size in SIZES]


def as_bytes(arrays):
    return [None if a is None else a.tobytes() for a in arrays]


def give(reducer, arrays, dtype, **how):
    """In backward's order, several at once where they lie one after another."""
    last = np.concatenate(arrays[2:])
    reducer.give_from([2, 3], last.ctypes.data, dtype, **how)
    for p in (1, 0):
        reducer.give_from([p], arrays[p].ctypes.data, dtype, **how)
    return last  # on a GPU it has to stay


def take(reducer, dtype, like=np.float32, **how):
    whole = np.empty(sum(SIZES), like)
    reducer.write_means(list(range(len(SIZES))), whole.ctypes.data, dtype, **how)
    return whole.tobytes()


SPECS = ["none", "topk:5%,int4", "int8,stochastic", "dgc:5%,warmup=2", "powersgd:2", "topk:5%,ef21"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype, like", [("float32", np.float32), ("bfloat16", ml_dtypes.bfloat16),
                                         ("float16", np.float16)])  # fmt: skip
def test_steps_by_address_have_the_bits_of_the_cpu(spec, dtype, like):
    cpu, gpu = groups()
    plan = gradwire.make_plan(SHAPES, spec, exchange="gather", bucket_bytes=16384, seed=3)

    def steps(reducer, rank, scale):
        seen = []
        for step in range(3):
            # A loss scale: the CPU is told the number, the GPU where it lies.
            kept = give(reducer, gradients(rank, step, like), dtype,
                        **({"scale": scale.ctypes.data} if reducer.wait_tells is None else
                           {"factor": 1 / float(scale[0])}))  # fmt: skip
            outcome = reducer.wait()
            assert outcome is reducer.wait_tells
            del kept
            how = ({"scale": scale.ctypes.data} if reducer.wait_tells is None
                   else {"factor": float(scale[0])})  # fmt: skip
            seen.append(take(reducer, dtype, like, **how))
            seen.append(as_bytes([reducer.residual(p) for p in range(len(SIZES))]))
        reducer.synchronize()
        return seen, reducer.committed_steps

    class OnCpu(gradwire.Reducer):
        wait_tells = True

    class OnGpu(gradwire.Reducer):
        wait_tells = None

    scale = np.array([6.0], np.float32)
    wanted = run_ranks(lambda r: steps(OnCpu(plan, cpu[r]), r, scale))
    seen = run_ranks(lambda r: steps(OnGpu(plan, gpu(r), stream=STREAM), r, scale))
    assert seen == wanted


def test_a_step_that_is_left_out_gives_nan():
    _, gpu = groups()
    plan = gradwire.make_plan(SHAPES, "int8", exchange="gather")

    def body(rank):
        reducer = gradwire.Reducer(plan, gpu(rank), stream=STREAM, on_nonfinite="skip", left_out="nan")
        bad = gradients(rank, 0)
        bad[1][5] = np.inf if rank == 1 else 0.0
        give(reducer, bad, "float32")
        assert reducer.wait() is None
        assert np.isnan(np.frombuffer(take(reducer, "float32"), np.float32)).all()
        reducer.synchronize()
        assert (reducer.committed_steps, reducer.skipped_steps) == (0, 1)
        assert not any(reducer.residual(p).any() for p in (0, 1, 3))
        give(reducer, gradients(rank, 1), "float32")
        reducer.wait()
        assert np.isfinite(np.frombuffer(take(reducer, "float32"), np.float32)).all()
        assert reducer.committed_steps == 1

    run_ranks(body)


def test_an_error_is_told_by_synchronize():
    _, gpu = groups()
    plan = gradwire.make_plan(SHAPES, "int8", exchange="gather")

    def body(rank):
        reducer = gradwire.Reducer(plan, gpu(rank), stream=STREAM)
        bad = gradients(rank, 0)
        bad[1][5] = np.nan if rank == 1 else 0.0
        give(reducer, bad, "float32")
        with pytest.raises(gradwire.NonFiniteGradient):
            reducer.wait()  # here all has run by then
            reducer.synchronize()
        with pytest.raises(gradwire.NonFiniteGradient):
            reducer.synchronize()
        reducer.synchronize()
        give(reducer, gradients(rank, 1), "float32")
        assert reducer.wait() is None
        assert reducer.committed_steps == 1

    run_ranks(body)


def test_a_bucket_is_reduced_where_it_is():
    _, gpu = groups()
    plan = gradwire.make_plan([("w", (3000,))], "none", exchange="dense")

    def body(rank):
        reducer = gradwire.Reducer(plan, gpu(rank), stream=STREAM)
        bucket = np.full(3000, rank + 1, np.float32)
        reducer.bucket_ready_at(0, bucket.ctypes.data, bucket.size)
        reducer.wait()
        np.testing.assert_array_equal(bucket, np.full(3000, 1.5, np.float32))

    run_ranks(body)


def test_gradients_are_arrays_on_the_gpu_where_means_are_read():
    _, gpu = groups()
    plan = gradwire.make_plan(SHAPES, "none", exchange="dense")

    def body(rank):
        reducer = gradwire.Reducer(plan, gpu(rank), stream=STREAM)
        arrays = [reducer.gradient(p) for p in range(len(SHAPES))]
        for p, array in enumerate(arrays):
            assert (array.shape, array.dtype, array.device) == (SHAPES[p][1], "float32", "cuda:0")
            assert array.__gradwire_stream__ == STREAM
            array.assign(np.full(SHAPES[p][1], rank + 1, np.float32))
            reducer.grad_ready(p)
        reducer.wait()
        for p, array in enumerate(arrays):
            np.testing.assert_array_equal(array.to_numpy(), np.full(SHAPES[p][1], 1.5, np.float32))
        del array
        with pytest.raises(gradwire.InvalidArgument, match="set_plan: 4 arrays of gradient\\(\\) are in use"):
            reducer.set_plan(plan)
        arrays.clear()
        reducer.set_plan(plan)
        assert (reducer.on_nonfinite, reducer.left_out) == ("error", "zero")

    run_ranks(body)


@pytest.mark.parametrize("spec", ["topk:5%,int4", "powersgd:2", "threshold:5%"])
def test_checkpoints_go_from_one_to_the_other(spec):
    cpu, gpu = groups()
    plan = gradwire.make_plan(SHAPES, spec, exchange="gather", seed=3)

    def steps(reducer, rank, begin, end):
        for step in range(begin, end):
            give(reducer, gradients(rank, step), "float32")
            reducer.wait()
        file = io.BytesIO()
        reducer.save(file)
        return file.getvalue()

    def on_cpu(rank):
        reducer = gradwire.Reducer(plan, cpu[rank])
        return [steps(reducer, rank, 0, 2), steps(reducer, rank, 2, 4)]

    wanted = run_ranks(on_cpu)

    def on_gpu(rank):
        reducer = gradwire.Reducer(plan, gpu(rank), stream=STREAM)
        steps(reducer, rank, 50, 53)
        reducer.load(lambda of: wanted[of][0] if of < RANKS else None)
        return [steps(reducer, rank, 2, 2), steps(reducer, rank, 2, 4)]

    assert run_ranks(on_gpu) == wanted


@pytest.mark.parametrize("marks", [True, False])
def test_passes_add_up_and_unused_parameters_are_zero_as_on_the_cpu(marks):
    cpu, gpu = groups()
    plan = gradwire.make_plan(SHAPES, "topk:5%", exchange="gather", seed=3)

    def steps(reducer, rank, to_array):
        seen, kept = [], []
        for step in range(3):
            for part in (2 * step, 2 * step + 1):
                arrays = [to_array(array) for array in gradients(rank, part)]
                for p in (0, 1, 2) if rank == 0 else (0, 2):
                    reducer.accumulate(p, arrays[p])
                kept.append(arrays)
            for p in (2, 0):
                reducer.grad_ready(p)
            for p in (3, 1) if marks else ():
                reducer.mark_unused(p)
            reducer.wait()
            seen.append([reducer.unused_everywhere(p) for p in range(4)])
            seen.append(take(reducer, "float32"))
        return seen

    def on_gpu(rank):
        return steps(gradwire.Reducer(plan, gpu(rank), stream=STREAM, unused="zero"), rank, GpuArray)

    wanted = run_ranks(lambda r: steps(gradwire.Reducer(plan, cpu[r], unused="zero"), r, np.asarray))
    assert wanted[0][0] == [False, False, False, True]
    assert run_ranks(on_gpu) == wanted


def test_what_is_not_there_is_refused_by_name():
    cpu, gpu = groups()
    plan = gradwire.make_plan(SHAPES, "topk:5%", exchange="gather")

    def body(rank):
        transport = gpu(rank)
        assert (transport.device, cpu[rank].device) == ("cuda:0", "cpu")
        with pytest.raises(gradwire.InvalidArgument, match="stream: is None, must be the stream"):
            gradwire.Reducer(plan, transport)
        with pytest.raises(gradwire.InvalidArgument, match="stream: is given, must be None"):
            gradwire.Reducer(plan, cpu[rank], stream=STREAM)
        reducer = gradwire.Reducer(plan, transport, stream=STREAM)
        for call, words in [
            (lambda: reducer.mean(gradients(rank, 0)), "mean: gradients are on cuda:0, must be in CPU"),
            (lambda: reducer.deliver(0, "payloads"), "deliver: gradients are on GPU 0"),
            (lambda: reducer.replan("none"), "replan: 0 steps since the last plan"),
            (lambda: transport.all_to_all([b"abc", b"def"]), "carries memory of GPU 0"),
            (lambda: transport.barrier(), "carries memory of GPU 0"),
            (lambda: reducer.copy_residual(9, STREAM), "parameter: is 9, must be below 4"),
            (lambda: reducer.copy_residual(0, 0), "address: is 0"),
        ]:
            with pytest.raises(gradwire.InvalidArgument, match=words):
                call()
        transport.agree("text", "the same")
        words = [b"x" * 5000, b"yz"]  # of the host's memory
        told = transport.all_gather(words[rank], capacity=6000, fingerprint=7, what="words")
        assert [bytes(each) for each in told] == words
        with pytest.raises(gradwire.InvalidArgument, match="rank 1's text differs"):
            transport.agree("text", f"of {rank}")

    run_ranks(body)


def test_a_scale_by_address_is_for_a_gpu():
    reducer = gradwire.Reducer(gradwire.make_plan(SHAPES, "none"), gradwire.make_in_process_group(1)[0])
    gradient = np.zeros(SIZES[0], np.float32)
    with pytest.raises(gradwire.InvalidArgument, match="scale: is an address, must be 0"):
        reducer.give_from([0], gradient.ctypes.data, "float32", 1.0, gradient.ctypes.data)


def test_the_line_between_gpus_is_probed():
    bits_per_second, name = 1e7, uuid.uuid4().hex

    def body(rank):
        transport = gradwire.make_transport("nccl", rank=rank, world_size=RANKS, store=name,
                                            bits_per_second=bits_per_second)  # fmt: skip
        link = gradwire.probe_link(transport, budget=0.05)
        return link.alpha_s, link.beta_s_per_byte

    first, second = run_ranks(body)
    assert first == second and first[1] > 0.5 * 8 / bits_per_second
