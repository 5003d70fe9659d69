"""The page of the WebAssembly build in a headless Chromium: it loads, answers, finds neighbours, trains, and
goes on with a run after its tab was closed. Arguments: the folder of the built page, a folder for files, a
folder for screenshots (optional)."""
import functools
import http.server
import json
import os
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from browser import Browser, By, Keys

web, folder, shots = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
asked = []


class Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm", ".js": "text/javascript"}

    def log_message(self, form, *args):
        asked.append(self.path)

    # Below /isolated/ the same files, with the headers that shared memory needs.
    def translate_path(self, path):
        return super().translate_path(path.replace("/isolated/", "/", 1))

    def end_headers(self):
        if self.path.startswith("/isolated/"):
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=web))
threading.Thread(target=server.serve_forever, daemon=True).start()
url = "http://127.0.0.1:%d/" % server.server_address[1]

browser = Browser("1000,900", shots, patience=90)
page, shot, wait, find, all_of = browser.page, browser.shot, browser.wait, browser.find, browser.all_of
idle, ask = browser.idle, browser.ask


def put(css, text):
    find(css).clear()
    find(css).send_keys(text)


def loaded():
    return wait(lambda: find("html").get_attribute("data-ready"))


def npy(name, rows):
    dim = len(rows[0])
    head = ("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (len(rows), dim)).ljust(117) + "\n"
    with open(f"{folder}/{name}", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.encode())
        for row in rows:
            f.write(struct.pack("<%df" % dim, *row))
    return f"{folder}/{name}"


try:
    page.get(url)
    ready = int(loaded())
    assert "parameters" in find("#model").text and "Kermes" in find("#state").text
    # Something moves in the page while the engine works: the longest gap between two frames tells of a freeze.
    page.execute_script("""window.gap = 0; let last = performance.now();
        const look = () => { const now = performance.now(); window.gap = Math.max(window.gap, now - last); last = now; requestAnimationFrame(look); }; look();""")

    # A question, its answer with figures, and settings.
    page.execute_script("document.querySelector('.settings').open = true")
    put("#s-max_tokens", "24")
    put("#s-temperature", "0")
    ask("What is the sea?")
    first = find(".message.assistant").text
    assert first and "written" in find("#figures").text, find("#figures").text
    shot("chat")
    find("#clear").click()
    ask("What is the sea?")
    assert find(".message.assistant").text == first
    # Stopping in the middle; text of users is never markup.
    put("#s-max_tokens", "100000")
    put("#s-temperature", "1.5")
    find("#s-past_end option[value='1']").click()
    find("#clear").click()
    find("#input").send_keys("<img src=x onerror=alert(1)> Tell me.", Keys.ENTER)
    wait(lambda: len(find(".message.assistant").text) > 10 and find("#send").text == "Stop")
    find("#send").click()
    wait(idle)
    assert find("#figures").get_attribute("data-end") == "stopped"
    find("#s-past_end option[value='']").click()
    assert not all_of(".message img")

    # A model from the disk; then files that are none. The page tells, and goes on.
    find("#file").send_keys(f"{web}/kermes-tiny.gguf")
    wait(lambda: "parameters" in find("#model").text and idle())
    with open(f"{web}/kermes-tiny.gguf", "rb") as f:
        whole = f.read()
    for name, data in (("letter.gguf", b"Dear reader, this is a letter and no model.\n"), ("cut.gguf", whole[: len(whole) // 2]), ("empty.gguf", b"")):
        with open(f"{folder}/{name}", "wb") as f:
            f.write(data)
        find("#file").send_keys(f"{folder}/{name}")
        wait(lambda: any(name in e.text and len(e.text) > len(name) + 10 for e in all_of("#log .error")))
        wait(lambda: find("#pick").is_enabled())
    # One larger than memory allows: 3 GiB that are only holes.
    with open(f"{folder}/huge.gguf", "wb") as f:
        f.write(b"GGUF\x03\0\0\0")
        f.truncate(3 << 30)
    find("#file").send_keys(f"{folder}/huge.gguf")
    wait(lambda: any("too large" in e.text for e in all_of("#log .error")))
    shot("bad-files")
    find("#tiny").click()
    wait(idle)
    put("#s-max_tokens", "4")
    ask("Are you there?")

    # Vectors: a file, its neighbours; then files that are none.
    find("#tab-vectors").click()
    state = 1
    rows = []
    for i in range(600):
        row = []
        for j in range(16):
            state = (state * 1664525 + 1013904223) % 2**32
            row.append(state / 2**32 + (i % 6) * (1 if j == i % 6 else 0))
        rows.append(row)
    find("#v-file").send_keys(npy("rows.npy", rows))
    wait(lambda: "times smaller" in find("#v-info").text)
    put("#v-query", "17")
    find("#v-search button.main").click()
    wait(lambda: "nearest found" in find("#v-hits").text)
    assert all_of("#v-found tr")[1].find_elements(By.TAG_NAME, "td")[3].text == "17"
    assert int(find("#v-hits").text.split()[0]) >= 3, find("#v-hits").text
    shot("vectors")
    put("#v-query", ", ".join("%.4f" % x for x in rows[40]))
    find("#v-search button.main").click()
    wait(lambda: all_of("#v-found tr")[1].find_elements(By.TAG_NAME, "td")[3].text == "40")
    put("#v-query", "1, 2, 3")
    find("#v-search button.main").click()
    wait(lambda: any("16 numbers" in e.text for e in all_of("#v-found .error")))
    find("#v-file").send_keys(f"{folder}/letter.gguf")
    wait(lambda: any("letter.gguf" in e.text for e in all_of("#v-found .error")))

    # Training, with its curve; the tab is closed in the middle, and another goes on.
    find("#tab-train").click()
    put("#t-steps", "2000")
    put("#t-dim", "32")
    put("#t-layers", "1")
    put("#t-batch", "4")
    put("#t-context", "32")
    find("#t-start").click()
    wait(lambda: find("#t-curve").is_displayed() and all_of("#t-curve polyline.train") and int(find("#t-state").get_attribute("data-saved") or 0) > 0)
    shot("training")
    gap = page.execute_script("return window.gap")
    page.switch_to.new_window("tab")
    other = page.current_window_handle
    page.switch_to.window(next(w for w in page.window_handles if w != other))
    page.close()
    page.switch_to.window(other)
    page.get(url)
    loaded()
    find("#tab-train").click()
    wait(lambda: find("#t-resume").is_displayed())
    kept = int(find("#t-resume").text.split("step ")[1].split()[0])
    assert 0 < kept < 2000, kept
    find("#t-resume").click()
    wait(lambda: int(find("#t-state").get_attribute("data-saved") or 0) > kept)
    assert find("#t-curve").is_displayed() and page.execute_script("return document.querySelector('#t-curve polyline.train').points.length") > 2
    find("#t-start").click()
    wait(lambda: "Stopped at step" in find("#t-state").text)
    find("#t-write").click()
    wait(lambda: len(find("#t-sample").text) > 5)
    shot("trained")
    # A text that is too short to learn from is told.
    page.execute_script("document.getElementById('t-text').value = 'x'")
    find("#t-start").click()
    wait(lambda: all_of("#train .error"))

    # In an isolated page a stop is seen in the middle of a prompt, too.
    page.get(url + "isolated/")
    loaded()
    end = page.execute_async_script("""const done = arguments[0]; (async () => {
        const { Kermes } = await import("./kermes.js"), k = await Kermes.start(), m = await k.open("kermes-tiny.gguf");
        const job = m.complete("The sea is wide. ".repeat(10), { max_tokens: 1000000, past_end: true });
        setTimeout(() => job.stop(), 300);
        for await (const _ of job);
        return [crossOriginIsolated, (await job.result).end];
    })().then(done, e => done([e.message]));""")
    assert end == [True, "stopped"], end

    # Nothing but the page's own files was asked for, and nothing failed unseen.
    assert {a.split("?")[0].replace("/isolated/", "/") for a in asked} <= {"/", "/page.css", "/page.js", "/kermes.js", "/worker.js", "/engine.js", "/kermes-wasm.js", "/kermes-wasm.wasm", "/kermes-tiny.gguf"}, set(asked)
    told = [e for e in page.get_log("browser") if e["level"] == "SEVERE"]
    assert not told, told
    print(json.dumps({"ready_ms": ready, "longest_frame_ms": round(gap)}))
finally:
    page.quit()
    server.shutdown()
