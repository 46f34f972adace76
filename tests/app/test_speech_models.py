"""Models of transformers behind the endpoints for sound. Their weights are random, so quality is not tested."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from app.settings import Settings, SettingsError
from app.speech import audio_of
from tests.app.in_process_service import serving
from tests.speech.compressed import compressed, tone
from tests.speech.models import checkpoints
from tests.speech.test_wav import wav

pytestmark = pytest.mark.asyncio(loop_scope="module")

EARS, VOICE = "whisper-tiny-random", "mms-random"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    checkpoints.whisper(folder / EARS)
    checkpoints.vits(folder / VOICE)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client, connected to a service that hears and speaks with models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        service = serving(
            tmp_path_factory.mktemp("speaking"),
            speech="both",
            speech_recognizer=str(folder / EARS),
            speech_voice=str(folder / VOICE),
            device="cpu",
            speech_seconds=3000,
            message_rate=1000.0,
        )
        async with (
            service as running,
            AsyncOpenAI(base_url=f"{running.url}/v1", api_key="anything", max_retries=0) as client,
        ):
            yield client


def sound(seconds: float, seed: int = 0) -> bytes:
    samples = np.random.default_rng(seed).normal(0, 3000, int(seconds * 16_000))
    return wav(samples.astype("<i2").tobytes())


async def transcribe(sdk: AsyncOpenAI, file: bytes, language: str = "en") -> str:
    reported = await sdk.audio.transcriptions.create(model=EARS, file=("a.wav", file), language=language)
    return reported.text


async def synthesize(sdk: AsyncOpenAI, text: str, **more: Any) -> bytes:
    params = {"model": VOICE, "voice": "default", "input": text, "response_format": "wav"}
    answer = await sdk.audio.speech.create(**params | more)
    return answer.content


async def test_speech_models_have_a_device_of_their_own(folder: Path) -> None:
    settings = Settings(
        speech="voice", speech_voice=str(folder / VOICE), device="cuda:99", speech_device=" cpu "
    )
    async with audio_of(settings) as audio:
        assert audio.speaker is not None


async def test_recordings_that_come_at_once_become_segments_with_times(sdk: AsyncOpenAI) -> None:
    files = [("a.wav", sound(4, 1)), ("b.wav", sound(7, 2))]
    options: dict[str, Any] = {"model": EARS, "language": "german", "response_format": "verbose_json"}
    reports = await asyncio.gather(*(sdk.audio.transcriptions.create(file=file, **options) for file in files))
    for reported in reports:
        assert (reported.language, reported.words) == ("german", None)
        assert all(0 <= one.start <= one.end <= 7 for one in reported.segments)
        assert " ".join(one.text for one in reported.segments) == reported.text
        assert set(reported.text.split()) & {word.strip() for word in checkpoints.WORDS}
    assert reports[0].text == await transcribe(sdk, files[0][1], "de")


async def test_a_text_becomes_sound_clause_by_clause(sdk: AsyncOpenAI) -> None:
    texts = ["The light was red, and he said that it was green.", "He said that it was not red at all."]
    parts = [(await synthesize(sdk, text))[44:] for text in texts]
    assert (await synthesize(sdk, " ".join(texts)))[44:] == b"".join(parts)
    fast = (await synthesize(sdk, texts[0], speed=2.0))[44:]
    assert 0 < len(fast) < len(parts[0])
    pcm = await synthesize(sdk, texts[0], response_format="pcm")
    assert len(pcm) / 48_000 == pytest.approx(len(parts[0]) / 32_000, abs=0.01)


async def test_openais_names_are_the_models(sdk: AsyncOpenAI) -> None:
    text = "The light was red."
    assert await synthesize(sdk, text, model="tts-1", voice="coral") == await synthesize(sdk, text)
    for model in ("gpt-4o-transcribe", ""):  # Open WebUI sends an empty name by default
        reported = await sdk.audio.transcriptions.create(model=model, file=("a.wav", sound(4)), language="en")
        assert reported.text == await transcribe(sdk, sound(4))


async def test_a_service_without_pyav_speaks_as_wav_and_names_what_is_missing(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ("a.webm", compressed(tone(1), "webm"))
    monkeypatch.setitem(sys.modules, "av", None)  # as if it were not installed
    params = {"model": "tts-1", "voice": "alloy", "input": "He said that."}
    answer = await sdk.audio.speech.create(**params)
    assert answer.response.headers["content-type"] == "audio/wav"
    with pytest.raises(openai.BadRequestError, match=r'pip install "midstream-server\[speech\]"'):
        await sdk.audio.speech.create(**params, response_format="mp3")
    with pytest.raises(openai.BadRequestError, match=r'pip install "midstream-server\[speech\]"'):
        await sdk.audio.transcriptions.create(model="whisper-1", file=recording)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"language": "fr"}, "does not support this language. Supported: de, en"),
        ({"model": "pocketsphinx"}, f'This server has "{EARS}" here'),
        ({"file": ("a.wav", wav(bytes(8), rate=400_000))}, "400,000 samples a second"),
    ],
)
async def test_what_can_not_be_heard_is_refused_by_a_sentence(
    sdk: AsyncOpenAI, params: dict[str, Any], why: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=why):
        await sdk.audio.transcriptions.create(**{"model": EARS, "file": ("a.wav", sound(1))} | params)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"voice": "nobody"}, "Unknown voice. Available: default"),
        ({"speed": 3.0}, "from 0.5 to 2.0"),
        ({"input": "你好"}, "The voice produced no audio"),
        ({"model": "espeak-ng"}, f'This server has "{VOICE}" here'),
    ],
)
async def test_what_can_not_be_spoken_is_refused_by_a_sentence(
    sdk: AsyncOpenAI, params: dict[str, Any], why: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=why):
        await sdk.audio.speech.create(**{"model": VOICE, "voice": "default", "input": "Hello"} | params)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"speech": "recognition", "speech_recognizer": "{vits}"}, "SPEECH_RECOGNIZER .*type 'vits'"),
        ({"speech": "voice", "device": "tpu"}, "DEVICE .*'tpu' is not the name of a device"),
        ({"speech": "voice", "speech_device": "tpu"}, "SPEECH_DEVICE .*'tpu' is not the name"),
    ],
)
async def test_a_service_whose_settings_name_no_usable_model_does_not_start(
    folder: Path, settings: dict[str, str], why: str
) -> None:
    vits = str(folder / VOICE)
    given = {"speech_voice": vits} | {name: value.format(vits=vits) for name, value in settings.items()}
    with pytest.raises(SettingsError, match=why):
        async with audio_of(Settings(**given)):
            pass
