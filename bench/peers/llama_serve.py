#!/usr/bin/env python3
"""llama.cpp's own server (llama-server), as the Python package xllamacpp carries it, for bench/serve.py --peer.

Usage: llama_serve.py -m FILE --parallel N [--threads N] [--context N]     (of one user)

Tells where it listens on standard error, and serves until it is ended. Needs `pip install xllamacpp`.
"""
import argparse
import os
import sys
import time

p = argparse.ArgumentParser()
p.add_argument("-m", required=True)
p.add_argument("--parallel", type=int, default=16)
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--context", type=int, default=1024)
a = p.parse_args()

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin for each other lose where others run too
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = a.m
params.n_parallel = a.parallel
params.n_ctx = a.parallel * a.context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
params.port = 0
params.n_gpu_layers = 0
params.verbosity = 0
server = xllamacpp.Server(params)
print(f"llama.cpp ({xllamacpp.get_system_info()}) is served at {server.listening_address}/", file=sys.stderr, flush=True)
while True:
    time.sleep(3600)
