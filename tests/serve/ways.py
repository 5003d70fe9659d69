"""One way to the server after the other; the first argument says which."""
import os
import socket
import ssl
import sys
import time
import zlib

from client import Client, call, events

what, url = sys.argv[1], sys.argv[2]
user = [{"role": "user", "content": "What is the sea?"}]
ask = {"messages": user, "max_tokens": 8, "temperature": 0}


def chat_works():
    whole = call(url, "/v1/chat/completions", ask)[2]["choices"][0]["message"]["content"]
    parts = events(call(url, "/v1/chat/completions", {**ask, "stream": True})[2])
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == whole
    c = Client(url)  # several requests on one connection
    for _ in range(3):
        c.ask("GET", "/health")
        assert c.answer()[0] == 200
    c.close()


def trust(certificate):
    Client.tls = ssl.create_default_context(cafile=certificate)


def tls(certificate, name):
    end = time.time() + 30
    while True:  # SIGHUP is heard soon
        try:
            trust(certificate)
            c = Client(url)
            break
        except ssl.SSLError:
            assert time.time() < end, "the certificate is not the new one"
            time.sleep(0.05)
    subject = dict(pair for part in c.socket.getpeercert()["subject"] for pair in part)
    assert subject["commonName"] == name and c.socket.version() in ("TLSv1.2", "TLSv1.3"), subject
    c.close()
    chat_works()
    assert call(url, "/health")[0] == 200
    # Somebody who speaks no TLS gets nothing, and nobody else notices.
    plain = socket.create_connection((c.host.split(":")[0], int(c.host.split(":")[1])))
    plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        assert not plain.recv(1000).startswith(b"HTTP/1.1 200")
    except ConnectionResetError:
        pass
    plain.close()
    leaves = Client(url)
    leaves.ask("POST", "/v1/chat/completions", {**ask, "max_tokens": 100000, "ignore_eos": True, "stream": True})
    leaves.head()
    leaves.close()
    assert call(url, "/health")[0] == 200


def still_served():
    Client.tls = ssl._create_unverified_context()
    chat_works()


def unpack(data):
    d = zlib.decompressobj(31)
    text = d.decompress(data)
    assert d.eof and not d.unused_data, "the stream has no end"
    return text


def gzip():
    yes = [("Accept-Encoding", "br, gzip;q=0.5")]
    page = call(url, "/")[2]
    status, head, small = call(url, "/", headers=yes)
    assert head["content-encoding"] == "gzip" and "accept-encoding" in head["vary"].lower() and len(small) < len(page) / 2
    assert len(unpack(small)) == len(page)  # the nonce is another one
    assert "content-encoding" not in call(url, "/health", headers=yes)[1]  # too small to be worth it
    assert "content-encoding" not in call(url, "/", headers=[("Accept-Encoding", "gzip;q=0, br")])[1]
    # A stream arrives piece by piece, each of which can be read at once.
    plain = call(url, "/v1/chat/completions", {**ask, "max_tokens": 40, "stream": True})[2]
    c = Client(url)
    c.ask("POST", "/v1/chat/completions", {**ask, "max_tokens": 40, "stream": True}, yes)
    status, head = c.head()
    assert status == 200 and head["content-encoding"] == "gzip"
    d, text, seen = zlib.decompressobj(31), b"", 0
    for chunk in c.chunks():
        piece = d.decompress(chunk)
        seen += piece.endswith(b"\n\n")
        text += piece
    assert d.eof and seen >= 5, seen
    said = lambda t: "".join(p["choices"][0]["delta"].get("content", "") for p in events(t))
    assert said(text) == said(plain)
    # A client that leaves in the middle of one does no harm.
    c = Client(url)
    c.ask("POST", "/v1/chat/completions", {**ask, "max_tokens": 100000, "ignore_eos": True, "stream": True}, yes)
    c.head()
    c.close()
    chat_works()


def activate(path, command):
    """As systemd does: a listening socket at descriptor 3, and two variables."""
    s = socket.socket(socket.AF_UNIX)
    if os.path.exists(path):
        os.unlink(path)
    s.bind(path)
    s.listen(16)
    if s.fileno() != 3:
        os.dup2(s.fileno(), 3)
    os.set_inheritable(3, True)
    os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
    os.execv(command[0], command)


if what == "tls":
    tls(*sys.argv[3:])
elif what == "plain":
    still_served()
elif what == "health":
    assert call(url, "/health")[0] == 200
elif what == "chat":
    chat_works()
elif what == "gzip":
    gzip()
elif what == "nogzip":  # bytes cost nothing on this machine
    assert "content-encoding" not in call(url, "/", headers=[("Accept-Encoding", "gzip")])[1]
else:
    activate(url, sys.argv[3:])
