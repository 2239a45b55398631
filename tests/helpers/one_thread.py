"""CuPy with one thread: kernels compiled by the C++ compiler, and arrays of NumPy for a GPU's.

What a GPU would do is then done by the same text, and by the same code around it, on any machine.
Barriers between threads have no meaning here, so that kernels whose threads share memory are out.
"""

import contextlib
import ctypes
import functools
from types import SimpleNamespace

import numpy as np

from iclflow.runs.fused.cpp import library

HEAD = """
#include <math.h>
#include <cstring>
#define __device__
#define __global__
#define __constant__ static
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __launch_bounds__(threads)
static double __longlong_as_double(long long x) { double y; std::memcpy(&y, &x, 8); return y; }
static long long __double_as_longlong(double x) { long long y; std::memcpy(&y, &x, 8); return y; }
static float __fdividef(float a, float b) { return a / b; }
static unsigned long long atomicAdd(unsigned long long* at, unsigned long long more) {
    const unsigned long long before = *at;
    *at += more;
    return before;
}
"""


class Module:
    """A compiled text, as `cupy.RawModule`."""

    def __init__(self, code, options):
        del options
        constants = [line.split("]")[0] for line in code.splitlines() if "__constant__" in line]
        names = [line.split("[")[0].split()[-1] for line in constants]
        places = [f'extern "C" const void* at_{name}() {{ return {name}; }}' for name in names]
        text = "\n".join([HEAD, code, *places])
        self.compiled = library(text, ("-w", "-O1", "-ffp-contract=off"))

    def get_global(self, name):
        place = getattr(self.compiled, f"at_{name}")
        place.restype = ctypes.c_void_p
        return place()

    def get_function(self, name):
        return Kernel(getattr(self.compiled, name))


class Kernel:
    """A function of a module: one thread makes a call, whatever the number that is asked for."""

    local_size_bytes = 2048

    def __init__(self, function):
        self.function = function

    def __call__(self, blocks, threads, arguments, shared_mem=0):
        assert len(blocks) == len(threads) == 1
        assert not shared_mem
        self.function(*map(_passed, arguments))


def _passed(argument):
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_longlong(int(argument))


def _array(size, kind, place):
    kind = np.dtype(kind)
    held = (ctypes.c_char * (int(size) * kind.itemsize)).from_address(place)
    return np.frombuffer(held, kind)


def cupy_of_one_thread():
    """What the fused loops take from CuPy."""
    properties = {"multiProcessorCount": 1}
    stream = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(
        Device=lambda number: contextlib.nullcontext(),
        get_current_stream=lambda: stream,
        runtime=SimpleNamespace(getDeviceProperties=lambda number: properties),
    )
    same = ("empty", "zeros", "asarray", "ascontiguousarray", "from_dlpack")
    return SimpleNamespace(
        cuda=cuda,
        RawModule=Module,
        ndarray=_array,
        asnumpy=functools.partial(np.array, copy=True),
        **{name: getattr(np, name) for name in same},
    )
