"""The process that makes prompts: `python -m engine.prompts FD MODEL`. It has a tokenizer, but neither torch nor a model.

So templates and tokenization never hold the step loop's interpreter lock.
"""

from __future__ import annotations

import gc
import logging
import resource
import signal
import socket
import sys
from functools import partial
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
from engine.messages import BlockingChannel
from engine.prompts.jobs import BuildPrompt, Job, Ready

if TYPE_CHECKING:
    from engine.prompts.prompt import JobHandler
    from engine.text.formats import ReplyFormat

NOT_USABLE = 3
"""The exit code if the tokenizer can't be read. The engine's process logs why."""

_KIBIBYTE = 1024

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Make prompts until the engine's process ends. `arguments`: the descriptor of the socket for jobs; the model."""
    machine.set_up_logs()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    machine.end_with_parent()
    decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
    channel = BlockingChannel(socket.socket(fileno=int(arguments[0])), decoder)
    try:
        builder = _builder(arguments[1])
    except ModelNotUsable:
        return NOT_USABLE
    gc.collect()
    gc.freeze()
    try:
        channel.send(Ready(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE))
        for job in channel.receive():
            channel.send(builder.build(job) if isinstance(job, BuildPrompt) else builder.decode_image(job))
    except OSError:
        log.debug("engine's process disconnected")
    return 0


def _builder(model: str) -> JobHandler:
    """Load the tokenizer. Raises ModelNotUsable."""
    # transformers imports torch if it can: 200 MB and three seconds that no tokenizer needs.
    cast("dict[str, Any]", sys.modules)["torch"] = None
    from engine.loading.tokenizer import (  # noqa: PLC0415 - after the line above
        TranslationTokenizer,
        generation_of,
        read_config,
        read_tokenizer,
    )
    from engine.prompts.prompt import (  # noqa: PLC0415
        JobHandler,
        PromptBuilder,
        PromptImages,
        TranslationBuilder,
    )
    from engine.text.formats import detect_format  # noqa: PLC0415
    from engine.vision.processor import ImageProcessor, takes_images  # noqa: PLC0415 - as above

    machine.remove_library_handlers()
    config = read_config(model)
    tokenizer = read_tokenizer(model, config)
    if config.is_encoder_decoder:
        languages = TranslationTokenizer(tokenizer, config, generation_of(model, config))
        return JobHandler(TranslationBuilder(languages))
    how = detect_format(tokenizer)
    prompt_images = PromptImages(ImageProcessor.of(model)) if takes_images(config) else None
    return JobHandler(PromptBuilder(tokenizer, how, prompt_images), _grammars(tokenizer, how), prompt_images)


def _grammars(tokenizer: Any, how: ReplyFormat | None) -> GrammarMaker | None:
    """Return a maker of grammars; None if the tokenizer allows none; the engine's process logs why."""
    try:
        vocabulary = vocabulary_of(tokenizer)
    except NoGrammars:
        return None
    calls, thoughts = (None, None) if how is None else (how.call_form, how.thought_form)
    write = partial(GrammarWriter, vocabulary.specials, vocabulary.loose, calls=calls)
    opened = None if thoughts is None else write(thoughts=msgspec.structs.replace(thoughts, opened=True))
    return GrammarMaker(write(thoughts=thoughts), GrammarTrials(GrammarCompiler(vocabulary)), opened=opened)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
