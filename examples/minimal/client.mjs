// A chat client for browsers and Node 22: new Chat(url, { clientId, show }).send("Hello!"), .stop()
const FINAL = new Set([1000, 1008, 4401, 4403]); // close codes after which reconnecting is of no use

export class Chat {
  epoch = "";
  seq = 0; // the position: the last event that was shown
  turnId = null; // the reply that is being written,
  seen = 0; // and how much of it was shown, in code points
  unanswered = new Map(); // messages that are neither accepted nor refused
  attempt = 0;

  constructor(url, { clientId, conversationId = "default", show = console.log }) {
    Object.assign(this, { url, clientId, conversationId, show });
    this.connect();
  }

  connect() {
    this.socket = new WebSocket(this.url);
    this.socket.onopen = () => this.put({ type: "hello", client_id: this.clientId });
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = ({ code }) => {
      const wait = Math.min(20_000, 400 * 2 ** this.attempt++) * (0.5 + Math.random() / 2);
      if (!FINAL.has(code)) setTimeout(() => this.connect(), wait);
    };
  }

  put(frame) {
    const ready = this.socket.readyState === WebSocket.OPEN;
    if (ready) this.socket.send(JSON.stringify({ conversation_id: this.conversationId, ...frame }));
  }

  send(content) {
    const message = { type: "send", client_msg_id: crypto.randomUUID(), content, on_busy: "enqueue", grace_s: 20 };
    this.unanswered.set(message.client_msg_id, message);
    this.put(message); // without a connection it is sent after `ready`
  }

  stop() {
    this.put({ type: "cancel", turn_id: this.turnId, seen_off: this.seen });
  }

  take(frame) {
    this.attempt = 0;
    if (["accepted", "error"].includes(frame.type)) this.unanswered.delete(frame.client_msg_id ?? frame.ref);
    if (frame.type === "ready") {
      if (this.epoch) this.put({ type: "resume", epoch: this.epoch, after_seq: this.seq });
      else this.put({ type: "history" }); // of a new conversation it is `error{not_found}`
      for (const message of this.unanswered.values()) this.put(message);
    } else if (["history", "snapshot"].includes(frame.type)) {
      this.epoch = frame.epoch; // continue from here
      this.seq = frame.seq;
      this.seen = [...(frame.text ?? "")].length;
    } else if ((frame.seq ?? 0) > this.seq) { // an event that is new
      const missed = this.epoch && (frame.first_seq ?? frame.seq) > this.seq + 1;
      if (missed) return this.put({ type: "resume", epoch: this.epoch, after_seq: this.seq });
      this.epoch = frame.epoch ?? this.epoch;
      this.seq = frame.seq;
      if (frame.type === "delta") [this.turnId, this.seen] = [frame.turn_id, frame.off + [...frame.text].length];
      if (frame.type === "done") [this.turnId, this.seen] = [null, 0];
    }
    this.show(frame);
  }
}
