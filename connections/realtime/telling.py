"""What happens in a conversation in the Realtime protocol's events. Pure.

A reply's response and item are named after its turn. The item stands behind the last message that was answered, before
what waits; a client that puts items behind `previous_item_id` has the order that the history has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from connections.realtime.asking import Asked, Asking
from connections.realtime.items import Item, Items, State
from connections.realtime.problems import error_event
from connections.realtime.replies import Reply, item_status
from connections.realtime.server_events import ItemAdded, ItemDeleted, ItemDone, ServerEvent
from connections.wire.frames import Cancelled, Error, Frame, ServerFrame
from sessions.conversation.paging import RUNNING, HistoryPage, ShownMessage
from sessions.events import Accepted, Deleted, Delta, Done, Gap, Removed

_LOST = "Some events could not be told. Come back with ?conversation_id= to have what is there now."
_NOT_ACTIVE = "Cancellation failed: no active response found."  # clients know it by its first two words


class Said(ServerFrame, frozen=True, kw_only=True, tag="realtime"):
    """Events of this door's own, in their order among all others."""

    events: tuple[ServerEvent, ...]


def response_id(turn_id: str) -> str:
    """Of the response that a turn is."""
    return f"resp_{turn_id.removeprefix('turn_')}"


def turn_of(response: str) -> str:
    """The turn that a response is."""
    return f"turn_{response.removeprefix('resp_')}"


def item_id(turn_id: str) -> str:
    """Of the item that a turn's reply is."""
    return f"item_{turn_id.removeprefix('turn_')}"


class Telling:
    """One session, as far as its client is told.

    `freeing`: turns that are taken back so that their items wait again, and whom to call once they do; `after`: the newest
    item that the client had when it came, if it came back: the first page of the history is told from there on.
    """

    def __init__(self, items: Items, asking: Asking, *, after: str | None = None) -> None:
        self.freeing: dict[str, Callable[[], None]] = {}
        self._after = after
        self._items = items
        self._asking = asking
        self._replies: dict[str, Reply] = {}
        self._aside: set[str] = set()  # turns that go on beside the branch of a newer one
        self._lost = False  # a parent that is not known may be one that was not told

    def tell(self, frame: Frame) -> Sequence[ServerEvent]:  # noqa: PLR0911 - one for each kind
        """The events of a frame; none of what has no word here."""
        match frame:
            case Delta() if (reply := self._replies.get(frame.turn_id)) is not None:
                return (reply.text(frame.text),)
            case Said():
                return frame.events
            case Accepted():
                return self._accepted(frame)
            case Done():
                return self._done(frame)
            case Removed():
                return self._removed(frame.turn_id)
            case Deleted():
                return self._drop(self._items.stored())
            case HistoryPage():
                return self._history(frame)
            case Gap():
                self._lost = True
        error = _error(frame)
        return () if error is None else (error_event(error),)

    def _accepted(self, accepted: Accepted) -> list[ServerEvent]:
        begun = self._text_of(accepted.continues)
        gone = self._leave(accepted)
        asked = self._asking.taken_in(accepted)
        message = self._others_message(accepted)
        reply = self._reply(accepted.turn_id, asked)
        told = [*gone, *message, *self._begin(accepted.turn_id, reply)]
        return [*told, reply.text(begun)] if begun else told

    def _text_of(self, message_id: str | None) -> str:
        """What a reply has that goes on: here that is another item, which begins with it."""
        known = (item.text for item in self._items.stored() if message_id and item.message_id == message_id)
        return next(known, "")

    def _leave(self, accepted: Accepted) -> list[ServerEvent]:
        """Takes out what is on another branch than a turn: a reply that is being written, once it has ended."""
        if accepted.parent_id is msgspec.UNSET or self._lost:
            return []
        gone = self._items.behind(accepted.message_id, accepted.parent_id)
        self._aside |= {item.turn_id for item in gone if item.turn_id in self._replies}
        return self._drop([item for item in gone if item.turn_id not in self._aside])

    def _others_message(self, accepted: Accepted) -> list[ServerEvent]:
        """What was sent by another door, or on another connection; nothing where a message is answered once more."""
        known = {item.message_id for item in self._items.stored()}
        if accepted.content is None or accepted.message_id in known:
            return []
        return self._whole(
            Item(
                item_id=accepted.message_id,
                role="user",
                text=accepted.content,
                turn_id=accepted.turn_id,
                message_id=accepted.message_id,
            )
        )

    def _whole(self, item: Item) -> list[ServerEvent]:
        previous, shown = self._items.store(item), item.shown()
        return [
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        ]

    def _reply(self, turn_id: str, asked: Asked | None = None) -> Reply:
        return Reply(
            response_id=response_id(turn_id),
            item_id=item_id(turn_id),
            conversation_id=self._asking.conversation_id,
            max_output_tokens="inf" if asked is None else asked.max_output_tokens,
            metadata=None if asked is None else asked.metadata,
        )

    def _begin(self, turn_id: str, reply: Reply, message_id: str = "") -> list[ServerEvent]:
        self._replies[turn_id] = reply
        item = Item(
            item_id=reply.item_id,
            role="assistant",
            text="",
            status="in_progress",
            turn_id=turn_id,
            message_id=message_id,
        )
        return reply.begin(item, self._items.store(item))

    def _done(self, done: Done) -> list[ServerEvent]:
        reply = self._replies.pop(done.turn_id, None)
        if reply is None:
            return []
        item, previous = self._items.finish(
            reply.item_id, text=reply.kept(done), status=item_status(done), message_id=done.message_id
        )
        removed = self._removed(done.turn_id) if done.removed or done.turn_id in self._aside else []
        return [*reply.end(item, previous, done), *removed]

    def _removed(self, turn_id: str) -> list[ServerEvent]:
        """An exchange has left the history; where this session wanted that, the message waits again."""
        items = self._items.of_turn(turn_id)
        if (freed := self.freeing.pop(turn_id, None)) is None:
            return self._drop(items)
        asked = [one.item_id for one in items if one.role == "user"]
        self._items.change(asked, state=State.WAITING)
        freed()
        return self._drop([one for one in items if one.role == "assistant"])

    def _drop(self, items: Sequence[Item]) -> list[ServerEvent]:
        for item in items:
            self._items.remove(item.item_id)
            self._replies.pop(item.turn_id, None)
            self._aside.discard(item.turn_id)
        return [ItemDeleted(item_id=item.item_id) for item in items]

    def _history(self, page: HistoryPage) -> list[ServerEvent]:
        """Brings the items to what a page says: messages that are not known are added, those of other branches go."""
        shown = {(message.turn_id, message.role) for message in page.messages}
        stored = self._items.stored()
        known = [place for place, item in enumerate(stored) if (item.turn_id, item.role) in shown]
        first = known[0] if known else 0
        gone = [item for item in stored[first:] if (item.turn_id, item.role) not in shown]
        there = {(item.turn_id, item.role) for item in stored}
        events = self._drop(gone)
        for message in page.messages:
            if (message.turn_id, message.role) not in there:
                events += self._message(message)
            if _id_of(message) == self._after and message.status != RUNNING:
                events = []
        self._after = None
        return events

    def _message(self, message: ShownMessage) -> list[ServerEvent]:
        if message.status == RUNNING:
            reply = self._reply(message.turn_id)
            begun = self._begin(message.turn_id, reply, message.message_id)
            return [*begun, reply.text(message.content)] if message.content else begun
        return self._whole(
            Item(
                item_id=_id_of(message),
                role=message.role,
                text=message.content,
                status="completed" if message.status == "complete" else "incomplete",
                turn_id=message.turn_id,
                message_id=message.message_id,
            )
        )


def _error(frame: Frame) -> Error | None:
    match frame:
        case Error(code="unauthenticated", retryable=True):
            return Error(code="session_expired", message="The token has expired: come back with another.")
        case Error():
            return frame
        case Cancelled(already=True):
            return Error(ref=frame.ref, code="response_cancel_not_active", message=_NOT_ACTIVE)
        case Gap():
            return Error(code="events_lost", message=_LOST)
        case _:
            return None


def _id_of(message: ShownMessage) -> str:
    return message.message_id if message.role == "user" else item_id(message.turn_id)
