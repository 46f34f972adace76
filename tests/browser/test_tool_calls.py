"""Calls of tools and thoughts on the page, on a real service with real tools: shown, decided, stopped, and there again after a reload."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest_asyncio
from msgspec import Meta
from playwright.async_api import BrowserContext, Locator, Page, expect

import midstream
from engine.scripted import Call, Thought
from sessions.tools.function_tools import tool
from sessions.tools.tool_registry import CallContext, Progress, ToolFailed
from tests.app.in_process_service import InProcessService, serving
from tests.browser.chat_page import ChatPage

BERN = Call("weather", '{"city": "Bern"}')
PAY = Call("pay", '{"sum": 5, "to": "<b>Ann</b>"}')
NASTY = "<img src=x onerror=document.title='owned'> & <script>document.title='owned'</script>"
TOOLS = ("weather", "pay", "survey")
let_go = asyncio.Event()
"""Holds `survey` until a test has seen what it wanted to."""


def weather(city: str) -> str:
    """Tell the weather."""
    if city == "Atlantis":
        raise ToolFailed("There is no such city.")
    return f"Rain in {city}. {NASTY}"


@tool(approval="always")
def pay(sum: Annotated[int, Meta(ge=1)], to: str) -> str:  # noqa: A002 - the tool's own word
    """Pay somebody."""
    return f"{sum} paid to {to}"


async def survey(context: CallContext) -> str:
    """Measure for a while."""
    context.progress(Progress(done=1, total=4, message="measuring the north"))
    await let_go.wait()
    return "Measured."


@pytest_asyncio.fixture(loop_scope="session")
async def service(context: BrowserContext, tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service with three tools of its own, over a scripted engine. The pages go before it does."""
    let_go.clear()
    named = tuple(f"tests.browser.test_tool_calls:{name}" for name in TOOLS)
    async with serving(tmp_path, tools=named) as running:
        yield running
        for page in context.pages:
            await page.close()


def card(page: Page, name: str) -> Locator:
    """The card of a call."""
    return page.get_by_role("group", name=f"Call of {name}", exact=True)


def state(page: Page, name: str) -> Locator:
    """The words on where a call is."""
    return card(page, name).locator(".call-state")


async def begin(chat: ChatPage, service: InProcessService, text: str, *replies: Any) -> None:
    """Opens the page and sends a message; the model has these replies."""
    for reply in replies:
        service.engine.script(reply)
    await chat.open(service.url)
    await chat.type(text)


async def another_tab(context: BrowserContext, chat: ChatPage) -> ChatPage:
    """A second tab that shows the same conversation."""
    other = ChatPage(await context.new_page())
    await other.open(chat.page.url)
    return other


async def test_a_call_shows_its_name_its_arguments_and_its_folded_result_and_the_reply_goes_on(
    chat: ChatPage, service: InProcessService
) -> None:
    await begin(chat, service, "Weather?", ["I look.", BERN], ["It rains."])
    await chat.until_shown("It rains.")
    for _ in ("live", "after a reload"):
        shown = card(chat.page, "weather")
        await expect(chat.replies).to_have_count(2)
        await expect(chat.replies.first.locator(".prose")).to_have_text("I look.")
        await expect(state(chat.page, "weather")).to_have_text("Done")
        await expect(shown.get_by_label("Arguments")).to_have_text('{\n  "city": "Bern"\n}')
        result = shown.get_by_label("Result")
        await expect(result).to_be_hidden()
        await shown.get_by_text("Result").press("Enter")
        await expect(result).to_have_text(f"Rain in Bern. {NASTY}")
        await chat.reload()
    assert "owned" not in await chat.page.title()
    assert await chat.page.locator(".call img, .call script").count() == 0


async def test_an_approval_is_given_with_the_keyboard_and_runs_what_was_shown(
    chat: ChatPage, service: InProcessService
) -> None:
    await begin(chat, service, "Pay Ann.", [PAY], ["Done."])
    call_card = card(chat.page, "pay")
    await expect(state(chat.page, "pay")).to_have_text("Needs your permission")
    await expect(call_card.get_by_label("Arguments")).to_contain_text('"to": "<b>Ann</b>"')
    await expect(chat.page.locator("#announcer")).to_contain_text("pay needs your permission")
    await expect(chat.page.locator(".reply[aria-busy=true]")).to_have_count(0)
    await call_card.get_by_label("Arguments").focus()
    await chat.page.keyboard.press("Tab")
    await expect(call_card.get_by_role("button", name="Allow")).to_be_focused()
    await chat.page.keyboard.press("Enter")
    await chat.until_shown("Done.")
    await expect(state(chat.page, "pay")).to_have_text("Done")
    await expect(call_card).to_be_focused()
    await call_card.get_by_text("Result").click()
    await expect(call_card.get_by_label("Result")).to_have_text("5 paid to <b>Ann</b>")
    await expect(call_card.get_by_role("button", name="Allow")).to_be_hidden()


async def test_an_approval_waits_through_a_reload_and_a_second_tab_sees_who_was_first(
    chat: ChatPage, context: BrowserContext, service: InProcessService
) -> None:
    await begin(chat, service, "Pay Ann.", ["I need leave.", PAY], ["Not paid."])
    await expect(state(chat.page, "pay")).to_have_text("Needs your permission")
    await chat.reload()
    await expect(state(chat.page, "pay")).to_have_text("Needs your permission")
    await expect(chat.stop).to_be_visible()
    other = await another_tab(context, chat)
    await card(other.page, "pay").get_by_role("button", name="Deny").click()
    for tab in (chat, other):
        await tab.until_shown("Not paid.")
        await expect(state(tab.page, "pay")).to_have_text("Not allowed")
        await expect(card(tab.page, "pay").get_by_role("button", name="Allow")).to_be_hidden()
        await expect(tab.stop).to_be_hidden()


async def test_stop_between_the_turns_cancels_the_calls(
    chat: ChatPage, context: BrowserContext, service: InProcessService
) -> None:
    await begin(chat, service, "Pay Ann.", ["I need leave.", PAY])
    await expect(state(chat.page, "pay")).to_have_text("Needs your permission")
    await chat.stop.click()
    await expect(state(chat.page, "pay")).to_have_text("Stopped")
    await expect(chat.badge()).to_have_text("Stopped")
    await expect(chat.stop).to_be_hidden()
    other = await another_tab(context, chat)
    await expect(state(other.page, "pay")).to_have_text("Stopped")
    await expect(other.replies).to_have_count(2)
    service.engine.script(["Good."])
    assert await chat.ask("Never mind.") == "Good."
    await expect(chat.replies.first.locator(".prose")).to_contain_text("I need leave.")


async def test_a_call_that_runs_tells_how_far_it_is_and_ends_in_front_of_who_came_back(
    chat: ChatPage, service: InProcessService
) -> None:
    await begin(chat, service, "Measure.", [Call("survey")], ["All measured."])
    await expect(state(chat.page, "survey")).to_have_text("Running, 25 %")
    await expect(card(chat.page, "survey").locator(".call-message")).to_have_text("measuring the north")
    await chat.reload()
    await expect(state(chat.page, "survey")).to_contain_text("Running")
    let_go.set()
    await chat.until_shown("All measured.")
    await expect(state(chat.page, "survey")).to_have_text("Done")


async def test_a_call_of_another_program_is_shown_as_that(chat: ChatPage, service: InProcessService) -> None:
    service.engine.script([Call("lamp", '{"on": true}')])
    await chat.open(service.url)
    client_id = await chat.client("localStorage.getItem('midstream.client_id')")
    features = ("reasoning", "tools")
    async with midstream.connect(service.ws_url, client_id=client_id, features=features) as program:
        await program.send("Light!", conversation_id="home", tools=[{"name": "lamp"}])
        await chat.page.goto(f"{service.url}/#/home")
        await expect(state(chat.page, "lamp")).to_have_text("Waits for another program")
        await expect(card(chat.page, "lamp")).to_contain_text(
            "This call waits for another program. Press Stop to give it up."
        )
        await expect(card(chat.page, "lamp").get_by_role("button", name="Allow")).to_be_hidden()
        await chat.stop.click()
        await expect(state(chat.page, "lamp")).to_have_text("Stopped")


async def test_messages_that_wait_behind_a_reply_leave_it_whole_after_a_reload(
    chat: ChatPage, service: InProcessService
) -> None:
    service.engine.script(["Pay first.", PAY])
    await chat.open(service.url)
    client_id = await chat.client("localStorage.getItem('midstream.client_id')")
    async with midstream.connect(service.ws_url, client_id=client_id, features=("tools",)) as program:
        await chat.type("Pay Ann.")
        await expect(state(chat.page, "pay")).to_have_text("Needs your permission")
        place = chat.page.url.partition("#/")[2]
        await program.send("And Bob?", conversation_id=place, on_busy="enqueue")
        await expect(chat.questions).to_have_text(["Pay Ann.", "And Bob?"])
        await chat.reload()
        await expect(chat.questions).to_have_text(["Pay Ann.", "And Bob?"])
        await expect(chat.stop).to_be_visible()
        service.engine.script(["Not paid."])
        service.engine.script(["Nor him."])
        await card(chat.page, "pay").get_by_role("button", name="Deny").click()
        await chat.until_shown("Nor him.")
    await expect(state(chat.page, "pay")).to_have_text("Not allowed")
    await chat.ended()


async def test_a_thought_is_folded_with_its_time_and_is_the_same_after_a_reload(
    chat: ChatPage, service: InProcessService
) -> None:
    service.engine._pace_s = 0.4
    thoughts = [Thought("The user"), Thought(" wants"), Thought(" rain.")]
    await begin(chat, service, "Weather?", [*thoughts, "It", " rains."])
    fold = chat.replies.last.locator(".thought summary")
    await expect(fold).to_have_text("Thinking")
    thought = chat.replies.last.locator(".thought-text")
    await expect(thought).to_be_hidden()
    await fold.press("Enter")
    await expect(thought).to_contain_text("The user")
    await chat.until_shown("It rains.")
    await chat.ended()
    await expect(thought).to_have_text("The user wants rain.")
    await expect(fold).to_have_text(re.compile(r"^Thought for .* s$"))
    took = await fold.inner_text()
    await chat.reload()
    await expect(fold).to_have_text(took)
    await expect(thought).to_be_hidden()
    await expect(chat.text).to_have_text("It rains.")


async def test_a_stop_in_a_thought_and_a_reload_show_what_is_kept(
    chat: ChatPage, service: InProcessService
) -> None:
    service.engine._pace_s = 0.05
    await begin(chat, service, "Think.", [Thought(f" step {number}") for number in range(4_000)])
    await expect(chat.replies.last.locator(".thought-text")).to_contain_text("step 5")
    await chat.reload()
    await expect(chat.replies.last.locator(".thought summary")).to_have_text("Thinking")
    await chat.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    kept = await chat.replies.last.locator(".thought-text").text_content()
    await chat.reload()
    await expect(chat.replies.last.locator(".thought-text")).to_have_text(kept or "")
