"""Texts stay texts in Markdown."""

import pytest
from markdown_it import MarkdownIt

from bertrio.analysis.markdown import escaped
from tests.analysis.test_card import EVIL


@pytest.mark.parametrize("text", [EVIL, "a_b", "1 | 2", "https://example.org", "<b>", "\\", "$x$ ^2^", "plain text"])
def test_escaped_text_renders_as_itself(text):
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).renderInline(escaped(text))
    assert "<" not in html
    shown = html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    assert shown == " ".join(text.split())
