"""A headless Chromium for the tests of pages: Browser(size, shots) and what both pages do with it."""
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


class Browser:
    def __init__(self, size, shots, patience):
        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=" + size):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.page = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.page.set_script_timeout(patience / 2)
        self.shots, self.patience = shots, patience

    def shot(self, name):
        if self.shots:
            self.page.save_screenshot(f"{self.shots}/{name}.png")

    def wait(self, what, seconds=None):
        """What `what` gives, as soon as it is something."""
        end = time.time() + (seconds or self.patience)
        while time.time() < end:
            try:
                got = what()
                if got:
                    return got
            except Exception:
                pass
            time.sleep(0.05)
        self.shot("failed")
        raise AssertionError("waited in vain, line %d" % sys._getframe(1).f_lineno)

    def find(self, css):
        return self.page.find_element(By.CSS_SELECTOR, css)

    def all_of(self, css):
        return self.page.find_elements(By.CSS_SELECTOR, css)

    def idle(self):
        return self.find("#send").text == "Send" and self.find("#send").is_enabled()

    def ask(self, text):
        self.find("#input").send_keys(text, Keys.ENTER)
        self.wait(lambda: self.all_of(".message.assistant"))
        self.wait(self.idle)
