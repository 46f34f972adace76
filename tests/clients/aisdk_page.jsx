// A page with the AI SDK's stock transport; the URL says what leaving means. The chat in it is the guide's.
import { DefaultChatTransport } from "ai";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./chat.jsx";

const query = new URLSearchParams(location.search);
const id = query.get("chat");
const http = `${query.get("server")}/v1/ai-sdk/chat`;
const named = "?client_id=ann";
const body = query.get("way") === "resuming" ? { on_disconnect: "continue" } : undefined;
const transport = new DefaultChatTransport({ api: http + named, body });
const initial = await (await fetch(`${http}/${id}/messages${named}`)).json();
// Of a chat that is resumed, leaving is no stop: it is asked for.
const onStop = () => body && fetch(`${http}/${id}/stop${named}`, { method: "POST" });
createRoot(document.querySelector("#root")).render(
  <StrictMode>
    <Chat id={id} transport={transport} initial={initial} onStop={onStop} />
  </StrictMode>,
);
