"""Compresses spoken texts for clients, by PyAV (FFmpeg)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

import av
import numpy as np

from speech.sound.wav import RAW_RATE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Compression = Literal["mp3", "opus", "aac", "flac"]
_BIT_RATE = 64_000
_BUFFER_BYTES = 4096
"""Compressed bytes that wait in FFmpeg: its own default would hold seconds of speech back."""
_KINDS: dict[Compression, tuple[str, str, dict[str, str]]] = {
    "mp3": ("mp3", "libmp3lame", {"write_xing": "0", "id3v2_version": "0"}),
    "opus": ("ogg", "libopus", {"page_duration": "200000"}),
    "aac": ("adts", "aac", {}),
    "flac": ("flac", "flac", {}),
}
"""The muxer, the encoder, and the muxer's options for output that is sent while it is made."""


class Encoder:
    """Compresses a stream of 16-bit PCM with one channel, part by part, at OpenAI's rate of 24,000 Hz."""

    def __init__(self, compression: Compression, rate: int) -> None:
        """`rate`: samples per second of the PCM."""
        muxer, codec, options = _KINDS[compression]
        self._rate = rate
        self._output = _Output()
        self._container = av.open(
            self._output,
            "w",
            format=muxer,
            container_options=options | {"flush_packets": "1"},
            buffer_size=_BUFFER_BYTES,
        )
        stream = self._container.add_stream(codec, rate=RAW_RATE, layout="mono")
        assert isinstance(stream, av.AudioStream)  # noqa: S101 - the codecs are of sound
        self._stream = stream
        self._stream.bit_rate = _BIT_RATE

    def part(self, pcm: bytes) -> bytes:
        """Return the bytes that are ready after these whole samples."""
        if pcm:
            frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2")[None], format="s16", layout="mono")
            frame.sample_rate = self._rate
            self._container.mux(self._stream.encode(frame))
        return self._output.take()

    def last_part(self) -> bytes:
        """Return the bytes that are ready after all samples."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._output.take()


class _Output(io.RawIOBase):
    """Collects what FFmpeg writes. It can't be rewound, so FFmpeg never goes back to a header."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, part: ReadableBuffer, /) -> int:
        before = len(self._waiting)
        self._waiting += part
        return len(self._waiting) - before

    def take(self) -> bytes:
        ready = bytes(self._waiting)
        self._waiting.clear()
        return ready
