"""How arrays of a GPU are taken: by DLPack, on a stream, in place or not at all."""

import ctypes

import numpy as np
import pytest
from gpu_arrays import EMULATED, ForgetfulGpuArray, GpuArray, OldGpuArray, SealedGpuArray, is_valid

import gradwire

NUMEL = 5000


def values(seed=1, numel=NUMEL):
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def compressor(spec="none", numel=NUMEL, dtype="float32"):
    return gradwire.Compressor(spec, numel, dtype, device="cuda")


def test_a_gradient_is_read_where_it_is(gpu):
    g = values()
    payload = compressor("topk:1%").compress(gpu.array(g), stream=gpu.stream)
    assert payload.device == "cuda:0" and payload.dtype == "uint8"
    wanted = gradwire.Compressor("topk:1%", NUMEL).compress(g)
    np.testing.assert_array_equal(payload.to_numpy()[: wanted.size], wanted)


@pytest.mark.parametrize("handle, asked", [(0, 1), (1, 1), (2, 2), (12345, 12345)])
def test_the_producer_is_asked_to_make_the_stream_wait(emulated, handle, asked):
    g = GpuArray(values())
    compressor().compress(g, stream=handle)
    assert g.streams == [asked]  # 0 is ambiguous in DLPack: the default stream is 1 there


class OfTorch:
    cuda_stream = 11


class OfCuPy:
    ptr = 12


class OfProtocol:
    def __cuda_stream__(self):
        return 0, 13


@pytest.mark.parametrize("stream, asked", [(OfTorch(), 11), (OfCuPy(), 12), (OfProtocol(), 13)])
def test_streams_of_libraries_name_their_handles(emulated, stream, asked):
    g = GpuArray(values())
    compressor().compress(g, stream=stream)
    assert g.streams == [asked]


@pytest.mark.parametrize("stream, words", [
    (-1, "stream: is -1"), (True, "stream: is True"), ("7", "stream: is '7'"),
    (None, "stream: is None, must be given with a GpuArray")])  # fmt: skip
def test_other_streams_are_refused(emulated, stream, words):
    with pytest.raises(gradwire.InvalidArgument, match=words):
        compressor().compress(GpuArray(values()), stream=stream)


def test_the_current_stream_of_torch_and_cupy_is_found(emulated, monkeypatch):
    import sys
    import types

    seen = []

    class Device:
        def __init__(self, number):
            seen.append(number)

        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    def library(name, cuda):
        made = types.ModuleType(name)
        made.cuda = cuda
        monkeypatch.setitem(sys.modules, name, made)
        return type("Array", (GpuArray,), {"__module__": f"{name}.inner"})

    torchs = library("torch", types.SimpleNamespace(
        current_stream=lambda number: (seen.append(number), OfTorch())[1]))
    cupys = library("cupy", types.SimpleNamespace(Device=Device, get_current_stream=OfCuPy))
    for kind, asked in ((torchs, 11), (cupys, 12)):
        g = kind(values())
        compressor().compress(g)
        assert g.streams == [asked]
    assert seen == [0, 0]


def test_what_gradwire_made_is_on_the_stream_it_was_made_on(gpu):
    made = compressor()
    payload = made.compress(gpu.array(values()), stream=gpu.stream)
    again = made.decompress(payload)
    np.testing.assert_array_equal(again.to_numpy(), values())
    assert again.__gradwire_stream__ == gpu.stream


def test_capsules_are_used_once_and_given_back(emulated):
    for kind, name in ((GpuArray, b"used_dltensor_versioned"), (OldGpuArray, b"used_dltensor")):
        g = kind(values())
        compressor().compress(g, stream=7)
        assert [is_valid(c, name) for c in g.capsules] == [True]


def test_arrays_that_nobody_may_change_are_read_and_never_written(emulated):
    made = compressor()
    sealed = [kind(values()) for kind in (SealedGpuArray, ForgetfulGpuArray)]
    sealed.append(GpuArray(values(), read_only=True))
    payloads = [made.compress(s, stream=7).to_numpy() for s in sealed]
    for other in payloads[1:]:
        np.testing.assert_array_equal(payloads[0], other)
    payload = made.compress(sealed[0], stream=7)
    for s in sealed:
        with pytest.raises(gradwire.InvalidArgument, match="out: is read-only, must be writable"):
            made.decompress(payload, 2.0, out=s, stream=7)
        with pytest.raises(gradwire.InvalidArgument, match=r"parameters\[0\]: is read-only"):
            gradwire.SGD([s], [GpuArray(values())], 0.1, stream=7)
        np.testing.assert_array_equal(s.array, values())


def test_arrays_elsewhere_are_refused_by_name(emulated):
    made = compressor()
    near, far = GpuArray(values()), GpuArray(values(), number=1)
    for wrong, where in ((far, "GPU 1"), (values(), "the CPU")):
        with pytest.raises(gradwire.InvalidArgument,
                           match=f"gradient: is in memory of {where}, must be of GPU 0"):
            made.compress(wrong, stream=7)
        with pytest.raises(gradwire.InvalidArgument,
                           match=rf"gradients\[1\]: is in memory of {where}, must be of GPU 0"):
            gradwire.SGD([near, GpuArray(values())], [GpuArray(values()), wrong], 0.1, stream=7)
    with pytest.raises(gradwire.InvalidArgument, match=r"gradient: is on a device \(DLPack's type 2"):
        gradwire.Compressor("none", NUMEL).compress(near)
    with pytest.raises(gradwire.InvalidArgument, match=r"gradients\[0\]: is on a device"):
        gradwire.SGD([values()], [near], 0.1)


def test_a_gpu_that_is_not_there_is_refused_with_the_reason(emulated):
    with pytest.raises(gradwire.Error, match="GPU 1.*device index is 1, must be in"):
        gradwire.SGD([GpuArray(values(), 1)], [GpuArray(values(), 1)], 0.1, stream=7)
    with pytest.raises(gradwire.Error, match="device: is 'cuda:3'.*must be in"):
        gradwire.Compressor("none", 8, device="cuda:3")
    for text in ("gpu", "cuda:", "cuda:x", "cuda1", "cuda:-1"):
        with pytest.raises(gradwire.InvalidArgument, match=f"device: is '{text}', must be 'cpu'"):
            gradwire.Compressor("none", 8, device=text)


def test_memory_that_cannot_be_viewed_is_refused(emulated):
    made = compressor()
    for wrong, words in (
        (GpuArray(values().astype(np.float64)), "gradient: dtype is float64, must be float32"),
        (GpuArray(np.stack([values(), values()], 1)[:, 0]), "gradient: is not contiguous"),
        (GpuArray(values(numel=8)), "gradient: has 8 elements, must have 5000"),
    ):
        with pytest.raises(gradwire.InvalidArgument, match=words):
            made.compress(wrong, stream=7)

    class Refuses(GpuArray):
        def __dlpack__(self, **_):
            raise BufferError("no streams here")

    with pytest.raises(gradwire.InvalidArgument, match="gradient: is a .*Refuses on GPU 0.*no streams here"):
        made.compress(Refuses(values()), stream=7)


def test_bfloat16_is_a_dtype_of_dlpack(emulated):
    bits = (values().view(np.uint32) >> 16).astype(np.uint16)
    made = compressor("topk:1%", dtype="bfloat16")
    payloads = [made.compress(GpuArray(bits, bfloat16=said), stream=7).to_numpy() for said in (True, False)]
    np.testing.assert_array_equal(*payloads)
    wanted = gradwire.Compressor("topk:1%", NUMEL, "bfloat16").compress(bits)
    np.testing.assert_array_equal(payloads[0][: wanted.size], wanted)
    with pytest.raises(gradwire.InvalidArgument, match="dtype is bfloat16, must be float32"):
        compressor().compress(GpuArray(bits, bfloat16=True), stream=7)


def test_streams_go_with_arrays_of_a_gpu_alone(gpu):
    with pytest.raises(gradwire.InvalidArgument, match="stream: is given, must be None"):
        gradwire.Compressor("none", NUMEL).compress(values(), stream=gpu.stream)
    with pytest.raises(gradwire.InvalidArgument, match="stream: is given, must be None"):
        gradwire.SGD([values()], [values()], 0.1, stream=gpu.stream)
    optimizer = gradwire.SGD([values()], [values()], 0.1)
    with pytest.raises(gradwire.InvalidArgument, match="stream: is given, must be None"):
        optimizer.step(stream=gpu.stream)
    with pytest.raises(gradwire.InvalidArgument, match="found_inf: is given, must be None"):
        optimizer.step(found_inf=values(numel=1))


def test_arrays_of_gradwire_go_to_other_libraries_in_place(gpu):
    payload = compressor().compress(gpu.array(values()), stream=gpu.stream)
    assert payload.__dlpack_device__() == (2, 0)
    for options, name in (({}, b"dltensor"), ({"max_version": (1, 0)}, b"dltensor_versioned"),
                          ({"stream": -1, "max_version": (0, 8)}, b"dltensor")):  # fmt: skip
        assert is_valid(payload.__dlpack__(**options), name)
    for bad, words in (({"stream": 0}, "stream: is 0"), ({"copy": True}, "copy: is True"),
                       ({"dl_device": (1, 0)}, "dl_device: is another device")):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=words):
            payload.__dlpack__(**bad)
    # By its own exporter, as any library's arrays: written in place.
    out = gradwire.DeviceArray("float32", [NUMEL])
    assert compressor().decompress(payload, 2.0, out=out, stream=gpu.stream) is out
    assert out.__gradwire_stream__ == gpu.stream  # which its readers wait for
    np.testing.assert_array_equal(out.to_numpy(), 2 * values())
    into = gradwire.DeviceArray("uint8", [compressor().capacity_bytes])
    compressor().compress(gpu.array(values()), out=into, stream=gpu.stream)
    assert into.__gradwire_stream__ == gpu.stream


def test_memory_of_the_gpu_ends_while_other_threads_of_python_run(emulated):
    made = [
        gradwire.Compressor("topk:1%", NUMEL, device="cuda"),
        gradwire.Compressor("powersgd:2", NUMEL, shapes=[[50, 100]], device="cuda"),
        gradwire.AdamW([GpuArray(values())], [GpuArray(values(2))], 0.1, stream=7),
        gradwire.DeviceArray("float32", (NUMEL,)),
    ]
    made[0].compress(GpuArray(values()), stream=7)
    made[2].step(stream=7)
    stopped = ctypes.c_int.in_dll(ctypes.CDLL(EMULATED), "gradwire_frees_with_gil")
    while made:
        what, stopped.value = repr(made[-1]), 0
        made.pop()
        assert stopped.value == 0, what
