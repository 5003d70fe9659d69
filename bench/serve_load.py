#!/usr/bin/env python3
"""Many users on `kermes serve`: a closed loop whose prompts have an exact number of tokens and answers an
exact length, as serving is compared by. Each user asks anew as soon as its answer has ended; seeds are fixed
and no two prompts begin alike. Tells output tokens a second over everything, and while all answers were under
way; the time to the first token and between two pieces of one stream; and where the server's time went: in steps,
in the engine's thread beside them, in its other threads, and in all steps by how many answers each made.

Usage: bench/serve_load.py KERMES MODEL [--users 256] [--prompt 512] [--tokens 256] [--rounds 1]
           [--add FILE.json] [--label NAME] [-- OPTIONS OF THE SERVER]
"""
import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request

from serve import Server, quantile


class Listener(asyncio.Protocol):
    """One answer's pieces by their times, and as little else as can be: the client must not be the limit."""

    def __init__(self, request, done):
        self.request, self.done, self.stamps, self.counts, self.head, self.tail = request, done, [], [], b"", b""

    def connection_made(self, transport):
        self.began = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data):
        if not self.stamps:
            self.head += data[:200]
        n = data.count(b'"text":"')
        if n:
            self.stamps.append(time.perf_counter())
            self.counts.append(n)
        self.tail = (self.tail + data)[-2000:]

    def connection_lost(self, _):
        self.done.set_result(None)


async def closed_loop(port, a):
    answers, statuses = [], {}

    async def user(i):
        for k in range(a.rounds):
            rng = random.Random(1000003 * k + i)
            ids = [rng.randrange(300, a.vocabulary) for _ in range(a.prompt)]
            data = json.dumps({"prompt": ids, "max_tokens": a.tokens, "seed": i, "temperature": a.temperature, "ignore_eos": True, "stream": True,
                               "stream_options": {"include_usage": True}}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            _, x = await loop.create_connection(lambda: Listener(head.encode() + data, done), "127.0.0.1", port)
            await done
            status = x.head.split()[1].decode() if x.head else "none"
            usage = re.search(rb'"usage":(\{.*\})\}\n', x.tail)
            statuses[status] = statuses.get(status, 0) + 1
            if usage:
                answers.append((x, json.loads(usage[1])))
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(user(i) for i in range(a.users)))
    return answers, statuses, time.perf_counter() - began, time.process_time() - cpu


def metrics(port):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^kermes_(\w+) (\S+)$", text, re.M)}


def thread_seconds(server):
    """CPU of each kind of thread."""
    out, folder = {}, f"/proc/{server.process.pid}/task"
    for task in os.listdir(folder):
        try:
            with open(f"{folder}/{task}/schedstat") as f, open(f"{folder}/{task}/comm") as g:
                name = g.read().strip()
                out[name] = out.get(name, 0) + int(f.read().split()[0]) / 1e9
        except OSError:
            pass
    return out


def measure(server, a):
    before, threads = metrics(server.port), thread_seconds(server)
    answers, statuses, seconds, client = asyncio.run(closed_loop(server.port, a))
    after, now = metrics(server.port), thread_seconds(server)
    if not answers:
        sys.exit(f"no answer: {statuses}")
    made = sum(u["completion_tokens"] for _, u in answers)
    firsts = [x.stamps[0] - x.began for x, _ in answers]
    gaps = [b - c for x, _ in answers for c, b in zip(x.stamps, x.stamps[1:])]
    last_first, first_end = max(x.stamps[0] for x, _ in answers), min(x.stamps[-1] for x, _ in answers)
    within = sum(n for x, _ in answers for at, n in zip(x.stamps, x.counts) if last_first < at <= first_end)
    busy, steps = after["busy_seconds_total"] - before["busy_seconds_total"], after["steps_total"] - before["steps_total"]
    return {
        "answers": statuses, "output_tokens": made, "prompt_tokens": sum(u["prompt_tokens"] for _, u in answers), "seconds": round(seconds, 3),
        "output_tokens_per_second": round(made / seconds, 1),
        "while_all_answer_per_second": round(within / (first_end - last_first), 1) if a.rounds == 1 and first_end > last_first else None,
        "first_token_seconds": shares(firsts), "between_pieces_seconds": shares(gaps), "steps": int(steps), "seconds_in_steps": round(busy, 3),
        "engine_share_beside_steps": round(1 - busy / seconds, 4), "answers_set_aside": int(after["answers_set_aside_total"] - before["answers_set_aside_total"]),
        "client_cpu_seconds": round(client, 3),
        "cpu_seconds": {k: round(v - threads.get(k, 0), 3) for k, v in sorted(now.items()) if v - threads.get(k, 0) >= 0.0005},
    }


def shares(values):
    return {name: round(quantile(values, q), 5) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1))} if values else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kermes")
    p.add_argument("model")
    p.add_argument("--users", type=int, default=256)
    p.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    p.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    p.add_argument("--rounds", type=int, default=1, help="answers of each user")
    p.add_argument("--repeat", type=int, default=1, help="the whole again; the median is told")
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--vocabulary", type=int, default=32000, help="prompts' tokens are below this")
    p.add_argument("--label", default="load", help="its name among the results")
    p.add_argument("--add", metavar="FILE", help="results are added to this file")
    own = sys.argv[1:]
    end = own.index("--") if "--" in own else len(own)
    a = p.parse_args(own[:end], argparse.Namespace(options=own[end + 1 :]))
    server = Server(a.kermes, a.model, "--parallel", str(a.users), "--queue", str(2 * a.users), "--connections", str(4 * a.users), *a.options)
    try:
        warm = argparse.Namespace(**{**vars(a), "users": min(a.users, 4), "tokens": 16, "rounds": 1, "prompt": a.prompt + 1})
        asyncio.run(closed_loop(server.port, warm))
        runs = [measure(server, a) for _ in range(a.repeat)]
    finally:
        server.stop()
    runs.sort(key=lambda r: r["output_tokens_per_second"])
    out = {"label": a.label, "model": os.path.basename(a.model), "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d"),
           "device": device_name(), "settings": {k: getattr(a, k) for k in ("users", "prompt", "tokens", "rounds", "repeat", "temperature", "options")},
           "median": statistics.median_low([r["output_tokens_per_second"] for r in runs]), "runs": runs}
    print(json.dumps(out, indent=1))
    if a.add:
        try:
            with open(a.add) as f:
                all_of = json.load(f)
        except FileNotFoundError:
            all_of = []
        all_of = [r for r in all_of if r["label"] != a.label] + [out]
        with open(a.add, "w") as f:
            json.dump(all_of, f, indent=1)
            f.write("\n")


def device_name():
    """Of the GPU, where there is one."""
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "cpu"


if __name__ == "__main__":
    main()
