/** Lays out JSON text for people without parsing it: all of it is shown, even a name that comes twice. Pure. */

const INDENT = "  ";
/** The deepest nesting that is indented. */
const DEEPEST = 16;
/** A longer text is shown as it is. */
const LONGEST = 100_000;

/** Strings, empty objects and lists, brackets, commas, colons and other words; blanks between them mean nothing. */
const PIECES = /"(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[{}[\],:]|[^\s"{}[\],:]+|\s+/gs;
/** Characters that are invisible, or that reverse the order of others. In a string they could make one text look like another. */
const UNSEEN = /[\p{C}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u2800]/gu;

/**
 * The text of a JSON object with a line for each member. Invisible characters are escaped as in JSON.
 * @param {string} text
 */
export function laidOut(text) {
  if (text.length > LONGEST) return text;
  let depth = 0;
  const newLine = (/** @type {number} */ step) => {
    depth += step;
    return `\n${INDENT.repeat(Math.max(0, Math.min(depth, DEEPEST)))}`;
  };
  return text.replaceAll(PIECES, (piece) => {
    if (piece === "{" || piece === "[") return piece + newLine(1);
    if (piece === "}" || piece === "]") return newLine(-1) + piece;
    if (piece === ",") return piece + newLine(0);
    if (piece === ":") return ": ";
    return /^[\s{[]/.test(piece) ? piece.replaceAll(/\s/g, "") : seen(piece);
  });
}

/** @param {string} piece */
function seen(piece) {
  const spelled = (/** @type {string} */ unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return piece.replaceAll(UNSEEN, (char) => char.replaceAll(/[^]/g, spelled));
}
