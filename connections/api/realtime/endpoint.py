"""`GET /v1/realtime`: the handshake, and a session after it, whose events become frames of the native socket."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress

import msgspec
from starlette.websockets import WebSocket

from connections.api.endpoint import ApiWebSocketEndpoint, RequestContext
from connections.api.realtime.encoder import (
    RealtimeCodec,
    RealtimeEventEncoder,
    RealtimeFrame,
    truncated_event,
)
from connections.api.realtime.events import (
    TRANSCRIPTION,
    AnyClientEvent,
    InputAppend,
    InputClear,
    InputCommit,
    InvalidEvent,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    ResponseCreate,
    SessionUpdate,
    event,
)
from connections.api.realtime.session import (
    RealtimeSession,
    has_images,
    image_bytes,
)
from connections.api.realtime.settings import NO_SOUND, AudioConfig
from connections.api.realtime.voice import RealtimeVoiceConnection
from connections.api.requests import invalid
from connections.authentication.access import AccessControl, bearer
from connections.authentication.caller import Caller, caller_of, client_id_of
from connections.connection import ChainedWork, Connection, Handler, PendingWork, RateLimiter
from connections.http import EndpointName, optional_id
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import ClientMessage, FrameHandler
from connections.outbox import Outbox
from connections.protocol import frames
from connections.protocol.base import AUDIO, TOOLS, KeyScope, Limits
from connections.protocol.errors import BadParams, Close, CloseCode
from connections.voice import VoiceMessage as Message
from connections.voice import VoiceService
from connections.websocket_endpoint import MultilineTransport, WebSocketTransport
from connections.websocket_protocol import LargeMessageLease
from engine.served_models import ServedModel
from sessions.errors import NotFound, Overloaded, Refused
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.limits.shares import Subject
from sessions.service import Sessions

PAGE = 200
"""Messages of the history for a client that reconnects: as many as a page may have."""
_NO_TRANSCRIPTION_SESSIONS = "Transcription sessions are at /v1/realtime, of a server whose operator enabled recognition (MIDSTREAM_SPEECH)."
SUBPROTOCOL = "realtime"
_KEY = "openai-insecure-api-key."
"""Begins the subprotocol with a browser's key: browsers can't set headers."""
_NO_HISTORY = "refers to a conversation, which a transcription session does not have: leave it out."
_NO_REPLIES = (
    "A transcription session makes no responses and takes no items but sound: send input_audio_buffer.append, or open a session "
    "of the type realtime."
)
DELETION_TIMEOUT_S = 60.0
"""How long the next event waits until a late reader has been notified of a deletion."""
MAX_PENDING_IMAGE_BYTES = 2 * 1024 * 1024
"""Bytes of one connection's images that may wait to be stored; one item is always taken."""
_IMAGES_PENDING = "Earlier images are still being stored; send this item again in a moment."
_RESPONSE_EVENTS = (ItemCreate, ItemDelete, ItemTruncate, ResponseCreate, frames.Cancel)
"""Events that a transcription session does not take."""


class HandshakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: None: the default; `has_conversation`: the client named its conversation; `after`: its last item.

    `transcribes`: the session only transcribes.
    """

    model: str | None
    conversation_id: str
    has_conversation: bool
    client_id: str | None
    after: str | None
    key: str | None
    subprotocol: str | None
    transcribes: bool = False


def parse_handshake(query: Mapping[str, str], subprotocols: Sequence[str]) -> HandshakeRequest:
    """Return what a client requests. Raises BadParams."""
    if "call_id" in query:
        raise BadParams("is for telephone calls, which are not supported.", field="call_id")
    if (intent := query.get("intent")) not in (None, TRANSCRIPTION):
        raise BadParams(f"must be {TRANSCRIPTION}, or left out.", field="intent")
    for field in ("conversation_id", "after"):
        if intent is not None and field in query:
            raise BadParams(_NO_HISTORY, field=field)
    conversation_id = optional_id(query, "conversation_id")
    return HandshakeRequest(
        model=query.get("model"),
        conversation_id=conversation_id or f"conv_{secrets.token_hex(12)}",
        has_conversation=conversation_id is not None,
        client_id=optional_id(query, "client_id"),
        after=query.get("after"),
        key=next((one.removeprefix(_KEY) for one in subprotocols if one.startswith(_KEY)), None),
        subprotocol=SUBPROTOCOL if SUBPROTOCOL in subprotocols else None,
        transcribes=intent is not None,
    )


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The client of a session, and its rights."""

    request: HandshakeRequest
    caller: Caller
    limits: Limits
    model: ServedModel


class RealtimeEndpoint(ApiWebSocketEndpoint[SessionContext]):
    """Serves Realtime clients: connections like native ones, with other frames."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        request_context: RequestContext,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
        spoken: VoiceService | None,
    ) -> None:
        """`spoken`: None if this server takes no sound."""
        super().__init__(EndpointName.REALTIME, access=access, limiters=limiters)
        self.sessions = sessions
        self.request_context = request_context
        self.lifecycle = lifecycle
        self.spoken = spoken

    async def handshake_info(self, websocket: WebSocket) -> SessionContext:
        """Return the client and its request; a client that names a conversation gets its history. Raises Refused."""
        try:
            request = parse_handshake(websocket.query_params, websocket.scope.get("subprotocols", ()))
        except BadParams as error:
            raise invalid(error.field, str(error)) from None
        authorization = websocket.headers.get("authorization")
        identity = await self.request_context.identity(authorization, request.key)
        identity.grant.check(KeyScope.CHAT)
        if request.transcribes and self.spoken is None:
            raise invalid("intent", _NO_TRANSCRIPTION_SESSIONS, code="unsupported_parameter")
        # the model that a transcription session names is a recognizer
        model = self.request_context.model(None if request.transcribes else request.model, identity.grant)
        limits = await self.request_context.limits(model)
        name = request.client_id
        if name is None:  # each session has an id of its own, so a key may have many sessions
            name = f"{client_id_of(identity, bearer(authorization) or request.key)}/{request.conversation_id}"
        caller = caller_of(identity, name, websocket.scope)
        if request.has_conversation:
            identity.grant.check(KeyScope.READ)
        return SessionContext(request=request, caller=caller, limits=limits, model=model)

    def subprotocol(self, handshake_info: SessionContext) -> str | None:
        """Return the subprotocol to select, if the client offers it."""
        return handshake_info.request.subprotocol

    async def serve(self, socket: WebSocketTransport, handshake_info: SessionContext) -> None:
        """Serve one session. Raises Close, Disconnected."""
        socket.accept_large_messages(LargeMessageLease(self.limiters.bodies, handshake_info.caller.subject))
        conversation_id = handshake_info.request.conversation_id
        sound = None
        if self.spoken is not None:
            sound = AudioConfig.of(self.spoken.voices, self.spoken.ear.languages)
            sound = sound.transcription_only() if handshake_info.request.transcribes else sound
        session = RealtimeSession(
            conversation_id=conversation_id,
            model=handshake_info.model.name,
            limits=handshake_info.limits,
            names_model=handshake_info.request.model is not None,
            sound=sound,
        )
        encoder = RealtimeEventEncoder(session, after=handshake_info.request.after)
        codec = RealtimeCodec(encoder)
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=codec.encode,
            tally=self.tally,
            features=frozenset({TOOLS} if self.spoken is None else {TOOLS, AUDIO}),
        )
        voice_connection = None
        if self.spoken is not None:
            voice_connection = RealtimeVoiceConnection(self.spoken, connection, encoder)
        inner = RateLimiter(
            FrameHandler(self.sessions, handshake_info.limits, spoken=voice_connection), self.limiters
        )
        handler = RealtimeHandler(
            encoder=encoder,
            inner=inner,
            sessions=self.sessions,
            take_read=self.limiters.take_read,
            voice_connection=voice_connection,
        )
        async with self.lifecycle.registered(connection):
            connection.push(RealtimeFrame(events=(event("session.created", session=session.shown()),)))
            if handshake_info.request.has_conversation:
                await self._show_history(connection, conversation_id)
            with self.access.watch(handshake_info.caller.identity, connection):
                async with nullcontext() if voice_connection is None else voice_connection.running(inner):
                    await connection.serve(handler, codec.decode)

    async def _show_history(self, connection: Connection, conversation_id: str) -> None:
        """Send the history, and attach the connection. Raises Close if that is impossible."""
        try:
            self.limiters.take_read(connection.caller.subject)
            shown = await self.sessions.history(connection.owner, connection, conversation_id, limit=PAGE)
        except NotFound:
            return  # the first message will create the conversation
        except Refused as refused:
            raise Close(CloseCode.OVERLOAD, f"{refused} Reconnect.") from refused
        connection.publish(shown.page)


class RealtimeHandler:
    """Answers one session's events.

    `inner`: answers frames; `take_read`: counts other requests to the store, and may refuse them;
    `voice_connection`: None if this server takes no sound.
    """

    def __init__(
        self,
        *,
        encoder: RealtimeEventEncoder,
        inner: Handler[ClientMessage],
        sessions: Sessions,
        take_read: Callable[[Subject], None],
        voice_connection: RealtimeVoiceConnection | None = None,
    ) -> None:
        self._session = encoder.session
        self._encoder = encoder
        self._inner = inner
        self._sessions = sessions
        self._take_read = take_read
        self._voice_connection = voice_connection
        self._lock = asyncio.Lock()
        self._in_flight = 0
        self._items_in_flight = 0  # of these, how many are new items
        self._image_bytes_in_flight = 0  # bytes of the images in these

    def handle(self, connection: Connection, request: AnyClientEvent | frames.Cancel) -> PendingWork | None:
        """Answer at once, or in order after slow events; return the work that waits. Raises Refused.

        New items do not delay a cancel, whose reply was requested before them.
        """
        if self._session.settings.transcribes and isinstance(request, _RESPONSE_EVENTS):
            raise InvalidEvent(_NO_REPLIES, field="type", code="unsupported_event")
        if isinstance(request, InputAppend):
            self._require_voice().append(request.audio)
            return None
        may_overtake = isinstance(request, frames.Cancel) and self._in_flight == self._items_in_flight
        if (self._in_flight and not may_overtake) or self._must_wait(request):
            return self._handle_in_order(connection, request)
        return self._handle_now(connection, request)

    def _must_wait(self, request: AnyClientEvent | frames.Cancel) -> bool:
        """Return whether an event delays others: for the store, or until sound is understood."""
        is_slow = isinstance(request, ItemDelete | InputCommit)
        return is_slow or (isinstance(request, ItemCreate) and has_images(request.item))

    def _require_voice(self) -> RealtimeVoiceConnection:
        """Return the voice connection. Raises InvalidEvent if there is none."""
        if self._voice_connection is None:
            raise InvalidEvent(NO_SOUND, field="type", code="unsupported_content_type")
        return self._voice_connection

    async def _handle_in_order(self, connection: Connection, request: AnyClientEvent | frames.Cancel) -> None:
        """Answer after earlier slow events, and those queued after them. Starts before the next event is read."""
        slow: PendingWork | None = None
        is_new = isinstance(request, ItemCreate)
        size = image_bytes(request.item) if isinstance(request, ItemCreate) else 0
        if self._image_bytes_in_flight and self._image_bytes_in_flight + size > MAX_PENDING_IMAGE_BYTES:
            raise Overloaded(_IMAGES_PENDING)
        self._in_flight, self._items_in_flight = self._in_flight + 1, self._items_in_flight + is_new
        self._image_bytes_in_flight += size
        try:
            async with self._lock:
                match request:
                    case ItemDelete():
                        await self._delete(connection, request)
                    case InputCommit():
                        await self._require_voice().commit()
                    case ItemCreate() if self._must_wait(request):
                        await self._create(connection, request)
                    case _:
                        slow = self._handle_now(connection, request)
        finally:
            self._in_flight, self._items_in_flight = self._in_flight - 1, self._items_in_flight - is_new
            self._image_bytes_in_flight -= size
        if slow is not None:
            await slow

    def _handle_now(
        self, connection: Connection, request: AnyClientEvent | frames.Cancel
    ) -> PendingWork | None:
        """Answer an event that needs neither the store nor recognition. Raises Refused."""
        match request:
            case frames.Cancel():
                return self._inner.handle(connection, request)
            case ResponseCreate():
                return self._respond(connection, request)
            case ItemTruncate():
                return self._truncate(connection, request)
            case InputClear():
                self._require_voice().clear()
            case SessionUpdate():
                updated = self._session.update(request)
                if self._voice_connection is not None:
                    self._voice_connection.changed()
                connection.push(RealtimeFrame(events=(updated,)))
            case ItemCreate():
                connection.push(RealtimeFrame(events=self._session.create(request)))
            case ItemRetrieve():
                connection.push(RealtimeFrame(events=(self._session.retrieve(request),)))
            case _:
                raise TypeError(f"{type(request).__name__} is not answered at once.")
        return None

    def _respond(self, connection: Connection, request: ResponseCreate) -> PendingWork | None:
        """Send waiting items. The first message is registered at once, so a later cancel finds it. Raises Refused."""
        first, *rest = self._session.ask(request)
        request_id, sound = self._session.asked, self._session.begun.sound
        slow: PendingWork | None
        try:
            match first:
                case frames.Send() if sound is not None and sound.speaks:
                    slow = self._require_voice().answer(first, sound.output)
                case frames.Send() if first.attachments:
                    shown = self._session.image_positions(first.client_msg_id)
                    slow = self._inner.handle(connection, Message(first, shown=shown))
                case _:
                    slow = self._inner.handle(connection, first)
        except BaseException:
            self._session.requeue(request_id)
            raise
        if slow is None:
            return self._send(connection, None, rest, request_id) if rest else None
        return ChainedWork(self._send(connection, slow, rest, request_id), slow)

    async def _send(
        self,
        connection: Connection,
        slow: PendingWork | None,
        rest: Sequence[frames.Request],
        request_id: str | None,
    ) -> None:
        try:
            if slow is not None:
                await slow
            for frame in rest:
                if (slow := self._inner.handle(connection, frame)) is not None:
                    await slow
        except BaseException:
            self._session.requeue(request_id)
            raise

    def _truncate(self, connection: Connection, request: ItemTruncate) -> PendingWork | None:
        """Truncate an item. Raises InvalidEvent."""
        item = self._session.item(request.item_id, "item_truncate_invalid_item_id")
        if item.sound_ms is None or item.role != "assistant":
            why = "The item is text and can't be truncated by audio time."
            raise InvalidEvent(why, field="item_id", code="unsupported_content_type")
        if item.status != "in_progress":
            connection.push(RealtimeFrame(events=(truncated_event(item),)))
            return None
        return self._require_voice().truncate(item.turn_id, request.audio_end_ms)

    async def _create(self, connection: Connection, request: ItemCreate) -> None:
        """Insert an item once its images are stored. Raises Refused."""
        item = self._session.new_item(request.item)
        for _ in item.images:
            self._take_read(connection.caller.subject)
        await self._sessions.images.keep(connection.owner, *item.images, group=connection.caller.group)
        connection.push(RealtimeFrame(events=self._session.insert(item, after=request.previous_item_id)))

    async def _delete(self, connection: Connection, request: ItemDelete) -> None:
        """Delete an item; one of a reply is rolled back with its exchange, whose message waits again here.

        Raises InvalidEvent, and Refused if others follow the item.
        """
        connection.caller.grant.check(KeyScope.MANAGE)
        deleted = self._session.delete(request.item_id)
        if not isinstance(deleted, str):
            connection.push(RealtimeFrame(events=(deleted,)))
            return
        turn_id = deleted
        removed = asyncio.Event()
        self._encoder.on_removed[turn_id] = removed.set
        try:
            await self._sessions.take_back(connection.owner, self._session.conversation_id, turn_id)
        except BaseException:
            self._encoder.on_removed.pop(turn_id, None)
            raise
        with suppress(TimeoutError):
            async with asyncio.timeout(DELETION_TIMEOUT_S):
                await removed.wait()
