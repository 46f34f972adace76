"""The page's pure modules, run where they run: in a browser."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer

whole_texts = st.text(st.characters(codec="utf-8"), max_size=40)
one_page = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20
)


async def run(chat: ChatPage, peer: FakeServer, module: str, body: str, argument: Any) -> Any:
    """Runs the body of a function of (module, argument) on the page."""
    if chat.page.url == "about:blank":
        await chat.page.goto(peer.url)
    script = f"async ([path, argument]) => {{ const module = await import(path); {body} }}"
    return await chat.page.evaluate(script, [f"/static/{module}", argument])


@one_page
@given(cases=st.lists(st.tuples(whole_texts, st.integers(0, 50)), min_size=1, max_size=10))
async def test_code_points_are_those_of_python(
    chat: ChatPage, peer: FakeServer, cases: list[tuple[str, int]]
) -> None:
    body = """
        const { countCodePoints, takeCodePoints, dropCodePoints } = module;
        return argument.map(([text, count]) => [countCodePoints(text), takeCodePoints(text, count), dropCodePoints(text, count)]);
    """
    counted = await run(chat, peer, "client/code-points.js", body, cases)
    assert counted == [[len(text), text[:count], text[count:]] for text, count in cases]


@one_page
@given(
    pieces=st.lists(whole_texts.filter(bool), max_size=6), replayed=st.integers(0, 6), kept=st.integers(0, 60)
)
async def test_a_reply_is_the_join_of_its_pieces_cut_to_what_is_kept(
    chat: ChatPage, peer: FakeServer, pieces: list[str], replayed: int, kept: int
) -> None:
    """Whatever part comes again from the start, as it does after a reconnect."""
    whole = "".join(pieces)
    offsets = [0, *itertools.accumulate(map(len, pieces))]
    deltas = [{"off": off, "text": text, "tokens": 1} for off, text in zip(offsets, pieces, strict=False)]
    again = {"off": 0, "text": "".join(pieces[:replayed]), "tokens": 1}
    body = """
        const reply = new module.Reply("c");
        for (const frame of argument.frames) reply.append(frame);
        reply.finish({ chars: argument.kept });
        return [reply.text, reply.holed];
    """
    frames = [*deltas[:replayed], again, *deltas[replayed:]]
    text, holed = await run(chat, peer, "client/reply.js", body, {"frames": frames, "kept": kept})
    assert (text, holed) == (whole[:kept], kept > len(whole))


async def test_each_wait_is_random_between_half_and_whole_of_a_growing_bound(
    chat: ChatPage, peer: FakeServer
) -> None:
    body = """
        const waits = (random) => {
          const backoff = new module.Backoff({ baseMs: 100, capMs: 500, random: () => random });
          return [backoff.next(), backoff.next(), backoff.next(), backoff.next(), backoff.next()];
        };
        return [waits(0), waits(1)];
    """
    shortest, longest = await run(chat, peer, "client/backoff.js", body, None)
    assert (shortest, longest) == ([50, 100, 200, 250, 250], [100, 200, 400, 500, 500])


async def test_ids_are_uuids_without_a_secure_context_too(chat: ChatPage, peer: FakeServer) -> None:
    body = """
        const source = { getRandomValues: (bytes) => bytes.fill(255) };
        return module.randomId(source);
    """
    assert await run(chat, peer, "client/identity.js", body, None) == "ffffffff-ffff-4fff-bfff-ffffffffffff"


FIGURES = """
    const { Reply } = await import("/static/client/reply.js");
    const reply = new Reply("c");
    reply.append({ off: 0, text: "xx" });
    const usage = { generated_tokens: argument.tokens };
    const timing = { first_token_ms: 40, total_ms: 40 + argument.ms };
    reply.finish({ chars: 2, reason: "stop", usage, timing });
    return [module.figuresOf(reply, usage), module.figuresOf(null, usage)];
"""


@pytest.mark.parametrize(
    ("timed", "rate"),
    [
        ({"tokens": 92, "ms": 3500}, ["26 tokens/s"]),
        ({"tokens": 18, "ms": 3500}, []),
        ({"tokens": 200, "ms": 4}, []),
    ],
    ids=["long enough", "too short for a pace", "all at once"],
)
async def test_figures_are_told_in_a_few_words(
    chat: ChatPage, peer: FakeServer, timed: dict[str, int], rate: list[str]
) -> None:
    here, kept = await run(chat, peer, "ui/replies/figures.js", FIGURES, timed)
    tokens = f"{timed['tokens']} tokens"
    assert here == ["40 ms to first token", *rate, tokens]
    assert kept == [tokens]


async def test_a_refusal_and_a_limit_with_nothing_left_are_told_in_plain_words(
    chat: ChatPage, peer: FakeServer
) -> None:
    later = "That is more than this service takes at a time. Try again in"
    limited = {"code": "rate_limited", "message": "Slow down."}
    told = [
        (limited | {"retryAfterMs": 1500}, f"{later} 2 seconds."),
        (limited | {"retryAfterMs": 7_300_000}, f"{later} 3 hours."),
        (limited, f"{later} a while."),
        ({"code": "toString", "message": "Not known."}, "The service could not do this."),
        ({"name": "messages_per_minute", "remaining": 3, "reset_s": 40}, ""),
        (
            {"name": "messages_per_minute", "remaining": 0, "reset_s": 40},
            "Nothing is left of the limit on messages per minute. Try again in 40 seconds.",
        ),
    ]
    body = "return argument.map((one) => (one.code === undefined ? module.wordsForLimit(one) : module.wordsFor(one)));"
    words = await run(chat, peer, "ui/elements/words.js", body, [one for one, _ in told])
    assert words == [expected for _, expected in told]


def error_codes() -> list[str]:
    """The codes that PROTOCOL.md names."""
    protocol = (Path(__file__).resolve().parents[2] / "PROTOCOL.md").read_text()
    rows = protocol.partition("| `code` | what to do |")[2].partition("\n\n")[0].splitlines()
    return [code for row in rows[1:] for code in re.findall(r"`([a-z_]+)`", row.split("|")[1])]


async def test_every_code_of_the_protocol_has_plain_words(chat: ChatPage, peer: FakeServer) -> None:
    codes = error_codes()
    assert "bad_frame" in codes
    body = """
        const unknown = module.wordsFor({ code: "?", message: "" });
        return argument.filter((code) => module.wordsFor({ code, message: "M" }) === unknown);
    """
    assert await run(chat, peer, "ui/elements/words.js", body, codes) == []


async def test_an_edit_takes_the_place_of_what_it_edits_and_what_is_unsent_stays(
    chat: ChatPage, peer: FakeServer
) -> None:
    body = """
        const { Reply, ReplyState } = await import("/static/client/reply.js");
        const message = (message_id, role, turn_id) => ({ message_id, role, turn_id, content: message_id, status: "complete" });
        const history = [message("u1", "user", "t1"), message("a1", "assistant", "t1"), message("u2", "user", "t2"), message("a2", "assistant", "t2")];
        const reply = (fields) => Object.assign(new Reply("c"), fields);
        const unsent = reply({ clientMsgId: "x", content: "unsent", state: ReplyState.REFUSED });
        const edit = reply({ clientMsgId: "y", content: "edited", replaces: "u2", text: "so far", state: ReplyState.STREAMING });
        const again = reply({ clientMsgId: "z", messageId: "u1", turnId: "t3", text: "anew", state: ReplyState.STREAMING });
        const shown = (replies) => module.arrange(history, replies).map(({ text }) => text);
        return [shown([]), shown([unsent, edit]), shown([again])];
    """
    plain, edited, anew = await run(chat, peer, "ui/transcript/arrangement.js", body, None)
    assert plain == ["u1", "a1", "u2", "a2"]
    assert edited == ["u1", "a1", "unsent", "edited", "so far"]
    assert anew == ["u1", "anew"]


async def test_each_server_has_a_client_id_of_its_own(chat: ChatPage, peer: FakeServer) -> None:
    """The page's own server has the place that it always had."""
    body = """
        const { host } = location, kept = new Map();
        const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, id) => kept.set(key, id) };
        const keeper = (url) => module.clientIdKeeper(storage, url);
        const [here, there] = [`ws://${host}/v1/ws`, "wss://b.example/v1/ws"];
        keeper(here).keep("mine");
        const other = keeper(there).get();
        keeper(there).keep("theirs");
        return [other, keeper(here).get(), keeper("https://b.example/v1/ws").get(), [...kept.keys()]];
    """
    reported = await run(chat, peer, "client/identity.js", body, None)
    assert reported == [
        None,
        "mine",
        "theirs",
        ["midstream.client_id", "midstream.client_id wss://b.example"],
    ]
