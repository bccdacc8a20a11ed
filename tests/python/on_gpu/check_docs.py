"""The Python block of docs/gpu.md, on the emulated GPU, with a stand-in for CuPy."""

import re
import sys
import types
from pathlib import Path

import numpy as np
from gpu_arrays import GpuArray, host_capsule

import gradwire

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu.md"


class CupyArray(GpuArray):
    size = property(lambda self: self.array.size)


CupyArray.__module__ = "cupy.stand_in"


def test_the_block_runs(emulated, monkeypatch):
    class Device:
        def __init__(self, number):
            pass

        __enter__ = __exit__ = lambda *_: None

    cupy = types.ModuleType("cupy")
    cupy.zeros = lambda size, dtype: CupyArray(np.zeros(size, dtype))
    cupy.from_dlpack = lambda array: CupyArray(np.from_dlpack(Host(array)))
    cupy.cuda = types.SimpleNamespace(
        Device=Device, get_current_stream=lambda: types.SimpleNamespace(ptr=9))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    rng = np.random.default_rng(3)
    g = rng.standard_normal(5000).astype(np.float32)
    code = re.search(r"not run: needs CuPy.*?```python\n(.*?)```", PAGE.read_text(), re.S)[1]
    names = {"gradwire": gradwire, "cupy": cupy, "gradient": CupyArray(g),
             "weights": [CupyArray(g.copy())], "gradients": [CupyArray(g.copy())]}  # fmt: skip
    names["other"] = gradwire.Compressor("topk:1%,int8", 5000, device="cuda").compress(CupyArray(g))
    exec(code, names)
    here = gradwire.Compressor("topk:1%,int8", 5000)
    payload = here.compress(g, np.zeros(5000, np.float32), np.empty(5000, np.float32)).copy()
    np.testing.assert_array_equal(names["mean"].array, here.decompress(payload))
    assert names["compressor"].parity == 1 and names["compressor"].step == 1
    weights = [g.copy()]
    gradwire.LAMB(weights, [g.copy()], lr=1e-3).step()
    np.testing.assert_array_equal(names["weights"][0].array, weights[0])


class Host:
    """A DeviceArray's memory, as the CPU's."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return host_capsule(self.array)

    def __dlpack_device__(self):
        return 1, 0
