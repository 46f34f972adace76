/** Cuts texts that are too long to be parsed and laid out at once. Pure; a text that grows is cut where it was cut before. */

/** UTF-16 units that are read at once for what is within lines. */
const MAX_UNITS = 2000;
const MAX_LINES = 30;
/** A line longer than this is not read by people, and costs a highlighter too much. */
const MAX_LINE_UNITS = 1000;

/** A paragraph in pieces, each up to a blank where there is one. @param {string} text @returns {string[]} */
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
 * Where a piece of code that begins here ends: behind some whole lines; null where it is not full yet.
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

/** Whether a piece of code has a line that nobody reads. @param {string} piece */
export function hasLongLine(piece) {
  let at = 0;
  for (let end = piece.indexOf("\n"); end !== -1; end = piece.indexOf("\n", at)) {
    if (end - at > MAX_LINE_UNITS) return true;
    at = end + 1;
  }
  return piece.length - at > MAX_LINE_UNITS;
}
