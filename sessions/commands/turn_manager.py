"""The turns of this replica: accepted, run, cancelled, and ended when the replica stops."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog

from engine.messages import Request
from sessions.commands.acceptance import MessageAcceptor, register_turn
from sessions.conversation.conversation import BackgroundTasks, Conversation, ConversationRegistry, refusal_of
from sessions.errors import OwnershipLost, Refused, StoreDown
from sessions.events import Cause, Failure
from sessions.limits.shares import Admission, Admitted
from sessions.records import Owner
from sessions.replicas.relay import Relay
from sessions.running import runner
from sessions.running.runner import TurnRunner
from sessions.store.history import History
from sessions.tool_round import WaitingTurns
from sessions.turn.interfaces import Player
from sessions.turn.message_request import Continue, GenerationConfig, MessageRequest
from sessions.turn.turn import Cancel, Cancelled, Subscriber, Turn
from sessions.turn.turn_state import TurnMessageIds

T = TypeVar("T")

DRAIN_CANCEL_S = 10.0
"""How long a drain waits for decided ends: those of queued messages may wait for the store."""

_log = structlog.get_logger("midstream.turns")


class TurnManager:
    """The turns that run here."""

    def __init__(
        self,
        *,
        directory: ConversationRegistry,
        history: History,
        acceptor: MessageAcceptor,
        runner: TurnRunner,
        admission: Admission,
        waiting: WaitingTurns,
        relay: Relay,
        tasks: BackgroundTasks,
    ) -> None:
        self._directory = directory
        self._history = history
        self._acceptor = acceptor
        self._runner = runner
        self._waiting = waiting
        self._relay = relay
        self._admission = admission
        self._by_turn: dict[str, tuple[Conversation, Admitted]] = {}
        self._running_tasks: set[asyncio.Task[Any]] = set()
        self._waits: dict[str, asyncio.Task[None]] = {}
        self._tasks = tasks

    def send(
        self,
        owner: Owner,
        subscriber: Subscriber,
        send: MessageRequest,
        generation: GenerationConfig,
        names: TurnMessageIds | None = None,
        *,
        player: Player | None = None,
    ) -> asyncio.Task[Refused | None]:
        """Take a message; once this returns, a cancel finds it.

        Its events are published. The task returns the refusal, if any; await it shielded. `names`: ids of its
        turn and messages, if another replica chose them; `player`: plays the reply. Raises Refused if the server takes
        no messages at all.
        """
        generation = msgspec.structs.replace(generation, continues=isinstance(send.place, Continue))
        known = self._directory.get(owner, send.conversation_id)
        waits = send.on_busy == "enqueue" and known is not None and bool(known.turns)
        subject = send.subject(owner)
        admitted = self._admission.enter(
            subject,
            waits=waits,
            may_call=bool(generation.tools),
            chars=len(send.content),
            image_bytes=len(send.images),  # the size of all images that it shows is counted with its prompt
        )
        conversation = self._directory.open(owner, send.conversation_id)
        arrival = register_turn(
            conversation, subscriber, send, names or TurnMessageIds.new(), generation, player=player
        )
        arrival.admitted = admitted
        arrival.accepted.add_done_callback(lambda _: admitted.end_acceptance())
        self._by_turn[arrival.turn.ids.turn_id] = (conversation, admitted)
        return self._begin(refusal_of(self._take(conversation, arrival, generation)))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._tasks.begin(work)
        self._running_tasks.add(task)
        task.add_done_callback(self._running_tasks.discard)
        return task

    def has(self, owner: Owner, send: MessageRequest) -> bool:
        """Return whether the turn of a repeated message is accepted, and runs or waits here."""
        conversation = self._directory.get(owner, send.conversation_id)
        here = [] if conversation is None else conversation.turns
        return any(live.is_in_history and live.send.client_msg_id == send.client_msg_id for live in here)

    async def accepted(self, turn_id: str) -> bool:
        """Return whether the message of this turn was accepted, once that is known."""
        conversation, _ = self._by_turn.get(turn_id, (None, None))
        if conversation is None:
            return False
        candidates = [*conversation.turns, *conversation.accepting]
        live = next((live for live in candidates if live.turn.ids.turn_id == turn_id), None)
        return live is not None and await asyncio.shield(live.accepted)

    async def _take(self, conversation: Conversation, arrival: Turn, generation: GenerationConfig) -> None:
        request: Request | None = None
        try:
            request = await self._acceptor.take(conversation, arrival, generation)
        except OwnershipLost:
            _log.warning("queued turn lost", turn_id=arrival.turn.ids.turn_id)
            conversation.release(arrival)
            self._relay.catch_up(conversation)  # its new owner published the end to others only
        finally:
            if request is None:  # refused, a duplicate, taken elsewhere, or ended in the queue
                conversation.release(arrival)
                self._forget(arrival)
            self._directory.drop_if_idle(conversation)
        if request is not None:
            self._begin_running(arrival, request)
            self._runner.ready(conversation, arrival)
            runner.cancel_unattended(conversation)
            self._begin(self._run(conversation, arrival, request))

    async def _run(self, conversation: Conversation, live: Turn, request: Request) -> None:
        following: Turn | None = None
        try:
            if not await self._runner.run(conversation, live, request):
                self._relay.catch_up(conversation)
            following = live.tool_round.following
        finally:
            if following is None:
                self._forget(live)
            else:
                self._pass_on(conversation, live, following)
            self._directory.drop_if_idle(conversation)

    def _pass_on(self, conversation: Conversation, live: Turn, following: Turn) -> None:
        """Start to wait for the open calls of an ended turn, whose place `following` takes."""
        _, admitted = self._by_turn.pop(live.turn.ids.turn_id)
        admitted.call()
        self._wait_for_calls(conversation, following, admitted)

    def continue_turn(self, conversation: Conversation, live: Turn) -> None:
        """Take over a turn that waited for calls on a dead replica."""
        subject = live.send.subject(conversation.owner)
        self._wait_for_calls(conversation, live, self._admission.take_over(subject))

    def _wait_for_calls(self, conversation: Conversation, live: Turn, admitted: Admitted) -> None:
        turn_id = live.turn.ids.turn_id
        self._by_turn[turn_id] = (conversation, admitted)
        self._runner.ready(conversation, live)
        self._waits[turn_id] = task = self._tasks.begin(self._wait(conversation, live))
        task.add_done_callback(lambda _: self._waits.pop(turn_id))
        runner.cancel_unattended(conversation)

    async def _wait(self, conversation: Conversation, live: Turn) -> None:
        """Wait until the calls are settled, then run the turn. A cancelled wait leaves the store's state to another replica."""
        request: Request | None = None
        try:
            request = await self._waiting.next(conversation, live)
        except OwnershipLost:
            _log.warning("waiting turn lost", turn_id=live.turn.ids.turn_id)
            await self._renew_if_published(conversation, live)
            self._relay.catch_up(conversation)
        except Exception:  # noqa: BLE001 - a task's boundary: its end says so
            incident = secrets.token_hex(4)
            _log.exception("waiting turn failed", turn_id=live.turn.ids.turn_id, incident=incident)
            failure = Failure(code="internal", message=f"An internal error, number {incident}.")
            request = self._waiting.given_up(conversation, live, failure)
        finally:
            if request is None:
                self._leave(conversation, live)
        if request is not None:
            self._begin_running(live, request)
            runner.cancel_unattended(conversation)
            self._begin(self._run(conversation, live, request))

    async def _renew_if_published(self, conversation: Conversation, live: Turn) -> None:
        """Begin a new epoch if connections saw events of a lost turn that another replica may have replaced."""
        if live.journal is not None and live.journal.lacks(conversation.published.seq):
            with suppress(StoreDown):
                await self._history.renew(conversation.keys, conversation.published.epoch)

    async def check_waits(self) -> None:
        """Stop waiting for turns that no longer wait in the store. Raises StoreDown."""
        for turn_id in list(self._waits):
            conversation, _ = self._by_turn[turn_id]
            meta = await self._history.load(conversation.keys)
            live = conversation.turn(turn_id)
            if live is not None and live.waits and (meta is None or meta.running != turn_id):
                live.tool_round.lose()

    def _leave(self, conversation: Conversation, live: Turn) -> None:
        if live.journal is not None:
            live.journal.drop()
        conversation.note_change()
        conversation.release(live)
        self._forget(live)
        self._directory.drop_if_idle(conversation)

    def _begin_running(self, live: Turn, request: Request) -> None:
        _, admitted = self._by_turn[live.turn.ids.turn_id]
        admitted.begin()
        admitted.show(sum(len(image.data) for message in request.messages for image in message.images))

    def _forget(self, live: Turn) -> None:
        _, admitted = self._by_turn.pop(live.turn.ids.turn_id)
        admitted.leave()

    def cancel(self, owner: Owner, cancel: Cancel) -> Cancelled | None:
        """Decide the end of turns; None if no such turn runs here. Synchronous."""
        conversation = self._where(owner, cancel)
        if conversation is None:
            return None
        candidates = [*conversation.turns, *conversation.accepting]
        turns = [live for live in candidates if cancel.matches(live)]
        here = [live for live in turns if not live.forwarded]
        if not here:
            return None
        decided = [
            live
            for live in here
            if runner.cancel(conversation, live, cancel.cause, seen_off=cancel.seen_off_for(live))
        ]
        outcome = next(iter(decided or here))
        is_forwarded = here != turns
        is_part = cancel.is_whole and (conversation.live is None or is_forwarded)
        return Cancelled(
            outcome.turn.ids.turn_id, already=not decided, is_part=is_part, is_forwarded=is_forwarded
        )

    def _where(self, owner: Owner, cancel: Cancel) -> Conversation | None:
        conversation, _ = self._by_turn.get(cancel.turn_id or "", (None, None))
        if conversation is None and cancel.conversation_id is not None:
            return self._directory.get(owner, cancel.conversation_id)
        if conversation is None:  # if its calls are open, the next turn is waiting
            waits = (self._by_turn[turn_id][0] for turn_id in self._waits)
            conversation = next((one for one in waits if _waits_after(one, cancel.turn_id)), None)
        return conversation if conversation is not None and conversation.owner == owner else None

    async def drain(self, within_s: float) -> None:
        """Refuse new turns, let running ones end within a time, then end them as interrupted."""
        self._admission.draining = True
        self._runner.stop_titles()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_ended()
        for conversation, live in self._directory.unfinished():
            if not live.waits:
                runner.cancel(conversation, live, Cause.DRAIN)
        self._cancel_waits()
        try:
            async with asyncio.timeout(DRAIN_CANCEL_S):
                await self._all_ended()
        except TimeoutError:
            _log.warning("turns without an end", turns=len(self._directory.unfinished()))
        self._cancel_waits()  # a turn that was just ending may have called tools

    async def _all_ended(self) -> None:
        while unfinished := self._directory.unfinished():
            _, live = unfinished[0]
            await (live.tool_round.idle if live.waits else live.ended).wait()

    def _cancel_waits(self) -> None:
        """Stop waiting for calls: another replica continues those turns, or this one after its restart."""
        for task in self._waits.values():
            task.cancel()

    async def saved(self, *, within_s: float) -> None:
        """Wait for published ends that are not in the store yet. A reaper closes what is not saved then."""
        if self._running_tasks:
            await asyncio.wait(self._running_tasks, timeout=within_s)
        if self._running_tasks:
            _log.warning("turns not saved", turns=len(self._running_tasks))

    def stop(self) -> None:
        """End all that is under way, saved or not."""
        for run in (*self._running_tasks, *self._waits.values()):
            run.cancel()


def _waits_after(conversation: Conversation, turn_id: str | None) -> bool:
    return any(live.waits and live.record.follows == turn_id for live in conversation.turns)
