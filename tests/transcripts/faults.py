"""Which transcripts notice a fault in a step of a turn: `python -m tests.transcripts.faults [STEP…]` prints a table, a minute a row.

Each fault is one change of the source, made in a copy of the last commit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STATE, PROMPT = "sessions/turn/turn_state.py", "sessions/turn/prompt.py"
ACCEPTANCE, RUNNER = "sessions/commands/acceptance.py", "sessions/running/runner.py"
REQUEST = "sessions/turn/message_request.py"
RESUMPTION = "sessions/commands/resumption.py"
JOURNAL, CONVERSATION = "sessions/store/journal.py", "sessions/conversation/conversation.py"


class Fault(NamedTuple):
    """A step of a turn, and a change that breaks it: `old` occurs once in `file`."""

    step: str
    file: str
    old: str
    new: str


FAULTS = (
    Fault("duplicate", ACCEPTANCE, "if record.digest != send.digest:", "if False:"),
    Fault("busy", REQUEST, '"interrupt": Cause.INTERRUPT', '"interrupt": Cause.CLIENT'),
    Fault("queue", ACCEPTANCE, 'if live.send.on_busy == "enqueue" and', "if False and"),
    Fault("placement", ACCEPTANCE, "parent_id=placement.parent_id,", "parent_id=None,"),
    Fault("prompt: system", PROMPT, '[Message("system", system)] if system else []', "list[Message]()"),
    Fault(
        "prompt: history",
        PROMPT,
        "else []\n    for record in records:",
        "else []\n    for record in records[-1:]:",
    ),
    Fault("prompt: results of calls", PROMPT, "for call in record.calls)]", "for call in record.calls[1:])]"),
    Fault("acceptance", ACCEPTANCE, "else _title(message, titled_by),", 'else "",'),
    Fault("start", STATE, "EngineCount(prompt_tokens=prompt_tokens,", "EngineCount(prompt_tokens=0,"),
    Fault("text", STATE, "self.pieces.extend(text,", "self.pieces.extend(text.upper(),"),
    Fault("reasoning", STATE, "self.pieces.add_reasoning(text,", "self.pieces.add_reasoning(text.upper(),"),
    Fault("calls", STATE, "elif reason is Reason.STOP and self.calls:", "elif False:"),
    Fault("journal", JOURNAL, "encode(event), patch)", 'encode(event).replace(b"delta", b"x"), patch)'),
    Fault("publication", CONVERSATION, "self.known.seq += 1", "self.known.seq += 2"),
    Fault("cancel: cut", STATE, "sent_off if seen_off is None else min(sent_off, seen_off)", "sent_off"),
    Fault(
        "cancel: reason",
        STATE,
        "if cut.cause is Cause.DRAIN else Reason.CANCELLED",
        "if cut else Reason.STOP",
    ),
    Fault(
        "disconnect",
        RUNNER,
        "if live.send.grace_s > 0:",
        "if True:\n                return\n            if True:",
    ),
    Fault("end", STATE, "chars=len(text),", "chars=len(text) + 1,"),
    Fault("resume", RESUMPTION, "events = replayed(journalled, {})", "events = replayed([], {})"),
    Fault(
        "gap", RESUMPTION, "return position.epoch != since.epoch or is_ahead or not is_kept", "return False"
    ),
)


def main() -> int:
    """Print the table; return 1 if a fault goes unnoticed."""
    chosen = [fault for fault in FAULTS if not sys.argv[1:] or fault.step in sys.argv[1:]]
    print("| step | noticed by, of each protocol's transcripts |\n|---|---|", flush=True)
    unnoticed = 0
    for fault in chosen:
        failed = _failed(fault)
        unnoticed += not failed
        print(
            f"| {fault.step} | {', '.join(f'{n} {name}' for name, n in sorted(failed.items()))} |", flush=True
        )
    return min(unnoticed, 1)


def _failed(fault: Fault) -> Counter[str]:
    """Return how many transcripts of each protocol fail with a fault. Raises ValueError if the source has changed."""
    with TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        file = Path(folder, fault.file)
        text = file.read_text()
        if text.count(fault.old) != 1:
            raise ValueError(f"{fault.step}: {fault.file} has {fault.old!r} {text.count(fault.old)} times.")
        file.write_text(text.replace(fault.old, fault.new))
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/transcripts", "--timeout", "60"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Counter(re.findall(r"^FAILED \S+\[([\w-]+)/", ended.stdout, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main())
