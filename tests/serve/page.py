"""The chat page in a headless Chromium. Arguments: the server, a folder with a text file, a folder for
screenshots (optional)."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from browser import Browser, By, Keys

url, folder, shots = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
browser = Browser("1100,800", shots, patience=60)
page, shot, wait, find, all_of = browser.page, browser.shot, browser.wait, browser.find, browser.all_of
idle, ask = browser.idle, browser.ask


def click(css_or_label):
    for b in all_of("button"):
        if b.get_attribute("aria-label") == css_or_label and b.is_displayed():
            b.click()
            return
    find(css_or_label).click()


try:
    page.get(url + "/")
    wait(lambda: "parameters" in find("#model").text)
    click("#settings")
    find("#s-max_tokens").clear()
    find("#s-max_tokens").send_keys("24")
    find("#s-temperature").clear()
    find("#s-temperature").send_keys("1.2")
    click("dialog button.main")

    # A question, its answer, and its figures.
    ask("What is the sea?")
    assert find(".message.user .text").text == "What is the sea?"
    assert "tokens" in find(".message.assistant .tools").text
    # Regenerating makes a second version, and one can go back to the first.
    click("Answer once more")
    wait(lambda: "2/2" in find(".message.assistant .tools").text and idle())
    click("The version before")
    wait(lambda: "1/2" in find(".message.assistant .tools").text)
    # Editing a question makes a branch.
    click("Edit and ask again")
    find(".message.user textarea").clear()
    find(".message.user textarea").send_keys("What is the sky?", Keys.ENTER)
    wait(lambda: find(".message.user .text").text == "What is the sky?" and idle())
    assert "2/2" in find(".message.user .tools").text
    shot("answer")
    # Stopping, by the button, as soon as the answer's first bytes are there: the page itself clicks, since a
    # small model may have said everything before anybody outside looks.
    page.execute_script("""const old = request; window.request = () => ({...old(), ignore_eos: true, max_tokens: 100000});
        const ask = window.fetch; window.fetch = async (url, o) => {
            const r = await ask(url, o); window.fetch = ask;
            return new Response(r.body.pipeThrough(new TransformStream({ transform(chunk, to) {
                to.enqueue(chunk);
                if (!window.seen) { window.seen = $("send").textContent; $("send").click(); window.stopped = o.signal.aborted; }
            } })), r);
        };""")
    find("#input").send_keys("Tell me everything.", Keys.ENTER)
    wait(lambda: page.execute_script("return window.seen") == "Stop")
    assert page.execute_script("return window.stopped")
    wait(idle)
    assert not all_of(".error")
    # Conversations stay after a reload; text of users is never markup.
    click("#new")
    page.execute_script("settings.max_tokens = '4';")
    ask("<img src=x onerror=alert(1)> **no**")
    assert not all_of(".message img") and "<img" in find(".message.user .text").text
    page.refresh()
    wait(lambda: len(all_of("#list li")) == 2 and all_of(".message.user"))
    # Markdown, made without HTML text.
    page.execute_script("""const d = document.createElement('div'); d.id = 'sample'; markdown(
        '# Title\\n\\nSome **bold**, *soft* and `code`. [good](https://a.example) [bad](javascript:alert(1))\\n\\n' +
        '1. one\\n2. two\\n   - inner\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n```c\\nint x = 1 < 2;\\n```\\n> said\\n\\n<script>bad()</' + 'script>', d);
        document.getElementById('log').append(d);""")
    sample = find("#sample")
    for css, n in (("h2", 1), ("strong", 1), ("em", 1), ("ol > li", 2), ("ul > li", 1), ("td", 2), ("pre code", 1), ("blockquote", 1), ("a", 1), ("script", 0), ("pre .copy", 1)):
        assert len(sample.find_elements(By.CSS_SELECTOR, css)) == n, css
    assert sample.find_element(By.CSS_SELECTOR, "pre code").text == "int x = 1 < 2;"
    shot("markdown")
    # Another model, chosen in the page and remembered.
    find("#models option[value=second]").click()
    click("#new")
    ask("Which one are you?")
    page.refresh()
    wait(lambda: find("#models").get_attribute("value") == "second")
    # A document, with its tokens counted, goes with the question.
    find("#picker").send_keys(folder + "/sea.txt")
    wait(lambda: "tokens" in find("#files").text)
    shot("document")
    ask("What does it say?")
    assert "A page about the sea." in all_of(".message.user .text")[-1].text
    # Everything goes out as a file and comes back from it; what is no such file is told.
    chats = page.execute_script("return JSON.parse(localStorage.getItem('kermes.chats'))")
    with open(folder + "/chats.json", "w") as f:
        json.dump({"kermes": 1, "chats": [{**chats[0], "id": "other", "title": "From a file"}]}, f)
    find("#importer").send_keys(folder + "/chats.json")
    wait(lambda: any("From a file" in li.text for li in all_of("#list li")))
    page.execute_script("const make = URL.createObjectURL; URL.createObjectURL = b => { b.text().then(t => window.exported = t); return make(b); };")
    click("#export")
    wait(lambda: "From a file" in (page.execute_script("return window.exported") or ""))
    find("#importer").send_keys(folder + "/sea.txt")
    wait(lambda: any("no conversations" in e.text for e in all_of(".error")))
    # By keyboard alone: a new conversation, the question, and the skip link first.
    page.refresh()
    wait(lambda: all_of("#list li"))
    find("body").send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    wait(lambda: page.execute_script("return document.activeElement.id") == "input" and not all_of(".message"))
    # Dark, and on a phone.
    click("Light or dark")
    page.set_window_size(420, 800)
    assert not find("#new").is_displayed()
    shot("phone")
    click("#menu")
    wait(lambda: find("#new").is_displayed())
    # The status page.
    page.set_window_size(1100, 800)
    page.get(url + "/status")
    wait(lambda: len(all_of(".card")) >= 8 and all_of("polyline"))
    shot("status")
    bad = [e for e in page.get_log("browser") if e["level"] == "SEVERE" and "favicon" not in e["message"]]
    assert not bad, bad
finally:
    page.quit()
