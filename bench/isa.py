#!/usr/bin/env python3
"""Sets of CPU instructions against each other, in turns: prompts of models and training steps with
KERMES_ISA=avx512 and =amx, the best and the median of some rounds, as JSON. Where there is no AMX, training
steps alone: f32, bf16, and with --train-before bf16 by an older build.

usage: bench/isa.py [--kermes PATH] [--train-step PATH [--train-before PATH]] [--rounds 3] [--threads 2]
                    [--model FILE ...] [--shape NAME:TYPE ...] [--gpt2]
                    [--exact FILE --text FILE] [--out FILE [--add]]

With --exact, a copy of the first model in f32, also how far its predictions are from exact products
(Kullback-Leibler divergence over 384 tokens of --text). Both sides are the same build, so a ratio is what the instructions are worth.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SETS = ["avx512", "amx"]


def run(command, isa):
    env = dict(os.environ, KERMES_ISA=isa)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"isa.py: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def prompt(a, what):
    out = run([a.kermes, "bench", "prompt", "--prompt", "512", "--threads", str(a.threads), "--json",
               "--quiet"] + what, a.isa)
    return json.loads(out)["results"][0]["tokens_per_s"]


def step(a, dtype, program=None):
    os.environ["KERMES_THREADS"] = str(a.threads)
    out = run([program or a.train_step, "cpu", "--model", "gpt2", "--batch", "4", "--context", "256", "--steps", "3",
               "--dtype", dtype], a.isa)
    return json.loads(out.strip().splitlines()[-1])


def divergence(a):
    """Of the first model from a copy of it in f32, read as a prompt."""
    with tempfile.TemporaryDirectory() as room:
        saved = os.path.join(room, "exact")
        base = [a.kermes, "perplexity", "--file", a.text, "--context", "384", "--pieces", "1", "--json",
                "--quiet", "--threads", str(a.threads), "-m"]
        run(base + [a.exact, "--save-logits", saved], "avx512")
        return {isa: json.loads(run(base + [a.model[0], "--against", saved], isa))["divergence"]["mean"]
                for isa in SETS}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--kermes", default="build/release/kermes")
    p.add_argument("--train-step", default="build/release/bench/train_step")
    p.add_argument("--train-before", help="bench/train_step of an older build")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--model", action="append", default=[])
    p.add_argument("--shape", action="append", default=[])
    p.add_argument("--gpt2", action="store_true")
    p.add_argument("--exact")
    p.add_argument("--text")
    p.add_argument("--add", action="store_true", help="to what --out holds")
    p.add_argument("--out")
    a = p.parse_args()
    jobs = [(os.path.basename(m), ["--model", m]) for m in a.model] if a.rounds else []
    for s in a.shape:
        shape, kind = s.split(":")
        jobs.append((f"{shape} {kind}, random weights", ["--shape", shape, "--type", kind]))
    machine = json.loads(run([a.kermes, "devices", "--json", "--quiet"], "amx"))["machine"]
    result = {"processor": machine["cpu"], "features": machine["features"], "threads": a.threads,
              "rounds": a.rounds, "prompt_tokens": 512, "prompts": [], "steps": []}
    for name, what in jobs:
        took = {isa: [] for isa in SETS}
        for _ in range(a.rounds):
            for a.isa in SETS:
                took[a.isa].append(prompt(a, what))
        entry = {"model": name}
        for isa in SETS:
            entry[isa] = {"best": round(max(took[isa]), 1),
                          "median": round(statistics.median(took[isa]), 1)}
        entry["ratio_best"] = round(entry["amx"]["best"] / entry["avx512"]["best"], 3)
        entry["ratio_median"] = round(entry["amx"]["median"] / entry["avx512"]["median"], 3)
        result["prompts"].append(entry)
    if a.gpt2:
        cases = [("f32", "amx"), ("bf16", "avx512"), ("bf16", "amx")]
        if "AMX" not in machine["features"]:
            cases = [("f32", "avx512"), ("bf16", "avx512")]
        if a.train_before:
            cases.append(("bf16", "avx512", "before"))
        took = {c: [] for c in cases}
        for _ in range(a.rounds):
            for c in cases:
                a.isa = c[1]
                took[c].append(step(a, c[0], a.train_before if len(c) > 2 else None))
        for c in cases:
            ms = [t["ms"] for t in took[c]]
            result["steps"].append({"model": "gpt2", "batch": 4, "context": 256, "dtype": c[0],
                                    "kernels": " ".join((c[1],) + tuple(f"({w})" for w in c[2:])), "ms_best": round(min(ms), 1),
                                    "ms_median": round(statistics.median(ms), 1),
                                    "loss": took[c][0]["loss"]})
    if a.exact:
        result["divergence"] = divergence(a)
    if a.add:
        with open(a.out) as f:
            before = json.load(f)
        result = {**before, **{k: v for k, v in result.items() if v and k not in before}}
    text = json.dumps(result, indent=2) + "\n"
    if a.out:
        with open(a.out + ".new", "w") as f:
            f.write(text)
        os.replace(a.out + ".new", a.out)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
