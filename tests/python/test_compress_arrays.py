"""Arrays are viewed in place; what cannot be is refused by name; the GIL is released."""

import sys
import threading
import time

import numpy as np
import pytest

import gradwire


def address(array):
    return array.__array_interface__["data"][0]


def test_out_is_written_in_place_and_the_payload_is_a_view_of_it(rng):
    gradient = rng.standard_normal(1000).astype(np.float32)
    compressor = gradwire.Compressor("none", 1000)
    out = np.full(compressor.capacity_bytes + 10, 0xAB, np.uint8)
    payload = compressor.compress(gradient, out=out)
    assert address(payload) == address(out) and np.shares_memory(payload, out)
    assert payload.dtype == np.uint8 and payload.nbytes == 32 + 4000
    assert (out[payload.nbytes :] == 0xAB).all()
    target = np.empty((10, 100), np.float32)
    assert compressor.decompress(payload, out=target) is target
    np.testing.assert_array_equal(target.reshape(-1), gradient)


def test_residuals_are_read_and_written_in_place(rng):
    gradient = rng.standard_normal(500).astype(np.float32)
    residual, left = np.ones(500, np.float32), np.zeros(500, np.float32)
    residual.flags.writeable = False
    gradient.flags.writeable = False
    compressor = gradwire.Compressor("int4", 500)
    payload = compressor.compress(gradient, residual, left)
    np.testing.assert_allclose(compressor.decompress(payload) + left, gradient + 1, atol=1e-6)
    assert left.any()


def test_a_payload_outlives_its_compressor_and_the_name_of_its_buffer():
    payload = gradwire.Compressor("none", 10000).compress(np.arange(10000, dtype=np.float32))
    np.testing.assert_array_equal(payload[32:].view(np.float32), np.arange(10000))


def test_payloads_may_be_bytes_bytearray_and_memoryview(rng):
    gradient = rng.standard_normal(300).astype(np.float32)
    compressor = gradwire.Compressor("fp16", 300)
    payload = compressor.compress(gradient)
    expected = compressor.decompress(payload)
    for kind in (bytes, bytearray, lambda b: memoryview(bytes(b))):
        np.testing.assert_array_equal(compressor.decompress(kind(payload)), expected)
    out = bytearray(compressor.capacity_bytes)
    np.testing.assert_array_equal(compressor.compress(gradient, out=out), payload)
    assert bytes(out[: payload.nbytes]) == payload.tobytes()


def test_buffers_of_any_type_and_shape_are_read_in_c_order():
    import array

    values = array.array("f", range(24))
    compressor = gradwire.Compressor("none", 24)
    expected = np.arange(24, dtype=np.float32)
    for gradient in (values, memoryview(values), expected.reshape(2, 3, 4)):
        decoded = compressor.decompress(compressor.compress(gradient))
        np.testing.assert_array_equal(decoded, expected)


def test_bfloat16_is_ml_dtypes_or_uint16_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
    gradient = np.linspace(-3, 3, 100).astype(ml_dtypes.bfloat16)
    compressor = gradwire.Compressor("none", 100, ml_dtypes.bfloat16)
    assert compressor.dtype == "bfloat16"
    payload = compressor.compress(gradient)
    np.testing.assert_array_equal(compressor.compress(gradient.view(np.uint16)), payload)
    decoded = compressor.decompress(payload)
    assert decoded.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(decoded, gradient)
    bits = np.empty(100, np.uint16)
    compressor.decompress(payload, out=bits)
    np.testing.assert_array_equal(bits, gradient.view(np.uint16))


def test_bfloat16_without_ml_dtypes_is_uint16(monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *rest: None if name == "ml_dtypes" else found(name, *rest))
    compressor = gradwire.Compressor("none", 4, "bfloat16")
    bits = np.array([0x3F80, 0, 0xC000, 0x4000], np.uint16)
    decoded = compressor.decompress(compressor.compress(bits))
    assert decoded.dtype == np.uint16
    np.testing.assert_array_equal(decoded, bits)


def floats(numel=10):
    return np.zeros(numel, np.float32)


def read_only(array):
    array.flags.writeable = False
    return array


def unaligned():
    return np.zeros(41, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize("gradient, message", [
    (np.zeros(10), "gradient: dtype is float64, must be float32"),
    (np.zeros(10, np.float16), "gradient: dtype is float16, must be float32"),
    (np.zeros(10, np.uint16), "gradient: dtype is uint16, must be float32"),
    (np.zeros(10, ">f4"), "gradient: byte order is not this machine's"),
    (floats(20)[::2], "gradient: is not contiguous, must be in C order"),
    (floats(10)[::-1], "gradient: is not contiguous"),
    (np.zeros((5, 2), np.float32, order="F"), "gradient: is not contiguous"),
    (np.broadcast_to(np.float32(1), 10), "gradient: is not contiguous"),
    (floats(9), "gradient: has 9 elements, must have 10"),
    (floats(0), "gradient: has 0 elements, must have 10"),
    (unaligned(), "gradient: address is not a multiple of 4"),
    ([0.0] * 10, "gradient: is a list, must be a NumPy array or support the buffer protocol or DLPack"),
    (None, "gradient: is a NoneType, must be"),
    (b"0123456789", "gradient: dtype is uint8, must be float32"),
    (memoryview(np.zeros(10)), "gradient: dtype is 'd', must be float32"),
])
def test_a_gradient_that_cannot_be_viewed_is_refused(gradient, message):
    with pytest.raises(gradwire.InvalidArgument) as error:
        gradwire.Compressor("int4", 10).compress(gradient)
    assert message in str(error.value)


def test_outputs_that_cannot_be_written_are_refused():
    compressor = gradwire.Compressor("int4", 10)
    capacity = compressor.capacity_bytes
    payload = compressor.compress(floats())
    shared = np.zeros(20, np.float32)

    def refused(message, call, *arguments, **keywords):
        with pytest.raises(gradwire.InvalidArgument) as error:
            call(*arguments, **keywords)
        assert message in str(error.value)

    compress, decompress = compressor.compress, compressor.decompress
    refused("out: is read-only", compress, floats(), out=read_only(np.zeros(capacity, np.uint8)))
    refused("out: is read-only", compress, floats(), out=bytes(capacity))
    refused(f"out: has {capacity - 1} bytes, must have at least {capacity}", compress, floats(),
            out=np.zeros(capacity - 1, np.uint8))
    refused("out: dtype is int8, must be uint8", compress, floats(),
            out=np.zeros(capacity, np.int8))
    refused("out: is not contiguous", compress, floats(), out=np.zeros(2 * capacity, np.uint8)[::2])
    refused("next_residual: is read-only", compress, floats(), floats(), read_only(floats()))
    refused("next_residual: has 9 elements", compress, floats(), floats(), floats(9))
    refused("residual: dtype is float64", compress, floats(), np.zeros(10), floats())
    refused("must be both or neither", compress, floats(), floats())
    refused("must be both or neither", compress, floats(), None, floats())
    refused("next_residual: shares memory with residual", compress, floats(), shared[:10],
            shared[5:15])
    refused("next_residual: shares memory with gradient", compress, shared[:10], floats(),
            shared[:10])
    big = np.zeros(capacity, np.uint8)
    refused("out: shares memory with gradient", compress, big[:40].view(np.float32), out=big)
    refused("out: is read-only", decompress, payload, out=read_only(floats()))
    refused("out: has 11 elements, must have 10", decompress, payload, out=floats(11))
    refused("out: dtype is float16", decompress, payload, out=np.zeros(10, np.float16))
    refused("payloads: is empty", decompress, [])
    refused("payloads[1]: dtype is float32, must be uint8", decompress, [payload, floats()])
    refused("payload", decompress, payload[:20])
    refused("payload", decompress, np.zeros(100, np.uint8))
    refused("payload: is a str", gradwire.payload_info, "x")


def test_a_payload_of_another_spec_or_size_is_refused():
    payload = gradwire.Compressor("int4", 10).compress(floats())
    for other in (gradwire.Compressor("int8", 10), gradwire.Compressor("int4", 11)):
        with pytest.raises(gradwire.InvalidArgument):
            other.decompress(payload)


def test_a_damaged_payload_never_crashes(rng):
    for spec in ("none", "int8", "int4", "topk:5%", "topk:5%,int4"):
        numel = 9000
        compressor = gradwire.Compressor(spec, numel)
        payload = compressor.compress(rng.standard_normal(numel).astype(np.float32)).copy()
        for _ in range(200):
            damaged = payload.copy()
            damaged[rng.integers(0, min(payload.size, 400))] ^= 1 << rng.integers(0, 8)
            try:
                assert compressor.decompress(damaged).shape == (numel,)
            except gradwire.InvalidArgument:
                pass
            cut = payload[: rng.integers(0, payload.size)].copy()
            with pytest.raises(gradwire.InvalidArgument):
                compressor.decompress(cut)


@pytest.mark.parametrize("arguments, message", [
    (("tpok:1%", 10), "unknown name 'tpok' (did you mean 'topk'?), known: none, fp16"),
    (("topk:2", 10), "must be in (0, 1]"),
    (("int4", 10, "float64"), "dtype: unknown name 'float64', known: float32, float16, bfloat16"),
    (("int4", 10, np.int32), "dtype: unknown name 'int32'"),
    (("int4", -1), "numel: is -1"),
    (("int4", 2**32), "numel"),
    (("int4", 10, "float32", -1), "seed: is -1"),
    (("int4", 10, "float32", 0, -1), "rank"),
    (("int4", 10, "float32", 0, 0, 0), "threads"),
])
def test_a_bad_request_is_refused_by_name(arguments, message):
    with pytest.raises(gradwire.InvalidArgument) as error:
        gradwire.Compressor(*arguments)
    assert message in str(error.value)


def test_an_empty_gradient_is_fine():
    for row in gradwire.compressors():
        compressor = gradwire.Compressor(row.example, 0)
        assert compressor.decompress(compressor.compress(floats(0))).shape == (0,)


def test_other_python_threads_run_while_a_gradient_is_compressed(rng):
    numel = 1 << 22
    gradient = rng.standard_normal(numel).astype(np.float32)
    compressor = gradwire.Compressor("int4,stochastic", numel)
    out, target = np.empty(compressor.capacity_bytes, np.uint8), np.empty_like(gradient)
    count, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)  # hands the GIL back at once

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        sys.setswitchinterval(1000)  # nobody is made to give the GIL up: only release counts
        progress = {"compress": 0, "decompress": 0}
        for _ in range(50):
            begin = count[0]
            payload = compressor.compress(gradient, out=out)
            middle = count[0]
            compressor.decompress(payload, out=target)
            progress["compress"] += middle - begin
            progress["decompress"] += count[0] - middle
            if all(progress.values()):
                break
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert all(progress.values()), progress


def test_two_threads_may_share_a_compressor(rng):
    gradient = rng.standard_normal(100000).astype(np.float32)
    compressor = gradwire.Compressor("int4", gradient.size, threads=2)
    expected = compressor.compress(gradient).tobytes()
    wrong = []

    def work():
        for _ in range(20):
            if compressor.compress(gradient).tobytes() != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
