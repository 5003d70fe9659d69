#!/usr/bin/env python3
"""Writes docs/performance.md from bench/results/*.json, the output of `kermes bench --json`.

Every number on that page comes from one of those files; none is typed by hand.
Usage: bench/performance.py            (needs nothing but Python 3)
"""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def number(v):
    if v is None:
        return "-"
    if v == 0:
        return "0"
    digits = 0 if abs(v) >= 100 else 1 if abs(v) >= 10 else 2
    return f"{v:,.{digits}f}"


def percent(v):
    return "-" if v is None else f"{100 * v:.0f}%"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def binary(n):
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if n >= size and n % size == 0:
            return f"{n // size}{unit}"
    return str(n)


class Results:
    def __init__(self, data):
        self.data = data
        self.by_key = {(r["suite"], r["op"], r["size"], r["engine"]): r for r in data["results"]}

    def get(self, suite, op, size, engine, field="rate"):
        return self.by_key.get((suite, op, size, engine), {}).get(field)

    def sizes(self, suite):
        return sorted({r["size"] for r in self.data["results"] if r["suite"] == suite})

    def ops(self, suite):
        seen = dict.fromkeys(r["op"] for r in self.data["results"] if r["suite"] == suite)
        return list(seen)


def matmul(r):
    engines = [e for e in ("naive", "openblas", "own-gemm", "cpu") if any(
        r.get("matmul", "matmul", n, e) is not None for n in r.sizes("matmul"))]
    if r.data["device"] not in engines:
        engines.append(r.data["device"])
    rows = []
    for n in r.sizes("matmul"):
        main = r.data["device"]
        rows.append([str(n)] + [number(r.get("matmul", "matmul", n, e)) for e in engines] +
                    [number(r.get("matmul", "matmul", n, main, "speedup")),
                     percent(r.get("matmul", "matmul", n, main, "of_limit"))])
    return "### Matrix products, f32, GFLOP/s\n\n" + table(
        ["n"] + engines + ["times naive", "of the limit"], rows)


def ops(r, suite, title):
    sizes = r.sizes(suite)
    main = r.data["device"]
    rows = []
    for op in r.ops(suite):
        rates = [r.get(suite, op, n, main) for n in sizes]
        speedups = [r.get(suite, op, n, main, "speedup") for n in sizes]
        rows.append([op] + [number(v) for v in rates] +
                    [number(next((v for v in reversed(speedups) if v is not None), None)),
                     percent(r.get(suite, op, sizes[-1], main, "of_limit"))])
    heads = [r.get(suite, r.ops(suite)[0], n, "cpu", "shape") if suite == "rows" else binary(n)
             for n in sizes]
    return f"### {title}, f32, GB/s\n\n" + table(
        ["op"] + heads + ["times naive", "of the limit"], rows)


def attention(r):
    main = r.data["device"]
    rows = []
    for n in r.sizes("attention"):
        rows.append([r.get("attention", "forward", n, main, "shape")] +
                    [number(r.get("attention", op, n, e)) for op, e in (
                        ("forward", "naive"), ("forward", main), ("backward", main))] +
                    [number(r.get("attention", "forward", n, main, "speedup")),
                     percent(r.get("attention", "forward", n, main, "of_limit"))])
    return "### Causal attention, f32, GFLOP/s\n\n" + table(
        ["shape", "naive forward", "forward", "backward", "times naive", "forward, of the limit"],
        rows)


def step(data):
    s = data.get("step")
    if not s:
        return ""
    return (f"### A training step\n\n{s['layers']} layers, {s['width']} wide, {s['heads']} heads, "
            f"{s['batch']} x {s['tokens']} tokens, {number(s['parameters'] / 1e6)} million "
            f"parameters, f32: **{number(s['ms'])} ms** ({number(s['tokens_per_second'])} tokens/s, "
            f"{number(s['gflops'])} GFLOP/s), {number(s['heap_allocs_per_step'])} heap allocations "
            f"and {number(s['pool_misses_per_step'])} pool misses a step, "
            f"{number(s['peak_tensor_bytes'] / 2**20)} MiB in tensors at most.\n")


def targets(data):
    rows = []
    for t in data["targets"]:
        result = {True: "met", False: "**missed**", None: "not measured"}[t["met"]]
        rows.append([t["name"], "-" if t["value"] is None else f"{t['value']:.3g}",
                     f"{t['relation']} {t['target']:g}", result])
    return "### Targets\n\n" + table(["target", "measured", "wanted", "result"], rows)


def machine(data, path):
    m, limits = data["machine"], data["limits"]
    blas = m["blas"]["name"] if m["blas"]["available"] else "no BLAS"
    lines = [f"## {m['cpu']}" + ("" if data["device"] == "cpu" else f", {data['device']}"), "",
             f"{data['threads']} threads, {m['kernels']} kernels, {blas}; Kermes {data['kermes']}; "
             f"from [`{path.name}`](../bench/results/{path.name}). Limits measured in the same run: "
             f"{number(limits['fma_gflops'])} GFLOP/s of f32 multiply-adds, copy "
             f"{number(limits['copy_gbs'])} GB/s, read {number(limits['read_gbs'])} GB/s.", ""]
    r = Results(data)
    if r.sizes("matmul"):
        lines.append(matmul(r))
    for suite, title in (("elementwise", "Elementwise"), ("rows", "Rows"), ("reduce", "Reductions")):
        if r.sizes(suite):
            lines.append(ops(r, suite, title))
    if r.sizes("attention"):
        lines.append(attention(r))
    lines += [step(data), targets(data)]
    return "\n".join(lines)


def main():
    paths = sorted((ROOT / "bench" / "results").glob("*.json"))
    pages = []
    for path in paths:
        data = json.loads(path.read_text())
        if "results" in data and "limits" in data:
            pages.append(machine(data, path))
    if not pages:
        raise SystemExit("bench/performance.py: no results of 'kermes bench --json' in bench/results")
    head = ("# Performance\n\n"
            "Generated by `bench/performance.py` from `bench/results/`; `bench/record` measures and "
            "writes both. Figures are from the best round after a warm-up, engines in turns; "
            "`naive` is plain C, one thread. The limit of products is multiply-adds in registers, "
            "of the others memory moving the same bytes in the same rounds. "
            "[docs/cli.md](cli.md) says what is counted.\n\n")
    (ROOT / "docs" / "performance.md").write_text(head + "\n".join(pages).rstrip() + "\n")
    print(f"docs/performance.md: {len(pages)} machine(s)")


if __name__ == "__main__":
    main()
