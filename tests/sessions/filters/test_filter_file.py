"""The table of the filters: what it may say, and that whatever else it says stops the start with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sessions.errors import Filtered
from sessions.filters.chain import Filter, Filters, ReleasedText
from sessions.filters.list_filter import InvalidFilters, filters_from

HERE = "tests.sessions.filters.test_filter_file"


class NoQuestions(Filter):
    """An operator's own."""

    async def refuses(self, message: str) -> bool:
        return message.endswith("?")


def broken() -> Filter:
    raise LookupError("no licence")


def no_filter() -> str:
    return "no filter"


def filters_in(text: str) -> Filters:
    return filters_from(tomllib.loads(text))


async def test_lists_and_hooks_of_a_table_are_used() -> None:
    filters = filters_in(
        f"""
        max_chars = 9
        hooks = ["{HERE}:NoQuestions"]
        [input]
        words = ["darn"]
        [output]
        patterns = ['\\d{{4}}-\\d{{4}}']
        """
    )
    await filters.check("All is well.")
    for message in ("Darn.", "Is it?"):
        with pytest.raises(Filtered):
            await filters.check(message)
    assert filters.reply().feed("Darn 1234-5678", 1) == ReleasedText("Darn ", 1, filtered=True)


async def test_an_empty_table_lets_everything_pass() -> None:
    filters = filters_in("")
    await filters.check("darn")
    assert filters.reply() is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("input = 1", "Expected `object`"),
        ("[inputs]", "unknown field `inputs`"),
        ("[input]\nword = []", "unknown field `word`.*input"),
        ("[input]\nwords = [1]", r"Expected `str`.*input\.words"),
        ("max_chars = 0", r">= 1.*max_chars"),
        ("[input]\nwords = ['a', '']", r"input\.words\[1\] '': There is nothing"),
        ("[output]\npatterns = ['a', 'b+']", r"output\.patterns\[1\] 'b\+': .*longer than 128"),
        ("hooks = ['nowhere.at_all:make']", "'nowhere.at_all:make' fails: ModuleNotFoundError"),
        ("hooks = ['no colon']", "'no colon' fails"),
        (f"hooks = ['{HERE}:missing']", "fails: AttributeError"),
        (f"hooks = ['{HERE}:broken']", "fails: LookupError: no licence"),
        (f"hooks = ['{HERE}:no_filter']", "makes a str, which is not a Filter"),
    ],
)
def test_a_table_that_can_not_be_used_is_told_by_its_place(text: str, why: str) -> None:
    with pytest.raises(InvalidFilters, match=rf"(?s){why}"):
        filters_in(text)


async def test_the_example_does_what_it_says() -> None:
    example = Path(__file__).parents[3] / "deploy" / "midstream.toml"
    filters = filters_from(tomllib.loads(example.read_text(encoding="utf-8"))["filters"])
    await filters.check("Numbers like 1234 5678 are fine.")
    for message in ("1234-5678-1234-5678", "An  EXAMPLE phrase!"):
        with pytest.raises(Filtered):
            await filters.check(message)
    reply = filters.reply()
    assert reply.feed("My key is sk-" + "a" * 20, 1) == ReleasedText("My key is ", 1, filtered=True)
