"""What a call from Python costs, through cffi's ABI mode as the package uses it and through ctypes.

The three-scalar call is fma(x, y, z) of the C library, through the same machinery; the rest are calls
of Kermes. Ways take turns within each round, and the best round counts.

Usage: PYTHONPATH=build/release/python KERMES_LIBRARY=build/release/libkermes.so \\
           python3 bench/python_call.py [--json FILE]
"""
import argparse
import ctypes
import json
import platform
import timeit

import cffi
import numpy as np

import kermes
from kermes import _library as k


def ways():
    plain = cffi.FFI()
    plain.cdef("double fma(double, double, double);")
    by_cffi = plain.dlopen("libm.so.6").fma
    by_ctypes = ctypes.CDLL("libm.so.6").fma
    by_ctypes.argtypes, by_ctypes.restype = [ctypes.c_double] * 3, ctypes.c_double
    t = kermes.tensor(np.ones((4, 4), np.float32))
    index = kermes.Index.build(np.random.default_rng(0).normal(size=(256, 16)).astype("f4"), bytes=8)
    query = np.zeros((1, 16), np.float32)
    dim, pointer = k.lib.km_tensor_dim, t._kept
    return {
        "three scalars, cffi": lambda: by_cffi(1.0, 2.0, 3.0),
        "three scalars, ctypes": lambda: by_ctypes(1.0, 2.0, 3.0),
        "km_tensor_dim(t, 0)": lambda: dim(pointer, 0),
        "tensor.ndim": lambda: t.ndim,
        "tensor.shape": lambda: t.shape,
        "tensor + 1.0, of 16": lambda: t + 1.0,
        "index.search, 1 of 256": lambda: index.search(query, k=1, threads=1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json")
    args = parser.parse_args()
    calls, number, best = ways(), 20000, {}
    for _ in range(7):
        for name, call in calls.items():
            n = number if "search" not in name else 500
            seconds = timeit.timeit(call, number=n) / n
            best[name] = min(best.get(name, 1.0), seconds)
    for name, seconds in best.items():
        print(f"{name:26s} {seconds * 1e6:8.3f} us")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"python": platform.python_version(), "cffi": cffi.__version__,
                       "numpy": np.__version__, "kermes": kermes.__version__,
                       "microseconds": {n: round(s * 1e6, 3) for n, s in best.items()}}, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
