"""Compressed sound by PyAV (FFmpeg): spoken texts are encoded for clients, and uploaded files are decoded.

The gateway encodes. It decodes nothing: a process of its own does that for each file.
"""

from __future__ import annotations

import io
import resource
import sys
from math import ceil
from typing import Literal

import av
import av.error
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from speech.errors import BadSound, TooMuchSound
from speech.interfaces import LOWEST_RATE, RAW_RATE, Recording
from speech.process import Channel
from speech.recordings import Decode, Decoded, FromDecoder, Undecodable, header

Compression = Literal["mp3", "opus", "aac", "flac"]
_BIT_RATE = 64_000
_BUFFER_BYTES = 4096
"""Compressed bytes that wait in FFmpeg, whose own default would hold back seconds of speech."""
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
        import numpy as np  # noqa: PLC0415 - the decoder's process, whose memory is limited, needs none of it

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


class _Output(io.BytesIO):
    """Collects what FFmpeg writes. It can't be rewound, so FFmpeg never goes back to a header."""

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        """Return what was written since the last call."""
        ready = self.getvalue()
        self.seek(0)
        self.truncate()
        return ready


RATE = 16_000
"""Samples per second of the result: what recognizers work with."""
_HIGHEST_RATE = 192_000
_CODECS = frozenset(
    (
        *("mp3float", "mp3", "opus", "libopus", "vorbis", "flac", "aac", "alac"),
        *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"),
    )
)
_MEMORY = 1 << 30
"""Bytes of address space; the libraries take a quarter of it."""
_COPIES = 6
"""Copies of the samples while they are collected and sent."""
_DAMAGED = "The file is damaged, or is not the kind of sound that its first bytes say."


def decode(channel: Channel) -> None:
    """Decode the recording that the gateway asks for, in a process that does nothing else."""
    request = channel.wait()
    assert isinstance(request, Decode)  # noqa: S101 - the gateway sends nothing else
    decoded(header(RATE) + bytes(RATE), "wav", longest_s=1)  # PyAV imports modules at their first use
    _restrict(request)
    channel.send(_answer(request))


def _answer(request: Decode) -> FromDecoder:
    try:
        samples = decoded(request.file, request.container, longest_s=request.longest_s)
    except TooMuchSound as error:
        return Undecodable(str(error), is_too_long=True)
    except BadSound as error:
        return Undecodable(str(error))
    except (av.error.FFmpegError, ValueError, MemoryError):
        return Undecodable(_DAMAGED)
    return Decoded(Recording(RATE, 1, samples))


def decoded(file: bytes, container: str, *, longest_s: int) -> bytes:
    """Return the first audio track as 16-bit PCM with one channel at `RATE`. Damaged packets are left out.

    Raises BadSound, TooMuchSound, av.FFmpegError, ValueError, MemoryError.
    """
    # A container can name other files and addresses; nothing but `file` is read.
    options = {"protocol_whitelist": "none", "codec_whitelist": ",".join(sorted(_CODECS))}
    with av.open(io.BytesIO(file), "r", format=container, container_options=options) as source:
        if not source.streams.audio:
            raise BadSound("The file has no sound in it.")
        track = source.streams.audio[0]
        codec: AudioCodecContext | None = track.codec_context  # None if the track's head is damaged
        if codec is None:
            raise BadSound(_DAMAGED)
        if codec.name not in _CODECS:
            raise BadSound(f"The file's codec, {codec.name}, is not supported.")
        codec.thread_count = 1
        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        pcm = bytearray()
        for packet in source.demux(track):
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                continue
            for frame in frames:
                pcm += _samples(resampler, frame)
            if len(pcm) > longest_s * RATE * 2:
                raise TooMuchSound(f"The recording is too long: it may last at most {longest_s:,} seconds.")
        pcm += _samples(resampler, None)
    if not pcm:
        raise BadSound(_DAMAGED)
    return bytes(pcm)


def _samples(resampler: av.AudioResampler, frame: AudioFrame | None) -> bytes:
    """Return what is ready after a frame; None: after the last one. Raises BadSound."""
    if frame is not None and not LOWEST_RATE <= frame.sample_rate <= _HIGHEST_RATE:
        raise BadSound(
            f"The file has {frame.sample_rate:,} samples a second; {LOWEST_RATE:,} to {_HIGHEST_RATE:,} are taken."
        )
    ready = [part for part in resampler.resample(frame) if part is not None]
    return b"".join(bytes(part.planes[0])[: part.samples * 2] for part in ready)


def _restrict(request: Decode) -> None:
    """Limit what a hostile file can cost: no further file or connection, and bounded memory and time."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    cpu_s = ceil(request.patience_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    if sys.platform == "linux":  # macOS refuses this limit
        most = _MEMORY + _COPIES * request.longest_s * RATE * 2
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
