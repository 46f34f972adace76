"""A model's process: `python -m speech.recognition.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

import sys

import msgspec

from speech.errors import ModelUnusable
from speech.models.families import Options
from speech.process.line import Line
from speech.process.messages import Refused
from speech.recognition.messages import ToRecognizer
from speech.recognition.models.choosing import load
from speech.recognition.models.work import Work


def main() -> None:
    """Load the model, and work."""
    descriptor, told = sys.argv[1:]
    line = Line(int(descriptor), ToRecognizer)
    try:
        model = load(msgspec.json.decode(told, type=Options))
    except ModelUnusable as error:
        line.send(Refused(str(error)))
        sys.exit(1)
    Work(line, model).run()


if __name__ == "__main__":
    main()
