"""Errors of recognition and speech. Messages are for the client, except ModelLoadError's.

SpeechError
├── BadSound              the file is not a supported kind of sound
│   └── TooMuchSound      it lasts too long
├── RecognizerLost        the recognizer's process ended, or is not ready yet
├── RecognitionOverload   more sound came than can be processed
├── VoiceFailed           the voice's process ended, or is not ready yet
└── ModelLoadError        the operator's model can't be served
"""

from __future__ import annotations


class SpeechError(Exception):
    """The root of this layer's errors."""


class BadSound(SpeechError):
    """The file is not a supported kind of sound."""


class TooMuchSound(BadSound):
    """A recording lasts too long."""


class RecognizerLost(SpeechError):
    """The recognizer's process ended while it listened, or could not be started yet."""


class RecognitionOverload(SpeechError):
    """Sound comes faster than it can be processed, and too much waits."""


class VoiceFailed(SpeechError):
    """The voice could not be started, stalled, or ended in the middle."""


class ModelLoadError(SpeechError):
    """A model, or something that it needs, can't be used. The message is for the operator."""
