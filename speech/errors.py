"""Why sound is not heard, or words are not spoken. Messages are for the sender, but for ModelUnusable's.

SpeechError
├── BadSound            the file is no sound that is taken
├── RecognizerLost      the recognizer's process ended, or is not there yet
├── TooFarBehind        more sound came than can be heard
├── VoiceFailed         what speaks ended in the middle, or is not there yet
└── ModelUnusable       the operator's model can't be served
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
    """What speaks could not be started, stands still, or ended in the middle."""


class ModelUnusable(SpeechError):
    """A model, or what it needs beside itself, can't be served. The message is for the operator."""
