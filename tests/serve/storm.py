"""Mixed load with clients that leave at random. Arguments: the server, seconds, users."""
import json
import random
import sys
import threading
import time

from client import Client, call, events

url, seconds, users = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
WORDS = "sea sky cat sun day man dog red".split()
JSON = {"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["n", "ok"], "additionalProperties": False}


def talk(*said):
    return [{"role": "assistant" if i % 2 else "user", "content": s} for i, s in enumerate(said)]


# Every request has a seed, so that its answer is known: short and long, with schemas, grammars and stops, turns
# of conversations that share their beginnings, and answers that nobody limits.
asks = [("/v1/completions", {"prompt": f"The {w} is", "max_tokens": 4 + i, "temperature": 0}) for i, w in enumerate(WORDS)]
asks += [("/v1/chat/completions", {"messages": talk("sea " * (20 * i) + w), "max_tokens": 8 + 9 * i, "seed": i}) for i, w in enumerate(WORDS)]
asks += [("/v1/chat/completions", {"messages": talk("Hi", "Hello.", f"The {w}?"), "seed": i, "ignore_eos": i % 2 == 0}) for i, w in enumerate(WORDS[:4])]
asks += [("/v1/completions", {"prompt": f"A {w}: ", "json_schema": JSON, "max_tokens": 60, "seed": i}) for i, w in enumerate(WORDS)]
asks += [("/v1/completions", {"prompt": f"{w}?", "grammar": 'root ::= "yes" | "no"', "seed": i}) for i, w in enumerate(WORDS)]
asks += [("/v1/chat/completions", {"messages": talk(f"Say {w}"), "max_tokens": 30, "seed": i, "stop": ["e"]}) for i, w in enumerate(WORDS)]
asks += [("/v1/chat/completions", {"messages": talk("sea " * (20 * i) + w), "max_tokens": 8 + 9 * i, "seed": i, "model": "red"}) for i, w in enumerate(WORDS)]


def text_of(answer, stream):
    if stream:
        choices = [c for e in events(answer) for c in e["choices"]]
        return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)
    choice = json.loads(answer)["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def alone_of(path, body):
    status, _, answer = call(url, path, json.dumps(body).encode())
    assert status == 200, (status, answer, body)
    return text_of(json.dumps(answer), False)


alone = [alone_of(*a) for a in asks]
counts, problems, lock = {}, [], threading.Lock()


def note(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def one_request(rng):
    c = Client(url, 120)
    i = rng.randrange(len(asks))
    path, body = asks[i]
    stream = rng.random() < 0.5
    known = rng.random() < 0.7
    if not known:
        path = rng.choice(["/v1/chat/completions", "/v1/messages", "/api/chat"])
        body = {"messages": talk("sea " * rng.choice([1, 5, 60]) + str(rng.randrange(4))),
                "max_tokens": rng.randint(1, 40), "n": rng.choice([1, 1, 1, 3])}
    data = json.dumps({**body, "stream": stream}).encode()
    if rng.random() < 0.03:
        data = data[:-2]
    c.ask("POST", path, data)
    if rng.random() < 0.25:
        time.sleep(rng.random() * 0.05)
        c.close()
        return note("left")
    status, head, answer = c.answer()
    c.close()
    note(str(status))
    if status not in (200, 400, 429):
        problems.append((status, answer))
    if status == 200 and known and text_of(answer, stream) != alone[i]:
        problems.append(("differs", asks[i], alone[i], text_of(answer, stream)))


def user(number):
    rng, end = random.Random(number), time.time() + seconds
    while time.time() < end and not problems:
        try:
            one_request(rng)
        except Exception as e:
            problems.append(repr(e))


threads = [threading.Thread(target=user, args=(i,)) for i in range(users)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(counts)
assert not problems, problems[:5]
assert counts.get("200", 0) > 0


def metric(name):
    data = call(url, "/metrics")[2].decode()
    return float(next(line.split()[1] for line in data.split("\n") if line.startswith(f"kermes_{name} ")))


began = time.time()
while metric("requests_running") + metric("requests_queued") + metric("answers_paused") + metric("streams") > 0:
    assert time.time() - began < 60, "something is left over"
    time.sleep(0.05)
assert metric("answers_failed_total") == 0
print({n: metric(n) for n in ("answers_finished_total", "answers_cancelled_total", "answers_set_aside_total", "prefixes_evicted_total", "pages", "pages_free")})
