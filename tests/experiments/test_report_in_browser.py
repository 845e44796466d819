"""The report in headless Chromium (Debian's package `chromium`); skipped where there is none."""

import fcntl
import json
import os
import shutil
import subprocess
import time

import pytest

from bertrio.analysis.report import render_page
from bertrio.core.tasks import Ordered, Task

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)
EVIL = "<script>window.ran = 1</script> <img src=x onerror='window.ran = 2'> <!-- </script> \" onclick=\"window.ran = 3"


class Browser:
    """One tab of Chromium, spoken to in the DevTools protocol over a pair of pipes: needs no driver, port or package.

    `told` collects what the page wrote to the console, its exceptions, and what its policy refused.
    """

    def __init__(self, profile):
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_child, from_child)]  # out of the way of 3 and 4

        def place():  # Chromium reads its orders from 3 and answers on 4
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, preexec_fn=place, close_fds=False, **quiet)
        for end in (to_child, from_child, *ends):
            os.close(end)
        self._buffer, self._number, self._session, self.told = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """Gives an order and waits for its answer."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": params}
        order |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, path, width=1440, height=900):
        """Loads a file, and returns when it is laid out and its scripts have run."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Page.navigate", url="about:blank")
        self.told.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while self.run("document.readyState") != "complete" or self.run("location.protocol") != "file:":
            time.sleep(0.01)
        self.run("document.body.offsetHeight")  # waits for the layout

    def run(self, script):
        """The value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self):
        for end in (self._out, self._in):
            os.close(end)  # Chromium ends when nobody listens any more
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _next(self):
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "Chromium has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.told.append(message["params"])
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with 5,000 rows of text, of which the first two would do harm if they were markup."""
    texts = [
        EVIL,
        f"</td></table>{EVIL}",
        *[f"row {place} of film number {place * 7919 % 4993}" for place in range(4998)],
    ]
    near = [{"texts": ["one"], "label": 1.0, "similarity": 0.5}]
    change = {"from": "a word", "to": "another", "before": 0.0, "after": 4.0}
    rows = [
        {
            "texts": [text, "second sentence"],
            "label": 1.0,
            "prediction": 0.0,
            "confidence": place * 37 % 1009 if place else None,
            "change": change,
            "neighbours": near,
            "id": f"id-{place}",
        }
        for place, text in enumerate(texts)
    ]
    evaluation = {"dev": {"sst": {"accuracy": 0.862}}, "intervals": {"dev": {"sst": {"accuracy": [0.841, 0.882]}}}}
    wide = {"stage": {f"a long name of a column {'x' * 30} {place}": 1000 for place in range(12)} | {"seconds": 1.0}}
    html = render_page(
        title="exp-" + "a" * 60,
        subtitle="0123456789" * 4,
        contents={"metrics": evaluation, "errors": {"sst": rows}, "timings": wide},
        tasks={"sst": Task("sst", "single", "cross", Ordered(5))},
        members=["base"],
        confusions={},
        settings={"x" * 200: "1"},
        changed=None,
        comparison={},
        chosen="",
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def shown(browser, column):
    """The texts of a column of the long table, as far as they are shown."""
    rows = "Array.from(document.querySelectorAll('.long tbody tr'))"
    return browser.run(f"{rows}.filter((row) => row.offsetHeight).map((row) => row.cells[{column}].textContent)")


def click(browser, text):
    buttons = "Array.from(document.querySelectorAll('.long button'))"
    browser.run(f"{buttons}.find((one) => one.textContent === '{text}').click()")


def search(browser, text):
    box = "document.querySelector('.long input')"
    browser.run(f"{box}.value = '{text}'; {box}.dispatchEvent(new Event('input'))")


def test_opens_quietly_with_the_first_rows_of_a_long_table(browser, page):
    browser.open(page)
    assert browser.told == []
    assert len(shown(browser, 6)) == 50


def test_text_is_inert(browser, page):
    browser.open(page)
    click(browser, "Show all")
    assert EVIL in shown(browser, 0)[0]
    assert browser.run("window.ran") is None
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert browser.told == []


def test_the_policy_stops_scripts_and_requests_that_are_not_the_pages_own(browser, page):
    browser.open(page)
    browser.run(
        "{ const script = document.createElement('script'); script.textContent = 'window.ran = 4'; "
        "document.body.append(script); const image = new Image(); image.src = 'https://example.org/x.png'; "
        "document.body.append(image); }"
    )
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert browser.run("window.ran") is None
    assert len([entry for entry in browser.told if "Content Security Policy" in json.dumps(entry)]) >= 2


def test_a_table_sorts_up_and_down_by_value(browser, page):
    browser.open(page)
    heading = "document.querySelector('.long th:nth-child(4)').getAttribute('aria-sort')"
    every = sorted(place * 37 % 1009 for place in range(1, 5000))  # the row without a value comes last both ways
    click(browser, "confidence")
    assert [int(value.replace(",", "")) for value in shown(browser, 3)] == every[:50]
    assert browser.run(heading) == "ascending"
    click(browser, "confidence")
    assert [int(value.replace(",", "")) for value in shown(browser, 3)] == every[:-51:-1]
    assert browser.run(heading) == "descending"
    click(browser, "id")
    assert shown(browser, 6)[:3] == ["id-0", "id-1", "id-2"]  # as people count, not as letters go
    assert browser.run(heading) == "none"


def test_a_search_finds_rows_on_all_pages(browser, page):
    browser.open(page)
    search(browser, "ROW id-4321 film")
    assert len(shown(browser, 0)) == 1
    status = "document.querySelector('.long [role=status]').textContent"
    assert browser.run(status) == "1 of 1 matching of 5,000 rows shown"
    search(browser, "no such row")
    assert shown(browser, 0) == []
    search(browser, "")
    assert len(shown(browser, 0)) == 50
    click(browser, "Show 50 more")
    assert len(shown(browser, 0)) == 100


@pytest.mark.parametrize("width", [390, 1440])
def test_fits_the_screen(browser, page, width):
    browser.open(page, width)
    assert browser.run("document.documentElement.scrollWidth") == width
    beyond = (
        "Array.from(document.body.querySelectorAll('*')).filter((one) => !one.closest('.scroll') && "
        f"!one.matches('.skip') && one.getBoundingClientRect().right > {width}).length"
    )
    assert browser.run(beyond) == 0


def test_reads_without_scripts(browser, page):
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert len(shown(browser, 6)) == 5000
        assert browser.run("document.querySelectorAll('button, input').length") == 0
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
