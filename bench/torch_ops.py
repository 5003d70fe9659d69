#!/usr/bin/env python3
"""PyTorch's figures for the work in bench/gpu_ops.c, under the same names and timed the same way:
several runs captured as a CUDA graph, replayed, best of seven rounds. One JSON object a line.
usage: torch_ops.py [matmuls] [maps] [rows] [attention]"""
import json
import sys
import time

import torch
import torch.nn.functional as F

torch.manual_seed(1)
K, M = 1024, 1024 * 1024


def plainly(fn, repeat):
    """For work that cannot be captured: the launches stay under way, so long kernels hide them."""
    class Plain:
        def replay(self):
            for _ in range(repeat):
                fn()
    return Plain()


def measure(name, amount, unit, fn, capture=True):
    repeat = 50 if amount < 1e8 else 10 if amount < 2e10 else 3
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.synchronize()
    if capture:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeat):
                fn()
    else:
        graph = plainly(fn, repeat)
    graph.replay()
    torch.cuda.synchronize()
    t = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    rounds = int(0.02 / (time.perf_counter() - t)) + 3
    best = 1e9
    for _ in range(7):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(rounds):
            graph.replay()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - t) / rounds / repeat)
    print(json.dumps({"name": name, "us": best * 1e6, "rate": amount / best / 1e12, "unit": unit}),
          flush=True)


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)


def matmuls():
    for dtype, label, sizes in [(torch.float32, "f32", (1024, 4096)),
                                (torch.bfloat16, "bf16", (1024, 4096, 8192))]:
        for n in sizes:
            a, b = rand(n, n, dtype=dtype), rand(n, n, dtype=dtype)
            measure(f"matmul {label} {n}", 2 * n**3, "TFLOP/s", lambda: a @ b)
    a, b = rand(1, 4096), rand(4096, 4096)
    measure("matmul f32 1x4096x4096", 4 * 4096 * 4096, "TB/s", lambda: a @ b)
    turn, matrices = [0], [rand(4096, 4096) for _ in range(5)]  # so that the L2 does not serve them

    def one_of_them():
        turn[0] += 1
        return a @ matrices[turn[0] % 5]

    measure("matmul f32 1x4096x4096, 5 matrices in turn", 4 * 4096 * 4096, "TB/s", one_of_them)
    torch.backends.cuda.matmul.allow_tf32 = True
    a, b = rand(4096, 4096), rand(4096, 4096)
    measure("matmul tf32 4096", 2 * 4096**3, "TFLOP/s", lambda: a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False


def maps():
    gelu = lambda x: F.gelu(x, approximate="tanh")
    for n, label in [(256 * K, "256K"), (64 * M, "64M")]:
        a, b = rand(n), rand(n)
        for name, fn, streams in [("add", lambda: a + b, 3), ("mul", lambda: a * b, 3),
                                  ("relu", lambda: F.relu(a), 2), ("gelu", lambda: gelu(a), 2),
                                  ("exp", lambda: torch.exp(a), 2)]:
            measure(f"{name} f32 {label}", 4 * streams * n, "TB/s", fn)
    for n, label in [(M, "1M"), (64 * M, "64M")]:
        a = rand(n)
        measure(f"sum f32 {label}", 4 * n, "TB/s", lambda: a.sum())


def rows():
    for r, c in [(8192, 4096), (16384, 50304)]:
        x, w, b = rand(r, c), rand(c), rand(c)
        for name, fn in [("softmax", lambda: F.softmax(x, -1)),
                         ("layer_norm", lambda: F.layer_norm(x, (c,), w, b)),
                         ("rms_norm", lambda: F.rms_norm(x, (c,), w, 1e-5))]:
            measure(f"{name} f32 {r}x{c}", 8 * r * c, "TB/s", fn)
        del x
    r, c = 16384, 50304
    x = rand(r, c, dtype=torch.bfloat16).requires_grad_()
    t = torch.arange(r, device="cuda") * 3

    def loss_and_gradient():
        x.grad = None
        F.cross_entropy(x, t).backward()

    measure(f"cross_entropy+grad bf16 {r}x{c}", 4 * r * c, "TB/s", loss_and_gradient)


def attention():
    """Heads side by side, as a linear layer leaves them, and as tensors of their own."""
    sizes = [(16, 12, 1024, 64), (4, 16, 4096, 128)]
    for (b, h, t, d), apart in [(s, apart) for s in sizes for apart in (False, True)]:
        shape = f"bf16 B{b} H{h} T{t} D{d}"
        if apart:
            q, k, v = (rand(b, h, t, d, dtype=torch.bfloat16) for _ in range(3))
            shape += ", heads apart"
        else:
            q, k, v = (rand(b, t, h, d, dtype=torch.bfloat16).transpose(1, 2).detach() for _ in range(3))
        work = 2 * b * h * t * t * d
        attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        measure(f"attention forward {shape}", work, "TFLOP/s", attend)
        for x in (q, k, v):
            x.requires_grad_()
        out = attend()
        dy = torch.randn_like(out)
        back = lambda: torch.autograd.grad(out, (q, k, v), dy, retain_graph=True)
        measure(f"attention backward {shape}", 2.5 * work, "TFLOP/s", back, capture=False)


if __name__ == "__main__":
    parts = {"matmuls": matmuls, "maps": maps, "rows": rows, "attention": attention}
    for part in [parts[a] for a in sys.argv[1:]] or parts.values():
        try:
            part()
        except Exception as e:  # one missing kernel must not hide the rest
            print(json.dumps({"error": f"{part.__name__}: {e}"[:300]}), flush=True)
