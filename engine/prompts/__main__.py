"""The process that makes prompts: `python -m engine.prompts FD MODEL`. It has a tokenizer, but neither torch nor a model.

So templates and tokenization never hold the step loop's interpreter lock. The process' memory of replies is lost with it:
the tokenizer spells them in their next prompts, and these are computed anew.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

import msgspec

from engine import machine
from engine.errors import ModelNotUsable
from engine.grammar import (
    GrammarCompiler,
    GrammarMaker,
    GrammarTrials,
    GrammarWriter,
    NoGrammars,
    vocabulary_of,
)
from engine.prompts.jobs import (
    Answer,
    BuildPrompt,
    DecodeImage,
    FromPrompts,
    RaisePriority,
    Ready,
    RememberReply,
    Stop,
    ToPrompts,
)

if TYPE_CHECKING:
    from engine.prompts.prompt import JobHandler
    from engine.text.formats import ReplyFormat

NOT_USABLE = 3
"""The exit code if the tokenizer can't be read. The engine's process says why."""

_PR_SET_PDEATHSIG = 1
_KIBIBYTE = 1024

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Make prompts until the engine's process ends. `arguments`: the descriptor of the connection to it, and the model."""
    machine.set_up_logs()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    line = Connection(int(arguments[0]))
    signals = _JobSignals(line)
    try:
        builder = _builder(arguments[1], signals)
    except ModelNotUsable:
        return NOT_USABLE
    gc.collect()
    gc.freeze()
    try:
        _send(line, Ready(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE))
        _serve(line, signals, builder)
    except (EOFError, OSError):
        log.debug("engine's process disconnected")
    return 0


class _JobSignals:
    """What comes while a prompt is made: only its `Stop`, and `RaisePriority`."""

    def __init__(self, line: Connection) -> None:
        self.hurried = False
        self._line = line
        self._is_stopped = False
        self._decoder: msgspec.msgpack.Decoder[ToPrompts] = msgspec.msgpack.Decoder(ToPrompts)

    def fileno(self) -> int:
        return self._line.fileno()

    def begin(self, job: BuildPrompt) -> None:
        self.hurried, self._is_stopped = job.hurried, False

    def stops(self) -> bool:
        while self._line.poll():
            message = self.receive()
            self.hurried |= isinstance(message, RaisePriority)
            self._is_stopped |= isinstance(message, Stop)
        return self._is_stopped

    def receive(self) -> ToPrompts:
        return self._decoder.decode(self._line.recv_bytes())


def _builder(model: str, signals: _JobSignals) -> JobHandler:
    """Load the tokenizer. Raises ModelNotUsable."""
    # transformers imports torch if it can: 200 MB and three seconds that no tokenizer needs.
    cast("dict[str, Any]", sys.modules)["torch"] = None
    from engine.loading.tokenizer import is_translator, read_tokenizer  # noqa: PLC0415 - after the line above
    from engine.prompts.prompt import (  # noqa: PLC0415
        JobHandler,
        PromptBuilder,
        PromptImages,
        TranslationBuilder,
    )
    from engine.text.formats import detect_format  # noqa: PLC0415
    from engine.vision.processor import ImageProcessor, is_vision_model  # noqa: PLC0415 - as above

    machine.remove_library_handlers()
    tokenizer = read_tokenizer(model)
    if is_translator(model):
        return JobHandler(TranslationBuilder.of(model, tokenizer))
    how = detect_format(tokenizer)
    prompt_images = PromptImages(ImageProcessor.of(model)) if is_vision_model(model) else None
    return JobHandler(
        PromptBuilder(tokenizer, how, prompt_images), _grammars(tokenizer, how, signals), prompt_images
    )


def _grammars(tokenizer: Any, how: ReplyFormat | None, signals: _JobSignals) -> GrammarMaker | None:
    """Return a maker of grammars; None if the tokenizer allows none, of which the engine's process logs the reason."""
    try:
        vocabulary = vocabulary_of(tokenizer)
    except NoGrammars:
        return None
    calls, thoughts = (None, None) if how is None else (how.call_form, how.thought_form)
    write = partial(GrammarWriter, vocabulary.specials, vocabulary.loose, calls=calls)
    opened = None if thoughts is None else write(thoughts=msgspec.structs.replace(thoughts, opened=True))
    return GrammarMaker(
        write(thoughts=thoughts), GrammarTrials(GrammarCompiler(vocabulary), signals), opened=opened
    )


def _serve(line: Connection, signals: _JobSignals, builder: JobHandler) -> None:
    while True:
        message = signals.receive()
        if isinstance(message, RememberReply):
            builder.remember(message)
        elif isinstance(message, BuildPrompt):
            signals.begin(message)
            answer: Answer = builder.build(message, signals.stops)
            _send(line, answer)
        elif isinstance(message, DecodeImage):
            _send(line, builder.decode_image(message))


def _send(line: Connection, message: FromPrompts) -> None:
    line.send_bytes(msgspec.msgpack.encode(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
