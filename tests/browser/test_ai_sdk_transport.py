"""The transport for `useChat` beside a server that does what seldom happens, word by word: what its reader gets then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import delta, resume, send_history

CHAT = {"conversation_id": "c"}
ATTACHED = {"id": "a" * 64, "media_type": "image/png", "width": 3, "height": 2}
SET_UP = """
    async () => {
      const { ChatClient } = await import("/static/client/chat-client.js");
      const { Backoff } = await import("/static/client/backoff.js");
      const { MidstreamChatTransport } = await import("/static/client/ai-sdk.js");
      const url = `${location.origin.replace("http", "ws")}/v1/ws`;
      const backoff = new Backoff({ baseMs: 1, capMs: 1 });
      window.client = new ChatClient({ url, features: ["reasoning", "tools"], backoff, session: sessionStorage });
      window.transport = new MidstreamChatTransport({ client: window.client });
      window.stopping = new AbortController();
      const read = async (stream, chunks) => {
        const reader = stream.getReader();
        for (;;) {
          const { done, value } = await reader.read();
          if (done) return;
          chunks.push(value);
        }
      };
      window.collect = (asked) => {
        const chunks = [];
        const whole = asked.then((stream) => (stream === null ? null : read(stream, chunks).then(() => chunks)));
        window.told = whole.catch((error) => [...chunks, { type: "thrown", message: error.message }]);
      };
      window.client.connect();
    }
"""
SENT = """
    ([messages, more]) => window.collect(
      window.transport.sendMessages({
        ...{ trigger: "submit-message", chatId: "c", messages, abortSignal: window.stopping.signal }, ...more,
      }),
    )
"""
RESUMED = "() => window.collect(window.transport.reconnectToStream({ chatId: 'c' }))"
READ = "() => void (window.told = window.transport.messages('c').catch((error) => error.code))"


class ChatFrontend:
    """A front end with one chat."""

    def __init__(self, page: ChatPage, conn: PageConnection) -> None:
        self._page = page
        self.conn = conn

    async def send(self, *messages: dict[str, Any], **more: Any) -> None:
        """Begins a request of `useChat`."""
        await self._page.client(SENT, [messages, more])

    async def accepted(self, text: str = "Hello?", **more: Any) -> dict[str, Any]:
        """Sends a message, which is accepted as turn `t` with number 1."""
        await self.send(user(text), **more)
        send = await self.conn.receive("send")
        await self.conn.accept(send, turn="t", seq=1)
        return send

    async def begin(self, script: str) -> None:
        await self._page.client(script)

    async def outcome(self) -> Any:
        """What came of the last request, once that has ended."""
        return await self._page.client("window.told")


@pytest_asyncio.fixture(loop_scope="session")
async def front(chat: ChatPage, peer: FakeServer) -> ChatFrontend:
    await chat.page.goto(f"{peer.url}/static/theme-early.js")  # a page with nothing on it
    await chat.client(SET_UP)
    return ChatFrontend(chat, await peer.conn())


def user(text: str, name: str = "m1") -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": text}]}


def history_message(
    name: str, role: str, content: str, parent: str | None = None, **more: Any
) -> dict[str, Any]:
    """A message of the history."""
    ids = {"message_id": name, "turn_id": f"turn of {name}", "parent_id": parent}
    return {**ids, "role": role, "content": content, "status": "complete", "created_at": 1} | more


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def calling(conn: PageConnection, *names: str) -> list[dict[str, Any]]:
    """A reply that calls these tools of the client; gives their parts of the message, answered."""
    send = await conn.receive("send")
    await conn.accept(send, turn="t", seq=1)
    where = {"conversation_id": "c", "turn_id": "t"}
    requested = {"name": "weather", "args": "{}", "args_sha256": "0" * 64, "where": "client", "needs": "none"}
    for index, name in enumerate(names):
        await conn.send_frame(
            "tool_call", seq=index + 2, call_id=name, index=index, off=0, tokens=1, **requested, **where
        )
    await conn.finish(send, turn="t", seq=len(names) + 2, reason="tools", chars=0, open=names)
    part = {"type": "tool-weather", "state": "output-available", "input": {}, "output": "grey"}
    return [part | {"toolCallId": name} for name in names]


async def answer_calls(front: ChatFrontend, *names: str) -> None:
    """Sends the results of a reply's calls."""
    await front.send(user("Weather?"))
    parts = await calling(front.conn, *names)
    requested = await front.outcome()
    await front.send({"id": requested[0]["messageId"], "role": "assistant", "parts": parts})


async def settle(conn: PageConnection, name: str, *, seq: int, late: bool) -> None:
    """Takes the result of a call. `late`: it is confirmed before the change is told."""
    answer = await conn.receive("tool_result")
    assert answer["call_id"] == name
    call = {"conversation_id": "c", "call_id": name, "state": "done"}
    frames = [
        ("tool_state", {"turn_id": "t", "seq": seq, "content": "grey"}),
        ("tool_ack", {"ref": answer["ref"]}),
    ]
    for kind, fields in reversed(frames) if late else frames:
        await conn.send_frame(kind, **call, **fields)


async def follow(conn: PageConnection, *, seq: int) -> None:
    """The reply to the results."""
    send = {"conversation_id": "c", "client_msg_id": "x"}
    await conn.accept(send, turn="t2", seq=seq, follows="t", message_id="t-reply")
    await delta(conn, CHAT, "Rain.", turn="t2", off=0, seq=seq + 1)
    await conn.finish(send, turn="t2", seq=seq + 2, reason="stop", chars=5, follows="t")


@pytest.mark.parametrize("late", [False, True])
async def test_several_calls_are_answered_at_once_and_the_message_goes_on(
    front: ChatFrontend, *, late: bool
) -> None:
    """The change of one call ends no message whose other answers are on their way."""
    await front.send(user("Weather?"))
    parts = await calling(front.conn, "c1", "c2")
    requested = await front.outcome()
    assert requested[-1] == {"type": "finish", "finishReason": "tool-calls"}
    await front.send(user("Weather?"), {"id": requested[0]["messageId"], "role": "assistant", "parts": parts})
    await settle(front.conn, "c1", seq=5, late=late)
    await settle(front.conn, "c2", seq=6, late=late)
    await follow(front.conn, seq=7)
    chunks = await front.outcome()
    assert [chunk["type"] for chunk in chunks].count("tool-output-available") == 2
    assert (text_of(chunks), chunks[-1]) == ("Rain.", {"type": "finish", "finishReason": "stop"})


async def test_an_answer_that_is_refused_ends_its_request_and_leaves_no_stop_behind(
    front: ChatFrontend, chat: ChatPage
) -> None:
    await answer_calls(front, "c1")
    await front.conn.refuse(await front.conn.receive("tool_result"), "conflict", message="Too late.")
    assert await front.outcome() == [{"type": "thrown", "message": "Too late."}]
    await abort(chat, front.conn)
    assert front.conn.kept("cancel") == []


async def test_a_reply_of_which_a_part_is_missing_does_not_look_whole(front: ChatFrontend) -> None:
    send = await front.accepted()
    await delta(front.conn, CHAT, "Good", turn="t", off=0, seq=2)
    await delta(front.conn, CHAT, "evening.", turn="t", off=9, seq=3)
    await front.conn.finish(send, turn="t", seq=4, reason="stop", chars=17)
    chunks = await front.outcome()
    assert (text_of(chunks), chunks[-1]["type"]) == ("Good", "error")
    assert "reload the chat" in chunks[-1]["errorText"]


async def test_a_history_that_is_refused_is_no_endless_wait(front: ChatFrontend) -> None:
    await front.begin(READ)
    await front.conn.refuse(await front.conn.receive("history"), "forbidden")
    assert await front.outcome() == "forbidden"


async def test_a_chat_that_is_opened_while_there_is_no_connection_is_read_on_the_next_one(
    front: ChatFrontend, chat: ChatPage, peer: FakeServer
) -> None:
    """Though the new connection resumes it: then its history does not come by itself."""
    send = await front.accepted()
    await delta(front.conn, CHAT, "Good", turn="t", off=0, seq=2)
    await chat.page.wait_for_function("() => window.client.repliesOf('c')[0].text === 'Good'")
    await lose(front, chat)
    await front.begin(RESUMED)
    conn = await peer.conn()
    await resume(conn, after=2, live="t")
    await send_history(conn, "Hello?", "Good", seq=2, status="running")
    await delta(conn, CHAT, " day.", turn="t", off=4, seq=3)
    await conn.finish(send, turn="t", seq=4, reason="stop", chars=9)
    chunks = await front.outcome()
    assert (text_of(chunks), chunks[-1]["type"]) == ("Good day.", "finish")


async def test_a_message_is_edited_while_its_reply_is_written(front: ChatFrontend) -> None:
    """It is that message, and no new one behind it, even if it is accepted only now."""
    await front.send(user("Hello?"))
    send = await front.conn.receive("send")
    await front.send(user("Goodbye?"), messageId="m1")
    requested = await front.conn.receive("history")
    await front.conn.accept(send, turn="t", seq=1)
    reply = history_message("t-reply", "assistant", "Good", "t-user", turn_id="t", status="running")
    messages = [history_message("t-user", "user", "Hello?", turn_id="t"), reply]
    page = {"epoch": "e", "seq": 1, "has_more": False, "messages": messages}
    await front.conn.answer(requested, "history", **page)
    assert (await front.conn.receive("edit"))["message_id"] == "t-user"


async def test_an_edit_finds_its_message_however_far_back_and_keeps_its_images(
    front: ChatFrontend, peer: FakeServer
) -> None:
    names = [f"msg{number}" for number in range(450)]
    roles = ("user", "assistant")
    history = [
        history_message(name, roles[number % 2], "", names[number - 1] if number else None)
        for number, name in enumerate(names)
    ]
    peer.histories["c"] = [history[0] | {"attachments": [ATTACHED]}, *history[1:]]
    await front.send(user("Goodbye?", "msg0"), messageId="msg0")
    edit = await front.conn.receive("edit")
    assert (edit["message_id"], edit["attachments"]) == ("msg0", [ATTACHED["id"]])
    await front.send(user("", "msg0"), messageId="turn of msg1", trigger="regenerate-message")
    assert (await front.conn.receive("regenerate"))["message_id"] == "msg1"


async def test_a_reply_that_ends_between_a_page_and_its_resumption_is_told(
    front: ChatFrontend, peer: FakeServer
) -> None:
    """A page begins with what `messages` gives, which leaves it out, and resumes it a moment later."""
    requested, reply = (
        history_message("q", "user", "Hello?"),
        history_message("r", "assistant", "Good", "q", status="running"),
    )
    peer.histories["c"] = [requested, reply]
    await front.begin(READ)
    assert [message["id"] for message in await front.outcome()] == ["q"]
    peer.histories["c"] = [requested, reply | {"content": "Good day.", "status": "complete"}]
    await front.begin(RESUMED)
    chunks = await front.outcome()
    assert chunks[0] == {"type": "start", "messageId": "turn of r"}
    assert (text_of(chunks), chunks[-1]) == ("Good day.", {"type": "finish", "finishReason": "stop"})
    await front.begin(RESUMED)
    assert await front.outcome() is None


async def another(conn: PageConnection, chat: ChatPage) -> dict[str, Any]:
    """A turn of another device in the same chat, seen here."""
    send = {"conversation_id": "c", "client_msg_id": "theirs"}
    await conn.accept(send, turn="theirs", seq=1)
    await delta(conn, CHAT, "Good", turn="theirs", off=0, seq=2)
    await chat.page.wait_for_function("() => window.client.repliesOf('c')[0]?.text === 'Good'")
    return send


async def continue_on_other_device(conn: PageConnection, chat: ChatPage, *, seq: int) -> None:
    """The other device's turn goes on, and is shown."""
    await delta(conn, CHAT, " day.", turn="theirs", off=4, seq=seq)
    await chat.page.wait_for_function("() => window.client.repliesOf('c')[0]?.visible === 'Good day.'")


async def until_heard(chat: ChatPage, conn: PageConnection) -> None:
    """Waits until all that the page has said was heard."""
    await chat.client("() => void window.client.ping()")
    await conn.receive("ping")


async def abort(chat: ChatPage, conn: PageConnection) -> None:
    """Aborts the last request, and waits until all that it makes the page say was heard."""
    await chat.client("() => window.stopping.abort()")
    await until_heard(chat, conn)


async def test_an_abort_before_its_turn_has_a_name_ends_that_turn_alone(
    front: ChatFrontend, chat: ChatPage
) -> None:
    await another(front.conn, chat)
    await front.send(user("Hello?"), body={"onBusy": "enqueue"})
    send = await front.conn.receive("send")
    await abort(chat, front.conn)
    (cancel,) = front.conn.kept("cancel")
    assert (cancel["client_msg_id"], cancel["seen_off"]) == (send["client_msg_id"], 0)
    assert "turn_id" not in cancel
    await front.conn.send_frame("cancelled", ref=cancel["ref"], turn_id="t", already=False)
    await front.conn.accept(send, turn="t", seq=3, queue_position=1)
    await front.conn.finish(send, turn="t", seq=4, reason="cancelled", chars=0)
    await continue_on_other_device(front.conn, chat, seq=5)
    assert await chat.client("() => window.client.repliesOf('c').map((reply) => reply.stopping)") == [False]
    assert await front.outcome() == []


async def lose(front: ChatFrontend, chat: ChatPage) -> None:
    """Loses the connection."""
    await front.conn.drop()
    await chat.page.wait_for_function("() => window.client.connection.state !== 'connected'")


async def back(front: ChatFrontend, chat: ChatPage, peer: FakeServer) -> PageConnection:
    """Loses the connection, does nothing meanwhile, and gives the next one."""
    await lose(front, chat)
    return await peer.conn()


async def test_an_abort_while_a_message_waits_for_a_connection_takes_it_back(
    front: ChatFrontend, chat: ChatPage, peer: FakeServer
) -> None:
    """Nothing is sent on the next one: no message, and no stop that could mean another turn."""
    await another(front.conn, chat)
    await lose(front, chat)
    await front.send(user("Hello?"))
    assert await chat.client("() => (window.stopping.abort(), window.told)") == []
    conn = await peer.conn()
    await resume(conn, after=2, live="theirs")
    await continue_on_other_device(conn, chat, seq=3)
    await until_heard(chat, conn)
    assert conn.kept("send") + conn.kept("cancel") == []


@pytest.mark.parametrize("arrived", [True, False])
async def test_an_abort_whose_connection_is_lost_is_said_again_and_the_message_is_not_sent_anew(
    front: ChatFrontend, chat: ChatPage, peer: FakeServer, *, arrived: bool
) -> None:
    """`arrived`: whether the server had the message. If so, its turn is told as any that was stopped."""
    await another(front.conn, chat)
    await front.send(user("Hello?"), body={"onBusy": "enqueue"})
    send = await front.conn.receive("send")
    await abort(chat, front.conn)
    conn = await back(front, chat, peer)
    await resume(conn, after=2, live="theirs")
    cancel = await conn.receive("cancel")
    assert cancel["client_msg_id"] == send["client_msg_id"]
    await conn.send_frame("cancelled", ref=cancel["ref"], turn_id="t" if arrived else None, already=False)
    if arrived:
        assert await conn.receive("send") == send  # under its id, which makes one turn: that is told now
        await conn.accept(send, turn="t", seq=3, duplicate=True)
        await conn.finish(send, turn="t", seq=3, reason="cancelled", chars=0)
    await continue_on_other_device(conn, chat, seq=4 if arrived else 3)
    assert await chat.client("() => window.client.repliesOf('c').length") == 1
    await until_heard(chat, conn)
    assert conn.kept("send") + conn.kept("cancel") == []


async def test_a_stop_that_was_answered_is_not_said_again(
    front: ChatFrontend, chat: ChatPage, peer: FakeServer
) -> None:
    """It names its turn and what was told. The turn's end was lost with the connection; another turn runs by then."""
    send = await front.accepted()
    await delta(front.conn, CHAT, "Good", turn="t", off=0, seq=2)
    await chat.page.wait_for_function("() => window.client.repliesOf('c')[0].text === 'Good'")
    await abort(chat, front.conn)
    (cancel,) = front.conn.kept("cancel")
    assert (cancel["turn_id"], cancel["conversation_id"], cancel["seen_off"]) == ("t", "c", 4)
    assert '"seen_off":4' in (await chat.client("() => JSON.stringify(sessionStorage)")).replace("\\", "")
    assert text_of(await front.outcome()) == "Good"
    await front.conn.send_frame("cancelled", ref=cancel["ref"], turn_id="t", already=False)
    await front.conn.send_frame("error", code="odd", message="Seen.", retryable=False)
    conn = await back(front, chat, peer)
    await resume(conn, after=2, live="theirs")
    await conn.finish(send, turn="t", seq=3, reason="cancelled", chars=4)
    await conn.accept({"conversation_id": "c", "client_msg_id": "theirs"}, turn="theirs", seq=4)
    await chat.page.wait_for_function("() => window.client.repliesOf('c')[0]?.turnId === 'theirs'")
    await until_heard(chat, conn)
    assert conn.kept("cancel") == []


async def test_an_abort_while_calls_are_answered_ends_the_turn_that_goes_on(
    front: ChatFrontend, chat: ChatPage
) -> None:
    """The reply that called is named, with all of its text: of the turn behind its calls nothing was seen."""
    await answer_calls(front, "c1", "c2")
    ref = (await front.conn.receive("tool_result"))["ref"]
    await abort(chat, front.conn)
    (cancel,) = front.conn.kept("cancel")
    assert (cancel["turn_id"], cancel["seen_off"]) == ("t", 0)
    await front.conn.send_frame("tool_ack", ref=ref, conversation_id="c", call_id="c1", state="done")
    assert [chunk["type"] for chunk in await front.outcome()] == ["thrown"]
    await front.conn.send_frame("cancelled", ref=cancel["ref"], turn_id="t2", already=False)
    await follow_cut(front.conn)
    await chat.page.wait_for_function("() => window.client.repliesOf('c').length === 0")
    assert front.conn.kept("tool_result") == []


async def follow_cut(conn: PageConnection) -> None:
    """The turn behind the calls, cancelled before its first word."""
    send = {"conversation_id": "c", "client_msg_id": "x"}
    await conn.accept(send, turn="t2", seq=5, follows="t", message_id="t-reply")
    await conn.finish(send, turn="t2", seq=6, reason="cancelled", chars=0, follows="t")


async def test_a_stop_while_calls_are_answered_counts_on_the_next_connection(
    front: ChatFrontend, chat: ChatPage, peer: FakeServer
) -> None:
    """The history shows the turn that goes on from the answers: the reply that called is no longer live here then."""
    await answer_calls(front, "c1")
    await front.conn.receive("tool_result")
    await abort(chat, front.conn)
    conn = await back(front, chat, peer)
    await conn.refuse(await conn.receive("resume"), "not_found")
    called = history_message("t-reply", "assistant", "", "t-user", turn_id="t")
    going = history_message("t2-reply", "assistant", "Ra", "t-reply", turn_id="t2", status="running")
    page = {"epoch": "e", "seq": 7, "has_more": False, "messages": [called, going]}
    await conn.answer(await conn.receive("history"), "history", **page)
    cancel = await conn.receive("cancel")
    assert (cancel["turn_id"], cancel["seen_off"]) == ("t", 0)


WATCHED = """
    () => {
      window.refs = [];
      window.client.addEventListener("reply", ({ detail: { reply } }) => {
        if (reply.state === "sending") window.refs.push(new WeakRef(reply));
      });
    }
"""
MANY = """
    async (count) => {
      for (let number = 0; number < count; number += 1) {
        const messages = [{ id: `m${number}`, role: "user", parts: [{ type: "text", text: "Hello?" }] }];
        const stream = await window.transport.sendMessages({ trigger: "submit-message", chatId: "c", messages });
        for (const reader = stream.getReader(); !(await reader.read()).done; );
      }
    }
"""
HELD = "() => window.refs.filter((ref) => ref.deref() !== undefined).length"


async def answer(conn: PageConnection, count: int) -> None:
    """Answers so many messages."""
    for number in range(count):
        send = await conn.receive("send")
        await conn.accept(send, turn=f"t{number}", seq=number * 2 + 1)
        await conn.finish(send, turn=f"t{number}", seq=number * 2 + 2, reason="stop", chars=0)


async def test_replies_that_have_ended_are_let_go_of_and_the_newest_thousand_messages_are_found_again(
    front: ChatFrontend, chat: ChatPage, peer: FakeServer
) -> None:
    await chat.client(WATCHED)
    await asyncio.gather(chat.client(MANY, 1001), answer(front.conn, 1001))
    session = await chat.page.context.new_cdp_session(chat.page)
    await session.send("HeapProfiler.collectGarbage")
    assert len(await chat.client("() => window.refs")) == 1001
    assert await chat.client(HELD) <= 1
    roles = (("user", "q"), ("assistant", "r"))
    peer.histories["c"] = [
        history_message(f"{name}{number}", role, "", turn_id=f"t{number}")
        for number in (0, 1)
        for role, name in roles
    ]
    await front.send(user("Goodbye?", "m1"), messageId="m1")
    assert (await front.conn.receive("edit"))["message_id"] == "q1"
    await front.send(user("Goodbye?", "m0"), messageId="m0")
    assert (await front.conn.receive("send"))["content"] == "Goodbye?"
