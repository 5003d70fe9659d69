"""Decode speed of the WebAssembly build under Node and in Chromium, in turns with the native command on one
thread with KERMES_ISA=base, and how soon the page is ready. Prints JSON for bench/results/.

Usage: web_speed.py WEB_FOLDER KERMES MODEL.gguf [TURNS [TOKENS]]"""
import functools
import gzip
import http.server
import json
import os
import platform
import statistics
import subprocess
import sys
import threading

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

web, kermes, model = sys.argv[1:4]
turns, tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 3, int(sys.argv[5]) if len(sys.argv) > 5 else 48
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
prompt = "The history of the sea begins with"


class Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm", ".js": "text/javascript"}

    def translate_path(self, path):
        return model if path == "/model.gguf" else super().translate_path(path)

    def log_message(self, form, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=web))
threading.Thread(target=server.serve_forever, daemon=True).start()
options = webdriver.ChromeOptions()
for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
    options.add_argument(flag)
page = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
page.set_script_timeout(300)
url = "http://127.0.0.1:%d/" % server.server_address[1]


def native():
    out = subprocess.run([kermes, "run", "-m", model, "-p", prompt, "-n", str(tokens), "--temperature", "0", "--past-end", "--allow-loops", "--threads", "1", "--device", "cpu", "--json", "--quiet"],
                         env={**os.environ, "KERMES_ISA": "base"}, capture_output=True, text=True, check=True).stdout
    return json.loads(out)["decode_tokens_per_s"]


def node():
    out = subprocess.run(["node", f"{root}/tests/web/speed.mjs", web, model, str(tokens)], capture_output=True, text=True, check=True).stdout
    return json.loads(out)["tokens_per_s"]


def chromium():
    out = page.execute_async_script("""const [prompt, n, done] = arguments;
        (async () => {
            const m = window.speed ??= await (async () => { const { Kermes } = await import("./kermes.js"); const k = await Kermes.start(); return k.open("model.gguf", { context: 1024 }); })();
            const run = async count => { const job = m.complete(prompt, { temperature: 0, max_tokens: count, past_end: true }); for await (const _ of job); return job.result; };
            await run(8);
            return run(n);
        })().then(done, e => done({ error: e.message }));""", prompt, tokens)
    return out["tokens"] / out["seconds"]


def ready():
    page.get(url)
    while not page.execute_script("return document.documentElement.dataset.ready"):
        pass
    return int(page.execute_script("return document.documentElement.dataset.ready"))


try:
    starts = [ready() for _ in range(5)]
    rows = [{"native_base": native(), "node": node(), "chromium": chromium()} for _ in range(turns)]
finally:
    page.quit()
size = sum(len(gzip.compress(open(f"{web}/{f}", "rb").read(), 9)) for f in ("kermes-wasm.wasm", "kermes-wasm.js"))
print(json.dumps({
    "what": "decode in tokens/s, one thread; native: KERMES_ISA=base, in turns with the others",
    "model": os.path.basename(model), "tokens": tokens, "machine": platform.machine(), "load": os.getloadavg()[0],
    "browser": page.capabilities.get("browserVersion"), "node": subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip(),
    "turns": rows,
    "node_ratio": statistics.median(r["node"] / r["native_base"] for r in rows),
    "chromium_ratio": statistics.median(r["chromium"] / r["native_base"] for r in rows),
    "module_gzip_bytes": size, "page_ready_ms": starts,
}, indent=2))
