#!/usr/bin/env python3
"""Sequences that go on together on the CPU, by two builds in turns: tokens a second of all of them, the
best and the median of some rounds, as JSON.

usage: bench/batch.py --before PATH [--kermes PATH] [--rounds 3] [--threads 2] [--context 128]
                      [--shape NAME:TYPE ...] [--sequences 1,2,4,8,16,32,64] [--note TEXT] [--out FILE]

Each build is a `kermes` command; weights are random in the shape of a model, so that nothing has to be
fetched. Ratios are of one run; --note says what else the machine did.
"""
import argparse
import datetime
import json
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"batch.py: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def tokens_per_s(a, build, shape, kind, n):
    out = run([build, "bench", "batch", "--shape", shape, "--type", kind, "--batch", str(n), "--threads",
               str(a.threads), "--context", str(a.context), "--device", "cpu", "--json", "--quiet"])
    return json.loads(out)["results"][0]["tokens_per_s"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--before", required=True)
    p.add_argument("--kermes", default="build/release/kermes")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--context", type=int, default=128)
    p.add_argument("--shape", action="append", default=[])
    p.add_argument("--sequences", default="1,2,4,8,16,32,64")
    p.add_argument("--note", default="")
    p.add_argument("--out")
    a = p.parse_args()
    machine = json.loads(run([a.kermes, "devices", "--json", "--quiet"]))["machine"]
    result = {"processor": machine["cpu"], "features": machine["features"], "threads": a.threads,
              "date": datetime.date.today().isoformat(), "rounds": a.rounds, "context": a.context,
              "note": a.note, "batches": []}
    for s in a.shape or ["smollm2-135m:q4_1", "smollm2-135m:q4_k_m"]:
        shape, kind = s.split(":")
        curve = []
        for n in [int(x) for x in a.sequences.split(",")]:
            took = {"before": [], "after": []}
            for _ in range(a.rounds):
                took["before"].append(tokens_per_s(a, a.before, shape, kind, n))
                took["after"].append(tokens_per_s(a, a.kermes, shape, kind, n))
            curve.append({"sequences": n, **{side: {"best": round(max(t), 1),
                                                    "median": round(statistics.median(t), 1)}
                                             for side, t in took.items()}})
            print(f"{shape} {kind}, {n}: {curve[-1]}", file=sys.stderr)
        result["batches"].append({"model": f"{shape} {kind}, random weights", "curve": curve})
    text = json.dumps(result, indent=1) + "\n"
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
