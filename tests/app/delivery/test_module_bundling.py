"""Modules become one script that does what they do; what would need more than that is refused with its place."""

from __future__ import annotations

import pytest

from app.es_modules import BundleError, join

BESIDE = {"vendor/big.js": "/static/vendor/big.0.js"}


def refusal(**sources: str) -> str:
    with pytest.raises(BundleError) as refused:
        join("main.js", {f"{name}.js": script for name, script in sources.items()}, BESIDE)
    return str(refused.value)


def test_a_module_stands_behind_those_that_it_imports() -> None:
    sources = {
        "main.js": 'import { b } from "./ui/b.js";\nb();',
        "ui/b.js": 'import { a as own } from "../a.js";\nexport async function b() { await own(); }',
        "a.js": "/** Says it. */\nconst own = () => {};\nexport { own as a };\n",
    }
    joined = join("main.js", sources, {})
    assert joined.script == (
        "// a.js\nconst module$a = (() => {const own = () => {};\n\n\nreturn { a: own };\n})();\n"
        "// ui/b.js\nconst module$ui_b = (() => {const { a: own } = module$a;\nasync function b() { await own(); }\n"
        "return { b };\n})();\n"
        "// main.js\n{const { b } = module$ui_b;\nb();}\n"
    )


def test_what_stays_a_file_of_its_own_is_imported_by_its_address() -> None:
    joined = join("main.js", {"main.js": 'import { big } from "./vendor/big.js";'}, BESIDE)
    assert joined.needs == ("/static/vendor/big.0.js",)
    assert joined.script.startswith('import * as module$vendor_big from "/static/vendor/big.0.js";')


def test_an_import_on_demand_is_a_promise_of_a_module_that_runs_before_the_first() -> None:
    sources = {
        "main.js": 'import("./lazy.js");\nimport("./vendor/big.js");',
        "lazy.js": 'import { deep } from "./deep.js";\nexport { deep };',
        "deep.js": "export const deep = 1;",
    }
    joined = join("main.js", sources, BESIDE)
    assert joined.needs == ()
    assert [line for line in joined.script.splitlines() if line.startswith("//")] == [
        "// deep.js",
        "// lazy.js",
        "// main.js",
    ]
    assert joined.script.endswith(
        '{Promise.resolve().then(() => module$lazy);\nimport("/static/vendor/big.0.js");}\n'
    )


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ("  // gone\na;\n", "a;\n"),
        ("/**\n * gone\n */\nclass A {}", "class A {}"),
        ("let a = /** @type {A} */ (b);", "let a = (b);"),
        ('/** @type {import("./nowhere.js").A} */\nlet a;', "let a;"),
        ('let a = "https://a.example/* b */";', 'let a = "https://a.example/* b */";'),
    ],
)
def test_comments_and_types_go_and_all_else_stays(script: str, left: str) -> None:
    assert join("main.js", {"main.js": script}, {}).script == f"// main.js\n{{{left}}}\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("\nexport default 1;", 'write `import { a } from "./b.js";` or `export const`: export default 1;'),
        ("export let a = 1;", "write"),
        ('export * from "./a.js";', "write"),
        ('export { a } from "./a.js";', "write"),
        ('import a from "./a.js";', "write"),
        ('import { a } from "a";', "write"),
        ('import { a } from "./a.js"', "write"),
        ('  import { a } from "./a.js";', "write"),
        ("import(name);", "write"),
        ("import.meta.env;", "write"),
        ('import { a } from "./gone.js";', "it imports gone.js, which does not exist"),
        ('import.meta.resolve("./gone.css");', "it names gone.css, which does not exist"),
    ],
)
def test_what_can_t_be_joined_is_named(script: str, why: str) -> None:
    assert refusal(main=script, a="export const a = 1;").startswith(f"app/page/main.js: {why}")


def test_a_module_that_others_need_does_not_wait_while_it_loads() -> None:
    """The first one may."""
    reported = refusal(main='import { a } from "./a.js";\nawait a();', a="\nexport const a = await 1;")
    assert reported == (
        "app/page/a.js: a module that others import can't wait while it loads: export const a = await 1;"
    )


def test_modules_that_import_each_other_are_refused() -> None:
    reported = refusal(
        main='import { a } from "./a.js";', a='import { b } from "./b.js";', b='import { a } from "./a.js";'
    )
    assert "a.js imports b.js imports a.js" in reported
