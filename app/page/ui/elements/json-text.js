/** Lays out JSON text for people without parsing it: all of it is shown, even a name that comes twice. Pure. */

const INDENT = "  ";
/** The deepest nesting that is indented. */
const DEEPEST = 16;
/** A longer text is shown as it is. */
const LONGEST = 100_000;

/** Strings, brackets, commas and colons; blanks between them mean nothing. */
const PIECES = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/gs;
/** Characters that are invisible, or that reverse the order of others. In a string they could make one text look like another. */
const UNSEEN = /[\p{C}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u2800]/gu;

/**
 * The text of a JSON object with a line for each member. Invisible characters are escaped as in JSON.
 * @param {string} text
 */
export function laidOut(text) {
  if (text.length > LONGEST) return text;
  const pieces = text.match(PIECES) ?? [];
  let depth = 0;
  let lines = "";
  pieces.forEach((piece, index) => {
    const opens = piece === "{" || piece === "[";
    const empty = opens && (pieces[index + 1] === "}" || pieces[index + 1] === "]");
    const closes = piece === "}" || piece === "]";
    const closesEmpty = closes && (pieces[index - 1] === "{" || pieces[index - 1] === "[");
    if (opens) depth += 1;
    if (closes) depth -= 1;
    if (closes && !closesEmpty) lines += newLine(depth);
    lines += seen(piece);
    if ((opens && !empty) || piece === ",") lines += newLine(depth);
    if (piece === ":") lines += " ";
  });
  return lines;
}

/** @param {number} depth */
function newLine(depth) {
  return `\n${INDENT.repeat(Math.max(0, Math.min(depth, DEEPEST)))}`;
}

/** @param {string} piece */
function seen(piece) {
  const spelled = (/** @type {string} */ unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return piece.replaceAll(UNSEEN, (char) => char.replaceAll(/[^]/g, spelled));
}
