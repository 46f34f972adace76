"""The terminal client in a real terminal: what is on its screen, and what its keys do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import midstream
from app.keys import add_key
from engine.api import Streamer
from engine.messages import Request
from engine.scripted import Call, ScriptedEngine, Thought
from sessions.errors import NotFound, StoreDown
from tests.app.in_process_service import InProcessService, serving
from tests.midstream.conftest import cut
from tests.midstream.terminal.terminals import CTRL_C, CTRL_D, ENTER, UP, Terminal, chatting, piped
from tests.midstream.terminal.tools import TOOLS, refuse_answers

LONG = "word " * 20_000
STOPPED = "[stopped; /continue resumes it]"
TABLE = "| Algorithm | Complexity |\n|---|---|\n| Mergesort | n log n |\n\nThat is all.\n"


class Deaf(ScriptedEngine):
    """An engine that does not confirm cancels."""

    def __init__(self) -> None:
        super().__init__(pace_s=0.005)
        self.cancel_requested = asyncio.Event()

    def _cancel(self, request_id: str) -> None:
        self.cancel_requested.set()


class ByHand(ScriptedEngine):
    """An engine that is stepped once a reply was requested."""

    def __init__(self) -> None:
        super().__init__(by_hand=True)
        self.requested = asyncio.Event()

    def generate(self, request: Request) -> Streamer:
        self.requested.set()
        return super().generate(request)


async def leaves(terminal: Terminal) -> None:
    await terminal.prompts()
    terminal.types(CTRL_D)
    assert await terminal.exit_code() == 0
    assert "Bye." in terminal.text


async def test_a_reply_is_shown_as_markdown_whose_words_are_whole(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script([f"# Sorting\n\n{'Mergesort is stable. ' * 9}\n\n", TABLE, "\n```py\nx = 1\n```\n"])
    async with chatting(running.url, tmp_path, columns=40) as terminal:
        await terminal.says("How?")
        await terminal.prompts()
        rows = [row.strip() for row in terminal.rows]
        started = rows.index("> How?")
        assert rows[started + 1] == "Sorting"
        assert " ".join(rows[started + 2 : started + 9]).split() == ("Mergesort is stable. " * 9).split()
        assert "That is all." in rows
        assert "x = 1" in rows
        await leaves(terminal)


async def test_a_reply_is_shown_once_however_it_comes(tmp_path: Path) -> None:
    """Token by token, taller than the screen, on a screen that is narrow."""
    engine = ScriptedEngine(pace_s=0.001)
    items = [f"- item{number} with **many** words in it\n" for number in range(60)]
    engine.script([piece for item in items for piece in (item[:3], item[3:9], item[9:])])
    async with (
        serving(tmp_path / "s", engine) as running,
        chatting(running.url, tmp_path, columns=30, lines=12) as terminal,
    ):
        await terminal.says("List them.")
        await terminal.shows("item59")
        await terminal.prompts()
        assert [terminal.text.count(f"item{number} with") for number in range(60)] == [1] * 60
        await leaves(terminal)


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
        shown = " ".join(rows[rows.index("> Go on.") + 1 : rows.index(STOPPED)])
        async with midstream.connect(running.ws_url, client_id="ann") as ann:
            _, kept = await ann.history("terminal")
        assert shown.split() == kept["content"].split()
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
            assert "Waiting" not in terminal.text
            await leaves(terminal)


async def test_lines_are_edited_and_found_again_in_a_later_chat(
    running: InProcessService, tmp_path: Path
) -> None:
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.says("Helo.\x1b[D\x1b[Dl")
        await terminal.prompts()
        await leaves(terminal)
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.prompts()
        terminal.types(UP + ENTER)
        await terminal.says("first\x1b\rsecond")
        await terminal.says("Not this\x03That.")
        await leaves(terminal)
    requested = [request.messages[-1].content for request in running.engine.requests]
    assert requested == ["Hello.", "Hello.", "first\nsecond", "That."]
    assert (tmp_path / "midstream" / "chat-history").stat().st_mode & 0o077 == 0


async def test_what_is_typed_while_a_reply_is_written_waits_for_the_prompt(tmp_path: Path) -> None:
    engine = ByHand()
    engine.script(["One,", " two."])
    async with serving(tmp_path / "s", engine) as running, chatting(running.url, tmp_path) as terminal:
        await terminal.says("Count.")
        await engine.requested.wait()
        engine.step()
        await terminal.shows("One,")
        terminal.types("And th")
        engine.step(2)
        await terminal.shows("> And th")
        assert "One, two." in terminal.rows
        terminal.enters("en?")
        await terminal.shows("> And then?")


async def test_the_conversation_that_is_open_is_named_and_shown(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script("It is **noted**.")
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


async def test_a_conversation_is_deleted_only_when_that_is_confirmed(
    running: InProcessService, tmp_path: Path
) -> None:
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.says("About trees.")
        await terminal.prompts()
        for answer, times in (("n", 0), ("y", 1)):
            terminal.enters("/delete")
            await terminal.shows_question("Delete “About trees.” for good? [y/n] ")
            terminal.enters(answer)
            await terminal.prompts()
            assert terminal.text.count("It is deleted.") == times
        await leaves(terminal)


async def test_an_unknown_command_is_answered_here(running: InProcessService, tmp_path: Path) -> None:
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.says("/hlep")
        await terminal.shows("did you mean /help?")
        await terminal.prompts()
        terminal.types("/re\t")
        await terminal.shows("/retry")
        terminal.types(CTRL_C)
        await leaves(terminal)
    assert running.engine.requests == []


@pytest.mark.parametrize(("options", "environ"), [(("--plain", "--no-history"), {}), ((), {"TERM": "dumb"})])
async def test_replies_are_shown_as_they_are_where_that_is_wanted_or_the_terminal_can_do_little(
    options: tuple[str, ...], environ: dict[str, str], running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script("# Good *day*.\x1b[31m\n")
    async with chatting(running.url, tmp_path, *options, **environ) as terminal:
        await terminal.says("Hello.")
        await terminal.shows("# Good *day*.\\x1b[31m")
        # a dumb terminal's prompt is shown before its keys are read one by one: Ctrl-D may come too early
        await terminal.says("/quit")
        assert await terminal.exit_code() == 0
    assert (tmp_path / "midstream" / "chat-history").exists() is ("--no-history" not in options)


async def test_a_terminal_may_change_its_size_while_a_reply_is_written(tmp_path: Path) -> None:
    engine = ByHand()
    engine.script(["Some words that are", " shown in a row,", " and more."])
    async with serving(tmp_path / "s", engine) as running, chatting(running.url, tmp_path) as terminal:
        await terminal.says("Speak.")
        await engine.requested.wait()
        engine.step()
        await terminal.shows("that are")
        terminal.resizes(100, 30)
        engine.step(3)
        await terminal.shows("Some words that are shown in a row, and more.")
        await leaves(terminal)


async def test_ctrl_c_takes_back_what_was_typed_also_where_it_comes_as_a_signal_or_leaves(
    running: InProcessService, tmp_path: Path
) -> None:
    """As while completions are listed above the prompt: the terminal is the system's for that moment."""
    async with chatting(running.url, tmp_path) as terminal:
        await terminal.prompts()
        terminal.types("/re")
        await terminal.shows("> /re")
        terminal.interrupts()
        await terminal.prompts()
        terminal.types(CTRL_C)  # nothing is typed: it leaves
        assert await terminal.exit_code() == 0
        assert terminal.text.rstrip().endswith("Bye.")


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
        terminal.types("Hel")
        await terminal.shows("> Hel")
        cut(running)  # what is told at the prompt is above it
        await terminal.shows("[connected again]\n> Hel")
        terminal.enters("lo.")
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


def without_line_editing(address: str, *options: str) -> tuple[str, ...]:
    """A chat whose environment has only what the client needs."""
    program = "import sys; sys.modules['prompt_toolkit'] = None; from midstream.__main__ import main; main()"
    return (sys.executable, "-c", program, address, *options)


async def test_the_client_alone_chats_plainly_denies_calls_and_names_what_is_missing(
    tooled: InProcessService, tmp_path: Path
) -> None:
    tooled.engine.script("Good *day*.")
    tooled.engine.script(["I ask.", Call("ask_pay")])
    tooled.engine.script(["Not paid."])
    async with chatting(tooled.url, tmp_path, columns=300, run=without_line_editing) as terminal:
        await terminal.shows('pip install "midstream[terminal]"')
        assert "prompt_toolkit is not installed" in terminal.text
        terminal.enters("Hello.")
        await terminal.shows("Good *day*.")
        terminal.enters("Pay.")
        await terminal.shows("Not paid.")
        why = 'prompt_toolkit is not installed (pip install "midstream[terminal]")'
        assert f"ask_pay needs approval, but {why}: denied." in terminal.text
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0
