"""What vLLM's lines say, taken from its own."""

from __future__ import annotations

import logging

import pytest

from engine.upstream.vllm import MOST_CHARS, OutputReader, cause_of, line_of

RECORD = "(EngineCore pid=31268) {} 11-22 18:38:12 [core.py:402] {}"


def test_a_record_has_a_level_and_no_marks() -> None:
    assert line_of(RECORD.format("WARNING", "two words"))[:2] == (logging.WARNING, "two words")
    assert line_of("(Worker pid=3) Traceback (most recent call last):") == (
        None,
        "Traceback (most recent call last):",
        "",
    )
    heads = [
        line_of(RECORD.format("ERROR", words)).place
        for words in ("it failed", "  File x", "", "ValueError: y")
    ]
    assert len(set(heads)) == 1
    assert line_of("(APIServer pid=1) INFO 11-22 18:37:07 [api_utils.py:347]  ▄▄ ▄█ █").is_noise
    assert line_of(RECORD.format("INFO", "Route: /health, Methods: GET")).is_noise


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            ["main.py: error: unrecognized arguments: --no-such-thing 3"],
            "main.py: error: unrecognized arguments: --no-such-thing 3",
        ),
        (
            [
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
                "  Value error, Total number of attention heads (6) must be divisible. [type=value_error, input_value=A]",
                "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
            ],
            "Value error, Total number of attention heads (6) must be divisible.",
        ),
        (
            [
                RECORD.format("ERROR", "ValueError: Unsupported quantization"),
                "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValueError: Unsupported quantization",
        ),
        (["all is well", "  raise ValueError('x')"], None),
    ],
)
def test_the_cause_of_an_end_is_no_mere_consequence(lines: list[str], cause: str | None) -> None:
    assert cause_of(lines) == cause


def test_lines_end_by_either_sign_and_have_a_longest_length() -> None:
    lines: list[str] = []
    reader = OutputReader(lines.append)
    for data in (b"one\r two\nth", b"ree\n\n\n", b"x" * (MOST_CHARS + 5), b"rest\n"):
        reader.data_received(data)
    assert lines == ["one", " two", "three", "x" * MOST_CHARS, "rest"]
