"""Models of transformers behind the doors for sound, in a real service: random weights, so shapes and ways, no quality."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from app.setting_values import SettingsError
from app.settings import Settings
from app.setup.speech import audio_of
from speech.sound.wav import recording_of
from tests.server_process import ServerProcess, child_of, serving
from tests.speech.models import checkpoints
from tests.speech.test_wav import wav

EARS, VOICE = "whisper-tiny-random", "mms-random"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    checkpoints.whisper(folder / EARS)
    checkpoints.vits(folder / VOICE)
    return folder


@pytest.fixture(scope="module")
def speaking(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    environ = {
        "MIDSTREAM_SPEECH": "both",
        "MIDSTREAM_SPEECH_RECOGNIZER": str(folder / EARS),
        "MIDSTREAM_SPEECH_VOICE": str(folder / VOICE),
        "MIDSTREAM_SPEECH_DEVICE": "cpu",
        "MIDSTREAM_MESSAGE_RATE": "1000",
        "OMP_NUM_THREADS": "1",
    }
    with serving(tmp_path_factory.mktemp("speaking"), environ) as server:
        yield server


@pytest.fixture
def sdk(speaking: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{speaking.url}/v1", api_key="anything", max_retries=0) as client:
        yield client


def sound(seconds: float, seed: int = 0) -> bytes:
    samples = np.random.default_rng(seed).normal(0, 3000, int(seconds * 16_000))
    return wav(samples.astype("<i2").tobytes())


def pid_of(server: ServerProcess, module: str) -> int | None:
    assert server.process is not None
    return child_of(server.process.pid, module)


def test_a_recording_becomes_words_with_times(sdk: OpenAI) -> None:
    told = sdk.audio.transcriptions.create(
        model=EARS,
        file=("a.wav", sound(7)),
        language="de",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert told.language == "german"
    assert told.words
    assert told.segments
    assert {word for one in told.segments for word in one.text.split()} <= {
        word.strip() for word in checkpoints.WORDS
    }
    assert all(0 <= one.start <= one.end <= 7 for one in told.segments)
    assert " ".join(word.word for word in told.words) == told.text


def test_recordings_that_come_at_once_are_heard_as_alone(sdk: OpenAI) -> None:
    files = [sound(4, seed) for seed in range(4)]

    def heard(file: bytes) -> str:
        return sdk.audio.transcriptions.create(model=EARS, file=("a.wav", file), language="en").text

    with ThreadPoolExecutor(4) as together:
        at_once = list(together.map(heard, files))
    assert at_once == [heard(file) for file in files]
    assert any(at_once)


def test_a_text_becomes_sound_clause_by_clause(sdk: OpenAI) -> None:
    def said(text: str, **more: float) -> float:
        answer = sdk.audio.speech.create(model=VOICE, voice="default", input=text, **more)
        return recording_of(answer.content, is_raw=False).seconds

    one, other = said("The light was red."), said("He said no.")
    assert said("The light was red. He said no.") == pytest.approx(one + other, abs=0.01)
    assert said("The light was red.", speed=2.0) < one
    pcm = sdk.audio.speech.create(
        model=VOICE, voice="default", input="The light was red.", response_format="pcm"
    )
    assert len(pcm.content) / 48_000 == pytest.approx(one, abs=0.01)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"language": "fr"}, "does not understand this language. It has en, de"),
        ({"model": "pocketsphinx"}, f'This server has "{EARS}" here'),
        ({"file": ("a.wav", wav(bytes(8), rate=96_000))}, "96,000 samples a second"),
        ({"file": ("a.wav", wav(b"\xff" * 8_000 * 3_600, tag=7, rate=8_000, bits=8))}, "3,600 seconds"),
        ({"file": ("a.wav", b"")}, "The file is empty"),
    ],
)
def test_what_can_not_be_heard_is_refused_by_a_sentence(
    sdk: OpenAI, asked: dict[str, object], why: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=why):
        sdk.audio.transcriptions.create(**{"model": EARS, "file": ("a.wav", sound(1))} | asked)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"voice": "alloy"}, "no such voice. It has default"),
        ({"speed": 3.0}, "from 0.5 to 2.0"),
        ({"input": "你好"}, "The voice made no sound"),
        ({"model": "espeak-ng"}, f'This server has "{VOICE}" here'),
    ],
)
def test_what_can_not_be_spoken_is_refused_by_a_sentence(
    sdk: OpenAI, asked: dict[str, object], why: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=why):
        sdk.audio.speech.create(**{"model": VOICE, "voice": "default", "input": "Hello"} | asked)


@pytest.mark.parametrize("room", ["recognition", "voice"])
async def test_a_process_that_is_killed_is_told_of_and_started_again(
    speaking: ServerProcess, room: str
) -> None:
    pid = pid_of(speaking, f"speech.{room}.models")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    asked = {"model": VOICE, "voice": "default", "input": "Hello."}
    form = {"data": {"model": EARS}, "files": {"file": ("a.wav", sound(1))}}
    path, body = {
        "recognition": ("/v1/audio/transcriptions", form),
        "voice": ("/v1/audio/speech", {"json": asked}),
    }[room]
    async with httpx.AsyncClient(base_url=speaking.url, timeout=60) as client:
        waiting = asyncio.create_task(client.post(path, **body))  # type: ignore[arg-type]
        while "midstream_" not in (await client.get("/metrics")).text:
            pass
        done, _ = await asyncio.wait((waiting,), timeout=0.5)
        assert not done
        os.kill(pid, signal.SIGKILL)
        answer = await waiting
        assert answer.status_code == 503
        assert "ended while it" in answer.text
        while (answer := await client.post(path, **body)).status_code == 503:  # type: ignore[arg-type]
            assert "not ready yet" in answer.text
        assert answer.status_code == 200
    assert pid_of(speaking, f"speech.{room}.models") not in {None, pid}


def test_the_gateway_has_no_torch_though_models_hear_and_speak(speaking: ServerProcess) -> None:
    assert speaking.process is not None
    maps = Path(f"/proc/{speaking.process.pid}/maps").read_text()
    assert "libtorch" not in maps


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"speech_recognizer": "/nowhere"}, "SPEECH_RECOGNIZER .*'/nowhere' does not exist"),
        ({"speech_recognizer": "a b"}, "neither a folder nor a name of the hub"),
        ({"speech_recognizer": "{vits}"}, "type 'vits', which is none that recognises"),
        ({"speech_voice": "{whisper}"}, "type 'whisper', which is none that speaks"),
        ({"speech_voice": "{empty}"}, "has no config.json"),
        ({"speech_voice": "{broken}"}, "can't be read"),
        ({"speech_voice": "{speecht5}"}, "needs a vocoder"),
        ({"speech_voice": "{speecht5}", "speech_vocoder": "a/b"}, "needs a folder of speaker embeddings"),
        (
            {"speech_voice": "{speecht5}", "speech_vocoder": "a/b", "speech_speakers": "{empty}"},
            "has no speaker embeddings",
        ),
        ({"speech_voice": "{vits}", "speech_vocoder": "./x"}, "SPEECH_VOCODER .*does not exist"),
        (
            {"speech_voice": "{vits}", "speech_device": "tpu"},
            "SPEECH_DEVICE .*'tpu' is not the name of a device",
        ),
        ({"speech_recognizer": "{ctc}"}, "is Wav2Vec2ForPreTraining, and one whose name ends with ForCTC"),
    ],
)
async def test_a_name_that_can_not_be_served_is_refused_before_anything_is_started(
    folder: Path, tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    told = {"broken": "{", "speecht5": '{"model_type": "speecht5"}'}
    told |= {"ctc": '{"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForPreTraining"]}'}
    for name, config in told.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    (tmp_path / "empty").mkdir()
    places = {name: str(tmp_path / name) for name in (*told, "empty")}
    places |= {"whisper": str(folder / EARS), "vits": str(folder / VOICE)}
    speech = "voice" if "speech_voice" in settings else "recognition"
    asked = {name: value.format(**places) for name, value in settings.items()}
    with pytest.raises(SettingsError, match=why):
        async with audio_of(Settings(speech=speech, **asked)):
            pass


async def test_what_only_its_process_can_see_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    checkpoints.vits(tmp_path / "phonemes", phonemize=True)
    settings = Settings(speech="voice", speech_voice=str(tmp_path / "phonemes"))
    with pytest.raises(SettingsError, match="SPEECH_VOICE .*wants phonemes by the library phonemizer"):
        async with audio_of(settings):
            pass
