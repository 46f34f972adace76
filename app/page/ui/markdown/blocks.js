import { Marked } from "../../vendor/markdown.js";

/** The blocks of a Markdown text, as marked reads them, with formulas. Pure; nothing here looks within a line. */

/** @typedef {import("../../vendor/markdown.js").Token} Token */
/** @typedef {import("../../vendor/markdown.js").Tokens.Code} Code */
/** @typedef {import("../../vendor/markdown.js").Tokens.Def} Definition */
/** @typedef {import("../../vendor/markdown.js").Tokens.List} List */
/** @typedef {import("../../vendor/markdown.js").Tokens.Table} Table */
/** @typedef {{type: "formula", raw: string, text: string, written: string, closed: boolean}} Formula */

/** The deepest nesting of quotes and lists. marked's work doubles with each quote around lines without its mark. */
const MAX_DEPTH = 8;
/** The most columns of a table: nobody reads more, and each row is filled up to as many cells. */
const MAX_COLUMNS = 100;
const FORMULA = /^ {0,3}(?:(\$\$)(?!\$)|\\\[)/;
const FORMULA_WITHIN = /\n {0,3}(?:\$\$(?!\$)|\\\[)/;
const BLANK_LINE = /\n[ \t]*(?:\n|$)/;

const marked = new Marked({
  gfm: true,
  extensions: [
    {
      name: "formula",
      level: "block",
      start: formulaWithin,
      tokenizer: (text) => formulaOf(text) ?? undefined,
    },
  ],
});

/** marked's rules, with bounds, and without HTML: a tag in a reply is text. */
class Rules extends marked.Tokenizer {
  #depth = 0;

  html() {
    return undefined;
  }

  /** Definitions are single lines, so that none changes once its line is complete. @param {string} text */
  def(text) {
    // marked would leave out a second one for the same label.
    this.lexer.tokens.links = {};
    return super.def(text.split("\n", 1)[0]);
  }

  /** A formula ends the paragraph that a line below it would make a heading. @param {string} text */
  lheading(text) {
    const formula = formulaWithin(text);
    return super.lheading(formula === undefined ? text : text.slice(0, formula));
  }

  /** @param {string} text */
  table(text) {
    return text.split("\n", 1)[0].split("|", MAX_COLUMNS + 2).length < MAX_COLUMNS + 2 ? super.table(text) : undefined;
  }

  /** @param {string} text */
  blockquote(text) {
    return this.#nested(() => super.blockquote(text));
  }

  /** @param {string} text */
  list(text) {
    return this.#nested(() => super.list(text));
  }

  /** @template T @param {() => T} read @returns {T | undefined} */
  #nested(read) {
    if (this.#depth === MAX_DEPTH) return undefined;
    this.#depth += 1;
    try {
      return read();
    } finally {
      this.#depth -= 1;
    }
  }
}

/**
 * The blocks of a text, and the blank lines between them. Their `raw` parts are the text.
 * @param {string} text  its lines end with "\n"
 * @returns {Token[]}
 */
export function blocksOf(text) {
  const tokenizer = /** @type {any} */ (new Rules(marked.defaults));
  return new marked.Lexer({ ...marked.defaults, tokenizer }).blockTokens(text, []);
}

/** What is within a block, or a list's item; the box of a task is the first character of its text. @param {any} block @returns {Token[]} */
export function within(block) {
  const inner = (block.tokens ?? []).filter(isShown);
  if (!block.task || inner.length === 0) return inner;
  const [first, ...rest] = /** @type {any[]} */ (inner);
  const text = first.text.replace(/^\[[ xX]\][ \t]+/, "");
  return [{ ...first, text: `${block.checked ? "☑" : "☐"} ${text}` }, ...rest];
}

/** @param {Token} token */
export function isShown({ type }) {
  return type !== "space" && type !== "checkbox" && type !== "def";
}

/** Where a paragraph may end with a formula. What comes after the paragraph is not searched, however long it is. @param {string} text */
function formulaWithin(text) {
  const at = text.slice(0, BLANK_LINE.exec(text)?.index).search(FORMULA_WITHIN);
  return at === -1 ? undefined : at + 1;
}

/** The formula that a text begins with, up to a blank line at most. @param {string} text @returns {Formula | null} */
function formulaOf(text) {
  const opened = FORMULA.exec(text);
  if (opened === null) return null;
  const body = text.slice(0, BLANK_LINE.exec(text)?.index);
  const begin = opened[0].length;
  const end = body.indexOf(opened[1] ?? "\\]", begin);
  const lineEnd = end === -1 || !body.includes("\n", end) ? body.length : body.indexOf("\n", end);
  const closed = end !== -1 && body.slice(end + 2, lineEnd).trim() === "";
  const inner = body.slice(begin, end === -1 ? body.length : end);
  // Of a single line it is all, or it is within a sentence.
  if (end !== -1 && !inner.includes("\n") && !(closed && inner.trim() !== "")) return null;
  const written = closed ? body.slice(0, lineEnd) : body;
  return { type: "formula", raw: written, text: inner.trim(), written, closed };
}

/** The links of a text by their labels. A label may be used before the line that defines it. */

/** @typedef {import("./inline.js").Links} Links */

/** The definitions in a block, and in the blocks within it. @param {any} block @returns {Definition[]} */
export function definitionsIn(block) {
  if (block.type === "def") return [block];
  return (block.items ?? (block.type === "blockquote" || block.type === "list_item" ? block.tokens : [])).flatMap(definitionsIn);
}

/** The links of definitions, in the order of the text. Of two for one label the first counts. @param {Definition[]} definitions @returns {Links} */
export function linksOf(definitions) {
  /** @type {Links} */ const links = Object.create(null);
  for (const { tag, href, title = "" } of definitions) links[tag] ??= { href, title };
  return links;
}

/** The labels whose links differ. @param {Links} before @param {Links} now */
export function changedLabels(before, now) {
  const differs = (/** @type {string} */ label) => before[label]?.href !== now[label]?.href || before[label]?.title !== now[label]?.title;
  return new Set(Object.keys({ ...before, ...now }).filter(differs));
}

/** Whether a text may use one of the labels. @param {string} text @param {Set<string>} labels */
export function mentions(text, labels) {
  for (const [, label] of text.matchAll(/\[((?:\\.|[^[\]\\]){1,999})\]/g)) {
    if (labels.has(label.replaceAll(/\s+/g, " ").toLowerCase())) return true;
  }
  return false;
}
