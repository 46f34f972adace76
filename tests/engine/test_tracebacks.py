"""What the log holds of an exception: types and places, and no value."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from engine.machine import Formatter, without_values

PRIVATE = "private " + "words"


def throw(error: Exception) -> None:
    raise error


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    error.__cause__ = cause and raised(cause)
    try:
        throw(error)
    except Exception as caught:  # noqa: BLE001 - whichever it is
        return caught
    raise AssertionError


class OwnError(Exception):
    pass


def test_the_message_is_left_out_and_the_place_is_told() -> None:
    reported = without_values(raised(OwnError(PRIVATE)))
    assert reported.endswith(f"\n{__name__}.OwnError")
    assert ", in throw" in reported
    assert PRIVATE not in reported


def test_what_the_system_says_stays() -> None:
    assert without_values(raised(FileNotFoundError(2, "No such file"))).endswith(
        "\nFileNotFoundError: [Errno 2] No such file"
    )


def test_what_led_to_it_comes_first() -> None:
    reported = without_values(raised(OwnError(PRIVATE), KeyError(PRIVATE)))
    assert reported.index("\nKeyError\nIt was followed by:\n") < reported.index("OwnError")
    assert PRIVATE not in reported


def test_those_of_a_group_are_told() -> None:
    reported = without_values(ExceptionGroup(PRIVATE, [raised(OwnError(PRIVATE)), raised(KeyError(PRIVATE))]))
    assert "\nException 1 of the group:\n  Traceback" in reported
    assert reported.endswith("\n  KeyError")
    assert PRIVATE not in reported


def test_causes_in_a_circle_end() -> None:
    one, other = OwnError(), KeyError()
    one.__cause__, other.__cause__ = other, one
    assert without_values(one).count("Traceback") == 2


def test_the_engines_log_tells_torchs_trouble() -> None:
    """Sizes and shapes are nobody's words; what a template quotes may be."""
    record = logging.LogRecord("engine", logging.ERROR, __file__, 1, "failed", None, None)
    for error, message in [
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
        (KeyError(PRIVATE), "KeyError"),
    ]:
        record.exc_info, record.exc_text = (type(error), error, None), None
        assert Formatter().format(record).endswith(f"\n{message}")


@pytest.mark.parametrize(
    "how",
    ["fail()", "import threading; thread = threading.Thread(target=fail); thread.start(); thread.join()"],
)
def test_what_nobody_caught_is_told_without_words(how: str) -> None:
    program = f"""
from engine import machine
machine.set_up_logs()
words = "private"
def fail():
    raise LookupError(words + " words")
{how}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("engine: CRITICAL: an uncaught exception\nTraceback")
    assert ended.stderr.endswith("LookupError\n")
    assert "private words" not in ended.stderr


def test_what_a_library_logs_is_told_once() -> None:
    """As each attempt of a download is, while the network is away."""
    program = """
from engine import machine
machine.set_up_logs()
from huggingface_hub.utils.logging import get_logger
machine.remove_library_handlers()
get_logger("huggingface_hub.utils").warning("Retrying in 1s")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == "engine: WARNING: Retrying in 1s\n"
