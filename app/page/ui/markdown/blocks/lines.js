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
/** More columns of indentation make a code block. */
const CODE_COLUMNS = 4;
const TAB_COLUMNS = 4;
/** The most columns of a table: nobody reads more. */
const MAX_COLUMNS = 100;

/** @typedef {{type: string, number: number | null, columns: number, text: string}} Bullet  all items of a list have the same `type` */
/** @typedef {{label: string, href: string, title: string}} Definition */

/** The columns of a line's indentation. @param {string} line */
export function indentOf(line) {
  let columns = 0;
  for (const char of line) {
    if (char === " ") columns += 1;
    else if (char === "\t") columns += TAB_COLUMNS - (columns % TAB_COLUMNS);
    else break;
  }
  return columns;
}

/** A line without its first columns, as far as these are blank. @param {string} line @param {number} columns */
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

/** The heading in a line; null if there is none. @param {string} line @returns {{depth: number, text: string} | null} */
export function headingOf(line) {
  const found = HEADING.exec(line);
  if (found === null) return null;
  return { depth: found[1].length, text: line.slice(found[0].length).trim().replace(/(?:^|[ \t])#+$/, "").trim() };
}

/** The list item that a line begins; null if it begins none. @param {string} line @returns {Bullet | null} */
export function bulletOf(line) {
  const found = BULLET.exec(line);
  if (found === null || RULE.test(line)) return null;
  const [all, before, mark, digits, gap = ""] = found;
  const type = digits === undefined ? mark : mark.slice(-1);
  const marked = before.length + mark.length;
  const gapColumns = indentOf(" ".repeat(marked) + gap) - marked;
  // Text behind a wide gap is a code block in the item.
  const wide = gapColumns > CODE_COLUMNS;
  const columns = marked + (wide || gapColumns === 0 ? 1 : gapColumns);
  const text = wide ? dedent(" ".repeat(marked) + line.slice(marked), columns) : line.slice(all.length);
  return { type, number: digits === undefined ? null : Number(digits), columns, text };
}

/** 1 or 2 if a line under a paragraph makes it a heading; else null. @param {string} line */
export function underlineOf(line) {
  const found = UNDERLINE.exec(line);
  return found === null ? null : found[1] === undefined ? 2 : 1;
}

/** The definition of a link's label in a line; null if there is none. @param {string} line @returns {Definition | null} */
export function definitionOf(line) {
  const found = DEFINITION.exec(line);
  if (found === null) return null;
  const [, label, angled, bare, title = ""] = found;
  if (label.trim() === "") return null;
  return { label: labelOf(label), href: unescaped(angled ?? bare), title: unescaped(title.slice(1, -1)) };
}

/** Labels that differ only in case and blanks are the same. @param {string} label */
export function labelOf(label) {
  return label.trim().replaceAll(/\s+/g, " ").toLowerCase();
}

/** @param {string} text */
function unescaped(text) {
  return text.replaceAll(/\\([\p{P}\p{S}])/gu, "$1");
}

/**
 * The alignments of a table's columns, if these two lines begin a table; else null.
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
 * The formula that a line begins or is; null if there is none.
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
