"""A chat client: each line of its input is a message, Ctrl-C stops the reply. `python client.py ws://… alice`"""

import asyncio
import json
import random
import secrets
import signal
import sys
from contextlib import suppress

import websockets

FINAL = {1000, 1008, 4401, 4403}  # close codes after which reconnecting is of no use


class Chat:
    epoch, seq = "", 0  # the position: the last event that was shown
    turn_id, seen = None, 0  # the reply that is being written, and how much of it was shown
    socket = None

    def __init__(self, url, client_id, conversation_id="default"):
        self.url, self.client_id, self.conversation_id = url, client_id, conversation_id
        self.unanswered = {}  # messages that are neither accepted nor refused

    async def run(self):
        async for self.socket in websockets.connect(self.url):  # waits longer after each failure
            with suppress(websockets.ConnectionClosed):
                await self.put(type="hello", client_id=self.client_id)
                async for message in self.socket:
                    await self.take(json.loads(message))
            if self.socket.close_code in FINAL:
                return
            await asyncio.sleep(random.uniform(0.2, 1))

    async def put(self, **frame):
        await self.socket.send(json.dumps({"conversation_id": self.conversation_id} | frame))

    async def send(self, content):
        message = {"type": "send", "client_msg_id": secrets.token_hex(8), "content": content}
        self.unanswered[message["client_msg_id"]] = message | {"on_busy": "enqueue", "grace_s": 20}
        if self.socket:
            with suppress(websockets.ConnectionClosed):  # it is sent again after `ready`
                await self.put(**self.unanswered[message["client_msg_id"]])

    async def stop(self):
        await self.put(type="cancel", turn_id=self.turn_id, seen_off=self.seen)

    async def take(self, frame):
        if frame["type"] in ("accepted", "error"):
            self.unanswered.pop(frame.get("client_msg_id", frame.get("ref")), None)
        if frame["type"] == "ready":
            resume = {"type": "resume", "epoch": self.epoch, "after_seq": self.seq}
            await self.put(**(resume if self.epoch else {"type": "history"}))
            for message in self.unanswered.values():
                await self.put(**message)
        elif frame["type"] == "error" and frame["code"] != "not_found":  # a new conversation is not found
            print(f"[{frame['code']}: {frame['message']}]", flush=True)
        elif frame["type"] in ("history", "snapshot"):  # continue from here
            self.epoch, self.seq, self.seen = frame["epoch"], frame["seq"], len(frame.get("text", ""))
        elif frame.get("seq", 0) > self.seq:  # an event that is new
            if self.epoch and frame.get("first_seq", frame["seq"]) > self.seq + 1:  # one is missing
                return await self.put(type="resume", epoch=self.epoch, after_seq=self.seq)
            self.epoch, self.seq = frame.get("epoch", self.epoch), frame["seq"]
            if frame["type"] == "delta":
                self.turn_id, self.seen = frame["turn_id"], frame["off"] + len(frame["text"])
                print(frame["text"], end="", flush=True)
            elif frame["type"] == "done":
                self.turn_id, self.seen = None, 0
                print(f" [{frame['reason']}, {frame['chars']} characters]", flush=True)


async def main():
    chat, loop = Chat(*sys.argv[1:]), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: loop.create_task(chat.stop()))
    running = loop.create_task(chat.run())
    while not running.done() and (line := await asyncio.to_thread(sys.stdin.readline)):
        await chat.send(line.strip())


if __name__ == "__main__":
    asyncio.run(main())
