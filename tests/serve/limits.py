"""What keys may, and an end that lets answers finish. Arguments: the server, its process, and keys: one with three
tokens an answer, one with one request at a time, one for another model."""
import os
import signal
import sys
import time

from client import Client, call, events

url, server, few, one, other = sys.argv[1], int(sys.argv[2]), *([("x-api-key", k)] for k in sys.argv[3:6])
ask = {"prompt": "The sea", "max_tokens": 120, "ignore_eos": True}

for body in (ask, {k: v for k, v in ask.items() if k != "max_tokens"}):
    assert call(url, "/v1/completions", body, few)[2]["usage"]["completion_tokens"] == 3
assert call(url, "/v1/completions", {**ask, "model": "kermes-tiny"}, other)[0] in (403, 404)

# One at a time; the next is told when to come again, and is let in then.
first = Client(url)
first.ask("POST", "/v1/completions", {**ask, "stream": True, "max_tokens": 200, "n": 16}, one)
first.head()
status, head, _ = call(url, "/v1/completions", ask, one)
assert status == 429 and int(head["retry-after"]) >= 1, (status, head)
assert call(url, "/v1/completions", {**ask, "max_tokens": 1}, few)[0] == 200  # others notice nothing
first.close()
began = time.time()
while call(url, "/v1/completions", {**ask, "max_tokens": 1}, one)[0] != 200:
    assert time.time() - began < 5

# SIGTERM: what is under way comes to its end, and nobody new is let in.
last = Client(url)
last.ask("POST", "/v1/completions", {**ask, "stream": True, "max_tokens": 200}, one)
assert last.head()[0] == 200
os.kill(server, signal.SIGTERM)
data = b"".join(last.chunks())
assert data.endswith(b"data: [DONE]\n\n") and events(data)[-1]["choices"][0]["finish_reason"] == "length", data[-300:]
try:
    call(url, "/ready")
    sys.exit("a server that ends takes new requests")
except ConnectionError:
    pass
