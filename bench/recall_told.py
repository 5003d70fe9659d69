#!/usr/bin/env python3
"""The recall that compress tells, against what queries say that it has not seen.

    bench/recall_told.py KERMES DATA [-o FILE] [--rows N] [--splits N] [--hard]

DATA is the folder with minilm384_lucene.npy. For each set: told with its interval, and real with the
interval of the other queries; MiniLM is split into base and queries again and again. Needs NumPy. --hard
measures only sets on which recall is easily told too well (few dimensions behind many, uneven clusters,
many copies, heavy tails), by all metrics, by one rank and two (mpirun), and puts them in the file beside what is
there.
"""
import argparse, json, os, subprocess, sys, tempfile
import numpy as np


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def bent(n, dim, inner, clusters, seed):
    """Clusters of `inner` dimensions, bent into `dim`, a little noise on top; the last 2,000 are queries."""
    r = np.random.default_rng(seed)
    a = r.standard_normal((inner, dim)).astype("f4") / np.sqrt(inner)
    centres = 2 * r.standard_normal((clusters, inner)).astype("f4")
    out = np.empty((n + 2000, dim), "f4")
    for i in range(0, len(out), 50000):
        k = min(50000, len(out) - i)
        z = centres[r.integers(0, clusters, k)] + 0.7 * r.standard_normal((k, inner)).astype("f4")
        out[i : i + k] = np.tanh(z @ a) + 0.05 * r.standard_normal((k, dim)).astype("f4")
    return out[:n], out[n:]


def hard(kind, n, dim, seed):
    """A set that is no cloud; the last 2,000 are queries."""
    r = np.random.default_rng(seed)
    m = n + 2000
    if kind == "few dimensions":
        return np.split((r.standard_normal((m, 6)) @ r.standard_normal((6, dim))).astype("f4"), [n])
    if kind == "uneven clusters":
        share = r.pareto(0.8, 300) + 1e-3
        of = r.choice(300, m, p=share / share.sum())
        width = 0.05 + r.random(300) ** 3
        x = 3 * r.standard_normal((300, dim))[of] + width[of, None] * r.standard_normal((m, dim))
        return np.split(x.astype("f4"), [n])
    if kind == "copies":
        some = r.standard_normal((m // 8, dim)).astype("f4")
        return np.split(some[r.integers(0, len(some), m)], [n])
    if kind == "heavy tails":
        return np.split((r.standard_t(2.5, (m, dim)) * np.exp(0.5 * r.standard_normal((m, 1)))).astype("f4"), [n])
    raise ValueError(kind)


def measure(kermes, folder, base, queries, *options, ranks=1):
    paths = [os.path.join(folder, name) for name in ("base.npy", "queries.npy", "x.kmx")]
    np.save(paths[0], base)
    np.save(paths[1], queries)
    many = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    told = run(*many, kermes, "compress", paths[0], "-o", paths[2], "--json", "--quiet", *options)
    real = run(kermes, "recall", paths[2], "--base", paths[0], "--queries", paths[1], "--json", "--quiet")
    return {"code_bytes": told["code_bytes"], "told": told["recall@10"], "told_interval": told["recall_interval"],
            "real": real["recall@10"], "real_interval": real["interval"]["recall@10"], "queries": len(queries)}


args = argparse.ArgumentParser()
args.add_argument("kermes")
args.add_argument("data")
args.add_argument("-o", "--out", default="bench/results/recall-told.json")
args.add_argument("--rows", type=int, default=1000000)
args.add_argument("--splits", type=int, default=6)
args.add_argument("--hard", action="store_true")
line = args.parse_args()
if line.hard:
    cases = []
    for kind in ("few dimensions", "uneven clusters", "copies", "heavy tails"):
        for metric in ("l2", "cosine", "ip"):
            cases.append((kind, 1, f"--metric {metric}"))
            if metric != "ip":
                cases.append((kind, 1 if metric == "l2" else 2, f"--metric {metric} --recall 0.9"))
        if kind != "copies":
            cases.append((kind, 2, "--metric l2"))
    rows, inside = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for kind, ranks, options in cases:
            base, queries = hard(kind, 30000, 48, len(kind))
            one = measure(line.kermes, folder, base, queries, *options.split(), ranks=ranks)
            one["overlap"] = (one["told_interval"][0] <= one["real_interval"][1]
                              and one["real_interval"][0] <= one["told_interval"][1])
            rows.append({"data": kind, "ranks": ranks, "options": options, **one})
            print(json.dumps(rows[-1]), flush=True)
    with open(line.out) as f:
        data = json.load(f)
    data["hard"] = {"rows": rows, "of": len(rows), "intervals_meet": sum(r["overlap"] for r in rows)}
    with open(line.out, "w") as f:
        json.dump(data, f, indent=1)
        f.write("\n")
    sys.exit(0)
rows = []
with tempfile.TemporaryDirectory() as folder:
    def note(name, options, one):
        rows.append({"data": name, "options": options, **one})
        print(json.dumps(rows[-1]), flush=True)

    x = np.load(os.path.join(line.data, "minilm384_lucene.npy")).astype("f4")
    x = x[np.abs(x).sum(1) > 0]
    for options in ("--recall 0.95 --mode dense", "--recall 0.95", "--recall 0.9 --mode dense --metric cosine"):
        for split in range(line.splits):
            order = np.random.default_rng(split).permutation(len(x))
            one = measure(line.kermes, folder, x[order[:-400]], x[order[-400:]], *options.split())
            note(f"minilm, split {split}", options, one)
    for n, dim, inner, clusters, options in ((100000, 96, 12, 200, ""), (100000, 96, 12, 200, "--recall 0.9"),
                                             (line.rows, 128, 16, 500, "--bytes 32")):
        base, queries = bent(n, dim, inner, clusters, 1)
        note(f"bent, {n} x {dim}", options, measure(line.kermes, folder, base, queries, *options.split()))
summary = {}
for options in dict.fromkeys(r["options"] for r in rows if r["data"].startswith("minilm")):
    of = [r for r in rows if r["options"] == options and r["data"].startswith("minilm")]
    real = [r["real"] for r in of]
    summary[options] = {"told": round(float(np.mean([r["told"] for r in of])), 4),
                        "real": round(float(np.mean(real)), 4),
                        "standard_error": round(float(np.std(real, ddof=1) / len(real) ** 0.5), 4)}
with open(line.out, "w") as f:
    json.dump({"rows": rows, "minilm": summary}, f, indent=1)
    f.write("\n")
print(json.dumps(summary))
