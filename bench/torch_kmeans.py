#!/usr/bin/env python3
"""PyTorch's figures for the rounds of bench/kmeans.c: assignment by matmul and argmin in blocks of
rows, update by index_add, in f32, TF32 and bf16; the best counts. One JSON object a line.
usage: torch_kmeans.py N,D,K ..."""
import json
import sys
import time

import torch


def one_round(x, x_low, c, k, block):
    low = c.to(x_low.dtype)
    half = c.square().sum(1).mul(0.5)
    ids = torch.empty(x.shape[0], dtype=torch.int64, device="cuda")
    for i in range(0, x.shape[0], block):
        dot = x_low[i:i + block] @ low.t()
        ids[i:i + block] = (half.to(dot.dtype) - dot).argmin(1)
    sums = torch.zeros_like(c).index_add_(0, ids, x)
    counts = torch.zeros(k, device="cuda").index_add_(0, ids, torch.ones_like(ids, dtype=torch.float32))
    return sums / counts.clamp(min=1).unsqueeze(1)


def measure(n, d, k):
    torch.manual_seed(1)
    x = torch.randn(n, d, device="cuda")
    c = x[:k].clone()
    best = {}
    for name, dtype, tf32 in (("f32", torch.float32, False), ("tf32", torch.float32, True),
                              ("bf16", torch.bfloat16, True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x_low = x.to(dtype)
        for block in (16384, 65536, 131072):
            if block > 16384 and block // 2 >= n:
                continue
            for _ in range(3):
                one_round(x, x_low, c, k, block)
            took = []
            for _ in range(9):
                torch.cuda.synchronize()
                t = time.perf_counter()
                one_round(x, x_low, c, k, block)
                torch.cuda.synchronize()
                took.append(time.perf_counter() - t)
            ms = sorted(took)[len(took) // 2] * 1e3
            if name not in best or ms < best[name]:
                best[name] = ms
    ms = min(best.values())
    print(json.dumps({"engine": "torch", "version": torch.__version__, "job": "round", "n": n, "d": d,
                      "k": k, "ms": ms, "tflops": 2e-9 * n * d * k / ms, "by_dtype": best}), flush=True)


for shape in sys.argv[1:]:
    measure(*(int(v) for v in shape.split(",")))
