// A page with a stock transport of the AI SDK, which the URL names; the chat in it is the guide's.
import { DefaultChatTransport, WebSocketChatTransport } from "ai";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./chat.jsx";

const query = new URLSearchParams(location.search);
const id = query.get("chat");
const http = `${query.get("server")}/v1/ai-sdk/chat`;
const named = "?client_id=ann";
const transports = {
  leaving: () => new DefaultChatTransport({ api: http + named }),
  resuming: () => new DefaultChatTransport({ api: http + named, body: { on_disconnect: "continue" } }),
  socket: () => new WebSocketChatTransport({ url: http, params: { client_id: "ann" } }),
};
const transport = transports[query.get("transport")]();
const initial = await (await fetch(`${http}/${id}/messages${named}`)).json();
// Of a chat that is resumed, leaving is no stop: it is asked for.
const stop = () => query.get("transport") === "resuming" && fetch(`${http}/${id}/stop${named}`, { method: "POST" });
document.addEventListener("click", ({ target }) => target.textContent === "Stop" && stop());
createRoot(document.querySelector("#root")).render(
  <StrictMode>
    <Chat id={id} transport={transport} initial={initial} />
  </StrictMode>,
);
