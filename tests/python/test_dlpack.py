"""Arrays of other libraries, by DLPack: viewed in place, refused where that cannot be."""

import numpy as np
import pytest

import gradwire

NUMEL = 5000
RNG = np.random.default_rng(11)


class Exporter:
    """Memory that is known by DLPack alone."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def floats(numel=NUMEL):
    return RNG.standard_normal(numel).astype(np.float32)


def with_torch():
    return pytest.importorskip("torch").from_numpy


def with_jax():
    pytest.importorskip("jax")
    import jax.numpy

    return jax.numpy.asarray


@pytest.mark.parametrize("library", [lambda: Exporter, with_torch, with_jax],
                         ids=["protocol", "torch", "jax"])  # fmt: skip
def test_gradients_and_residuals_are_read_where_they_are(library):
    of = library()
    compressor = gradwire.Compressor("topk:1%", NUMEL)
    g, e = floats(), floats()
    nexts = [np.empty_like(e) for _ in range(2)]
    expected = compressor.compress(g, e, nexts[0])
    np.testing.assert_array_equal(compressor.compress(of(g), of(e), nexts[1]), expected)
    np.testing.assert_array_equal(*nexts)


@pytest.mark.parametrize("library", [lambda: Exporter, with_torch], ids=["protocol", "torch"])
def test_results_and_steps_are_written_where_they_belong(library):
    of = library()
    compressor = gradwire.Compressor("int8", NUMEL)
    payload = compressor.compress(floats(), floats(), floats()).copy()
    out = floats()
    compressor.decompress([payload], 1.0, out=of(out))
    np.testing.assert_array_equal(out, compressor.decompress([payload], 1.0))

    values, gradient = floats(), floats()
    copies = values.copy()
    gradwire.LAMB([of(values)], [of(gradient)], 0.1).step()
    gradwire.LAMB([copies], [gradient], 0.1).step()
    np.testing.assert_array_equal(values, copies)


def test_immutable_arrays_are_read_and_never_written():
    fixed = floats()
    fixed.flags.writeable = False
    compressor = gradwire.Compressor("none", NUMEL)
    payload = compressor.compress(Exporter(fixed)).copy()
    before = fixed.copy()
    with pytest.raises(gradwire.InvalidArgument, match="out: is read-only, must be writable"):
        compressor.decompress([payload], 2.0, out=Exporter(fixed))
    np.testing.assert_array_equal(fixed, before)


def test_jax_arrays_are_never_written():
    fixed = with_jax()(floats())
    with pytest.raises(gradwire.InvalidArgument, match="read-only, must be writable"):
        gradwire.SGD([fixed], [floats()], 0.1)


def test_memory_of_a_device_is_refused():
    with pytest.raises(gradwire.InvalidArgument,
                       match=r"gradient: is on a device \(DLPack's type 2, number 3\)"):
        gradwire.Compressor("none", NUMEL).compress(Exporter(floats(), (2, 3)))
    functional = gradwire.FunctionalOptimizer("sgd", [floats()], 0.1)
    with pytest.raises(gradwire.InvalidArgument, match=r"gradients\[0\]: is on a device .*type 2"):
        functional.update([Exporter(floats(), (2, 3))])


@pytest.mark.skipif(gradwire.build_info()["cuda_devices"] > 0, reason="there is a GPU here")
def test_without_a_gpu_the_reason_is_given():
    reason = gradwire.build_info()["cuda_unavailable_reason"]
    far = Exporter(floats(), (2, 0))
    for call in (lambda: gradwire.SGD([far], [far], 0.1),
                 lambda: gradwire.FunctionalOptimizer("sgd", [far], 0.1),
                 lambda: gradwire.Compressor("none", NUMEL, device="cuda")):  # fmt: skip
        with pytest.raises(gradwire.DeviceError) as refused:
            call()
        assert "GPU 0" in str(refused.value) or "'cuda'" in str(refused.value)
        assert reason in str(refused.value)
    with pytest.raises(gradwire.InvalidArgument, match="DLPack's type 10, .*of the CPU or of a CUDA GPU"):
        gradwire.SGD([Exporter(floats(), (10, 0))], [floats()], 0.1)


def test_what_cannot_be_viewed_is_refused_in_words():
    torch = pytest.importorskip("torch")
    compressor = gradwire.Compressor("none", NUMEL)
    for tensor, words in ((torch.zeros(NUMEL, requires_grad=True), "require gradient"),
                          (torch.zeros(NUMEL, dtype=torch.bfloat16), "must be viewed as uint16"),
                          (torch.zeros(NUMEL, dtype=torch.float64), "dtype is float64, must be float32"),
                          (torch.zeros(NUMEL, 2)[:, 0], "is not contiguous")):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=words):
            compressor.compress(tensor)
    bits = torch.ones(NUMEL, dtype=torch.bfloat16).view(torch.uint16)
    sixteen = gradwire.Compressor("none", NUMEL, "bfloat16")
    assert sixteen.compress(bits).nbytes > 2 * NUMEL


def test_bfloat16_of_jax_is_read_where_it_is():
    of = with_jax()
    bits = (floats().view(np.uint32) >> 16).astype(np.uint16)
    values = of(bits.view(pytest.importorskip("ml_dtypes").bfloat16))
    compressor = gradwire.Compressor("topk:1%", NUMEL, "bfloat16")
    np.testing.assert_array_equal(compressor.compress(values), compressor.compress(bits))
    with pytest.raises(gradwire.InvalidArgument, match="out: is read-only"):
        compressor.decompress([compressor.compress(bits).copy()], 1.0, out=values)
    with pytest.raises(gradwire.InvalidArgument, match="dtype is bfloat16, must be float32"):
        gradwire.Compressor("none", NUMEL).compress(values)


def test_verbs_read_arrays_of_jax_and_never_write_them():
    of = with_jax()
    transport = gradwire.make_transport("in_process")
    whole, ones = np.arange(6, dtype=np.int32), np.ones(6, np.float32)
    for got in (transport.all_gather(of(whole)), transport.all_to_all([of(whole)])):
        np.testing.assert_array_equal(got[0].view(np.int32), whole)
    np.testing.assert_array_equal(transport.reduce_scatter(of(ones)), ones)
    reducer = gradwire.Reducer(gradwire.make_plan([("w", (6,))], "none"), transport.split(0))
    for refused in (lambda: transport.all_reduce_sum(of(ones)),
                    lambda: transport.broadcast(of(whole)),
                    lambda: transport.reduce_scatter(ones, out=of(ones)),
                    lambda: reducer.bucket_ready(0, of(ones))):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match="is read-only, must be writable"):
            refused()
    reducer.accumulate(0, of(ones))
    reducer.accumulate(0, of(ones))
    reducer.grad_ready(0)
    reducer.wait()
    np.testing.assert_array_equal(reducer.gradient(0), 2 * ones)
    feedback = gradwire.Feedback("topk:50%", 6)
    kept = feedback.decompress([feedback.compress(of(ones))])
    np.testing.assert_array_equal(kept + (kept == 0), ones)
