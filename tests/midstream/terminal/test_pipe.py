"""A chat whose lines come from a file: replies on the output, all else on the errors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

import midstream
from app.keys import add_key
from engine.scripted import Call, ScriptedEngine
from midstream.terminal.session import HELP
from tests.app.in_process_service import InProcessService, serving
from tests.midstream.terminal.terminals import client_id_of, command, environment, piped
from tests.midstream.terminal.tools import TOOLS

LONG = "word " * 20_000
SLASH = " To send a message that starts with a slash, type two."


async def test_each_line_is_a_message_and_the_output_has_the_replies_alone(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script("# Good *day*.\n\nHow are\x1byou?")
    running.engine.script("Zweite Antwört.\n")
    result = await piped(running.url, tmp_path, "First?\n\n  \nZweite?\rü")
    assert result == (0, "# Good *day*.\n\nHow are\x1byou?\nZweite Antwört.\n", "")
    assert running.engine.requests[1].messages[-1].content == "Zweite?\rü"


async def test_a_pipe_begins_a_conversation_of_its_own_unless_one_is_named(
    running: InProcessService, tmp_path: Path
) -> None:
    for _ in range(2):
        await piped(running.ws_url, tmp_path, "Alone.\n")
    for _ in range(2):
        await piped(running.ws_url, tmp_path, "Together.\n", "--conversation", "c")
    assert [len(request.messages) for request in running.engine.requests] == [1, 1, 1, 3]


async def test_a_refused_line_is_an_error_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path, max_content_chars=10) as running:
        running.engine.script("Short and good.")
        result = await piped(running.ws_url, tmp_path, "This is too long.\nShort.\n")
    refusal = "[content_too_long: `content` has 17 characters; 10 are allowed.]"
    assert result == (1, "Short and good.\n", f"midstream: {refusal}\n")


async def test_a_reply_that_is_not_whole_is_an_error(running: InProcessService, tmp_path: Path) -> None:
    running.engine.script("Good " * 5_000)
    code, out, err = await piped(running.ws_url, tmp_path, "Hello.\n")
    assert (code, err) == (1, "midstream: the reply is incomplete: length\n")
    assert out.startswith("Good Good")


async def test_a_command_that_there_is_not_never_reaches_the_model(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine.script("It has accounts.")
    code, out, err = await piped(
        running.ws_url, tmp_path, "/hlep me\n/LIST\n/xyzzy\n/\n//etc/passwd has what?\n"
    )
    assert (code, out) == (1, "It has accounts.\n")
    hints = [line.partition(";")[2].removesuffix(SLASH) for line in err.splitlines()]
    assert hints == [" did you mean /help?", " did you mean /list?", *[" /help lists all commands."] * 2]
    assert [request.messages[-1].content for request in running.engine.requests] == ["/etc/passwd has what?"]


async def test_another_version_of_the_last_reply_and_message_may_be_had(
    running: InProcessService, tmp_path: Path
) -> None:
    for text in ("One.", "Two.", "Three."):
        running.engine.script(text)
    result = await piped(running.ws_url, tmp_path, "Hello.\n/retry\n/edit Good day.\n")
    assert result == (0, "One.\nTwo.\nThree.\n", "")
    requested = [request.messages[-1].content for request in running.engine.requests]
    assert requested == ["Hello.", "Hello.", "Good day."]


async def test_a_named_conversation_is_gone_on_with_by_a_command(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", ScriptedEngine(reply_tokens=2)) as running:
        running.engine.script("Good " * 3)
        running.engine.script("day.")
        await piped(running.ws_url, tmp_path, "Hello.\n", "--conversation", "c")
        result = await piped(running.ws_url, tmp_path, "/continue\n", "--conversation", "c")
        assert result == (0, "day.\n", "")
        assert [message.role for message in running.engine.requests[-1].messages] == ["user", "assistant"]


@pytest.mark.parametrize("command", ["/retry", "/continue", "/edit Hello.", "/open", "/open 7", "/model gtp"])
async def test_a_command_that_lacks_something_says_so(
    command: str, running: InProcessService, tmp_path: Path
) -> None:
    code, out, err = await piped(running.ws_url, tmp_path, f"{command}\n")
    assert (code, out) == (1, "")
    assert err.startswith("midstream: ")
    assert running.engine.requests == []


async def test_conversations_are_listed_and_opened_and_a_model_is_chosen(
    running: InProcessService, tmp_path: Path
) -> None:
    await piped(running.ws_url, tmp_path, "About trees.\n/new\nAbout stones.\n")
    code, out, err = await piped(
        running.ws_url, tmp_path, "/list\n/open 2\n/model midstream-demo\n/model\nMore.\n"
    )
    assert (code, err) == (0, "")
    rows = "   1  “About stones.”, 2 messages, just now\n   2  “About trees.”, 2 messages, just now\n"
    assert out.startswith(f"{rows}* midstream-demo\n")
    assert running.engine.requests[-1].messages[0].content == "About trees."


async def test_the_help_is_written(running: InProcessService, tmp_path: Path) -> None:
    code, out, _ = await piped(running.ws_url, tmp_path, "/help\n/quit\nNot read.\n")
    assert code == 0
    assert [usage for usage in HELP if f"{usage}  " not in out] == []
    assert max(map(len, out.splitlines())) <= 100
    assert running.engine.requests == []


async def test_a_wrong_key_and_no_server_are_told_in_a_line(tmp_path: Path) -> None:
    """Each reason: `test_messages.py`."""
    code, out, err = await piped("http://127.0.0.1:1", tmp_path, "")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("midstream: Nothing listens at 127.0.0.1:1; ")
    add_key(tmp_path / "keys", "ann")
    async with serving(tmp_path, api_keys=str(tmp_path / "keys")) as running:
        code, out, err = await piped(running.ws_url, tmp_path, "", "--key", "wrong")
    assert (code, out) == (1, "")
    assert "unauthenticated" in err


async def test_a_history_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    """It is not taken for a conversation that has not begun."""
    async with serving(tmp_path) as running:
        await running.service._readiness._store._client.client_pause(60_000)
        code, _, err = await piped(running.ws_url, tmp_path, "")
        assert code == 1
        assert "store_unavailable" in err


async def test_whoever_reads_the_output_may_leave(running: InProcessService, tmp_path: Path) -> None:
    running.engine._pace_s = 0.001
    running.engine.script(LONG)
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *command(running.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=write,
        stderr=asyncio.subprocess.PIPE,
        env=environment(tmp_path),
    )
    os.close(write)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"Go on.\n")
    assert await asyncio.to_thread(os.read, read, 4) == b"word"
    os.close(read)
    assert await process.wait() == 1
    assert await process.stderr.read() == b""


async def test_ctrl_c_stops_the_reply_and_a_second_one_the_chat(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine._pace_s = 0.005
    running.engine.script(LONG)
    process = await asyncio.create_subprocess_exec(
        *command(running.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"Go on.\n")
    text = await process.stdout.readexactly(5)
    process.send_signal(signal.SIGINT)
    assert await process.stderr.readline() == b"midstream: the reply is incomplete: cancelled\n"
    process.send_signal(signal.SIGINT)
    text += await process.stdout.read()
    assert await process.wait() == 130
    async with midstream.connect(running.ws_url, client_id=client_id_of(tmp_path, running.url)) as ann:
        (row,) = await ann.conversations()
        _, kept = await ann.history(row["conversation_id"])
    assert text.decode().rstrip("\n") == kept["content"].rstrip("\n")


def test_the_library_imports_nothing_of_the_terminal() -> None:
    look = "import sys, midstream; print([name for name in sys.modules if name.startswith('midstream.terminal')])"
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


async def test_a_call_that_asks_is_denied_and_said_so(tmp_path: Path) -> None:
    async with serving(tmp_path / "service", tools=TOOLS) as running:
        running.engine.script(["I ask.", Call("ask_pay")])
        running.engine.script(["Not paid."])
        code, out, err = await piped(running.ws_url, tmp_path, "Pay.\n")
    assert (code, out) == (0, "I ask.\nNot paid.\n")
    assert err == ("midstream: ask_pay needs approval, but the input is not a terminal: denied.\n")
    assert running.engine.requests[1].messages[-1].content.startswith("The user did not allow this call.")


@pytest.mark.parametrize(("features", "offered"), [(("tools",), ["ask_pay", "pay"]), ((), [])])
async def test_the_services_tools_are_offered_to_a_model_that_can_call(
    features: tuple[str, ...], offered: list[str], tmp_path: Path
) -> None:
    engine = ScriptedEngine(features=features, reply="Hello.")
    async with serving(tmp_path / "service", engine, tools=TOOLS) as running:
        result = await piped(running.ws_url, tmp_path, "Hello?\n")
    assert result == (0, "Hello.\n", "")
    assert sorted(tool.name for tool in engine.requests[0].spec.tools) == offered


HOSTILE = "Full.\x1b]0;x\x07\x1b[7m\x9b2J\u202eyb"


async def hang_up(connection: ServerConnection) -> None:
    await connection.recv()
    await connection.close(4403, HOSTILE)


async def test_no_word_of_a_server_commands_the_terminal_by_the_errors(tmp_path: Path) -> None:
    async with serve(hang_up, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        code, out, err = await piped(f"127.0.0.1:{port}", tmp_path, "Hello.\n", "--reconnect-s", "0")
    assert (code, out) == (1, "")
    assert "Full." in err
    assert err.rstrip("\n").isprintable()
