"""Markdown that grows: wherever a stream cuts it, it looks as if it had come at once, and what is finished is left alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer

BESIDE = """
    async (steps) => {
      const { MarkdownView } = await import("/static/ui/replies/markdown.js");
      const { later } = await import("/static/ui/markdown/slices.js");
      const grown = document.createElement("div");
      const view = new MarkdownView(grown);
      for (const step of steps) {
        view.show(step);
        await later.settled();
        const whole = document.createElement("div");
        new MarkdownView(whole).show(step);
        await later.settled();
        if (grown.innerHTML !== whole.innerHTML) return [step, grown.innerHTML, whole.innerHTML];
      }
      return null;
    }
"""
"""What was shown first that looks otherwise than it does at once; null where nothing does."""

SETUP = """
    const { MarkdownView } = await import("/static/ui/replies/markdown.js");
    const { later } = await import("/static/ui/markdown/slices.js");
    const root = document.createElement("div");
    document.body.replaceChildren(root);
    const view = new MarkdownView(root);
"""

PIECES = (
    "# Title\n", "Title\n===\n", "- ", "-", "\n", "\n\n", "- item\n", "  - nested\n", "   more\n", "1. one\n", "2", ". two\n",
    "10) ten\n", "* star\n", "+ plus\n", "- [x] done\n", "- [ ] open\n", "***\n", "---\n", "**bold** ", "*it", "*", "_", "`code` ",
    "```python\nx = '''\n", "```\n", "~~~\n", "   ```js\n   let x;\n", "    code\n", "\tcode\n", "| a | b |\n|---|--:|\n| 1 | 2 |\n",
    "| 3 |\n", "a | b\n", "|---|\n", "-|-\n", ":-:\n", "> quote\n", "> - in it\n", ">> deep\n", ">", "lazy\n", "[a][1] ", "[1]",
    "[1]: https://example.org/\n", '\n[1]: https://example.net/ "T"\n\n', "[A]: <b c>\n", "![p](https://example.org/p.png) ",
    "<b>tag</b>", "<pre>\n", "<!-- ", "plain words ", "您好", "🚂", "e\u0301", "~~gone~~ ", "https://example.org/ ", "a@example.org ",
    "\\*", "\\", "&amp;", "&", "$x^2$ ", "$5 and $10 ", "$$\na\n$$\n", "$$", "$", "\\(a_1\\) ", "\\[b\\]\n", "\\[\n", "\\]\n", "\r\n", "\r",
    " ", "\t", "  \n", "word " * 450, "x" * 2100,
)  # fmt: skip


async def page_of(chat: ChatPage, peer: FakeServer) -> ChatPage:
    """The page, with the bundles that come later loaded, so that the first example is like the others."""
    if chat.page.url == "about:blank":
        await chat.page.goto(peer.url)
        await chat.page.evaluate(BESIDE, ["```js\nlet x;\n```\n\n$x$"])
    return chat


async def run(chat: ChatPage, peer: FakeServer, body: str, argument: Any = None) -> Any:
    """Runs the body of a function of (view, root, later, argument)."""
    if chat.page.url == "about:blank":
        await chat.page.goto(peer.url)
    script = f"async (argument) => {{ {SETUP} {body} }}"
    return await chat.page.evaluate(script, argument)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=80,
)
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=14),
    cuts=st.lists(st.floats(0, 1), max_size=8),
)
@example(pieces=["1. one\n", "\n", "2", ". two\n"], cuts=[0.4, 0.6, 0.8])
@example(pieces=["- item\n", "\n", "[1]: https://example.org/\n", "- item\n", "[1]"], cuts=[0.3, 0.5, 0.9])
@example(pieces=["```python\nx = '''\n", "word " * 450], cuts=[0.1, 0.4])
@example(pieces=["a | b\n", "-|-\n", "| 3 |\n", "-", " "], cuts=[0.3, 0.5, 0.7, 0.9])
@example(
    pieces=["| a |\n|---|\n", "| one |\n" * 100, "| two |\n" * 100, "\n[b]: x\n"], cuts=[0.2, 0.5, 0.51, 0.9]
)
async def test_a_text_looks_the_same_wherever_it_was_cut(
    chat: ChatPage, peer: FakeServer, pieces: list[str], cuts: list[float]
) -> None:
    """At each moment, and so after a reload as when it had streamed."""
    text = "".join(pieces)
    ends = sorted({round(cut * len(text)) for cut in cuts} | {len(text)})
    page = (await page_of(chat, peer)).page
    assert await page.evaluate(BESIDE, [text[:end] for end in ends]) is None


async def test_every_letter_of_a_reply_can_be_the_last(chat: ChatPage, peer: FakeServer) -> None:
    text = (
        "# Plan\nFirst:\n\n1. Do *this*:\n   ```python\n   x = '''\n   a\n   '''\n   ```\n2. See [docs][d] and $x_1$\n\n"
        "   - deep\n     > quoted\n\n3. End\n\n| a | b |\n|:--|--:|\n| `1` | 2 |\n\n> lazy\nline\n\n$$\n\\frac{1}{2}\n$$\n\n"
        "[d]: https://example.org/\n"
    )
    page = (await page_of(chat, peer)).page
    assert await page.evaluate(BESIDE, [text[:end] for end in range(1, len(text) + 1)]) is None


async def test_a_finished_block_keeps_its_element_while_the_reply_grows(
    chat: ChatPage, peer: FakeServer
) -> None:
    """A reader may have selected words in it."""
    selected = """
        view.show("First.\\n\\n- one\\n- two\\n\\nSec");
        getSelection().setBaseAndExtent(root, 0, root, 2);
        const before = getSelection().toString();
        for (const more of ["ond.", "ond.\\n\\n```js\\nlet x;", "ond.\\n\\n```js\\nlet x;\\n```\\n\\n| a |\\n|---|\\n| 1 |"]) {
          view.show("First.\\n\\n- one\\n- two\\n\\nSec" + more);
        }
        await later.settled();
        return [before, getSelection().toString()];
    """
    before, after = await run(chat, peer, selected)
    assert "one" in before
    assert before == after


GROW = """
    let made = 0;
    let most = 0;
    const observer = new MutationObserver((records) => {
      const count = records.reduce((sum, { addedNodes }) => sum + addedNodes.length, 0);
      made += count;
      most = Math.max(most, count);
    });
    observer.observe(root, { childList: true, subtree: true });
    for (let end = 0; end <= argument.length; end += 40) {
      view.show(argument.slice(0, end));
      await later.settled();
    }
    view.show(argument);
    await later.settled();
    return { made, most, there: root.querySelectorAll("*").length, text: root.textContent };
"""


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + "def function(argument):  # words\n" * 400,
        "1. Do this:\n\n   ```python\n" + "   def function(argument):  # words\n" * 400,
        "| a | b |\n|---|---|\n" + "| one word | *two* words |\n" * 600,
        "".join(f"- item {number} of many\n" for number in range(400)),
        "word *emphasis* " * 1200,
        "> " + "word *emphasis* " * 1200,
    ],
    ids=["code", "code in an item", "table", "list", "paragraph", "quote"],
)
async def test_what_a_step_changes_is_bounded_however_long_a_block_is(
    chat: ChatPage, peer: FakeServer, text: str
) -> None:
    seen = await run(chat, peer, GROW, text)
    assert seen["most"] < 600
    assert seen["text"].endswith(re.findall(r"\w+", text)[-1])


async def test_a_code_block_is_coloured_as_one_text_however_long_its_strings_are(
    chat: ChatPage, peer: FakeServer
) -> None:
    """It is coloured in pieces of some lines, and a string may go over the end of one."""
    text = "```python\n" + 'words = """\n' + "in a string\n" * 70 + '"""\nx = 1\n' + "y = 'z'\n" * 60 + "```"
    body = """
        view.show(argument);
        await later.settled();
        const code = root.querySelector("code");
        return [[...code.querySelectorAll(".hljs-string")].map((part) => part.textContent).join(""), code.textContent];
    """
    strings, code = await run(chat, peer, body, text)
    assert strings == '"""\n' + "in a string\n" * 70 + '"""' + "'z'" * 60
    assert code == text.removeprefix("```python\n").removesuffix("\n```")


async def test_a_label_that_is_told_later_changes_those_that_use_it_alone(
    chat: ChatPage, peer: FakeServer
) -> None:
    body = """
        const text = "One.\\n\\nSee [a] and [b][B].\\n\\n| [b] |\\n|---|\\n| x |\\n\\n> in [a]\\n\\n";
        view.show(text);
        const first = root.firstChild.firstChild;
        const before = root.querySelectorAll("a").length;
        view.show(text + "[A]: https://example.org/a\\n");
        const one = [...root.querySelectorAll("a")].map((link) => link.getAttribute("href"));
        view.show(text + "[A]: https://example.org/a\\n[b]: https://example.org/b");
        const two = [...root.querySelectorAll("a")].map((link) => link.getAttribute("href"));
        return [before, one, two, root.firstChild.firstChild === first];
    """
    a, b = "https://example.org/a", "https://example.org/b"
    assert await run(chat, peer, body) == [0, [a, a], [a, b, b, a], True]


BOMBS = [
    ">" * 20_000 + " deep",
    "- " * 5_000 + "deep",
    "  " * 10 + "".join(f"{'  ' * depth}- a\n" for depth in range(300)) + "deep",
    "[" * 20_000 + "deep",
    "*a **b " * 4_000 + "deep",
    "$" * 20_000 + "deep",
    "\\(" * 10_000 + "deep",
    "`" * 20_000 + "deep",
    "# " + " " * 50_000 + "# deep",
    "[" + "a" * 100_000 + " deep",
    "|" * 20_000 + "\n" + "|-" * 20_000 + "\ndeep",
    "<a " * 10_000 + "deep",
    "$" + "{" * 1_900 + "}" * 1_900 + "$ deep",
    "$\\def\\a{\\b\\b}\\def\\b{\\c\\c}\\def\\c{\\d\\d}\\def\\d{\\a}\\a$ deep",
    "$\\rule{1e9em}{1e9em}$ deep",
]


async def test_a_text_made_to_hurt_is_shown_all_the_same(chat: ChatPage, peer: FakeServer) -> None:
    body = "view.show(argument); await later.settled(); return root.textContent;"
    for bomb in BOMBS:
        assert "deep" in await run(chat, peer, body, bomb), bomb[:40]


async def test_selected_code_is_copied_line_by_line(chat: ChatPage, peer: FakeServer) -> None:
    lines = "\n".join(f"line {number}" for number in range(100))
    body = """
        view.show(argument);
        await later.settled();
        getSelection().selectAllChildren(root.querySelector("code"));
        return getSelection().toString();
    """
    assert await run(chat, peer, body, f"```\n{lines}\n```") == lines
