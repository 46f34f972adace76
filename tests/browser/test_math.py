"""Formulas in replies: which texts are some, how they are set, and that none of them can do harm."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.test_streaming_markdown import run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SHOW = "view.show(argument); await later.settled();"
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


ATTACKS = [
    "$\\href{javascript:document.title='owned'}{x}$",
    "$\\url{https://example.org}$",
    "$\\includegraphics{https://example.org/a.png}$",
    "$\\htmlStyle{position:fixed}{x}$",
    "$\\htmlId{chat}{x}$",
    "$\\text{<img src=x onerror=\"document.title='owned'\">}$",
    "$\\colorbox{red}{x} \\fcolorbox{red}{blue}{y}$",
    "$\\fbox{x} \\boxed{y} \\cancel{z} \\rule{1em}{1em}$",
]


async def test_a_formula_runs_nothing_loads_nothing_and_asks_for_no_style(
    chat: ChatPage, peer: FakeServer
) -> None:
    """A style would be refused by the page's policy, with a complaint that fails the test."""
    for text in ATTACKS:
        title, html = await run(chat, peer, f"{SHOW} return [document.title, root.innerHTML];", text)
        assert title != "owned", text
        assert (
            await chat.page.locator("body > div :is(img, a, [style], [id], [onerror], script)").count() == 0
        ), text
        assert " style=" not in html, text


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
