import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** From this length on, a block of shown reasoning ends with its line. */
const BLOCK_CHARS = 1000;

/** A model's reasoning before its answer, folded until it is opened. Hidden if there is none. It is neither copied nor announced. */
export class ThoughtFold {
  #name = element("span");
  #shown = "";
  /** The end of the last block, where it grows. */
  #tail = document.createTextNode("");
  #body = element("div", { class: "thought-text" });
  root = element("details", { class: "thought", hidden: true }, element("summary", {}, this.#name), this.#body);

  /**
   * @param {string} thought
   * @param {{thinking: boolean, ms: number | null}} options  whether it still grows, and how long it took, if that is known
   */
  show(thought, { thinking, ms }) {
    this.root.hidden = thought === "";
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
