"""Makes a release: the three Python distributions, the npm package, the images.

`python distributions/release.py --dry-run` builds and checks all, and says what would be published. Without it, all changes must
be committed, and each upload has to be confirmed. Uploads have not been run yet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("midstream", "distributions/gateway", ".")
"""The folders of the Python distributions, each after those that it depends on."""
NPM = Path("app") / "page" / "client"
DOCKERFILE = Path("deploy") / "Dockerfile"
IMAGES = ("gateway", "cpu", "cuda")
_BUILD = "import sys; {path}from {backend} import {hook}; print({hook}(sys.argv[1]))"


class CannotRelease(Exception):
    """Something has to be fixed before a release."""


def main() -> int:
    """Build, check and publish. Returns 1 if something has to be fixed."""
    parser = argparse.ArgumentParser(prog="release", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="build and check; publish nothing")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="where the files are put")
    parser.add_argument("--image", default="midstream", help="the image's name, with its registry")
    chosen = parser.parse_args()
    try:
        version = checked_versions(ROOT)
        if not chosen.dry_run:
            check_ready(ROOT, version)
        files = built(ROOT, chosen.into.absolute())
        for file in files:
            check_metadata(file, version)
        check_npm(ROOT)
        check_image(ROOT)
    except CannotRelease as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    for command in uploads(files, image=f"{chosen.image}:{version}"):
        if chosen.dry_run:
            print("would run:", *command)
        elif input(f"Run {' '.join(command)}? [y/N] ") == "y":
            subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - as listed below
    return 0


def checked_versions(root: Path) -> str:
    """Return the version that all packages have. Raises CannotRelease."""
    files = [root / source / "pyproject.toml" for source in SOURCES]
    versions = {tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"] for file in files}
    versions.add(json.loads((root / NPM / "package.json").read_text(encoding="utf-8"))["version"])
    if len(versions) > 1:
        raise CannotRelease(f"the packages have different versions: {', '.join(sorted(versions))}")
    return str(versions.pop())


def check_ready(root: Path, version: str) -> None:
    """Raise CannotRelease for uncommitted changes, a version without a day in the changelog, or a missing twine."""
    if find_spec("twine") is None:
        raise CannotRelease("what uploads to PyPI is missing: pip install twine")
    if _output(["git", "status", "--porcelain"], root).strip():
        raise CannotRelease("there are changes that are not committed")
    headings = (root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    if not any(line.startswith(f"## {version} ") and "unreleased" not in line for line in headings):
        raise CannotRelease(f"CHANGELOG.md has no heading `## {version} (DAY)`")


def built(root: Path, into: Path) -> list[Path]:
    """Build from the tracked files, with documentation; return source distributions, and the wheels that are built from them."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="midstream-release-") as folder:
        tree = Path(folder) / "tree"
        for name in _output(["git", "ls-files", "-z"], root).rstrip("\0").split("\0"):
            if (root / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, tree / name)
        print(_output([sys.executable, "docs/site/build.py", str(tree / "app" / "docs")], tree).strip())
        return list(_distributions(tree, into, Path(folder)))


def _distributions(tree: Path, into: Path, scratch: Path) -> Iterator[Path]:
    for source in (tree / folder for folder in SOURCES):
        archive = _hook(source, "build_sdist", into)
        yield archive
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        yield _hook(scratch / archive.name.removesuffix(".tar.gz"), "build_wheel", into)


def _hook(tree: Path, hook: str, into: Path) -> Path:
    """Call a hook of a tree's build backend, as pip does; return the file that it made."""
    system = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    path = "".join(f"sys.path.insert(0, {folder!r}); " for folder in system.get("backend-path", ()))
    program = _BUILD.format(path=path, backend=system["build-backend"], hook=hook)
    print(f"{hook} of {tree.name}")
    return into / _output([sys.executable, "-c", program, str(into)], tree).splitlines()[-1]


def check_metadata(file: Path, version: str) -> None:
    """Raise CannotRelease if a package index would refuse a distribution's metadata."""
    try:
        metadata = Metadata.from_email(_metadata(file), validate=True)
    except ExceptionGroup as wrong:
        raise CannotRelease(f"{file.name}: {'; '.join(map(str, wrong.exceptions))}") from wrong
    if str(metadata.version) != version or not metadata.description or not metadata.license_files:
        raise CannotRelease(f"{file.name}: it lacks its version, its description or its licence")
    print(f"{file.name}: the metadata can be read")


def _metadata(file: Path) -> bytes:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return wheel.read(name)
    with tarfile.open(file) as archive:
        found = archive.extractfile(f"{file.name.removesuffix('.tar.gz')}/PKG-INFO")
        if found is None:
            raise CannotRelease(f"{file.name} has no PKG-INFO")
        return found.read()


def check_npm(root: Path) -> None:
    """Print what the npm package would hold."""
    if shutil.which("npm") is None:
        print("npm is missing: its package was not looked at")
        return
    (packed,) = json.loads(_output(["npm", "pack", "--dry-run", "--json", f"./{NPM}"], root))
    print(f"{packed['filename']}: {packed['entryCount']} files")


def check_image(root: Path) -> None:
    """Raise CannotRelease if hadolint finds something in the Dockerfile."""
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        print("hadolint is missing: the Dockerfile was not looked at")
        return
    _output([hadolint, "--no-color", str(DOCKERFILE)], root)
    print(f"{DOCKERFILE}: hadolint finds nothing")


def uploads(files: list[Path], *, image: str) -> list[list[str]]:
    """Return the commands that publish. PyPI takes no wheels that were compiled for one Linux. Pure."""
    taken = [
        str(file) for file in files if not file.name.endswith(("-linux_x86_64.whl", "-linux_aarch64.whl"))
    ]
    return [
        [sys.executable, "-m", "twine", "upload", *taken],
        ["npm", "publish", f"./{NPM}"],
        ["make", "docs"],  # what the image serves at /docs
        *(
            ["docker", "build", "-f", str(DOCKERFILE), "--target", target, "-t", f"{image}-{target}", "."]
            for target in IMAGES
        ),
        *(["docker", "push", f"{image}-{target}"] for target in IMAGES),
    ]


def _output(command: list[str], folder: Path) -> str:
    """Return what a command prints. Raises CannotRelease if it fails."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if ended.returncode != 0:
        raise CannotRelease(f"{command[0]} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
