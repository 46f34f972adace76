"""Where each stock client runs: the development environment, or one of its own that is made once and kept.

A script's first word names what it needs: `agents_two_turns.py` wants `agents.txt`, here or beside the script. An `.mjs`
wants its `.json`, or else `package.json`. What stands in neither is a development dependency already.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE / "package.json"
CACHE = HERE.parent.parent / ".cache" / "clients"
PATIENCE_S = 1800

Notify = Callable[[str], None]


class NotInstallable(Exception):
    """An environment that could not be made; says why."""


def command_of(script: Path, notify: Notify) -> tuple[str, ...]:
    """The command that runs a client's script, once what it needs is installed. Raises NotInstallable."""
    if script.suffix == ".mjs":
        folder = _node_folder(_requirements_of(script, "json") or PACKAGE, notify)
        own = folder / "node_modules" / ".bin" / "node"
        # Modules are looked up beside the script.
        return (str(own) if own.exists() else "node", str(shutil.copy(script, folder)))
    requirements = _requirements_of(script, "txt")
    if requirements is None:
        return (sys.executable, str(script))
    folder = _kept(requirements, sys.version + sys.base_prefix, _install_python, notify)
    return (str(folder / "bin" / "python"), str(script))


def _requirements_of(script: Path, suffix: str) -> Path | None:
    named = f"{script.stem.partition('_')[0]}.{suffix}"
    return next((folder / named for folder in (script.parent, HERE) if (folder / named).exists()), None)


def program_of(name: str, program: str, notify: Notify) -> Path:
    """The path of a program of an environment whose requirements are `name.txt`. Raises NotInstallable."""
    folder = _kept(HERE / f"{name}.txt", sys.version + sys.base_prefix, _install_python, notify)
    return folder / "bin" / program


def node_modules(notify: Notify, package: Path = PACKAGE) -> Path:
    """The folder of what the scripts for Node need, or of what another `package.json` names. Raises NotInstallable."""
    return _node_folder(package, notify) / "node_modules"


def _node_folder(package: Path, notify: Notify) -> Path:
    return _kept(package, sys.platform, _install_node, notify)


def python_with(requirements: Path, notify: Notify) -> Path:
    """A Python with these requirements, and behind them all that is installed here. Raises NotInstallable."""
    return _kept(requirements, sys.version + sys.prefix, _install_beside, notify) / "bin" / "python"


def _kept(requirements: Path, base: str, install: Callable[[Path, Path], None], notify: Notify) -> Path:
    """The folder that was made of these requirements, by this run or one before it."""
    digest = hashlib.sha256(base.encode() + requirements.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"{requirements.stem}-{digest}"
    whole = folder / ".installed"
    with _alone(requirements.stem):
        if not whole.exists():
            for old in CACHE.glob(f"{requirements.stem}-*"):
                shutil.rmtree(old)
            notify(f"Installing {requirements.name} (once, in {folder.relative_to(HERE.parent.parent)}).")
            folder.mkdir()
            install(requirements, folder)
            whole.touch()
    return folder


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One process at a time makes an environment."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_python(requirements: Path, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder)]
    _run([*pip, "install", "--quiet", "--requirement", str(requirements)])


def _install_beside(requirements: Path, folder: Path) -> None:
    _install_python(requirements, folder)
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def _install_node(package: Path, folder: Path) -> None:
    if shutil.which("npm") is None:
        raise NotInstallable("there is no npm here")
    shutil.copy(package, folder / "package.json")
    _run(["npm", "install", "--prefix", str(folder), "--no-package-lock", "--no-audit", "--no-fund"])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstallable(f"{command[0]} was not done in {PATIENCE_S} s") from None
    if done.returncode:
        raise NotInstallable(" ".join((done.stdout + done.stderr).split())[-300:])
