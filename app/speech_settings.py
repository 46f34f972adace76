"""The settings of speech with their descriptions: the recognizer, the voice, and their limits."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

Parts = Annotated[
    Literal["auto", "off", "both", "recognition", "voice"],
    Meta(
        description="Parts of speech to serve: recognition: microphones, /v1/audio/transcriptions; voice: spoken replies, /v1/audio/speech. Needs the part `speech`. auto: the installed parts, with the bundled model."
    ),
]
Recognizer = Annotated[
    str,
    Meta(
        description="The recognizer: pocketsphinx, or the hub name or folder of a Whisper, Moonshine or CTC model (wav2vec 2.0, HuBERT)."
    ),
]
Grammar = Annotated[
    str | None,
    Meta(
        description="JSGF file with everything that pocketsphinx can understand; unset: English in general."
    ),
]
Voice = Annotated[
    str,
    Meta(
        description="The voice: espeak-ng, a program of the system, or the hub name or folder of a VITS, SpeechT5 or FastSpeech2Conformer model."
    ),
]
Vocoder = Annotated[
    str | None,
    Meta(
        description="Hub name or folder of the HiFi-GAN for SpeechT5, or FastSpeech2Conformer without its own."
    ),
]
Speakers = Annotated[
    str | None,
    Meta(description="Folder of speaker embeddings for SpeechT5: NAME.npy makes the voice NAME."),
]
Device = Annotated[
    str,
    Meta(pattern=r"^\s*[^\s,]+\s*$", description="Device of speech models: auto, cpu, cuda, cuda:1 …"),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    Meta(description="Type of speech models' weights; auto: float16 on CUDA, else float32."),
]
Seconds = Annotated[int, Meta(ge=1, le=3600, description="Seconds of one recording.")]
Chars = Annotated[int, Meta(ge=1, le=60_000, description="Characters of a spoken text.")]
Concurrency = Annotated[int, Meta(ge=1, le=256, description="Recordings at once, and as many spoken texts.")]
