"""The page in headless Chromium (Debian's package `chromium`); skipped where there is none."""

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from tests.experiments.test_report_in_browser import CHROMIUM, EVIL, Browser
from tests.inference.serve.conftest import TASKS, FakePredictor, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")]
CARDS = "Array.from(document.querySelectorAll('.answer'))"


class Tab(Browser):
    """A browser tab on a server's page."""

    def visit(self, url, width=1280, height=900, ready="!document.getElementById('go').disabled"):
        """Open the page and wait until it is `ready`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Page.navigate", url="about:blank")
        self.logged.clear()
        self.ask("Page.navigate", url=url)
        wait_until(lambda: self.run("document.readyState === 'complete' && location.protocol === 'http:'"))
        wait_until(lambda: self.run(ready))

    def type(self, field, text):
        """Focus a field and type, as a keyboard does."""
        self.run(f"document.getElementById('{field}').focus()")
        self.ask("Input.insertText", text=text)

    def press_enter(self):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **key)

    def cards(self):
        """Wait for answers; return the task and text of each."""
        wait_until(lambda: self.run(f"{CARDS}.length > 0 && !document.querySelector('[aria-busy]')"))
        return self.run(f"{CARDS}.map((card) => [card.querySelector('h2').textContent, card.innerText])")

    def verdicts(self):
        return self.run("Array.from(document.querySelectorAll('.verdict'), (node) => node.textContent)")

    def status(self):
        return self.run("document.getElementById('status').textContent")

    def failed(self):
        """Wait for a problem; return its message."""
        wait_until(lambda: self.run("document.getElementById('status').className === 'problem'"))
        return self.status()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    tab = Tab(tmp_path_factory.mktemp("chromium"))
    yield tab
    tab.close()


def test_a_sentence_is_predicted_by_the_tasks_that_fit(tab, client):
    tab.visit(client.url)
    about = tab.run("document.getElementById('about').textContent")
    assert "Model: models, encoder tiny." in about and "sst, qqp, sts, nli" in about
    assert "no use for real text" in tab.run("document.getElementById('toy').innerText")
    tab.type("first", "a fine film")
    tab.press_enter()
    ((task, text),) = tab.cards()
    assert task == "sst" and tab.verdicts() == ["1"]  # 11 letters, 5 classes
    assert text.count("12.5%") == 4 and text.count("50.0%") == 1
    widths = tab.run("Array.from(document.querySelectorAll('.track > span'), (bar) => bar.style.width)")
    assert sorted(widths) == ["12.5%"] * 4 + ["50%"]
    assert "second sentence" in tab.status()
    assert tab.logged == []


def test_examples_can_be_clicked_and_classes_are_named(tab, client):
    tab.visit(client.url)
    assert tab.run("Array.from(document.querySelectorAll('#examples p'), (line) => line.children.length)") == [3] * 4
    tab.run("document.querySelectorAll('#examples p')[3].querySelector('button').click()")
    *_, (task, text) = tab.cards()
    assert task == "nli" and all(name in text for name in ("entailed", "neutral", "contradicted"))
    assert tab.logged == []


@pytest.mark.parametrize("width", [360, 1440])
def test_docs_show_routes_fields_and_commands_offline(tab, client, width):
    tab.visit(f"{client.url}/docs", width, ready="document.querySelectorAll('.route').length > 0")
    text = tab.run("document.body.innerText")
    for part in ("POST /predict/{task}", "GET /health", "predictions[].name", f"{client.url}/predict/nli"):
        assert part in text
    assert tab.run("document.documentElement.scrollWidth") == width and tab.logged == []


def test_text_is_escaped(tab, client):
    tab.visit(client.url)
    tab.type("first", EVIL)
    tab.type("second", f"</section></div>{EVIL}")
    tab.press_enter()
    tasks, texts = zip(*tab.cards())
    assert tasks == ("sst", "sst", "qqp", "sts", "nli")  # sst takes each sentence alone
    assert EVIL in texts[0] and tab.verdicts()[2] in ("yes", "no")
    assert tab.run("window.ran") is None
    assert tab.run("document.querySelectorAll('script').length") == 1
    assert tab.run("document.querySelectorAll('main img').length") == 0
    assert tab.logged == []


def test_problems_are_shown(tab):
    with running(FakePredictor(TASKS)) as client:
        tab.visit(client.url)
        tab.run("document.getElementById('go').click()")
        assert tab.failed() == "Type a sentence."
        assert tab.run("document.activeElement.id") == "first"
        tab.type("first", "explode")
        tab.press_enter()
        assert "status 500" in tab.failed() or "error of the server" in tab.status()
    tab.press_enter()
    wait_until(lambda: "can't be reached" in tab.status())


@pytest.mark.parametrize("width", [360, 1280])
def test_page_fits_the_screen(tab, client, width):
    tab.visit(client.url, width)
    tab.type("first", "a-word-without-any-end" * 20)
    tab.type("second", "b")
    tab.press_enter()
    assert len(tab.cards()) == 5
    assert tab.run("document.documentElement.scrollWidth") == width
