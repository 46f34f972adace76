import { countCodePoints, dropCodePoints, takeCodePoints } from "./code-points.js";

/** A model's reasoning beside its reply. Its offsets are code points of its own. */
export class ReasoningText {
  /** The reasoning so far; after the end, what is kept of it. */
  text = "";
  /** Code points of `text`. */
  chars = 0;
  /** Whether the newest part of the reply is reasoning. */
  growing = false;

  /**
   * Takes a piece. Returns false, and takes nothing, if something before it is missing.
   * @param {import("./frames.js").Reasoning} frame
   */
  append({ off, text }) {
    if (off > this.chars) return false;
    const fresh = dropCodePoints(text, this.chars - off);
    if (fresh === "") return true;
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
    this.text = text;
    this.chars = countCodePoints(text);
  }

  /** Cuts it to what is kept. @param {number} chars */
  cut(chars) {
    this.text = takeCodePoints(this.text, chars);
    this.chars = Math.min(this.chars, chars);
  }
}
