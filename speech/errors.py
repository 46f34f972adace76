"""Why sound is not heard, or words are not spoken. Messages are for the sender.

SpeechError
├── BadSound            the file is no sound that is taken
├── RecognizerLost      the recognizer's process ended, or is not there yet
├── TooFarBehind        more sound came than can be heard
└── VoiceFailed         the program that speaks ended in the middle
"""

from __future__ import annotations


class SpeechError(Exception):
    """The root of what this floor raises."""


class BadSound(SpeechError):
    """The file is no sound that is taken."""


class RecognizerLost(SpeechError):
    """The recognizer's process ended while it listened, or could not be started yet."""


class TooFarBehind(SpeechError):
    """Sound comes faster than it can be heard, and too much waits."""


class VoiceFailed(SpeechError):
    """The program that speaks could not be started, stands still, or ended in the middle."""
