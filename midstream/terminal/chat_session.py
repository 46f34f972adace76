"""A chat: lines in, replies out, and commands that are answered here."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from typing import Any

from midstream.client import Client
from midstream.errors import ClientError, Disconnected, Refused
from midstream.reply import Reply
from midstream.terminal.commands import Command, Message, UnknownCommand, help_lines, read
from midstream.terminal.conversations import Conversations
from midstream.terminal.texts import model_named, offered_tools, requested_model, tool_lines
from midstream.terminal.user_interface import UserInterface

Frame = dict[str, Any]


class ChatSession:
    """One terminal or pipe, with one conversation at a time."""

    def __init__(self, client: Client, ui: UserInterface, conversation_id: str) -> None:
        self._client = client
        self._ui = ui
        self._conversations = Conversations(client, ui, conversation_id)
        self._offers = True
        self._params: Frame = {}  # of the next message; a model stays
        self._reply: Reply | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the open conversation has a message."""
        return self._conversations.last.message_id is not None

    @property
    def conversation_id(self) -> str:
        """The open conversation."""
        return self._conversations.open_id

    async def run(self) -> bool:
        """Read and answer until the user leaves; return whether that was by Ctrl-C. Raises Refused, Disconnected."""
        talking = asyncio.create_task(self._talk())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt, talking)
        try:
            await asyncio.wait((talking,))
        finally:
            loop.remove_signal_handler(signal.SIGINT)
        if not talking.cancelled():
            talking.result()
        return talking.cancelled()

    def _interrupt(self, talking: asyncio.Task[None]) -> None:
        """Stop the reply; if there is none, or it is being stopped, clear the typed line, or leave."""
        if self._reply is None or self._stopping is not None:
            if not self._ui.clear_input():
                talking.cancel()
        else:
            self._stopping = asyncio.create_task(self._stop(self._reply))

    async def _stop(self, reply: Reply) -> None:
        self._ui.hold()
        try:
            await reply.cancel()
        except Disconnected:
            pass  # the reader of the reply gets the same error
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            self._ui.resume()

    async def _talk(self) -> None:
        await self._conversations.show()
        await self._rejoin()
        while (line := await self._ui.line()) is not None:
            match read(line):
                case Message(content):
                    await self._show_reply_to(self._sent(content))
                case Command("quit"):
                    return
                case Command(name, rest):
                    await self._carry_out(name, rest)
                case UnknownCommand() as unknown:
                    self._ui.fail(str(unknown))
                case None:
                    pass

    async def _carry_out(self, name: str, rest: str) -> None:
        """Answer a command. Raises Disconnected."""
        commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "new": lambda _: self._new(),
            "list": self._conversations.show_list,
            "open": self._open,
            "search": self._conversations.search,
            "rename": self._conversations.rename,
            "delete": self._conversations.delete,
            "retry": self._retry,
            "continue": self._continue,
            "edit": self._edit,
            "model": self._model,
            "system": self._system,
            "tools": self._tools,
        }
        try:
            await commands[name](rest)
        except Refused as refused:
            self._ui.fail(f"[{refused}]")

    async def _help(self, _: str) -> None:
        self._ui.print_lines(*help_lines())

    async def _new(self) -> None:
        self._params = {}
        await self._conversations.new()

    async def _open(self, which: str) -> None:
        self._params = {}
        await self._conversations.open(which)
        await self._rejoin()

    async def _retry(self, _: str) -> None:
        if self._conversations.last.reply_id is None:
            self._ui.fail("There is no reply yet.")
        else:
            await self._show_reply_to(
                self._client.regenerate(self._conversations.last.reply_id, **self._how())
            )

    async def _continue(self, _: str) -> None:
        if self._conversations.last.reply_id is None:
            self._ui.fail("There is no reply yet.")
        else:
            before = self._conversations.last.text
            await self._show_reply_to(
                self._client.continue_reply(self._conversations.last.reply_id, **self._how()), before=before
            )

    async def _edit(self, text: str) -> None:
        if self._conversations.last.message_id is None:
            self._ui.fail("There is no message yet.")
        elif not text:
            self._ui.fail("What it should say is missing: /edit TEXT")
        else:
            await self._show_reply_to(
                self._client.edit(self._conversations.last.message_id, text, **self._how())
            )

    async def _model(self, name: str) -> None:
        models = self._client.ready["models"]
        names = [one for model in models for one in (model["name"], *model.get("aliases", ()))]
        if not name:
            named = self._params.get("model") or self._conversations.last.model or self._client.ready["model"]
            now = model_named(self._client.ready, named).get("name")
            self._ui.print_lines(
                *(f"{'*' if model['name'] == now else ' '} {model['name']}" for model in models)
            )
        elif name in names:
            self._params["model"] = name
            self._ui.note(f"{name} answers from now on.")
        else:
            near = get_close_matches(name, names, n=1)
            self._ui.fail(
                f"There is no model {name}; " + (f"did you mean {near[0]}?" if near else "/model lists them.")
            )

    async def _system(self, text: str) -> None:
        if text:
            self._params["system"] = "" if text == "off" else text
            self._ui.note("It holds from your next message on.")
        else:
            self._ui.print_lines(
                "/system TEXT gives the conversation a system prompt, /system off removes it."
            )

    async def _tools(self, word: str) -> None:
        if word in ("on", "off"):
            self._offers = word == "on"
        else:
            self._ui.print_lines(*tool_lines(self._client.ready))
        self._ui.note(f"[tools are {'offered' if self._offers else 'not offered'}]")

    def _sent(self, content: str) -> Awaitable[Reply]:
        return self._client.send(content, **self._how())

    def _how(self) -> Frame:
        """Return the conversation and the options of a message."""
        last = self._conversations.last
        tools = (
            offered_tools(self._client.ready, self._params.get("model") or last.model) if self._offers else []
        )
        how: Frame = {"conversation_id": self._conversations.open_id}
        return (
            how
            | ({"tools": tools} if tools else {})
            | ({"params": dict(self._params)} if self._params else {})
        )

    async def _show_reply_to(self, sending: Awaitable[Reply], *, before: str = "") -> None:
        """Show the reply to a message. Raises Disconnected, ClientError."""
        try:
            reply = await sending
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            return
        self._params.pop("system", None)  # it stays with the conversation
        self._conversations.last.message_id = reply.accepted["message_id"]
        await self._show_replies(reply, before=before)

    async def _rejoin(self) -> None:
        """Continue a running reply. Raises Refused, Disconnected."""
        if not self._conversations.last.is_open:
            return
        reply = await self._client.rejoin(self._conversations.open_id)
        if reply is None:  # it has ended meanwhile
            await self._conversations.show_last()
        else:
            await self._show_replies(reply)

    async def _show_replies(self, reply: Reply | None, *, before: str = "") -> None:
        """Show a reply, and those that follow its calls. Raises Disconnected, ClientError."""
        while reply is not None:
            self._reply = reply
            try:
                await self._ui.show(self._client, reply, before=before)
                following = await reply.following()
                if self._stopping is not None and following is None:
                    await self._stopping
            except ClientError:
                self._ui.ended(reply.done["reason"] if reply.done else "disconnected")
                raise
            finally:
                done, self._reply = reply.done, None
            self._note(reply, before)
            if following is None:
                self._stopping = None
                self._ui.ended(done["reason"] if done else "disconnected")
            reply, before = following, ""

    def _note(self, reply: Reply, before: str) -> None:
        last = self._conversations.last
        if reply.done:
            last.reply_id, last.model = reply.done["message_id"], requested_model(reply.done)
            last.text = before + reply.text
