import { BLANK, FENCE, QUOTE, RULE, bulletOf, dedent, headingOf, indentOf, interrupts, isIndentedCode, underlineOf } from "./lines.js";
import { Open, Taken, closes } from "./leaves.js";

/** Quotes and lists: which lines belong to them. Their content is a text of its own, which is not read here. */

/** @typedef {import("./leaves.js").Quote} Quote */
/** @typedef {import("./leaves.js").List} List */

/** A longer list goes on in another one, so a growing list is read from its last part on. */
export const MAX_ITEMS = 100;
/** The deepest nesting of quotes and items that is parsed. */
export const MAX_DEPTH = 12;

/** The lines of the text within a block. */
class Inner {
  /** @type {string[]} */ #lines = [];
  /** @type {string | null} The fence of an open code block in it. */ #mark = null;

  /** @param {string} line */
  push(line) {
    if (this.#mark !== null) this.#mark = closes(line, this.#mark) ? null : this.#mark;
    else this.#mark = FENCE.exec(line)?.[2] ?? null;
    this.#lines.push(line);
  }

  /** Whether a line without the block's mark may continue the paragraph at the end. @param {string} line */
  goesOnWith(line) {
    const last = this.#lines.at(-1) ?? "";
    const paragraph = this.#mark === null && !BLANK.test(last) && !isIndentedCode(last) && !isLine(last);
    return paragraph && !BLANK.test(line) && !interrupts(line) && underlineOf(line) === null;
  }

  get endsBlank() {
    return this.#lines.length > 1 && BLANK.test(this.#lines[this.#lines.length - 1]);
  }

  toString() {
    return this.#lines.join("\n");
  }
}

/** Whether a line is a whole block. @param {string} line */
function isLine(line) {
  return headingOf(line) !== null || RULE.test(line) || FENCE.test(line);
}

export class OpenQuote extends Open {
  #inner = new Inner();

  /** @param {string} line @param {number} at */
  constructor(line, at) {
    super(at);
    this.#inner.push(line.replace(QUOTE, ""));
  }

  /** @param {string} line */
  take(line) {
    if (!QUOTE.test(line) && !this.#inner.goesOnWith(line)) return Taken.NO;
    this.#inner.push(line.replace(QUOTE, ""));
    return Taken.YES;
  }

  /** @returns {Quote} */
  block() {
    return { kind: "quote", text: this.#inner.toString() };
  }
}

export class OpenList extends Open {
  #type;
  #number;
  #columns = 0;
  /** @type {Inner[]} */ #items = [];
  #loose = false;

  /** @param {import("./lines.js").Bullet} bullet @param {number} at */
  constructor(bullet, at) {
    super(at);
    this.#type = bullet.type;
    this.#number = bullet.number;
    this.#push(bullet);
  }

  get trailsBlank() {
    return this.#items.at(-1)?.endsBlank ?? false;
  }

  /** @param {string} line */
  take(line) {
    const item = /** @type {Inner} */ (this.#items.at(-1));
    if (BLANK.test(line)) item.push("");
    else if (indentOf(line) >= this.#columns) item.push(dedent(line, this.#columns));
    else return this.#takeOutside(item, line);
    return Taken.YES;
  }

  /** @param {Inner} item @param {string} line */
  #takeOutside(item, line) {
    const bullet = bulletOf(line);
    if (bullet === null) {
      if (!item.goesOnWith(line)) return Taken.NO;
      item.push(line);
      return Taken.YES;
    }
    if (bullet.type !== this.#type || this.#items.length === MAX_ITEMS) return Taken.NO;
    this.#loose ||= item.endsBlank;
    this.#push(bullet);
    return Taken.YES;
  }

  /** @param {import("./lines.js").Bullet} bullet */
  #push({ columns, text }) {
    this.#columns = columns;
    const item = new Inner();
    item.push(text);
    this.#items.push(item);
  }

  /** @returns {List} */
  block() {
    return { kind: "list", start: this.#number, items: this.#items.map(String), loose: this.#loose };
  }
}
