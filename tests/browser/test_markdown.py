"""How replies are rendered: harmless whatever they say. How they grow: test_streaming_markdown.py."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SHOW = """
    async (steps) => {
      const { MarkdownView } = await import("/static/ui/replies/markdown.js");
      const { later } = await import("/static/ui/markdown/slices.js");
      const root = document.createElement("div");
      const view = new MarkdownView(root);
      for (const step of steps) view.show(step);
      document.body.replaceChildren(root);
      await later.settled();
      return root.innerHTML;
    }
"""
ATTACKS = [
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "<svg onload=\"document.title = 'owned'\">",
    "[click](javascript:document.title='owned')",
    "[click](data:text/html,<script>document.title='owned'</script>)",
    "![x](x\" onerror=\"document.title='owned')",
    '<a href="https://example.org" style="position:fixed;inset:0" onmouseover="document.title=\'owned\'">x</a>',
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "`<script>document.title='owned'</script>`",
    "```html\n<script>document.title='owned'</script>\n```",
    "```\"><img src=x onerror=\"document.title='owned'\n\n```",
    "<math><mtext><table><mglyph><style><img src=x onerror=\"document.title='owned'\">",
]


async def rendered(chat: ChatPage, peer: FakeServer, *steps: str) -> str:
    """The HTML that is shown after the text has grown by these steps."""
    if chat.page.url == "about:blank":
        await chat.page.goto(peer.url)
    html: str = await chat.page.evaluate(SHOW, list(steps))
    return html


async def test_nothing_in_a_reply_runs_or_asks_for_a_style(chat: ChatPage, peer: FakeServer) -> None:
    active = "script, img, svg:not(.icon), iframe, style, [style], [onerror], [onload], [onmouseover], [href^=javascript]"
    for attack in ATTACKS:
        await rendered(chat, peer, attack)
        await chat.page.mouse.move(50, 50)
        assert await chat.page.title() != "owned", attack
        assert await chat.page.locator(f"body > div :is({active})").count() == 0, attack


async def test_tags_in_a_reply_are_shown_as_they_were_written(chat: ChatPage, peer: FakeServer) -> None:
    await rendered(chat, peer, "Use <b>bold</b> and <script>run()</script>.")
    await expect(chat.page.locator("body > div")).to_have_text("Use <b>bold</b> and <script>run()</script>.")


async def test_links_open_elsewhere_and_tell_nothing_of_this_page(chat: ChatPage, peer: FakeServer) -> None:
    await rendered(chat, peer, "[docs](https://example.org/a) and ![a picture](https://example.org/b.png)")
    for link in await chat.page.locator("body > div a").all():
        assert await link.get_attribute("rel") == "noopener noreferrer"
        assert await link.get_attribute("target") == "_blank"
    await expect(chat.page.locator("body > div a").last).to_have_text("a picture")


async def test_code_is_highlighted_and_named_by_its_language(chat: ChatPage, peer: FakeServer) -> None:
    await rendered(chat, peer, '```python\nprint("<hi>")\n```\n\n```nonesuch\n<x>\n```')
    blocks = chat.page.locator("body > div .code")
    await expect(blocks.first.locator(".hljs-string")).to_have_text('"<hi>"')
    await expect(blocks.first.locator(".code-head span")).to_have_text("python")
    await expect(blocks.last.locator("code")).to_have_text("<x>")


BLOCKS = [
    ("a\nb", "<p>a<br>b</p>"),
    ("a\n===\nb\n---\nc", "<h1>a</h1><h2>b</h2><p>c</p>"),
    ("# a #\n####### b", "<h1>a</h1><p>####### b</p>"),
    ("a\n***\nb", "<p>a</p><hr><p>b</p>"),
    ("- a\n- b\n\nc", "<ul><li><p>a</p></li><li><p>b</p></li></ul><p>c</p>"),
    ("- a\n\n- b", '<ul class="loose"><li><p>a</p></li><li><p>b</p></li></ul>'),
    ("- a\n  - b\n\n    c", '<ul><li><p>a</p><ul class="loose"><li><p>b</p><p>c</p></li></ul></li></ul>'),
    ("3. a\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
    ("a\n2. b\n1. c", "<p>a<br>2. b</p><ol><li><p>c</p></li></ol>"),
    ("- a\n* b", "<ul><li><p>a</p></li></ul><ul><li><p>b</p></li></ul>"),
    ("- a\nlazy", "<ul><li><p>a<br>lazy</p></li></ul>"),
    ("- [ ] a\n- [x] b", "<ul><li><p>☐ a</p></li><li><p>☑ b</p></li></ul>"),
    ("> a\nb\n\n> c", "<blockquote><p>a<br>b</p></blockquote><blockquote><p>c</p></blockquote>"),
    ("> - a\n> - b", "<blockquote><ul><li><p>a</p></li><li><p>b</p></li></ul></blockquote>"),
    ("**a *b* c** ~~d~~ `e`", "<p><strong>a <em>b</em> c</strong> <del>d</del> <code>e</code></p>"),
    ("1986\\. a", "<p>1986. a</p>"),
    ("[a]: https://example.org/\n\nb", "<p>b</p>"),
]


async def test_blocks_are_those_of_commonmark(chat: ChatPage, peer: FakeServer) -> None:
    """Paragraphs of items are always such: whether they have a distance is a class, so that it can change while a list grows."""
    for text, html in BLOCKS:
        assert re.sub(r' dir="auto"', "", await rendered(chat, peer, text)) == html, text


async def test_a_block_of_code_in_an_item_is_one(chat: ChatPage, peer: FakeServer) -> None:
    await rendered(chat, peer, "1. Do:\n\n   ```sh\n   a\n\n     b\n   ```\n2. Then\n\n       indented\n")
    code = chat.page.locator("body > div li code")
    assert await code.all_text_contents() == ["a\n\n  b", "indented"]
    await expect(chat.page.locator("body > div > ol > li")).to_have_count(2)


async def test_a_long_list_keeps_its_numbers(chat: ChatPage, peer: FakeServer) -> None:
    await rendered(chat, peer, "".join("1. item\n" for _ in range(250)))
    await expect(chat.page.locator("body > div > ol")).to_have_count(1)
    await expect(chat.page.locator("body > div > ol > li")).to_have_count(250)


async def test_a_cell_may_have_a_line_in_it_and_rows_may_be_short(chat: ChatPage, peer: FakeServer) -> None:
    await rendered(chat, peer, "| a | b |\n|---|:-:|\n| 1 \\| 2 | `x` |\n| 3\n| 4 | 5 | 6 |\n\nend")
    rows = chat.page.locator("body > div tbody tr")
    cells = [await row.locator("td").all_text_contents() for row in await rows.all()]
    assert cells == [["1 | 2", "x"], ["3", ""], ["4", "5"]]
