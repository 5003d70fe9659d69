#!/usr/bin/env python3
"""Load on `kermes serve`: users in a closed loop or requests at a rate, with fixed seeds.

Starts a server, and measures: output tokens a second of many users beside those of one, and beside
`kermes bench batch` with as many sequences, in turns; the time to the first token and between tokens; what the
server itself (everything but the engine's threads) costs in CPU for each token; what thousands of idle
streams take in memory; how long the next turn of a conversation takes, beside reading it anew; and the
time from the start of the process to the first token. The settings are written beside the results.

Usage: bench/serve.py KERMES MODEL [--users 16] [--tokens 64] [--rate R] [--batch] [--idle 2000] [--out FILE.json]
"""
import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

WORDS = "sea sky ship bird wind salt rope sail star moon sand wave storm light night day fish net coast harbour".split()


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def shares(values):
    return {f"p{round(100 * q)}": round(quantile(values, q), 6) if values else None for q in (0.5, 0.9, 0.99)}


def bench_batch(kermes, model, users, context):
    """Tokens a second of so many sequences that go on together, without a server: over seconds, as the server is
    measured, since what runs for a moment only gets more of a shared machine."""
    out = subprocess.run([kermes, "bench", "batch", "-m", model, "--batch", str(users), "--context", str(context), "--repeat", "100", "--json"],
                         capture_output=True, check=True).stdout
    return json.loads(out)["results"][0]["tokens_per_s_median"]


class Server:
    def __init__(self, kermes, model, *options):
        self.start([kermes, "serve", "-m", model, "--port", "0", *options])

    def start(self, command):
        self.began, self.said = time.perf_counter(), ""
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.said = line
            found = re.search(r"served at http://([^:]+):(\d+)/", line)
            if found:
                self.port = int(found[2])
                return
        sys.exit("the server did not start")

    def cpu(self):
        """Seconds of CPU: of the loop, the workers and what the engine sends itself, and of all threads."""
        own, total, tick = 0, 0, os.sysconf("SC_CLK_TCK")
        folder = f"/proc/{self.process.pid}/task"
        for task in os.listdir(folder):
            with open(f"{folder}/{task}/schedstat") as f:
                seconds = int(f.read().split()[0]) / 1e9
            with open(f"{folder}/{task}/comm") as f:
                name = f.read().strip()
            total += seconds
            if name in ("km-loop", "km-worker"):
                own += seconds
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics").read().decode()
        return own + float(re.search(r"^kermes_deliveries_direct_cpu_seconds_total (\S+)", metrics, re.M)[1]), total

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) * 1024

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


async def ask(port, body, times=None):
    """Streams one answer: tokens (by usage), when each piece came, and the prompt's counts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    began = time.perf_counter()
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    head = await reader.readuntil(b"\r\n\r\n")
    usage, stamps = None, []
    if b" 200 " in head.split(b"\r\n")[0]:
        while (size := int(await reader.readline(), 16)):
            chunk = await reader.readexactly(size + 2)
            if b'"content":"' in chunk:
                stamps.append(time.perf_counter() - began)
            if b'"usage":{' in chunk:
                usage = next(json.loads(part)["usage"] for part in chunk.decode().split("data: ") if '"usage":{' in part)
    writer.close()
    return usage, stamps, head.split()[1].decode()


def question(rng, words=24):
    return [{"role": "user", "content": "Write about " + " ".join(rng.choice(WORDS) for _ in range(words)) + "."}]


async def closed_loop(port, users, tokens, rounds, seed=1):
    firsts, gaps, made, statuses = [], [], 0, {}

    async def user(i):
        nonlocal made
        rng = random.Random(seed * 1000 + i)
        for _ in range(rounds):
            usage, stamps, status = await ask(port, {"messages": question(rng), "max_tokens": tokens, "seed": i, "temperature": 0, "ignore_eos": True})
            statuses[status] = statuses.get(status, 0) + 1
            if usage:
                made += usage["completion_tokens"]
                firsts.append(stamps[0])
                gaps.extend(b - a for a, b in zip(stamps, stamps[1:]))
    began = time.perf_counter()
    await asyncio.gather(*(user(i) for i in range(users)))
    return result(made, time.perf_counter() - began, firsts, gaps, statuses)


async def open_loop(port, rate, tokens, seconds, seed=2):
    rng, firsts, gaps, made, statuses, tasks = random.Random(seed), [], [], 0, {}, []

    async def one(i):
        nonlocal made
        usage, stamps, status = await ask(port, {"messages": question(random.Random(i)), "max_tokens": tokens, "seed": i, "ignore_eos": True})
        statuses[status] = statuses.get(status, 0) + 1
        if usage:
            made += usage["completion_tokens"]
            firsts.append(stamps[0])
            gaps.extend(b - a for a, b in zip(stamps, stamps[1:]))
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        tasks.append(asyncio.create_task(one(len(tasks))))
        await asyncio.sleep(rng.expovariate(rate))
    await asyncio.gather(*tasks)
    return result(made, time.perf_counter() - began, firsts, gaps, statuses)


def result(made, seconds, firsts, gaps, statuses):
    return {"tokens": made, "seconds": round(seconds, 3), "tokens_per_second": round(made / seconds, 2), "answers": statuses,
            "first_token_seconds": shares(firsts), "between_tokens_seconds": shares(gaps)}


class Listener(asyncio.Protocol):
    """An answer's pieces by their times, and little else: what the client takes of the CPU, the engine lacks."""

    def __init__(self, request, done):
        self.request, self.done, self.stamps = request, done, []

    def connection_made(self, transport):
        transport.write(self.request)

    def data_received(self, data):
        self.stamps.append((time.perf_counter(), data.count(b'"content":"')))

    def connection_lost(self, _):
        self.done.set_result(None)


def steady(port, users, tokens, words):
    """Tokens a second while all users' answers are under way, from the last first token to the first end; and the
    seconds of CPU that this client took meanwhile for each."""
    listeners = []

    async def user(i):
        data = json.dumps({"messages": question(random.Random(i), words), "max_tokens": tokens, "seed": i, "temperature": 0, "ignore_eos": True,
                           "stream": True}).encode()
        request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        _, listener = await loop.create_connection(lambda: Listener(request.encode() + data, done), "127.0.0.1", port)
        listeners.append(listener)
        await done

    async def all_of():
        await asyncio.gather(*(user(i) for i in range(users)))
    began = time.process_time()
    asyncio.run(all_of())
    client = (time.process_time() - began) / (users * tokens)
    came = [[at for at, n in x.stamps for _ in range(n)] for x in listeners]
    first, last = max(c[0] for c in came), min(c[-1] for c in came)
    made = sum(1 for c in came for at in c if first < at <= last)
    return made / (last - first) if last > first else None, client


def against_batch(server, a):
    """The server's tokens a second against those of kermes bench batch, in turns, since machines are busy."""
    words, turns = 4, []
    for _ in range(a.batch_turns):
        bench = bench_batch(a.kermes, a.model, a.users, 64 + a.tokens // 2)
        rate, client = steady(server.port, a.users, a.tokens, words)
        turns.append({"bench": bench, "server": rate, "client_cpu_us_per_token": round(client * 1e6, 1)})
    ratio = sorted(t["server"] / t["bench"] for t in turns)
    return {"turns": turns, "ratio_median": round(statistics.median(ratio), 3), "ratio_best": round(ratio[-1], 3)}


def start_time(a, rounds=3):
    """From the start of the process to the first token of a short answer, the model in the page cache."""
    with open(a.model, "rb") as f:
        while f.read(1 << 24):
            pass
    times = []
    for _ in range(rounds):
        server = Server(a.kermes, a.model, "--context", "2048")
        try:
            listening = time.perf_counter() - server.began
            body = json.dumps({"prompt": "Hi", "max_tokens": 1, "temperature": 0}).encode()
            ask_one = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", body, {"Content-Type": "application/json"})
            usage = json.load(urllib.request.urlopen(ask_one, timeout=60))["usage"]
            assert usage["completion_tokens"] == 1
            times.append({"listening_seconds": round(listening, 4), "first_token_seconds": round(time.perf_counter() - server.began, 4)})
        finally:
            server.stop()
    return {"bytes": os.path.getsize(a.model), "runs": times, "best_seconds": min(t["first_token_seconds"] for t in times)}


def floor_of(a, megabytes):
    return json.loads(subprocess.run([a.floor, "256", "250", megabytes], capture_output=True, check=True).stdout)


def stream_cost(a, rounds=5, answers=8):
    """CPU of the whole process for a token of one stream, beside the same tokens in whole answers, which are the
    engine's work and the reading of requests: in turns, over one thread; and beside the floor of a send."""
    server, turns = Server(a.kermes, a.model, "--threads", "1"), []
    body = {"messages": question(random.Random(6)), "max_tokens": a.tokens, "seed": 1, "temperature": 0, "ignore_eos": True}

    def answer(way):
        """By a client that does as little as possible beside."""
        data = json.dumps({**body, "stream": way == "stream"}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            while s.recv(65536):
                pass
    try:
        answer("stream")
        for _ in range(rounds):
            turn = {}
            for name in ("stream", "whole"):
                before = server.cpu()[1]
                for _ in range(answers):
                    answer(name)
                turn[name + "_us"] = round((server.cpu()[1] - before) / (answers * a.tokens) * 1e6, 2)
            turns.append({**turn, "difference_us": round(turn["stream_us"] - turn["whole_us"], 2)})
    finally:
        server.stop()
    out = {"turns": turns, "difference_us_median": quantile([t["difference_us"] for t in turns], 0.5),
           "difference_us_of_best": round(min(t["stream_us"] for t in turns) - min(t["whole_us"] for t in turns), 2)}
    if a.floor:
        out["floor"] = [floor_of(a, mb) for mb in ("0", "90")]
    return out


def instructions(a, answers=4):
    """What the server does in user space for a token of one stream, in instructions, which do not depend on the
    machine's load: by valgrind, the engine's thread without km_batch_step, and the loop with all it calls. The
    kernel's part of sending is not in it. Requests are read in this, too: a few in all."""
    with tempfile.TemporaryDirectory() as folder:
        out = folder + "/callgrind"
        server = Server.__new__(Server)
        server.start(["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", a.kermes, "serve", "-m", a.model, "--port", "0", "--threads", "1"])
        try:
            for _ in range(answers):
                asyncio.run(ask(server.port, {"messages": question(random.Random(6)), "max_tokens": a.tokens, "temperature": 0, "ignore_eos": True}))
        finally:
            server.stop()
        listed = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", out], capture_output=True, text=True, check=True).stdout
    count = {}
    for line in listed.split("\n"):
        found = re.match(r"\s*([\d,]+) .*:(\w+)(?:'2)? \[", line)
        if found:
            count.setdefault(found[2], int(found[1].replace(",", "")))
    made = answers * a.tokens
    engine, loop = count["engine"] - count["km_batch_step"], count["event_base_loop"]
    return {"tokens": made, "engine_per_token": round(engine / made), "loop_per_token": round(loop / made), "per_token": round((engine + loop) / made),
            "events_per_token": round(count["km_call_on_events"] / made)}


class Peer(Server):
    """Another server that speaks OpenAI's dialect; its command tells where it listens as ours does."""

    def __init__(self, command, model, *options):
        self.start([*command.split(), "-m", model, *options])


def against_peer(a, rounds=3):
    """Tokens a second of the same users, from the first request to the last answer, in turns."""
    turns, ours, theirs = [], None, None
    try:
        theirs = Peer(a.peer, a.model, "--parallel", str(a.users))
        ours = Server(a.kermes, a.model, "--parallel", str(a.users))
        for server in (ours, theirs):
            asyncio.run(closed_loop(server.port, 1, 8, 1))
        for i in range(rounds):
            turn = {}
            for name, server in (("kermes", ours), ("peer", theirs)):
                got = asyncio.run(closed_loop(server.port, a.users, a.tokens, a.rounds, seed=10 + i))
                turn[name] = {k: got[k] for k in ("tokens", "tokens_per_second", "answers", "first_token_seconds", "between_tokens_seconds")}
            turns.append({**turn, "ratio": round(turn["kermes"]["tokens_per_second"] / turn["peer"]["tokens_per_second"], 3)})
    finally:
        for server in (ours, theirs):
            if server:
                server.stop()
    return {"peer": theirs.said.strip().split(" is served at ")[0], "turns": turns, "ratio_median": quantile([t["ratio"] for t in turns], 0.5)}


async def next_turn(port, length, rounds=5):
    """The first token of a prompt of about `length` tokens, read anew; and of the turn after it. Several
    conversations, and the one in the middle by the share."""
    turns = []
    for i in range(rounds):
        talk = question(random.Random(3 + i), length)
        usage, cold, _ = await ask(port, {"messages": talk, "max_tokens": 8, "temperature": 0})
        talk += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "Go on."}]
        usage2, warm, _ = await ask(port, {"messages": talk, "max_tokens": 8, "temperature": 0})
        reused = usage2["prompt_tokens_details"]["cached_tokens"]
        turns.append({"prompt_tokens": usage["prompt_tokens"], "read_seconds": cold[0], "next_turn_seconds": warm[0],
                      "next_turn_share": warm[0] / cold[0], "reused_tokens": reused, "new_tokens": usage2["prompt_tokens"] - reused})
    turns.sort(key=lambda t: t["next_turn_share"])
    return {**turns[len(turns) // 2], "shares": [round(t["next_turn_share"], 4) for t in turns]}


async def idle_streams(server, count):
    """Streams that wait behind one long answer: memory, and heartbeats that came."""
    before = server.memory()
    body = json.dumps({"messages": question(random.Random(4)), "max_tokens": 2, "stream": True}).encode()
    long = json.dumps({"messages": question(random.Random(5)), "max_tokens": 100000, "stream": True, "ignore_eos": True}).encode()
    streams = []

    async def one(data):
        r, w = await asyncio.open_connection("127.0.0.1", server.port)
        w.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        streams.append((r, w))
    await one(long)
    await asyncio.sleep(0.5)
    for _ in range(0, count, 50):
        await asyncio.gather(*(one(body) for _ in range(min(50, count))))
    beats = 0

    async def listen(r):
        nonlocal beats
        try:
            while True:
                if b": ping" in await asyncio.wait_for(r.readline(), 20):
                    beats += 1
                    return
        except (asyncio.TimeoutError, ConnectionError):
            pass
    await asyncio.gather(*(listen(r) for r, _ in streams[1:]))
    after = server.memory()
    for _, w in streams:
        w.close()
    return {"streams": len(streams) - 1, "heartbeats": beats, "megabytes": round((after - before) / 1e6, 1)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kermes")
    p.add_argument("model")
    p.add_argument("--users", type=int, default=16)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--rate", type=float, default=0)
    p.add_argument("--turn", type=int, default=2000, help="words of the long prompt; 0: none")
    p.add_argument("--idle", type=int, default=0)
    p.add_argument("--batch", action="store_true", help="also against kermes bench batch")
    p.add_argument("--batch-turns", type=int, default=3)
    p.add_argument("--start", action="store_true", help="only the time from start to the first token")
    p.add_argument("--cost", action="store_true", help="only what a token of one stream costs")
    p.add_argument("--instructions", action="store_true", help="with --cost: also instructions in user space, by valgrind")
    p.add_argument("--peer", metavar="COMMAND", help="only against another server, as bench/peers/llama_serve.py starts it")
    p.add_argument("--floor", help="bench_send_floor, for what a send costs by itself")
    p.add_argument("--out")
    a = p.parse_args()
    settings = {k: v for k, v in vars(a).items() if k not in ("kermes", "model", "out", "floor", "peer")}
    out = {"model": os.path.basename(a.model), "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d"), "load_before": os.getloadavg()[0],
           "settings": settings}
    if a.start:
        out["start"] = start_time(a)
        return write(out, a.out)
    if a.peer:
        out["against_peer"] = against_peer(a)
        return write(out, a.out)
    if a.cost:
        out["one_stream"] = stream_cost(a)
        if a.instructions:
            out["instructions"] = instructions(a)
        return write(out, a.out)
    server = Server(a.kermes, a.model, "--parallel", str(max(a.users, 1)))
    try:
        asyncio.run(closed_loop(server.port, 1, 8, 1))  # warm
        own, _ = server.cpu()
        out["one_user"] = asyncio.run(closed_loop(server.port, 1, 4 * a.tokens, 1))
        out["one_user"]["server_cpu_us_per_token"] = round((server.cpu()[0] - own) / out["one_user"]["tokens"] * 1e6, 2)
        if a.floor:  # a send by itself, in the same minute, with caches as a model's step leaves them
            out["one_user"]["send_floor"] = floor_of(a, "90")
        own, _ = server.cpu()
        out[f"{a.users}_users"] = many = asyncio.run(closed_loop(server.port, a.users, a.tokens, a.rounds))
        many["server_cpu_us_per_token"] = round((server.cpu()[0] - own) / many["tokens"] * 1e6, 2)
        if a.rate:
            out["open_loop"] = {"rate": a.rate, **asyncio.run(open_loop(server.port, a.rate, a.tokens, 20))}
        if a.batch:
            out["against_bench_batch"] = against_batch(server, a)
        if a.turn:
            out["next_turn"] = asyncio.run(next_turn(server.port, a.turn))
    finally:
        server.stop()
    if a.idle:
        server = Server(a.kermes, a.model, "--parallel", "1", "--queue", str(2 * a.idle), "--connections", str(2 * a.idle))
        try:
            asyncio.run(closed_loop(server.port, 1, 8, 1))
            out["idle"] = asyncio.run(idle_streams(server, a.idle))
        finally:
            server.stop()
    write(out, a.out)


def write(out, path):
    out["load_after"] = os.getloadavg()[0]
    text = json.dumps(out, indent=1)
    print(text)
    if path:
        with open(path, "w") as f:
            f.write(text + "\n")


if __name__ == "__main__":
    main()
