"""Where the operator's functions are found: in installed distributions and by their names. What is wrong stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.tools.function_tools import InvalidToolFunction, discover_functions

WEATHER = '''
"""Tools about the weather."""

from sessions.tools.function_tools import tool


@tool(approval="always", idempotent=True)
def sun(city: str) -> str:
    """Say whether the sun shines.

    Args:
        city: Which one.
    """
    return f"It shines on {city}."


def rain() -> str:
    return "None."


@tool(name="sun shine")
def odd() -> str:
    return "Yes."


both = [sun, rain]
number = 3


def bad(what) -> str:
    return what
'''


class Site:
    """A folder of installed distributions, first in the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)

    def install(self, name: str, *points: str) -> None:
        """A distribution with these entry points."""
        facts = self.folder / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("\n".join(["[midstream.tools]", *points]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Modules of tests have names of their own, since an import is remembered."""
    monkeypatch.syspath_prepend(tmp_path)
    return Site(tmp_path)


def names(*named: str) -> list[str]:
    return [found.tool.name for found in discover_functions(named)]


def test_without_any_there_are_none() -> None:
    assert names() == []


def test_distributions_bring_tools_and_a_setting_names_functions_and_lists_of_them(site: Site) -> None:
    site.module("weather_a", WEATHER)
    site.install("weather", "a = weather_a:sun", "b = weather_a:rain")
    assert names() == ["sun", "rain"]
    site.module("weather_b", WEATHER.replace("sun", "snow").replace("rain", "hail"))
    assert names("weather_b:both") == ["sun", "rain", "snow", "hail"]
    found = discover_functions(["weather_b:snow"])[-1]
    assert found.tool.description == "Say whether the snow shines."
    assert '"description":"Which one."' in found.tool.parameters
    assert (found.tool.approval.value, found.tool.idempotent) == ("always", True)


def test_an_entry_point_that_can_not_be_imported_is_named(site: Site) -> None:
    site.install("broken", "a = nowhere_at_all:sun")
    with pytest.raises(InvalidToolFunction) as failure:
        discover_functions([])
    for words in ("entry point a = nowhere_at_all:sun of broken", "No module named 'nowhere_at_all'"):
        assert words in str(failure.value)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("weather", "'weather' does not name a function; write module:function"),
        (":sun", "write module:function"),
        ("weather_d:", "write module:function"),
        ("weather_d:snow", "weather_d:snow can't be loaded: AttributeError"),
        ("weather_d:number", "weather_d:number is not a function; its type is int"),
        ("weather_d:bad", "weather_d:bad: bad can't be a tool: parameter what has no type hint"),
        ("weather_d:odd", "its name 'sun shine' is not 1 to 64 of"),
        ("exits_d:sun", "exits_d:sun can't be loaded: SystemExit"),
        ("weather_e:sun", "weather_d:sun and weather_e:sun both have a tool 'sun'."),
    ],
)
def test_what_is_no_tool_is_named_with_the_reason(site: Site, named: str, words: str) -> None:
    site.module("weather_d", WEATHER)
    site.module("weather_e", WEATHER)
    site.module("exits_d", "raise SystemExit('3')")
    with pytest.raises(InvalidToolFunction) as failure:
        discover_functions(["weather_d:sun", named])
    assert words in str(failure.value)
