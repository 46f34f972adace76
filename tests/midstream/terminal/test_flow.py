"""Markdown that grows: what is settled stays, whatever comes, and no word is parted."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from rich.cells import cell_len

from midstream.terminal.markdown import Painter
from midstream.terminal.markdown_stream import LONGEST_LIVE, MarkdownStream

STYLE = re.compile(r"\x1b\[[0-9;]*m")
BLOCKS = [
    "# A heading\n",
    "A paragraph with **strong** words, `code` and a [link](http://a.example).\nA second line.\n",
    "- one\n- two\n  - inside\n- three\n",
    "1. first\n2. second\n\n3. third, later\n",
    "> a quotation\n> of two lines\n",
    "```python\ndef f(x):\n    return '''x\n'''\n```\n",
    "~~~\nno language\n",
    "| a | b |\n|---|--:|\n| 1 | two |\n",
    "---\n",
    "<think>no tag is lost</think>\n",
    "    indented code\n",
    "Ein schöner Satz 你好 👩‍👩‍👧.\n",
]


def shown(rows: list[str]) -> list[str]:
    return [STYLE.sub("", row) for row in rows]


def whole(text: str, columns: int = 60) -> list[str]:
    """All rows of a text that comes at once."""
    return shown(MarkdownStream(Painter(columns)).take(text, is_whole=True)[0])


@settings(max_examples=200, deadline=None)
@given(blocks=some.lists(some.sampled_from(BLOCKS), max_size=5), data=some.data())
def test_however_a_text_is_cut_into_pieces_it_ends_the_same(blocks: list[str], data: some.DataObject) -> None:
    text = "\n".join(blocks)
    cuts = sorted(data.draw(some.lists(some.integers(0, len(text)), max_size=8)))
    flow, rows = MarkdownStream(Painter(60)), list[str]()
    for cut in cuts:
        rows += flow.take(text[:cut])[0]
    rows += flow.take(text, is_whole=True)[0]
    assert shown(rows) == whole(text)


@settings(max_examples=100, deadline=None)
@given(
    blocks=some.lists(some.sampled_from(BLOCKS), min_size=1, max_size=5),
    columns=some.integers(30, 100),
    data=some.data(),
)
def test_live_rows_are_narrower_than_the_terminal(
    blocks: list[str], columns: int, data: some.DataObject
) -> None:
    text = "\n".join(blocks)
    cut = data.draw(some.integers(0, len(text)))
    live = MarkdownStream(Painter(columns)).take(text[:cut])[1]
    assert [row for row in shown(live) if cell_len(row) > columns] == []


def test_words_are_not_parted_at_the_margin() -> None:
    words = [f"word{number}" for number in range(200)]
    rows = whole(" ".join(words), columns=30)
    assert " ".join(rows).split() == words
    assert max(map(len, rows)) <= 30


def test_blocks_that_another_one_has_begun_behind_are_settled() -> None:
    flow = MarkdownStream(Painter(60))
    assert flow.take("One.\n\nTw") == ([], ["One.", "", "Tw"])
    assert flow.take("One.\n\nTwo.\n") == (["One."], ["", "Two."])
    assert flow.take("One.\n\nTwo.\n\nThree.", is_whole=True) == (["", "Two.", "", "Three."], [])


def test_items_of_a_list_and_lines_of_code_are_settled_one_by_one() -> None:
    flow = MarkdownStream(Painter(60))
    assert shown(flow.take("8. a\n9. b\n10. c")[0]) == [" 8. a"]
    assert shown(flow.take("8. a\n9. b\n10. c\n11. d\n")[0]) == [" 9. b", " 10. c"]
    flow = MarkdownStream(Painter(60))
    settled, live = flow.take("```js\nlet a\nlet b")
    assert (shown(settled), live) == (["```js", "let a"], ["let b"])


def test_one_item_of_a_numbered_list_counts_on_from_the_one_before() -> None:
    flow, rows = MarkdownStream(Painter(60)), list[str]()
    for text in ("1. a\n1. b\n", "1. a\n1. b\n1. c\n", "1. a\n1. b\n1. c\n1. d\n"):
        rows += flow.take(text)[0]
    rows += flow.take("1. a\n1. b\n1. c\n1. d\n", is_whole=True)[0]
    assert shown(rows) == [" 1. a", " 2. b", " 3. c", " 4. d"]


def test_code_is_copied_as_it_was_written() -> None:
    code = f"def f():\n\treturn {'x' * 100}  \n\n\n    # end"
    rows = whole(f"```python\n{code}\n```\n", columns=40)
    assert rows[1:-1] == [line.rstrip() for line in code.split("\n")]


def test_what_is_no_text_in_markdown_is_shown_all_the_same() -> None:
    text = "\n".join(
        whole("<div>A [link](http://a.example/x) and ![a picture](b.png).\n\n[note]: http://c.example\n")
    )
    for part in ("<div>", "link (http://a.example/x)", "[a picture] (b.png)", "[note]: http://c.example"):
        assert part in text


def test_pictures_and_code_stand_where_they_were_written() -> None:
    assert whole("Look: ![a tree](t.png) here.") == ["Look: [a tree] (t.png) here."]
    assert whole("- one\n  ```\n  code\n  ```\n- two\n") == [" • one", "   code", " • two"]


def test_what_would_steer_the_terminal_is_an_escape() -> None:
    rows = MarkdownStream(Painter(60)).take(
        "Red: \x1b[31m, bell: \x07.\n\n```\n\x1b]0;title\x07\n```\n", is_whole=True
    )[0]
    reported = "".join(rows)
    assert "\\x1b[31m" in reported
    assert "\x07" not in reported
    assert "\\x1b]0;title\\x07" in reported


def test_a_text_goes_on_with_what_may_still_change_of_it() -> None:
    before = "One.\n\n```python\na = 1\nb ="
    flow = MarkdownStream(Painter(60), before)
    assert shown(flow.take(f"{before} 2\n")[0]) == ["b = 2"]


def test_a_long_paragraph_is_settled_in_parts() -> None:
    """What is live stays small, so that each piece of a long reply costs the same."""
    flow = MarkdownStream(Painter(60))
    text = "word " * (LONGEST_LIVE // 2)
    settled, live = flow.take(text)
    assert settled
    assert len("".join(live)) <= LONGEST_LIVE
    rest = flow.take(text, is_whole=True)[0]
    assert " ".join([*settled, *rest]).split() == text.split()


@pytest.mark.parametrize("columns", [20, 33, 34, 60])
def test_cells_of_tables_keep_their_words_whole(columns: int) -> None:
    """Where they do not fit beside each other, rows are lists."""
    table = (
        "| Algorithm | Complexity | Remarks |\n|---|---|---|\n"
        "| Mergesort | n log n | stable and quite predictable |\n| Quicksort | n² at worst | in place |\n"
    )
    text = "\n".join(whole(table, columns))
    for word in ("Algorithm", "Complexity", "Mergesort", "predictable", "Quicksort"):
        assert word in text
    assert max(map(cell_len, text.split("\n"))) <= columns
    assert ("Algorithm: Mergesort" in text) == (columns < 34)
