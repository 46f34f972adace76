"""The engine's process: `python -m engine.process FD OPTIONS`. The only process of an engine that imports torch.

Its main thread loads the model and runs the step loop. One thread reads the gateway's socket, another one has prompts made
by a separate process. The engine's process ends on SIGTERM, or when the gateway ends in any way.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import msgspec

from engine import machine
from engine.errors import ModelNotUsable
from engine.machine import EngineOptions, resident_bytes, torch_settings, with_usage
from engine.messages import BlockingChannel, LoadFailed, Loading, ToEngine
from engine.process.dispatcher import Dispatcher, Inbox, RequestBuilder, StepLoop
from engine.prompts.jobs import PromptProcess

if TYPE_CHECKING:
    from engine.execution.executor import LoadedModel

NOT_USABLE = 3
"""The exit code for a model that can't be served: `LoadFailed` says why, without a traceback."""

_OF_PROMPTS = {"TRANSFORMERS_VERBOSITY": "critical", "TOKENIZERS_PARALLELISM": "false"}
"""The environment of the process that makes prompts: it has no torch, and handles one text at a time."""

_PATIENCE_S = 5.0

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve until the gateway ends. `arguments`: the socket's descriptor, and `EngineOptions` as JSON."""
    descriptor, options = int(arguments[0]), msgspec.json.decode(arguments[1], type=EngineOptions)
    machine.set_up_logs()
    _exit_with_the_gateway()
    os.environ.update(torch_settings(os.environ))
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
    channel, inbox = BlockingChannel(connection, decoder), Inbox()
    prompts = PromptProcess(options.model, environment=os.environ | _OF_PROMPTS)
    dispatcher = Dispatcher(channel, inbox, prompts)
    dispatcher.start(at_end=_ender())
    try:
        loop = _load(options, channel, inbox, dispatcher)
    except ModelNotUsable as error:
        _finish_undisturbed()
        channel.send(LoadFailed(str(error)))
        return NOT_USABLE
    try:
        while True:
            loop.run_once()
    except (BrokenPipeError, ConnectionResetError):
        _finish_undisturbed()
        log.info("gateway disconnected")
        return 0


def _load(
    options: EngineOptions, channel: BlockingChannel[ToEngine], inbox: Inbox, dispatcher: Dispatcher
) -> StepLoop:
    """Load the model, notify the gateway, and return the loop that serves the model. Raises ModelNotUsable."""
    channel.send(Loading("importing torch and transformers", 0.0))
    gc.disable()  # imported objects stay, and each collection would visit them
    import torch  # noqa: PLC0415

    from engine.loading.loader import load  # noqa: PLC0415
    from engine.prompts.prompt import (  # noqa: PLC0415
        PromptBuilder,
        PromptImages,
        TranslationBuilder,
    )
    from engine.scheduling.core import EngineCore  # noqa: PLC0415 - seconds of imports, begun once the gateway can be notified
    from engine.text.formats import detect_format  # noqa: PLC0415
    from engine.text.parser import ReplyFactory  # noqa: PLC0415
    from engine.vision.processor import ImageProcessor  # noqa: PLC0415 - as above

    machine.remove_library_handlers()
    gc.freeze()  # along with a little garbage of the imports
    gc.enable()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    model = load(options, progress=lambda stage, share: channel.send(Loading(stage, share)))
    core = EngineCore(model, request_decode=dispatcher.look)
    how = detect_format(model.tokenizer)
    log.info("replies are parsed: %s", how.name if how is not None else "they are only text")
    dispatcher.set_request_builder(
        RequestBuilder(
            ReplyFactory(model.tokenizer, how),
            model.defaults,
            context_tokens=model.context_tokens,
        )
    )
    gc.collect()
    gc.freeze()  # half a million objects, whose collection would stop all replies for some 0.3 s
    _log_memory(model)
    facts = model.facts()
    prompt_images = (
        PromptImages(ImageProcessor.of(options.model)) if model.vision_config is not None else None
    )
    features = (
        TranslationBuilder.features
        if model.translation_config
        else PromptBuilder(model.tokenizer, how, prompt_images).features
    )
    channel.send(msgspec.structs.replace(facts, features=(*facts.features, *features)))
    on_cuda = model.device.type == "cuda"
    memory = partial(torch.cuda.mem_get_info, model.device) if on_cuda else None
    return StepLoop(core, inbox, channel.send, used=partial(with_usage, device_memory=memory))


def _log_memory(model: LoadedModel) -> None:
    on_cpu = model.device.type == "cpu"
    taken = resident_bytes() if on_cpu else sum(one.nbytes for one in model.module.parameters())
    log.info(
        "memory%s: %s MB with weights and libraries, and up to %s MB for keys and values of %s tokens",
        "" if on_cpu else f" of {model.device}",
        f"{taken / 10**6:,.0f}",
        f"{model.kv.total_bytes / 10**6:,.0f}",
        f"{model.kv.pages * model.kv.page_size:,}",
    )


def _exit_with_the_gateway() -> None:
    """Leave signals for the service's whole group to the gateway; end cleanly on SIGTERM, and at once when the gateway dies.

    The session stays the gateway's: Linux shares processors out between sessions, and an engine with one of its own would get
    half of a busy machine.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    machine.end_with_parent()


def _leave(_signal: int, _frame: object) -> NoReturn:
    _finish_undisturbed()
    raise SystemExit(0)


def _finish_undisturbed() -> None:
    """Ignore further signals: raised after the last `except` they would print a traceback."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _ender() -> Callable[[], None]:
    """Return a function that ends this process from a thread: by a signal, or at once if the main thread does not react."""
    main_thread = threading.main_thread()

    def end() -> None:
        signal.pthread_kill(main_thread.ident or 0, signal.SIGTERM)
        threading.Event().wait(_PATIENCE_S)
        os._exit(0)

    return end


def _run_and_end() -> NoReturn:
    """Run, and exit without freeing torch and the model, which takes a second."""
    try:
        code = main(sys.argv[1:])
    except SystemExit as end:
        code = (end.code or 0) if isinstance(end.code, int | None) else 1
        if code:
            log.critical("the engine ends: %s", end.code)
    except Exception:  # noqa: BLE001 - the process' own boundary
        sys.excepthook(*sys.exc_info())
        code = 1
    logging.shutdown()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _run_and_end()
