"""Converts the events of a conversation to the Realtime protocol's, and its messages to frames.

A reply's response and item are named after its turn. The item follows the last answered message, before the waiting
items. A client that orders items by `previous_item_id` has the order of the history.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Sequence
from http import HTTPStatus
from itertools import count
from time import monotonic
from typing import Any

import msgspec

from connections.api.realtime.events import (
    AnyClientEvent,
    Event,
    ItemCreate,
    ItemStatus,
    ResponseCancel,
    complete_item,
    error_event,
    event,
)
from connections.api.realtime.session import (
    Item,
    ItemState,
    PendingTurn,
    RealtimeSession,
    call_item,
    has_images,
    output_item,
    text_item_id,
)
from connections.api.replies import problem_at_end
from connections.http import check_json_limits
from connections.protocol import codec, frames
from connections.protocol.audio import AudioReply, Sound
from connections.protocol.base import ServerFrame
from connections.protocol.errors import BadFrame
from connections.protocol.frames import Cancelled, Error, Frame
from sessions.conversation.history_page import HistoryPage, ShownMessage
from sessions.events import (
    Accepted,
    Deleted,
    Delta,
    Done,
    Gap,
    Reason,
    Removed,
    ShownCall,
    ToolCall,
    ToolState,
)
from sessions.limits.bounds import MAX_FRAME_BYTES
from sessions.records import RUNNING
from sessions.turn.tool_calls import CANCELLED, result_text
from speech.interfaces import WIDTH

_LOST = "Some events were lost. Reconnect with ?conversation_id= to get the current state."
_EXPIRED = "The token has expired: reconnect with a new one."
_NOT_ACTIVE = "Cancellation failed: no active response found."  # clients know it by its first two words
_encode = msgspec.json.Encoder().encode
_WHOLE = (Reason.STOP, Reason.TOOLS)
_INCOMPLETE = {
    Reason.LENGTH: "max_output_tokens",
    Reason.TIMEOUT: "max_output_tokens",
    Reason.FILTERED: "content_filter",
}
_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
_TOO_LARGE = f"Only an item with images may be larger than {MAX_FRAME_BYTES} bytes."
LAG_MS = 200
"""The delay from sending sound to hearing it: the network, and the player's buffer."""


class RealtimeFrame(ServerFrame, frozen=True, kw_only=True, tag="realtime"):
    """Events of this endpoint, in order with all other frames."""

    events: tuple[Event, ...]


def response_id(turn_id: str) -> str:
    """Return the id of a turn's response."""
    return f"resp_{turn_id.removeprefix('turn_')}"


def turn_id_of(response: str) -> str:
    """Return the turn of a response."""
    return f"turn_{response.removeprefix('resp_')}"


class RealtimeEventEncoder:
    """Encodes one session for its client. The text of a reply that only has calls has a place, but is not sent.

    `on_removed`: turns that are rolled back so that their items wait again, with what is called then; `after`:
    the newest item of a client that reconnects: the first page of the history is sent from there on. `spoken`:
    the spoken replies.
    """

    def __init__(self, session: RealtimeSession, *, after: str | None = None) -> None:
        self.on_removed: dict[str, Callable[[], None]] = {}
        self.spoken = SpokenReplies(monotonic)
        self._after = after
        self.session = session
        self._items = session.items
        self._replies: dict[str, Reply] = {}
        self._other_branch_turns: set[str] = set()  # turns that run on another branch than a newer one
        self._has_gap = False  # after a gap, an unknown parent may be on this branch

    def encode(self, frame: Frame) -> Sequence[Event]:  # noqa: C901, PLR0911, PLR0912 - one for each kind
        """Return the events of a frame; none if the protocol has no word for it. Server tools are not shown here."""
        match frame:
            case RealtimeFrame():
                return frame.events
            case Accepted():
                return self._accepted(frame)
            case Delta() if (reply := self._replies.get(frame.turn_id)) is not None:
                return [*self._begin_text(reply), reply.text(frame.text)]
            case ToolCall():
                return self._call(frame, frame.turn_id)
            case ToolState() if frame.state.is_settled:
                return self._call_output(frame.call_id, result_text(frame))
            case AudioReply():
                self.spoken.begin(frame)
            case Sound():
                return self._sound(frame)
            case Done():
                return self._done(frame)
            case Removed():
                return self._removed(frame.turn_id)
            case Deleted():
                return self._drop(self._items.stored())
            case HistoryPage():
                return self._history(frame)
            case Gap():
                self._has_gap = True
                return (error_event(Error(code="events_lost", message=_LOST)),)
            case Cancelled(already=True) if frame.turn_id not in self._replies:
                why = Error(ref=frame.ref, code="response_cancel_not_active", message=_NOT_ACTIVE)
                return (error_event(why),)
            case Error(code="unauthenticated", retryable=True):
                return (error_event(Error(code="session_expired", message=_EXPIRED)),)
            case Error():
                return (error_event(frame),)
        return ()

    def _sound(self, sound: Sound) -> list[Event]:
        """Return the events of a reply's sound; note it as sent."""
        reply = self._replies.get(sound.turn_id)
        if reply is None or not reply.turn.speaks or not sound.samples:
            return []
        self.spoken.sent(sound)
        delta = b64encode(sound.samples).decode()
        return [*self._begin_text(reply), event("response.output_audio.delta", **reply.about(), delta=delta)]

    def _accepted(self, accepted: Accepted) -> list[Event]:
        continued = (one.text for one in self._items.stored() if one.message_id == accepted.continues)
        text = next(continued, "") if accepted.continues else ""  # the new item begins with it
        gone = self._drop_other_branch(accepted)
        pending = self.session.accept(accepted)
        message = self._foreign_message(accepted)
        exchange = self._items.first_turn_of(accepted.message_id)
        return [*gone, *message, *self._begin(accepted.turn_id, text, pending, exchange=exchange)]

    def _drop_other_branch(self, accepted: Accepted) -> list[Event]:
        """Remove items of other branches than a turn's; a reply being written goes once it has ended."""
        if accepted.parent_id is msgspec.UNSET or self._has_gap:
            return []
        gone = self._items.after(accepted.message_id, accepted.parent_id)
        self._other_branch_turns |= {item.turn_id for item in gone if item.turn_id in self._replies}
        return self._drop([item for item in gone if item.turn_id not in self._other_branch_turns])

    def _foreign_message(self, accepted: Accepted) -> list[Event]:
        """Return a message from another endpoint or connection; none if a message is answered again."""
        known = {item.message_id for item in self._items.stored()}
        if accepted.content is None or accepted.message_id in known:
            return []
        return self._item_events(
            Item(
                item_id=accepted.message_id,
                role="user",
                text=accepted.content,
                turn_id=accepted.turn_id,
                message_id=accepted.message_id,
                images=tuple(one.image for one in accepted.attachments),
            )
        )

    def _item_events(self, item: Item) -> list[Event]:
        return list(complete_item(self._items.store(item), item.shown()))

    def _begin(
        self,
        turn_id: str,
        text: str,
        pending: PendingTurn | None = None,
        *,
        exchange: str,
        message_id: str = "",
    ) -> list[Event]:
        """Begin a reply. Its text has a place now, and is sent once there is some: a reply may only have calls."""
        reply = self._replies[turn_id] = Reply(
            response_id=response_id(turn_id),
            item_id=text_item_id(turn_id),
            conversation_id=self.session.conversation_id,
            turn=pending or PendingTurn(),
        )
        self._items.store(
            Item(
                item_id=reply.item_id,
                role="assistant",
                text="",
                status="in_progress",
                turn_id=turn_id,
                message_id=message_id,
                exchange=exchange,
                sent=False,
                sound_ms=0 if reply.turn.speaks else None,
            )
        )
        begun = event("response.created", response=reply.response())
        return [begun, *self._begin_text(reply), reply.text(text)] if text else [begun]

    def _begin_text(self, reply: Reply) -> list[Event]:
        if reply.item_id in reply.output:
            return []
        return reply.begin_text(*self._items.finish(reply.item_id, sent=True))

    def _call(self, called: ToolCall | ShownCall, turn_id: str) -> list[Event]:
        """Return the events of a call in a reply that is being written."""
        if (reply := self._replies.get(turn_id)) is None:
            return []
        reply.called.append(called.call_id)
        if called.where == "server":
            return []
        text = self._items.get(reply.item_id)
        call = call_item(called, turn_id, exchange=text.exchange if text else "")
        begun = msgspec.structs.replace(call, status="in_progress")
        return reply.call(begun, call, self._items.store(call))

    def _call_output(self, call_id: str, output: str) -> list[Event]:
        """Return a call's outcome as events, unless this session sent it."""
        call = next((one for one in self._items.open_calls() if one.call_id == call_id), None)
        if call is None:
            return []
        ids = {"turn_id": call.turn_id, "exchange": call.exchange, "message_id": call.message_id}
        mine = self._items.outcome(call_id)
        if mine is not None and mine.text == output:
            self._items.change([mine.item_id], state=ItemState.STORED, **ids)
            return []
        gone = [] if mine is None else self._drop([mine])
        return [*gone, *self._item_events(output_item(call, output))]

    def _done(self, done: Done) -> list[Event]:
        reply = self._replies.pop(done.turn_id, None)
        if reply is None:
            return []
        events = self._drop([one for one in self._calls(done.turn_id) if one.off > done.chars])
        mine = [one.item_id for one in self._items.of_turn(done.turn_id) if one.role != "user"]
        self._items.change(mine, message_id=done.message_id)
        heard = self.spoken.end(done)
        if reply.turn.speaks:
            self._items.change([reply.item_id], sound_ms=heard.ms)
        events += self._end_text(reply, done)
        output = [item for one in reply.output if (item := self._items.get(one)) is not None]
        events.append(reply.end(output, done, interrupted_by_speech=heard.is_interrupted))
        if heard.reported_ms is not None and (item := self._items.get(reply.item_id)) is not None:
            events.append(truncated_event(item))
        if done.reason is not Reason.TOOLS:
            for call in self._calls(done.turn_id):
                events += self._call_output(call.call_id, CANCELLED)
        if done.removed:
            events += self._removed(done.turn_id)
        elif done.turn_id in self._other_branch_turns:
            events += self._drop(self._items.of_turn(done.turn_id))
        self._other_branch_turns.discard(done.turn_id)
        return events

    def _end_text(self, reply: Reply, done: Done) -> list[Event]:
        """Return the events of the complete text; a reply that only has calls has none."""
        if reply.item_id not in reply.output and reply.called:
            self._items.finish(reply.item_id, status=item_status(done))
            return []
        begun = self._begin_text(reply)
        text = "".join(reply.parts)[: done.chars]
        return [
            *begun,
            *reply.end_text(*self._items.finish(reply.item_id, text=text, status=item_status(done))),
        ]

    def _calls(self, turn_id: str) -> list[Item]:
        return [item for item in self._items.of_turn(turn_id) if item.is_call]

    def _removed(self, turn_id: str) -> list[Event]:
        """Remove an exchange that left the history; its message waits again if this session wanted that."""
        items = self._items.of_reply_chain(turn_id)
        if (freed := self.on_removed.pop(turn_id, None)) is None:
            return self._drop(items)
        user_item_ids = [one.item_id for one in items if one.role == "user"]
        gone = self._drop([one for one in items if one.role != "user"])
        self._items.change(user_item_ids, state=ItemState.WAITING, turn_id="", message_id="")
        freed()
        return gone

    def _drop(self, items: Sequence[Item]) -> list[Event]:
        """Remove items, and waiting outcomes of calls that are gone."""
        gone = {item.item_id: item for item in items}
        for item in items:
            if item.is_call and (outcome := self._items.outcome(item.call_id)) is not None:
                gone[outcome.item_id] = outcome
        for item in gone.values():
            self._items.remove(item.item_id)
            self.session.forget(item)
            if not item.call_id:
                self._replies.pop(item.turn_id, None)
        return [
            event("conversation.item.deleted", item_id=item.item_id) for item in gone.values() if item.sent
        ]

    def _history(self, page: HistoryPage) -> list[Event]:
        """Bring the items to the state of a page: add unknown messages, remove those of other branches."""
        shown = {(message.turn_id, message.role) for message in page.messages}
        stored = self._items.stored()
        known = [place for place, item in enumerate(stored) if _message_key(item) in shown]
        first = known[0] if known else 0
        gone = [item for item in stored[first:] if _message_key(item) not in shown]
        there = {_message_key(item) for item in stored}
        events = self._drop(gone)
        for message in page.messages:
            if (message.turn_id, message.role) not in there:
                events += self._message(message)
        after, self._after = self._after, None
        ends = [
            at
            for at, one in enumerate(events)
            if one["type"] == "conversation.item.done" and one["item"]["id"] == after
        ]
        return events[max(ends, default=-1) + 1 :]

    def _message(self, message: ShownMessage) -> list[Event]:
        """Return a message, and its calls with their outcomes."""
        calls = () if message.calls is msgspec.UNSET else message.calls
        exchange = self._items.first_turn_of(message.parent_id) if message.role == "assistant" else ""
        if message.status == RUNNING:
            text, message_id = message.content, message.message_id
            events = self._begin(message.turn_id, text, message_id=message_id, exchange=exchange)
            for call in calls:
                events += self._call(call, message.turn_id)
        else:
            events = self._stored(message, calls, exchange)
        for call in calls:
            if call.state.is_settled:
                events += self._call_output(call.call_id, result_text(call))
        return events

    def _stored(self, message: ShownMessage, calls: Sequence[ShownCall], exchange: str) -> list[Event]:
        item = Item(
            item_id=message.message_id if message.role == "user" else text_item_id(message.turn_id),
            role=message.role,
            text=message.content,
            status="completed" if message.status == "complete" else "incomplete",
            turn_id=message.turn_id,
            exchange=exchange,
            message_id=message.message_id,
            sent=bool(message.content or not calls),
            images=tuple(one.image for one in message.attachments or ()),
        )
        whole = self._item_events(item)
        events = whole if item.sent else []
        for call in calls:
            if call.where == "client":
                called = call_item(call, message.turn_id, exchange=exchange)
                events += self._item_events(msgspec.structs.replace(called, message_id=message.message_id))
        return events


def truncated_event(item: Item) -> Event:
    """Return the event of where a truncated item ends."""
    return event(
        "conversation.item.truncated",
        item_id=item.item_id,
        content_index=0,
        audio_end_ms=item.sound_ms or 0,
        transcript=item.text,  # ours: the remaining words
    )


def _message_key(item: Item) -> tuple[str, str]:
    """Return the turn and role of an item."""
    return item.turn_id, "user" if item.role == "user" else "assistant"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The common values of one reply's events, its text so far, and its items in order.

    `called`: its calls, also those the server runs, which have no items. If its turn `speaks`, its text is a
    transcript.
    """

    response_id: str
    item_id: str
    conversation_id: str
    turn: PendingTurn
    parts: list[str] = []
    output: list[str] = []
    called: list[str] = []

    def begin_text(self, item: Item, previous: str | None) -> list[Event]:
        """Return the events of the new item for its text, and of the item's part."""
        part = event("response.content_part.added", **self.about(), part=self._part(""))
        return [*self._added(item, previous), part]

    def text(self, text: str) -> Event:
        """Return the event of more text."""
        self.parts.append(text)
        kind = "output_audio_transcript" if self.turn.speaks else "output_text"
        return event(f"response.{kind}.delta", **self.about(), delta=text)

    def about(self, item_id: str | None = None) -> dict[str, Any]:
        """Return the common first fields of the events of an item; by default, of its text and its sound."""
        if item_id is not None:
            about = {"response_id": self.response_id, "item_id": item_id}
            return {**about, "output_index": self._place(item_id)}
        return {**self.about(self.item_id), "content_index": 0}

    def call(self, begun: Item, item: Item, previous: str | None) -> list[Event]:
        """Return the events of a complete call. `begun`: without its arguments."""
        about = {**self.about(item.item_id), "call_id": item.call_id}
        return [
            *self._added(begun, previous),
            event("response.function_call_arguments.delta", **about, delta=item.text),
            event("response.function_call_arguments.done", **about, name=item.name, arguments=item.text),
            *self._whole(item, previous),
        ]

    def end_text(self, item: Item, previous: str | None) -> list[Event]:
        """Return the events of the complete text."""
        about = self.about()
        done = [event("response.output_text.done", **about, text=item.text)]
        if self.turn.speaks:
            done = [
                event("response.output_audio.done", **about),
                event("response.output_audio_transcript.done", **about, transcript=item.text),
            ]
        return [
            *done,
            event("response.content_part.done", **about, part=self._part(item.text)),
            *self._whole(item, previous),
        ]

    def _part(self, text: str) -> dict[str, str]:
        return {"transcript": text, "type": "audio"} if self.turn.speaks else {"text": text, "type": "text"}

    def end(self, output: Sequence[Item], done: Done, *, interrupted_by_speech: bool = False) -> Event:
        """Return the event of the reply's end. `interrupted_by_speech`: the listener spoke over it."""
        details = _details(done, interrupted_by_speech=interrupted_by_speech)
        response = self.response() | {
            "status": details["type"],
            "status_details": details,
            "output": [item.shown() for item in output],
            "usage": _usage(done),
        }
        if done.model:
            response["model"] = done.model  # ours: the model that wrote it
        return event("response.done", response=response)

    def _place(self, item_id: str) -> int:
        """Return the index of an item among the reply's; a new one is last."""
        if item_id not in self.output:
            self.output.append(item_id)
        return self.output.index(item_id)

    def _added(self, item: Item, previous: str | None) -> list[Event]:
        shown, place = item.shown(), self._place(item.item_id)
        about = {"response_id": self.response_id, "output_index": place, "item": shown}
        return [
            event("response.output_item.added", **about),
            event("conversation.item.added", previous_item_id=previous, item=shown),
        ]

    def _whole(self, item: Item, previous: str | None) -> list[Event]:
        shown, place = item.shown(), self._place(item.item_id)
        about = {"response_id": self.response_id, "output_index": place, "item": shown}
        return [
            event("conversation.item.done", previous_item_id=previous, item=shown),
            event("response.output_item.done", **about),
        ]

    def response(self) -> dict[str, Any]:
        """Return the response as it begins."""
        return {
            "id": self.response_id,
            "object": "realtime.response",
            "status": "in_progress",
            "status_details": None,
            "output": [],
            "conversation_id": self.conversation_id,
            "output_modalities": ["audio" if self.turn.speaks else "text"],
            "max_output_tokens": self.turn.max_output_tokens,
            "metadata": self.turn.metadata,
            "usage": None,
        }


def item_status(done: Done) -> ItemStatus:
    """Return whether the model completed its reply."""
    return "completed" if done.reason in _WHOLE else "incomplete"


def _details(done: Done, *, interrupted_by_speech: bool) -> dict[str, Any]:
    """Return why a response ended."""
    if done.reason in _WHOLE:
        return {"type": "completed"}
    if done.reason is Reason.CANCELLED:
        reason = "turn_detected" if interrupted_by_speech else "client_cancelled"
        return {"type": "cancelled", "reason": reason}
    if done.reason in _INCOMPLETE:
        return {"type": "incomplete", "reason": _INCOMPLETE[done.reason]}
    if (problem := problem_at_end(done)) is None:
        raise RuntimeError(f"A reply that ended by {done.reason} has neither a regular end nor a problem.")
    kind = "server_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"type": "failed", "error": {"type": kind, "code": problem.code, "message": str(problem)}}


def _usage(done: Done) -> dict[str, Any]:
    prompt, cached, generated = (
        done.usage.prompt_tokens,
        done.usage.cached_tokens,
        done.usage.generated_tokens,
    )
    sound = {"audio_tokens": 0, "image_tokens": 0}
    return {
        "total_tokens": prompt + generated,
        "input_tokens": prompt,
        "output_tokens": generated,
        "input_token_details": {
            "text_tokens": prompt,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, **sound},
            **sound,
        },
        "output_token_details": {"text_tokens": generated, "audio_tokens": 0},
    }


class RealtimeCodec:
    """The codec of one session, which numbers its events. Events that stop a turn become native frames, and take effect as early."""

    def __init__(self, encoder: RealtimeEventEncoder) -> None:
        self._encoder = encoder
        self._event_ids = f"event_{secrets.token_hex(8)}"
        self._numbers = count(1)

    def decode(self, message: str | bytes) -> AnyClientEvent | frames.Cancel:
        """Return one client event. Raises TooManyValues; BadFrame, which names the wrong field.

        A large event may only bring images: a session would keep or queue all else.
        """
        encoded = message if isinstance(message, bytes) or message.isascii() else message.encode()
        if is_large := len(encoded) > MAX_FRAME_BYTES:
            check_json_limits(encoded if isinstance(encoded, bytes) else encoded.encode())
        request = codec.read(_decoder, message)
        if is_large and not (isinstance(request, ItemCreate) and has_images(request.item)):
            raise BadFrame(_TOO_LARGE, ref=request.ref)
        if not isinstance(request, ResponseCancel):
            return request
        turn_id = None if request.response_id is None else turn_id_of(request.response_id)
        return frames.Cancel(
            ref=request.ref,
            turn_id=turn_id,
            conversation_id=self._encoder.session.conversation_id if turn_id is None else None,
        )

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        return b"\n".join(
            _encode(one | {"event_id": f"{self._event_ids}_{next(self._numbers)}"})
            for one in self._encoder.encode(frame)
        )


class SpokenReplies:
    """Notes how much of the spoken replies of one session was heard.

    Clients of this protocol play sound as it comes, and report only when they stop. So a reply is assumed to be played from
    its first sound on, without a gap if sound came in time, `LAG_MS` after it was sent.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self._clock = clock
        self._playbacks: defaultdict[str, Playback] = defaultdict(Playback)

    def begin(self, reply: AudioReply) -> None:
        """Note a turn's sound format."""
        bytes_per_ms = reply.rate * WIDTH / 1000
        self._playbacks[reply.turn_id].bytes_per_ms = bytes_per_ms

    def sent(self, sound: Sound) -> None:
        """Note sound that was sent to the client."""
        play, now = self._playbacks[sound.turn_id], self._clock()
        if play.heard_ms(now) >= play.sent_ms:  # the player had run dry: new sound begins now
            play.begun = now + (LAG_MS - play.sent_ms) / 1000
        play.sent_ms += len(sound.samples) / play.bytes_per_ms

    def heard_ms(self, turn_id: str) -> int:
        """Return how much of a reply was heard by now."""
        play = self._playbacks.get(turn_id)
        return 0 if play is None else int(play.heard_ms(self._clock()))

    def stop(self, turn_id: str, ms: int) -> None:
        """Note that no more is played."""
        if turn_id in self._playbacks:
            self._playbacks[turn_id].stopped_ms = ms

    def report(self, turn_id: str, ms: int) -> None:
        """Note where the client says that it stopped; no more than was sent can have been heard."""
        play = self._playbacks[turn_id]
        play.reported_ms = min(ms, int(play.sent_ms))

    def interrupt(self, turn_id: str) -> None:
        """Note that a reply was interrupted by speech."""
        self._playbacks[turn_id].is_interrupted = True

    def end(self, done: Done) -> Playback:
        """Note that a spoken turn has ended; return its playback, with the sound that counts."""
        play = self._playbacks.pop(done.turn_id, None) or Playback()
        if done.cancel is None:  # it is kept whole, wherever its client stopped after that
            play.ms = int(play.sent_ms)
        elif play.reported_ms is None:
            play.ms = int(play.heard_ms(self._clock()))
        else:
            play.ms = play.reported_ms
        return play


class Playback(msgspec.Struct):
    """Playback. `begun`: when its first sample would have been heard without pauses.

    `reported_ms`: where its client says that it stopped; `stopped_ms`: where the server stopped it; `ms`: in the end, how
    much of it counts.
    """

    begun: float = 0.0
    bytes_per_ms: float = 0.0
    sent_ms: float = 0.0
    reported_ms: int | None = None
    stopped_ms: int | None = None
    is_interrupted: bool = False
    ms: int = 0

    def heard_ms(self, now: float) -> float:
        """Return how much of it was heard by `now`."""
        if self.stopped_ms is not None:
            return self.stopped_ms
        return min(self.sent_ms, max(0.0, (now - self.begun) * 1000))
