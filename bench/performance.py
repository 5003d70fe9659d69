#!/usr/bin/env python3
"""Writes docs/performance.md from bench/results/*.json: the output of `kermes bench --json`, of the
scripts that check a GPU, and of those in bench/peers.

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
        rows.append([t["name"], "-" if t["value"] is None else f"{t['value']:.4g}",
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


def wanted(target, figure, ratio, ours):
    """What bench/gpu_targets.json wants of a figure, and whether it is met (None: cannot be told)."""
    if "of_pytorch" in target:
        bound = target["of_pytorch"]
        return f"{bound:g} x PyTorch", ratio >= bound if ratio else None
    if "rate" in target:
        return f"{target['rate']:g} {figure['unit']}", figure["rate"] >= target["rate"]
    if "us" in target:
        return f"at most {target['us']:g} us", figure["us"] <= target["us"]
    if target.get("of") in ours:
        part = figure["rate"] / ours[target["of"]]["rate"]
        return f"{target['at_least']:g} x cuBLAS (is {part:.2f})", part >= target["at_least"]
    return "-", None


def gpu(data, path):
    """A results file of scripts/gpu-check."""
    torch = {t["name"]: t for t in data["torch"] if "name" in t}
    ours = {t["name"]: t for t in data["kermes"] if "name" in t}
    targets = json.loads((ROOT / "bench" / "gpu_targets.json").read_text())
    rows = []
    for name, r in ours.items():
        them = torch.get(name, {}).get("rate")
        ratio = r["rate"] / them if them else None
        want, met = wanted(targets.get(name, {}), r, ratio, ours)
        rows.append([name, f"{r['us']:.4g}", f"{r['rate']:.4g} {r['unit']}",
                     "-" if them is None else f"{them:.4g}", "-" if ratio is None else f"{ratio:.2f}",
                     want, {True: "met", False: "**missed**", None: ""}[met]])
    beside = f"PyTorch {data['torch_version']} in the same run" if torch else "no PyTorch beside"
    return "\n".join([
        f"## {data['gpu'].replace('-', ' ')}", "",
        f"{data['date']}, {beside}; from [`{path.name}`](../bench/results/{path.name}), written by "
        "`scripts/gpu-check`. Every run is a replay of a captured graph; best of seven rounds.", "",
        table(["work", "us", "Kermes", "PyTorch", "ratio", "wanted", "result"], rows),
        beside_cpu(data.get("suites") or []), gpu_steps(data.get("steps") or []),
        gpu_memory(data.get("bench") or {}), gpu_checks(data.get("checks") or [])])


def beside_cpu(suites):
    """Outputs of `kermes bench --device cuda --json`: plain C, OpenBLAS and the CPU beside the GPU."""
    text = ""
    for data in suites:
        r, device, m = Results(data), data["device"], data["machine"]
        if not text:
            text = (f"### Beside the CPU: {m['cpu']}, {data['threads']} threads\n\n"
                    "Calls one after the other, waited for at the end of a round, no graphs; best "
                    "round, and the quartiles of all rounds.\n\n")
        if r.sizes("matmul"):
            text += matmul_beside(r, device)
        for suite in ("elementwise", "rows", "reduce"):
            if r.sizes(suite):
                text += ops_beside(r, suite, device)
    return text


def quartiles(r, suite, op, n, engine):
    """Of the rates, in the sample's unit."""
    best, rate = r.get(suite, op, n, engine, "seconds"), r.get(suite, op, n, engine)
    low, high = (r.get(suite, op, n, engine, f"seconds_{q}") for q in ("q3", "q1"))
    return "-" if not low else f"{number(rate * best / low)} to {number(rate * best / high)}"


def matmul_beside(r, device):
    rows, parts = [], []
    for n in r.sizes("matmul"):
        rate = {e: r.get("matmul", "matmul", n, e) for e in ("naive", "openblas", "cpu", device)}
        times = lambda e: "-" if not rate[e] else number(rate[device] / rate[e])
        part = r.get("matmul", "matmul", n, "naive", "part")
        if part:
            parts.append(f"{part} at {n}")
        rows.append([str(n)] + [number(rate[e]) for e in ("naive", "openblas", "cpu", device)] +
                    [quartiles(r, "matmul", "matmul", n, device), times("naive"), times("openblas")])
    note = f" Plain C does {', '.join(parts)}." if parts else ""
    return (f"Matrix products, f32, GFLOP/s; {r.data['machine']['blas']['name']}.{note}\n\n" +
            table(["n", "naive", "OpenBLAS", "cpu", device, "quartiles", "times naive",
                   "times OpenBLAS"], rows) + "\n")


def ops_beside(r, suite, device):
    sizes, rows = r.sizes(suite), []
    for op in r.ops(suite):
        row = [op]
        for n in sizes:
            cpu, gpu = r.get(suite, op, n, "cpu"), r.get(suite, op, n, device)
            row += [number(cpu), number(gpu), number(gpu / cpu if cpu and gpu else None)]
        rows.append(row + [quartiles(r, suite, op, sizes[-1], device),
                           number(r.get(suite, op, sizes[-1], device, "speedup"))])
    heads = []
    for n in sizes:
        shape = r.get(suite, r.ops(suite)[0], n, "cpu", "shape") if suite != "elementwise" else binary(n)
        heads += [f"{shape}: cpu", device, "times"]
    return f"{suite.capitalize()}, f32, GB/s.\n\n" + table(
        ["op"] + heads + ["quartiles", "times naive"], rows) + "\n"


def gpu_steps(steps):
    if not steps:
        return ""
    rows = [[s["name"], number(s["ms"]), number(s["forward_ms"]), number(s["backward_ms"]),
             number(s["update_ms"]), number(s["tokens_per_s"])] for s in steps]
    return ("### A step of GPT-2 in parts\n\nEach part by itself and waited for, so that they add up "
            "to a little more than the step.\n\n" +
            table(["step", "ms", "forward, ms", "backward, ms", "update, ms", "tokens/s"], rows) + "\n")


def gpu_memory(bench):
    text = ""
    m = bench.get("memory")
    if m:
        held = ", ".join(
            f"{h['op']}{' for the gradient of ' + h['gradient_of'] if h['gradient_of'] else ''} "
            f"{number(h['bytes'] / 2**20)}" for h in m["at_peak"][:4])
        text += (f"### Memory of a training step\n\n{m['layers']} layers, {m['width']} wide, "
                 f"{m['batch']} x {m['tokens']} tokens: {number(m['peak_bytes'] / 2**20)} MiB in "
                 f"tensors at most, in op {m['peak_index']} of {m['ops']}. Most of it then (MiB): "
                 f"{held}.\n\n")
    rows = []
    for d in (bench.get("pool") or {}).get("devices", []):
        for size in d["sizes"]:
            rows.append([d["device"], binary(size["bytes"]), number(size["pool_ns"]),
                         number(size["system_ns"]), number(size["ratio"])])
        s = d["steady"]
        text += (f"On {d['device']}, {s['steps']} warm training steps took {s['buffers']} buffers, "
                 f"{s['system_allocations']} of them from the system or driver.\n\n")
    if rows:
        text += table(["device", "bytes", "pool, ns", "system or driver, ns", "times"], rows)
    return text


def gpu_checks(checks):
    if not checks:
        return ""
    return "### Checks\n\n" + table(["check", "result", "seconds"], [
        [c["name"], c["result"], str(c["seconds"])] for c in checks])


def training(data, path):
    """A results file of scripts/gpu-train-check or bench/record-training."""
    torch = {t["name"]: t for t in data.get("torch", [])}
    rows = []
    for t in data["training"]:
        them = torch.get(t["name"], {})
        ratio = t["tokens_per_s"] / them["tokens_per_s"] if them else None
        rows.append([t["name"], f"{t['ms']:.4g}", number(t["tokens_per_s"]),
                     f"{t['tflops']:.4g}", f"{t['peak_gib']:.1f}",
                     number(them.get("tokens_per_s")), number(them.get("peak_gib")),
                     "-" if ratio is None else f"{ratio:.2f}"])
    beside = (f", PyTorch {data['torch_version']} (compiled) in the same run" if torch else "")
    text = [f"## Training, {data.get('model') or data['gpu']}", "",
            f"{data['date']}{beside}; from [`{path.name}`](../bench/results/{path.name}). Whole "
            "steps: forward, backward, clipping, AdamW.", "",
            table(["step", "ms", "tokens/s", "TFLOP/s", "GiB", "PyTorch, tokens/s", "its GiB",
                   "ratio"], rows)]
    chars = data.get("characters")
    if chars:
        text += [f"Tiny Shakespeare by characters, {number(chars['parameters'] / 1e6)} million "
                 f"parameters, {chars['step']} steps: validation loss "
                 f"{chars['val_loss']:.4f} in {number(chars['seconds'])} s "
                 f"({number(chars['tokens_per_s'])} tokens/s).", ""]
    checks = data.get("checks") or []
    if checks:
        text.append("### Checks of training\n\n" + table(
            ["check", "result"], [[c["name"], c["result"]] for c in checks]))
    return "\n".join(text)


def inference(data, path):
    """A results file of bench/peers/record.py."""
    rows = []
    for m in data["inference"]:
        cells = [m["model"], f"{m['bytes'] / 2**20:.0f} MiB"]
        for kind in ("decode", "prompt"):
            one = m["speed"][kind + "_tokens_per_s"]
            short = kind == "prompt" and m["speed"]["prompt_tokens"] != 512
            cells += [number(one["kermes"]["best"]) + (
                          f" ({m['speed']['prompt_tokens']} tokens)" if short else ""),
                      number(one["llama.cpp"]["best"]),
                      f"{one['ratio']['best']:.2f} ({one['ratio']['median']:.2f})"]
        rows.append(cells)
    first = data["inference"][0]
    text = [f"## Running models on {data['machine']}, beside llama.cpp\n",
            f"{data['date']}, {data['threads']} threads, {data['kernels']} kernels, "
            f"llama-cpp-python {data['llama_cpp_python']} built for this machine; from "
            f"[`{path.name}`](../bench/results/{path.name}), written by `bench/peers/record.py`. "
            f"Tokens a second, best of {data['rounds']} rounds in turns; ratios of the best and, in "
            "brackets, of the medians. Prompts have 512 tokens unless it says otherwise.\n",
            table(["model", "size", "decode", "llama.cpp", "ratio", "prompt", "llama.cpp", "ratio"],
                  rows)]
    start = first["start"]["seconds_to_first_token"]
    memory, beside = first["memory"], first["neighbour"]["decode_tokens_per_s"]
    rows = [["first token of an answer to 10 tokens, from the process's start",
             f"{1000 * start['kermes']['best']:.0f} ms",
             f"{1000 * start['llama.cpp']['best']:.0f} ms "
             f"({1000 * start['llama.cpp without Python']['best']:.0f} ms without Python)"],
            ["most memory, 512 tokens in a context of 2048",
             f"{memory['kermes_bytes'] / 2**20:.0f} MiB, {memory['kermes_of_that']:.2f} of file, "
             "cache and 64 MiB", f"{memory['llama.cpp_bytes'] / 2**20:.0f} MiB "
             f"({memory['llama.cpp_without_python_bytes'] / 2**20:.0f} without Python)"],
            ["decoding beside a busy program on each core, of its fair share",
             percent(beside["kermes"]["of_fair_share"]),
             percent(beside["llama.cpp"]["of_fair_share"])]]
    for m in data["inference"]:
        if "bandwidth" in m:
            b = m["bandwidth"]
            rows.append([f"weights read while decoding {m['model']}, of the "
                         f"{b['memory_read_gb_per_s']:.1f} GB/s that memory gives",
                         percent(b["kermes"]["of_memory"]), percent(b["llama.cpp"]["of_memory"])])
    text.append(table([f"{first['model']}", "Kermes", "llama.cpp"], rows))
    agree = data["agreement"]
    texts, p = agree["texts"], agree["perplexity"]
    others = [f"{what} on {texts['prompts'] - agree[key]['wrong']}" for key, what in (
        ("llama.cpp_for_another_processor", "compiled for another processor,"),
        ("llama.cpp_with_flash_attention", "with flash attention,")) if key in agree]
    text.append(f"Of {texts['prompts']} prompts, {texts['tokens']} likeliest tokens each, "
                f"{texts['prompts'] - texts['wrong']} agree with llama.cpp up to a place where its "
                f"two best tokens are nearer than {texts['margin']}; llama.cpp agrees with itself, "
                f"{' and '.join(others)}. "
                f"Perplexity of {p['bytes']:,} bytes of Shakespeare: {p['kermes']:.3f}, llama.cpp "
                f"{p['llama.cpp']:.3f}.\n")
    return "\n".join(text)


def types(data, path):
    """A results file of bench/peers/every_type.py."""
    rows = [["as it came", f"{data['bytes'] / 2**20:.0f} MiB", f"{data['perplexity']:.3f}", "", ""]]
    rows += [[t["type"], f"{t['bytes'] / 2**20:.0f} MiB", f"{t['perplexity']:.3f}",
              f"{t['divergence']:.4f}", percent(t["same_top"])] for t in data["types"]]
    return (f"## {data['model']} converted into other types\n\n"
            f"From [`{path.name}`](../bench/results/{path.name}), written by `bench/peers/every_type.py`: "
            f"{data['text_tokens']:,} tokens in pieces of {data['context']}; divergence from the "
            "predictions of the file as it came, in nats a token, and how often the likeliest token "
            "is the same.\n\n"
            + table(["type", "size", "perplexity", "divergence", "same token"], rows))


def models(data, path):
    """A results file of scripts/gpu-models: kermes bench decode, prompt and batch."""
    rows = []
    for m in data["models"]:
        for r in m["results"]:
            what = {"decode": f"decode after {r['context']} tokens",
                    "prompt": f"prompt of {r['tokens']} tokens",
                    "batch": f"{r['sequences']} sequences after {r['context']} tokens"}[r["job"]]
            each = r["bytes_per_token"]
            rows.append([m["model"], what, number(r["tokens_per_s"]),
                         "-" if each is None else f"{each / 2**20:,.0f} MiB",
                         percent(r["of_limit"]), number(r["tflops"])])
    # 0: that build did not measure it
    limit = max((m["limits"]["device_copy_gbs"] or m["limits"]["read_gbs"]) for m in data["models"])
    return (f"## Running models on {data['device']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), written by "
            "`scripts/gpu-models`: random weights, the way that `kermes run` takes, tokens chosen on the "
            "GPU. What a token must read are all weights and the keys and values before it"
            + (f"; the limit is the speed of copies on the same GPU, {number(limit)} GB/s" if limit else "") + ".\n\n"
            + table(["model", "work", "tokens/s", "a token reads", "of the limit", "TFLOP/s"], rows)
            + models_beside(data) + models_ops(data) + models_texts(data))


def one_model(data, path):
    """One run of kermes bench decode and prompt --json."""
    rows = [[r["job"], number(r["tokens_per_s"]), number(r["tokens_per_s_median"])] for r in data["results"]]
    return (f"## {data['model']} on {path.stem} ({data['device']})\n\n"
            f"From [`{path.name}`](../bench/results/{path.name}), written by `kermes bench decode prompt --json`.\n\n"
            + table(["work", "tokens/s, best round", "median"], rows))


def models_beside(data):
    """What is wanted of the GPU beside the CPU, and of its memory; newer files have it."""
    rows = []
    cpu = data.get("beside_cpu")
    if cpu:
        mine = next(r for r in cpu["results"] if r["job"] == "decode")
        there = next((r for m in data["models"] if m["model"] == cpu["model"]
                      for r in m["results"] if r["job"] == "decode"), None)
        if there:
            times = there["tokens_per_s"] / mine["tokens_per_s"]
            rows.append([f"{cpu['model']}, decode, GPU against {cpu['machine']['cpu']} "
                         f"({cpu['threads']} threads, {number(mine['tokens_per_s'])} tokens/s)",
                         f"{number(times)} times", "10 times", "met" if times >= 10 else "**missed**"])
    m = data.get("gpu_memory")
    if m:
        may = m["weights_bytes"] + m["cache_bytes"] + 300e6
        rows.append([f"{m['shape']} {m['type']}, context {m['context']}: GPU memory taken, by the "
                     "driver's count", f"{m['taken_bytes'] / 1e6:,.0f} MB",
                     f"{may / 1e6:,.0f} MB: file, cache and 300 MB",
                     "met" if m["taken_bytes"] <= may else "**missed**"])
        rows.append(["in use on the GPU in all, CUDA's own context included",
                     f"{m['in_use_with_the_context_of_cuda'] / 1e6:,.0f} MB", "", ""])
    for key, what in (("streamed", "the weights of layers that do not fit streamed from memory"),
                      ("left_to_cpu", "layers that do not fit left to the CPU")):
        m = data.get(key)
        if m:
            rows.append([f"{m['model']} on a card of 1.2 GB, {what}",
                         ", ".join(f"{r['job']} {number(r['tokens_per_s'])} tokens/s"
                                   for r in m["results"]), "", ""])
    of = f"\nOf {data['parts_date']}, at the code of that day:\n" if "parts_date" in data else ""
    return of + "\n" + table(["work", "measured", "wanted", "result"], rows) if rows else ""


def models_ops(data):
    """Where the time of a step goes; of newer files, as above."""
    if "beside_cpu" not in data:
        return ""
    rows = []
    for r in data["models"][0]["results"]:
        for op in sorted(r["ops"], key=lambda op: -op["us"]):
            rows.append([r["job"], op["op"], str(op["calls"]), number(op["us_a_call"]),
                         number(op["us"]), number(op["weights_gbs"])])
    return (f"\nOps of {data['models'][0]['model']} timed one by one, each waited for, so that they add "
            "up to more than a step.\n\n"
            + table(["job", "op", "calls", "us a call", "us", "GB/s of weights"], rows))


def models_texts(data):
    """Texts of a real model beside llama.cpp's (bench/peers/agree.py), for each device."""
    text = ""
    for a in data.get("agreement", []):
        t = a["texts"]
        text += (f"\n{a['model']} on {a['device']}: of {t['prompts']} prompts, {t['tokens']} likeliest "
                 f"tokens each, {t['prompts'] - t['wrong']} agree with llama.cpp's text up to a place "
                 f"where its two best tokens are nearer than {t['margin']}, {t['mean_agreeing']} tokens "
                 "on average")
        p = a.get("perplexity")
        text += (f"; perplexity of {p['bytes']:,} bytes {p['kermes']:.3f}, llama.cpp "
                 f"{p['llama.cpp']:.3f}.\n" if p else ".\n")
    return text


def checks_alone(data, path):
    """A results file of scripts/gpu-check --no-bench: what passed, and no figures."""
    return (f"## Checks on {data['model']}\n\n{data['date']}; from "
            f"[`{path.name}`](../bench/results/{path.name}), written by `scripts/gpu-check`.\n\n"
            + table(["check", "result", "seconds"],
                    [[c["name"], c["result"], str(c["seconds"])] for c in data["checks_alone"]]))


def vectors(data, path):
    """A results file of scripts/gpu-vectors: rounds of k-means, and searches over codes."""
    shape = lambda r: (r["n"], r["d"], r["k"])
    ours = {(r["job"], *shape(r)): r["ms"] for r in data["kmeans"] if "ms" in r}
    theirs = {shape(r): r["ms"] for r in data["torch"]}
    rows = []
    for job, n, d, k in ours:
        if job != "round":
            continue
        ms, other = ours[job, n, d, k], theirs.get((n, d, k))
        rows.append([f"{n:,} x {d}, {k:,} anchors"] +
                    [f"{ours.get((j, n, d, k), 0):.3g}" for j in ("assign", "update", "round")] +
                    [number(2e-9 * n * d * k / ms), "-" if other is None else f"{other:.3g}",
                     "-" if other is None else f"{other / ms:.1f}"])
    text = (f"## Vectors on {data['device']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), which names "
            "the commands; `scripts/gpu-vectors` runs them all. A round of k-means assigns every vector to its nearest anchor and moves "
            "the anchors to their means; PyTorch's best of f32, TF32 and bf16 in the same minutes.\n\n"
            + table(["round", "assign, ms", "update, ms", "both, ms", "TFLOP/s", "PyTorch, ms",
                     "times faster"], rows))
    for r in data["kmeans"]:
        if r["job"] == "train":
            text += (f"\nA training on {r['n']:,} x {r['d']}, {r['k']} anchors, settled after "
                     f"{r['rounds']} rounds, seeding included: **{1e3 * r['seconds']:.1f} ms** "
                     f"({1e3 * r['first_seconds']:.1f} ms for the first, kernels loaded on the way).\n")
    if data["scan"]:
        rows = [[f"{r['rows']:,} x {r['dim']}, {r['bits']} bits", f"{r['queries']:,}", str(r["k"]),
                 r["metric"], f"{r['ms']:.3g}", f"{r['limit_ms']:.3g}", f"{r['times_limit']:.1f}",
                 number(r["tflops"]), number(r["qps"])] for r in data["scan"]]
        text += ("\nEvery coded vector against a batch of queries. The limit is products at 790 TFLOP/s or "
                 "codes at 4.24 TB/s, whichever takes longer.\n\n"
                 + table(["codes", "queries", "k", "metric", "ms", "limit, ms", "times the limit",
                          "TFLOP/s", "queries/s"], rows))
    return text


def encoding(data, path):
    """A results file of scripts/gpu-vectors: encoding, whole indexes, files from end to end."""
    size = lambda r: f"{r['rows']:,} x {r['dim']}, {r['mode']}, {r['bytes']} bytes"
    text = (f"## Codes and indexes on {data['device']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), which names the commands; "
            "`scripts/gpu-vectors` runs them all. Encoding: blocks of rows in the host's memory to cells and "
            "codes there, and the codes alone of residuals that are on the device.\n\n"
            + table(["rows", "device", "rows/s", "codes alone, rows/s"],
                    [[size(r), r["device"], number(r["rows_per_s"]), number(r["encode_rows_per_s"])]
                     for r in data["encode"]]))
    if data["index"]:
        text += ("\nA whole index against a batch of queries in the host's memory. Parts: rows that the GPU "
                 "was given no room for, and that come over with every batch.\n\n"
                 + table(["codes", "queries", "parts", "ms", "queries/s", "GB/s of rows", "as the CPU found"],
                         [[size(r), f"{r['queries']:,}", str(r["parts"]) if r["parts"] else "resident",
                           f"{r['ms']:.3g}", number(r["qps"]),
                           number(r["copied_gb_s"]) if r["parts"] else "-", f"{100 * r['same']:.2f}%"]
                          for r in data["index"]]))
    if data["compress"]:
        text += ("\n`kermes compress` from a file of bytes to an index, 256 anchors, everything counted.\n\n"
                 + table(["rows", "device", "seconds"],
                         [[size(r), r["device"], f"{r['seconds']:.1f}"] for r in data["compress"]]))
    rows = [[f"{c['vectors']:,} x {c['dim']}", f"{c['cpu']['seconds']:.3g}", f"{c['gpu']['seconds']:.3g}",
             f"{c['speedup']:.1f}", f"{c['cpu']['energy']:.5g}", f"{c['gpu']['energy']:.5g}"]
            for c in data["compare"] if c.get("gpu")]
    if rows:
        text += ("\n`kermes compare`: the same anchors learnt on the CPU and on the GPU.\n\n"
                 + table(["vectors", "CPU, s", "GPU, s", "times faster", "energy, CPU", "energy, GPU"], rows))
    return text


def codes(data, path):
    """A results file of bench/peers/vectors.py: recall for bytes, and a whole scan, beside FAISS."""
    engines = ("kermes dense", "kermes fast", "FAISS PQ", "FAISS OPQ")
    found = {}
    for r in data["quality"]:
        found.setdefault((r["data"], r["rows"], r["code_bytes"], r["least"]), {})[r["engine"]] = r
    rows, cut = [], False
    for (name, n, size, least), at in found.items():
        cells = []
        for engine in engines:
            r = at.get(engine)
            star = "*" if r and (r.get("rounds", 50) < 50 or r.get("trained_on", n) < n) else ""
            cut = cut or star
            cells.append(f"{r['recall@10']:.3f}{star} ({r['bytes_per_vector']:.0f})" if r else "-")
        rows.append([f"{name}, {n:,} vectors", str(size), f"{least:g}"] + cells)
    text = (f"## Vector codes on {data['cpu']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), written by "
            f"`bench/peers/vectors.py`; FAISS {data['faiss']}. recall@10 of held-out queries, every code "
            "looked at, and behind it the bytes of a vector with everything counted (anchors, "
            "transform, codebooks), which weigh much where vectors are few.\n\n"
            + table(["data", "bytes of a code", "wanted", "Kermes, dense", "Kermes, fast", "FAISS PQ",
                     "FAISS OPQ"], rows))
    if cut:
        text += ("\n\\* trained on fewer rows or in fewer rounds than FAISS would by itself; the file "
                 "says on how many.\n")
    if data.get("scan"):
        rows = [[r["engine"], str(r["threads"]), f"{r['recall@10']:.3f}", f"{r['bytes_per_vector']:.0f}",
                 number(r["query_ms"]), number(r["median_ms"]), number(r["batch_ms"])]
                for r in data["scan"]]
        r = data["scan"][0]
        text += (f"\nA whole scan of {r['rows']:,} x {r['dim']} at {r['code_bytes']} bytes of code, 4 bits "
                 "for each dimension: vectors between and around those of MiniLM, held-out ones as "
                 f"queries; both engines in turns. A batch is {r['batch']} queries at once, and its time "
                 "is told for one of them.\n\n"
                 + table(["engine", "threads", "recall@10", "bytes a vector", "one query, best, ms",
                          "median, ms", "in a batch, ms"], rows))
    m = data.get("memory")
    if m:
        text += (f"\nMemory: `{m['command']}` of {m['rows']:,} x {m['dim']}, a file of "
                 f"{m['file_bytes'] / 1e9:.1f} GB, had at most {m['most_resident_bytes'] / 1e6:.0f} MB "
                 f"resident (wanted: {m['wanted_bytes'] / 1e6:,.0f} MB).\n")
    return text


def instructions(data, path):
    """A results file of bench/isa.py: AVX-512 and AMX in turns."""
    what = "AMX" if data["prompts"] else "Products of bf16"
    names = {"gpt2": "GPT-2 124M", "small": "a GPT-2 of 8 layers, 512 wide (`--model small`)"}
    text = (f"## {what} on {data['processor']}\n\n"
            f"{data['threads']} threads, {data['rounds']} rounds in turns; from "
            f"[`{path.name}`](../bench/results/{path.name}), {data.get('by', 'written by `bench/isa.py`')}."
            f"{' ' + data['note'] if data.get('note') else ''}")
    if data["prompts"]:
        text += (f" Prompts of {data['prompt_tokens']} tokens with 16-bit activations, tokens a second of the best "
                 "round; the ratio of the medians in brackets.\n\n" + table(["model", "AVX-512", "AMX", "times faster"],
                     [[p["model"], number(p["avx512"]["best"]), number(p["amx"]["best"]),
                       f"{p['ratio_best']:.2f} ({p['ratio_median']:.2f})"] for p in data["prompts"]]))
    if data["steps"]:
        text += (("" if data["prompts"] else "\n") + f"\nA training step of {names.get(data['steps'][0]['model'], data['steps'][0]['model'])}, 4 x 256 tokens.\n\n"
                 + table(["dtype", "kernels", "best, ms", "median, ms", "loss after it"],
                         [[s["dtype"], s["kernels"], number(s["ms_best"]), number(s["ms_median"]),
                           f"{s['loss']:.3f}"] for s in data["steps"]]))
    if data.get("divergence"):
        d = data["divergence"]
        text += (f"\nDivergence of the first model from exact products: {d['avx512']:.1e} with AVX-512, "
                 f"{d['amx']:.1e} with AMX.\n")
    return text


def batches(data, path):
    """A results file of bench/batch.py: many sequences on the CPU, two builds in turns."""
    text = (f"## Sequences together on {data['processor']}\n\n"
            f"{data['date']}, {data['threads']} threads, a token of each sequence after "
            f"{data['context']}, {data['rounds']} rounds of the two builds in turns; from "
            f"[`{path.name}`](../bench/results/{path.name}), written by `bench/batch.py`. Tokens a second of "
            f"all sequences, of the best round (median in brackets).{' ' + data['note'] if data['note'] else ''}\n")
    for b in data["batches"]:
        one = b["curve"][0]["after"]["best"]
        text += (f"\n{b['model']}\n\n"
                 + table(["sequences", "the build before", "this build", "times one sequence"],
                         [[str(c["sequences"]), f"{number(c['before']['best'])} ({number(c['before']['median'])})",
                           f"{number(c['after']['best'])} ({number(c['after']['median'])})",
                           f"{c['after']['best'] / one:.1f}"] for c in b["curve"]]))
    return text


def library(data, path):
    """A results file of bench/library_speed.py: the command, C and Python beside an older command."""
    ways = ["before", "command", "c", "python"]
    names = {"before": "the command before", "command": "the command", "c": "a C program", "python": "Python"}

    def rows(part, unit):
        best, over = data[part]["best_quarter"], data[part]["best_quarter_over_before"]
        return [[names[w], f"{best[w]:.4g} {unit}", f"{over[w]:.3f}" if w in over else "1"] for w in ways]
    g, s = data["generation"], data["search"]
    return (f"## Through the library on {data['cpu']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), written by "
            f"`bench/library_speed.py`. Of {data['commit']}; before: {data['before']}. {data['note']}\n\n"
            f"Generation, {g['model']}, {g['tokens']} tokens, {g['threads']} thread, {g['rounds']} rounds.\n\n"
            + table(["by", "best quarter of rounds", "speed over before"], rows("generation", "tokens/s"))
            + f"\nSearch, {s['queries']} queries among {s['vectors']} x {s['dim']} in {s['bytes']} bytes each, "
            f"{s['threads']} thread, {s['rounds']} rounds.\n\n"
            + table(["by", "best quarter of rounds", "speed over before"], rows("search", "s")))


def scaling(data, path):
    """What `kermes bench scaling --json` wrote: ops over threads beside the limits of as many."""
    rows = []
    for k, op in enumerate(data["scaling"]["figures"][0]["ops"]):
        for f in data["scaling"]["figures"]:
            o = f["ops"][k]
            rows.append([op["op"] if f["threads"] == 1 else "", str(f["threads"]), f"{number(o['rate'])} {o['unit']}",
                         f"{o['times']:.2f}", percent(o["of_limit"]) if o["of_limit"] else "-"])
    return (f"## Over threads on {data['machine']['cpu']}\n\n"
            f"From [`{path.name}`](../bench/results/{path.name}), written by `kermes bench scaling --json`: each "
            f"op beside the limit measured with as many threads.\n\n"
            + table(["op", "threads", "rate", "times one", "of the limit"], rows))


def attention_over_pages(data, path):
    """What bench/gpu_attend wrote: one layer's attention over the paged cache, for many mixes of rows."""
    rows = [[r["name"], r["cache"], f"{r['us']:.1f}", f"{r['floor_us']:.2f}", percent(r["of_floor"]),
             number(r["GB_per_s"]), number(r["TFLOP_per_s"])] for r in data["attend"]]
    return (f"## Attention over pages on {data['device']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), written by "
            f"`{data['command']}`: one layer. The floor is the larger of bytes of keys and values over the "
            "speed of copies and of products over the speed of tensor cores.\n\n"
            + table(["rows", "cache", "us", "floor, us", "of the floor", "GB/s", "TFLOP/s"], rows))


def mixed(data, path):
    """What kermes bench mixed wrote: texts together beside incoming prompts and under schemas."""
    rows = []
    for r in data["mixed"]["results"]:
        for key, what in (("plain", "alone"), ("with_prompts", f"beside prompts of {r['prompt']}"),
                          ("with_schemas", "half of them under a schema with logprobs")):
            x = r[key]
            rows.append([f"{r['sequences']} texts, {what}", number(x["tokens_per_s"]),
                         number(x["prompt_tokens_per_s"]) if x["prompt_tokens_per_s"] else "-",
                         f"{x['between_tokens_s_median'] * 1000:.1f}", f"{x['between_tokens_s_p99'] * 1000:.1f}"])
    return (f"## Texts and prompts together on {data['device']}\n\n"
            f"{data['date']}, {data['mixed']['model']}; from [`{path.name}`](../bench/results/{path.name}), written "
            f"by `{data['written_by']}`. A prompt alone is read at "
            f"{number(data['mixed']['results'][0]['prompt_alone_tokens_per_s'])} tokens/s.\n\n"
            + table(["work", "tokens/s", "of prompts, tokens/s", "between tokens, ms", "p99, ms"], rows))


def serve_load(data, path):
    """What bench/serve_load.py wrote: kermes serve under many users."""
    rows = []
    for r in data["serve_load"]:
        x = r["runs"][-1]
        alike = x.get("while_all_answer_per_second")
        rows.append([r["label"], number(r["median"]), number(alike) if alike else "-",
                     f"{x['first_token_seconds']['p50']:.2f}", f"{x['between_pieces_seconds']['p50'] * 1000:.1f}",
                     f"{x['between_pieces_seconds']['p99'] * 1000:.1f}"])
    return (f"## Serving on {data['device']}\n\n"
            f"{data['date']}; from [`{path.name}`](../bench/results/{path.name}), written by "
            f"`{data['written_by']}`: {data['what']}.\n\n"
            + table(["load", "output tokens/s, prompts included", "while all answer", "first token, s (p50)",
                     "between tokens, ms (p50)", "p99, ms"], rows))


def main():
    paths = sorted((ROOT / "bench" / "results").glob("*.json"))
    pages = []
    for path in paths:
        data = json.loads(path.read_text())
        if data.get("scaling"):
            pages.append(scaling(data, path))
        elif "generation" in data and "search" in data:
            pages.append(library(data, path))
        elif "results" in data and "fma_gflops" in data.get("limits", {}):
            pages.append(machine(data, path))
        elif "results" in data and "limits" in data:
            pages.append(one_model(data, path))
        elif "prompts" in data and "steps" in data:
            pages.append(instructions(data, path))
        elif "attend" in data:
            pages.append(attention_over_pages(data, path))
        elif "mixed" in data:
            pages.append(mixed(data, path))
        elif "serve_load" in data:
            pages.append(serve_load(data, path))
        elif "batches" in data:
            pages.append(batches(data, path))
        elif "training" in data:
            pages.append(training(data, path))
        elif "models" in data:
            pages.append(models(data, path))
        elif "quality" in data:
            pages.append(codes(data, path))
        elif "kmeans" in data:
            pages.append(vectors(data, path))
        elif "encode" in data:
            pages.append(encoding(data, path))
        elif "checks_alone" in data:
            pages.append(checks_alone(data, path))
        elif "gpu" in data and "torch" in data:
            pages.append(gpu(data, path))
        elif "inference" in data:
            pages.append(inference(data, path))
        elif "types" in data and "perplexity" in data:
            pages.append(types(data, path))
    if not pages:
        raise SystemExit("bench/performance.py: no results in bench/results")
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
