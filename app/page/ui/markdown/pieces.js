/** Cuts texts that are too long to be parsed and laid out at once. Pure. A growing text is cut at the same places again. */

/** UTF-16 units of a paragraph that are parsed at once. */
const MAX_UNITS = 2000;
const MAX_LINES = 30;
/** The longest line that is coloured. People don't read longer ones, and they cost a highlighter too much. */
const MAX_LINE_UNITS = 1000;

/** A paragraph in pieces. Each ends at a blank, if there is one. @param {string} text @returns {string[]} */
export function piecesOf(text) {
  const pieces = [];
  let at = 0;
  while (text.length - at > MAX_UNITS) {
    const end = at + cutOf(text.slice(at, at + MAX_UNITS));
    pieces.push(text.slice(at, end));
    at = end;
  }
  return [...pieces, text.slice(at)];
}

/** @param {string} piece */
function cutOf(piece) {
  const blank = Math.max(piece.lastIndexOf("\n"), piece.lastIndexOf(" "));
  if (blank >= MAX_UNITS / 2) return blank;
  const last = piece.charCodeAt(MAX_UNITS - 1);
  return last >= 0xd800 && last < 0xdc00 ? MAX_UNITS - 1 : MAX_UNITS;
}

/**
 * Where the piece of code ends that begins here: behind some whole lines; null if it is not full yet.
 * @param {string} text
 * @param {number} start
 */
export function pieceEnd(text, start) {
  let end = start;
  for (let lines = 0; lines < MAX_LINES && end - start < MAX_UNITS; lines += 1) {
    const newline = text.indexOf("\n", end);
    if (newline === -1) return null;
    end = newline + 1;
  }
  return end;
}

/** Whether a piece of code has a line that is too long. @param {string} piece */
export function hasLongLine(piece) {
  return piece.split("\n").some((line) => line.length > MAX_LINE_UNITS);
}
