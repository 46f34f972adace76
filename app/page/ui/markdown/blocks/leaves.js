import { BLANK, alignmentsOf, cellsOf, dedent, formulaOf, interrupts, isIndentedCode, underlineOf } from "./lines.js";

/** Blocks that contain no other blocks, and what they do with the lines after their first. */

/** @typedef {{kind: "heading", depth: number, text: string}} Heading */
/** @typedef {{kind: "rule"}} Rule */
/** @typedef {{kind: "definition", definition: import("./lines.js").Definition}} DefinitionBlock */
/** @typedef {{kind: "code", info: string, text: string}} Code */
/** @typedef {{kind: "formula", text: string, closed: boolean, written: string}} Formula */
/** @typedef {{kind: "paragraph", text: string}} Paragraph */
/** @typedef {{kind: "table", head: string[], alignments: (string | null)[], rows: string[]}} Table */
/** @typedef {{kind: "quote", text: string}} Quote */
/** @typedef {{kind: "list", start: number | null, items: string[], loose: boolean}} List */
/** @typedef {Heading | Rule | DefinitionBlock | Code | Formula | Paragraph | Table | Quote | List} Block */

/** What an open block does with a line. */
export const Taken = /** @type {const} */ ({ YES: "yes", NO: "no", LAST: "as its last", TABLE: "as a table's second" });

/** A block that may continue. */
export class Open {
  gap = false;
  /** Whether it ended with its first line. */
  single = false;

  /** @param {number} start */
  constructor(start) {
    this.start = start;
  }

  /** Whether it took blank lines that may belong behind it. */
  get trailsBlank() {
    return false;
  }

  /**
   * @param {string} _line
   * @param {number} _at
   * @returns {typeof Taken[keyof typeof Taken]}
   */
  take(_line, _at) {
    return Taken.NO;
  }

  /** @returns {Block} */
  block() {
    throw new Error("a block without a kind");
  }
}

export class Single extends Open {
  single = true;
  #block;

  /** @param {Block} block @param {number} at */
  constructor(block, at) {
    super(at);
    this.#block = block;
  }

  block() {
    return this.#block;
  }
}

export class OpenParagraph extends Open {
  /** @type {{line: string, at: number}[]} */ lines;
  #depth = 0;

  /** @param {string} line @param {number} at */
  constructor(line, at) {
    super(at);
    this.lines = [{ line, at }];
  }

  /** @param {string} line @param {number} at */
  take(line, at) {
    if (BLANK.test(line)) return Taken.NO;
    const depth = underlineOf(line);
    if (depth !== null) {
      this.#depth = depth;
      return Taken.LAST;
    }
    const last = /** @type {{line: string}} */ (this.lines.at(-1));
    if (alignmentsOf(last.line, line) !== null) return Taken.TABLE;
    if (interrupts(line)) return Taken.NO;
    this.lines.push({ line, at });
    return Taken.YES;
  }

  /** @returns {Heading | Paragraph} */
  block() {
    const text = this.lines.map(({ line }) => line.trimStart()).join("\n").trimEnd();
    return this.#depth === 0 ? { kind: "paragraph", text } : { kind: "heading", depth: this.#depth, text };
  }
}

export class OpenFence extends Open {
  #columns;
  #mark;
  #info;
  /** @type {string[]} */ #lines = [];

  /** @param {RegExpExecArray} fence @param {number} at */
  constructor([, before, mark, info], at) {
    super(at);
    this.#columns = before.length;
    this.#mark = mark;
    this.#info = info.trim();
  }

  /** @param {string} line */
  take(line) {
    if (closes(line, this.#mark)) return Taken.LAST;
    this.#lines.push(this.#columns === 0 ? line : dedent(line, this.#columns));
    return Taken.YES;
  }

  /** @returns {Code} */
  block() {
    return { kind: "code", info: this.#info, text: this.#lines.join("\n") };
  }
}

/** @param {string} line @param {string} mark  the fence that the code block began with */
export function closes(line, mark) {
  const found = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(line);
  return found !== null && found[1].startsWith(mark);
}

export class OpenIndented extends Open {
  #lines;

  /** @param {string} line @param {number} at */
  constructor(line, at) {
    super(at);
    this.#lines = [dedent(line, 4)];
  }

  get trailsBlank() {
    return BLANK.test(this.#lines.at(-1) ?? "");
  }

  /** @param {string} line */
  take(line) {
    if (!BLANK.test(line) && !isIndentedCode(line)) return Taken.NO;
    this.#lines.push(dedent(line, 4));
    return Taken.YES;
  }

  /** @returns {Code} */
  block() {
    return { kind: "code", info: "", text: this.#lines.join("\n").replace(/(?:\n[ \t]*)+$/, "") };
  }
}

export class OpenFormula extends Open {
  #closer;
  #closed;
  #written;
  #lines;

  /** @param {string} line @param {NonNullable<ReturnType<typeof formulaOf>>} formula @param {number} at */
  constructor(line, { text, closer, closed }, at) {
    super(at);
    this.#written = [line];
    this.#lines = [text];
    this.#closer = closer;
    this.#closed = closed;
    this.single = closed;
  }

  /** A formula has no blank lines: what is not closed before one is no formula. @param {string} line */
  take(line) {
    if (BLANK.test(line)) return Taken.NO;
    const end = line.indexOf(this.#closer);
    this.#written.push(line);
    this.#lines.push(end === -1 ? line : line.slice(0, end));
    this.#closed = end !== -1 && BLANK.test(line.slice(end + 2));
    return this.#closed ? Taken.LAST : Taken.YES;
  }

  /** @returns {Formula} */
  block() {
    return { kind: "formula", text: this.#lines.join("\n").trim(), closed: this.#closed, written: this.#written.join("\n") };
  }
}

export class OpenTable extends Open {
  #head;
  #alignments;
  /** @type {string[]} */ #rows = [];

  /** @param {string} head @param {string} delimiters @param {number} at */
  constructor(head, delimiters, at) {
    super(at);
    this.#head = cellsOf(head);
    this.#alignments = alignmentsOf(head, delimiters) ?? [];
  }

  /** @param {string} line */
  take(line) {
    // A line that begins with a bar is a row; a long table is read again with each row.
    if (!line.startsWith("|") && (BLANK.test(line) || interrupts(line) || isIndentedCode(line))) return Taken.NO;
    this.#rows.push(line);
    return Taken.YES;
  }

  /** @returns {Table} */
  block() {
    return { kind: "table", head: this.#head, alignments: this.#alignments, rows: this.#rows };
  }
}
