"""The open conversation, and the user's commands for it and for others."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from midstream.client import Client
from midstream.errors import Refused
from midstream.terminal.texts import ago, messages, quoted
from midstream.terminal.user_interface import UserInterface

Frame = dict[str, Any]
SHOWN_MESSAGES = 10
"""Messages that are shown of a conversation when it is opened."""
LISTED = 20
"""Conversations on a page of `/list`."""
_NEWEST = 200  # the longest page, in which the open conversation's title is searched


@dataclass(slots=True)
class Last:
    """The last message and reply, for `/edit`, `/retry` and `/continue`; None before there is one.

    `is_open`: whether the reply is incomplete, and not shown yet.
    """

    message_id: str | None = None
    reply_id: str | None = None
    model: str | None = None
    text: str = ""
    is_open: bool = False


def new_id() -> str:
    """Return an id for a new conversation."""
    return f"terminal-{secrets.token_hex(4)}"


class Conversations:
    """The open one, by its id, and the listed ones, by their numbers."""

    def __init__(self, client: Client, ui: UserInterface, open_id: str) -> None:
        self._client = client
        self._ui = ui
        self._listed: list[str] = []
        self._search: tuple[str, str] | None = None  # the last query, and the cursor of its next page
        self.open_id = open_id
        self.last = Last()

    async def show(self) -> None:
        """Show which conversation is open, and its last messages. Raises Refused, Disconnected."""
        self.last = Last()
        show_past = await self._history()
        if not show_past:
            self._ui.note("This is a new conversation. /list shows those that you have.")
            return
        row = await self._row(self.open_id)
        description = "" if row is None else f" {quoted(row['title'])}, {_facts(row)}"
        self._ui.note(f"Open:{description or f' {self.open_id}'}. /new begins another, /list shows all.")
        for message in show_past:
            self._take(message)

    async def show_last(self) -> None:
        """Show the last message. Raises Refused, Disconnected."""
        for message in (await self._history())[-1:]:
            self._take(message)

    async def new(self) -> None:
        """Begin another conversation; its first message creates it."""
        self.open_id, self.last = new_id(), Last()
        self._ui.note("This is a new conversation. The one before is kept: /list.")

    async def show_list(self, rest: str) -> None:
        """List a page of conversations, newest first. Raises Refused, Disconnected."""
        before = self._listed[-1] if rest == "more" and self._listed else None
        rows = await self._client.conversations(limit=LISTED, before=before)
        if before is None:
            self._listed = []
        first = len(self._listed) + 1
        self._listed += [row["conversation_id"] for row in rows]
        lines = [self._line(number, row) for number, row in enumerate(rows, first)]
        self._ui.print_lines(
            *(lines or ["There are no more." if before else "There are no conversations yet."])
        )
        if rows.has_more:
            self._ui.note("/list more shows older ones, /open NUMBER opens one.")

    async def search(self, query: str) -> None:
        """List conversations with the words of a query, or more for the last one. Raises Refused, Disconnected."""
        query_text, before = (query, None) if query or self._search is None else self._search
        if not query_text:
            self._ui.fail("Words are missing: /search WORDS")
            return
        found = await self._client.search(query_text, limit=LISTED, before=before)
        if before is None:
            self._listed = []
        first = len(self._listed) + 1
        self._listed += [hit["conversation_id"] for hit in found]
        self._search = None if found.next is None else (query_text, found.next)
        lines = [line for number, hit in enumerate(found, first) for line in self._found(number, hit)]
        self._ui.print_lines(*(lines or ["Nothing found so far." if found.next else "Nothing found."]))
        if found.next is not None:
            self._ui.note("/search continues with older ones, /open NUMBER opens one.")

    def _found(self, number: int, hit: Frame) -> list[str]:
        row = self._line(number, hit)
        return [row, f"     {hit['snippet']}"] if "message_id" in hit else [row]

    async def open(self, which: str) -> None:
        """Open a conversation by its number or its id. Raises Refused, Disconnected."""
        if (conversation_id := self._named(which)) is not None:
            await self._client.history(conversation_id, limit=1)  # fails if it does not exist
            self.open_id = conversation_id
            await self.show()

    async def rename(self, title: str) -> None:
        """Give the open conversation a title. Raises Refused, Disconnected."""
        if not title:
            self._ui.fail("A title is missing: /rename TITLE")
            return
        row = await self._client.rename(self.open_id, title)
        self._ui.note(f"It is called {quoted(row['title'])} now.")

    async def delete(self, which: str) -> None:
        """Delete a conversation for good, after a confirmation. Raises Refused, Disconnected."""
        conversation_id = self._named(which) if which else self.open_id
        if conversation_id is None:
            return
        row = await self._row(conversation_id)
        title = conversation_id if row is None else quoted(row["title"])
        if await self._ui.confirm(f"Delete {title} for good?"):
            await self._client.delete(conversation_id)
            self._ui.note("It is deleted.")
            if conversation_id == self.open_id:
                await self.new()

    def _named(self, which: str) -> str | None:
        """Return the id of a named conversation; None, with a message, if it is not known."""
        if not which:
            self._ui.fail("Which one? /list gives each a number.")
        elif not which.isdecimal():
            return which
        elif 1 <= int(which) <= len(self._listed):
            return self._listed[int(which) - 1]
        else:
            self._ui.fail(f"There is no number {which}; /list gives each conversation one.")
        return None

    async def _history(self) -> list[Frame]:
        try:
            return await self._client.history(self.open_id, limit=SHOWN_MESSAGES)
        except Refused as refused:
            if refused.code != "not_found":  # a conversation begins with its first message
                raise
            return []

    async def _row(self, conversation_id: str) -> Frame | None:
        rows = await self._client.conversations(limit=_NEWEST)
        return next((row for row in rows if row["conversation_id"] == conversation_id), None)

    def _take(self, message: Frame) -> None:
        if message["role"] == "user":
            self.last.message_id = message["message_id"]
            self._ui.show_past(message)
            return
        self.last.reply_id, self.last.model = message["message_id"], message["model"]
        self.last.text = message["content"]
        is_calling = any(call["state"] in ("waiting", "running") for call in message.get("calls", ()))
        self.last.is_open = self._ui.is_watched and (message["status"] == "running" or is_calling)
        if not self.last.is_open:
            self._ui.show_past(message)

    def _line(self, number: int, row: Frame) -> str:
        mark = "*" if row["conversation_id"] == self.open_id else " "
        return f"{mark}{number:>3}  {quoted(row['title'])}, {_facts(row)}"


def _facts(row: Frame) -> str:
    return f"{messages(row['messages'])}, {ago(row['updated_at'], time.time() * 1000)}"
