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

from engine import process_log
from engine.errors import ModelNotUsable
from engine.grammar.compiling import Compiler
from engine.grammar.making import GrammarMaker
from engine.grammar.trial import Trials
from engine.grammar.vocabulary import NoGrammars, vocabulary_of
from engine.grammar.writing import GrammarWriter
from engine.prompts.jobs import Answer, Build, FromPrompts, Hurry, Look, Ready, Remember, Stop, ToPrompts

if TYPE_CHECKING:
    from engine.parsing.formats import ReplyFormat
    from engine.prompts.builder import Builder

NOT_USABLE = 3
"""The exit code if the tokenizer can't be read. The engine's process says why."""

_PR_SET_PDEATHSIG = 1
_KIBIBYTE = 1024

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Make prompts until the engine's process ends. `arguments`: the descriptor of the connection to it, and the model."""
    process_log.set_up()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    line = Connection(int(arguments[0]))
    said = _Said(line)
    try:
        builder = _builder(arguments[1], said)
    except ModelNotUsable:
        return NOT_USABLE
    gc.collect()
    gc.freeze()
    try:
        _tell(line, Ready(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE))
        _serve(line, said, builder)
    except (EOFError, OSError):
        log.debug("the engine's process is gone")
    return 0


class _Said:
    """What comes while a prompt is made: only its `Stop`, and `Hurry`."""

    def __init__(self, line: Connection) -> None:
        self.hurried = False
        self._line = line
        self._is_stopped = False
        self._decoder: msgspec.msgpack.Decoder[ToPrompts] = msgspec.msgpack.Decoder(ToPrompts)

    def fileno(self) -> int:
        return self._line.fileno()

    def begin(self, job: Build) -> None:
        self.hurried, self._is_stopped = job.hurried, False

    def stops(self) -> bool:
        while self._line.poll():
            told = self.receive()
            self.hurried |= isinstance(told, Hurry)
            self._is_stopped |= isinstance(told, Stop)
        return self._is_stopped

    def receive(self) -> ToPrompts:
        return self._decoder.decode(self._line.recv_bytes())


def _builder(model: str, said: _Said) -> Builder:
    """Load the tokenizer. Raises ModelNotUsable."""
    # transformers imports torch if it can: 200 MB and three seconds that no tokenizer needs.
    cast("dict[str, Any]", sys.modules)["torch"] = None
    from engine.loading.languages import is_translator  # noqa: PLC0415 - after the line above
    from engine.loading.seeing import Eyes, is_seeing  # noqa: PLC0415
    from engine.loading.tokenizer import read_tokenizer  # noqa: PLC0415
    from engine.parsing.known import format_of  # noqa: PLC0415
    from engine.prompts.builder import Builder  # noqa: PLC0415
    from engine.prompts.looking import Looker  # noqa: PLC0415
    from engine.prompts.prompt import PromptBuilder  # noqa: PLC0415
    from engine.prompts.translation import TranslationBuilder  # noqa: PLC0415

    process_log.tell_once()
    tokenizer = read_tokenizer(model)
    if is_translator(model):
        return Builder(TranslationBuilder.of(model, tokenizer))
    how = format_of(tokenizer)
    looker = Looker(Eyes.of(model)) if is_seeing(model) else None
    return Builder(PromptBuilder(tokenizer, how, looker), _grammars(tokenizer, how, said), looker)


def _grammars(tokenizer: Any, how: ReplyFormat | None, said: _Said) -> GrammarMaker | None:
    """Return a maker of grammars; None if the tokenizer allows none, of which the engine's process logs the reason."""
    try:
        vocabulary = vocabulary_of(tokenizer)
    except NoGrammars:
        return None
    calls, thoughts = (None, None) if how is None else (how.call_form, how.thought_form)
    write = partial(GrammarWriter, vocabulary.specials, vocabulary.loose, calls=calls)
    opened = None if thoughts is None else write(thoughts=msgspec.structs.replace(thoughts, opened=True))
    return GrammarMaker(write(thoughts=thoughts), Trials(Compiler(vocabulary), said), opened=opened)


def _serve(line: Connection, said: _Said, builder: Builder) -> None:
    while True:
        told = said.receive()
        if isinstance(told, Remember):
            builder.remember(told)
        elif isinstance(told, Build):
            said.begin(told)
            answer: Answer = builder.build(told, said.stops)
            _tell(line, answer)
        elif isinstance(told, Look):
            _tell(line, builder.look(told))


def _tell(line: Connection, told: FromPrompts) -> None:
    line.send_bytes(msgspec.msgpack.encode(told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
