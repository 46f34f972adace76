"""Live translation on the page: what is written is translated while it is written, in two columns, on every device."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import BrowserContext, expect

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import delta, visit
from tests.browser.test_modules import run
from tests.server_process import ServerProcess
from tests.server_process import serving as serving_process


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """What `make run` starts: the demo model, and the translator beside it."""
    with serving_process(tmp_path_factory.mktemp("bundled")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def running(context: BrowserContext, tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose model can go on with a reply, and has two. The pages go before it does."""
    engine = ScriptedEngine()
    for reply in ("Eins.", "Zwei."):
        engine.script(reply)
    async with serving(tmp_path, engine) as service:
        yield service
        for page in context.pages:
            await page.close()


async def begin(chat: ChatPage, url: str) -> None:
    """Opens the page, and has what is written translated."""
    await chat.open(url)
    await chat.page.get_by_role("button", name="Live translation").click()
    await expect(chat.page.get_by_label("Into")).to_be_visible()
    await chat.box.focus()


async def shows(chat: ChatPage, *rows: tuple[str, str]) -> None:
    """Waits until these sentences stand beside their translations, and no others."""
    for column, texts in zip((".source", ".target"), zip(*rows, strict=True), strict=True):
        await expect(chat.page.locator(f".pairs {column}")).to_have_text(list(texts), timeout=60_000)


@pytest.mark.timeout(300)
async def test_the_bundled_translator_translates_what_is_written_and_then_the_chat_model_answers_again(
    chat: ChatPage, bundled: ServerProcess
) -> None:
    """The default start has both; neither takes the other's place in the conversation. Late readers see the whole."""
    await begin(chat, bundled.url)
    await expect(chat.page.get_by_label("Into").locator("option")).to_have_count(2)
    await chat.page.get_by_label("Into").select_option("Chinese")
    await chat.page.keyboard.type("Good morning. How are you? ")
    rows = [("Good morning.", "早上好。"), ("How are you?", "你好吗\uff1f")]
    await shows(chat, *rows)
    late = ChatPage(await chat.page.context.new_page())
    await late.open(chat.page.url)
    await shows(late, *rows)
    await chat.page.get_by_role("button", name="Finish").click()
    await late.ended()
    await shows(chat, *rows)
    await late.page.close()
    await chat.page.reload()  # the history, too, tells which model translated
    await shows(chat, *rows)
    await chat.page.get_by_role("button", name="Live translation", pressed=True).click()
    await chat.type("My name is Ada.")
    await expect(chat.replies).to_have_count(2)
    await chat.until_shown("Ada")
    await chat.ended()
    await expect(chat.badge()).to_have_count(0)
    await chat.page.close()


async def test_words_are_taken_as_they_are_written_and_a_line_takes_the_rest(
    chat: ChatPage, running: InProcessService
) -> None:
    await begin(chat, running.url)
    await chat.page.keyboard.type("One. Two thr")
    await expect(chat.box).to_have_value("thr")
    await shows(chat, ("One.", "Eins."), ("Two", ""))
    await chat.page.keyboard.type("ee")
    await chat.page.keyboard.press("Enter")
    await expect(chat.box).to_have_value("")
    await shows(chat, ("One.", "Eins."), ("Two three", "Zwei."))
    await expect(chat.questions).to_have_count(0)
    await chat.page.set_viewport_size({"width": 390, "height": 800})  # on a phone, under its sentence
    first = [chat.page.locator(f".pairs {column}").first for column in (".source", ".target")]
    source, target = [await one.bounding_box() for one in first]
    assert source is not None
    assert target is not None
    assert target["y"] >= source["y"] + source["height"]
    assert target["x"] == source["x"]


async def test_a_reload_goes_on_stop_stops_on_all_devices_and_what_was_stopped_goes_on(
    chat: ChatPage, running: InProcessService, context: BrowserContext
) -> None:
    await begin(chat, running.url)
    await chat.page.keyboard.type("One. ")
    await shows(chat, ("One.", "Eins."))
    await chat.reload()
    await shows(chat, ("One.", "Eins."))
    await expect(chat.page.get_by_role("button", name="Finish")).to_be_visible()
    await chat.box.press_sequentially("Two. ")
    await shows(chat, ("One.", "Eins."), ("Two.", "Zwei."))
    other = ChatPage(await context.new_page())
    await other.open(chat.page.url)
    await shows(other, ("One.", "Eins."), ("Two.", "Zwei."))
    await other.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    await expect(other.badge()).to_have_text("Stopped")
    await shows(chat, ("One.", "Eins."), ("Two.", "Zwei."))
    running.engine.script("Drei.")
    await chat.page.get_by_role("button", name="Continue").click()
    await expect(chat.page.get_by_role("button", name="Finish")).to_be_visible()
    await chat.box.press_sequentially("Three. ")
    await shows(chat, ("One.", "Eins."), ("Two.", "Zwei."), ("Three.", "Drei."))


async def test_a_button_is_there_only_where_a_model_can_translate_or_the_server_listens(
    chat: ChatPage, peer: FakeServer
) -> None:
    for features, model in ([], ["continue"]), (["interpret"], ["tools"]), (["interpret"], []):
        await visit(chat, peer, features=features, models=[{"name": "scripted", "features": model}])
        await expect(chat.page.get_by_role("button", name="Live translation")).to_have_count(0)
        await expect(chat.page.locator("#talk")).to_be_hidden()


async def translate(chat: ChatPage, peer: FakeServer, complaints: Complaints, text: str) -> PageConnection:
    """The page's connection, over which it was asked to translate this text."""
    complaints.expected = ["404"]  # the peer says nothing of its models over HTTP
    models = [{"name": "scripted", "features": ["continue"]}]
    conn = await visit(chat, peer, features=["interpret"], models=models)
    await chat.page.get_by_role("button", name="Live translation").click()
    await expect(chat.page.get_by_label("Into")).to_be_visible()
    await chat.box.fill(text)
    return conn


async def take(conn: PageConnection, *, turn: str, seq: int) -> dict[str, Any]:
    """Accepts an interpretation, and takes the first growth of its source."""
    start = await conn.receive("interpret.start")
    languages = {name: start[name] for name in ("source", "target")}
    await conn.accept(start, turn=turn, seq=seq, interprets=languages, content="")
    await grown(conn, await conn.receive("source"), turn=turn, seq=seq + 1)
    return start


async def grown(conn: PageConnection, growth: dict[str, Any], *, turn: str, seq: int) -> None:
    """Takes a growth."""
    piece = {"turn_id": turn, "final": growth.get("final", False)}
    where = {name: growth[name] for name in ("conversation_id", "off", "text")}
    await conn.send_frame("source", seq=seq, **where, **piece)
    await conn.answer(growth, "source_ack", chars=growth["off"] + len(growth["text"]), **piece)


async def test_words_behind_the_end_wait_for_the_next_translation(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    conn = await translate(chat, peer, complaints, "One. ")
    start = await take(conn, turn="t", seq=1)
    await chat.page.get_by_role("button", name="Finish").click()
    last = await conn.receive("source")
    assert (last["off"], last["text"], last["final"]) == (5, "", True)
    await grown(conn, last, turn="t", seq=3)
    await chat.box.press_sequentially("Two. Thr")
    await expect(chat.page.get_by_text("Translating the rest")).to_be_visible()
    await expect(chat.box).to_have_value("Two. Thr")
    await conn.finish(start, turn="t", seq=4, reason="stop", chars=0)
    await expect(chat.page.get_by_text("Translating the rest")).to_have_count(0)
    await chat.box.press_sequentially("ee ")
    await conn.receive("interpret.start")
    await expect(chat.box).to_have_value("")


async def test_a_translation_that_is_refused_gives_its_words_back_and_says_why(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    conn = await translate(chat, peer, complaints, "One. Two. ")
    start = await conn.receive("interpret.start")
    await conn.refuse({"ref": start["client_msg_id"]}, "rate_limited", retryable=True, retry_after_ms=9_000)
    await expect(chat.box).to_have_value("One. Two. ")
    await expect(chat.page.get_by_text("Try again in 9 seconds.")).to_be_visible()
    await chat.box.press_sequentially("Three. ")
    await expect(chat.box).to_have_value("One. Two. Three. ")
    assert conn.kept("interpret.start") == []
    await chat.box.press("Enter")
    await conn.accept(await conn.receive("interpret.start"), turn="t", seq=1, content="")
    assert (await conn.receive("source"))["text"] == "One. Two. Three. \n"
    await expect(chat.box).to_have_value("")


async def test_what_a_full_source_has_no_room_for_begins_the_next_translation(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    conn = await translate(chat, peer, complaints, "One. ")
    start = await take(conn, turn="t", seq=1)
    await chat.box.press_sequentially("Two. ")
    await conn.refuse(await conn.receive("source"), "content_too_long")
    await expect(chat.box).to_have_value("Two. ")
    last = await conn.receive("source")
    assert (last["off"], last["text"], last["final"]) == (5, "", True)
    await chat.box.press_sequentially("Three. ")
    await grown(conn, last, turn="t", seq=3)
    await conn.finish(start, turn="t", seq=4, reason="stop", chars=0)
    await expect(chat.page.get_by_text("Translating the rest")).to_have_count(0)
    await expect(chat.page.locator(".notice")).to_have_count(1)
    assert conn.kept("source") == []
    await chat.box.press("Enter")
    await conn.accept(await conn.receive("interpret.start"), turn="u", seq=5, content="")
    assert (await conn.receive("source"))["text"] == "Two. Three. \n"


async def test_who_leaves_before_the_words_were_told_finds_them_in_the_box(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    conn = await translate(chat, peer, complaints, "One. ")
    await conn.receive("interpret.start")
    await expect(chat.box).to_have_value("")
    await chat.page.get_by_role("button", name="Live translation").click()
    await expect(chat.box).to_have_value("One. ")


async def test_a_long_text_that_is_pasted_is_told_in_whole_words(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    """It is no attachment, as it would be of a message."""
    text = "words " * 1_500
    conn = await translate(chat, peer, complaints, "")
    await chat.page.evaluate("(text) => navigator.clipboard.writeText(text)", f"{text}more words ")
    await chat.box.press("ControlOrMeta+v")
    await conn.accept(await conn.receive("interpret.start"), turn="t", seq=1, content="")
    first = await conn.receive("source")
    assert first["text"] == text[:7_998]
    await grown(conn, first, turn="t", seq=2)
    assert (await conn.receive("source"))["text"] == f"{text[7_998:]}more words "


async def test_a_translation_is_announced_sentence_by_sentence(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    """A screen reader hears each one once, as soon as it is whole, in its language; at the end what is left."""
    conn = await translate(chat, peer, complaints, "One. Two ")
    start = await take(conn, turn="t", seq=1)
    received, shown = chat.page.locator("#announcer"), chat.page.locator(".pairs .target")
    await delta(conn, start, "Ei", off=0, seq=3, src_off=4)
    await expect(shown.first).to_have_text("Ei")
    await expect(received).to_be_empty()
    await delta(conn, start, "ns.", off=2, seq=4, src_off=4)
    await expect(received).to_have_text("Eins.")
    await expect(received.locator("span")).to_have_attribute("lang", start["target"])
    await delta(conn, start, " Zwei", off=5, seq=5, src_off=8)
    await expect(shown.last).to_have_text("Zwei")
    await expect(received).to_have_text("Eins.")
    await conn.finish(start, turn="t", seq=6, reason="cancelled", chars=10)
    await expect(received).to_have_text("Eins. Zwei Reply, cut short")


async def test_who_comes_late_is_not_read_what_was_told_before(
    chat: ChatPage, running: InProcessService
) -> None:
    await begin(chat, running.url)
    await chat.box.press_sequentially("One. ")
    await expect(chat.page.locator("#announcer")).to_have_text("Eins.")
    late = ChatPage(await chat.page.context.new_page())
    await late.open(chat.page.url)
    await shows(late, ("One.", "Eins."))
    await chat.box.press_sequentially("Two. ")
    await expect(late.page.locator("#announcer")).to_have_text("Zwei.")
    await expect(chat.page.locator("#announcer")).to_have_text("Eins. Zwei.")


sentences = st.lists(
    st.sampled_from(["One. ", "Two! ", "三。", "four\n", "a b c? ", "3.14 is ", "“Yes.” "]), max_size=6
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(source=sentences.map("".join), text=sentences.map("".join), data=st.data())
async def test_rows_hold_all_of_both_texts_in_order(
    chat: ChatPage, peer: FakeServer, source: str, text: str, data: Any
) -> None:
    """However it came: at once, from somewhere on piece by piece, or all of it piece by piece."""
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    reads = data.draw(
        st.lists(st.integers(0, len(source)), min_size=len(cuts), max_size=len(cuts)).map(sorted)
    )
    alignment = [
        [start, end, read] for start, end, read in zip(cuts, [*cuts[1:], len(text)], reads, strict=False)
    ]
    body = "return module.alignedRows(...argument);"
    rows = await run(chat, peer, "ui/replies/columns.js", body, [source, text, alignment])
    assert "".join(row["source"] for row in rows) == source
    assert "".join(row["text"] for row in rows) == text


async def test_a_sentence_stands_beside_what_had_been_read_for_it(chat: ChatPage, peer: FakeServer) -> None:
    body = "return module.alignedRows(...argument);"
    argument = ["One. Two. Three", "Eins. Zwei. Drei", [[6, 12, 9], [12, 16, 15]]]
    rows = await run(chat, peer, "ui/replies/columns.js", body, argument)
    assert [(row["source"], row["text"]) for row in rows] == [
        ("One. ", "Eins. "),
        ("Two. ", "Zwei. "),
        ("Three", "Drei"),
    ]
