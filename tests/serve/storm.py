"""Mixed load with clients that leave at random. Arguments: the server, seconds, users."""
import json
import random
import sys
import threading
import time

from client import Client, call, events

url, seconds, users = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
asks = [("/v1/completions", {"prompt": f"The {w} is", "max_tokens": 4 + i, "temperature": 0})
        for i, w in enumerate(("sea", "sky", "cat", "sun", "day", "man", "dog", "red"))]
alone = [call(url, path, body)[2]["choices"][0]["text"] for path, body in asks]
counts, problems, lock = {}, [], threading.Lock()


def note(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def one_request(rng):
    c = Client(url, 120)
    i = rng.randrange(len(asks))
    path, body = asks[i]
    stream = rng.random() < 0.5
    kind = rng.random()
    if kind < 0.4:
        path = rng.choice(["/v1/chat/completions", "/v1/messages", "/api/chat"])
        body = {"messages": [{"role": "user", "content": "sea " * rng.choice([1, 5, 60]) + str(rng.randrange(4))}],
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
    if status == 200 and path == "/v1/completions":
        text = ("".join(e["choices"][0]["text"] for e in events(answer)) if stream
                else json.loads(answer)["choices"][0]["text"])
        if text != alone[i]:
            note("differs")


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
while metric("requests_running") + metric("requests_queued") + metric("streams") > 0:
    assert time.time() - began < 20, "something is left over"
    time.sleep(0.05)
assert metric("answers_failed_total") == 0
