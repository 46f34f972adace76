/**
 * The reference client of Midstream for browsers. It speaks the protocol midstream.v1 (PROTOCOL.md) and nothing else,
 * and it has no DOM inside: whatever shows a chat can stand on it.
 *
 *     const client = new ChatClient({ url: "wss://chat.example/v1/ws", storage: localStorage });
 *     client.addEventListener("reply", ({ detail: { reply } }) => show(reply.visible));
 *     client.connect();
 *     const reply = client.send({ conversationId: "greetings", content: "Hello!" });
 *     await client.cancel({ conversationId: "greetings", seenOff: charactersOnScreen });
 *
 * What it takes care of:
 *  - The connection: `hello` with a kept client id, heartbeats, and after a loss new attempts with growing, random delays.
 *  - Exactly once: a message whose end was not seen is sent again under the same id after a reconnect; the server makes
 *    no second reply of it, and sends the text so far.
 *  - Continuity: every event's number (`seq`) and every piece's offset (`off`) is checked. After a hole, history is asked
 *    for again, so that what is shown never differs in silence from what the server keeps.
 *  - The cut: a reply that ends early is cut to `done.chars` code points, which is what history says from then on;
 *    where the browser has hashes to lend, `done.text_sha256` is checked too.
 *
 * Events (each a CustomEvent; `detail` as written):
 *  - `connection` LinkStatus           the state of the connection changed
 *  - `ready` Ready                     a connection stands; limits and the model's name
 *  - `reply` {reply}                   a Reply changed: sent, accepted, grew, ended, was refused or withdrawn
 *  - `history` History                 the newest page of an opened conversation: after `open`, a reconnect or a hole
 *  - `missing` {conversationId}        the opened conversation does not exist
 *  - `removed` {conversationId, turnId}  an exchange was rolled back
 *  - `deleted` {conversationId}        a conversation is gone
 *  - `goaway` Goaway                   the server is about to close the connection; the client will connect again
 *  - `error` ChatError                 a failure that belongs to no request
 *
 * A Reply (reply.js) is a live object: `state`, `text`, `visible`, `done`, `error` and its timing are read from it.
 */

import { ChatError } from "./errors.js";
import { clientIdKeeper, randomId } from "./identity.js";
import { Link, LinkState } from "./link.js";
import { LiveReplies } from "./live-replies.js";
import { PendingRequests } from "./pending-requests.js";
import { Reply } from "./reply.js";
import { Sequence } from "./sequence.js";

export { ChatError, LinkState, Reply };
export { ReplyState } from "./reply.js";

/**
 * @typedef {object} SendOptions
 * @property {string} content
 * @property {string} [conversationId]              made by the first message; "default" without one
 * @property {"reject" | "interrupt"} [onBusy]      what becomes of a reply that still runs there
 * @property {Record<string, unknown>} [params]     as the protocol names them: temperature, max_new_tokens, …
 */

export class ChatClient extends EventTarget {
  /** @type {import("./frames.js").Ready | null} What the server said of itself at the last connect. */
  ready = null;
  #clientId;
  #link;
  #requests = new PendingRequests();
  /** @type {Map<string, Sequence>} */ #sequences = new Map();
  /** @type {Set<string>} Conversations to ask the history of after a reconnect. */ #opened = new Set();
  #live = new LiveReplies();
  /** @type {Map<string, (frame: any) => void>} */
  #handlers = new Map([
    ["ready", (frame) => this.#onReady(frame)],
    ["accepted", (frame) => this.#onAccepted(frame)],
    ["delta", (frame) => this.#onDelta(frame)],
    ["done", (frame) => this.#onDone(frame)],
    ["removed", (frame) => this.#onRemoved(frame)],
    ["status", (frame) => this.#onStatus(frame)],
    ["deleted", (frame) => this.#onDeleted(frame)],
    ["goaway", (frame) => this.#emit("goaway", frame)],
    ["error", (frame) => this.#onError(frame)],
  ]);

  /**
   * @param {object} options
   * @param {string} options.url               ws: or wss:, ending in /v1/ws
   * @param {Storage | null} [options.storage] where the client id is kept; without one, a new id at each visit
   * @param {string} [options.token]           API key, JWT or ticket, where the server asks for one
   * @param {typeof WebSocket} [options.Socket]
   * @param {import("./backoff.js").Backoff} [options.backoff]
   */
  constructor({ url, storage = null, token, Socket, backoff }) {
    super();
    this.#clientId = clientIdKeeper(storage);
    const hello = () => ({ type: "hello", client_id: this.#clientId.get() ?? undefined, token });
    this.#link = new Link({ url, hello, Socket, backoff });
    this.#link.addEventListener("frame", (event) => this.#take(/** @type {CustomEvent} */ (event).detail));
    this.#link.addEventListener("status", () => this.#onConnection());
  }

  /** The state of the connection. */
  get connection() {
    return this.#link.status;
  }

  /** Connects, or tries again at once where an attempt is being waited for. */
  connect() {
    this.#link.open();
  }

  /** Closes the connection; what still runs for this client alone is cancelled by the server. */
  close() {
    this.#link.close();
  }

  /**
   * Sends a message, at once or as soon as a connection stands. The reply is told about by `reply` events.
   * @param {SendOptions} options
   * @returns {Reply}
   */
  send({ content, conversationId = "default", onBusy = "reject", params }) {
    const reply = new Reply(conversationId);
    const id = randomId();
    Object.assign(reply, { own: true, content, clientMsgId: id });
    const frame = { type: "send", client_msg_id: id, conversation_id: conversationId, content, on_busy: onBusy, params };
    this.#live.add(reply, frame);
    this.#emit("reply", { reply });
    this.#transmit(reply, frame);
    return reply;
  }

  /**
   * Stops what runs in a conversation. Nothing past `seenOff` code points is shown, nor kept, from now on.
   * @param {{conversationId?: string, seenOff?: number, mode?: "keep" | "rollback"}} [options]
   * @returns {Promise<import("./frames.js").Cancelled | null>} null where no connection stood: its loss cancels already
   */
  async cancel({ conversationId = "default", seenOff, mode } = {}) {
    const replies = this.repliesOf(conversationId);
    if (!this.#link.connected) {
      for (const reply of replies) this.#withdraw(reply);
      return null;
    }
    for (const reply of replies) this.#hold(reply, seenOff ?? reply.chars);
    return this.#ask({ type: "cancel", conversation_id: conversationId, seen_off: seenOff, mode });
  }

  /** The replies of a conversation whose end is still to come, oldest first. @param {string} conversationId */
  repliesOf(conversationId) {
    return this.#live.all().filter((reply) => reply.conversationId === conversationId && reply.open);
  }

  /**
   * Follows a conversation: its newest history comes as a `history` event, now and after every reconnect.
   * @param {string} conversationId
   */
  open(conversationId) {
    this.#opened.add(conversationId);
    if (this.#link.connected) void this.#refresh(conversationId);
  }

  /** Stops asking for a conversation's history after reconnects. @param {string} conversationId */
  leave(conversationId) {
    this.#opened.delete(conversationId);
  }

  /**
   * A page of history. Raises ChatError.
   * @param {{conversationId?: string, before?: string, limit?: number}} [options]
   * @returns {Promise<import("./frames.js").History>}
   */
  history({ conversationId = "default", before, limit } = {}) {
    return this.#ask({ type: "history", conversation_id: conversationId, before, limit });
  }

  /**
   * This client's conversations, newest first. Raises ChatError.
   * @param {{before?: string, limit?: number}} [options]
   * @returns {Promise<import("./frames.js").Conversations>}
   */
  conversations({ before, limit } = {}) {
    return this.#ask({ type: "conversations", before, limit });
  }

  /**
   * Deletes a conversation with all that is kept of it. Raises ChatError.
   * @param {string} conversationId
   * @returns {Promise<import("./frames.js").Deleted>}
   */
  delete(conversationId) {
    return this.#ask({ type: "delete", conversation_id: conversationId });
  }

  /** The time of a round trip to the server, in milliseconds. Raises ChatError. */
  async ping() {
    const before = performance.now();
    await this.#ask({ type: "ping" });
    return performance.now() - before;
  }

  /** @param {Record<string, unknown>} frame */
  async #ask(frame) {
    if (!this.#link.connected) {
      throw new ChatError(ChatError.NOT_CONNECTED, "There is no connection.", { retryable: true });
    }
    const { ref, answer } = this.#requests.open();
    this.#link.send({ ...frame, ref });
    return answer;
  }

  /** @param {any} frame */
  #take(frame) {
    if (frame.ref !== undefined && this.#requests.settle(frame) && frame.type !== "deleted") return;
    this.#handlers.get(frame.type)?.(frame);
  }

  /** @param {import("./frames.js").Ready} frame */
  #onReady(frame) {
    this.ready = frame;
    this.#clientId.keep(frame.client_id);
    this.#emit("ready", frame);
    for (const conversationId of this.#opened) void this.#refresh(conversationId);
    for (const { reply, frame: message } of this.#live.unfinished) this.#transmit(reply, message);
  }

  #onConnection() {
    if (!this.#link.connected) this.#forgetOthers();
    this.#emit("connection", this.#link.status);
    if (!this.#link.connected) this.#requests.abandon();
  }

  /** @param {import("./frames.js").Accepted} frame */
  #onAccepted(frame) {
    const reply = this.#live.accept(frame);
    this.#opened.add(frame.conversation_id);
    if (frame.duplicate === true) this.#sequenceOf(frame.conversation_id).align(frame.epoch, frame.seq);
    else this.#follow(frame.conversation_id, frame.seq, frame.seq);
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").Delta} frame */
  #onDelta(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#follow(frame.conversation_id, frame.first_seq, frame.seq);
    reply.append(frame, performance.now());
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").Done} frame */
  #onDone(frame) {
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply === undefined) return this.#follow(frame.conversation_id, frame.seq, frame.seq);
    // The numbers of pieces that a cancel withdrew are missing here; what was kept says whether text is, too.
    this.#sequenceOf(frame.conversation_id).take(frame.seq, frame.seq);
    reply.finish(frame);
    this.#live.settle(reply);
    this.#emit("reply", { reply });
    if (frame.removed === true) this.#emit("removed", { conversationId: frame.conversation_id, turnId: frame.turn_id });
    else void this.#check(reply);
    return undefined;
  }

  /** Asks for history where the text differs from what the server keeps. @param {Reply} reply */
  async #check(reply) {
    if (reply.holed || (await reply.verified()) === false) await this.#refresh(reply.conversationId);
  }

  /** @param {{conversation_id: string, turn_id: string, seq: number}} frame */
  #onRemoved(frame) {
    this.#follow(frame.conversation_id, frame.seq, frame.seq);
    this.#emit("removed", { conversationId: frame.conversation_id, turnId: frame.turn_id });
  }

  /** @param {import("./frames.js").Status} frame */
  #onStatus(frame) {
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply === undefined) return;
    reply.status = frame;
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").Deleted} frame */
  #onDeleted({ conversation_id: conversationId }) {
    for (const reply of this.repliesOf(conversationId)) this.#withdraw(reply);
    this.#opened.delete(conversationId);
    this.#sequences.delete(conversationId);
    this.#emit("deleted", { conversationId });
  }

  /** @param {import("./frames.js").ErrorFrame} frame */
  #onError(frame) {
    const error = ChatError.fromFrame(frame);
    const reply = frame.ref === undefined ? undefined : this.#live.ownOf(frame.ref);
    if (reply === undefined) return this.#emit("error", error);
    // A server that drains closes the connection soon; the message goes to the next one.
    return error.code === "draining" ? undefined : this.#refuse(reply, error);
  }

  /**
   * Hands a message to the connection, if one stands; else it waits for the next one.
   * A frame above the server's limit would cost the connection, so it is refused here, as the server would.
   * @param {Reply} reply
   * @param {Record<string, unknown>} frame
   */
  #transmit(reply, frame) {
    const limit = this.ready?.limits.max_frame_bytes;
    if (!this.#link.connected || limit === undefined) return;
    if (new TextEncoder().encode(JSON.stringify(frame)).length > limit) {
      this.#refuse(reply, new ChatError("content_too_long", `The message is longer than ${limit} bytes.`));
      return;
    }
    reply.sentAt ??= performance.now();
    this.#link.send(frame);
  }

  /** @param {string} conversationId */
  async #refresh(conversationId) {
    try {
      const page = await this.history({ conversationId });
      this.#sequenceOf(conversationId).align(page.epoch, page.seq);
      this.#catchUp(page);
      this.#emit("history", page);
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      this.#onRefreshFailed(conversationId, error);
    }
  }

  /** Takes the running reply, which history tells as far as it has come. @param {import("./frames.js").History} page */
  #catchUp({ conversation_id: conversationId, messages }) {
    const message = messages.at(-1);
    if (message?.role !== "assistant" || message.status !== "running") return;
    const reply = this.#live.running(conversationId, message.turn_id);
    reply.catchUp(message.content);
    this.#emit("reply", { reply });
  }

  /**
   * @param {string} conversationId
   * @param {ChatError} error
   */
  #onRefreshFailed(conversationId, error) {
    // A lost connection needs no word: the next `ready` asks again.
    if (error.code === ChatError.DISCONNECTED || error.code === ChatError.NOT_CONNECTED) return;
    if (error.code !== "not_found") this.#emit("error", error);
    else if (this.repliesOf(conversationId).length === 0) this.#emit("missing", { conversationId });
  }

  /**
   * Counts an event in; after a hole, what is missing is asked for.
   * @param {string} conversationId
   * @param {number} firstSeq
   * @param {number} seq
   */
  #follow(conversationId, firstSeq, seq) {
    if (!this.#sequenceOf(conversationId).take(firstSeq, seq)) void this.#refresh(conversationId);
  }

  /** @param {string} conversationId */
  #sequenceOf(conversationId) {
    let sequence = this.#sequences.get(conversationId);
    if (sequence === undefined) this.#sequences.set(conversationId, (sequence = new Sequence()));
    return sequence;
  }

  /**
   * @param {Reply} reply
   * @param {number} chars
   */
  #hold(reply, chars) {
    reply.hold(chars);
    this.#emit("reply", { reply });
  }

  /**
   * @param {Reply} reply
   * @param {ChatError} error
   */
  #refuse(reply, error) {
    reply.refuse(error);
    this.#live.settle(reply);
    this.#emit("reply", { reply });
  }

  /** @param {Reply} reply */
  #withdraw(reply) {
    reply.withdraw();
    this.#live.settle(reply);
    this.#emit("reply", { reply });
  }

  /** What others sent can't be sent again from here; after the reconnect, history tells what became of it. */
  #forgetOthers() {
    for (const reply of this.#live.all()) if (!reply.own) this.#withdraw(reply);
  }

  /**
   * @param {string} type
   * @param {unknown} detail
   */
  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
