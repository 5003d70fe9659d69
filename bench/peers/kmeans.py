#!/usr/bin/env python3
"""k-means beside faiss-cpu, on the same vectors, cores and number of rounds, in turns. Writes one JSON
object: seconds of each engine (best of the turns), their ratio, and the energy each ends at.
usage: kmeans.py BENCH_KMEANS [--rows N] [--anchors K] [--rounds R] [--turns T] [--out FILE]
Needs the Debian package dataset-fashion-mnist, NumPy and faiss-cpu."""
import argparse
import gzip
import json
import os
import subprocess
import tempfile
import time

# FAISS's threads sleep when they wait, or a busy machine makes them several times slower; libgomp
# reads this as it is loaded. The result records it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import faiss
import numpy as np

p = argparse.ArgumentParser()
p.add_argument("bench")
p.add_argument("--rows", type=int, default=60000)
p.add_argument("--anchors", type=int, default=979)
p.add_argument("--rounds", type=int, default=25)
p.add_argument("--turns", type=int, default=1)
p.add_argument("--images", default="/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
p.add_argument("--out")
a = p.parse_args()

cores = len(os.sched_getaffinity(0))
faiss.omp_set_num_threads(cores)
x = np.frombuffer(gzip.open(a.images).read()[16:], np.uint8).reshape(-1, 784).astype(np.float32)
x = np.ascontiguousarray(x[:a.rows])


def energy(c):
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(c)
    return float(index.search(x, 1)[0].mean())


def peer():
    k = faiss.Kmeans(x.shape[1], a.anchors, niter=a.rounds, seed=1, verbose=False,
                     max_points_per_centroid=10 ** 9, min_points_per_centroid=1)
    t = time.perf_counter()
    k.train(x)
    return time.perf_counter() - t, k.centroids


def ours(path, kind):
    line = subprocess.run([a.bench, "cpu", kind, path, str(a.rows), "784", str(a.anchors),
                           str(a.rounds)], check=True, capture_output=True, text=True).stdout
    return json.loads(line)


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "x.f32")
    x.tofile(path)
    runs = []
    for _ in range(a.turns):
        seconds, centroids = peer()
        runs.append({"faiss": seconds, "lloyd": ours(path, "file"), "annealed": ours(path, "anneal"),
                     "faiss_energy": energy(centroids)})
best = {"faiss": min(r["faiss"] for r in runs),
        "lloyd": min(r["lloyd"]["seconds"] for r in runs),
        "annealed": min(r["annealed"]["seconds"] for r in runs)}
result = {"job": "k-means", "data": "fashion-mnist", "rows": a.rows, "dim": 784, "anchors": a.anchors,
          "rounds": a.rounds, "cores": cores, "faiss_version": faiss.__version__,
          "peer_settings": {"OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]}, "seconds": best,
          "faster": {"lloyd": best["faiss"] / best["lloyd"], "annealed": best["faiss"] / best["annealed"]},
          "energy": {"faiss": runs[-1]["faiss_energy"], "lloyd": runs[-1]["lloyd"]["energy"],
                     "annealed": runs[-1]["annealed"]["energy"]}, "rounds_run": runs[-1]["lloyd"]["rounds"]}
text = json.dumps(result, indent=1)
print(text)
if a.out:
    with open(a.out, "w") as f:
        f.write(text + "\n")
