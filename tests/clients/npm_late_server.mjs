// A server that is not there yet, and one that is left while it has not answered: neither ends the process of whoever waits.
import { once } from "node:events";
import { createServer } from "node:net";

import { ChatClient } from "midstream-client";
import { Backoff } from "midstream-client/backoff.js";
import WebSocket, { WebSocketServer } from "ws";

const mute = createServer().listen(0, "127.0.0.1"); // takes connections and says nothing
await once(mute, "listening");
const { port } = mute.address();
const backoff = new Backoff({ baseMs: 1, capMs: 20 });
const client = new ChatClient({ url: `ws://127.0.0.1:${port}`, Socket: WebSocket, backoff });

const reached = (state) =>
  new Promise((resolve) =>
    client.addEventListener("connection", ({ detail }) => {
      if (detail.state === state) resolve(detail);
    }),
  );

client.connect();
const [socket] = await once(mute, "connection");
client.close();
socket.resume(); // notices that the other side is gone
await once(socket, "close");
mute.close();
await once(mute, "close");
console.log("left");

client.connect();
console.log((await reached("reconnecting")).code);

const server = new WebSocketServer({ host: "127.0.0.1", port });
server.on("connection", (socket) => socket.send(JSON.stringify({ type: "ready", heartbeat_ms: 60_000 })));
await reached("connected");
console.log("connected");
client.close();
server.close();
