"""A process for sound: `python -m speech KIND [OPTIONS] DESCRIPTOR`, which ends with the gateway.

What a kind needs is imported for it alone: some need torch, and some PocketSphinx.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from speech.errors import ModelLoadError
from speech.interfaces import ModelOptions
from speech.model_voice import ToVoice, VoiceWorker
from speech.process import Channel, Refused, Worker
from speech.recognition import PocketSphinx, RecognizerOptions, ToListener, ToRecognizer
from speech.recordings import Decode

_REQUESTS: dict[str, Any] = {
    "recognition": ToRecognizer,
    "listening": ToListener,
    "voice": ToVoice,
    "decoding": Decode,
}


def main() -> None:
    """Load what the process needs, and serve requests; refuse if the model can't be used."""
    kind, *options, descriptor = sys.argv[1:]
    channel = Channel(int(descriptor), _REQUESTS[kind])
    if kind == "decoding":
        from speech.compression import decode  # noqa: PLC0415 - see above

        decode(channel)
        return
    try:
        worker = _worker(channel, kind, *options)
    except ModelLoadError as error:
        channel.send(Refused(str(error)))
        sys.exit(1)
    worker.run()


def _worker(channel: Channel, kind: str, encoded: str) -> Worker[Any]:
    """Load a model. Raises ModelLoadError."""
    if kind == "voice":
        from speech import voice_models  # noqa: PLC0415 - see above

        voice = voice_models.load(msgspec.json.decode(encoded, type=ModelOptions))
        return VoiceWorker(channel, voice.facts, voice.speak)
    from speech.recognition_worker import RecognitionModel, RecognizerWorker  # noqa: PLC0415 - see above

    options: RecognizerOptions = msgspec.json.decode(encoded, type=RecognizerOptions)
    model: RecognitionModel
    if isinstance(options, PocketSphinx):
        from speech.pocketsphinx_decoder import PocketSphinxDecoder  # noqa: PLC0415 - see above

        model = PocketSphinxDecoder(options.grammar)
    else:
        from speech import recognition_models  # noqa: PLC0415 - see above

        model = recognition_models.load(options)
    if kind == "recognition":
        return RecognizerWorker(channel, model)
    from speech.listening_worker import ListenWorker  # noqa: PLC0415 - see above

    return ListenWorker(channel, model.facts, model.recognize)


if __name__ == "__main__":
    main()
