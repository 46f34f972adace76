/**
 * The reference client of Midstream, for browsers and Node. It speaks the protocol midstream.v1 (PROTOCOL.md) and nothing
 * else. It uses no DOM, so any interface can be built on it.
 *
 *     const client = new ChatClient({ url: "wss://chat.example/v1/ws", storage: localStorage });
 *     client.addEventListener("reply", ({ detail: { reply } }) => show(reply.visible));
 *     client.connect();
 *     const reply = client.send({ conversationId: "greetings", content: "Hello!" });
 *     await client.cancel({ conversationId: "greetings", seenOff: charactersOnScreen });
 *
 * It keeps a connection, notices its silence (liveness.js), and reconnects after growing, random pauses (link.js). It gets
 * missed events by `resume`, else reads the history (follower.js). It sends a message under one id until it is
 * accepted, so the server makes one reply to it (outgoing.js). It checks every event's number, every delta's offset, and the
 * length and hash of every reply. So what is shown never differs unnoticed from what the server keeps (follower.js, reply.js).
 *
 * Events (each a CustomEvent; `detail` as written):
 *  - `connection` LinkStatus           the state of the connection changed, or the server fell silent
 *  - `ready` Ready                     the connection is open; limits and the model's name
 *  - `reply` {reply}                   a Reply was sent, accepted, refused or withdrawn; or it grew, called tools or ended
 *  - `call` {reply, call}              a reply called a tool, or the call changed; a `reply` event follows
 *  - `history` History                 the active branch of an opened conversation: after `open`, a reconnect, missed
 *                                      events, a new branch, or a change by another device
 *  - `missing` {conversationId}        the opened conversation does not exist
 *  - `removed` {conversationId, turnId}  an exchange was rolled back
 *  - `speech` frame                    in a spoken conversation, for a client that names the feature `audio`: the frames
 *                                      `audio.reply`, `audio.stopped`, `speech`, `transcript` and `marks` of the protocol
 *  - `sound` Sound                     the sound of a reply (sound.js)
 *  - `title` {conversationId, title}   the model wrote a title, for a client that names the feature `titles`
 *  - `deleted` {conversationId}        a conversation is gone
 *  - `unauthenticated` {message}       the server asks for a key, or does not accept the one it got
 *  - `limits` LimitsLeft               a limit is nearly used up
 *  - `goaway` Goaway                   the server will close the connection soon; the client reconnects
 *  - `error` ChatError                 a failure of no particular request
 *
 * A Reply (reply.js) is a live object: read `state`, `text`, `visible`, `done`, `error` and its timing. With the features
 * `reasoning` and `tools`, `reasoning` has the model's reasoning, and `calls` its calls (call.js). A reply with calls is
 * `calling` until they are settled. The reply that `follows` is a Reply of its own.
 */

import { Call } from "./call.js";
import { ChatError } from "./errors.js";
import { Follower } from "./follower.js";
import { clientIdKeeper } from "./identity.js";
import { CloseCode, Link, LinkState } from "./link.js";
import { LiveReplies } from "./live-replies.js";
import { Outgoing } from "./outgoing.js";
import { PendingRequests } from "./pending-requests.js";
import { Reply, ReplyState } from "./reply.js";
import { frameOfSound, soundOfFrame } from "./sound.js";
import { Stops, stopOf } from "./stops.js";
import { Unanswered } from "./unanswered.js";

export { Call, ChatError, LinkState, Reply, ReplyState };

/** @typedef {import("./outgoing.js").MessageOptions} MessageOptions */

export class ChatClient extends EventTarget {
  /** @type {import("./frames.js").Ready | null} What the server said about itself at the last connect. */
  ready = null;
  #credentials;
  #features;
  #clientId;
  #link;
  #requests = new PendingRequests();
  #live = new LiveReplies((reply) => this.#emit("reply", { reply }));
  #stops = new Stops({ live: this.#live, ask: (frame) => this.#ask(frame) });
  #follower = new Follower({
    live: this.#live,
    ask: (frame) => this.#ask(frame),
    emit: (type, detail) => this.#emit(type, detail),
  });
  #outgoing;
  #unanswered;
  /** Whether the messages and stops from before a reload were taken. */
  #restored = false;
  /** @type {string | null} Why the server turns this client away: an error says more than a close code. */ #refusal = null;
  /** @type {Map<string, (frame: any) => void>} */
  #handlers = new Map([
    ["ready", (frame) => this.#onReady(frame)],
    ["accepted", (frame) => this.#follower.accepted(frame)],
    ["delta", (frame) => this.#follower.delta(frame)],
    ["reasoning", (frame) => this.#follower.reasoning(frame)],
    ["source", (frame) => this.#follower.source(frame)],
    ["tool_call", (frame) => this.#follower.toolCall(frame)],
    ["tool_state", (frame) => this.#follower.toolState(frame)],
    ["done", (frame) => this.#follower.done(frame)],
    ["removed", (frame) => this.#follower.removed(frame)],
    ["status", (frame) => this.#follower.status(frame)],
    ["history", (frame) => this.#follower.take(frame)],
    ["gap", (frame) => void this.#follower.refresh(frame.conversation_id)],
    ["title", ({ conversation_id: conversationId, title }) => this.#emit("title", { conversationId, title })],
    ["deleted", (frame) => this.#onDeleted(frame)],
    ["limits", (frame) => this.#emit("limits", frame)],
    ["goaway", (frame) => this.#emit("goaway", frame)],
    ["transcript", (frame) => {
      if (frame.final) this.#live.transcribe(frame);
      this.#emit("speech", frame);
    }],
    ...["audio.reply", "audio.stopped", "speech", "marks"].map(
      (type) => /** @type {[string, (frame: any) => void]} */ ([type, (frame) => this.#emit("speech", frame)]),
    ),
    ["error", (frame) => this.#onError(frame)],
  ]);

  /**
   * @param {object} options
   * @param {string} options.url               ws: or wss:, ending in /v1/ws
   * @param {Storage | null} [options.storage] where the client id is kept; without one, a new id at each visit
   * @param {Storage | null} [options.session] where messages and stops that the server has not answered outlive a reload;
   *   `sessionStorage`, since another tab must not send them, too
   * @param {import("./credentials.js").Credentials} [options.credentials]  where the server asks for a key
   * @param {string[]} [options.features]      what else it understands: `reasoning`, `tools`, `continue`, `titles`, `interpret`, `audio`
   * @param {import("./link.js").SocketClass} [options.Socket]  if the platform has no `WebSocket`: `ws` in Node 20
   * @param {import("./backoff.js").Backoff} [options.backoff]
   */
  constructor({ url, storage = null, session = null, credentials, features, Socket, backoff }) {
    super();
    this.#credentials = credentials;
    this.#features = features;
    this.#clientId = clientIdKeeper(storage, url);
    this.#unanswered = new Unanswered(session);
    const awaits = () => this.#requests.waiting || this.#live.awaited;
    this.#link = new Link({ url, hello: () => this.#hello(), Socket, backoff, awaits });
    this.#link.addEventListener("frame", (event) => this.#take(/** @type {CustomEvent} */ (event).detail));
    this.#link.addEventListener("status", () => this.#onConnection());
    this.#link.addEventListener("sound", (event) => {
      const sound = soundOfFrame(/** @type {CustomEvent} */ (event).detail);
      if (sound !== null) this.#emit("sound", sound);
    });
    this.#outgoing = new Outgoing({
      live: this.#live,
      link: this.#link,
      maxBytes: () => this.ready?.limits.max_frame_bytes,
    });
  }

  /** The state of the connection. */
  get connection() {
    return this.#link.status;
  }

  /** Connects. If the next attempt is being waited for, it begins at once. */
  connect() {
    this.#restore();
    this.#link.open();
  }

  /** Checks now whether the connection still works: after sleep, or if the network seems to be gone. */
  probe() {
    this.#link.probe();
  }

  /** Forgets the messages and stops that the server has not answered: a reload brings none back. */
  forgetUnanswered() {
    this.#unanswered.forget();
  }

  /** Closes the connection. The server cancels replies that run for this client only. */
  close() {
    this.#link.close();
  }

  /** Uses the key that is kept now: on the open connection, else on a new one. Raises ChatError. */
  async authenticate() {
    if (this.#link.connected) await this.#ask({ type: "auth.refresh", token: this.#credentials?.key });
    else this.#link.open();
  }

  /**
   * Sends a message, at once or as soon as a connection is open. `reply` events tell about the reply.
   * @param {MessageOptions & {content: string}} options
   * @returns {Reply}
   */
  send({ content, ...options }) {
    return this.#begin({ type: "send", content }, options);
  }

  /**
   * Edits a message of the user: makes a new branch, and keeps the old one.
   * @param {MessageOptions & {messageId: string, content: string}} options
   * @returns {Reply}
   */
  edit({ messageId, content, ...options }) {
    return this.#begin({ type: "edit", message_id: messageId, content }, options);
  }

  /**
   * Asks for another reply to the same message. The old one is kept beside it.
   * @param {MessageOptions & {messageId: string}} options
   * @returns {Reply}
   */
  regenerate({ messageId, ...options }) {
    return this.#begin({ type: "regenerate", message_id: messageId }, options);
  }

  /**
   * Continues a reply that was stopped or cut: the same message grows in a new turn.
   * @param {MessageOptions & {messageId: string}} options
   * @returns {Reply}
   */
  continueReply({ messageId, ...options }) {
    return this.#begin({ type: "continue", message_id: messageId }, options);
  }

  /**
   * Begins a live translation into a language (`zh`). `appendSource` extends its source, and the reply is the translation. For
   * clients that name the feature `interpret`.
   * @param {Omit<MessageOptions, "params" | "tools" | "toolChoice"> & {target: string, source?: string,
   *   publishPolicy?: "agreement" | "wait" | "segment", waitWords?: number, model?: string}} options
   * @returns {Reply}
   */
  interpret({ target, source, publishPolicy, waitWords, model, ...options }) {
    const reply = this.#begin({ type: "interpret.start", target, source, publish_policy: publishPolicy, wait_words: waitWords, model }, options);
    reply.interprets = { source: source ?? "auto", target };
    return reply;
  }

  /**
   * Extends a source: `text` follows its first `off` code points. What comes twice is taken once. Raises ChatError.
   * @param {{conversationId?: string, off: number, text: string, final?: boolean}} growth
   * @returns {Promise<import("./frames.js").SourceAck>}
   */
  appendSource({ conversationId = "default", off, text, final }) {
    return this.#ask({ type: "source", conversation_id: conversationId, off, text, final });
  }

  /**
   * Begins to listen in a conversation. What is said becomes its messages. If `output` is given, replies are spoken. Call it
   * again after a lost connection. Raises ChatError.
   * @param {Omit<import("./frames.js").AudioStartRequest, "type" | "ref" | "conversation_id"> & {conversationId?: string}} options
   * @returns {Promise<import("./frames.js").AudioStarted>}
   */
  startAudio({ conversationId = "default", ...options }) {
    return this.#ask({ type: "audio.start", conversation_id: conversationId, ...options });
  }

  /** Stops listening. A reply that is being spoken is cut at what was heard. Raises ChatError. @param {string} [conversationId] */
  async stopAudio(conversationId = "default") {
    await this.#ask({ type: "audio.stop", conversation_id: conversationId });
  }

  /** Ends the message at what was said so far. @param {string} [conversationId] */
  commitAudio(conversationId = "default") {
    this.#link.send({ type: "audio.commit", conversation_id: conversationId });
  }

  /** Reports how much of a reply's sound was played; call it every 100 to 250 ms. @param {{conversationId?: string, turnId: string, audioMs: number}} position */
  played({ conversationId = "default", turnId, audioMs }) {
    this.#link.send({ type: "played", conversation_id: conversationId, turn_id: turnId, audio_ms: audioMs });
  }

  /** Sends sound of the microphone. False if no connection is open. @param {import("./sound.js").Sound} sound */
  sendAudio(sound) {
    return this.#link.sendAudio(frameOfSound(sound));
  }

  /**
   * Stops the replies of a conversation. Nothing past `seenOff` code points is shown or kept from now on. If the server
   * refuses, the replies go on. Raises ChatError.
   * @param {{conversationId?: string, seenOff?: number, mode?: "keep" | "rollback"}} [options]
   * @returns {Promise<import("./frames.js").Cancelled | null>} null if no connection is open: the next one asks
   */
  async cancel({ conversationId = "default", seenOff, mode } = {}) {
    for (const reply of this.#live.openIn(conversationId)) {
      if (reply.sentAt === null && reply.own) this.#live.withdraw(reply);
      else this.#hold(reply, reply.stopping ? reply.visibleChars : (seenOff ?? reply.chars));
    }
    if (!this.#link.connected) return null;
    try {
      return await this.#ask({ type: "cancel", conversation_id: conversationId, seen_off: seenOff, mode });
    } catch (error) {
      // A lost connection is no refusal; the next one asks again.
      if (error instanceof ChatError && !error.lost) this.#live.release(conversationId);
      throw error;
    }
  }

  /**
   * Stops one reply, or the one that follows its calls by then, and no other of its conversation. A message that was not sent
   * yet is withdrawn. Nothing past `seenOff` code points is shown or kept from now on. Raises ChatError.
   * @param {Reply} reply
   * @param {{seenOff?: number}} [options]
   * @returns {Promise<import("./frames.js").Cancelled | null>} null if no connection is open: the next one asks
   */
  async stop(reply, { seenOff = reply.chars } = {}) {
    if (!reply.open) return null;
    if (reply.sentAt === null && reply.own) {
      if (reply.interrupts !== null && !this.#stops.has(reply.interrupts)) this.#live.letGo(reply);
      this.#live.withdraw(reply);
      return null;
    }
    this.#hold(reply, seenOff, true);
    const stop = this.#stops.add(reply, seenOff);
    return this.#link.connected ? this.#stops.send(stop) : null;
  }

  /**
   * Sends the result of a call that a client runs: `content`, or else an `error`. Raises ChatError.
   * @param {{callId: string, conversationId?: string} & ({content: string, error?: undefined} | {error: string, content?: undefined})} result
   * @returns {Promise<import("./frames.js").ToolAck>}
   */
  toolResult({ callId, conversationId, content, error }) {
    return this.#ask({ type: "tool_result", call_id: callId, conversation_id: conversationId, content, error });
  }

  /**
   * Allows or denies a call that asks for it. The call runs with the arguments that were shown, or with `args` instead.
   * A question of a running call (`call.question`) is answered the same way: `argsSha256` is the question's `sha256`, and
   * `args` is the answer, the text of a JSON object. Raises ChatError.
   * @param {{callId: string, argsSha256: string, decision: "allow" | "deny", args?: string, conversationId?: string}} decided
   * @returns {Promise<import("./frames.js").ToolAck>}
   */
  toolDecision({ callId, argsSha256, decision, args, conversationId }) {
    const fields = { call_id: callId, args_sha256: argsSha256, decision, args };
    return this.#ask({ type: "tool_decision", conversation_id: conversationId, ...fields });
  }

  /** The replies of a conversation that have not ended, oldest first. @param {string} conversationId */
  repliesOf(conversationId) {
    return this.#live.openIn(conversationId);
  }

  /**
   * Follows a conversation. Its newest history comes as a `history` event, now and whenever it is read again.
   * @param {string} conversationId
   */
  open(conversationId) {
    this.#follower.follow(conversationId);
    if (this.#link.connected) void this.#follower.refresh(conversationId);
  }

  /**
   * Follows a conversation as `open` does, and returns its newest history. Raises ChatError.
   * @param {string} conversationId
   * @returns {Promise<import("./frames.js").History>}
   */
  read(conversationId) {
    this.#follower.follow(conversationId);
    return this.#follower.reread(conversationId);
  }

  /** Stops following a conversation; a reconnect does not ask for it any more. @param {string} conversationId */
  leave(conversationId) {
    this.#follower.leave(conversationId);
  }

  /**
   * Makes the branch of this message the active one on every device. It comes as a `history` event.
   * Raises ChatError.
   * @param {{conversationId: string, messageId: string}} options
   */
  async showBranch({ conversationId, messageId }) {
    this.#follower.take(await this.#ask({ type: "history", conversation_id: conversationId, leaf: messageId }));
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
   * The owner's conversations, newest first. Raises ChatError.
   * @param {{before?: string, limit?: number}} [options]
   * @returns {Promise<import("./frames.js").Conversations>}
   */
  conversations({ before, limit } = {}) {
    return this.#ask({ type: "conversations", before, limit });
  }

  /**
   * Searches the titles and messages of the owner's conversations, newest first. Raises ChatError.
   * @param {{query: string, before?: string, limit?: number}} options  `before`: the `next` of the last answer
   * @returns {Promise<import("./frames.js").Found>}
   */
  search({ query, before, limit }) {
    return this.#ask({ type: "search", query, before, limit });
  }

  /**
   * Gives a conversation another title. Raises ChatError.
   * @param {{conversationId: string, title: string}} options
   * @returns {Promise<import("./frames.js").ConversationSummary>} its row in the list
   */
  async rename({ conversationId, title }) {
    const { conversations } = await this.#ask({ type: "rename", conversation_id: conversationId, title });
    return conversations[0];
  }

  /**
   * Shares a conversation as it is now with everybody who has the link. Call it again to share later messages. Raises
   * ChatError.
   * @param {string} conversationId
   * @returns {Promise<string>} the id of the link: the page shows it under `/s/ID`, programs read `/v1/shares/ID`
   */
  async share(conversationId) {
    const { share_id: shareId } = await this.#ask({ type: "share", conversation_id: conversationId });
    return shareId;
  }

  /** Revokes the link of a conversation. Raises ChatError. @param {string} conversationId */
  async unshare(conversationId) {
    await this.#ask({ type: "unshare", conversation_id: conversationId });
  }

  /**
   * Deletes a conversation and all that is kept of it. Raises ChatError.
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

  async #hello() {
    const who = { client_id: this.#clientId.get() ?? undefined, token: await this.#token() };
    return { type: "hello", ...who, features: this.#features };
  }

  async #token() {
    try {
      return await this.#credentials?.token();
    } catch (error) {
      this.#emit("error", new ChatError(ChatError.NO_TOKEN, String(error), { retryable: true }));
      throw error;
    }
  }

  /** @param {Record<string, unknown>} frame */
  #ask(frame) {
    return this.#requests.ask(this.#link, frame);
  }

  /** @param {any} frame */
  #take(frame) {
    if (frame.ref !== undefined && this.#requests.settle(frame) && frame.type !== "deleted") return;
    this.#handlers.get(frame.type)?.(frame);
  }

  /** @param {import("./frames.js").Ready} frame */
  #onReady(frame) {
    this.ready = frame;
    this.#refusal = null;
    this.#clientId.keep(frame.client_id);
    this.#emit("ready", frame);
    const waiting = [...this.#live.unfinished.map(({ reply }) => reply.conversationId), ...this.#stops.conversations];
    for (const conversationId of new Set([...this.#follower.followed, ...waiting])) void this.#comeBack(conversationId);
  }

  /** Asks for missed events or the history of a conversation first, then sends what still waits here. @param {string} conversationId */
  async #comeBack(conversationId) {
    const resumed = await this.#follower.comeBack(conversationId);
    if (resumed === null) return;
    const stopping = this.#live.openIn(conversationId).find((reply) => reply.stopping && !reply.alone);
    if (stopping !== undefined && (await this.#stopAgain(conversationId, stopping.visibleChars))) return;
    if (!(await this.#stops.again(conversationId))) return;
    this.#outgoing.again(conversationId, { acceptedToo: !resumed });
  }

  /**
   * Sends the stop that the user asked for without a connection. Replies at the server end, and waiting messages are not sent.
   * False if the server refuses, and everything continues.
   * @param {string} conversationId
   * @param {number} seenOff
   */
  async #stopAgain(conversationId, seenOff) {
    try {
      await this.#ask({ type: "cancel", conversation_id: conversationId, seen_off: seenOff });
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (error.lost) return true; // The next connection asks again.
      this.#live.release(conversationId);
      return false;
    }
    this.#stops.forget(conversationId);
    for (const reply of this.#live.openIn(conversationId)) {
      if (reply.stopping && reply.turnId === null) this.#live.withdraw(reply);
    }
    return true;
  }

  #onConnection() {
    const { state, code, reason } = this.#link.status;
    if (state !== LinkState.CONNECTED) this.#live.pause();
    this.#emit("connection", this.#link.status);
    if (state !== LinkState.CONNECTED) this.#requests.abandon();
    if (state === LinkState.REFUSED && code === CloseCode.UNAUTHENTICATED) {
      this.#emit("unauthenticated", { message: this.#refusal ?? reason });
    }
  }

  /** @param {import("./frames.js").Deleted} frame */
  #onDeleted({ conversation_id: conversationId }) {
    for (const reply of this.#live.openIn(conversationId)) this.#live.withdraw(reply);
    this.#follower.forget(conversationId);
    this.#stops.forget(conversationId);
    this.#emit("deleted", { conversationId });
  }

  /** @param {import("./frames.js").ErrorFrame} frame */
  #onError(frame) {
    const error = ChatError.fromFrame(frame);
    const reply = frame.ref === undefined ? undefined : this.#live.ownOf(frame.ref);
    if (reply === undefined) return this.#onFailure(error);
    // A draining server closes the connection soon; the message is sent on the next one.
    return error.code === "draining" ? undefined : this.#live.refuse(reply, error);
  }

  /** @param {ChatError} error */
  #onFailure(error) {
    if (error.code !== "unauthenticated") this.#emit("error", error);
    else if (error.retryable) this.#emit("unauthenticated", { message: error.message });
    // The server closes the connection now. Another key needs a new connection.
    else this.#refusal = error.message;
  }

  /**
   * @param {Reply} reply
   * @param {number} chars
   * @param {boolean} [alone]
   */
  #hold(reply, chars, alone) {
    reply.hold(chars, alone);
    this.#emit("reply", { reply });
  }

  /** @param {{type: string, content?: string, message_id?: string} & Record<string, unknown>} fields @param {MessageOptions} options */
  #begin(fields, options) {
    this.#restore(); // A message that is kept takes the place of what was kept before the reload.
    return this.#outgoing.begin(fields, options);
  }

  #restore() {
    if (this.#restored) return;
    this.#restored = true;
    const { messages, stops } = this.#unanswered.read();
    for (const stop of stops) this.#stops.restore(/** @type {any} */ (stop));
    for (const { frame, attachments } of messages) this.#outgoing.restore(/** @type {any} */ (frame), attachments);
  }

  #keep() {
    const stops = [...this.#stops.frames, ...this.#live.stopping.map(stopOf)];
    const stopped = new Set(stops.map((stop) => stop.client_msg_id));
    // What is translated live grows while it is spoken or typed: it can't be begun again from here.
    const waits = (/** @type {import("./live-replies.js").Unfinished} */ { reply, frame }) =>
      reply.turnId === null && !stopped.has(frame.client_msg_id) && frame.type !== "interpret.start";
    const messages = this.#live.unfinished.filter(waits).map(({ reply: { attachments }, frame }) => ({ frame, attachments }));
    this.#unanswered.write({ messages, stops });
  }

  /**
   * @param {string} type
   * @param {unknown} detail
   */
  #emit(type, detail) {
    if (type === "reply") this.#keep();
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
