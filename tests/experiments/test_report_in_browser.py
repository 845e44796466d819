"""The report in headless Chromium (Debian's package `chromium`); skipped where there is none."""

import json
import os
import shutil
import subprocess
import time

import pandas as pd
import pytest

from bertrio.analysis.report import render_page
from bertrio.core.tasks import Ordered, Task
from bertrio.experiments.runs import Run, write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.heavy, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
EVIL = "<script>window.ran = 1</script> <img src=x onerror='window.ran = 2'> <!-- </script> \" onclick=\"window.ran = 3"
ROWS = 500


class Browser:
    """One tab of Chromium, controlled by the DevTools protocol over a pair of pipes, without driver, port or package.

    `logged` collects console messages, exceptions and violations of the content security policy.
    """

    def __init__(self, profile):
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        pipes = f'exec "$@" 3<&{to_child} 4>&{from_child}'  # Chromium reads commands from 3 and writes results to 4
        command = ["bash", "-c", pipes, "bash", CHROMIUM, *FLAGS, "--hide-scrollbars", f"--user-data-dir={profile}"]
        command += ["--remote-debugging-pipe"]
        self._process = subprocess.Popen(command, pass_fds=(to_child, from_child), stderr=subprocess.DEVNULL)
        for end in (to_child, from_child):
            os.close(end)
        self._buffer, self._number, self._session, self.logged = b"", 0, {}, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)  # its sessionId
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """Send a command and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                chunk = os.read(self._in, 1 << 20)
                assert chunk, "Chromium has ended"
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.logged.append(message["params"])
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, path, width=1440):
        """Load a file, and return when it is laid out and its scripts have run."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url="about:blank")
        self.logged.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while self.run("document.readyState") != "complete" or self.run("location.protocol") != "file:":
            time.sleep(0.01)
        self.run("document.body.offsetHeight")  # waits for the layout

    def run(self, script):
        """Return the value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self):
        self.ask("Browser.close")
        self._process.wait(timeout=30)
        for end in (self._out, self._in):
            os.close(end)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with many rows of text, the first two with malicious markup."""
    texts = [EVIL, f"</td></table>{EVIL}", *[f"row {place} of film number {place}" for place in range(ROWS - 2)]]
    neighbours = [{"texts": ["one"], "label": 1.0, "similarity": 0.5}]
    change = {"from": "a word", "to": "another", "before": 0.0, "after": 4.0}
    row = {"label": 1.0, "prediction": 0.0, "change": change, "neighbours": neighbours}
    values = [None, *(place * 37 % 1009 for place in range(1, ROWS))]
    rows = [{**row, "id": f"id-{n}", "texts": [text, "b"], "confidence": values[n]} for n, text in enumerate(texts)]
    evaluation = {"dev": {"sst": {"accuracy": 0.862}}, "intervals": {"dev": {"sst": {"accuracy": [0.841, 0.882]}}}}
    timings = {"stage": {f"a long name of a column {'x' * 30} {place}": 1000 for place in range(12)} | {"seconds": 1.0}}
    names = ["a class with a long name", "b" * 60, "c"]
    plots = {
        "learning/score": {name: pd.DataFrame({"step": [10, 20], "score": [0.5, 0.7]}) for name in ("sst", "q" * 60)},
        "learning/loss": {"sst": pd.DataFrame({"step": [10], "loss": [0.5]})},
        "conflicts": {},
        "confusion": {"sst": pd.DataFrame({"gold": names, "predicted": names[::-1]})},
        "scores": {"sts": pd.DataFrame({"gold": ["1", "2.5"], "predicted": ["1.5", "5"]})},
        "reliability": {},
    }
    contents = {"metrics": evaluation, "training": {}, "predictions": {}, "errors": {"sst": rows}, "timings": timings}
    html = render_page(
        title="exp-" + "a" * 60, subtitle="0123456789" * 4, contents=contents,
        tasks={"sst": Task("sst", "single", "cross", Ordered(5))}, members=["base"], plots=plots, date="2026-01-31",
        settings={"x" * 200: "1"}, changed=None, edited={}, comparison={},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def shown(browser, column):
    """Return the visible texts of a column of the long table."""
    rows = "Array.from(document.querySelectorAll('.long tbody tr'))"
    return browser.run(f"{rows}.filter((row) => row.offsetHeight).map((row) => row.cells[{column}].textContent)")


def click(browser, text):
    buttons = "Array.from(document.querySelectorAll('.long button'))"
    browser.run(f"{buttons}.find((one) => one.textContent === '{text}').click()")


def search(browser, text):
    box = "document.querySelector('.long input')"
    browser.run(f"{box}.value = '{text}'; {box}.dispatchEvent(new Event('input'))")


def test_policy_blocks_foreign_scripts_and_requests(browser, page):
    browser.open(page)
    assert len(shown(browser, 6)) == 50
    click(browser, "Show all")
    assert len(shown(browser, 6)) == ROWS and EVIL in shown(browser, 0)[0]
    assert browser.logged == []
    browser.run(
        "{ const script = document.createElement('script'); script.textContent = 'window.ran = 4'; "
        "document.body.append(script); const image = new Image(); image.src = 'https://example.org/x.png'; "
        "document.body.append(image); }"
    )
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert browser.run("window.ran") is None
    assert len([entry for entry in browser.logged if "Content Security Policy" in json.dumps(entry)]) >= 2


def test_table_sorts_by_value(browser, page):
    browser.open(page)
    heading = "document.querySelector('.long th:nth-child(4)').getAttribute('aria-sort')"
    ordered = sorted(place * 37 % 1009 for place in range(1, ROWS))  # the row without a value is always last
    for expected, direction in ((ordered[:50], "ascending"), (ordered[:-51:-1], "descending")):
        click(browser, "confidence")
        assert [int(value.replace(",", "")) for value in shown(browser, 3)] == expected
        assert browser.run(heading) == direction
    click(browser, "id")
    assert shown(browser, 6)[:3] == ["id-0", "id-1", "id-2"]  # natural order
    assert browser.run(heading) == "none"


def test_search_finds_rows_on_all_pages(browser, page):
    browser.open(page)
    search(browser, "ROW id-432 film")
    status = "document.querySelector('.long [role=status]').textContent"
    assert browser.run(status) == f"1 of 1 matching of {ROWS} rows shown"
    for text, count in (("ROW id-432 film", 1), ("no such row", 0), ("", 50)):
        search(browser, text)
        assert len(shown(browser, 0)) == count
    click(browser, "Show 50 more")
    assert len(shown(browser, 0)) == 100


@pytest.mark.parametrize("width", [390, 1440])
def test_page_fits_the_screen(browser, page, width):
    browser.open(page, width)
    assert browser.run("document.documentElement.scrollWidth") == width
    beyond = (
        "Array.from(document.body.querySelectorAll('*')).filter((one) => !one.closest('.scroll') && "
        f"!one.matches('.skip') && one.getBoundingClientRect().right > {width}).length"
    )
    assert browser.run(beyond) == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_clicked_chart_fills_the_screen_until_closed(browser, page, width):
    browser.open(page, width)
    box = "JSON.stringify(document.querySelector('figure').getBoundingClientRect())"
    before = json.loads(browser.run(box))
    assert before["width"] < 500
    browser.run("document.querySelector('figure > a').click()")
    assert (json.loads(browser.run(box))["width"], json.loads(browser.run(box))["height"]) == (width, 900)
    assert browser.run("document.documentElement.scrollWidth") == width
    browser.run("document.querySelector('figure .close').click()")
    assert json.loads(browser.run(box))["width"] == before["width"]
    assert browser.logged == []


@pytest.mark.parametrize("width", [390, 1440])
def test_page_of_runs_fits_the_screen(browser, tmp_path, width):
    scores = {"overall_normalized": (0.7, 0.6, 0.8), "sst accuracy": (0.5, 0.4, 0.6)}
    runs = [Run("a" * 60 + name, {"x" * 60: name, "p": EVIL}, scores, curve={10: 0.5, 20: 0.6}) for name in "123"]
    write_page(runs, "overall", tmp_path / "runs.html")
    browser.open(tmp_path / "runs.html", width)
    assert browser.run("document.documentElement.scrollWidth") == width and browser.logged == []
    assert browser.run("document.querySelectorAll('th button').length") == 8  # the table sorts


def test_page_without_scripts_shows_all_rows(browser, page):
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert len(shown(browser, 6)) == ROWS
        assert browser.run("document.querySelectorAll('button, input').length") == 0
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
