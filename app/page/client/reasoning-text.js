import { countCodePoints, dropCodePoints, takeCodePoints } from "./code-points.js";

/** A model's reasoning beside its reply. Its offsets are code points of its own; times are `performance.now()` milliseconds. */
export class ReasoningText {
  /** The reasoning so far; after the end, what is kept of it. */
  text = "";
  /** Code points of `text`. */
  chars = 0;
  /** Whether the newest part of the reply is reasoning. */
  growing = false;
  /** @type {number | null} */ #since = null;
  /** @type {number | null} */ #until = null;
  /** Whether a part of it did not come as it was made, as after a reconnect: then its time means nothing. */
  #replayed = false;

  /**
   * How long the model reasoned, in milliseconds, measured here: from the first piece to what came behind the last.
   * Null while it reasons, and if that was not seen.
   * @returns {number | null}
   */
  get ms() {
    return this.#replayed || this.#since === null || this.#until === null ? null : this.#until - this.#since;
  }

  /**
   * Takes a piece. Returns false, and takes nothing, if something before it is missing.
   * @param {import("./frames.js").Reasoning} frame
   * @param {number} now
   */
  append({ off, text }, now) {
    if (off > this.chars) return false;
    const fresh = dropCodePoints(text, this.chars - off);
    if (fresh === "") return true;
    this.#since ??= now;
    this.growing = true;
    this.text += fresh;
    this.chars += countCodePoints(fresh);
    return true;
  }

  /**
   * Takes the reasoning from the history, if it is longer than here.
   * @param {string} text
   * @param {{growing: boolean}} options  whether nothing else of the reply has followed
   */
  catchUp(text, { growing }) {
    this.growing = growing && text !== "";
    if (text.length <= this.text.length) return;
    this.#replayed = true;
    this.text = text;
    this.chars = countCodePoints(text);
  }

  /** Takes that something else of the reply came, or its end. @param {number} now */
  rest(now) {
    if (this.growing) this.#until = now;
    this.growing = false;
  }

  /** Cuts it to what is kept. @param {number} chars */
  cut(chars) {
    this.text = takeCodePoints(this.text, chars);
    this.chars = Math.min(this.chars, chars);
  }

  /** Takes that the connection was lost: the pace of what comes next is not the model's. */
  pause() {
    this.#replayed ||= this.growing;
  }
}
