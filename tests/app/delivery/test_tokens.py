"""A script is taken apart so that its comments can go, and nothing else does."""

from __future__ import annotations

import pytest

from app.es_modules import Kind, TokenError, tokens
from app.routes import PAGE


def squeezed(script: str) -> str:
    return "".join(token.before + token.text for token in tokens(script))


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ("a; // gone\nb;", "a;\nb;"),
        ("a /* gone */ b", "a b"),
        ("/** gone\n * gone */\nclass A {}", "\nclass A {}"),
        ("return /* gone\n*/ 1", "return\n1"),
        ("\"// stays\" + '/* stays */'", "\"// stays\" + '/* stays */'"),
        ('"a\\"// stays"', '"a\\"// stays"'),
        ("x = /\\/\\/[/*]'/g; // gone", "x = /\\/\\/[/*]'/g;"),
        ("a / b / c // gone", "a / b / c"),
        ("f(x) / 2 /* gone */", "f(x) / 2"),
        ("return /`/.test(x)", "return /`/.test(x)"),
        (
            "`// stays\n  stays ${a /* gone */ + `in ${b} // stays`} ${{}}`",
            "`// stays\n  stays ${a + `in ${b} // stays`} ${{}}`",
        ),
        ("`\\` \\${ $ {`", "`\\` \\${ $ {`"),
        ("    a;\n\n\n    b;", " a;\nb;"),
    ],
)
def test_comments_go_and_all_else_stays(script: str, left: str) -> None:
    assert squeezed(script) == left


@pytest.mark.parametrize(
    ("script", "line", "why"),
    [
        ("a;\nfunction f() {", 2, "`{` is never closed"),
        ("a;\n)", 2, "`)` closes nothing"),
        ("(\n]", 2, "`]` closes nothing"),
        ("'a\n'", 1, "a string is never closed"),
        ("\n`a ${b", 2, "`${` is never closed"),
        ("`a", 1, "a template is never closed"),
        ("x = /a\n/", 1, "a regular expression is never closed"),
    ],
)
def test_what_does_not_end_is_told_with_its_line(script: str, line: int, why: str) -> None:
    with pytest.raises(TokenError) as refused:
        list(tokens(script))
    assert (refused.value.line, str(refused.value)) == (line, why)


def test_a_value_in_a_template_stands_deeper_than_it() -> None:
    inner = [token for token in tokens("`a ${ {b} } c`") if token.kind is not Kind.TEMPLATE]
    assert [(token.text, token.depth) for token in inner] == [("{", 1), ("b", 2), ("}", 1)]


def test_a_script_of_the_page_without_its_comments_has_none() -> None:
    """Whatever is squeezed once more stays as it is: nothing in it was taken for something else."""
    for path in [*PAGE.glob("client/*.js"), *PAGE.glob("ui/**/*.js")]:
        once = squeezed(path.read_text())
        assert squeezed(once) == once
