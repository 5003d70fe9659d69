"""Who may ask. Arguments: the server, and with keys: one that is valid, one that expired, one that was
added while the server ran."""
import sys
import time

from client import call

url, keys = sys.argv[1], sys.argv[2:]
ask = {"prompt": "a", "max_tokens": 1}

if keys:
    alice, old, bob = keys
    assert call(url, "/v1/completions", ask)[0] == 401
    assert call(url, "/health")[0] == 200
    assert call(url, "/metrics")[0] == 401 and call(url, "/nothing")[0] == 401
    for headers in ([("Authorization", "Bearer " + alice)], [("x-api-key", alice)]):
        assert call(url, "/v1/completions", ask, headers)[0] == 200
    for wrong in (old, alice[:-1], alice + "x", "", "km-"):
        status, head, body = call(url, "/v1/completions", ask, [("Authorization", "Bearer " + wrong)])
        assert status == 401 and "key" in body["error"]["message"], (wrong, body)
    status, _, body = call(url, "/v1/messages", {"messages": [], "max_tokens": 1}, [("x-api-key", old)])
    assert status == 401 and body["error"]["type"] == "authentication_error", body
    for _ in range(50):
        if call(url, "/v1/models", headers=[("x-api-key", bob)])[0] == 200:
            break
        time.sleep(0.1)
    else:
        sys.exit("a key that was added is not taken")
else:
    assert call(url, "/v1/models", headers=[("Host", "evil.example")])[0] == 421
    assert call(url, "/v1/models", headers=[("Host", "kermes.lan:80")])[0] == 200
    assert call(url, "/v1/models", headers=[("Host", "LOCALHOST:1234")])[0] == 200
    assert call(url, "/v1/models", headers=[("Origin", "https://evil.example")])[0] == 403
    status, head, _ = call(url, "/v1/models", headers=[("Origin", "https://app.example")])
    assert status == 200 and head["access-control-allow-origin"] == "https://app.example"
    status, head, _ = call(url, "/v1/models", method="OPTIONS", headers=[("Origin", "https://app.example")])
    assert status == 204 and "Authorization" in head["access-control-allow-headers"]
    assert call(url, "/v1/models", headers=[("Origin", url)])[0] == 200
