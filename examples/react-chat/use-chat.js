import { useEffect, useMemo, useState } from "react";
import { ChatClient, LinkState } from "midstream-client";

/** A conversation, live: its messages, whether a reply is being written, and what is wrong, in words for its reader. */
export function useChat(url, conversationId = "default") {
  const client = useMemo(() => new ChatClient({ url, storage: localStorage }), [url]);
  const [history, setHistory] = useState([]);
  const [replies, setReplies] = useState([]); // those that came since
  const [connection, setConnection] = useState(client.connection);
  const [problem, setProblem] = useState(null);

  useEffect(() => {
    const left = new AbortController();
    const on = (type, act) =>
      client.addEventListener(type, ({ detail }) => act(detail), { signal: left.signal });
    // A Reply is one object that changes, so each change makes a new list.
    on("reply", ({ reply }) => setReplies((before) => [...new Set(before).add(reply)]));
    on("history", ({ messages }) => {
      setHistory(messages.filter(({ status }) => status !== "running"));
      setReplies(client.repliesOf(conversationId));
    });
    on("connection", setConnection);
    on("error", ({ message }) => setProblem(message));
    client.open(conversationId);
    client.connect();
    return () => {
      left.abort();
      client.close();
    };
  }, [client, conversationId]);

  useComeback(client);

  const send = (content) => {
    setProblem(null);
    client.send({ conversationId, content, onBusy: "interrupt" });
  };
  const stop = () => {
    const [reply] = client.repliesOf(conversationId);
    const seenOff = reply?.visibleChars; // the history keeps what is on the screen
    client.cancel({ conversationId, seenOff }).catch(({ message }) => setProblem(message));
  };
  return {
    messages: messagesOf(history, replies),
    replying: replies.some((reply) => reply.open),
    trouble: troubleOf(connection) ?? problem,
    send,
    stop,
  };
}

/** Looks after the connection when the network changes, and when somebody comes back to the page. */
function useComeback(client) {
  useEffect(() => {
    const comeBack = () => {
      client.connect();
      client.probe();
    };
    const left = new AbortController();
    for (const change of ["online", "offline"]) addEventListener(change, comeBack, { signal: left.signal });
    document.addEventListener("visibilitychange", () => document.hidden || comeBack(), { signal: left.signal });
    return () => left.abort();
  }, [client]);
}

function messagesOf(history, replies) {
  const known = new Set(history.map(({ message_id }) => message_id));
  const messages = history.map(({ message_id, role, content }) => ({ id: message_id, role, text: content }));
  for (const [n, { content, messageId, error, visible }] of replies.entries()) {
    if (content !== null && !known.has(messageId)) {
      messages.push({ id: `question ${n}`, role: "user", text: content });
    }
    messages.push({ id: `reply ${n}`, role: "assistant", text: error?.message ?? visible, failed: error !== null });
  }
  return messages;
}

function troubleOf({ state, reason }) {
  switch (state) {
    case LinkState.CONNECTED:
      return null;
    case LinkState.REFUSED:
      return `The chat service does not let you in: ${reason}`;
    case LinkState.OFFLINE:
      return "The chat service can't be reached. Trying again…";
    default:
      return "Connecting…";
  }
}
