#!/usr/bin/env python3
"""Vector codes beside FAISS: recall@10 for the bytes of a code, and the speed of a whole scan.

    bench/peers/vectors.py build/bench/vectors --data ../shared/data/vectors -o bench/results/x.json
        [--fashion /usr/share/datasets/fashion-mnist] [--anchors 16] [--only minilm,sift]
        [--scan ROWS --kermes build/kermes --scratch FOLDER]

Needs numpy and faiss-cpu. Queries are held out: rows picked by NumPy's default_rng(0).permutation,
500 of MiniLM and SIFT, the first 500 test images of Fashion-MNIST. Truth is exact search in f64,
ties to the lower id; recall@10 is the part of the true ten that is found. Every code is compared with
the query in full precision, and all of them are scanned. bytes_per_vector counts codes, anchors (f16),
transform and codebooks; FAISS's are counted as it stores them (f32). --scan times a whole scan of
many rows made from MiniLM's, one query at a time and 48 together."""
import argparse
import gzip
import json
import os
import pathlib
import subprocess
import tempfile
import time

# FAISS's threads sleep when they wait, or a busy machine makes them several times slower; libgomp
# reads this as it is loaded. The result records it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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
    norms, out = (b * b).sum(1), []
    for q in np.array_split(queries.astype("d"), max(1, len(queries) // 50)):
        d = np.round(norms - 2 * q @ b.T, 9)
        few = np.sort(np.argpartition(d, min(64, len(b) - 1), 1)[:, :64], 1)
        order = np.argsort(np.take_along_axis(d, few, 1), 1, kind="stable")
        out.append(np.take_along_axis(few, order, 1)[:, :10])
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


def theirs(args, base, queries, true, size, rotated):
    n, d = base.shape
    t = time.time()
    index = faiss.IndexPQ(d, size, 8)
    extra = 4 * d * 256
    if rotated:
        turn = faiss.OPQMatrix(d, size)
        turn.niter = args.opq_rounds
        index = faiss.IndexPreTransform(turn, index)
        extra += 4 * d * d
    rows = base if len(base) <= args.peer_rows else base[::len(base) // args.peer_rows]
    index.train(rows)
    index.add(base)
    return {"engine": "FAISS OPQ" if rotated else "FAISS PQ", "code_bytes": size,
            "recall@10": recall(index.search(queries, 10)[1], true),
            "bytes_per_vector": round(size + extra / n, 1), "train_s": round(time.time() - t, 2),
            "trained_on": len(rows)} | ({"rounds": args.opq_rounds} if rotated else {})


def many(x, rows, seed=0):
    """Rows with the structure of x: each lies between a row and one of its eight nearest, moved along four
    such differences elsewhere, and has length 1."""
    rng = np.random.default_rng(seed)
    near = x @ x.T
    np.fill_diagonal(near, -9)
    near = np.argsort(-near, 1)[:, :8]
    out = np.empty((rows, x.shape[1]), "f")

    def pairs(m):
        i = rng.integers(0, len(x), m)
        return x[i], x[near[i, rng.integers(0, 8, m)]]

    for first in range(0, rows, 50000):
        m = min(50000, rows - first)
        a, b = pairs(m)
        y = a + rng.random((m, 1), dtype="f") / 2 * (b - a)
        for _ in range(4):
            a, b = pairs(m)
            y += 0.25 * rng.standard_normal((m, 1), dtype="f") * (a - b)
        out[first:first + m] = y / np.linalg.norm(y, axis=1, keepdims=True)
    return out


def realtime(on):
    """Before others, on a machine that is shared; never for longer than a few seconds."""
    os.sched_setscheduler(0, os.SCHED_FIFO if on else os.SCHED_OTHER, os.sched_param(20 if on else 0))


def fastscan(index, queries, threads):
    faiss.omp_set_num_threads(threads)
    times, batch = [], []
    for q in queries:
        t = time.perf_counter()
        index.search(q[None], 10)
        times.append(time.perf_counter() - t)
    for _ in range(5):
        t = time.perf_counter()
        index.search(queries, 10)
        batch.append(time.perf_counter() - t)
    return {"query_ms": min(times) * 1e3, "median_ms": float(np.median(times)) * 1e3,
            "batch_ms": min(batch) / len(queries) * 1e3}


def scan(args, rows, size=192):
    """A whole scan of many rows, both engines in turns; the best of five of each figure. What takes long is
    kept in --scratch."""
    x = np.load(pathlib.Path(args.data) / "minilm384_lucene.npy").astype("f")
    x = x[np.linalg.norm(x, axis=1) > 0.5]
    p = np.random.default_rng(0).permutation(len(x))
    queries = np.ascontiguousarray(x[p[:200]])
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(args.scratch or folder)
        base, built, other, q, o = (at / f for f in ("base.npy", "v.kmx", "pq.faiss", "q", "o"))
        if not base.exists():
            np.save(base, many(x[p[200:]], rows))
        b = np.load(base)
        if not built.exists():
            subprocess.run([args.kermes, "compress", base, "-o", built, "--bytes", str(size)], check=True)
        if not other.exists():
            index = faiss.IndexPQFastScan(b.shape[1], 2 * size, 4)
            index.train(b[::max(1, rows // 4096)])
            index.add(b)
            faiss.write_index(index, str(other))
        index = faiss.read_index(str(other))
        true = truth(b, queries)
        queries.tofile(q)
        subprocess.run([args.program, "search", built, q, "2", o], capture_output=True, check=True)
        found = {"kermes fast": np.fromfile(o, np.uint64).reshape(-1, 10),
                 "FAISS PQ FastScan": index.search(queries, 10)[1]}
        bytes_ = {"kermes fast": built.stat().st_size / rows,
                  "FAISS PQ FastScan": size + 4 * 16 * b.shape[1] / rows}
        timed = queries[:48]
        timed.tofile(q)
        del b
        out = []
        for threads in (1, 2):
            runs = {engine: [] for engine in found}
            for _ in range(5):
                for engine in found:
                    if args.realtime:
                        realtime(True)
                    if engine == "kermes fast":
                        got = subprocess.run([args.program, "search", built, q, str(threads), o],
                                             capture_output=True, text=True, check=True)
                        runs[engine].append(json.loads(got.stdout))
                    else:
                        runs[engine].append(fastscan(index, timed, threads))
                    if args.realtime:
                        realtime(False)
                        time.sleep(3)
            for engine, r in runs.items():
                out.append({"engine": engine, "rows": rows, "dim": x.shape[1], "code_bytes": size,
                            "bytes_per_vector": round(bytes_[engine], 1), "queries": len(queries),
                            "threads": threads, "recall@10": recall(found[engine], true),
                            "batch": len(timed)} | {
                            k: round(min(v[k] for v in r), 3)
                            for k in ("query_ms", "median_ms", "batch_ms")})
                print(out[-1], flush=True)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--data", default="../shared/data/vectors")
    p.add_argument("--fashion", default="/usr/share/datasets/fashion-mnist")
    p.add_argument("--anchors", type=int, default=16)
    p.add_argument("--scan", type=int, default=0)
    p.add_argument("--kermes", default="build/kermes")
    p.add_argument("--scratch")
    p.add_argument("--realtime", action="store_true", help="measure before all others on the machine")
    p.add_argument("--only", default="minilm,sift,fashion")
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("--modes", default="dense,fast")
    p.add_argument("--opq-rounds", type=int, default=50, help="of FAISS's OPQ; 50 are its own choice")
    p.add_argument("--peer-rows", type=int, default=1 << 30, help="that FAISS is trained on, at most")
    p.add_argument("-o", "--output")
    args = p.parse_args()
    out = {"faiss": faiss.__version__,
           "peer_settings": {"OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]}, "quality": []}
    for name in filter(None, args.only.split(",")):
        base, queries = load(name, args)
        true = truth(base, queries)
        for size, least, aim in TABLE[name]:
            anchors = args.anchors if name != "fashion" else 256
            rows = [ours(args, base, queries, true, size, m, anchors) for m in filter(None, args.modes.split(","))]
            if not args.no_peers:
                rows += [theirs(args, base, queries, true, size, r) for r in (False, True)]
            for r in rows:
                out["quality"].append({"data": name, "rows": len(base), "queries": len(queries),
                                       "least": least, "aim": aim} | r)
                print(name, size, r, flush=True)
            if args.output:
                pathlib.Path(args.output).write_text(json.dumps(out, indent=1) + "\n")
    if args.scan:
        out["scan"] = scan(args, args.scan)
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
