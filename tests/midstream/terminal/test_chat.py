"""The terminal client in a real terminal: what is on its screen, and what its keys do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import midstream
from app.keys import add_key
from engine.scripted import Call, ScriptedEngine, Thought
from sessions.errors import NotFound, StoreDown
from tests.app.in_process_service import InProcessService, serving
from tests.midstream.conftest import cut
from tests.midstream.terminal.terminals import CTRL_C, CTRL_D, ENTER, Terminal, chatting, piped
from tests.midstream.terminal.tools import TOOLS, refuse_answers

LONG = "word " * 20_000
STOPPED = "[stopped; /continue resumes it]"


class Deaf(ScriptedEngine):
    """An engine that does not confirm cancels."""

    def __init__(self) -> None:
        super().__init__(pace_s=0.005)
        self.cancel_requested = asyncio.Event()

    def _cancel(self, request_id: str) -> None:
        self.cancel_requested.set()


async def leaves(terminal: Terminal) -> None:
    await terminal.prompts()
    terminal.types(CTRL_D)
    assert await terminal.exit_code() == 0
    assert "Bye." in terminal.text


async def test_a_stopped_reply_keeps_what_is_on_the_screen_and_goes_on(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(LONG)
    async with chatting(running.url, tmp_path, "--client-id", "ann") as terminal:
        await terminal.says("Go on.")
        await terminal.shows("word word")
        terminal.types(CTRL_C)
        await terminal.shows(STOPPED)
        await terminal.prompts()
        rows = terminal.rows
        shown = "".join(rows[rows.index("> Go on.") + 1 : rows.index(STOPPED)]).replace("^C", "")
        async with midstream.connect(running.ws_url, client_id="ann") as ann:
            _, kept = await ann.history("terminal")
        assert "".join(shown.split()) == "".join(kept["content"].split())
        running.engine.script("till the end.")
        terminal.enters("/continue")
        await terminal.shows("till the end.")
        await leaves(terminal)


async def test_the_wait_is_shown_until_text_comes(tmp_path: Path) -> None:
    engine = ScriptedEngine(reply="Here I am.", by_hand=True, max_batch=1)
    async with serving(tmp_path / "s", engine) as running, midstream.connect(running.ws_url) as other:
        await other.send("I was first.")
        async with chatting(running.url, tmp_path) as terminal:
            await terminal.says("And I?")
            await terminal.shows("Waiting, you are next")
            engine.step(8)
            await terminal.shows("Here I am.")
            await leaves(terminal)


async def test_the_conversation_that_is_open_is_named_and_shown(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script("It is noted.")
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.shows("This is a new conversation.")
        await terminal.says("My name is Ann.")
        await leaves(terminal)
        assert "kept as terminal." in terminal.text
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.prompts()
        assert "Open: “My name is Ann.”, 2 messages, just now. /new begins another" in terminal.text
        assert terminal.rows[-1:] != ["It is noted."]
        assert "> My name is Ann.\nIt is noted.\n>" in terminal.text
        terminal.enters("/new")
        await terminal.shows("This is a new conversation.")
        await terminal.says("Who am I?")
        await leaves(terminal)
    assert len(running.engine.requests[-1].messages) == 1


async def test_what_would_steer_the_terminal_is_shown_as_an_escape(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script("# Good *day*.\x1b[31m\n")
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.says("Hello.")
        await terminal.shows("# Good *day*.\\x1b[31m")
        await terminal.prompts()
        terminal.types(CTRL_C)  # there is no reply to stop: it leaves
        assert await terminal.exit_code() == 0
        assert terminal.text.rstrip().endswith("Bye. This conversation is kept as terminal.")


async def test_a_second_ctrl_c_leaves_where_the_first_is_not_confirmed(tmp_path: Path) -> None:
    engine = Deaf()
    engine.script(LONG)
    async with serving(tmp_path / "s", engine) as running, chatting(running.url, tmp_path) as terminal:
        await terminal.says("Go on.")
        await terminal.shows("word")
        terminal.types(CTRL_C)
        await engine.cancel_requested.wait()
        terminal.types(CTRL_C)
        assert await terminal.exit_code() == 0
        assert "Bye." in terminal.text


async def test_a_reply_goes_on_over_a_lost_connection(running: InProcessService, tmp_path: Path) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(f"{'word ' * 200}The end.")
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.says("Go on.")
        await terminal.shows("word")
        cut(running)
        await terminal.shows("disconnected (1012): The server stops; reconnect.; trying again]")
        await terminal.shows("[connected again]")
        await terminal.shows("The end.")
        await terminal.prompts()
        cut(running)  # the prompt is shown again below what is told meanwhile
        await terminal.shows("[connected again]", times=2)
        await terminal.says("Hello.")
        await leaves(terminal)
    assert running.engine.requests[-1].messages[-1].content == "Hello."


async def test_a_service_that_does_not_come_back_is_told(running: InProcessService, tmp_path: Path) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(LONG)
    async with chatting(running.url, tmp_path, "--reconnect-s", "0") as terminal:
        await terminal.says("Go on.")
        await terminal.shows("word")
        cut(running)
        await terminal.shows("[the connection is lost]")
        await terminal.shows("disconnected (1012): The server stops; reconnect.")
        assert await terminal.exit_code() == 1


async def test_the_key_is_asked_for_where_the_service_wants_one(tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "ann")
    async with (
        serving(tmp_path / "s", api_keys=str(tmp_path / "keys")) as running,
        chatting(running.url, tmp_path) as terminal,
    ):
        await terminal.shows("This service asks for a key:")
        terminal.enters(key)
        await leaves(terminal)
        assert key not in terminal.text


@pytest.fixture
async def tooled(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service with two tools, one of which asks."""
    async with serving(tmp_path / "service", tools=TOOLS) as service:
        yield service


async def test_thoughts_are_a_line_and_calls_are_told_with_their_arguments_and_results(
    tooled: InProcessService, tmp_path: Path
) -> None:
    tooled.engine._pace_s = 0.05
    tooled.engine.script([Thought("Secret"), Thought(" thought."), "I pay.", Call("pay", '{"sum": 5}')])
    tooled.engine.script(["All paid."])
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.says("Pay.")
        await terminal.shows("All paid.")
        await terminal.prompts()
        rows = [
            row for row in terminal.rows if row and not row.endswith(": runs]")
        ]  # which may be over at once
        assert "Secret" not in terminal.text
        assert rows[rows.index("> Pay.") + 1 :] == [
            "Thought for a moment",
            "I pay.",
            '[pay {"sum": 5}: is about to run]',
            '[pay {"sum": 5}: 5 paid\\x1b[31m]',
            "All paid.",
            ">",
        ]


@pytest.mark.parametrize(("typed", "outcome"), [("y", "Paid."), ("n", "not allowed")])
async def test_a_call_that_asks_is_allowed_or_denied_at_the_terminal(
    tooled: InProcessService, tmp_path: Path, typed: str, outcome: str
) -> None:
    tooled.engine.script([Call("ask_pay")])
    tooled.engine.script(["So be it."])
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.says("Pay.")
        await terminal.shows_question("Allow ask_pay {}? [y/n] ")
        terminal.enters("perhaps")
        await terminal.shows("Allow ask_pay {}? [y/n]", times=2)
        await terminal.shows_question("Allow ask_pay {}? [y/n] ")
        terminal.enters(typed)
        await terminal.shows(f"[ask_pay {{}}: {outcome}]")
        await terminal.shows("So be it.")
        await leaves(terminal)


async def test_a_decision_that_the_store_can_not_take_is_asked_for_again(
    tooled: InProcessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_answers(monkeypatch, StoreDown("Not now."), NotFound("No more."))
    tooled.engine.script([Call("ask_pay")])
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.says("Pay.")
        await terminal.shows_question("Allow ask_pay {}? [y/n] ")
        terminal.enters("y")
        await terminal.shows("store_unavailable: Not now.")
        await terminal.shows("Allow ask_pay {}? [y/n]", times=2)
        await terminal.shows_question("Allow ask_pay {}? [y/n] ")
        terminal.enters("y")
        await terminal.shows("not_found: No more.")
        terminal.types(CTRL_C)  # the chat goes on, and so does what it waits for
        await terminal.shows("[ask_pay {}: stopped]")
        await leaves(terminal)


async def test_what_was_typed_before_the_question_is_no_answer_to_it(
    tooled: InProcessService, tmp_path: Path
) -> None:
    tooled.engine.script([Call("ask_pay")])
    tooled.engine.script(["So be it."])
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.prompts()
        terminal.types(f"Pay.{ENTER}y{ENTER}")
        await terminal.shows_question("Allow ask_pay {}? [y/n] ")
        terminal.enters("n")
        await terminal.shows("[ask_pay {}: not allowed]")
        await terminal.shows("So be it.")
        await leaves(terminal)


async def test_an_approval_waits_for_who_comes_back_and_ctrl_c_gives_the_call_up(
    tooled: InProcessService, tmp_path: Path
) -> None:
    tooled.engine.script(["I ask.", Call("ask_pay")])
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.says("Pay.")
        await terminal.shows_question("[y/n] ")
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.shows("I ask.")
        await terminal.shows_question("Allow ask_pay {}? [y/n] ")
        terminal.types(CTRL_C)
        await terminal.shows("[ask_pay {}: stopped]")
        await terminal.shows(STOPPED)
        await leaves(terminal)


async def test_where_another_device_decides_first_the_terminal_shows_that(
    tooled: InProcessService, tmp_path: Path
) -> None:
    tooled.engine.script([Call("ask_pay")])
    tooled.engine.script(["So be it."])
    options = ("--client-id", "ann", "--conversation", "default")
    async with (
        chatting(tooled.url, tmp_path, *options) as terminal,
        midstream.connect(tooled.ws_url, client_id="ann", features=("tools",)) as other,
    ):
        await terminal.says("Pay.")
        await terminal.shows_question("[y/n] ")
        reply = await other.rejoin()
        assert reply is not None
        (call,) = reply.calls
        await other.tool_decision(call.call_id, "deny", args_sha256=call.args_sha256)
        await terminal.shows("[ask_pay {}: not allowed]")
        await terminal.shows("So be it.")
        await leaves(terminal)


async def test_a_history_is_shown_with_its_thoughts_and_calls(
    tooled: InProcessService, tmp_path: Path
) -> None:
    tooled.engine.script([Thought("Secret."), "I pay.", Call("pay", '{"sum": 5}')])
    tooled.engine.script(["All paid."])
    await piped(tooled.url, tmp_path, "Pay.\n", "--conversation", "terminal")
    async with chatting(tooled.url, tmp_path) as terminal:
        await terminal.prompts()
        shown = terminal.text.partition("> Pay.")[2]
        assert [part in shown for part in ("Thought for a moment", "I pay.", "5 paid", "All paid.")] == [
            True
        ] * 4
        assert "Secret" not in shown
