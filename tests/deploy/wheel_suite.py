"""`python -m tests.deploy.wheel_suite [PATH…]`: tests against the installed wheel; by default those of turns and frames.

The imports in a wheel are rewritten when it is built, so what ships is not what a checkout runs. The tests are
copied, their imports are rewritten by the same function, and they run where no checkout is, in an environment that has
the wheel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from distributions.gateway.backend import HOME, CannotBeMoved, rewritten
from tests.deploy.wheels import PACKAGES, ROOT, Installation, built, copied_tree

PARTS = (
    "tests/sessions/commands",
    "tests/sessions/conversation",
    "tests/sessions/turn",
    "tests/connections/protocol",
)
MOVED = tuple(name for name in PACKAGES if name != HOME)
_DOTTED = re.compile(rf'(?<=["\'])((?:{"|".join(MOVED)})(?:\.\w+)+)')
"""Modules that are named in strings, to patch them."""


def main() -> int:
    """Build, install, copy and run; return pytest's status."""
    with TemporaryDirectory(prefix="midstream-wheel-suite-") as folder:
        tree = copied_tree(Path(folder, "tree"))
        wheels = [built(tree / at, Path(folder)) for at in (".", "distributions/gateway", "midstream")]
        installation = Installation(Path(folder, "venv"), wheels)
        suite = copied_suite(Path(folder, "suite"))
        command = [str(installation.python), "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile"]
        chosen = sys.argv[1:] or PARTS
        environ = installation.environment()
        return subprocess.run([*command, *chosen], cwd=suite, env=environ, check=False).returncode


def copied_suite(suite: Path) -> Path:
    """Copy the tests, with what they read, into a new folder, as tests of the wheel; return the folder."""
    shutil.copytree(ROOT / "tests", suite / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", suite / "docs")
    for document in (*ROOT.glob("*.md"), ROOT / "pyproject.toml"):
        shutil.copy(document, suite)
    for module in (suite / "tests").rglob("*.py"):
        try:
            module.write_text(moved(module.read_text()))
        except CannotBeMoved:  # `import engine`: a test of the checkout
            module.unlink()
    return suite


def moved(source: str) -> str:
    """Return a test module that imports, and patches, what the wheel has. Pure."""
    return _DOTTED.sub(lambda found: _name_in_wheel(found[1]), rewritten(source, MOVED))


def _name_in_wheel(name: str) -> str:
    """Return where the wheel has a module or a part of it; other words with dots stay."""
    first = ROOT.joinpath(*name.split(".")[:2])
    return f"{HOME}.{name}" if first.is_dir() or first.with_suffix(".py").exists() else name


if __name__ == "__main__":
    sys.exit(main())
