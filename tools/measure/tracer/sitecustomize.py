"""Records which product functions a process runs while the measurement asks for it. Python imports it at its start.

Every process of the service maps the same file of one byte, the phase: 0 is silence, another number names what is recorded.
Phase `WRITE` has each process write what it saw.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType

WRITE = 255
_POLL_S = 0.05


class Recorder:
    """Counts functions that begin or continue, and calls from another file."""

    def __init__(self, root: Path, phase: mmap.mmap, folder: Path) -> None:
        """`root`: functions of files under it count; `folder`: where results are written."""
        self._root = f"{root}{os.sep}"
        self._phase = phase
        self._folder = folder
        self._files: dict[CodeType, str] = {}
        self._modules: dict[int, set[str]] = defaultdict(set)
        self._calls: dict[int, Counter[str]] = defaultdict(Counter)

    def start(self) -> None:
        """Record from now on."""
        monitoring = sys.monitoring
        tool = monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "tools.measure")
        events = monitoring.events
        monitoring.register_callback(tool, events.PY_START, self._started)
        monitoring.register_callback(tool, events.PY_RESUME, self._resumed)
        monitoring.set_events(tool, events.PY_START | events.PY_RESUME)
        self.watch()

    def start_in_child(self) -> None:
        """Forget what the parent saw, and record from now on."""
        self._modules.clear()
        self._calls.clear()
        self.watch()

    def watch(self) -> None:
        """Wait for the phase `WRITE` in a thread."""
        threading.Thread(target=self._write_on_request, name="tracer", daemon=True).start()

    def _file(self, code: CodeType) -> str:
        """Return a function's file, relative to the root; empty if it is none of the product's, or the body of a module."""
        if (file := self._files.get(code)) is None:
            is_product = code.co_filename.startswith(self._root) and code.co_name != "<module>"
            file = self._files[code] = code.co_filename.removeprefix(self._root) if is_product else ""
            if file.startswith((".venv", "tests", "tools")):
                file = self._files[code] = ""
        return file

    def _started(self, code: CodeType, _offset: int) -> object:
        if not (file := self._file(code)):
            return sys.monitoring.DISABLE
        if phase := self._phase[0]:
            self._modules[phase].add(file)
            frame = sys._getframe(1).f_back  # noqa: SLF001 - the documented way to a caller
            caller = self._file(frame.f_code) if frame else ""
            if caller and caller != file:
                self._calls[phase][f"{caller} -> {file}"] += 1
        return None

    def _resumed(self, code: CodeType, _offset: int) -> object:
        if not (file := self._file(code)):
            return sys.monitoring.DISABLE
        if phase := self._phase[0]:
            self._modules[phase].add(file)
        return None

    def _write_on_request(self) -> None:
        while self._phase[0] != WRITE:
            time.sleep(_POLL_S)
        seen = {
            phase: {"modules": sorted(modules), "calls": dict(self._calls[phase])}
            for phase, modules in list(self._modules.items())
            if phase != WRITE
        }
        document = {"pid": os.getpid(), "command": " ".join(sys.orig_argv[1:])[:200], "phases": seen}
        partial = self._folder / f"{os.getpid()}.part"
        partial.write_text(json.dumps(document))
        partial.rename(self._folder / f"{os.getpid()}.json")


def _begin() -> None:
    phase_file = os.environ.get("MEASURE_PHASE")
    if not phase_file or sys.version_info < (3, 12):
        return
    with Path(phase_file).open("rb") as opened:
        phase = mmap.mmap(opened.fileno(), 1, access=mmap.ACCESS_READ)
    recorder = Recorder(Path(os.environ["MEASURE_ROOT"]), phase, Path(phase_file).parent)
    recorder.start()
    os.register_at_fork(after_in_child=recorder.start_in_child)


_begin()
