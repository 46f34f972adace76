"""The page with a real model, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP, Complaints, launched
from tests.models.screenshots import service, ten_turns

pytestmark = [pytest.mark.models, pytest.mark.browser, pytest.mark.timeout(900)]


async def test_ten_turns_with_stop_continue_edit_title_and_reload(smollm2: Path, tmp_path: Path) -> None:
    complaints = Complaints()
    with service(tmp_path) as server:
        async with launched("chromium-headless-shell", "chromium") as browser:
            context = await browser.new_context(viewport=DESKTOP)
            complaints.watch(context)
            await ten_turns(ChatPage(await context.new_page()), server.url)
    assert complaints.unexpected() == []
