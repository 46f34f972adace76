"""The sound device of this machine, by PortAudio. The only module that knows the library `sounddevice`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from midstream.terminal.voice.device import FillOutput, OnInput, OnLost, SoundUnavailable

WANTED = {"input": 16_000, "output": 24_000}
"""Samples a second, asked for first: recognizers hear no more, and voices have no more."""
RATES = (8_000, 48_000)
"""What the protocol allows."""
PIECE_S = 0.02
"""What the microphone hears comes in pieces of this length."""
LATENCY_S = 0.05
"""Asked of the device: as much as a busy interpreter may be late."""
_MOST_LATENCY_S = 2.0
_LIBRARY = "--voice needs the package sounddevice: pip install 'midstream[voice-chat]'"
_PORTAUDIO = "--voice needs PortAudio, a library of the system (Debian: apt-get install libportaudio2)"
_WHICH = {"input": "microphone", "output": "loudspeaker"}


class SoundCard:
    """A microphone and a loudspeaker, each by a part of its name, or its number; None: the system's default."""

    def __init__(self, microphone: str | None = None, loudspeaker: str | None = None) -> None:
        """Raises SoundUnavailable."""
        self._library = _library()
        self._microphone = self._found("input", microphone)
        self._loudspeaker = self._found("output", loudspeaker)
        self.input_rate = self._rate("input", self._microphone)
        self.output_rate = self._rate("output", self._loudspeaker)
        self._streams: list[Any] = []
        self._is_closed = False

    def start(self, on_input: OnInput, fill: FillOutput, on_lost: OnLost) -> None:
        """Begin to hear and to be heard. Raises SoundUnavailable."""

        def on_samples(samples: Any, _count: int, _time: Any, _status: Any) -> None:
            on_input(bytes(samples))

        def wanted(samples: Any, _count: int, time: Any, _status: Any) -> None:
            samples[:] = fill(len(samples), self._delay_s(time))

        def ended(which: str) -> None:
            if not self._is_closed:
                on_lost(f"The {which} is gone.")

        kinds = (
            ("input", self._library.RawInputStream, self._microphone, self.input_rate, on_samples),
            ("output", self._library.RawOutputStream, self._loudspeaker, self.output_rate, wanted),
        )
        for kind, stream, device, rate, callback in kinds:
            with self._complaints(f"The {_WHICH[kind]} can't be used"), _silent():
                opened = stream(
                    device=device,
                    samplerate=rate,
                    channels=1,
                    dtype="int16",
                    latency=LATENCY_S,
                    blocksize=int(rate * PIECE_S) if kind == "input" else 0,
                    callback=callback,
                    finished_callback=lambda which=_WHICH[kind]: ended(which),
                )
                self._streams.append(opened)
                opened.start()

    def close(self) -> None:
        """Let go of both."""
        self._is_closed = True
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _delay_s(self, time: Any) -> float:
        """Seconds until samples that are handed over now are heard. Not every driver tells; then it is the stream's latency."""
        delay_s = float(time.outputBufferDacTime - time.currentTime)
        return delay_s if 0 < delay_s < _MOST_LATENCY_S else float(self._streams[-1].latency)

    def _found(self, kind: str, named: str | None) -> int:
        """Return the number of a device. Raises SoundUnavailable, with those that there are."""
        try:
            selector = int(named) if named is not None and named.isdecimal() else named
            return int(self._library.query_devices(selector, kind)["index"])
        except (ValueError, self._library.PortAudioError):
            pass
        names = [
            f"{device['index']} {device['name']}"
            for device in self._library.query_devices()
            if device[f"max_{kind}_channels"] > 0
        ]
        which = _WHICH[kind]
        if not names:
            raise SoundUnavailable(f"This machine has no {which}.")
        what = "default " + which if named is None else f"{which} {named!r}, or several"
        raise SoundUnavailable(f"There is no {what}; --{which} takes one of: {', '.join(names)}.")

    def _rate(self, kind: str, device: int) -> int:
        """Return a rate that a device can do. Raises SoundUnavailable."""
        own = int(self._library.query_devices(device)["default_samplerate"])
        check = getattr(self._library, f"check_{kind}_settings")
        for rate in (WANTED[kind], own, RATES[1]):
            with suppress(self._library.PortAudioError), _silent():
                check(device=device, channels=1, dtype="int16", samplerate=rate)
                if RATES[0] <= rate <= RATES[1]:
                    return rate
        raise SoundUnavailable(
            f"The {_WHICH[kind]} can do no rate from {RATES[0]:,} to {RATES[1]:,} Hz in one channel."
        )

    @contextmanager
    def _complaints(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._library.PortAudioError as error:
            self.close()
            raise SoundUnavailable(f"{what}: {error.args[0]}") from error


def _library() -> ModuleType:
    """Raises SoundUnavailable."""
    try:
        import sounddevice  # noqa: PLC0415 - a chat that is written needs none of it
    except ModuleNotFoundError as missing:
        raise SoundUnavailable(_LIBRARY) from missing
    except OSError as missing:
        raise SoundUnavailable(_PORTAUDIO) from missing
    return sounddevice  # type: ignore[no-any-return]


@contextmanager
def _silent() -> Iterator[None]:
    """Keep drivers from writing over the screen: ALSA says on standard error what PortAudio says by its errors."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
