import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/**
 * A model's reasoning before its answer, folded on the page. Most servers send it separately from the text. If it is in
 * `<think>` tags, the history keeps these as they are. It is neither copied nor announced.
 */

const OPEN = "<think>";
const CLOSE = "</think>";
/** Some templates put the opening tag into the prompt. Then a reply has only the closing one, on a line of its own. */
const CLOSE_ALONE = /^[ \t]*<\/think>[ \t]*$/m;
/** From this length on, a block of shown reasoning ends with its line. */
const BLOCK_CHARS = 1000;

/**
 * A reply's reasoning (null if it has none), whether that has ended, and the answer after it.
 * @param {string} text
 * @param {{growing?: boolean}} [options]  of a growing text the beginning of a tag is not shown yet
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
  // In a code block the tag belongs to the answer.
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

/** Shows reasoning, folded until it is opened. Hidden if there is none. */
export class ThoughtFold {
  #name = element("span");
  #shown = "";
  /** The end of the last block, where it grows. */
  #tail = document.createTextNode("");
  #body = element("div", { class: "thought-text" });
  root = element("details", { class: "thought", hidden: true }, element("summary", {}, this.#name), this.#body);

  /**
   * @param {string | null} thought
   * @param {{thinking: boolean, ms: number | null}} options  whether it still grows, and how long it took, if that is known
   */
  show(thought, { thinking, ms }) {
    this.root.hidden = thought === null;
    if (thought === null) return;
    this.#write(thought);
    this.#name.className = thinking ? "waiting" : "";
    this.#name.textContent = thinking ? t("Thinking") : thoughtFor(ms);
  }

  /** Shows more of it. A long one grows by a few words a frame, so only its last block is laid out again. @param {string} thought */
  #write(thought) {
    if (thought === this.#shown) return;
    const grows = this.#shown !== "" && thought.startsWith(this.#shown);
    if (!grows) this.#body.replaceChildren(this.#newBlock());
    const [first, ...blocks] = inBlocks(this.#tail.data + thought.slice(grows ? this.#shown.length : 0));
    this.#tail.data = first;
    for (const block of blocks) {
      this.#body.append(this.#newBlock());
      this.#tail.data = block;
    }
    this.#shown = thought;
  }

  #newBlock() {
    this.#tail = document.createTextNode("");
    return element("p", { dir: "auto" }, this.#tail);
  }
}

/** A text in blocks of whole lines, each short enough for a browser to lay out at once. @param {string} text */
function inBlocks(text) {
  const blocks = [];
  let rest = text;
  for (let end = rest.indexOf("\n", BLOCK_CHARS); end !== -1; end = rest.indexOf("\n", BLOCK_CHARS)) {
    blocks.push(rest.slice(0, end));
    rest = rest.slice(end + 1);
  }
  return [...blocks, rest];
}

/** Words for the reasoning, with its time if that is known. @param {number | null} ms */
function thoughtFor(ms) {
  if (ms === null) return t("Thought");
  if (ms < 1000) return t("Thought for a moment");
  const seconds = Math.round(ms / 1000);
  return seconds < 120 ? t("Thought for {seconds} s", { seconds }) : t("Thought for {minutes} min", { minutes: Math.round(seconds / 60) });
}
