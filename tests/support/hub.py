#!/usr/bin/env python3
"""A hub of our own for tests: lists and files as Hugging Face gives them, a second server that the
files are redirected to, and repositories whose names say what goes wrong.

Usage: hub.py FOLDER FILE [PEM]     serves FOLDER/OWNER/NAME/*; writes "PORT CDN_PORT" to FILE; with PEM, a
                                    key and its certificate, over https
Every request is a line in FOLDER/requests: server, path, range, authorization.
"""
import hashlib, http.server, json, os, ssl, sys, threading, urllib.parse

folder, told = sys.argv[1], sys.argv[2]
pem = sys.argv[3] if len(sys.argv) > 3 else None
scheme = "https" if pem else "http"
lock = threading.Lock()
counts = {}
ports = {}


def count(key):
    with lock:
        counts[key] = counts.get(key, 0) + 1
        return counts[key]


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def note(self):
        with lock, open(os.path.join(folder, "requests"), "a") as log:
            log.write(f"{self.server.name} {self.path} {self.headers.get('Range', '-')} "
                      f"{self.headers.get('Authorization', '-')}\n")

    def answer(self, status, body=b"", headers=(), cut=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)

    def do_GET(self):
        self.note()
        try:
            self.serve_it()
        except (BrokenPipeError, ConnectionResetError, OSError):
            self.close_connection = True

    def serve_it(self):
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self.list_files(parts[2], parts[3])
        if len(parts) > 4 and parts[2] == "resolve":
            return self.resolve(parts[0], parts[1], "/".join(parts[4:]))
        if parts[0] == "cdn":
            return self.give(parts[1], parts[2], "/".join(parts[3:]))
        self.answer(404)

    def list_files(self, owner, name):
        if owner == "gated" and self.headers.get("Authorization") != "Bearer secret":
            return self.answer(401, b"no")
        if owner == "busy" and count("busy list") < 3:
            return self.answer(429, b"wait", [("Retry-After", "1")])
        if owner == "garbage":
            return self.answer(200, b'{"oops": ')
        root = os.path.join(folder, owner, name)
        if not os.path.isdir(root):
            return self.answer(404)
        rows = []
        for file in sorted(os.listdir(root)):
            data = open(os.path.join(root, file), "rb").read()
            row = {"type": "file", "path": file, "size": len(data), "oid": "0" * 40}
            if len(data) > 1000:
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            if owner == "liar" and "lfs" in row:
                row["lfs"]["oid"] = "ab" * 32
            if owner == "sizes":
                row["size"] += 1
                row.get("lfs", {}).update(size=row["size"])
            rows.append(row)
        if owner == "escape":
            rows.insert(0, {"type": "file", "path": "../../evil.gguf", "size": 5, "oid": "0"})
        if owner == "paged" and "page=2" not in self.path:
            link = f"<{scheme}://127.0.0.1:{ports['hub']}{self.path}&page=2>; rel=\"next\""
            return self.answer(200, json.dumps(rows[:1]).encode(), [("Link", link)])
        if owner == "paged":
            rows = rows[1:]
        self.answer(200, json.dumps(rows).encode())

    def resolve(self, owner, name, file):
        if owner == "round":
            return self.answer(302, headers=[("Location", self.path)])
        data = self.read(owner, name, file)
        if data is None:
            return self.answer(404)
        sum = hashlib.sha256(data).hexdigest()
        place = f"{scheme}://127.0.0.1:{ports['cdn']}/cdn/{owner}/{name}/{urllib.parse.quote(file)}"
        self.answer(302, headers=[("Location", place), ("X-Linked-ETag", f'"{sum}"')])

    def read(self, owner, name, file):
        try:
            with open(os.path.join(folder, owner, name, os.path.basename(file)), "rb") as f:
                return f.read()
        except OSError:
            return None

    def give(self, owner, name, file):
        data = self.read(owner, name, file)
        if data is None:
            return self.answer(404)
        asked = self.headers.get("Range")
        if not asked or owner == "plain":
            return self.answer(200, data)
        first, last = asked.split("=")[1].split("-")
        first, last = int(first), min(int(last or len(data)), len(data) - 1)
        if first >= len(data):
            return self.answer(416)
        if owner == "busy" and count("busy file") % 3 == 2:
            return self.answer(503, b"busy", [("Retry-After", "1")])
        if owner == "dead" and first > 0:
            return self.answer(206, data[first:last + 1], self.range(first, last, data), cut=0)
        cut = None
        if owner == "cut" and last > first and count("cut") % 2 == 1:
            cut = (last + 1 - first) // 2
        self.answer(206, data[first:last + 1], self.range(first, last, data), cut=cut)

    def range(self, first, last, data):
        return [("Content-Range", f"bytes {first}-{last}/{len(data)}")]


class Threads(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32


servers = [Threads(("127.0.0.1", 0), Server) for _ in range(2)]
for server, name in zip(servers, ("hub", "cdn")):
    server.name = name
    ports[name] = server.server_port
    if pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
with open(told + ".new", "w") as out:
    out.write(f"{ports['hub']} {ports['cdn']}\n")
os.rename(told + ".new", told)
threading.Event().wait()
