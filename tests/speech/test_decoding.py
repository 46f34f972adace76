"""Compressed recordings are decoded in a process of their own, within bounds."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from speech.compression import Encoder, decoded
from speech.errors import BadSound, TooMuchSound
from speech.recordings import Decode, _decoded, container_of, recording_in
from speech.samples import mono
from tests.server_process import child_of
from tests.speech.compressed import KINDS, compressed, tone
from tests.speech.test_wav import wav

DECODER = "speech decoding"


async def started() -> int:
    """Return the process id of the decoder, once there is one."""
    while (pid := child_of(os.getpid(), DECODER)) is None:  # noqa: ASYNC110 - another process has no event here
        await asyncio.sleep(0)
    return pid


@pytest.mark.parametrize("suffix", KINDS)
async def test_a_compressed_recording_is_decoded(suffix: str) -> None:
    recording = await recording_in(compressed(tone(2), suffix), is_raw=False, longest_s=3)
    samples = mono(recording, 16_000)
    assert len(samples) / 16_000 == pytest.approx(2, abs=0.1)
    spectrum = np.abs(np.fft.rfft(samples[8_000:24_000]))
    assert int(spectrum.argmax()) == pytest.approx(48_000 / 20 / (2 * np.pi), abs=2)


async def test_the_sound_of_a_video_is_decoded() -> None:
    file = compressed(tone(1), "webm", has_picture=True)
    assert (await recording_in(file, is_raw=False, longest_s=3)).seconds == pytest.approx(1, abs=0.05)


async def test_pcm_needs_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    file = compressed(tone(1), "mp3")
    monkeypatch.setitem(sys.modules, "av", None)  # as if it were not installed
    assert (await recording_in(wav(), is_raw=False, longest_s=3)).seconds == 1
    assert (await recording_in(bytes(96_000), is_raw=True, longest_s=3)).seconds == 2
    with pytest.raises(BadSound, match=r'pip install "midstream-server\[speech\]"'):
        await recording_in(file, is_raw=False, longest_s=3)


@pytest.mark.parametrize("file", [wav(), compressed(tone(1), "flac")])
async def test_a_recording_that_is_too_long_is_refused(file: bytes) -> None:
    with pytest.raises(TooMuchSound, match="too long"):
        await recording_in(file, is_raw=False, longest_s=0)


async def test_a_small_file_of_an_hour_is_decoded_no_further_than_the_bound() -> None:
    hour = compressed(bytes(2 * 8_000 * 4_000), "flac", rate=8_000)
    assert len(hour) < 1 << 20
    with pytest.raises(TooMuchSound, match="it may last at most 600 seconds"):
        await recording_in(hour, is_raw=False, longest_s=600)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "empty"),
        (wav(b""), "too short"),
        (wav()[:30], "damaged"),
        (wav(rate=96_000_000), "96,000,000 samples a second"),
        (b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 100_000, "damaged"),
        (b"ID3" + b"garbage" * 999, "damaged"),
        (b"\x1aE\xdf\xa3" + bytes(999), "damaged"),
        (compressed(tone(1), "m4a")[:200], "damaged"),
        (compressed(tone(0.01), "flac"), "too short"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "not a kind of sound"),
    ],
)
async def test_a_file_without_usable_sound_is_refused_by_a_sentence(file: bytes, why: str) -> None:
    with pytest.raises(BadSound, match=why):
        await recording_in(file, is_raw=False, longest_s=600)


def test_a_codec_that_is_not_of_speech_is_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        sound = container.add_stream("ac3", rate=48_000, layout="stereo")
        silence = av.AudioFrame(format="fltp", layout="stereo", samples=1536)
        silence.sample_rate = 48_000
        container.mux([*sound.encode(silence), *sound.encode(None)])
    with pytest.raises(BadSound, match="ac3, is not supported"):
        decoded(file.getvalue(), "matroska", longest_s=9)


async def test_a_decoder_opens_no_other_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.aac"
    secret.write_bytes(compressed(tone(1), "aac"))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n".encode()
    with pytest.raises(BadSound, match="damaged"):  # no playlist gets this far by its first bytes
        await _decoded(Decode(playlist, "hls", 9, 30))


async def test_a_file_that_takes_too_long_ends_its_process() -> None:
    with pytest.raises(BadSound, match="too long to decode"):
        await recording_in(compressed(tone(1), "mp3"), is_raw=False, longest_s=600, patience_s=0.001)
    assert child_of(os.getpid(), DECODER) is None


async def test_a_decoder_that_crashes_fails_its_own_file_alone() -> None:
    files = [compressed(tone(1), suffix) for suffix in ("mp3", "flac")]
    first = asyncio.create_task(recording_in(files[0], is_raw=False, longest_s=3))
    pid = await started()
    second = asyncio.create_task(recording_in(files[1], is_raw=False, longest_s=3))
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(BadSound, match="could not be decoded"):
        await first
    assert (await second).seconds == pytest.approx(1, abs=0.1)


async def test_a_client_that_leaves_ends_the_decoder() -> None:
    waiting = asyncio.create_task(recording_in(compressed(tone(1), "mp3"), is_raw=False, longest_s=3))
    await started()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert child_of(os.getpid(), DECODER) is None


FILES = [compressed(tone(0.3), suffix) for suffix in KINDS]


WEBM = next(file for file in FILES if file.startswith(b"\x1aE\xdf\xa3"))


@settings(deadline=None)
@example(WEBM, b"\0", WEBM.index(b"A_OPUS"))  # a track without a codec
@given(st.sampled_from(FILES), st.binary(max_size=40), st.integers(0, 3_000))
def test_a_damaged_file_has_its_sound_or_is_refused(file: bytes, noise: bytes, at: int) -> None:
    damaged = file[:at] + noise + file[at + len(noise) :]
    with suppress(BadSound, av.FFmpegError, ValueError):
        assert len(decoded(damaged, container_of(damaged), longest_s=600)) <= 2 * 16_000 * 601


@pytest.mark.parametrize("compression", ["mp3", "opus", "aac", "flac"])
async def test_sound_is_compressed_while_it_is_made(compression: str) -> None:
    encoder = Encoder(compression, 22_050)
    pcm = tone(4, 22_050)
    parts = [encoder.part(pcm[at : at + 8_192]) for at in range(0, len(pcm), 8_192)]
    assert all(any(parts[at : at + 4]) for at in range(len(parts) - 4))
    file = b"".join(parts) + encoder.last_part()
    assert len(file) < len(pcm)
    assert (await recording_in(file, is_raw=False, longest_s=9)).seconds == pytest.approx(4, abs=0.1)
