import { countCodePoints } from "../../client/code-points.js";
import { number, t } from "../words/translate.js";

/** @typedef {{max_content_chars: number, max_frame_bytes: number}} Limits */
/** @typedef {{near: boolean, over: boolean, words: string}} Size */

/** From this share of a limit on, people are told how much of it they have used. */
const NEAR = 0.9;
/** What a frame has beside the text of its message: its type, ids and words on how the reply is made. */
const FRAME_BYTES = 1024;
const FITS = Object.freeze({ near: false, over: false, words: "" });

/**
 * How a message stands to the limits of the service, which counts code points of the text and bytes of its frame.
 * @param {string} text
 * @param {Limits | null} limits  null until they are known: then anything fits
 * @returns {Size}
 */
export function sizeOf(text, limits) {
  // No text has more code points than UTF-16 units, nor more than six bytes of JSON for each of these.
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
