import { Call } from "./call.js";
import { countCodePoints, dropCodePoints, takeCodePoints } from "./code-points.js";
import { ReasoningText } from "./reasoning-text.js";

/** @enum {string} */
export const ReplyState = Object.freeze({
  /** Not accepted yet: on its way, or waiting for a connection. */
  SENDING: "sending",
  /** Accepted, no text yet. */
  WAITING: "waiting",
  /** Text arrives. */
  STREAMING: "streaming",
  /** It called tools (`done{tools}`). Once all its calls are settled, the next reply begins by itself. */
  CALLING: "calling",
  /** `done` came, with any reason. After calls: the reply that follows has begun. */
  ENDED: "ended",
  /** Refused before it was accepted; the server keeps nothing of it. */
  REFUSED: "refused",
  /** Stopped by the user before the server had it, or lost with the connection. */
  WITHDRAWN: "withdrawn",
});

/** States in which something is still to come. @type {Set<string>} */
const OPEN = new Set([ReplyState.SENDING, ReplyState.WAITING, ReplyState.STREAMING, ReplyState.CALLING]);

/** The id of a spoken message: `transcript.utterance_id`, and how often its turn has begun. */
const SPOKEN = /^(utterance_[\w-]+)\.\d+$/;

/**
 * One exchange: the user's message and the reply to it, as far as this client knows it.
 * Offsets and lengths are Unicode code points.
 */
export class Reply {
  /** @type {string} */ state = ReplyState.SENDING;
  /** @type {string | null} */ turnId = null;
  /** @type {string | null} The user's message that it answers; after calls, the reply that made them. */ messageId = null;
  /** @type {string | null} The turn whose calls it follows; null if it answers a message. */ follows = null;
  /** @type {string | null | undefined} The message before that one; undefined if it is unknown. */ parentId = undefined;
  /** @type {string | null} The message that this exchange replaces: it was edited, or is a reply that is regenerated. */ replaces = null;
  /** @type {string | null} The reply that it continues: the same message, whose text comes first. */ continues = null;
  /** Whether it began a branch: it does not follow the message that was last. */
  branches = false;
  /** @type {string | null} */ clientMsgId = null;
  /** @type {string | null} The id of the message that its exchange began with, after calls too; null if it is unknown. */ exchangeId = null;
  /** @type {string | null} The user's message; null if another device sent it, and its text is unknown. */
  content = null;
  /** @type {import("./frames.js").Attachment[]} The images that the message shows. */ attachments = [];
  /** @type {import("./frames.js").Languages | null} The languages of a live translation; its message is the source. */ interprets = null;
  /** @type {[start: number, end: number, sourceChars: number][]} How much of the source had been read for each piece of text that came live. */
  alignment = [];
  /** Whether the user may still go on speaking. Then it is taken back, so it is not shown yet. */
  unsure = false;
  /** @type {boolean} Whether this client sent it, and so may send it again. */
  own = false;
  /** The text so far; after the end, the text that is kept. */
  text = "";
  /** Code points of `text`. */
  chars = 0;
  /** Whether text, reasoning or a call was missed. What is here ends before the hole; the history has all of it. */
  holed = false;
  /** The model's reasoning, which is not part of the text. */
  reasoning = new ReasoningText();
  /** @type {Call[]} The calls that it made, in order. */
  calls = [];
  /** @type {import("./frames.js").Done | null} */ done = null;
  /** @type {import("./errors.js").ChatError | null} Why it was refused. */ error = null;
  /** @type {import("./frames.js").Status | null} The newest status while it waits. */ status = null;
  /** Whether its message was sent. */
  sent = false;
  /** @type {Reply | null} The reply that its message interrupts. */ interrupts = null;
  /** Whether its stop means no other reply of its conversation. */
  alone = false;
  /** @type {number | null} Text past this is not shown: the user pressed Stop here. */
  #heldAt = null;

  /** @param {string} conversationId */
  constructor(conversationId) {
    this.conversationId = conversationId;
  }

  /** Whether more is to come: text, its end, or the reply that follows its calls. */
  get open() {
    return OPEN.has(this.state);
  }

  /** The text to show: all of it, or up to where the user stopped it. */
  get visible() {
    return this.#heldAt === null ? this.text : takeCodePoints(this.text, this.#heldAt);
  }

  /** Code points of `visible`. */
  get visibleChars() {
    return Math.min(this.#heldAt ?? this.chars, this.chars);
  }

  /** The source of a live translation, as far as it has come; empty for other replies. */
  get source() {
    return this.interprets === null ? "" : (this.content ?? "");
  }

  /** Whether the user has asked to stop it. */
  get stopping() {
    return this.#heldAt !== null && this.open;
  }

  /** @param {import("./frames.js").Accepted} frame */
  accept(frame) {
    this.turnId = frame.turn_id;
    this.messageId = frame.message_id;
    this.parentId = frame.parent_id;
    this.follows = frame.follows ?? null;
    this.continues = frame.continues ?? null;
    // The message's id leads to the first reply. Those that follow are found by their turns only.
    this.clientMsgId = this.follows === null ? frame.client_msg_id : null;
    this.exchangeId = frame.client_msg_id;
    this.content ??= frame.content ?? null;
    if (frame.attachments !== undefined) this.attachments = frame.attachments;
    this.interprets = frame.interprets ?? this.interprets;
    if (frame.duplicate === true) this.holed = false;
    const begun = this.chars > 0 || this.reasoning.chars > 0 || this.calls.length > 0;
    if (this.open) this.state = begun ? ReplyState.STREAMING : ReplyState.WAITING;
  }

  /**
   * Takes a piece of text. Of a piece that overlaps the text (a replay) only the new part is added.
   * Returns false, and takes nothing, if text before the piece is missing.
   * @param {import("./frames.js").Delta} frame
   */
  append(frame) {
    if (this.holed || frame.off > this.chars) {
      this.holed = true;
      return false;
    }
    this.state = ReplyState.STREAMING;
    this.reasoning.growing = false;
    const fresh = dropCodePoints(frame.text, this.chars - frame.off);
    const start = this.chars;
    this.text += fresh;
    this.chars += countCodePoints(fresh);
    if (fresh !== "" && frame.src_off !== undefined) this.alignment.push([start, this.chars, frame.src_off]);
    return true;
  }

  /**
   * Takes what was spoken as its message, if it has come. Before that nobody knows whether the speaker has ended.
   * @param {Map<string, string>} said  by utterances
   */
  hear(said) {
    const utteranceId = SPOKEN.exec(this.clientMsgId ?? "")?.[1];
    if (utteranceId === undefined) return false;
    this.content = said.get(utteranceId) ?? null;
    this.unsure = this.content === null;
    return !this.unsure;
  }

  /**
   * Takes more of its source, which is its `content`. Returns false if a part before it is missing.
   * @param {import("./frames.js").SourceText} frame
   */
  grow(frame) {
    const source = this.content ?? "";
    const known = countCodePoints(source);
    if (frame.off > known) return false;
    this.content = source + dropCodePoints(frame.text, known - frame.off);
    return true;
  }

  /** Takes the source from the history, if it is longer than here. @param {import("./frames.js").Message} message */
  catchUpSource({ content, interprets }) {
    this.interprets = interprets ?? this.interprets;
    if (content.length > (this.content ?? "").length) this.content = content;
  }

  /** Takes a piece of the model's reasoning. @param {import("./frames.js").Reasoning} frame */
  think(frame) {
    if (!this.reasoning.append(frame)) this.holed = true;
    this.state = ReplyState.STREAMING;
  }

  /**
   * Takes a call. It may come again after a reconnect, and is taken once.
   * @param {import("./frames.js").ToolCall} frame
   */
  call(frame) {
    this.reasoning.growing = false;
    this.state = ReplyState.STREAMING;
    const known = this.callOf(frame.call_id);
    if (known !== undefined) return known;
    const call = new Call(frame);
    this.calls = [...this.calls, call];
    return call;
  }

  /** One of its calls. @param {string} callId */
  callOf(callId) {
    return this.calls.find((call) => call.callId === callId);
  }

  /**
   * Takes the reply from the history, if it is longer than here.
   * @param {import("./frames.js").Message} message
   */
  catchUp(message) {
    const { content, reasoning = "", calls = [] } = message;
    const calling = message.status !== "running";
    this.state = calling ? ReplyState.CALLING : ReplyState.STREAMING;
    this.reasoning.catchUp(reasoning, { growing: !calling && content === "" && calls.length === 0 });
    this.calls = calls.map((call) => this.#kept(call));
    this.#catchUpText(content);
  }

  /** @param {import("./frames.js").ShownCall} frame */
  #kept(frame) {
    const call = this.callOf(frame.call_id);
    call?.take(frame);
    return call ?? new Call(frame);
  }

  /** @param {string} text */
  #catchUpText(text) {
    if (text.length < this.text.length) return;
    this.holed = false;
    this.text = text;
    this.chars = countCodePoints(text);
  }

  /**
   * Shows nothing past `chars` from now on: only what the user has seen is kept.
   * @param {number} chars
   * @param {boolean} [alone]  whether no other reply is stopped with it
   */
  hold(chars, alone = false) {
    if (!this.open) return;
    this.alone = alone && (this.alone || !this.stopping);
    this.#heldAt = Math.min(this.#heldAt ?? chars, chars);
  }

  /** Shows all of it again: it was not stopped. */
  release() {
    this.#heldAt = null;
  }

  /** Ends the reply, and cuts it to what is kept. @param {import("./frames.js").Done} frame */
  finish(frame) {
    this.done = frame;
    this.reasoning.growing = false;
    this.#finishCalls(frame);
    const thought = frame.reasoning_chars ?? 0;
    if (this.reasoning.chars < thought) this.holed = true;
    else this.reasoning.cut(thought);
    if (this.state !== ReplyState.CALLING) this.#heldAt = null;
    if (this.chars < frame.chars) this.holed = true;
    else this.text = takeCodePoints(this.text, frame.chars);
    if (frame.removed !== true) this.unsure = false;
    this.chars = countCodePoints(this.text);
  }

  /** @param {import("./frames.js").Done} frame */
  #finishCalls({ reason, chars, open = [] }) {
    const calls = reason === "tools";
    this.state = calls ? ReplyState.CALLING : ReplyState.ENDED;
    this.calls = this.calls.filter((call) => call.off <= chars);
    if (!calls) for (const call of this.calls) call.cancel();
    else this.holed ||= open.some((callId) => this.callOf(callId) === undefined);
  }

  /** Ends it: its calls are settled, and the reply that follows has begun. */
  conclude() {
    this.state = ReplyState.ENDED;
    this.#heldAt = null;
  }

  /**
   * Whether the text is what the server keeps, byte for byte. Null if the browser can't tell: it has hashes in secure
   * contexts only.
   * @returns {Promise<boolean | null>}
   */
  async verified() {
    if (this.done === null || globalThis.crypto.subtle === undefined) return null;
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(this.text));
    const hex = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
    return hex === this.done.text_sha256;
  }

  /** @param {import("./errors.js").ChatError} error */
  refuse(error) {
    this.error = error;
    this.state = ReplyState.REFUSED;
  }

  withdraw() {
    this.state = ReplyState.WITHDRAWN;
  }
}
