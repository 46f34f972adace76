"""A voice's process: `python -m speech.voice.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

import sys

import msgspec

from speech.errors import ModelUnusable
from speech.models.families import Options
from speech.process.line import Line
from speech.process.messages import Refused
from speech.voice.messages import ToVoice
from speech.voice.models.choosing import load
from speech.voice.models.work import Work


def main() -> None:
    """Load the model, and work."""
    descriptor, told = sys.argv[1:]
    line = Line(int(descriptor), ToVoice)
    try:
        model = load(msgspec.json.decode(told, type=Options))
    except ModelUnusable as error:
        line.send(Refused(str(error)))
        sys.exit(1)
    Work(line, model).run()


if __name__ == "__main__":
    main()
