"""What a spoken chat needs of a sound device. Whatever does this may stand in the place of the sound card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnInput = Callable[[bytes], None]
"""Takes what the microphone heard."""
FillOutput = Callable[[int, float], bytes]
"""Returns so many bytes for the loudspeaker, which are heard so many seconds later."""
OnLost = Callable[[str], None]
"""Takes the sentence that says why there is no more sound."""


class SoundUnavailable(Exception):
    """There can be no spoken chat; the sentence says why, and what to do."""


class SoundDevice(Protocol):
    """A microphone and a loudspeaker. Samples have 16 bits, little-endian, and one channel."""

    input_rate: int
    """Samples a second of the microphone."""
    output_rate: int
    """Of the loudspeaker."""

    def start(self, on_input: OnInput, fill: FillOutput, on_lost: OnLost) -> None:
        """Begin. All three are called in threads of the device's, and return soon. Raises SoundUnavailable."""

    def close(self) -> None:
        """Let go of both."""
