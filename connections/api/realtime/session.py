"""One Realtime session: its settings and audio configuration, waiting items, options of replies, and the next turn."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from connections.api.realtime.client_events import (
    NULL,
    TRANSCRIPTION,
    AudioFormat,
    AudioInputOptions,
    AudioOptions,
    AudioOutputOptions,
    CommonOptions,
    Detection,
    ItemCreate,
    ItemRetrieve,
    Metadata,
    NewChoice,
    NewItem,
    NewTool,
    ResponseCreate,
    ResponseOptions,
    SessionOptions,
    SessionUpdate,
    TokenLimit,
    Transcription,
    TranscriptionOptions,
    TranscriptionUpdate,
    VoiceId,
)
from connections.api.realtime.items import Item, Items, ItemState, text_and_images
from connections.api.realtime.server_events import (
    AudioSettings,
    BetaTranscriptionSession,
    Effort,
    FunctionTool,
    InputSettings,
    InvalidEvent,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    NamedFunction,
    OutputSettings,
    ServerEvent,
    Session,
    SessionCreated,
    SessionUpdated,
    TranscriptionAudio,
    TranscriptionSession,
    TranscriptionUpdated,
)
from connections.api.requests import VOICES, is_neutral
from connections.protocol import frames, params
from connections.protocol.audio import AudioInput, AudioOutput, AudioStart, Format, TurnDetection
from connections.protocol.base import Limits
from connections.protocol.errors import BadParams, validation_problem
from engine.vision.image import Detail, Image, Seen, together
from sessions.events import Accepted
from sessions.tools.tool_registry import ToolRegistry
from sessions.turn.tool_calls import RESULTS_CHARS
from speech.interfaces import HIGHEST_RATE, LOWEST_RATE

SEPARATOR = "\n\n"
"""Separates items that became one message."""
MAX_WAITING = 100
MAX_ECHO_BYTES = 48 * 1024
"""Bytes of images that are sent back to their sender, as OpenAI does. More would wait twice for a late reader."""
ImagePositions = tuple[tuple[int, Detail], ...]
_TOOL_OUTPUT = "function_call_output"
_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "parallel_tool_calls": ((True,), "This server does not keep a reply to one call."),
    "prompt": ((), "This server keeps no prompts: use instructions."),
    "input": ((), "This server answers the items of the conversation: create them first."),
}
_NAMES = {
    "params.system": "instructions",
    "params.max_new_tokens": "max_output_tokens",
    "params.temperature": "temperature",
}
_TOOL_CHOICES = ("auto", "none", "required")
_OF_REPLIES = (
    *("instructions", "max_output_tokens", "temperature", "tools", "tool_choice", "reasoning"),
    *("output_modalities", "prompt"),
)
NO_SOUND = "This server does not take sound: its operator can enable that (MIDSTREAM_SPEECH)."
_NO_SERVER_TOOLS = ToolRegistry()
"""A session's tools are run by its client."""
PCM_RATE, TELEPHONE_RATE = 24_000, 8_000
SILENCES_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
"""The silences for each `eagerness`. Only a grammar can tell here whether a sentence is complete; then less is enough."""
_FORMATS: dict[str, tuple[Format, int]] = {
    "audio/pcm": ("pcm16", PCM_RATE),
    "audio/pcmu": ("mulaw", TELEPHONE_RATE),
    "audio/pcma": ("alaw", TELEPHONE_RATE),
}
_FORMAT_NAMES = {coding: name for name, (coding, _) in _FORMATS.items()}
BETA_FORMATS: dict[str, str] = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
"""The beta's names of formats."""
PREFIX_PADDING_MS = 300
"""Sound before speech was detected that is understood, too, whatever `prefix_padding_ms` says."""
_MIN_THRESHOLD = 0.05
_MODALITIES = {"text", "audio"}
_UNSUPPORTED = "unsupported_parameter"


class PendingTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is not accepted yet: the items that it answers, and what its client wants repeated.

    `request_id`: its `client_msg_id`, or the turn whose calls it follows. `overrides_instructions`: it has instructions of its own, which the
    store takes for the conversation's. `speaks`: its reply is spoken. `shown`: where its images stand, and their details.
    """

    request_id: str
    items: tuple[str, ...]
    overrides_instructions: bool
    max_output_tokens: TokenLimit
    metadata: Metadata | None
    speaks: bool = False
    shown: ImagePositions = ()


class RealtimeSession:
    """A session as its client shapes it. Only one turn at a time waits to be accepted, besides spoken ones.

    `sound`: None if this server takes none. `names_model`: the client named the model, which then answers all
    of its turns.
    """

    def __init__(
        self,
        items: Items,
        *,
        conversation_id: str,
        model: str,
        limits: Limits,
        names_model: bool = False,
        sound: AudioConfig | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        self._items = items
        self._model = model
        self._requested_model = model if names_model else None
        self._limits = limits
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self.settings = Settings(sound=sound)
        self.begun = self.settings  # the settings of this session's newest exchange
        self._pending: PendingTurn | None = None
        self._pending_speech: dict[str, PendingTurn] = {}  # spoken turns, by `request_id`
        self._overrides_instructions = False  # the conversation has the instructions of one reply

    def created(self) -> ServerEvent:
        """Return the first event of a session."""
        return SessionCreated(session=self._session())

    def update(self, event: SessionUpdate) -> ServerEvent:
        """Change the settings of replies. Raises InvalidEvent."""
        settings = with_session_options(self.settings, event.session, self._limits)
        if settings.transcribes:
            self._refuse_with_items()
        self.settings = settings
        return SessionUpdated(session=self._session())

    def update_beta(self, event: TranscriptionUpdate) -> ServerEvent:
        """Change the settings of transcriptions, as the API's beta names them. Raises InvalidEvent."""
        settings = with_beta_options(self.settings, event.session)
        self._refuse_with_items()
        self.settings = settings
        assert settings.sound is not None  # noqa: S101 - it was changed
        return TranscriptionUpdated(session=beta_transcription_view(settings.sound, self._session_id))

    def transcribe(self) -> None:
        """Begin as a session that only transcribes."""
        assert self.settings.sound is not None  # noqa: S101 - such a session is not admitted otherwise
        self.settings = msgspec.structs.replace(self.settings, sound=transcription_only(self.settings.sound))

    def _refuse_with_items(self) -> None:
        """Raise InvalidEvent if the session has items, and so is one of replies."""
        if not self.settings.transcribes and any(self._items):
            why = "can't be changed: the session has items. Open another session for transcriptions."
            raise InvalidEvent(why, field="session.type")

    def create(self, event: ItemCreate) -> tuple[ServerEvent, ...]:
        """Puts an item in that shows no images. Raises InvalidEvent."""
        return self.insert(self.new_item(event.item), after=event.previous_item_id)

    def new_item(self, new: NewItem, known: Mapping[str, Image] | None = None) -> Item:
        """A new item, with the bytes of its images. `known`: those that were uploaded before, by their ids. Raises InvalidEvent."""
        return self._output_item(new) if new.type == _TOOL_OUTPUT else self._message_item(new, known or {})

    def insert(self, item: Item, *, after: str | None) -> tuple[ServerEvent, ...]:
        """Puts an item in whose images are kept. Raises InvalidEvent."""
        if item.role == "user":
            self._check_waiting_limits(item)
        named = item.named()
        is_long = sum(len(image.data) for image in item.images) > MAX_ECHO_BYTES
        previous, shown = self._items.create(named, after=after), (named if is_long else item).shown()
        return (
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        )

    def retrieve(self, event: ItemRetrieve) -> ServerEvent:
        """Return an item as it is now. Raises InvalidEvent."""
        return ItemRetrieved(item=self.item(event.item_id, "item_retrieve_invalid_item_id").shown())

    def delete(self, item_id: str) -> ServerEvent | str:
        """Delete a waiting item, or return the turn to roll back for an item of a reply. Raises InvalidEvent."""
        item = self.item(item_id, "item_delete_invalid_item_id")
        if item.state is ItemState.WAITING:
            self._items.remove(item_id)
            return ItemDeleted(item_id=item_id)
        if self._pending or item.status == "in_progress":
            raise InvalidEvent(
                "A reply is being written.", field="item_id", code="item_delete_invalid_item_id"
            )
        if item.role == "user":
            why = "The item was answered. Delete the reply first: the item waits again then."
            raise InvalidEvent(why, field="item_id", code="item_delete_invalid_item_id")
        return self._items.of_reply_chain(item.turn_id)[-1].turn_id

    def ask(self, event: ResponseCreate) -> tuple[frames.Send | frames.ToolResult, ...]:
        """Return what begins the next reply: outputs of open calls, else all waiting messages. Raises InvalidEvent."""
        return self._submit_tool_outputs(event) if self._items.open_calls() else (self._send(event),)

    def _submit_tool_outputs(self, event: ResponseCreate) -> tuple[frames.ToolResult, ...]:
        """Return the outputs of open calls. Raises InvalidEvent."""
        options, calls = event.response or ResponseOptions(), self._items.open_calls()
        if self._pending or self._is_writing():
            self._refuse_response()
        reject_changes(self.begun, options, self._limits)
        outcomes = {item.call_id: item for item in self._items.waiting("tool")}
        if missing := [call.call_id for call in calls if call.call_id not in outcomes]:
            why = f'The call "{missing[0]}" has no output: create its function_call_output, or cancel the response.'
            raise InvalidEvent(why, code="missing_function_call_output")
        self._pending = PendingTurn(
            request_id=calls[-1].turn_id,
            items=tuple(item.item_id for item in outcomes.values()),
            overrides_instructions=self._overrides_instructions,
            max_output_tokens=self.begun.max_output_tokens,
            metadata=options.metadata,
        )
        self._items.change(self._pending.items, state=ItemState.PENDING)
        return tuple(
            frames.ToolResult(
                ref=event.event_id,
                call_id=item.call_id,
                conversation_id=self.conversation_id,
                content=item.text,
            )
            for item in outcomes.values()
        )

    def _send(self, event: ResponseCreate) -> frames.Send:
        """Return the waiting messages as one. Raises InvalidEvent."""
        options = event.response or ResponseOptions()
        settings = with_response_options(self.settings, options, self._limits)
        everything = self._items.waiting()
        if self._pending or not everything:
            self._refuse_response()
        max_chars = self._limits.max_content_chars + len(SEPARATOR)  # nothing follows the last
        waiting = self._fitting_items(everything, max_chars=max_chars) or everything[:1]
        self.begun = settings
        content, images = _merged(waiting)
        pending = self._pending = PendingTurn(
            request_id=f"realtime_{secrets.token_hex(12)}",
            items=tuple(item.item_id for item in waiting),
            overrides_instructions=settings.instructions != self.settings.instructions,
            max_output_tokens=settings.max_output_tokens,
            metadata=options.metadata,
            speaks=settings.speaks,
            shown=_image_positions(images),
        )
        self._items.change(pending.items, state=ItemState.PENDING)
        return frames.Send(
            ref=event.event_id,
            client_msg_id=pending.request_id,
            conversation_id=self.conversation_id,
            content=content,
            attachments=tuple(image.digest for image in images),
            on_busy="enqueue" if settings.speaks else "reject",
            params=self._params(settings),
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def speech_message(self, send: frames.Send, item_id: str) -> frames.Send:
        """Return spoken words as a message, after as many of the oldest waiting items as fit.

        `item_id`: of the item that it is, or will be.
        """
        settings = self.settings
        others = [one for one in self._items.waiting() if one.item_id != item_id]
        waiting = self._fitting_items(others, max_chars=self._limits.max_content_chars - len(send.content))
        self.begun = settings
        content, images = _merged(waiting, send.content)
        pending = self._pending_speech[send.client_msg_id] = PendingTurn(
            request_id=send.client_msg_id,
            items=(*(item.item_id for item in waiting), item_id),
            overrides_instructions=False,
            max_output_tokens=settings.max_output_tokens,
            metadata=None,
            speaks=settings.speaks,
            shown=_image_positions(images),
        )
        self._items.change(pending.items, state=ItemState.PENDING)
        return msgspec.structs.replace(
            send,
            ref=None,
            content=content,
            attachments=tuple(image.digest for image in images),
            params=self._params(settings),
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def evict_for(self, text: str) -> list[ServerEvent]:
        """Make room for spoken words that wait: beyond the limits the oldest spoken item is dropped."""
        gone: list[ServerEvent] = []
        spoken = [item for item in self._items.waiting() if item.sound_ms is not None]
        for item in spoken:
            if self._fits(text):
                break
            self._items.remove(item.item_id)
            gone.append(ItemDeleted(item_id=item.item_id))
        return gone

    def accept(self, accepted: Accepted) -> PendingTurn | None:
        """Note that a turn was accepted; return the request, if it came from here."""
        if (pending := self._pop_pending(accepted.follows or accepted.client_msg_id)) is None:
            return None
        if accepted.follows is None:
            self._items.change(
                pending.items,
                state=ItemState.STORED,
                turn_id=accepted.turn_id,
                message_id=accepted.message_id,
            )
        self._overrides_instructions = pending.overrides_instructions
        return pending

    def image_positions(self, request_id: str) -> ImagePositions:
        """Where the images of a message stand that is on its way in, and their details."""
        pending = self._pending_speech.get(request_id, self._pending)
        return pending.shown if pending is not None and pending.request_id == request_id else ()

    @property
    def max_images(self) -> int:
        """How many images may wait; 0: the model takes none."""
        return self._limits.max_images

    @property
    def pending_request_id(self) -> str | None:
        """Return the `request_id` of the turn that waits to be accepted."""
        return None if self._pending is None else self._pending.request_id

    def requeue(self, request_id: str | None) -> None:
        """Note that a turn was refused: its items wait again."""
        if (pending := self._pop_pending(request_id)) is not None:
            still = [
                one
                for one in pending.items
                if (item := self._items.get(one)) and item.state is ItemState.PENDING
            ]
            self._items.change(still, state=ItemState.WAITING)

    def forget(self, item: Item) -> None:
        """Forget an item that is gone, and its turn that waits to be accepted."""
        if self._pending is not None and item.item_id in self._pending.items:
            self._pending = None
        for request_id in [
            one for one, pending in self._pending_speech.items() if item.item_id in pending.items
        ]:
            del self._pending_speech[request_id]

    def _pop_pending(self, request_id: str | None) -> PendingTurn | None:
        """Return the request of this name, and forget it."""
        if request_id in self._pending_speech:
            return self._pending_speech.pop(request_id)
        if request_id is None or request_id != self.pending_request_id:
            return None
        pending, self._pending = self._pending, None
        return pending

    def _message_item(self, new: NewItem, known: Mapping[str, Image]) -> Item:
        """Raises InvalidEvent."""
        text, images = text_and_images(new, self._limits, known)
        item = Item(item_id=_item_id(new), role="user", text=text, state=ItemState.WAITING, images=images)
        self._check_waiting_limits(item)
        return item

    def _output_item(self, new: NewItem) -> Item:
        """Return the output of an open call as an item. Raises InvalidEvent."""
        if new.call_id not in {call.call_id for call in self._items.open_calls()}:
            why = f'No call "{new.call_id}" waits for its output.'
            raise InvalidEvent(why, field="item.call_id", code="invalid_tool_call_id")
        if self._items.outcome(new.call_id) is not None:
            why = f'The call "{new.call_id}" has an output already.'
            raise InvalidEvent(why, field="item.call_id", code="invalid_tool_call_id")
        if new.output is None:
            raise InvalidEvent("is missing.", field="item.output")
        chars = len(new.output) + sum(len(item.text) for item in self._items.waiting("tool"))
        if len(new.output) > self._limits.max_content_chars or chars > RESULTS_CHARS:
            why = f"may have {self._limits.max_content_chars} characters, those of a reply {RESULTS_CHARS} together."
            raise InvalidEvent(why, field="item.output", code="content_too_long")
        return Item(
            item_id=_item_id(new), role="tool", text=new.output, state=ItemState.WAITING, call_id=new.call_id
        )

    def _params(self, settings: Settings) -> frames.Params:
        """Return a turn's parameters. A system prompt stays with its conversation, unless it was for one reply only."""
        params = msgspec.structs.replace(settings.params(), model=self._requested_model)
        return (
            msgspec.structs.replace(params, system="")
            if self._overrides_instructions and params.system is None
            else params
        )

    def _check_waiting_limits(self, item: Item) -> None:
        waiting, limit, most = self._items.waiting(), self._limits.max_content_chars, self._limits.max_images
        if len(waiting) >= MAX_WAITING:
            why = f"{MAX_WAITING} items wait for a reply already."
            raise InvalidEvent(why, field="item", code="too_many_items")
        images = sum(len(one.images) for one in (item, *waiting))
        if images > most:
            why = f"The items that wait show {images} images; {most} are allowed."
            raise InvalidEvent(why, field="item.content", code="too_many_images")
        chars = len(item.text) + sum(len(one.text) + len(SEPARATOR) for one in waiting)
        if chars > limit:
            why = f"The items that wait have {chars} characters; {limit} are allowed."
            raise InvalidEvent(why, field="item.content", code="content_too_long")

    def _fits(self, text: str) -> bool:
        """Return whether another item may wait."""
        waiting = self._items.waiting()
        chars = len(text) + sum(len(item.text) + len(SEPARATOR) for item in waiting)
        return len(waiting) < MAX_WAITING and chars <= self._limits.max_content_chars

    def _fitting_items(self, waiting: Sequence[Item], *, max_chars: int) -> list[Item]:
        """The first of them, as many as there is room for: so many characters, with what stands behind each, and images."""
        most = self._limits.max_images
        chars = accumulate(len(item.text) + len(SEPARATOR) for item in waiting)
        images = accumulate(len(item.images) for item in waiting)
        sizes = zip(waiting, chars, images, strict=True)
        return [item for item, so_far, shown in sizes if so_far <= max_chars and shown <= most]

    def _is_writing(self) -> bool:
        return any(item.status == "in_progress" for item in self._items)

    def _refuse_response(self) -> None:
        if self._pending or self._is_writing():
            raise InvalidEvent("A reply is being written.", code="conversation_already_has_active_response")
        raise InvalidEvent("No item waits for a reply: create one first.", code="no_item_to_answer")

    def item(self, item_id: str, code: str) -> Item:
        """Return an item that its client knows. Raises InvalidEvent, with the code."""
        if (item := self._items.get(item_id)) is None or not item.sent:
            raise InvalidEvent(f'There is no item "{item_id}", or it is too old.', field="item_id", code=code)
        return item

    def _session(self) -> Session | TranscriptionSession:
        if self.settings.sound is not None and self.settings.transcribes:
            return transcription_view(self.settings.sound, self._session_id)
        return session_view(
            self.settings,
            session_id=self._session_id,
            conversation_id=self.conversation_id,
            model=self._model,
        )


def _merged(items: Sequence[Item], *texts: str) -> Seen:
    """What items say and show, with texts behind them, as one message."""
    contents = ((item.text, item.images) for item in items)
    return together([*contents, *((text, ()) for text in texts)], SEPARATOR)


def _image_positions(images: Sequence[Image]) -> ImagePositions:
    return tuple((image.at, image.detail) for image in images)


def _item_id(item: NewItem) -> str:
    return item.id or f"item_{secrets.token_hex(12)}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`instructions` unset: the conversation's own, or the operator's. `tool_choice`: a word, or the name of a tool.

    `sound`: None if this server takes none.
    """

    instructions: str | UnsetType = UNSET
    max_output_tokens: TokenLimit = "inf"
    temperature: float | None = None
    tools: tuple[frames.OfferedTool, ...] = ()
    tool_choice: str = "auto"
    effort: str | None = None
    sound: AudioConfig | None = None

    @property
    def transcribes(self) -> bool:
        """Whether the session only transcribes."""
        return self.sound is not None and self.sound.transcribes

    @property
    def speaks(self) -> bool:
        """Whether replies are spoken."""
        return self.sound is not None and self.sound.speaks

    def params(self) -> frames.Params:
        """Return the parameters of a turn."""
        length = self.max_output_tokens
        system = None if isinstance(self.instructions, UnsetType) else self.instructions
        return frames.Params(
            max_new_tokens=None if length == "inf" else length,
            temperature=self.temperature,
            system=system,
            reasoning=self.effort,
        )


def with_session_options(settings: Settings, options: SessionOptions, limits: Limits) -> Settings:
    """Return the settings after a `session.update`. Raises InvalidEvent, which names the field; then nothing changes."""
    if options.type == TRANSCRIPTION:
        return _with_transcription_options(settings, options)
    if options.type != "realtime":
        raise InvalidEvent(f"must be realtime or {TRANSCRIPTION}.", field="session.type")
    if settings.transcribes:
        raise InvalidEvent(
            f"must stay {TRANSCRIPTION}: open another session for replies.", field="session.type"
        )
    return _checked(settings, options, limits, "session")


def with_beta_options(settings: Settings, options: TranscriptionOptions) -> Settings:
    """Return the settings after a `transcription_session.update`. Raises InvalidEvent, which names the field."""
    given: dict[str, object] = {}
    if isinstance(name := options.input_audio_format, str):
        if name not in BETA_FORMATS:
            raise InvalidEvent(
                f"must be one of {', '.join(BETA_FORMATS)}.", field="session.input_audio_format"
            )
        given["format"] = {"type": BETA_FORMATS[name]}
    if not isinstance(options.input_audio_transcription, UnsetType):
        given["transcription"] = options.input_audio_transcription
    if not isinstance(options.turn_detection, UnsetType):
        given["turn_detection"] = options.turn_detection
    audio = msgspec.Raw(msgspec.json.encode({"input": given}))
    return _with_transcription_options(settings, SessionOptions(type=TRANSCRIPTION, audio=audio))


def _with_transcription_options(settings: Settings, options: SessionOptions) -> Settings:
    """Return the settings of a session that only transcribes. Raises InvalidEvent."""
    if settings.sound is None:
        raise InvalidEvent(NO_SOUND, field="session.type", code="unsupported_parameter")
    for field in _OF_REPLIES:
        if getattr(options, field) not in (UNSET, NULL, None):
            why = "is an option of replies, which a transcription session does not have: leave it out."
            raise InvalidEvent(why, field=f"session.{field}", code="unsupported_parameter")
    sound = transcription_only(with_audio_options(settings.sound, options.audio, NULL, "session"))
    return msgspec.structs.replace(settings, sound=sound)


def with_response_options(settings: Settings, options: ResponseOptions, limits: Limits) -> Settings:
    """Return the settings of one reply. Raises InvalidEvent, which names the field."""
    if options.conversation not in (None, "auto"):
        raise InvalidEvent(
            "must be auto: a response is always a part of its conversation.",
            field="response.conversation",
            code="unsupported_parameter",
        )
    return _checked(settings, options, limits, "response")


def transcription_view(sound: AudioConfig, session_id: str) -> TranscriptionSession:
    """What is in force in a session that only transcribes, as clients see it."""
    return TranscriptionSession(id=session_id, audio=TranscriptionAudio(_input(sound)))


def beta_transcription_view(sound: AudioConfig, session_id: str) -> BetaTranscriptionSession:
    """The same, by the names of the API's beta."""
    kind = named_format(sound.input).type
    return BetaTranscriptionSession(
        id=session_id,
        input_audio_format=next(name for name, known in BETA_FORMATS.items() if known == kind),
        input_audio_transcription=sound.transcription or Transcription(),
        turn_detection=with_defaults(sound.detection),
    )


def session_view(settings: Settings, *, session_id: str, conversation_id: str, model: str) -> Session:
    """What is in force, as clients see it."""
    choice = settings.tool_choice
    return Session(
        id=session_id,
        model=model,
        conversation_id=conversation_id,
        instructions="" if isinstance(settings.instructions, UnsetType) else settings.instructions,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        tools=tuple(_shown(tool) for tool in settings.tools),
        tool_choice=choice if choice in _TOOL_CHOICES else NamedFunction(name=choice),
        reasoning=None if settings.effort is None else Effort(settings.effort),
        output_modalities=("audio",) if settings.speaks else ("text",),
        audio=UNSET if settings.sound is None else _audio(settings.sound),
    )


def reject_changes(begun: Settings, options: ResponseOptions, limits: Limits) -> None:
    """Raise InvalidEvent if an option would change an exchange that has begun; tools are then the model's choice."""
    begun = msgspec.structs.replace(begun, tool_choice="auto")
    wanted = with_response_options(begun, options, limits)
    for field in begun.__struct_fields__:
        if field != "sound" and getattr(wanted, field) != getattr(begun, field):
            name = "reasoning" if field == "effort" else field
            why = "can't be changed while the outputs of calls wait to be read."
            raise InvalidEvent(why, field=f"response.{name}", code="unsupported_parameter")


def _checked(settings: Settings, options: CommonOptions, limits: Limits, where: str) -> Settings:
    for field, (neutral, why) in _NEUTRAL.items():
        if not is_neutral(getattr(options, field, NULL), neutral):
            raise InvalidEvent(why, field=f"{where}.{field}", code="unsupported_parameter")
    changed = _updated(settings, options, where)
    try:
        params.generation(changed.params(), max_new_tokens=limits.max_new_tokens)
        turn = frames.TurnFrame(client_msg_id="", tools=changed.tools, tool_choice=changed.tool_choice)
        params.offered_tools(turn, _NO_SERVER_TOOLS)
    except BadParams as error:
        field = error.field or ""
        raise InvalidEvent(error.why, field=f"{where}.{_NAMES.get(field, field)}") from None
    if changed.speaks and changed.tools:
        why = 'can\'t be had while replies are spoken: ask for output_modalities ["text"].'
        raise InvalidEvent(why, field=f"{where}.tools", code="unsupported_parameter")
    return changed


def _updated(settings: Settings, options: CommonOptions, where: str) -> Settings:
    """Return the settings with the given options changed. Raises InvalidEvent."""
    changed: dict[str, object] = {}
    if not isinstance(options.instructions, UnsetType):
        changed["instructions"] = options.instructions or ""
    if not isinstance(options.max_output_tokens, UnsetType):
        changed["max_output_tokens"] = (
            "inf" if options.max_output_tokens is None else options.max_output_tokens
        )
    if not isinstance(options.temperature, UnsetType):
        changed["temperature"] = options.temperature
    if not isinstance(options.reasoning, UnsetType):
        effort = None if options.reasoning is None else options.reasoning.effort
        changed["effort"] = "off" if effort == "none" else effort
    if not isinstance(options.tools, UnsetType):
        changed["tools"] = _tools(options.tools or (), f"{where}.tools")
    if not isinstance(options.tool_choice, UnsetType):
        changed["tool_choice"] = _choice(options.tool_choice, f"{where}.tool_choice")
    if settings.sound is not None:
        changed["sound"] = with_audio_options(settings.sound, options.audio, options.output_modalities, where)
    return msgspec.structs.replace(settings, **changed)


def _tools(given: Sequence[NewTool], where: str) -> tuple[frames.OfferedTool, ...]:
    if len(given) > frames.MAX_TOOLS:
        raise InvalidEvent(f"may have at most {frames.MAX_TOOLS} tools.", field=where)
    return tuple(_tool(one, f"{where}[{number}]") for number, one in enumerate(given))


def _tool(given: NewTool, where: str) -> frames.OfferedTool:
    if given.type != "function":
        why = "must be function: the operator sets the servers that tools come from."
        raise InvalidEvent(why, field=f"{where}.type", code="unsupported_parameter")
    fields = {
        "name": given.name or "",
        "description": given.description or "",
        "parameters": given.parameters,
    }
    try:
        return msgspec.convert(fields, frames.OfferedTool)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        raise InvalidEvent(wrong.why, field=f"{where}.{wrong.field}") from None


def _choice(given: str | NewChoice | None, where: str) -> str:
    match given:
        case None:
            return "auto"
        case NewChoice(type="function", name=str() as name):
            return name
        case "auto" | "none" | "required":
            return given
        case _:
            raise InvalidEvent("must be auto, none, required, or one function.", field=where)


def _shown(tool: frames.OfferedTool) -> FunctionTool:
    return FunctionTool(name=tool.name, description=tool.description, parameters=tool.parameters or {})


def _input(sound: AudioConfig) -> InputSettings:
    return InputSettings(
        format=named_format(sound.input),
        turn_detection=with_defaults(sound.detection),
        transcription=sound.transcription,
    )


def _audio(sound: AudioConfig) -> AudioSettings:
    return AudioSettings(
        input=_input(sound),
        output=OutputSettings(format=named_format(sound.output), voice=sound.voice),
    )


class AudioCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this server offers. `voices`: the default first; none: replies are text. `languages`: empty: any."""

    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()


class AudioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The current settings. `speaks`: replies are spoken; `detection`: None: the client ends its user's turn.

    `transcribes`: there are no replies.
    """

    capabilities: AudioCapabilities
    speaks: bool
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()
    detection: Detection | None = Detection(type="server_vad")
    transcription: Transcription | None = None
    transcribes: bool = False

    @classmethod
    def of(cls, capabilities: AudioCapabilities) -> AudioConfig:
        """Return the first settings of a session: replies are spoken if there is a voice, as at OpenAI."""
        return cls(capabilities=capabilities, speaks=bool(capabilities.voices))

    @property
    def creates(self) -> bool:
        """Whether an utterance is answered at once."""
        is_answered = self.detection is not None and self.detection.create_response is not False
        return is_answered and not self.transcribes

    @property
    def interrupts(self) -> bool:
        """Whether speech over a reply ends it."""
        return self.detection is not None and self.detection.interrupt_response is not False

    @property
    def voice(self) -> str | None:
        """The voice of replies."""
        return self.output.voice or next(iter(self.capabilities.voices), None)

    def start(self, conversation_id: str) -> AudioStart:
        """Return the frame that begins to listen with these settings. If the client leaves, the reply to it ends."""
        language = None if self.transcription is None else self.transcription.language
        return AudioStart(
            conversation_id=conversation_id,
            input=self.input,
            output=self.output if self.speaks else None,
            turn_detection=_turn_detection(self.detection, interrupts=self.interrupts),
            language=language or None,
            grace_s=0,
        )


def transcription_only(settings: AudioConfig) -> AudioConfig:
    """Return the settings of a session that only transcribes."""
    return msgspec.structs.replace(
        settings, speaks=False, transcribes=True, transcription=settings.transcription or Transcription()
    )


def with_audio_options(
    settings: AudioConfig, audio: msgspec.Raw, modalities: msgspec.Raw, where: str
) -> AudioConfig:
    """Return the settings with the given options changed. Raises InvalidEvent, which names the field."""
    named: list[str] | None = _decoded(modalities, list[str] | None, f"{where}.output_modalities")
    settings = _with_modalities(settings, named, f"{where}.output_modalities")
    options: AudioOptions | None = _decoded(audio, AudioOptions | None, f"{where}.audio")
    if options is None:
        return settings
    if isinstance(options.input, AudioInputOptions):
        settings = _with_input(settings, options.input, f"{where}.audio.input")
    if isinstance(options.output, AudioOutputOptions):
        settings = _with_output(settings, options.output, f"{where}.audio.output")
    return settings


def named_format(sound: AudioInput | AudioOutput) -> AudioFormat:
    """Return a format for clients."""
    return AudioFormat(_FORMAT_NAMES[sound.format], sound.rate if sound.format == "pcm16" else None)


def with_defaults(requested: Detection | None) -> Detection | None:
    """Return the settings with defaults for what a client left out."""
    if requested is None:
        return None
    shown = msgspec.structs.replace(
        requested,
        create_response=requested.create_response is not False,
        interrupt_response=requested.interrupt_response is not False,
    )
    if requested.type == "semantic_vad":
        return msgspec.structs.replace(shown, eagerness=requested.eagerness or "auto")
    detection = _turn_detection(requested, interrupts=True)
    return msgspec.structs.replace(
        shown,
        threshold=detection.threshold,
        prefix_padding_ms=PREFIX_PADDING_MS,
        silence_duration_ms=detection.silence_ms,
    )


def _decoded(raw: msgspec.Raw, kind: Any, field: str) -> Any:
    """Decode an option. Raises InvalidEvent."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        raise InvalidEvent(wrong.why, field=f"{field}.{wrong.field}" if wrong.field else field) from None


def _with_modalities(settings: AudioConfig, named: Sequence[str] | None, field: str) -> AudioConfig:
    if named is None:
        return settings
    if not named or not _MODALITIES.issuperset(named):
        raise InvalidEvent('must be ["audio"] or ["text"].', field=field)
    speaks = "audio" in named
    if speaks and not settings.capabilities.voices:
        raise InvalidEvent('must be ["text"]: this server has no voice.', field=field, code=_UNSUPPORTED)
    return msgspec.structs.replace(settings, speaks=speaks)


def _with_input(settings: AudioConfig, options: AudioInputOptions, field: str) -> AudioConfig:
    if isinstance(options.format, AudioFormat):
        coding, rate = _coding(options.format, f"{field}.format")
        settings = msgspec.structs.replace(settings, input=AudioInput(format=coding, rate=rate))
    if not isinstance(options.turn_detection, UnsetType):
        _check(options.turn_detection, f"{field}.turn_detection")
        settings = msgspec.structs.replace(settings, detection=options.turn_detection)
    if not isinstance(options.transcription, UnsetType):
        _check_language(options.transcription, settings.capabilities, f"{field}.transcription.language")
        settings = msgspec.structs.replace(settings, transcription=options.transcription)
    return settings


def _with_output(settings: AudioConfig, options: AudioOutputOptions, field: str) -> AudioConfig:
    output = settings.output
    if isinstance(options.format, AudioFormat):
        coding, rate = _coding(options.format, f"{field}.format")
        output = msgspec.structs.replace(output, format=coding, rate=rate)
    if not isinstance(options.voice, UnsetType):
        output = msgspec.structs.replace(
            output, voice=_voice(options.voice, settings.capabilities, f"{field}.voice")
        )
    if options.speed not in {UNSET, None, 1}:
        raise InvalidEvent(
            "must be 1: conversations are spoken at one speed.", field=f"{field}.speed", code=_UNSUPPORTED
        )
    return msgspec.structs.replace(settings, output=output)


def _coding(requested: AudioFormat, field: str) -> tuple[Format, int]:
    if (known := _FORMATS.get(requested.type)) is None:
        raise InvalidEvent(f"must be one of {', '.join(_FORMATS)}.", field=f"{field}.type")
    coding, usual = known
    rate = usual if requested.rate is None else requested.rate
    if coding != "pcm16" and rate != TELEPHONE_RATE:
        raise InvalidEvent(f"must be {TELEPHONE_RATE}.", field=f"{field}.rate")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InvalidEvent(f"must be {LOWEST_RATE} to {HIGHEST_RATE}.", field=f"{field}.rate")
    return coding, rate


def _voice(requested: str | VoiceId | None, capabilities: AudioCapabilities, field: str) -> str | None:
    name = requested.id if isinstance(requested, VoiceId) else requested
    if name in capabilities.voices:
        return name
    if name is None or name in VOICES or not capabilities.voices:
        return None
    raise InvalidEvent(f"is none of this server's voices, such as {capabilities.voices[0]}.", field=field)


def _check_language(requested: Transcription | None, capabilities: AudioCapabilities, field: str) -> None:
    language = "" if requested is None else (requested.language or "").partition("-")[0].lower()
    if language and capabilities.languages and language not in capabilities.languages:
        raise InvalidEvent(
            f"must be one of {', '.join(capabilities.languages)}: no other is understood.", field=field
        )


def _check(requested: Detection | None, field: str) -> None:
    """Raise InvalidEvent if a setting is out of range."""
    if requested is None:
        return
    if requested.idle_timeout_ms is not None:
        why = "can't be had: nobody is asked whether he is still there."
        raise InvalidEvent(why, field=f"{field}.idle_timeout_ms", code=_UNSUPPORTED)
    try:
        msgspec.convert(msgspec.to_builtins(_turn_detection(requested, interrupts=True)), TurnDetection)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        name = "silence_duration_ms" if wrong.field == "silence_ms" else wrong.field
        raise InvalidEvent(wrong.why, field=f"{field}.{name}") from None


def _turn_detection(requested: Detection | None, *, interrupts: bool) -> TurnDetection:
    if requested is None:
        return TurnDetection(type="none", interrupt=False)
    usual = TurnDetection()
    silence_ms = usual.silence_ms if requested.silence_duration_ms is None else requested.silence_duration_ms
    if is_semantic := requested.type == "semantic_vad":
        silence_ms = SILENCES_MS[requested.eagerness or "auto"]
    threshold = usual.threshold if requested.threshold is None else requested.threshold
    return TurnDetection(
        silence_ms=silence_ms,
        finished_ms=usual.finished_ms if is_semantic and requested.eagerness != "low" else silence_ms,
        unfinished_ms=max(silence_ms, usual.unfinished_ms) if is_semantic else silence_ms,
        threshold=max(_MIN_THRESHOLD, threshold),
        interrupt=interrupts,
    )
