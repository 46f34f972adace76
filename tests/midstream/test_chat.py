"""The terminal client in a real terminal: Ctrl-C is the interrupt."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import midstream
from app.operations import key_file
from connections.wire.errors import Close, CloseCode
from engine.scripted.engine import ScriptedEngine
from engine.scripted.steps import Call, Thought
from midstream.chat import kept_client_id
from sessions.errors import NotFound, Refused, StoreDown
from sessions.service import Sessions, Told
from sessions.tools.functions.declared import tool
from tests.app.in_process import Running, serving
from tests.traced import traced

LONG = "word " * 20_000
CTRL_C, CTRL_D = "\x03", "\x04"
CLEARED = "\r\033[K"
PROMPT = "\033[1m>\033[0m "


class Deaf(ScriptedEngine):
    """An engine that does not confirm cancels."""

    def __init__(self) -> None:
        super().__init__(pace_s=0.005)
        self.asked = asyncio.Event()

    def _cancel(self, request_id: str) -> None:
        self.asked.set()


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """The terminal client runs in no process but those of this module."""
    with traced():
        yield


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CONFIG_HOME": str(home)}


class Terminal:
    """Somebody at a terminal in which `midstream chat` runs."""

    def __init__(self, keyboard: int, process: asyncio.subprocess.Process) -> None:
        self._keyboard = keyboard
        self._process = process
        self._shown = ""

    def types(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    async def shows(self, text: str) -> str:
        """Waits until a text is shown; gives what came before it."""
        loop = asyncio.get_running_loop()
        while text not in self._shown:
            piece = await loop.run_in_executor(None, os.read, self._keyboard, 65_536)
            self._shown += piece.decode(errors="replace")
        before, _, self._shown = self._shown.partition(text)
        return before

    async def exit_code(self) -> int:
        return await self._process.wait()


@asynccontextmanager
async def chatting(url: str, home: Path, *options: str) -> AsyncIterator[Terminal]:
    keyboard, screen = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app", "chat", url, *options),
        stdin=screen,
        stdout=screen,
        stderr=screen,
        env=environment(home),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # or Ctrl-C would be no signal
    )
    os.close(screen)
    try:
        yield Terminal(keyboard, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(keyboard)


async def piped(url: str, home: Path, lines: str, *options: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a chat whose lines come from a file."""
    file = home / "lines"
    file.write_text(lines)
    with file.open() as source:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app", "chat", url, *options),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(home),
        )
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_reply_is_stopped_in_its_middle_and_the_next_line_is_answered(
    running: Running, tmp_path: Path
) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(LONG)
    async with chatting(running.ws_url, tmp_path) as terminal:
        await terminal.shows("midstream-demo")
        terminal.types("Go on.\n")
        await terminal.shows("word word")
        terminal.types(CTRL_C)
        await terminal.shows("[cancelled]")
        running.engine.script("Here I am.")
        terminal.types("Still there?\n")
        await terminal.shows("Here I am.")
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0


async def test_the_wait_is_shown_until_text_comes(tmp_path: Path) -> None:
    engine = ScriptedEngine(reply="Here I am.", by_hand=True, max_batch=1)
    async with serving(tmp_path, engine) as running, midstream.connect(running.ws_url) as other:
        await other.send("I was first.")
        async with chatting(running.ws_url, tmp_path) as terminal:
            await terminal.shows(PROMPT)
            terminal.types("And I?\n")
            await terminal.shows("Waiting, you are next")
            engine.step(8)
            await terminal.shows(f"{CLEARED}Here")
            await terminal.shows(PROMPT)
            terminal.types(CTRL_D)
            assert await terminal.exit_code() == 0


async def test_ctrl_c_at_the_prompt_leaves(running: Running, tmp_path: Path) -> None:
    async with chatting(running.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types(CTRL_C)
        assert await terminal.exit_code() == 0


async def test_a_second_ctrl_c_leaves_where_the_first_is_not_confirmed(tmp_path: Path) -> None:
    engine = Deaf()
    engine.script(LONG)
    async with serving(tmp_path, engine) as running, chatting(running.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Go on.\n")
        await terminal.shows("word")
        terminal.types(CTRL_C)
        await engine.asked.wait()
        terminal.types(CTRL_C)
        assert await terminal.exit_code() == 0


async def test_a_conversation_is_shown_again_and_goes_on(running: Running, tmp_path: Path) -> None:
    running.engine.script("It is noted.")
    assert (await piped(running.ws_url, tmp_path, "My name is Ann.\n"))[0] == 0
    async with chatting(running.ws_url, tmp_path) as terminal:
        await terminal.shows("My name is Ann.")
        await terminal.shows("It is noted.")
        await terminal.shows(PROMPT)
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0


async def test_lines_may_come_from_a_file(running: Running, tmp_path: Path) -> None:
    running.engine.script("First answer.")
    running.engine.script("Zweite Antwört.")
    code, out, err = await piped(running.ws_url, tmp_path, "First?\n\n  \nZweite? ü")
    assert (code, err) == (0, "")
    assert "> First answer.\n" in out
    assert "Zweite Antwört.\n" in out
    assert running.engine.requests[1].messages[-1].content == "Zweite? ü"


async def test_a_refused_line_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path, max_content_chars=10) as running:
        running.engine.script("Short and good.")
        code, out, _ = await piped(running.ws_url, tmp_path, "This is too long.\nShort.\n")
    assert code == 0
    assert "[content_too_long: `content` has 17 characters; 10 are allowed.]" in out
    assert "Short and good." in out


async def test_a_reply_goes_on_over_a_lost_connection(running: Running, tmp_path: Path) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(f"{'word ' * 200}The end.")
    async with chatting(running.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Go on.\n")
        await terminal.shows("word")
        (connection,) = running.service._presence._registry.connections()
        connection.shut(Close(CloseCode.DRAIN, "The server stops; reconnect."))
        await terminal.shows("[disconnected (1012): The server stops; reconnect.; trying again]")
        await terminal.shows("[connected again]")
        await terminal.shows("The end.")


async def test_a_service_that_does_not_come_back_is_told(running: Running, tmp_path: Path) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(LONG)
    async with chatting(running.ws_url, tmp_path, "--patience-s", "0") as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Go on.\n")
        await terminal.shows("word")
        (connection,) = running.service._presence._registry.connections()
        connection.shut(Close(CloseCode.DRAIN, "The server stops; reconnect."))
        await terminal.shows("[disconnected]")
        await terminal.shows("disconnected (1012): The server stops; reconnect.")
        assert await terminal.exit_code() == 1


async def test_another_version_of_the_last_reply_and_message_may_be_had(
    running: Running, tmp_path: Path
) -> None:
    for text in ("One.", "Two.", "Three."):
        running.engine.script(text)
    code, out, _ = await piped(running.ws_url, tmp_path, "Hello.\n/again\n/edit Good day.\n")
    assert code == 0
    assert [text in out for text in ("One.", "Two.", "Three.")] == [True] * 3
    asked = [request.messages[-1].content for request in running.engine.requests]
    assert asked == ["Hello.", "Hello.", "Good day."]


async def test_the_last_reply_goes_on(running: Running, tmp_path: Path) -> None:
    running.engine.script("Good " * 600)
    running.engine.script("day.")
    code, out, _ = await piped(running.ws_url, tmp_path, "Hello.\n/continue\n")
    assert code == 0
    assert "[length]" in out
    assert "day." in out
    assert [message.role for message in running.engine.requests[-1].messages] == ["user", "assistant"]


async def test_the_key_is_asked_for_where_the_service_wants_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = key_file.add(keys, "ann")
    async with (
        serving(tmp_path, api_keys=str(keys)) as running,
        chatting(running.ws_url, tmp_path) as terminal,
    ):
        await terminal.shows("This service asks for a key: ")
        terminal.types(f"{key}\n")
        assert key not in await terminal.shows(PROMPT)
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0


async def test_a_wrong_key_is_told(tmp_path: Path) -> None:
    key_file.add(tmp_path / "keys", "ann")
    async with serving(tmp_path, api_keys=str(tmp_path / "keys")) as running:
        code, _, err = await piped(running.ws_url, tmp_path, "", "--key", "wrong")
    assert code == 1
    assert "unauthenticated" in err


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/v1/ws", "nonsense"])
async def test_a_server_that_is_not_there_is_told_in_a_line(url: str, tmp_path: Path) -> None:
    code, _, err = await piped(url, tmp_path, "")
    assert code == 1
    assert err.startswith(f"midstream: {url}: ")
    assert "Traceback" not in err


async def test_a_history_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    """It is not taken for a conversation that has not begun."""
    async with serving(tmp_path) as running:
        await running.service._readiness._store._client.shutdown(nosave=True)
        code, _, err = await piped(running.ws_url, tmp_path, "")
        assert code == 1
        assert "store_unavailable" in err


def test_the_client_id_is_kept_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without authentication it is what opens one's conversations."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = kept_client_id()
    assert len(first) == 32
    assert kept_client_id() == first
    assert (tmp_path / "midstream" / "client-id").stat().st_mode & 0o077 == 0


def pay(sum: int) -> str:  # noqa: A002 - the tool's own word
    """Pay somebody."""
    return f"{sum} paid\x1b[31m"


asking_pay = tool(approval="always", name="ask_pay")(lambda: "Paid.")
TOOLS = ("tests.midstream.test_chat:pay", "tests.midstream.test_chat:asking_pay")


@pytest.fixture
async def tooled(tmp_path: Path) -> AsyncIterator[Running]:
    """A service with two tools, one of which asks."""
    async with serving(tmp_path / "service", tools=TOOLS) as service:
        yield service


async def test_thoughts_are_a_line_and_calls_are_told_with_their_arguments_and_results(
    tooled: Running, tmp_path: Path
) -> None:
    tooled.engine._pace_s = 0.05
    tooled.engine.script([Thought("Secret"), Thought(" thought."), "I pay.", Call("pay", '{"sum": 5}')])
    tooled.engine.script(["All paid."])
    async with chatting(tooled.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Pay.\n")
        assert "Secret" not in await terminal.shows("Thought for a moment")
        await terminal.shows("I pay.\r\n")
        await terminal.shows('[pay {"sum": 5}: is about to run]')
        await terminal.shows('[pay {"sum": 5}: 5 paid\\x1b[31m]')
        await terminal.shows("All paid.")
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0


@pytest.mark.parametrize(("typed", "told"), [("y", "Paid."), ("n", "not allowed")])
async def test_a_call_that_asks_is_allowed_or_denied_at_the_terminal(
    tooled: Running, tmp_path: Path, typed: str, told: str
) -> None:
    tooled.engine.script([Call("ask_pay")])
    tooled.engine.script(["So be it."])
    async with chatting(tooled.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Pay.\n")
        await terminal.shows("Allow ask_pay {}? [y/n] ")
        terminal.types("perhaps\n")
        await terminal.shows("Allow ask_pay {}? [y/n] ")
        terminal.types(f"{typed}\n")
        await terminal.shows(f"[ask_pay {{}}: {told}]")
        await terminal.shows("So be it.")
        await terminal.shows(PROMPT)


def refuse_answers(monkeypatch: pytest.MonkeyPatch, *refusals: Refused) -> None:
    """The first answers to calls are refused, each for its reason."""
    answer_call, left = Sessions.answer_call, list(refusals)

    async def refused_first(self: Sessions, *asked: Any) -> Told:
        if left:
            raise left.pop(0)
        return await answer_call(self, *asked)

    monkeypatch.setattr(Sessions, "answer_call", refused_first)


async def test_a_decision_that_the_store_can_not_take_is_asked_for_again(
    tooled: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_answers(monkeypatch, StoreDown("Not now."), NotFound("No more."))
    tooled.engine.script([Call("ask_pay")])
    async with chatting(tooled.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Pay.\n")
        await terminal.shows("Allow ask_pay {}? [y/n] ")
        terminal.types("y\n")
        await terminal.shows("[store_unavailable: Not now.]")
        await terminal.shows("Allow ask_pay {}? [y/n] ")
        terminal.types("y\n")
        await terminal.shows("[not_found: No more.]")
        terminal.types(CTRL_C)  # the chat goes on, and so does what it waits for
        await terminal.shows("[ask_pay {}: stopped]")
        await terminal.shows(PROMPT)


async def test_what_was_typed_before_the_question_is_no_answer_to_it(tooled: Running, tmp_path: Path) -> None:
    tooled.engine.script([Call("ask_pay")])
    tooled.engine.script(["So be it."])
    tooled.engine.script(["You said something."])
    async with chatting(tooled.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Pay.\ny\n")
        await terminal.shows("Allow ask_pay {}? [y/n] ")
        terminal.types("n\n")
        await terminal.shows("[ask_pay {}: not allowed]")
        await terminal.shows("So be it.")
        await terminal.shows("You said something.")


async def test_an_approval_waits_for_who_comes_back_and_ctrl_c_gives_the_call_up(
    tooled: Running, tmp_path: Path
) -> None:
    tooled.engine.script(["I ask.", Call("ask_pay")])
    async with chatting(tooled.ws_url, tmp_path) as terminal:
        await terminal.shows(PROMPT)
        terminal.types("Pay.\n")
        await terminal.shows("[y/n] ")
    async with chatting(tooled.ws_url, tmp_path) as terminal:
        await terminal.shows("I ask.")
        await terminal.shows("Allow ask_pay {}? [y/n] ")
        terminal.types(CTRL_C)
        await terminal.shows("[ask_pay {}: stopped]")
        await terminal.shows("[cancelled]")
        await terminal.shows(PROMPT)


async def test_where_another_device_decides_first_the_terminal_shows_that(
    tooled: Running, tmp_path: Path
) -> None:
    tooled.engine.script([Call("ask_pay")])
    tooled.engine.script(["So be it."])
    options = ("--client-id", "ann", "--conversation", "default")
    async with (
        chatting(tooled.ws_url, tmp_path, *options) as terminal,
        midstream.connect(tooled.ws_url, client_id="ann", features=("tools",)) as other,
    ):
        await terminal.shows(PROMPT)
        terminal.types("Pay.\n")
        await terminal.shows("[y/n] ")
        reply = await other.rejoin()
        assert reply is not None
        (call,) = reply.calls
        await other.tool_decision(call.call_id, "deny", args_sha256=call.args_sha256)
        await terminal.shows("[ask_pay {}: not allowed]")
        await terminal.shows("So be it.")
        await terminal.shows(PROMPT)


async def test_in_a_pipe_a_call_that_asks_is_denied_and_said_so(tooled: Running, tmp_path: Path) -> None:
    tooled.engine.script(["I ask.", Call("ask_pay")])
    tooled.engine.script(["Not paid."])
    code, out, err = await piped(tooled.ws_url, tmp_path, "Pay.\n")
    assert code == 0
    assert "I ask.\nNot paid.\n" in out
    assert err == (
        "midstream: ask_pay asks for permission, and nobody can be asked where the input is no terminal: "
        "it is denied.\n"
    )
    assert tooled.engine.requests[1].messages[-1].content.startswith("The user did not allow this call.")


async def test_in_a_pipe_a_denial_that_the_store_can_not_take_is_said_again(
    tooled: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_answers(monkeypatch, StoreDown("Not now."))
    tooled.engine.script(["I ask.", Call("ask_pay")])
    tooled.engine.script(["Not paid."])
    code, out, _ = await piped(tooled.ws_url, tmp_path, "Pay.\n")
    assert code == 0
    assert "[store_unavailable: Not now.]" in out
    assert "Not paid.\n" in out


async def test_the_tools_are_listed_and_offered_unless_they_are_switched_off(
    tooled: Running, tmp_path: Path
) -> None:
    code, out, _ = await piped(tooled.ws_url, tmp_path, "One\n/tools\n/tools off\nTwo\n/tools on\nThree\n")
    assert code == 0
    assert "pay: Pay somebody.\n" in out
    assert "ask_pay (asks first)" in out
    offered = [[tool.name for tool in request.spec.tools] for request in tooled.engine.requests]
    assert [sorted(names) for names in offered] == [["ask_pay", "pay"], [], ["ask_pay", "pay"]]


async def test_a_model_that_can_not_call_is_offered_no_tools(tmp_path: Path) -> None:
    engine = ScriptedEngine(features=("format",), reply="Hello.")
    async with serving(tmp_path / "service", engine, tools=TOOLS) as running:
        code, out, _ = await piped(running.ws_url, tmp_path, "Hello?\n")
    assert code == 0
    assert "Hello.\n" in out
