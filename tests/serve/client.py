"""A small HTTP client for the tests, on sockets: it sees every byte, and can leave when it likes."""
import json
import socket
from urllib.parse import urlparse


class Client:
    tls = None  # an ssl.SSLContext, for https

    def __init__(self, url, timeout=60):
        at = urlparse(url)
        self.host = at.netloc or "localhost"
        if at.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(at.path)
        else:
            self.socket = socket.create_connection((at.hostname, at.port), timeout)
        if at.scheme == "https":
            self.socket = Client.tls.wrap_socket(self.socket, server_hostname="localhost")
        self.file = self.socket.makefile("rb")

    def ask(self, method, path, body=None, headers=()):
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1"]
        if not any(name.lower() == "host" for name, _ in headers):
            lines.append(f"Host: {self.host}")
        lines += [f"Content-Length: {len(data)}"] + [f"{name}: {value}" for name, value in headers]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def head(self):
        status = int(self.file.readline().split()[1])
        headers = {}
        while (line := self.file.readline().strip()):
            name, value = line.decode().split(":", 1)
            headers[name.lower()] = value.strip()
        return status, headers

    def chunks(self):
        while (size := int(self.file.readline(), 16)):
            yield self.file.read(size)
            self.file.readline()
        self.file.readline()

    def answer(self):
        status, headers = self.head()
        if "chunked" in headers.get("transfer-encoding", ""):
            return status, headers, b"".join(self.chunks())
        return status, headers, self.file.read(int(headers.get("content-length", 0)))

    def close(self):
        self.file.close()
        self.socket.close()


def call(url, path, body=None, headers=(), method=None):
    """One request on a connection of its own: the status, the headers, the body (JSON, if it is that)."""
    c = Client(url)
    c.ask(method or ("GET" if body is None else "POST"), path, body, headers)
    status, head, data = c.answer()
    c.close()
    return status, head, json.loads(data) if head.get("content-type") == "application/json" and data else data


def events(data):
    """The data of a stream of server-sent events."""
    out = []
    for block in data.decode().split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                out.append(json.loads(line[6:]))
    return out
