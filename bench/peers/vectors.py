#!/usr/bin/env python3
"""Vector codes beside FAISS: recall@10 for the bytes of a code, and the speed of a whole scan.

    bench/peers/vectors.py build/bench/vectors --data ../shared/data/vectors -o bench/results/x.json
        [--fashion /usr/share/datasets/fashion-mnist] [--anchors 16] [--speed ROWS] [--only minilm,sift]

Needs numpy and faiss-cpu. Queries are held out: rows picked by NumPy's default_rng(0).permutation,
500 of MiniLM and SIFT, the first 500 test images of Fashion-MNIST. Truth is exact search in f64,
ties to the lower id; recall@10 is the part of the true ten that is found. Every code is compared with
the query in full precision, and all of them are scanned. bytes_per_vector counts codes, anchors (f16),
transform and codebooks; FAISS's are counted as it stores them (f32)."""
import argparse
import gzip
import json
import pathlib
import subprocess
import tempfile
import time

import faiss
import numpy as np

TABLE = {"minilm": ((48, .80, .83), (96, .905, .93), (192, .97, .98)),
         "sift": ((16, .68, .71), (32, .86, .87)),
         "fashion": ((98, .92, .94), (196, .965, .975))}


def idx(path):
    return np.frombuffer(gzip.open(path).read(), np.uint8, offset=16).reshape(-1, 784).astype("f")


def load(name, args):
    if name == "fashion":
        folder = pathlib.Path(args.fashion)
        return idx(folder / "train-images-idx3-ubyte.gz"), idx(folder / "t10k-images-idx3-ubyte.gz")[:500]
    file = {"minilm": "minilm384_lucene.npy", "sift": "sift5k_ngt.npy"}[name]
    x = np.load(pathlib.Path(args.data) / file).astype("f")
    p = np.random.default_rng(0).permutation(len(x))
    return np.ascontiguousarray(x[p[500:]]), np.ascontiguousarray(x[p[:500]])


def truth(base, queries):
    b = base.astype("d")
    out = []
    for q in np.array_split(queries.astype("d"), max(1, len(queries) // 50)):
        d = (b * b).sum(1) - 2 * q @ b.T
        out.append(np.argsort(np.round(d, 9), 1, kind="stable")[:, :10])
    return np.concatenate(out)


def recall(found, true):
    return round(float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, true)])), 4)


def ours(args, base, queries, true, size, mode, anchors):
    with tempfile.TemporaryDirectory() as folder:
        b, q, o = (str(pathlib.Path(folder) / f) for f in ("b", "q", "o"))
        base.tofile(b)
        queries.tofile(q)
        run = subprocess.run([args.program, "find", b, q, str(base.shape[1]), str(size), mode,
                              str(anchors), o], capture_output=True, text=True, check=True)
        found = np.fromfile(o, np.int32).reshape(-1, 10)
    got = json.loads(run.stdout)
    return {"engine": "kermes " + mode, "recall@10": recall(found, true)} | {
        k: got[k] for k in ("code_bytes", "bytes_per_vector", "anchors", "turn", "train_s", "encode_s")}


def theirs(base, queries, true, size, rotated):
    n, d = base.shape
    t = time.time()
    index = faiss.IndexPQ(d, size, 8)
    extra = 4 * d * 256
    if rotated:
        index = faiss.IndexPreTransform(faiss.OPQMatrix(d, size), index)
        extra += 4 * d * d
    index.train(base)
    index.add(base)
    return {"engine": "FAISS OPQ" if rotated else "FAISS PQ", "code_bytes": size,
            "recall@10": recall(index.search(queries, 10)[1], true),
            "bytes_per_vector": round(size + extra / n, 1), "train_s": round(time.time() - t, 2)}


def speed(args, rows):
    got = json.loads(subprocess.run([args.program, "speed", str(rows), "384", "192", "fast"],
                                    capture_output=True, text=True, check=True).stdout)
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    x, q = rng.standard_normal((100000, 384)).astype("f"), rng.standard_normal((24, 384)).astype("f")
    index = faiss.IndexPQFastScan(384, 384, 4)
    index.train(x[:4000])
    for first in range(0, rows, 100000):
        index.add(x[:min(100000, rows - first)])
    times = []
    for i in range(24):
        t = time.perf_counter()
        index.search(q[i:i + 1], 10)
        times.append(time.perf_counter() - t)
    return {"rows": rows, "dim": 384, "bytes": 192, "threads": 1,
            "kermes_ms": got["query_ms"], "kermes_mean_ms": got["mean_ms"],
            "fastscan_ms": round(min(times) * 1e3, 3), "fastscan_mean_ms": round(np.mean(times) * 1e3, 3)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--data", default="../shared/data/vectors")
    p.add_argument("--fashion", default="/usr/share/datasets/fashion-mnist")
    p.add_argument("--anchors", type=int, default=16)
    p.add_argument("--speed", type=int, default=0)
    p.add_argument("--only", default="minilm,sift,fashion")
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("-o", "--output")
    args = p.parse_args()
    out = {"faiss": faiss.__version__, "quality": [], "speed": []}
    for name in filter(None, args.only.split(",")):
        base, queries = load(name, args)
        true = truth(base, queries)
        for size, least, aim in TABLE[name]:
            anchors = args.anchors if name != "fashion" else 256
            rows = [ours(args, base, queries, true, size, m, anchors) for m in ("dense", "fast")]
            if not args.no_peers:
                rows += [theirs(base, queries, true, size, r) for r in (False, True)]
            for r in rows:
                out["quality"].append({"data": name, "rows": len(base), "queries": len(queries),
                                       "least": least, "aim": aim} | r)
                print(name, size, r, flush=True)
            if args.output:
                pathlib.Path(args.output).write_text(json.dumps(out, indent=1) + "\n")
    if args.speed:
        out["speed"].append(speed(args, args.speed))
        print(out["speed"][-1])
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
