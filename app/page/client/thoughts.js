import { countCodePoints, dropCodePoints, takeCodePoints } from "./code-points.js";

/** What a model thinks aloud beside its reply. Offsets are code points of their own, times are `performance.now()` milliseconds. */
export class Thoughts {
  /** All that was thought so far; after the end, what is kept. */
  text = "";
  /** Code points of `text`. */
  chars = 0;
  /** Whether the last that came of the reply was thought. */
  growing = false;
  /** @type {number | null} */ #since = null;
  /** @type {number | null} */ #until = null;
  /** Whether a part of it came otherwise than as it was made: its time here says nothing. */
  #replayed = false;

  /**
   * For how long the model thought, in milliseconds, as seen here: from the first piece to what came behind the last.
   * Null while it thinks, and where that was not seen.
   * @returns {number | null}
   */
  get ms() {
    return this.#replayed || this.#since === null || this.#until === null ? null : this.#until - this.#since;
  }

  /**
   * Takes a piece. False, and nothing is taken, where something before it is missing.
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
   * Takes all of it so far as history tells it, where that is more than is known here.
   * @param {string} text
   * @param {{growing: boolean}} options  whether nothing else of the reply came behind it
   */
  catchUp(text, { growing }) {
    this.growing = growing && text !== "";
    if (text.length <= this.text.length) return;
    this.#replayed = true;
    this.text = text;
    this.chars = countCodePoints(text);
  }

  /** Something else of the reply came, or its end. @param {number} now */
  rest(now) {
    if (this.growing) this.#until = now;
    this.growing = false;
  }

  /** Cuts it to what is kept. @param {number} chars */
  cut(chars) {
    this.text = takeCodePoints(this.text, chars);
    this.chars = Math.min(this.chars, chars);
  }

  /** The connection was lost: what comes next comes otherwise than as it is made. */
  pause() {
    this.#replayed ||= this.growing;
  }
}
