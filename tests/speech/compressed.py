"""Recordings in the containers that phones, browsers and OpenAI's clients send."""

from __future__ import annotations

import io

import av
import numpy as np

KINDS = {
    "mp3": ("mp3", "libmp3lame"),
    "webm": ("webm", "libopus"),
    "mkv": ("matroska", "flac"),
    "ogg": ("ogg", "libopus"),
    "flac": ("flac", "flac"),
    "m4a": ("ipod", "aac"),
    "aac": ("adts", "aac"),
    "wav": ("wav", "pcm_mulaw"),
}
"""The muxer and the encoder by the suffix of a file."""


def tone(seconds: float, rate: int = 48_000) -> bytes:
    return (np.sin(np.arange(int(seconds * rate)) / 20) * 9000).astype("<i2").tobytes()


def compressed(pcm: bytes, suffix: str, *, rate: int = 48_000, has_picture: bool = False) -> bytes:
    """Return 16-bit PCM with one channel as a file; a picture is a video track before the sound."""
    muxer, codec = KINDS[suffix]
    file = io.BytesIO()
    with av.open(file, "w", format=muxer) as container:
        if has_picture:
            picture = container.add_stream("libvpx", rate=10)
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
        sound = container.add_stream(codec, rate=rate, layout="mono")
        if has_picture:
            blank = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            container.mux([*picture.encode(blank), *picture.encode(None)])
        frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2")[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        container.mux([*sound.encode(frame), *sound.encode(None)])
    return file.getvalue()
