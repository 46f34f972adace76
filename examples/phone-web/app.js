/** A chat for phones, which lose their network, sleep, and forget pages in the background. */

import { ChatClient, LinkState } from "./midstream/chat-client.js";
import { SERVICE } from "./config.js";

const CONVERSATION = "default";
const DRAFT = "draft";
/** What was sent, and the service does not have so far. */
const UNSENT = "unsent";
/** So far from the end, in pixels, a reader still counts as reading along. */
const NEAR_PX = 60;

const client = new ChatClient({ url: SERVICE, storage: localStorage });
const [chat, form, text, stop, status] = ["chat", "form", "text", "stop", "status"].map((id) =>
  document.getElementById(id),
);
const shown = new Map(); // each reply that was seen growing, and its element
const taken = new WeakSet(); // replies whose message the service has
let known = new Set(); // the ids of the messages that the history has

const unsent = () => JSON.parse(localStorage.getItem(UNSENT) ?? "[]");
const keepUnsent = (messages) => localStorage.setItem(UNSENT, JSON.stringify(messages));

function delivered(content) {
  const messages = unsent();
  const place = messages.indexOf(content);
  if (place >= 0) keepUnsent(messages.toSpliced(place, 1));
}

function add(role, content) {
  const element = document.createElement("p");
  element.className = role;
  element.textContent = content;
  chat.append(element);
  return element;
}

/** Makes a change, and stays at the end where the reader is there. */
function readingAlong(change) {
  const reads = chat.scrollHeight - chat.scrollTop - chat.clientHeight < NEAR_PX;
  change();
  if (reads) chat.scrollTop = chat.scrollHeight;
}

function show(reply) {
  if (!shown.has(reply)) {
    if (reply.content !== null && !known.has(reply.messageId)) add("user", reply.content);
    shown.set(reply, add("assistant", ""));
  }
  const element = shown.get(reply);
  element.textContent = reply.error?.message ?? reply.visible;
  element.classList.toggle("error", reply.error !== null);
}

function showHistory({ messages }) {
  chat.replaceChildren();
  shown.clear();
  known = new Set(messages.map((message) => message.message_id));
  for (const { role, status, content } of messages) if (status !== "running") add(role, content);
  client.repliesOf(CONVERSATION).forEach(show);
  chat.scrollTop = chat.scrollHeight;
}

function showStatus() {
  const replies = client.repliesOf(CONVERSATION);
  stop.hidden = replies.length === 0;
  const words = trouble(client.connection) ?? (replies.length > 0 ? "Replying…" : "");
  if (status.textContent !== words) status.textContent = words; // said once by a screen reader
}

function trouble({ state, reason }) {
  if (state === LinkState.CONNECTED) return null;
  if (state === LinkState.REFUSED) return `The chat service does not let you in: ${reason}`;
  if (!navigator.onLine) return "You are offline. What you send now goes out when you are back.";
  return state === LinkState.OFFLINE ? "The chat service can't be reached. Trying again…" : "Connecting…";
}

client.addEventListener("reply", ({ detail: { reply } }) => {
  if (reply.turnId !== null && !taken.has(reply)) {
    taken.add(reply); // once: the same words may wait a second time
    delivered(reply.content);
  }
  readingAlong(() => show(reply));
  showStatus();
});
client.addEventListener("history", ({ detail }) => {
  showHistory(detail);
  showStatus();
});
client.addEventListener("connection", showStatus);
client.addEventListener("error", ({ detail: { message } }) => readingAlong(() => add("error", message)));

// A phone may throw a page away in the background: what was not sent is in the box again.
text.value = [...unsent(), localStorage.getItem(DRAFT) ?? ""].filter((one) => one !== "").join("\n\n");
localStorage.setItem(DRAFT, text.value);
keepUnsent([]);
text.addEventListener("input", () => localStorage.setItem(DRAFT, text.value));
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const content = text.value.trim();
  if (content === "") return;
  chat.scrollTop = chat.scrollHeight;
  client.send({ conversationId: CONVERSATION, content, onBusy: "interrupt" });
  keepUnsent([...unsent(), content]);
  text.value = "";
  localStorage.removeItem(DRAFT);
});
stop.addEventListener("click", () => {
  const [reply] = client.repliesOf(CONVERSATION);
  client
    .cancel({ conversationId: CONVERSATION, seenOff: reply?.visibleChars }) // what is on the screen is kept
    .catch(({ message }) => add("error", message));
});

/** Looks after the connection: the network may be another one, and a page that slept may have lost it unnoticed. */
export function comeBack() {
  client.connect(); // at once, where it waits to try again
  client.probe(); // and asks for a sign of life where it thinks that it stands
  showStatus();
}

for (const change of ["online", "offline", "pageshow"]) addEventListener(change, comeBack);
document.addEventListener("visibilitychange", () => document.hidden || comeBack());

client.open(CONVERSATION);
client.connect();
