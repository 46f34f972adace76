"""What a connection may request about conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import msgspec

from sessions.commands.resumption import ReaderPosition, resume
from sessions.commands.tool_results import CallOutcome
from sessions.conversation.history_page import PageWithStatus, page_of, read_branch
from sessions.errors import NotFound, NotShared, Overloaded
from sessions.limits.shares import AGAIN_MS, Subject
from sessions.records import Owner
from sessions.replica import Replica
from sessions.running import runner
from sessions.running.turn_list import ListedTurn, listed
from sessions.store.index import Found, Listed, Page
from sessions.store.ledger import SHARE_BYTES, ServerMemory
from sessions.store.owner_data import ExportedConversation, ExportedMessage, SharedPage
from sessions.tool_round import AnswerOutcome
from sessions.tools.tool_registry import ToolCounters
from sessions.turn.interfaces import Grown, Growth
from sessions.turn.tool_calls import CallAnswer
from sessions.turn.turn import Cancel, Cancelled, OnCancelled, Subscriber


class SessionStatistics(msgspec.Struct, frozen=True):
    """Facts for metrics.

    `unsaved`: turns with text or an end that the store has not taken yet. `journal_bytes`: of events given to the journal; a
    repeated write counts again. `reaped`: orphaned turns that were closed or continued here. `store`: the memory of each of its
    servers, as last measured.
    """

    conversations: int
    turns: int
    journal_pipelines: int
    tools: ToolCounters
    unsaved: int = 0
    journal_bytes: int = 0
    reaped: int = 0
    store: tuple[ServerMemory, ...] = ()


SEARCH_WAIT_S = 3.0
"""How long a search waits for its turn before it is shed."""
_TOO_MANY_SEARCHES = "The server is running as many searches as it can; try again in a moment."


class ExchangeIds(msgspec.Struct, frozen=True):
    """The ids of a user's message and of the reply to it."""

    message_id: str
    reply_id: str


class Sessions(Replica):
    """The requests to this replica. Use `running()` around everything else.

    `turns`: takes messages and cancels; `ephemeral`: replies without a conversation.
    """

    async def has_other_replicas(self) -> bool:
        """Return whether other replicas of the service use the store. Raises StoreDown."""
        return bool(await self.storage.ownership.others())

    def readers(self) -> set[Subscriber]:
        """Return the connections attached to conversations in which a turn runs here."""
        return self.directory.readers()

    def disconnect(self, subscriber: Subscriber) -> None:
        """Forget a closed connection, and cancel turns without attached connections."""
        for conversation in self.directory.detach(subscriber):
            runner.cancel_unattended(conversation)
            self.unwatch(conversation)
            self.directory.drop_if_idle(conversation)

    async def cancel_elsewhere(
        self, owner: Owner, cancel: Cancel, *, on_cancelled: OnCancelled = lambda _: None
    ) -> Cancelled:
        """Have the replica that runs a turn decide its end; `on_cancelled` runs before that is published. Raises Refused."""
        conversation_id = cancel.conversation_id
        if conversation_id is None and cancel.turn_id is not None:
            conversation_id = await self.forwarder.conversation_of(owner, cancel.turn_id)
        if conversation_id is None:
            on_cancelled(outcome := Cancelled(cancel.turn_id, already=True))
            return outcome
        with self.directory.using(owner, conversation_id) as conversation:
            return await self.forwarder.cancel(conversation, cancel, on_cancelled)

    async def answer_call(
        self, owner: Owner, subscriber: Subscriber, conversation_id: str | None, answer: CallAnswer
    ) -> CallOutcome:
        """Take a result or a decision for a call. Without `conversation_id`: in the attached one that has the call.

        Raises Refused.
        """
        resolved_id = conversation_id or await self._conversation_of_call(subscriber, answer.call_id)
        with self.directory.using(owner, resolved_id) as conversation:
            outcome = await self.answering.answer(conversation, answer)
        return CallOutcome(resolved_id, outcome.state, outcome.already)

    async def answer_calls(
        self, owner: Owner, conversation_id: str, answers: Sequence[CallAnswer]
    ) -> list[AnswerOutcome]:
        """Take results or decisions for the calls of one reply; none if one is refused. Raises Refused."""
        with self.directory.using(owner, conversation_id) as conversation:
            return await self.answering.answer_all(conversation, answers)

    async def grow(self, owner: Owner, conversation_id: str, growth: Growth) -> Grown:
        """Take more of a source that is being translated, on any replica. Raises Refused."""
        with self.directory.using(owner, conversation_id) as conversation:
            return await self.growing.grow(conversation, growth)

    def keep_calls(self, owner: Owner, conversation_id: str, turn_id: str, *, kept: bool) -> None:
        """Set whether the turn that waits here for calls of `turn_id` continues after its client has left.

        For clients whose response ends when they have to act, and who then ask again. Synchronous.
        """
        conversation = self.directory.get(owner, conversation_id)
        for live in () if conversation is None else conversation.turns:
            if live.record.follows == turn_id:
                live.send = msgspec.structs.replace(live.send, on_disconnect="continue" if kept else "cancel")

    async def _conversation_of_call(self, subscriber: Subscriber, call_id: str) -> str:
        attached = self.directory.attached(subscriber)
        for conversation in attached:
            if conversation.has_published(call_id):
                return conversation.conversation_id
        for conversation in attached:
            if await self.storage.history.call(conversation.keys, call_id) is not None:
                return conversation.conversation_id
        raise NotFound(f'No conversation that this connection is attached to has a call "{call_id}".')

    def ack(self, owner: Owner, conversation_id: str, seq: int) -> None:
        """Note that a reader has all events of a conversation up to `seq`; ignored unless a turn runs here."""
        if (conversation := self.directory.get(owner, conversation_id)) is not None:
            conversation.ack(seq)

    async def conversation_of(self, owner: Owner, turn_id: str, *, by: Subscriber) -> str | None:
        """Return a turn's conversation, if the turn runs anywhere or `by` is attached there. Raises Refused."""
        if (running := await self.forwarder.conversation_of(owner, turn_id)) is not None:
            return running
        for conversation in self.directory.attached(by):
            if await self.storage.history.turn(conversation.keys, turn_id) is not None:
                return conversation.conversation_id
        return None

    async def exchange(self, owner: Owner, conversation_id: str, name: str) -> ExchangeIds | None:
        """Return the exchange whose `client_msg_id`, turn id or message id is `name`. Raises Refused."""
        history = self.storage.history
        with self.directory.using(owner, conversation_id) as conversation:
            keys = conversation.keys
            record = await history.turn_of(keys, name) or await history.turn(keys, name)
            if record is None and (message := await history.message(keys, name)) is not None:
                record = await history.turn(keys, message.turn_id)
        return None if record is None else ExchangeIds(record.message_id, record.reply_id)

    async def take_back(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Remove an exchange whose turn has ended; does nothing if there is none. Raises Refused."""
        await self.remover.take_back(owner, conversation_id, turn_id)

    async def history(
        self,
        owner: Owner,
        subscriber: Subscriber,
        conversation_id: str,
        *,
        limit: int,
        before: str | None = None,
        leaf: str | None = None,
        ref: str | None = None,
    ) -> PageWithStatus:
        """Return a page of the active branch, and attach the caller: events after `seq` follow.

        `leaf`: a message; the branch through it becomes the active one, and all other attached connections get it.
        Raises Refused.
        """
        with self.directory.using(owner, conversation_id) as conversation:
            await conversation.resumes.wait(subscriber)
            await self.watching.try_to_begin(conversation)
            if leaf is not None:
                activation = self.brancher.activate(conversation, leaf, by=subscriber)
                await self.changes.complete(conversation, activation)
            reading = await read_branch(self.storage.history, conversation, limit=limit, before=before)
            conversation.attach(subscriber)
            return page_of(conversation, reading, subscriber, limit=limit, ref=ref)

    async def resume(
        self,
        owner: Owner,
        subscriber: Subscriber,
        conversation_id: str,
        position: ReaderPosition,
        *,
        ref: str | None,
    ) -> None:
        """Send a connection what it missed after a position, and attach it. Raises Refused."""
        using = self.directory.using(owner, conversation_id)
        with using as conversation, conversation.resumes.resuming(subscriber):
            try:
                await self.watching.try_to_begin(conversation)
                await resume(self.storage.history, conversation, subscriber, position, ref=ref)
            finally:
                self.unwatch(conversation)

    async def conversations(self, owner: Owner, *, limit: int, before: str | None) -> Page:
        """Return the owner's conversations, newest first. Raises Refused."""
        return await self.storage.index.page(owner, limit=limit, before=before)

    async def search(
        self, owner: Owner, query: str, *, limit: int, before: str | None, group: str = ""
    ) -> Found:
        """Return the owner's conversations with the words of a query, newest first. Raises Refused.

        `group`: the client's key or address; searches of different groups take turns.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(SEARCH_WAIT_S):
                    await stack.enter_async_context(self.searches.slot(group or str(owner)))
            except TimeoutError:
                raise Overloaded(_TOO_MANY_SEARCHES, retry_after_ms=AGAIN_MS) from None
            return await self.storage.search.find(owner, query, limit=limit, before=before)

    async def share(self, owner: Owner, conversation_id: str) -> str:
        """Share the active branch as it is now; return the id of its link. Raises Refused."""
        if not self.shares:
            raise NotShared("This server shares no conversations.")
        await self.storage.ledger.admit(Subject(str(owner)), SHARE_BYTES, lifetime_s=0)
        return await self.storage.sharing.share(owner, conversation_id)

    async def take_back_share(self, owner: Owner, conversation_id: str) -> None:
        """Revoke the link of a conversation. Raises Refused."""
        await self.storage.sharing.take_back(owner, conversation_id)

    async def shared(self, share_id: str, *, before: str | None) -> SharedPage:
        """Return a page of a shared conversation. Raises Refused."""
        if not self.shares:
            raise NotShared("This server shares no conversations.")
        return await self.storage.sharing.read(share_id, before=before)

    async def export(self, owner: Owner) -> AsyncIterator[ExportedConversation | ExportedMessage]:
        """Yield what is stored for an owner: each conversation, then its messages, a few at a time. Raises Refused."""
        belongings = self.storage.belongings
        async for one in belongings.conversations(owner):
            if (conversation := await belongings.conversation(one.holder, one.conversation_id)) is None:
                continue
            yield conversation
            async for message in belongings.messages(one.holder, one.conversation_id):
                yield message

    def erase(self, owner: Owner) -> AsyncIterator[str]:
        """End an owner's turns and remove its conversations; yield their ids. Raises Refused."""
        return self.remover.erase(owner)

    def running_turns(self) -> list[ListedTurn]:
        """Return the turns that run on this replica."""
        return [*listed(self.directory), *self.ephemeral.turns()]

    async def stop(self, turn_id: str) -> tuple[Owner, Cancelled] | None:
        """End a conversation's turn for an operator, on any replica; None if it does not run. Raises Refused."""
        turn = await self.storage.ownership.find(turn_id)
        if turn is None:
            return None
        cancel = Cancel(conversation_id=turn.conversation_id, turn_id=turn_id, by_operator=True)
        outcome = self.turns.cancel(turn.owner, cancel)
        if outcome is None or outcome.is_forwarded:
            outcome = await self.cancel_elsewhere(turn.owner, cancel)
        return turn.owner, outcome

    async def rename(self, owner: Owner, conversation_id: str, title: str) -> Listed:
        """Give a conversation another title; return its row of the list. Raises Refused."""
        return await self.storage.index.rename(owner, conversation_id, title)

    async def delete(
        self, owner: Owner, conversation_id: str, *, ref: str | None, subscriber: Subscriber
    ) -> None:
        """Remove a conversation and its running turn; notify all attached connections. Raises Refused."""
        using = self.directory.using(owner, conversation_id)
        with using as conversation, conversation.deletion.requested_by(subscriber, ref):
            await self.remover.delete(owner, conversation_id)

    def statistics(self) -> SessionStatistics:
        """Return the current facts."""
        return SessionStatistics(
            len(self.directory),
            len(self.admission),
            self.priority_client.journal.pipelines,
            self.tools.counters,
            unsaved=self.directory.unsaved(),
            journal_bytes=self.priority_client.journal.bytes,
            reaped=self.reaper.closed,
            store=self.memory.servers,
        )
