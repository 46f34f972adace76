"""The contenders, the folder of each peer, and its installation. Starts nothing, and looks only for files."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import msgspec

from tools.vllm_install import VERSION as VLLM_VERSION

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache"

LLAMA_CPP_PYTHON = "0.3.36"
"""The release whose source contains the llama.cpp that is built."""
OPENVINO_GENAI = "2026.4.1.0"
OPTIMUM_INTEL = "2.2.0"

QUICK_STEP_S = 300.0
LONG_STEP_S = 1800.0


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


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command of an installation. `limit_s`: it is ended after so long. `folder` is created before it runs."""

    title: str
    command: tuple[str, ...]
    limit_s: float = QUICK_STEP_S
    folder: str = ""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A program beside ours. `home`: its folder; `program`: a file that exists once it is installed.

    `stamp` is written when all steps are done; it holds the version, or nothing if another command made it.
    """

    who: PeerName
    version: str
    home: str
    program: str
    stamp: str
    steps: tuple[Step, ...]

    @property
    def installed(self) -> bool:
        """True if all of its steps were done once, for this version."""
        stamp = Path(self.stamp)
        return (
            stamp.is_file()
            and Path(self.program).exists()
            and stamp.read_text(encoding="utf-8").strip() in {"", self.version}
        )


def peers(*, cache: Path = CACHE, torch: str = "torch", torch_index: str | None = None) -> tuple[Peer, ...]:
    """Return all peers. `torch` is a requirement; `torch_index` replaces pip's own index for torch."""
    return (_vllm(cache, torch_index), _llama(cache), _openvino(cache, torch, torch_index))


def _vllm(cache: Path, torch_index: str | None) -> Peer:
    home = cache / "vllm"
    index = ("--torch-index", torch_index) if torch_index else ()
    return Peer(
        who=PeerName.VLLM,
        version=VLLM_VERSION,
        home=str(home),
        program=str(home / "bin" / "python"),
        stamp=str(home / ".installed"),
        steps=(
            Step(
                title="an environment with vLLM, as `make vllm` makes it",
                command=(sys.executable, "-m", "tools.vllm_install", *index, str(home)),
                limit_s=LONG_STEP_S,
            ),
        ),
    )


def _llama(cache: Path) -> Peer:
    home = cache / "peers" / "llama"
    python, source, build = home / "bin" / "python", home / "source", home / "build"
    llama = source / "vendor" / "llama.cpp"
    sdist = home / "sdist"
    pip = (str(python), "-m", "pip")
    options = (
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        f"-DCMAKE_MAKE_PROGRAM={home / 'bin' / 'ninja'}",
    )
    return Peer(
        who=PeerName.LLAMA,
        version=LLAMA_CPP_PYTHON,
        home=str(home),
        program=str(build / "bin" / "llama-server"),
        stamp=str(home / ".installed"),
        steps=(
            Step(title="an environment", command=(sys.executable, "-m", "venv", str(home))),
            Step(title="cmake and ninja", command=(*pip, "install", "--quiet", "cmake", "ninja")),
            Step(
                title=f"the source of llama-cpp-python {LLAMA_CPP_PYTHON}",
                command=(
                    *(*pip, "download", "--no-binary", ":all:", "--no-deps", "--dest", str(sdist)),
                    f"llama-cpp-python=={LLAMA_CPP_PYTHON}",
                ),
                limit_s=LONG_STEP_S,
            ),
            Step(
                title="unpacking it",
                command=(
                    *("tar", "-xzf", str(sdist / f"llama_cpp_python-{LLAMA_CPP_PYTHON}.tar.gz")),
                    *("--strip-components=1", "-C", str(source)),
                ),
                folder=str(source),
            ),
            Step(
                title="its writer of GGUF files",
                command=(*pip, "install", "--quiet", str(llama / "gguf-py")),
            ),
            Step(
                title="configuring the build",
                command=(
                    *(str(home / "bin" / "cmake"), "-S", str(llama), "-B", str(build), "-G", "Ninja"),
                    *options,
                ),
            ),
            Step(
                title="building llama-server: about 200 files",
                command=(str(home / "bin" / "ninja"), "-C", str(build), "-j2", "llama-server"),
                limit_s=2 * LONG_STEP_S,
            ),
        ),
    )


def _openvino(cache: Path, torch: str, torch_index: str | None) -> Peer:
    home = cache / "peers" / "openvino"
    python = str(home / "bin" / "python")
    pip = (python, "-m", "pip")
    index = ("--index-url", torch_index) if torch_index else ()
    return Peer(
        who=PeerName.OPENVINO,
        version=OPENVINO_GENAI,
        home=str(home),
        program=python,
        stamp=str(home / ".installed"),
        steps=(
            Step(title="an environment", command=(sys.executable, "-m", "venv", str(home))),
            Step(title=torch, command=(*pip, "install", "--quiet", *index, torch), limit_s=LONG_STEP_S),
            Step(
                title=f"OpenVINO GenAI {OPENVINO_GENAI} and its exporter",
                command=(
                    *(*pip, "install", "--quiet", torch, "msgspec", f"openvino-genai=={OPENVINO_GENAI}"),
                    *("openvino-tokenizers", f"optimum-intel[openvino]=={OPTIMUM_INTEL}"),
                ),
                limit_s=LONG_STEP_S,
            ),
            Step(
                title="without torchvision, which the exporter does not need",
                command=(*pip, "uninstall", "--quiet", "--yes", "torchvision"),
            ),
        ),
    )
