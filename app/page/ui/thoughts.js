import { element } from "./dom.js";
import { duration } from "./figures.js";

/**
 * What a model thinks aloud before its answer, in `<think>` tags: folded away on the page, untouched in the history.
 * Copying and announcing leave it out.
 */

const OPEN = "<think>";
const CLOSE = "</think>";
/** Some templates write the opening tag into the prompt, so that a reply has the closing one alone: on a line of its own. */
const CLOSE_ALONE = /^[ \t]*<\/think>[ \t]*$/m;
/** A thought that was met when it was shorter than this was met at its beginning. */
const BEGINNING_CHARS = 200;

/**
 * A reply's thought (null where it has none), whether that has ended, and the answer behind it.
 * @param {string} text
 * @param {{growing?: boolean}} [options]  of a text that grows, the beginning of a tag is not shown yet
 * @returns {{thought: string | null, ended: boolean, answer: string}}
 */
export function splitThought(text, { growing = false } = {}) {
  const start = text.trimStart();
  if (growing && start !== "" && OPEN.startsWith(start)) return { thought: null, ended: false, answer: "" };
  if (!start.startsWith(OPEN)) return splitUnopened(text);
  const end = start.indexOf(CLOSE);
  if (end === -1) return { thought: start.slice(OPEN.length).trim(), ended: false, answer: "" };
  return split(start.slice(OPEN.length, end), start.slice(end + CLOSE.length));
}

/** @param {string} text */
function splitUnopened(text) {
  const close = CLOSE_ALONE.exec(text);
  const before = close === null ? "" : text.slice(0, close.index);
  // In a block of code the tag is what the answer is about.
  if (close === null || before.includes("```")) return { thought: null, ended: true, answer: text };
  return split(before, text.slice(close.index + close[0].length));
}

/**
 * @param {string} thought
 * @param {string} answer
 */
function split(thought, answer) {
  return { thought: thought.trim() || null, ended: true, answer: answer.trimStart() };
}

/** Shows a thought, folded until it is opened. Hidden where there is none. */
export class ThoughtFold {
  #name = element("span");
  #text = element("p", { dir: "auto" });
  root = element("details", { class: "thought", hidden: true }, element("summary", {}, this.#name), this.#text);
  /** @type {number | null | undefined} When it began; null where that was not seen. */ #since = undefined;
  #took = "";

  /**
   * @param {string | null} thought
   * @param {{thinking: boolean}} options  whether it is still growing
   */
  show(thought, { thinking }) {
    this.root.hidden = thought === null;
    if (thought === null) return;
    if (this.#text.textContent !== thought) this.#text.textContent = thought;
    this.#measure(thought, thinking);
    this.#name.className = thinking ? "waiting" : "";
    this.#name.textContent = thinking ? "Thinking" : `Thought${this.#took}`;
  }

  /**
   * @param {string} thought
   * @param {boolean} thinking
   */
  #measure(thought, thinking) {
    const now = performance.now();
    if (this.#since === undefined) this.#since = thinking && thought.length < BEGINNING_CHARS ? now : null;
    if (thinking || this.#since === null) return;
    const ms = now - this.#since;
    this.#took = ` for ${ms < 1000 ? "a moment" : duration(ms)}`;
    this.#since = null;
  }
}
