"""The page by the rules of axe-core (WCAG 2.2 AA and its best practices): no violation in any state, in light and in dark.

axe-core is installed by npm at the first run, into `.cache`. Where it can't be, these tests are skipped, and say why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer
from tests.browser.page_states import SCENES, Scene, violations, welcome


@pytest_asyncio.fixture(loop_scope="session")
async def judged(axe: str, context: BrowserContext, complaints: Complaints) -> AsyncIterator[ChatPage]:
    """A tab that axe looks at. A browser complains of every answer that is no success."""
    complaints.expected = ["Failed to load resource", "WebSocket"]
    await context.add_init_script(axe)
    yield ChatPage(await context.new_page())


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_no_rule_is_broken(judged: ChatPage, peer: FakeServer, scene: Scene) -> None:
    await judged.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    await scene(judged, peer)
    assert await violations(judged) == []
    await judged.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert await violations(judged) == []


async def test_what_breaks_a_rule_is_found(judged: ChatPage, peer: FakeServer) -> None:
    await welcome(judged, peer)
    await judged.page.locator("#send").evaluate("(send) => send.removeAttribute('aria-label')")
    assert any(line.startswith("button-name") for line in await violations(judged))
