"""What counts for a device of a person, and what for the person; more: `tests/transcripts/native/devices-of-a-person.yaml`."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis

from app.keys import add_key
from connections.authentication.api_keys import Kind
from tests.app.in_process_service import serving


async def test_tokens_count_for_the_device_that_sent(
    keys: Path, tmp_path: Path, store: Redis, store_url: str
) -> None:
    key = add_key(keys, "ann")
    async with serving(tmp_path, api_keys=str(keys), redis_url=store_url, tokens_per_day=10) as running:
        async with running.socket({"client_id": "laptop", "token": key}) as laptop:
            await laptop.send(type="send", client_msg_id="m1", content="A long question, or so.")
            await laptop.next("done")
            while not await store.keys("ms:limit:tokens:*"):
                pass
            await laptop.send(type="send", client_msg_id="m2", content="More.")
            assert (await laptop.next("error"))["code"] == "rate_limited"
        async with running.socket({"client_id": "phone", "token": key}) as phone:
            await phone.send(type="send", client_msg_id="m3", content="Mine.")
            assert (await phone.next("accepted"))["client_msg_id"] == "m3"


async def test_what_is_kept_of_a_prompt_is_found_from_each_device_of_a_person(
    keys: Path, tmp_path: Path
) -> None:
    """By OpenAI's endpoint too; an application's users don't learn by it what others said."""
    personal, shop = add_key(keys, "ann"), add_key(keys, "shop", kind=Kind.APPLICATION)
    async with serving(tmp_path, api_keys=str(keys)) as running:
        for key in (personal, shop):
            for client_id in ("one", "other"):
                async with running.socket({"client_id": client_id, "token": key}) as socket:
                    await socket.send(
                        type="send", client_msg_id="m1", content="Hello?", conversation_id=client_id
                    )
                    await socket.next("done")
        requested = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}
        answer = await running.request("POST", "/v1/chat/completions", personal, json=requested)
        assert answer.status_code == 200
    salts = [request.cache_salt for request in running.engine.requests]
    assert salts[0] == salts[1] == salts[4]
    assert len(set(salts)) == 3
