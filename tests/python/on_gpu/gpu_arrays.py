"""Arrays on a GPU: made by hand of NumPy's where the GPU is emulated, else CuPy's or torch's."""

import ctypes
import importlib.util
import os

import numpy as np

EMULATED = os.environ.get("GRADWIRE_EMULATED_CORE")


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]  # fmt: skip


class _Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor)]  # fmt: skip


def _content(capsule, name):
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return find(capsule, name)


def is_valid(capsule, name):
    find = ctypes.pythonapi.PyCapsule_IsValid
    find.restype, find.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    return bool(find(capsule, name))


class GpuArray:
    """A NumPy array that says it lies on a GPU. `streams`: those it was asked to be ready on."""

    def __init__(self, array, number=0, versioned=True, read_only=False, bfloat16=False):
        self.array, self.number, self.versioned = array, number, versioned
        self.read_only, self.bfloat16 = read_only, bfloat16
        self.streams, self.capsules = [], []

    shape = property(lambda self: self.array.shape)

    def __dlpack_device__(self):
        return 2, self.number

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        versioned = self.versioned and max_version is not None
        if versioned:
            capsule = self.array.__dlpack__(max_version=max_version)
            managed = _Versioned.from_address(_content(capsule, b"dltensor_versioned"))
            managed.flags |= int(self.read_only)
            tensor = managed.tensor
        else:
            capsule = self.array.__dlpack__()
            tensor = _Tensor.from_address(_content(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = 2, self.number
        if self.bfloat16:
            tensor.code = 4
        self.capsules.append(capsule)
        return capsule


class OldGpuArray(GpuArray):
    """Of a library from before DLPack 1.0, which knows no version."""

    def __dlpack__(self, *, stream=None):
        return super().__dlpack__(stream=stream)


class _Sealed:
    @property
    def __cuda_array_interface__(self):
        return {"data": (self.array.ctypes.data, True), "version": 3}


class SealedGpuArray(_Sealed, OldGpuArray):
    """The same of one whose arrays nobody may change, as it says elsewhere."""


class ForgetfulGpuArray(_Sealed, GpuArray):
    """Says it there alone, though its capsules could."""


class EmulatedGpu:
    stream = 7  # any handle: the emulator runs what it is given at once

    def array(self, values):
        return GpuArray(np.array(values))

    def host(self, array):
        return array.array.copy() if isinstance(array, GpuArray) else array.to_numpy()


class RealGpu:
    """CuPy's arrays, or torch's tensors."""

    def __init__(self):
        self.of_cupy = not self.missing_of("cupy")
        if self.of_cupy:
            import cupy

            self.cupy = cupy
            self.queue = cupy.cuda.Stream(non_blocking=True)
            self.stream = self.queue.ptr
        else:
            import torch

            self.torch = torch
            self.queue = torch.cuda.Stream()
            self.stream = self.queue.cuda_stream

    @staticmethod
    def missing_of(library):
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed"
        if library == "torch":
            import torch

            return "" if torch.cuda.is_available() else "torch sees no GPU"
        import cupy

        try:
            return "" if cupy.cuda.runtime.getDeviceCount() else "CuPy sees no GPU"
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"CuPy sees no GPU: {error}"

    @staticmethod
    def missing():
        why = [RealGpu.missing_of(library) for library in ("cupy", "torch")]
        return "; ".join(why) if all(why) else ""

    def array(self, values):
        values = np.array(values)
        if self.of_cupy:
            with self.queue:
                return self.cupy.asarray(values)
        with self.torch.cuda.stream(self.queue):
            return self.torch.from_numpy(values).cuda()

    def host(self, array):
        if hasattr(array, "to_numpy"):
            return array.to_numpy()
        self.queue.synchronize()
        return self.cupy.asnumpy(array) if self.of_cupy else array.cpu().numpy()


def host_capsule(array):
    """Of a DeviceArray on the emulated GPU, whose memory is the host's."""
    capsule = array.__dlpack__(stream=-1)
    _Tensor.from_address(_content(capsule, b"dltensor")).device_type = 1
    return capsule


def missing():
    """Why there is no GPU to test on; empty where there is one."""
    try:
        import pytest  # noqa: F401

        import gradwire
    except ImportError as error:
        return str(error)
    return gradwire.build_info()["cuda_unavailable_reason"] or RealGpu.missing()


if __name__ == "__main__":
    print(missing(), end="")
