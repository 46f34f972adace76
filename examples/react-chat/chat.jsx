import { memo, useLayoutEffect, useRef, useState } from "react";
import { useChat } from "./use-chat.js";

/** So far from the end, in pixels, a reader still counts as reading along. */
const NEAR_PX = 60;

export function Chat({ url }) {
  const { messages, replying, trouble, send, stop } = useChat(url);
  return (
    <>
      <header>
        <h1>Chat</h1>
        <p role="status">{trouble ?? (replying ? "Replying…" : "")}</p>
      </header>
      <Messages messages={messages} />
      <Composer replying={replying} onSend={send} onStop={stop} />
    </>
  );
}

/** The conversation. It stays at the end while the reader is there. */
function Messages({ messages }) {
  const box = useRef(null);
  const readsAlong = useRef(true);
  const onScroll = ({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
    readsAlong.current = scrollHeight - scrollTop - clientHeight < NEAR_PX;
  };
  useLayoutEffect(() => {
    if (readsAlong.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return (
    <main ref={box} onScroll={onScroll} tabIndex={0} aria-label="Conversation">
      {messages.map(({ id, ...message }) => (
        <Message key={id} {...message} />
      ))}
    </main>
  );
}

/** Of a long conversation only the message that grows is drawn again. */
const Message = memo(function Message({ role, text, failed = false }) {
  return <p className={failed ? `${role} error` : role}>{text}</p>;
});

function Composer({ replying, onSend, onStop }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (text.trim() === "") return;
    onSend(text);
    setText("");
  };
  return (
    <form onSubmit={submit} aria-label="Compose">
      <input value={text} onChange={({ target }) => setText(target.value)} aria-label="Message" autoComplete="off" />
      {replying && (
        <button type="button" className="stop" onClick={onStop}>
          Stop
        </button>
      )}
      <button>Send</button>
    </form>
  );
}
