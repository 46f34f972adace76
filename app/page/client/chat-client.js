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
 * It keeps a connection, notices its silence, and reconnects after growing, random pauses (link.js). It gets missed events by
 * `resume`, else reads the history. It sends a message under one id until it is accepted, so the server makes one reply to it
 * (outgoing.js). It checks every event's number, every delta's offset, and the length and hash of every reply. So what is shown
 * never differs unnoticed from what the server keeps (reply.js).
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
 * A Reply (reply.js) is a live object: read `state`, `text`, `visible`, `done` and `error`. With the features
 * `reasoning` and `tools`, `reasoning` has the model's reasoning, and `calls` its calls (call.js). A reply with calls is
 * `calling` until they are settled. The reply that `follows` is a Reply of its own.
 */

import { Call } from "./call.js";
import { ChatError } from "./errors.js";
import { clientIdKeeper } from "./identity.js";
import { CloseCode, Link, LinkState } from "./link.js";
import { LiveReplies, isUnfinished } from "./live-replies.js";
import { Outgoing } from "./outgoing.js";
import { Reply, ReplyState } from "./reply.js";
import { Sequence } from "./sequence.js";
import { frameOfSound, soundOfFrame } from "./sound.js";

export { Call, ChatError, LinkState, Reply, ReplyState };

/** @typedef {import("./outgoing.js").MessageOptions} MessageOptions */

/** The longest wait that a refusal may ask for, in milliseconds. Longer waits are limits of another kind. */
const LONGEST_WAIT_MS = 60_000;
/** The wait if a refusal does not name one. */
const WAIT_MS = 1000;

export class ChatClient extends EventTarget {
  /** @type {import("./frames.js").Ready | null} What the server said about itself at the last connect. */
  ready = null;
  #credentials;
  #features;
  #clientId;
  #link;
  /** @type {Map<string, {resolve: (frame: any) => void, reject: (error: ChatError) => void}>} The requests without an answer, by their `ref`. */
  #requests = new Map();
  #requested = 0;
  #live = new LiveReplies((reply) => this.#emit("reply", { reply }));
  /** @type {Set<string>} The conversations that are kept complete. */ #followed = new Set();
  /** @type {Map<string, symbol>} The newest attempt to come back to each conversation. */ #attempts = new Map();
  /** @type {Map<string, Sequence>} The conversations' journals, as far as they are known. */ #sequences = new Map();
  #outgoing;
  /** @type {string | null} Why the server turns this client away: an error says more than a close code. */ #refusal = null;
  /** @type {Map<string, (frame: any) => void>} */
  #handlers = new Map([
    ["ready", (frame) => this.#onReady(frame)],
    ["accepted", (frame) => this.#onAccepted(frame)],
    ["delta", (frame) => this.#onDelta(frame)],
    ["reasoning", (frame) => this.#onReasoning(frame)],
    ["source", (frame) => this.#onSource(frame)],
    ["tool_call", (frame) => this.#onToolCall(frame)],
    ["tool_state", (frame) => this.#onToolState(frame)],
    ["done", (frame) => this.#onDone(frame)],
    ["removed", (frame) => {
      this.#count(frame);
      this.#remove(frame, undefined);
    }],
    ["status", (frame) => this.#onStatus(frame)],
    ["history", (frame) => this.#takeHistory(frame)],
    ["gap", (frame) => void this.#refresh(frame.conversation_id)],
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
    const awaits = () => this.#requests.size > 0 || this.#live.awaited;
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
      ask: (frame) => this.#ask(frame),
      maxBytes: () => this.ready?.limits.max_frame_bytes,
      storage: session,
    });
  }

  /** The state of the connection. */
  get connection() {
    return this.#link.status;
  }

  /** Connects. If the next attempt is being waited for, it begins at once. */
  connect() {
    this.#outgoing.restore();
    this.#link.open();
  }

  /** Checks now whether the connection still works: after sleep, or if the network seems to be gone. */
  probe() {
    this.#link.probe();
  }

  /** Forgets the messages and stops that the server has not answered: a reload brings none back. */
  forgetUnanswered() {
    this.#outgoing.forget();
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
    return this.#outgoing.begin({ type: "send", content }, options);
  }

  /**
   * Edits a message of the user: makes a new branch, and keeps the old one.
   * @param {MessageOptions & {messageId: string, content: string}} options
   * @returns {Reply}
   */
  edit({ messageId, content, ...options }) {
    return this.#outgoing.begin({ type: "edit", message_id: messageId, content }, options);
  }

  /**
   * Asks for another reply to the same message. The old one is kept beside it.
   * @param {MessageOptions & {messageId: string}} options
   * @returns {Reply}
   */
  regenerate({ messageId, ...options }) {
    return this.#outgoing.begin({ type: "regenerate", message_id: messageId }, options);
  }

  /**
   * Continues a reply that was stopped or cut: the same message grows in a new turn.
   * @param {MessageOptions & {messageId: string}} options
   * @returns {Reply}
   */
  continueReply({ messageId, ...options }) {
    return this.#outgoing.begin({ type: "continue", message_id: messageId }, options);
  }

  /**
   * Begins a live translation into a language (`zh`). `appendSource` extends its source, and the reply is the translation. For
   * clients that name the feature `interpret`.
   * @param {Omit<MessageOptions, "params" | "tools" | "toolChoice"> & {target: string, source?: string,
   *   publishPolicy?: "agreement" | "segment", model?: string}} options
   * @returns {Reply}
   */
  interpret({ target, source, publishPolicy, model, ...options }) {
    const reply = this.#outgoing.begin({ type: "interpret.start", target, source, publish_policy: publishPolicy, model }, options);
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
      if (!reply.sent && reply.own) this.#live.withdraw(reply);
      else this.#live.hold(reply, reply.stopping ? reply.visibleChars : (seenOff ?? reply.chars));
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
   * Sends the result of a call that a client runs: `content`, or else an `error`. Raises ChatError.
   * @param {{callId: string, conversationId?: string} & ({content: string, error?: undefined} | {error: string, content?: undefined})} result
   * @returns {Promise<import("./frames.js").ToolAck>}
   */
  toolResult({ callId, conversationId, content, error }) {
    return this.#ask({ type: "tool_result", call_id: callId, conversation_id: conversationId, content, error });
  }

  /**
   * Allows or denies a call that asks for it. The call runs with the arguments that were shown, or with `args` instead.
   * Raises ChatError.
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
    this.#followed.add(conversationId);
    if (this.#link.connected) void this.#refresh(conversationId);
  }

  /** Stops following a conversation; a reconnect does not ask for it any more. @param {string} conversationId */
  leave(conversationId) {
    this.#followed.delete(conversationId);
  }

  /**
   * Makes the branch of this message the active one on every device. It comes as a `history` event.
   * Raises ChatError.
   * @param {{conversationId: string, messageId: string}} options
   */
  async showBranch({ conversationId, messageId }) {
    this.#takeHistory(await this.#ask({ type: "history", conversation_id: conversationId, leaf: messageId }));
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

  /** Sends a request; returns its answer. Raises ChatError. @param {Record<string, unknown>} frame @returns {Promise<any>} */
  async #ask(frame) {
    if (!this.#link.connected) throw new ChatError(ChatError.NOT_CONNECTED, "There is no connection.", { retryable: true });
    this.#requested += 1;
    const ref = `r${this.#requested}`;
    const answer = new Promise((resolve, reject) => this.#requests.set(ref, { resolve, reject }));
    this.#link.send({ ...frame, ref });
    return answer;
  }

  /** @param {any} frame */
  #take(frame) {
    const request = this.#requests.get(frame.ref);
    this.#requests.delete(frame.ref);
    if (request !== undefined && frame.type === "error") return request.reject(ChatError.fromFrame(frame));
    request?.resolve(frame);
    if (request === undefined || frame.type === "deleted") this.#handlers.get(frame.type)?.(frame);
  }

  /** @param {import("./frames.js").Ready} frame */
  #onReady(frame) {
    this.ready = frame;
    this.#refusal = null;
    this.#clientId.keep(frame.client_id);
    this.#emit("ready", frame);
    const conversations = new Set([...this.#followed, ...this.#outgoing.conversations]);
    for (const conversationId of conversations) void this.#comeBack(conversationId);
  }

  /** Asks for missed events or the history of a conversation first, then sends what still waits here. @param {string} conversationId */
  async #comeBack(conversationId) {
    const resumed = await this.#catchUpOn(conversationId);
    if (resumed === null) return;
    const stopping = this.#live.openIn(conversationId).find((reply) => reply.stopping && !reply.alone);
    if (stopping !== undefined && (await this.#stopAgain(conversationId, stopping.visibleChars))) return;
    if (!(await this.#outgoing.sendStops(conversationId))) return;
    this.#outgoing.sendMessages(conversationId, { acceptedToo: !resumed });
  }

  /** Takes the newest history. Raises ChatError. @param {string} conversationId */
  async #reread(conversationId) {
    this.#takeHistory(await this.#askUntilTaken({ type: "history", conversation_id: conversationId }));
  }

  /** Asks for the newest history, which has everything. @param {string} conversationId */
  async #refresh(conversationId) {
    try {
      await this.#reread(conversationId);
    } catch (error) {
      this.#failed(conversationId, error);
    }
  }

  /**
   * Resumes a conversation on a new connection. True: all missed events follow now. False: the history was read instead, so
   * this client's messages have to be sent again. Null: neither came, as the connection is lost again.
   * @param {string} conversationId
   * @returns {Promise<boolean | null>}
   */
  async #catchUpOn(conversationId) {
    this.#attempts.set(conversationId, Symbol("attempt"));
    try {
      if (await this.#resume(conversationId)) return true;
      this.#live.dropStrangers(conversationId);
      if (this.#followed.has(conversationId)) await this.#reread(conversationId);
      return false;
    } catch (error) {
      this.#failed(conversationId, error);
      return error instanceof ChatError && error.lost ? null : false;
    }
  }

  /** Takes a page of the branch that is active now. @param {import("./frames.js").History} page */
  #takeHistory(page) {
    const sequence = this.#sequenceOf(page.conversation_id);
    sequence.align(page.epoch, page.seq);
    sequence.leaf = page.messages.at(-1)?.message_id ?? null;
    this.#live.dropEnded(page.messages);
    this.#catchUp(page);
    this.#emit("history", page);
  }

  /** Whether all missed events come now. If the server can't send them (a gap, a refusal), the history is read. @param {string} conversationId */
  async #resume(conversationId) {
    const point = this.#sequenceOf(conversationId).point;
    if (point === null || !this.#followed.has(conversationId)) return false;
    try {
      const answer = await this.#askUntilTaken({ type: "resume", conversation_id: conversationId, ...point });
      return answer.type === "resumed";
    } catch (error) {
      if (!(error instanceof ChatError) || error.lost) throw error;
      return false;
    }
  }

  /**
   * Asks about a conversation, and again when the server says so, until the connection is lost. If many clients of one key
   * come back together, some are asked to wait.
   * @param {{type: string, conversation_id: string} & Record<string, unknown>} frame
   * @returns {Promise<any>}
   */
  async #askUntilTaken(frame) {
    const attempt = this.#attempts.get(frame.conversation_id);
    for (;;) {
      try {
        return await this.#ask(frame);
      } catch (error) {
        const waitMs = waitOf(error);
        if (waitMs === null) throw error;
        // All clients were sent the same time, so each adds a random wait.
        await new Promise((resolve) => setTimeout(resolve, waitMs * (1 + Math.random() / 2)));
        if (this.#attempts.get(frame.conversation_id) !== attempt) {
          throw new ChatError(ChatError.DISCONNECTED, "Another connection asks now.", { retryable: true });
        }
      }
    }
  }

  /**
   * Takes the reply that runs or has open calls, as far as the history has it. Messages may wait after it.
   * @param {import("./frames.js").History} page
   */
  #catchUp({ conversation_id: conversationId, messages }) {
    const message = messages.findLast(isUnfinished);
    if (message === undefined) return;
    const reply = this.#live.running(conversationId, message.turn_id);
    const source = messages.findLast(({ message_id: id, interprets }) => id === message.parent_id && interprets);
    reply.catchUp(message);
    if (source !== undefined) reply.catchUpSource(source);
    this.#emit("reply", { reply });
  }

  /**
   * @param {string} conversationId
   * @param {unknown} error
   */
  #failed(conversationId, error) {
    if (!(error instanceof ChatError)) throw error;
    // A lost connection is not reported here: the next one asks again.
    if (error.lost) return;
    if (error.code !== "not_found") this.#emit("error", error);
    else if (this.#live.openIn(conversationId).length === 0) this.#emit("missing", { conversationId });
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
    this.#outgoing.forgetStops(conversationId);
    for (const reply of this.#live.openIn(conversationId)) {
      if (reply.stopping && reply.turnId === null) this.#live.withdraw(reply);
    }
    return true;
  }

  /** @param {import("./frames.js").Accepted} frame */
  #onAccepted(frame) {
    const reply = this.#live.accept(frame);
    this.#followed.add(frame.conversation_id);
    this.#sequenceOf(frame.conversation_id).within(frame.epoch);
    if (frame.duplicate !== true) {
      this.#count(frame);
      this.#noteBranch(reply, frame);
    }
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").Delta} frame */
  #onDelta(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    reply.append(frame);
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").Reasoning} frame */
  #onReasoning(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    reply.think(frame);
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").SourceText} frame */
  #onSource(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    if (!reply.grow(frame)) void this.#refresh(frame.conversation_id);
    this.#emit("reply", { reply });
  }

  /** @param {import("./frames.js").ToolCall} frame */
  #onToolCall(frame) {
    const reply = this.#live.running(frame.conversation_id, frame.turn_id);
    this.#count(frame);
    this.#emitCall(reply, reply.call(frame));
  }

  /** @param {import("./frames.js").ToolState} frame */
  #onToolState(frame) {
    this.#count(frame);
    const reply = this.#live.ofTurn(frame.turn_id);
    const call = reply?.callOf(frame.call_id);
    // A call that is unknown here came before this client looked; the history has it.
    if (reply === undefined || call === undefined) return void this.#refresh(frame.conversation_id);
    call.take(frame);
    this.#emitCall(reply, call);
  }

  /** @param {import("./frames.js").Done} frame */
  #onDone(frame) {
    this.#count(frame);
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply !== undefined) this.#live.finish(reply, frame);
    if (frame.removed === true) this.#remove(frame, reply);
    else {
      this.#sequenceOf(frame.conversation_id).leaf = frame.message_id;
      if (reply !== undefined) void this.#check(reply);
    }
  }

  /** @param {import("./frames.js").Status} frame */
  #onStatus(frame) {
    const reply = this.#live.ofTurn(frame.turn_id);
    if (reply === undefined) return;
    const call = reply.callOf(frame.call_id ?? "");
    if (frame.state !== "tool") reply.status = frame;
    else if (call === undefined) return;
    else call.note(frame);
    if (call === undefined) this.#emit("reply", { reply });
    else this.#emitCall(reply, call);
  }

  /** @param {Reply} reply @param {Call} call */
  #emitCall(reply, call) {
    this.#emit("call", { reply, call });
    this.#emit("reply", { reply });
  }

  /** @param {{conversation_id: string, first_seq?: number, seq: number}} frame */
  #count({ conversation_id: conversationId, first_seq: firstSeq, seq }) {
    if (!this.#sequenceOf(conversationId).take(firstSeq ?? seq, seq)) void this.#refresh(conversationId);
  }

  /** @param {string} conversationId */
  #sequenceOf(conversationId) {
    let sequence = this.#sequences.get(conversationId);
    if (sequence === undefined) this.#sequences.set(conversationId, (sequence = new Sequence()));
    return sequence;
  }

  /**
   * A message that does not follow the last one begins a branch. The history tells its siblings.
   * @param {Reply} reply
   * @param {import("./frames.js").Accepted} frame
   */
  #noteBranch(reply, frame) {
    const { leaf } = this.#sequenceOf(frame.conversation_id);
    // A reply that is continued has text already, which the history has.
    if (frame.continues !== undefined) return void this.#refresh(frame.conversation_id);
    if (leaf === undefined || leaf === (frame.follows === undefined ? frame.parent_id : frame.message_id)) return;
    reply.branches = true;
    void this.#refresh(frame.conversation_id);
  }

  /** @param {Reply} reply */
  async #check(reply) {
    const doubtful = reply.branches || reply.holed || (await reply.verified()) === false;
    if (doubtful) await this.#refresh(reply.conversationId);
  }

  /**
   * If the exchange had more turns than this one, or if that is unknown here, the history tells what is left.
   * @param {{conversation_id: string, turn_id: string}} frame
   * @param {Reply | undefined} reply
   */
  #remove({ conversation_id: conversationId, turn_id: turnId }, reply) {
    this.#sequenceOf(conversationId).leaf = undefined;
    this.#emit("removed", { conversationId, turnId });
    if (reply === undefined || reply.follows !== null) void this.#refresh(conversationId);
  }

  #onConnection() {
    const { state, code, reason } = this.#link.status;
    this.#emit("connection", this.#link.status);
    if (state !== LinkState.CONNECTED) this.#abandon();
    if (state === LinkState.REFUSED && code === CloseCode.UNAUTHENTICATED) {
      this.#emit("unauthenticated", { message: this.#refusal ?? reason });
    }
  }

  /** Rejects all requests: their answers were lost with the connection. */
  #abandon() {
    const lost = [...this.#requests.values()];
    this.#requests.clear();
    for (const { reject } of lost) reject(new ChatError(ChatError.DISCONNECTED, "The connection was lost.", { retryable: true }));
  }

  /** @param {import("./frames.js").Deleted} frame */
  #onDeleted({ conversation_id: conversationId }) {
    for (const reply of this.#live.openIn(conversationId)) this.#live.withdraw(reply);
    this.#followed.delete(conversationId);
    this.#sequences.delete(conversationId);
    this.#outgoing.forgetStops(conversationId);
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
   * @param {string} type
   * @param {unknown} detail
   */
  #emit(type, detail) {
    if (type === "reply") this.#outgoing.keep();
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** The wait before a request that was refused with `error` is repeated, in milliseconds; null if it isn't. @param {unknown} error */
function waitOf(error) {
  if (!(error instanceof ChatError) || error.code !== "rate_limited") return null;
  const waitMs = error.retryAfterMs ?? WAIT_MS;
  return waitMs <= LONGEST_WAIT_MS ? waitMs : null;
}
