"""The peers, and their installation: each in an environment of its own, in steps that are not repeated.

Ends its own commands alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from engine.model.cpu.kernels import VERSION as VLLM_VERSION
from tests.bench.report import Progress
from tests.bench.servers import environment

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache"
LLAMA_CPP_PYTHON = "0.3.36"
"""The release whose source contains the llama.cpp that is built."""
OPENVINO_GENAI = "2026.4.1.0"
OPTIMUM_INTEL = "2.2.0"
QUICK_STEP_S, LONG_STEP_S = 300.0, 1800.0
PROGRESS_S = 20.0
"""Seconds between two progress lines of a step."""
LAST_WORDS = 300
COMPILERS = ("c++", "g++", "clang++")


class NotInstallable(Exception):
    """A peer could not be installed; the message says why."""


class PeerName(StrEnum):
    """Programs, as the command line and the files name them, in the order of their turns."""

    MIDSTREAM = "midstream"
    VLLM = "vllm"
    LLAMA = "llama-server"
    OPENVINO = "openvino"


TITLES = {
    PeerName.MIDSTREAM: "Midstream",
    PeerName.VLLM: "vLLM",
    PeerName.LLAMA: "llama-server",
    PeerName.OPENVINO: "OpenVINO GenAI",
}


class Step(msgspec.Struct, frozen=True):
    """One command of an installation. `limit_s`: it is ended after so long. `folder` is created before it runs."""

    title: str
    command: tuple[str, ...]
    limit_s: float = QUICK_STEP_S
    folder: str = ""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A program beside ours. `home`: its folder; `program`: a file that exists once it is installed."""

    who: PeerName
    version: str
    home: Path
    program: Path
    steps: tuple[Step, ...]

    @property
    def stamp(self) -> Path:
        """The file that is written when all steps are done; it holds the version, or nothing if another command made it."""
        return self.home / ".installed"

    @property
    def installed(self) -> bool:
        """True if all of its steps were done once, for this version."""
        is_there = self.stamp.is_file() and self.program.exists()
        return is_there and self.stamp.read_text(encoding="utf-8").strip() in {"", self.version}


def peers(*, cache: Path = CACHE, torch: str = "torch", torch_index: str | None = None) -> tuple[Peer, ...]:
    """Return all peers. `torch` is a requirement; `torch_index` replaces pip's own index for torch."""
    return (_vllm(cache, torch_index), _llama(cache), _openvino(cache, torch, torch_index))


def _vllm(cache: Path, torch_index: str | None) -> Peer:
    home = cache / "vllm"
    index = ("--torch-index", torch_index) if torch_index else ()
    command = (sys.executable, "-m", "tools.vllm_install", *index, str(home))
    steps = (Step("an environment with vLLM, as `make vllm` makes it", command, LONG_STEP_S),)
    return Peer(
        who=PeerName.VLLM, version=VLLM_VERSION, home=home, program=home / "bin" / "python", steps=steps
    )


def _llama(cache: Path) -> Peer:
    home = cache / "peers" / "llama"
    programs, source, build, sdist = (home / name for name in ("bin", "source", "build", "sdist"))
    llama, ninja = source / "vendor" / "llama.cpp", str(programs / "ninja")
    pip = (str(programs / "python"), "-m", "pip")
    download = (*pip, "download", "--no-binary", ":all:", "--no-deps", "--dest", str(sdist))
    archive = str(sdist / f"llama_cpp_python-{LLAMA_CPP_PYTHON}.tar.gz")
    off = ("OPENSSL", "USE_PREBUILT_UI", "BUILD_TESTS", "BUILD_EXAMPLES")
    options = (
        f"CMAKE_MAKE_PROGRAM={ninja}",
        "CMAKE_BUILD_TYPE=Release",
        *(f"LLAMA_{name}=OFF" for name in off),
    )
    configure = (str(programs / "cmake"), "-S", str(llama), "-B", str(build), "-G", "Ninja")
    steps = (
        Step("an environment", (sys.executable, "-m", "venv", str(home))),
        Step("cmake and ninja", (*pip, "install", "--quiet", "cmake", "ninja")),
        Step(
            f"the source of llama-cpp-python {LLAMA_CPP_PYTHON}",
            (*download, f"llama-cpp-python=={LLAMA_CPP_PYTHON}"),
            LONG_STEP_S,
        ),
        Step(
            "unpacking it",
            ("tar", "-xzf", archive, "--strip-components=1", "-C", str(source)),
            folder=str(source),
        ),
        Step("its writer of GGUF files", (*pip, "install", "--quiet", str(llama / "gguf-py"))),
        Step("configuring the build", (*configure, *(f"-D{option}" for option in options))),
        Step(
            "building llama-server: about 200 files",
            (ninja, "-C", str(build), "-j2", "llama-server"),
            2 * LONG_STEP_S,
        ),
    )
    program = build / "bin" / "llama-server"
    return Peer(who=PeerName.LLAMA, version=LLAMA_CPP_PYTHON, home=home, program=program, steps=steps)


def _openvino(cache: Path, torch: str, torch_index: str | None) -> Peer:
    home = cache / "peers" / "openvino"
    python = home / "bin" / "python"
    pip = (str(python), "-m", "pip")
    install = (*pip, "install", "--quiet")
    index = ("--index-url", torch_index) if torch_index else ()
    exporter = ("openvino-tokenizers", f"optimum-intel[openvino]=={OPTIMUM_INTEL}")
    steps = (
        Step("an environment", (sys.executable, "-m", "venv", str(home))),
        Step(torch, (*install, *index, torch), LONG_STEP_S),
        Step(
            f"OpenVINO GenAI {OPENVINO_GENAI} and its exporter",
            (*install, torch, "msgspec", f"openvino-genai=={OPENVINO_GENAI}", *exporter),
            LONG_STEP_S,
        ),
        Step(
            "without torchvision, which the exporter does not need",
            (*pip, "uninstall", "--quiet", "--yes", "torchvision"),
        ),
    )
    return Peer(who=PeerName.OPENVINO, version=OPENVINO_GENAI, home=home, program=python, steps=steps)


def install(peer: Peer, progress: Progress) -> None:
    """Install a peer if it is not there yet. Raises NotInstallable; the next call continues where this one ended."""
    if peer.installed:
        return
    if peer.who is PeerName.LLAMA and not any(map(shutil.which, COMPILERS)):
        raise NotInstallable(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    log, steps = peer.home.with_name(f"{peer.home.name}.log"), peer.home.with_name(f"{peer.home.name}.steps")
    log.parent.mkdir(parents=True, exist_ok=True)
    done = steps.read_text(encoding="utf-8").splitlines() if steps.is_file() else []
    if done[:1] != [peer.version]:  # steps of another version do not count
        shutil.rmtree(peer.home, ignore_errors=True)
        done = [peer.version]
    for number, step in enumerate(peer.steps, start=1):
        if step.title not in done[1:]:
            what = f"{TITLES[peer.who]} {peer.version}, {number} of {len(peer.steps)}"
            progress(f"Installing {what}: {step.title}")
            _do(step, log, progress)
            done.append(step.title)
            steps.write_text("\n".join(done), encoding="utf-8")
    if not peer.program.exists():
        raise NotInstallable(f"all steps were done, but there is no {peer.program}; see {log}")
    peer.stamp.write_text(f"{peer.version}\n", encoding="utf-8")
    steps.unlink()


def _do(step: Step, log: Path, progress: Progress) -> None:
    """Run a step in a process group of its own, and end that group afterwards. Raises NotInstallable."""
    if step.folder:
        Path(step.folder).mkdir(parents=True, exist_ok=True)
    begins = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                step.command, cwd=ROOT, env=quiet(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NotInstallable(f"{step.title}: {error}") from error

    def last_line() -> str:
        lines = log.read_bytes()[begins:].decode(errors="replace").strip().splitlines()
        return lines[-1][-LAST_WORDS:] if lines else "it said nothing yet"

    deadline = time.monotonic() + step.limit_s
    try:
        while process.poll() is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise NotInstallable(f"{step.title}: not done in {step.limit_s:.0f} s")
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(PROGRESS_S, left_s))
                break
            progress(f"  {last_line()}")
    finally:
        if process.poll() is None:  # it took too long, or the caller was interrupted
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise NotInstallable(f"{step.title}: {last_line()} (all of it: {log})")


def quiet() -> dict[str, str]:
    """Return an environment for another program's Python that finds nothing of ours."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "HF_HUB_OFFLINE"}
    kept = {name: value for name, value in environment().items() if name not in dropped}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
