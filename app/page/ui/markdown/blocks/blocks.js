import { BLANK, FENCE, QUOTE, RULE, bulletOf, definitionOf, formulaOf, headingOf, isIndentedCode } from "./lines.js";
import { OpenList, OpenQuote } from "./containers.js";
import { OpenFence, OpenFormula, OpenIndented, OpenParagraph, OpenTable, Single, Taken } from "./leaves.js";

/**
 * Divides a text into its blocks, line by line. It reads one level: what is in a quote or an item is a text of its own.
 * The lines before decide which block a finished line belongs to, so a growing text is read from its last open block on.
 * It knows nothing of what is within a line, and nothing of the page.
 */

/** @typedef {import("./leaves.js").Block} Block */
/** @typedef {import("./leaves.js").Open} Open */
/** @typedef {{start: number, gap: boolean, block: Block}} Placed  where it begins, and whether a blank line separates it from the block before */

/**
 * The blocks of a text from an offset on.
 * @param {string} text     its lines end with "\n"
 * @param {number} [from]   where a block begins
 * @returns {{blocks: Placed[], settled: number}}  `settled`: the number of blocks that no longer change, however the text goes on
 */
export function blocksOf(text, from = 0) {
  const reader = new Reader();
  let at = from;
  let settled = 0;
  while (at < text.length) {
    const newline = text.indexOf("\n", at);
    const end = newline === -1 ? text.length : newline;
    settled = reader.closed;
    reader.read(text.slice(at, end), at);
    at = end + 1;
  }
  // After its end a line can't change any more.
  if (text.endsWith("\n")) settled = reader.closed;
  return { blocks: reader.opened.map((open) => ({ start: open.start, gap: open.gap, block: open.block() })), settled };
}

/** Reads lines, each into the open block or into a new one. */
class Reader {
  /** @type {Open[]} */ opened = [];
  /** @type {Open | null} */ #open = null;
  #gap = false;

  /** How many blocks are closed. */
  get closed() {
    return this.opened.length - (this.#open === null ? 0 : 1);
  }

  /** @param {string} line @param {number} at */
  read(line, at) {
    const taken = this.#open?.take(line, at) ?? Taken.NO;
    if (taken === Taken.YES) return;
    if (taken === Taken.TABLE) return this.#asTable(line);
    if (taken !== Taken.LAST) this.#begin(line, at);
    else this.#open = null;
  }

  /** @param {string} line @param {number} at */
  #begin(line, at) {
    const before = this.#open;
    this.#open = null;
    this.#gap ||= before?.trailsBlank ?? false;
    if (BLANK.test(line)) return void (this.#gap = true);
    const made = begun(line, at);
    made.gap = this.#gap && this.opened.length > 0;
    this.#gap = false;
    this.opened.push(made);
    this.#open = made.single ? null : made;
  }

  /** Takes that the last line of a paragraph was the head of a table. @param {string} line  the one of delimiters */
  #asTable(line) {
    const paragraph = /** @type {OpenParagraph} */ (this.#open);
    const head = /** @type {{line: string, at: number}} */ (paragraph.lines.pop());
    const table = new OpenTable(head.line, line, head.at);
    if (paragraph.lines.length === 0) {
      table.gap = paragraph.gap;
      this.opened.pop();
    }
    this.opened.push(table);
    this.#open = table;
  }
}

/**
 * The block that a line begins.
 * @param {string} line
 * @param {number} at
 * @returns {Open}
 */
function begun(line, at) {
  if (isIndentedCode(line)) return new OpenIndented(line, at);
  const fence = FENCE.exec(line);
  if (fence !== null) return new OpenFence(fence, at);
  const heading = headingOf(line);
  if (heading !== null) return new Single({ kind: "heading", ...heading }, at);
  if (RULE.test(line)) return new Single({ kind: "rule" }, at);
  if (QUOTE.test(line)) return new OpenQuote(line, at);
  const bullet = bulletOf(line);
  if (bullet !== null) return new OpenList(bullet, at);
  const formula = formulaOf(line);
  if (formula !== null) return new OpenFormula(line, formula, at);
  const definition = definitionOf(line);
  if (definition !== null) return new Single({ kind: "definition", definition }, at);
  return new OpenParagraph(line, at);
}
