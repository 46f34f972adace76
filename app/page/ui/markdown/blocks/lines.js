/** What one line of Markdown can be: the rules of CommonMark and GFM, and those of formulas. Pure. */

export const BLANK = /^[ \t]*$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
export const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|(?:\*[ \t]*){3,})$/;
export const QUOTE = /^ {0,3}> ?/;
export const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const BULLET = /^( {0,3})([*+-]|(\d{1,9})[.)])(?:([ \t]+)(?=\S)|[ \t]*$)/;
const UNDERLINE = /^ {0,3}(?:(=+)|-+)[ \t]*$/;
const DELIMITERS = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|?$/;
const LABEL = String.raw`\[((?:\\.|[^\[\]\\]){1,999})\]`;
const TITLE = String.raw`"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)`;
const DEFINITION = new RegExp(String.raw`^ {0,3}${LABEL}:[ \t]*(?:<([^<>]*)>|([^\s<]\S*))(?:[ \t]+(${TITLE}))?[ \t]*$`);
const FORMULA = /^ {0,3}(\$\$(?!\$)|\\\[)(.*)$/;
/** More columns than this before the words make an indented block of code. */
const CODE_COLUMNS = 4;
const TAB_COLUMNS = 4;
/** What has more columns is no table that anybody reads. */
const MAX_COLUMNS = 100;

/** @typedef {{type: string, number: number | null, columns: number, text: string}} Bullet  `type` is what all items of a list share */
/** @typedef {{label: string, href: string, title: string}} Definition */

/** How many columns a line is indented. @param {string} line */
export function indentOf(line) {
  let columns = 0;
  for (const char of line) {
    if (char === " ") columns += 1;
    else if (char === "\t") columns += TAB_COLUMNS - (columns % TAB_COLUMNS);
    else break;
  }
  return columns;
}

/** A line without its first columns, as far as they are blank. @param {string} line @param {number} columns */
export function dedent(line, columns) {
  let at = 0;
  let passed = 0;
  for (; passed < columns && (line[at] === " " || line[at] === "\t"); at += 1) {
    passed += line[at] === " " ? 1 : TAB_COLUMNS - (passed % TAB_COLUMNS);
  }
  return " ".repeat(Math.max(0, passed - columns)) + line.slice(at);
}

/** @param {string} line */
export function isIndentedCode(line) {
  return indentOf(line) >= CODE_COLUMNS && !BLANK.test(line);
}

/** A heading that stands in a line; null where none does. @param {string} line @returns {{depth: number, text: string} | null} */
export function headingOf(line) {
  const found = HEADING.exec(line);
  if (found === null) return null;
  return { depth: found[1].length, text: line.slice(found[0].length).trim().replace(/(?:^|[ \t])#+$/, "").trim() };
}

/** The item of a list that a line begins; null where it begins none. @param {string} line @returns {Bullet | null} */
export function bulletOf(line) {
  const found = BULLET.exec(line);
  if (found === null || RULE.test(line)) return null;
  const [all, before, mark, digits, gap = ""] = found;
  const type = digits === undefined ? mark : mark.slice(-1);
  const marked = before.length + mark.length;
  const gapColumns = indentOf(" ".repeat(marked) + gap) - marked;
  // What is behind a wide gap is a block of code in the item.
  const wide = gapColumns > CODE_COLUMNS;
  const columns = marked + (wide || gapColumns === 0 ? 1 : gapColumns);
  const text = wide ? dedent(" ".repeat(marked) + line.slice(marked), columns) : line.slice(all.length);
  return { type, number: digits === undefined ? null : Number(digits), columns, text };
}

/** 1 or 2 where a line under a paragraph makes a heading of it; else null. @param {string} line */
export function underlineOf(line) {
  const found = UNDERLINE.exec(line);
  return found === null ? null : found[1] === undefined ? 2 : 1;
}

/** Where a link's label leads; null where a line does not say that. @param {string} line @returns {Definition | null} */
export function definitionOf(line) {
  const found = DEFINITION.exec(line);
  if (found === null) return null;
  const [, label, angled, bare, title = ""] = found;
  if (label.trim() === "") return null;
  return { label: labelOf(label), href: unescaped(angled ?? bare), title: unescaped(title.slice(1, -1)) };
}

/** Labels that differ in case and blanks alone are the same. @param {string} label */
export function labelOf(label) {
  return label.trim().replaceAll(/\s+/g, " ").toLowerCase();
}

/** @param {string} text */
function unescaped(text) {
  return text.replaceAll(/\\([\p{P}\p{S}])/gu, "$1");
}

/**
 * The alignments of a table's columns, where these two lines begin one; else null.
 * @param {string} head
 * @param {string} line  of delimiters
 * @returns {(string | null)[] | null}
 */
export function alignmentsOf(head, line) {
  if (!head.includes("|") || !/[|:]/.test(line) || !DELIMITERS.test(line.trimEnd())) return null;
  const cells = cellsOf(line);
  const fits = cells.length <= MAX_COLUMNS && cells.length === cellsOf(head).length;
  return fits ? cells.map(alignmentOf) : null;
}

/** @param {string} cell */
function alignmentOf(cell) {
  const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
  return left && right ? "center" : right ? "right" : left ? "left" : null;
}

/** The cells of a row. @param {string} line @returns {string[]} */
export function cellsOf(line) {
  const row = line.trim().replace(/^\|/, "");
  const cells = [];
  let cell = "";
  for (const [part] of row.matchAll(/\\[\s\S]|\||[^\\|]+|\\$/g)) {
    if (part === "|") cells.push(cell.trim());
    cell = part === "|" ? "" : cell + (part === "\\|" ? "|" : part);
  }
  return cell.trim() === "" && cells.length > 0 ? cells : [...cells, cell.trim()];
}

/**
 * The formula that a line begins or is; null where it does neither.
 * @param {string} line
 * @returns {{text: string, closer: string, closed: boolean} | null}
 */
export function formulaOf(line) {
  const found = FORMULA.exec(line);
  if (found === null) return null;
  const closer = found[1] === "$$" ? "$$" : "\\]";
  const end = found[2].indexOf(closer);
  if (end === -1) return { text: found[2], closer, closed: false };
  const alone = BLANK.test(found[2].slice(end + 2)) && !BLANK.test(found[2].slice(0, end));
  return alone ? { text: found[2].slice(0, end), closer, closed: true } : null;
}

/** Whether a line ends the paragraph before it, without a blank line between them. @param {string} line */
export function interrupts(line) {
  if (headingOf(line) !== null || RULE.test(line) || QUOTE.test(line) || FENCE.test(line)) return true;
  const bullet = bulletOf(line);
  if (bullet !== null) return bullet.text !== "" && (bullet.number ?? 1) === 1;
  return formulaOf(line) !== null;
}
