"""Modules become one script that does what they do; what would need more than that is refused with its place."""

from __future__ import annotations

import pytest

from app.es_modules import BundleError, join

BESIDE = {"vendor/big.js": "/static/vendor/big.0.js"}


def nowhere(script: str) -> str:
    raise AssertionError(f"nothing is loaded later, and yet: {script}")


def refusal(**sources: str) -> str:
    with pytest.raises(BundleError) as refused:
        join("main.js", {f"{name}.js": script for name, script in sources.items()}, BESIDE, nowhere)
    return str(refused.value)


def test_a_module_stands_behind_those_that_it_imports() -> None:
    sources = {
        "main.js": 'import { b } from "./ui/b.js";\nb();',
        "ui/b.js": 'import { a as own } from "../a.js";\nexport function b() { own(); }',
        "a.js": "/** Says it. */\nexport const a = () => {};\n",
    }
    joined = join("main.js", sources, {}, nowhere)
    assert joined.script == (
        "// a.js\nconst module$0 = (() => {\nconst a = () => {};\nreturn { a };\n})();\n"
        "// ui/b.js\nconst module$1 = (() => {const { a: own } = module$0;\nfunction b() { own(); }\nreturn { b };\n})();\n"
        "// main.js\n{const { b } = module$1;\nb();}\n"
    )


def test_what_stays_a_file_of_its_own_is_imported_by_its_address() -> None:
    joined = join("main.js", {"main.js": 'import { big } from "./vendor/big.js";'}, BESIDE, nowhere)
    assert joined.needs == ("/static/vendor/big.0.js",)
    assert joined.script.startswith('import * as module$0 from "/static/vendor/big.0.js";')


def test_what_is_imported_when_it_is_needed_is_a_script_of_its_own() -> None:
    """Which is handed what it takes of the first one, and is not loaded before."""
    sources = {
        "main.js": 'import { said } from "./log.js"; import("./lazy.js"); import("./vendor/big.js");',
        "log.js": "export const said = [];",
        "lazy.js": 'import { big } from "./vendor/big.js";\nimport { said } from "./log.js";\n'
        'import { deep } from "./deep.js";\nexport { big };',
        "deep.js": "export const deep = 1;",
    }
    placed: list[str] = []

    def place(script: str) -> str:
        placed.append(script)
        return "/static/later.0.js"

    joined = join("main.js", sources, BESIDE, place)
    [later] = placed
    assert joined.needs == ()
    assert "import *" not in joined.script
    assert "deep" not in joined.script
    assert 'import("/static/later.0.js").then(({ begin }) => begin({ module$1 }))' in joined.script
    assert later.startswith("export const begin = ({ module$1 }) => {")
    assert 'const { big } = await import("/static/vendor/big.0.js");' in later
    assert "const { said } = module$1;" in later


def test_types_in_comments_are_no_imports() -> None:
    joined = join("main.js", {"main.js": '/** @type {import("./nowhere.js").A} */\nlet a;'}, {}, nowhere)
    assert "nowhere" not in joined.script


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("\nexport default 1;", ":2: export a `class`, a `function`, `const name =` or `{ names }`"),
        ("export let a = 1;", ":1: export a `class`, a `function`, `const name =` or `{ names }`"),
        ('export * from "./a.js";', ":1: export a `class`"),
        ('import a from "./a.js";', ":1: there are no default exports: `import { name }` instead"),
        ('import { a } from "a";', ":1: name the file by a string that begins with `./` or `../`"),
        ("import(name);", ":1: name the file by a string that begins with"),
        ('import { a } from "./gone.js";', ":1: it imports gone.js, which is not there"),
        ('import { a } from "./a.js"', ":1: the module ends in the middle of a statement"),
        ('import.meta.resolve("./gone.css");', ":1: it names gone.css, which is not there"),
        ("import.meta.env;", ":1: `url` is expected here, not `env`"),
        ("if (a) {", ":1: `{` is never closed"),
    ],
)
def test_what_can_t_be_joined_is_named_with_its_place(script: str, why: str) -> None:
    assert refusal(main=script, a="export const a = 1;").startswith(f"app/page/main.js{why}")


def test_a_module_that_others_need_does_not_wait_while_it_loads() -> None:
    """The first one may."""
    reported = refusal(main='import { a } from "./a.js";\nawait a();', a="\nexport const a = await 1;")
    assert reported.startswith("app/page/a.js:2: a module that others import can't `await`")


def test_modules_that_import_each_other_are_refused() -> None:
    reported = refusal(
        main='import { a } from "./a.js";', a='import { b } from "./b.js";', b='import { a } from "./a.js";'
    )
    assert "a.js imports b.js imports a.js" in reported
