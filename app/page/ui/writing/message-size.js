import { countCodePoints } from "../../client/code-points.js";
import { number, t } from "../words/translate.js";

/** @typedef {{max_content_chars: number, max_frame_bytes: number}} Limits */
/** @typedef {{near: boolean, over: boolean, words: string}} Size */

/** From this share of a limit on, the user sees how much of it is used. */
const NEAR = 0.9;
/** The bytes of a frame beside its text: its type, ids and parameters. */
const FRAME_BYTES = 1024;
const FITS = Object.freeze({ near: false, over: false, words: "" });

/**
 * A message's size beside the limits of the service, which counts code points of the text and bytes of the frame.
 * @param {string} text
 * @param {Limits | null} limits  null until they are known; then anything fits
 * @returns {Size}
 */
export function sizeOf(text, limits) {
  // No text has more code points than UTF-16 units, or more than six bytes of JSON for each unit.
  if (limits === null || text.length * 6 < NEAR * Math.min(limits.max_content_chars, limits.max_frame_bytes - FRAME_BYTES)) return FITS;
  const chars = { used: countCodePoints(text), limit: limits.max_content_chars };
  const bytes = { used: bytesOf(text), limit: limits.max_frame_bytes - FRAME_BYTES };
  const tight = chars.used / chars.limit >= bytes.used / bytes.limit ? wordsOf(chars) : wordsInKilobytes(bytes);
  const share = Math.max(chars.used / chars.limit, bytes.used / bytes.limit);
  return share < NEAR ? FITS : { near: true, over: share > 1, words: tight };
}

/** @param {string} text */
function bytesOf(text) {
  return new TextEncoder().encode(JSON.stringify(text)).length;
}

/** @param {{used: number, limit: number}} size */
function wordsOf({ used, limit }) {
  return t("{used} of {limit} characters", { used: number(used), limit: number(limit) });
}

/** @param {{used: number, limit: number}} size */
function wordsInKilobytes({ used, limit }) {
  return t("{used} of {limit} KB", { used: number(Math.ceil(used / 1024)), limit: number(Math.floor(limit / 1024)) });
}
