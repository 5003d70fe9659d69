"""Generation and search by the command, from C and from Python, and by the command of an older build, in
one run: ways take turns within each round. Told are medians, the medians of the rounds' ratios, and the
mean of each way's best quarter of rounds, which other programs on the machine disturb least.

Generation: tokens a second after the first, of one prompt, greedily, without penalties; all ways must
give the same text. Search: seconds of one call with all queries; the command's are those of its process
less those of one with a single query, taken right after it.

With --instructions no clock is read: every way runs twice under valgrind's callgrind, with few and with more
tokens (or queries), and the difference over theirs is the instructions of one, start and prompt left out. They
are the same in each run, however busy the machine is. Waits for memory, which most of decoding is, do not show,
and valgrind knows no AVX-512, so all ways use the kernels for AVX2.

Usage: PYTHONPATH=build/release/python KERMES_LIBRARY=build/release/libkermes.so \\
           python3 bench/library_speed.py build/release MODEL.gguf --before OLD/kermes [--json FILE]
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import kermes

PROMPT = "The sea is"


def output(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True).stdout


def fnv(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def command_generates(command, args):
    told = json.loads(output(command, "run", "-m", args.model, "--prompt", PROMPT, "-n", args.tokens,
                             "--temperature", "0", "--repeat-penalty", "1", "--threads", args.threads,
                             "--device", "cpu", "--json", "--quiet"))
    return told["decode_tokens_per_s"], fnv(told["text"])


def c_generates(program, args):
    told = json.loads(output(program, "generate", args.model, PROMPT, args.tokens, args.threads))
    return told["tokens_per_s"], told["text"]


def python_generates(args):
    """In this process: what the child below runs."""
    first, text = None, []
    with kermes.Model(args.model, device="cpu", threads=args.threads) as model:
        for piece in model.generate(PROMPT, max_tokens=args.tokens, temperature=0, repeat_penalty=1, stream=True):
            if first is None:
                first = time.perf_counter()
            text.append(piece)
        seconds = time.perf_counter() - first
    return (args.tokens - 1) / seconds, fnv("".join(text))


def python_child(args):
    """In a process of its own like the other ways: where pages happen to lie in memory is worth 10%."""
    return json.loads(output(sys.executable, __file__, args.build, args.model, "--tokens", args.tokens,
                             "--threads", args.threads, "--only", "python"))


def command_searches(command, folder, args):
    def seconds(queries):
        began = time.perf_counter()
        output(command, "search", f"{folder}/v.kmx", "--queries", f"{folder}/{queries}", "-k", "10", "--threads",
               args.threads, "--format", "npy", "-o", f"{folder}/out.npy", "--quiet")
        return time.perf_counter() - began
    return seconds("q.npy") - seconds("one.npy")


def python_searches(index, q, args):
    began = time.perf_counter()
    index.search(q, k=10, threads=args.threads)
    return time.perf_counter() - began


def rounds(ways, args):
    """Every way once a round, each round beginning with another."""
    seen = {name: [] for name in ways}
    names = list(ways)
    for i in range(args.rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            seen[name].append(ways[name]())
    return seen


def told(seen, unit, faster):
    base = "before" if "before" in seen else "command"
    high = unit == "tokens_per_s"
    fast = {n: statistics.mean(sorted(v, reverse=high)[:max(1, len(v) // 4)]) for n, v in seen.items()}
    return {unit: {n: round(statistics.median(v), 5) for n, v in seen.items()},
            "best_quarter": {n: round(v, 5) for n, v in fast.items()},
            "spread": {n: [round(min(v), 5), round(max(v), 5)] for n, v in seen.items()},
            f"median_speed_over_{base}": {
                n: round(statistics.median(faster(y, x) for x, y in zip(seen[base], v)), 4)
                for n, v in seen.items() if n != base},
            f"best_quarter_over_{base}": {n: round(faster(v, fast[base]), 4) for n, v in fast.items() if n != base}}


def generation(commands, program, args):
    texts = set()

    def noted(pair):
        texts.add(pair[1])
        return pair[0]
    ways = {n: (lambda c=c: noted(command_generates(c, args))) for n, c in commands.items()}
    ways["c"] = lambda: noted(c_generates(program, args))
    ways["python"] = lambda: noted(python_child(args))
    found = told(rounds(ways, args), "tokens_per_s", lambda y, x: y / x)
    return {**found, "same_text": len(texts) == 1, "tokens": args.tokens, "model": os.path.basename(args.model)}


def search(commands, program, args):
    with tempfile.TemporaryDirectory() as folder:
        x = np.random.default_rng(0).normal(size=(50_000, 96)).astype(np.float32)
        q = x[:args.queries].copy()
        np.save(f"{folder}/q.npy", q)
        np.save(f"{folder}/one.npy", q[:1])
        kermes.Index.build(x, bytes=24).save(f"{folder}/v.kmx")
        index = kermes.Index(f"{folder}/v.kmx")
        index.search(q[:1], threads=args.threads)
        ways = {n: (lambda c=c: command_searches(c, folder, args)) for n, c in commands.items()}
        ways["c"] = lambda: json.loads(output(program, "search", f"{folder}/v.kmx", f"{folder}/q.npy",
                                              args.threads))["seconds"]
        ways["python"] = lambda: python_searches(index, q, args)
        found = told(rounds(ways, args), "seconds", lambda y, x: x / y)
    return {**found, "queries": args.queries, "vectors": 50_000, "dim": 96, "bytes": 24}


# ---- Instructions ----

FEW, MORE = (8, 24), (100, 300)  # tokens, and queries


def instructions(*words):
    """Of a process and all its threads, as callgrind counts them."""
    words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *words]
    run = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True,
                         env={**os.environ, "KERMES_ISA": "avx2", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"})
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


def counted(ways, few, more):
    """ways: the words that begin a process for so many tokens or queries."""
    each = {}
    for name, words in ways.items():
        each[name] = round((instructions(*words(more)) - instructions(*words(few))) / (more - few))
        print(f"{name}: {each[name]:,} instructions each", file=sys.stderr, flush=True)
    base = "before" if "before" in each else "command"
    return {"instructions": each,
            f"over_{base}": {n: round(v / each[base], 5) for n, v in each.items() if n != base}}


def count_generation(commands, program, args):
    def by_command(c):
        return lambda n: (c, "run", "-m", args.model, "--prompt", PROMPT, "-n", n, "--temperature", "0",
                          "--repeat-penalty", "1", "--threads", args.threads, "--device", "cpu", "--quiet")
    ways = {n: by_command(c) for n, c in commands.items()}
    ways["c"] = lambda n: (program, "generate", args.model, PROMPT, n, args.threads)
    ways["python"] = lambda n: (sys.executable, __file__, args.build, args.model, "--tokens", n,
                                "--threads", args.threads, "--only", "python")
    return {**counted(ways, *FEW), "of": "a token", "tokens": FEW, "model": os.path.basename(args.model)}


def count_search(commands, program, args):
    with tempfile.TemporaryDirectory() as folder:
        x = np.random.default_rng(0).normal(size=(50_000, 96)).astype(np.float32)
        for n in MORE:
            np.save(f"{folder}/{n}.npy", x[:n])
        kermes.Index.build(x, bytes=24).save(f"{folder}/v.kmx")

        def by_command(c):
            return lambda n: (c, "search", f"{folder}/v.kmx", "--queries", f"{folder}/{n}.npy", "-k", "10",
                              "--threads", args.threads, "--format", "npy", "-o", f"{folder}/out.npy", "--quiet")
        ways = {n: by_command(c) for n, c in commands.items()}
        ways["c"] = lambda n: (program, "search", f"{folder}/v.kmx", f"{folder}/{n}.npy", args.threads)
        ways["python"] = lambda n: (sys.executable, "-c", "import sys, numpy, kermes; "
                                    "kermes.Index(sys.argv[1]).search(numpy.load(sys.argv[2]), k=10, "
                                    "threads=int(sys.argv[3]))", f"{folder}/v.kmx", f"{folder}/{n}.npy", args.threads)
        found = counted(ways, *MORE)
    return {**found, "of": "a query", "queries": MORE, "vectors": 50_000, "dim": 96, "bytes": 24}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("--before", help="the command of an older build, to measure against")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--note", default="", help="kept with the figures: how busy the machine was")
    parser.add_argument("--json", help="add what was found to this file")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of seconds")
    parser.add_argument("--only", choices=("generation", "search", "python"))
    args = parser.parse_args()
    if args.only == "python":
        print(json.dumps(python_generates(args)))
        return
    commands = {"command": os.path.join(args.build, "kermes")}
    if args.before:
        commands["before"] = args.before
    program = os.path.join(args.build, "bench", "library_speed")
    found = {}
    if args.instructions:
        counts = {"generation": count_generation, "search": count_search}
        found["instructions"] = {n: count(commands, program, args) for n, count in counts.items()
                                 if args.only in (None, n)}
        found["instructions"].update(threads=args.threads, isa="avx2", note=args.note)
    for name, way in (("generation", generation), ("search", search)):
        if args.only in (None, name) and not args.instructions:
            found[name] = {**way(commands, program, args), "rounds": args.rounds, "threads": args.threads,
                           "note": args.note}
    print(json.dumps(found, indent=2))
    if args.json:
        if os.path.exists(args.json):
            with open(args.json, encoding="utf-8") as f:
                found = {**json.load(f), **found}
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
