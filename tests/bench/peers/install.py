"""Installs peers, each in an environment of its own, in steps that are not repeated. Ends its own commands alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.bench.peers.registry import ROOT, TITLES, Peer, PeerName, Step

PROGRESS_S = 20.0
"""Seconds between two progress lines of a step."""
LAST_WORDS = 300
COMPILERS = ("c++", "g++", "clang++")

Progress = Callable[[str], None]


class NotInstallable(Exception):
    """A peer could not be installed; the message says why."""


def install(peer: Peer, progress: Progress, *, progress_s: float = PROGRESS_S) -> None:
    """Install a peer if it is not there yet. Raises NotInstallable; the next call goes on where this one ended."""
    if peer.installed:
        return
    title = TITLES[peer.who]
    if (why := hindrance(peer.who)) is not None:
        raise NotInstallable(why)
    done = _Done(peer)
    log = Path(f"{peer.home}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(peer.steps, start=1):
        if step.title in done:
            continue
        progress(f"Installing {title} {peer.version}, {number} of {len(peer.steps)}: {step.title}")
        _do(step, log, progress, progress_s)
        done.add(step.title)
    if not Path(peer.program).exists():
        raise NotInstallable(f"all steps were done, but there is no {peer.program}; see {log}")
    Path(peer.stamp).write_text(f"{peer.version}\n", encoding="utf-8")
    done.forget()


def hindrance(who: PeerName, which: Callable[[str], str | None] = shutil.which) -> str | None:
    """Return what the system lacks for a peer's installation, or None."""
    if who is PeerName.LLAMA and not any(which(name) for name in COMPILERS):
        return f"there is no C++ compiler ({', '.join(COMPILERS)})"
    return None


class _Done:
    """The done steps of a version, in a file beside the peer's folder."""

    def __init__(self, peer: Peer) -> None:
        self._file = Path(f"{peer.home}.steps")
        version, *titles = self._read() or [""]
        if version != peer.version:  # steps of another version do not count
            shutil.rmtree(peer.home, ignore_errors=True)
            titles = []
        self._lines = [peer.version, *titles]

    def __contains__(self, title: str) -> bool:
        return title in self._lines[1:]

    def add(self, title: str) -> None:
        self._lines.append(title)
        self._file.write_text("\n".join(self._lines), encoding="utf-8")

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def _read(self) -> list[str]:
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.is_file() else []


def _do(step: Step, log: Path, progress: Progress, progress_s: float) -> None:
    """Run a step in a process group of its own, and end that group afterwards. Raises NotInstallable."""
    if step.folder:
        Path(step.folder).mkdir(parents=True, exist_ok=True)
    begins = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                step.command,
                cwd=ROOT,
                env=quiet(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise NotInstallable(f"{step.title}: {error}") from error
    try:
        code = _waited(process, step, lambda: progress(f"  {_last_line(log, begins)}"), progress_s)
    finally:
        if process.poll() is None:  # it took too long, or the caller was interrupted
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        raise NotInstallable(f"{step.title}: {_last_line(log, begins)} (all of it: {log})")


def _waited(
    process: subprocess.Popen[bytes], step: Step, progress: Callable[[], None], progress_s: float
) -> int:
    """Wait for a step and report its progress. Raises NotInstallable if it takes too long."""
    deadline = time.monotonic() + step.limit_s
    while (left_s := deadline - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(progress_s, left_s))
        progress()
    raise NotInstallable(f"{step.title}: not done in {step.limit_s:.0f} s")


def quiet(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for another program's Python that finds nothing of ours."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in dropped and not name.startswith("MIDSTREAM_")
    }
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}


def _last_line(log: Path, begins: int) -> str:
    lines = log.read_bytes()[begins:].decode(errors="replace").strip().splitlines()
    return lines[-1][-LAST_WORDS:] if lines else "it said nothing yet"
