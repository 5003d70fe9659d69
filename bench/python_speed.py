"""Generation and search through Python beside the command, in one run, taking turns.

Generation: the tokens per second that both tell of themselves, of one prompt, greedily. Search: whole
calls; the command's own time is told by its JSON where it has one, and otherwise is that of its process
less that of one with a single query.

Usage: PYTHONPATH=build/release/python KERMES_LIBRARY=build/release/libkermes.so \\
           python3 bench/python_speed.py build/release/kermes MODEL.gguf [--json FILE]
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np

import kermes

PROMPT = "The sea is"


def by_command(command, model, tokens, threads):
    out = subprocess.run([command, "run", "-m", model, "--prompt", PROMPT, "-n", str(tokens),
                          "--temperature", "0", "--threads", str(threads), "--json", "--quiet"],
                         capture_output=True, text=True, check=True).stdout
    told = json.loads(out)
    return told["decode_tokens_per_s"], told["text"]


def by_python(model, tokens):
    first, text = None, []
    for piece in model.generate(PROMPT, max_tokens=tokens, temperature=0, stream=True):
        if first is None:
            first = time.perf_counter()
        text.append(piece)
    return (tokens - 1) / (time.perf_counter() - first), "".join(text)


def search_by_command(command, folder, threads):
    def seconds(queries):
        began = time.perf_counter()
        subprocess.run([command, "search", f"{folder}/v.kmx", "--queries", f"{folder}/{queries}", "-k",
                        "10", "--threads", str(threads), "--format", "npy", "-o", f"{folder}/out.npy",
                        "--quiet"], check=True, capture_output=True)
        return time.perf_counter() - began
    return seconds("q.npy") - seconds("one.npy")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="add what was found to this file")
    parser.add_argument("--only", choices=("generation", "search"))
    args = parser.parse_args()
    command = os.path.abspath(args.command)
    found = {}
    if args.only != "search":
        found["generation"] = generation(command, args)
    if args.only != "generation":
        found["search"] = search(command, args)
    print(json.dumps(found, indent=2))
    if args.json:
        if os.path.exists(args.json):
            with open(args.json, encoding="utf-8") as f:
                found = {**json.load(f), **found}
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=2)
            f.write("\n")


def told(seen, what, best, about):
    return {what: {n: round(statistics.median(v), 4) for n, v in seen.items()},
            "best": {n: round(best(v), 4) for n, v in seen.items()},
            "python_over_command": round(statistics.median(
                y / x for x, y in zip(seen["command"], seen["python"])), 4), **about}


def generation(command, args):
    threads = args.threads
    speeds = {"command": [], "python": []}
    with kermes.Model(args.model, device="cpu", threads=threads) as model:
        by_python(model, 8)
        for _ in range(args.rounds):
            a, said = by_command(command, args.model, args.tokens, threads)
            b, text = by_python(model, args.tokens)
            assert said == text, (said, text)
            speeds["command"].append(a)
            speeds["python"].append(b)

    return told(speeds, "tokens_per_s", max, {
        "rounds": args.rounds, "threads": threads, "tokens": args.tokens,
        "model": os.path.basename(args.model)})


def search(command, args):
    threads = args.threads
    searches = {"command": [], "python": []}
    with tempfile.TemporaryDirectory() as folder:
        x = np.random.default_rng(0).normal(size=(50_000, 96)).astype(np.float32)
        q = x[:4000].copy()
        np.save(f"{folder}/q.npy", q)
        np.save(f"{folder}/one.npy", q[:1])
        index = kermes.Index.build(x, bytes=24)
        index.save(f"{folder}/v.kmx")
        index = kermes.Index(f"{folder}/v.kmx")
        index.search(q, threads=threads)
        for _ in range(args.rounds):
            searches["command"].append(search_by_command(command, folder, threads))
            began = time.perf_counter()
            index.search(q, k=10, threads=threads)
            searches["python"].append(time.perf_counter() - began)

    return told(searches, "seconds", min, {
        "rounds": args.rounds, "threads": threads, "queries": 4000, "vectors": 50_000, "dim": 96})


if __name__ == "__main__":
    main()
