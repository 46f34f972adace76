import { ChatError } from "../../client/chat-client.js";
import { countCodePoints, dropCodePoints, takeCodePoints } from "../../client/code-points.js";
import { InterpretingBar } from "./interpreting-bar.js";

/** Code points of one growth: a frame takes more, and a long text that is pasted is told in parts. */
const MOST_AT_ONCE = 8_000;
/** After so long a growth is told again that the server could not take at the moment. */
const AGAIN_MS = 1_000;
/** Up to where words are whole: a blank or a mark stands behind them. */
const WHOLE = /^[^]*(?:\s|[。！？，、；：])/u;

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("./interpreting-bar.js").Wish} Wish */

/** One conversation that is translated live: takes words as they are written, and lets the source grow by them. */
export class Interpreter {
  #parts;
  #bar;
  /** @type {Reply | null} The translation that runs. */ #reply = null;
  /** All of the source as far as it was written, and how much of it the server has. */
  #said = "";
  #known = 0;
  #final = false;
  #growing = false;
  /** Whether what was refused is in the box again: it is taken once the user sends it, and not with the next key. */ #held = false;
  #listeners = new AbortController();

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {string} parts.conversationId
   * @param {Wish} parts.wish
   * @param {() => string | undefined} parts.model
   * @param {(wish: Wish) => void} parts.onWish
   * @param {(text: string) => void} parts.onRest         what was taken and will not be translated
   * @param {(error: ChatError) => void} parts.onTrouble
   */
  constructor(parts) {
    this.#parts = parts;
    this.#bar = new InterpretingBar({ wish: parts.wish, onWish: parts.onWish, onDone: () => this.#finish() });
    this.#tell();
    const { signal } = this.#listeners;
    parts.client.addEventListener("reply", (event) => this.#look(/** @type {CustomEvent} */ (event).detail.reply), { signal });
    parts.client.addEventListener("ready", () => void this.#grow(), { signal });
    for (const reply of parts.client.repliesOf(parts.conversationId)) this.#look(reply);
  }

  get conversationId() {
    return this.#parts.conversationId;
  }

  /** Offers the languages that the model has. @param {{sources: string[], targets: string[]}} languages */
  offer(languages) {
    this.#bar.offer(languages, this.#bar.wish);
    this.#tell();
  }

  /**
   * Takes what is whole of a text that is being written. Gives how much of it that is, in UTF-16 units: none while the end
   * of the text before it is awaited.
   * @param {string} text
   * @param {{all: boolean}} how  whether it is a line, whose end says that it is whole
   */
  take(text, { all }) {
    if (this.#final || this.#reply?.stopping || (this.#held && !all)) return 0;
    const [words] = all ? [text] : (WHOLE.exec(text) ?? [""]);
    if (words.trim() === "" && this.#reply === null) return 0;
    if (words === "") return 0;
    this.#held = false;
    if (this.#reply === null) this.#begin();
    this.#tell();
    this.#said += all ? `${words}\n` : words;
    void this.#grow();
    return words.length;
  }

  close() {
    this.#listeners.abort();
    if (!this.#growing) this.#giveBack(); // else all of it is being told
    this.#bar.remove();
  }

  #begin() {
    const { client, conversationId, model } = this.#parts;
    [this.#said, this.#known, this.#final] = ["", 0, false];
    this.#reply = client.interpret({ conversationId, onBusy: "interrupt", model: model(), ...this.#bar.wish });
  }

  #finish() {
    this.#final = true;
    this.#tell();
    void this.#grow();
  }

  /** Tells what the server does not have. What was lost with a connection is told again on the next one. */
  async #grow() {
    if (this.#growing) return;
    this.#growing = true;
    try {
      while (await this.#growOnce());
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (!error.lost) this.#refused(error);
    } finally {
      this.#growing = false;
    }
  }

  /** What the server will never take is given back; its source is what counts. @param {ChatError} error */
  #refused(error) {
    if (error.retryable) return void setTimeout(() => void this.#grow(), error.retryAfterMs ?? AGAIN_MS);
    this.#giveBack();
    // A source that is full ends here; what is in the box begins the next one.
    this.#final = error.code === "content_too_long" && this.#reply !== null;
    this.#tell();
    this.#parts.onTrouble(error);
    if (this.#final) setTimeout(() => void this.#grow());
  }

  /** Gives back what was taken and the server does not have. */
  #giveBack() {
    const source = this.#reply?.content ?? "";
    const has = this.#said.startsWith(source) ? countCodePoints(source) : 0;
    const rest = dropCodePoints(this.#said, Math.max(this.#known, has));
    this.#said = source;
    this.#known = countCodePoints(source);
    if (rest.trim() === "") return;
    this.#held = true;
    this.#parts.onRest(rest);
  }

  async #growOnce() {
    const reply = this.#reply;
    const rest = dropCodePoints(this.#said, this.#known);
    const most = takeCodePoints(rest, MOST_AT_ONCE);
    const text = most === rest ? rest : (WHOLE.exec(most)?.[0] ?? most);
    const final = this.#final && text === rest;
    if (reply === null || reply.turnId === null || !reply.open || reply.stopping || (text === "" && !final)) return false;
    if (this.#parts.client.connection.state !== "connected") return false;
    const { chars, final: ended } = await this.#parts.client.grow({ conversationId: this.conversationId, off: this.#known, text, final });
    if (this.#reply === reply) this.#known = Math.max(this.#known, Math.min(chars, countCodePoints(this.#said)));
    return !ended;
  }

  /** @param {Reply} reply */
  #look(reply) {
    if (reply.conversationId !== this.conversationId || reply.interprets === null) return;
    if (reply.open && !reply.stopping && this.#reply === null) this.#attach(reply);
    if (reply !== this.#reply) return;
    if (!reply.open) this.#detach(reply);
    else void this.#grow();
  }

  /** It runs already: this page was loaded anew, or another device began it, or it goes on. @param {Reply} reply */
  #attach(reply) {
    if (reply.content === null && reply.continues !== null) return; // what it goes on with comes with the history
    this.#reply = reply;
    this.#said = reply.content ?? "";
    this.#known = countCodePoints(this.#said);
    this.#final = false;
    this.#tell();
  }

  /** @param {Reply} reply */
  #detach({ error }) {
    this.#giveBack();
    this.#reply = null;
    this.#said = "";
    this.#known = 0;
    this.#final = false;
    this.#tell();
    if (error !== null) this.#parts.onTrouble(error);
  }

  #tell() {
    const waiting = this.#final ? "end" : this.#held ? "user" : null;
    this.#bar.tell(this.#reply?.interprets ?? null, waiting);
  }
}
