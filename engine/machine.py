"""Engine options, and what all processes need of the machine: memory, an environment without secrets, logs without content.

Knows no torch.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import resource
import shutil
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from engine.messages import REPLY_TOKENS, EngineStatistics

_ON_CPU = frozenset({"cpu", "auto"})


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one engine. `model` is a hub name or a folder; None and "auto" leave the choice to the loader.

    `kv_bytes` bounds the memory for keys and values. If it is None, this engine gets the share `memory_share` of what
    the loader would take. `threads`: compute threads on the CPU; None: PyTorch's default. `pickled_weights`: also load weights that are not safetensors.
    `reply_tokens`: the longest reply if its sender names no limit. `quantize`: the kind of the linear layers' weights.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    pickled_weights: bool = False
    reply_tokens: int = REPLY_TOKENS
    max_batch: int = 32
    kv_bytes: int | None = None
    memory_share: float = 1.0
    threads: int | None = None
    quantize: str = "none"


def shared_out(engines: Sequence[EngineOptions], *, cores: int) -> tuple[EngineOptions, ...]:
    """Return the options of all engines of one machine, each with its share of that machine.

    Engines of one device share its memory. Those that may use the CPU share its `cores`, with at least one thread each.
    """
    together = Counter(engine.device for engine in engines)
    computing = sum(engine.device in _ON_CPU for engine in engines)
    threads = max(1, cores // computing) if computing > 1 else None
    return tuple(
        msgspec.structs.replace(
            engine,
            memory_share=engine.memory_share / together[engine.device],
            threads=threads if engine.device in _ON_CPU else engine.threads,
        )
        for engine in engines
    )


KEPT = frozenset(("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "PWD", "OLDPWD"))
"""Variables that children keep: what loading a model needs, and names that only look like secrets."""

SECRET = frozenset(("KEY", "KEYS", "TOKEN", "TOKENS", "AUTH", "DSN", "PAT"))
"""Words of a variable's name, between underscores, that mark a secret."""

SECRET_PARTS = re.compile("APIKEY|AUTHORIZATION|CONNECTION_?STRING|CREDENTIAL|PASSPHRASE|PASSW|PWD|SECRET")
"""Parts of a variable's name that mark a secret."""

_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
"""A URL's user and password."""

_PR_SET_PDEATHSIG = 1
_SPINNING = {"GOMP_SPINCOUNT": "3000"}
_SPINNING_CHOSEN = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
_KERNELS = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


def child_environment() -> dict[str, str]:
    """Return this process's environment as its children may see it."""
    return without_secrets(os.environ)


_ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]
"""The folder of the packages: a checkout, or Python's site-packages."""


def module_environment() -> dict[str, str]:
    """Return `child_environment` for a child that runs one of our modules: it finds the same sources from any folder."""
    environment = child_environment()
    if str(_ROOT) in sysconfig.get_paths().values():
        return environment  # it is found anyway; named here, it would come before the standard library
    inherited = environment.get("PYTHONPATH")
    path = os.pathsep.join([str(_ROOT), *([inherited] if inherited else [])])
    return {**environment, "PYTHONPATH": path}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are neither the service's settings nor, by name or value, secrets. Pure."""
    return {
        name: value for name, value in environ.items() if name in KEPT or not _is_hidden(name.upper(), value)
    }


def _is_hidden(name: str, value: str) -> bool:
    if name.startswith("MIDSTREAM_") or not SECRET.isdisjoint(name.split("_")) or SECRET_PARTS.search(name):
        return True
    return bool(_LOGIN.search(value)) and not name.endswith("_PROXY")  # models may come through a proxy


def end_with_parent() -> None:
    """Have the system kill this process at once when its parent ends. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def torch_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to an environment for the libraries below torch, before it is imported.

    OpenMP's threads spin while they wait for each other, then sleep. By default they spin for long, but the cores are shared
    with the gateway, the store and whatever else runs, so here they spin briefly. Measured on two cores: a small matrix
    product takes 19 microseconds with brief or long spinning, and 76 without; without it a decode step of a 768x12 Llama
    takes 1.2 to 1.5 times as long. Next to one busy process, long spinning or threads bound to cores (OMP_PROC_BIND=true)
    cost a factor of three to twenty, brief spinning next to nothing.

    oneDNN makes a kernel for each shape of a product, in 0.3 ms, and torch and oneDNN keep 1,024 each: half a megabyte and
    more for every number of replies and every length of contexts that ever came. 64 kernels serve about nine sizes of step.
    Measured over 10,000 turns of a very small model: 72 MB of growth with 1,024 kernels, 7 with 64, and 8 % more time.
    """
    spinning = {} if _SPINNING_CHOSEN & environ.keys() else _SPINNING
    return spinning | {name: value for name, value in _KERNELS.items() if name not in environ}


DeviceMemory = Callable[[], tuple[int, int]]
"""Returns the free and the total bytes."""

_MEMORY = Path("/proc/self/statm")


def free_memory() -> int | None:
    """Return the free bytes, or None if they are not known."""
    limits = [free_by_meminfo(kernel_text("/proc/meminfo")), free_in_cgroup(Path("/sys/fs/cgroup"))]
    return min((limit for limit in limits if limit is not None), default=None)


def free_by_meminfo(meminfo: str) -> int | None:
    """Return what `/proc/meminfo` calls available, in bytes. Pure."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def free_in_cgroup(folder: Path) -> int | None:
    """Return what a container's limit leaves (cgroup v2), or None without a limit."""
    limit, used = (
        kernel_text(folder / "memory.max").strip(),
        kernel_text(folder / "memory.current").strip(),
    )
    return int(limit) - int(used) if limit.isdecimal() and used.isdecimal() else None


def kernel_text(path: str | Path) -> str:
    """Return the text of a file of the kernel's, or nothing if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def with_usage(counted: EngineStatistics, device_memory: DeviceMemory | None = None) -> EngineStatistics:
    """Return the counters with this process's current use of the machine."""
    free, total = (0, 0) if device_memory is None else device_memory()
    return msgspec.structs.replace(
        counted,
        cpu_seconds=time.process_time(),
        resident_bytes=resident_bytes(),
        device_used_bytes=total - free,
        device_total_bytes=total,
    )


def resident_bytes() -> int:
    """Return the memory of this process; if the system doesn't say, the most that the process ever had."""
    try:
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def triton_trouble() -> tuple[str, str] | None:
    """Return why Triton can't compile kernels and how to fix that; None if it can, or if it is not installed.

    Triton builds a C extension when the first kernel is launched, unless `TRITON_CACHE_DIR` has one.
    """
    if find_spec("triton") is None:
        return None
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    if not any(shutil.which(name) for name in compilers):
        return f"Triton finds no C compiler ({' or '.join(compilers)})", "Install gcc and libc6-dev."
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Triton finds no headers of Python (Python.h)", "Install python3-dev."
    return None


def printable(text: str) -> str:
    """Return a text with control characters, line ends and invisible characters as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Return what `printable` does, but with line ends kept."""
    return "\n".join(map(printable, text.split("\n")))


def without_values(error: BaseException, *, shown: tuple[type[BaseException], ...] = (OSError,)) -> str:
    """Return the traceback of an exception, with its causes and the exceptions of a group.

    Messages are left out, except those of the types in `shown`, since a message often quotes a value, which a person
    may have written.
    """
    return "\n".join(_lines(error, shown, set()))


def _lines(error: BaseException, shown: tuple[type[BaseException], ...], seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _lines(before, shown, seen)
        yield "It was followed by:"
    yield "Traceback (most recent call last):"
    for frame in traceback.format_tb(error.__traceback__):
        yield frame.rstrip("\n")
    yield _name(error, shown)
    for number, inner in enumerate(
        error.exceptions if isinstance(error, BaseExceptionGroup) else (), start=1
    ):
        yield f"Exception {number} of the group:"
        yield from (f"  {line}" for line in _lines(inner, shown, seen))


def _name(error: BaseException, shown: tuple[type[BaseException], ...]) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {error}" if isinstance(error, shown) else name


SHOWN_ERRORS = (OSError, RuntimeError)
"""Errors whose messages hold only sizes, shapes and devices."""

log = logging.getLogger(__name__)


class Formatter(logging.Formatter):
    """Writes lines whose tracebacks hold no values."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """See `logging.Formatter`."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        """See `logging.Formatter`."""
        return without_values(ei[1], shown=SHOWN_ERRORS)


def set_up_logs() -> None:
    """Log to standard error, uncaught exceptions included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter("engine: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.excepthook = _uncaught
    threading.excepthook = lambda trouble: _uncaught(
        trouble.exc_type, trouble.exc_value, trouble.exc_traceback
    )


def remove_library_handlers() -> None:
    """Let only our handler write what libraries log. Call this once they are imported: huggingface_hub brings a handler."""
    logging.getLogger("huggingface_hub").handlers.clear()


def _uncaught(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt):
        log.critical("an uncaught exception", exc_info=(kind, error, where))
