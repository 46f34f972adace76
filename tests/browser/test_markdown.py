"""How replies are rendered: growing, and harmless whatever they say."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.peer import Peer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SHOW = """
    async (steps) => {
      const { MarkdownView } = await import("/static/ui/replies/markdown.js");
      const root = document.createElement("div");
      const view = new MarkdownView(root);
      for (const step of steps) view.show(step);
      document.body.replaceChildren(root);
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
pieces_of_markdown = st.lists(
    st.sampled_from(
        [
            "# Title\n",
            "\n\n",
            "- item\n",
            "1. one\n",
            "**bold** ",
            "*it",
            "*",
            "`code` ",
            "```python\nx = 1\n",
            "```\n",
            "| a | b |\n|---|--:|\n| 1 | 2 |\n",
            "> quote\n",
            "[a][1] ",
            "\n\n[1]: https://example.org/\n\n",
            "<b>tag</b>",
            "plain words ",
            "您好",
            "🚂",
            "~~gone~~ ",
            "https://example.org/ ",
            "- [x] done\n",
            "---\n",
            "\\*",
            "&amp;",
        ]
    ),
    min_size=1,
    max_size=12,
)


async def shown(chat: ChatPage, peer: Peer, *steps: str) -> str:
    """The HTML that is shown after the text has grown by these steps."""
    if chat.page.url == "about:blank":
        await chat.page.goto(peer.url)
    html: str = await chat.page.evaluate(SHOW, list(steps))
    return html


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(pieces=pieces_of_markdown)
async def test_a_text_looks_the_same_whether_it_grew_or_came_at_once(
    chat: ChatPage, peer: Peer, pieces: list[str]
) -> None:
    """So that a reply looks after a reload as it did when it had streamed."""
    steps = ["".join(pieces[: end + 1]) for end in range(len(pieces))]
    assert await shown(chat, peer, *steps) == await shown(chat, peer, steps[-1])


@pytest.mark.parametrize("attack", ATTACKS)
async def test_nothing_in_a_reply_runs_or_asks_for_a_style(chat: ChatPage, peer: Peer, attack: str) -> None:
    await shown(chat, peer, attack)
    await chat.page.mouse.move(50, 50)
    assert await chat.page.title() != "owned"
    active = "script, img, svg:not(.icon), iframe, style, [style], [onerror], [onload], [onmouseover], [href^=javascript]"
    assert await chat.page.locator(f"body > div :is({active})").count() == 0


async def test_tags_in_a_reply_are_shown_as_they_were_written(chat: ChatPage, peer: Peer) -> None:
    await shown(chat, peer, "Use <b>bold</b> and <script>run()</script>.")
    await expect(chat.page.locator("body > div")).to_have_text("Use <b>bold</b> and <script>run()</script>.")


async def test_links_open_elsewhere_and_tell_nothing_of_this_page(chat: ChatPage, peer: Peer) -> None:
    await shown(chat, peer, "[docs](https://example.org/a) and ![a picture](https://example.org/b.png)")
    for link in await chat.page.locator("body > div a").all():
        assert await link.get_attribute("rel") == "noopener noreferrer"
        assert await link.get_attribute("target") == "_blank"
    await expect(chat.page.locator("body > div a").last).to_have_text("a picture")


async def test_code_is_highlighted_and_named_by_its_language(chat: ChatPage, peer: Peer) -> None:
    await shown(chat, peer, '```python\nprint("<hi>")\n```\n\n```nonesuch\n<x>\n```')
    blocks = chat.page.locator("body > div .code")
    await expect(blocks.first.locator(".hljs-string")).to_have_text('"<hi>"')
    await expect(blocks.first.locator(".code-head span")).to_have_text("python")
    await expect(blocks.last.locator("code")).to_have_text("<x>\n")


async def test_a_finished_block_keeps_its_element_while_the_reply_grows(chat: ChatPage, peer: Peer) -> None:
    """A reader may have selected words in it."""
    await chat.page.goto(peer.url)
    kept = await chat.page.evaluate("""
        async () => {
          const { MarkdownView } = await import("/static/ui/replies/markdown.js");
          const root = document.createElement("div");
          const view = new MarkdownView(root);
          view.show("First.\\n\\nSec");
          const first = root.firstChild;
          view.show("First.\\n\\nSecond.");
          return root.firstChild === first && root.children.length === 2;
        }
    """)
    assert kept is True


async def test_a_text_that_nests_too_deep_is_shown_plainly(chat: ChatPage, peer: Peer) -> None:
    await shown(chat, peer, ">" * 20_000 + " deep")
    await expect(chat.page.locator("body > div")).to_contain_text("deep")
