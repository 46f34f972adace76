"""How replies are rendered: harmless whatever they say; blocks, formulas, tables. How they grow: test_streaming_markdown.py."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import replied
from tests.browser.test_streaming_markdown import run

SHOW = "view.show(argument); await later.settled();"
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
    "$\\href{javascript:document.title='owned'}{x}$",
    "$\\url{https://example.org}$",
    "$\\includegraphics{https://example.org/a.png}$",
    "$\\htmlStyle{position:fixed}{x}$",
    "$\\htmlId{chat}{x}$",
    "$\\text{<img src=x onerror=\"document.title='owned'\">}$",
    "$\\colorbox{red}{x} \\fcolorbox{red}{blue}{y}$",
    "$\\fbox{x} \\boxed{y} \\cancel{z} \\rule{1em}{1em}$",
]


async def rendered(chat: ChatPage, peer: FakeServer, text: str) -> str:
    """The HTML that is shown for a text."""
    return str(await run(chat, peer, f"{SHOW} return root.innerHTML;", text))


async def test_nothing_in_a_reply_runs_loads_or_asks_for_a_style(chat: ChatPage, peer: FakeServer) -> None:
    """A style would be refused by the page's policy, with a complaint that fails the test."""
    active = "script, img, svg:not(.icon), iframe, style, [style], [id], [onerror], [onload], [onmouseover]"
    links = "[href]:not([href^='https:']), .formula a"
    for attack in ATTACKS:
        await rendered(chat, peer, attack)
        await chat.page.mouse.move(50, 50)
        assert await chat.page.title() != "owned", attack
        assert await chat.page.locator(f"body > div :is({active}, {links})").count() == 0, attack


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


FOUND = f"{SHOW} return [root.querySelectorAll('math').length, root.querySelectorAll('math[display=block]').length];"
FORMULAS = [
    ("It is $x^2$.", [1, 0]),
    ("It is \\(x^2\\), not \\(y\\).", [2, 0]),
    ("So $$x = 1$$ holds.", [1, 1]),
    ("\\[\n\\int_0^1 x \\,dx\n\\]", [1, 1]),
    ("We have:\n$$\na &= b \\\\\n- c\n$$\nand on.".replace("&", ""), [1, 1]),
    ("- an item with \\[ x + 1 \\] in it", [1, 1]),
    ("| $a$ | b |\n|---|---|\n| \\(c\\) | $d_1$ |", [3, 0]),
    ("# On $\\pi$", [1, 0]),
    ("其中$x$是数。", [1, 0]),
    ("*emphasis with $a*b$ in it*", [1, 0]),
    ("$a_1$ and $b_1$", [2, 0]),
    ("$5$ or $3.14$", [2, 0]),
]


async def test_formulas_are_known_by_their_marks(chat: ChatPage, peer: FakeServer) -> None:
    for text, formulas in FORMULAS:
        assert await run(chat, peer, FOUND, text) == formulas, text


OTHERS = [
    "It costs $5 and $10.",
    "Between $5-$10, or 10$.",
    "I have $5, you have 20$.",
    "US$5 and A$6",
    "echo $HOME and $PATH, or $HOME/$USER",
    "`$x$` and `\\(y\\)`",
    "```\n$$\nx\n$$\n```",
    "\\[not a link\\](https://example.org/)",
    "\\$x$ and $ x $",
    "$$ unfinished",
    "The price: $5 million, the other: $6.",
]


async def test_prices_names_and_code_are_no_formulas(chat: ChatPage, peer: FakeServer) -> None:
    for text in OTHERS:
        assert await run(chat, peer, FOUND, text) == [0, 0], text


async def test_what_can_not_be_read_is_shown_as_it_was_written(chat: ChatPage, peer: FakeServer) -> None:
    for text in "$\\nonesuch{x}$", "$$\\frac{1}$$", "$$\n\\begin{nonesuch}\n$$", "\\(\\left( x\\)":
        assert await run(chat, peer, f"{SHOW} return root.textContent;", text) == text


async def test_a_formula_is_mathml_that_screen_readers_know(chat: ChatPage, peer: FakeServer) -> None:
    await run(chat, peer, SHOW, "It is $\\frac{a}{b}$.")
    await expect(chat.page.locator("body > div math mfrac")).to_have_count(1)
    await expect(chat.page.locator("body > div math annotation")).to_have_count(0)


async def test_what_sets_formulas_is_loaded_with_the_first_one(chat: ChatPage, peer: FakeServer) -> None:
    requested: list[str] = []
    chat.page.on("request", lambda request: requested.append(request.url.rpartition("/static/")[2]))
    await run(chat, peer, SHOW, "It costs $5 and $10.")
    assert "vendor/formulas.js" not in requested
    await run(chat, peer, SHOW, "It is $x$.")
    assert requested.count("vendor/formulas.js") == 1


async def test_a_formula_stays_set_while_its_paragraph_grows(chat: ChatPage, peer: FakeServer) -> None:
    body = """
        view.show("It is $x^2$");
        await later.settled();
        view.show("It is $x^2$, and");
        return root.querySelectorAll("math").length;
    """
    assert await run(chat, peer, body) == 1


HEADS = ("Algorithm", "Average", "Worst case", "Memory", "Stability", "Invented", "Comparisons")
CELLS = ("Mergesort", "O(n log n)", "O(n log n)", "O(n)", "stable", "John von Neumann", "n log n")
TABLE = f"|{'|'.join(HEADS)}|\n|{'---|' * len(HEADS)}\n|{'|'.join(CELLS)}|"
BROKEN = """
    (table) => {
      const walker = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
      const broken = [];
      for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
        for (const { 0: word, index } of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
          const range = document.createRange();
          range.setStart(node, index);
          range.setEnd(node, index + word.length);
          if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) broken.push(word);
        }
      }
      return broken;
    }
"""

FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Until what was seen of a size has led to something."""


async def test_a_table_breaks_no_word_and_scrolls_where_it_is_too_wide(
    chat: ChatPage, peer: FakeServer
) -> None:
    """It is no landmark: these need names of their own, and a reply may have ten tables."""
    await replied(chat, peer, TABLE)
    table = chat.replies.last.locator(".table")
    for width in (1280, 390):
        await chat.page.set_viewport_size({"width": width, "height": 800})
        assert await table.evaluate(BROKEN) == []
    await table.focus()
    await expect(table).to_be_focused()
    assert await table.evaluate("(table) => { table.scrollLeft = 1e6; return table.scrollLeft > 0; }")
    await expect(chat.page.get_by_role("region", name="Table")).to_have_count(0)
    await expect(chat.page.get_by_role("group", name="Table")).to_be_visible()
