/** The chat of whoever is logged in. */

import { ChatClient, LinkState } from "/midstream/chat-client.js";

const CONVERSATION = "default";
const tabs = new BroadcastChannel("session");
const [chat, form, text, stop, status, logout] = ["chat", "form", "text", "stop", "status", "logout"].map((id) =>
  document.getElementById(id),
);

/** What Midstream is shown: a new token of the site's at each connection. */
const credentials = {
  key: null,
  async token() {
    try {
      this.key = (await admitted()).token;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      // The site can't be reached; the last token may do for now.
    }
    return this.key;
  },
};

/** Asks the site who is logged in, and for a token. Where nobody is, the login is shown. */
async function admitted() {
  const answer = await fetch("/chat-token", { method: "POST" });
  if (answer.status !== 401) return answer.json();
  leave();
  return new Promise(() => {}); // the page goes away
}

function leave() {
  client?.close();
  location.assign("/login");
}

let client = null;
const { user, service } = await admitted();
client = new ChatClient({ url: service, credentials });

client.addEventListener("unauthenticated", async ({ detail: { message } }) => {
  if (client.connection.state === LinkState.CONNECTED) {
    await credentials.token(); // the last one has expired: 60 seconds are left to show another
    await client.authenticate().catch(({ message }) => add("error", message));
  } else {
    add("error", message);
  }
});

// Who logs out does so in all tabs of this browser.
logout.addEventListener("submit", () => {
  client.close();
  tabs.postMessage("logged out");
});
tabs.addEventListener("message", leave);

const shown = new Map(); // each reply that was seen growing, and its element
let known = new Set(); // the ids of the messages that the history has

function add(role, content) {
  const element = document.createElement("p");
  element.className = role;
  element.textContent = content;
  chat.append(element);
  element.scrollIntoView({ block: "end" });
  return element;
}

function show(reply) {
  if (!shown.has(reply)) {
    if (reply.content !== null && !known.has(reply.messageId)) add("user", reply.content);
    shown.set(reply, add("assistant", ""));
  }
  shown.get(reply).textContent = reply.error?.message ?? reply.visible;
}

function showStatus() {
  const { state } = client.connection;
  stop.hidden = client.repliesOf(CONVERSATION).length === 0;
  status.textContent = state === LinkState.CONNECTED ? `You are ${user}.` : "Connecting…";
}

client.addEventListener("reply", ({ detail: { reply } }) => {
  show(reply);
  showStatus();
});
client.addEventListener("history", ({ detail: { messages } }) => {
  chat.replaceChildren();
  shown.clear();
  known = new Set(messages.map((message) => message.message_id));
  for (const { role, status, content } of messages) if (status !== "running") add(role, content);
  client.repliesOf(CONVERSATION).forEach(show);
  showStatus();
});
client.addEventListener("connection", showStatus);
client.addEventListener("error", ({ detail: { message } }) => add("error", message));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  client.send({ conversationId: CONVERSATION, content: text.value, onBusy: "interrupt" });
  text.value = "";
});
stop.addEventListener("click", () => {
  const [reply] = client.repliesOf(CONVERSATION);
  client
    .cancel({ conversationId: CONVERSATION, seenOff: reply?.visibleChars }) // what is on the screen is kept
    .catch(({ message }) => add("error", message));
});

client.open(CONVERSATION);
client.connect();
