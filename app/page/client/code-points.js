/** Lengths and cuts in Unicode code points, which the protocol counts in (JavaScript strings count UTF-16 units). */

/** @param {string} text */
export function countCodePoints(text) {
  let count = 0;
  for (let index = 0; index < text.length; index += unitsAt(text, index)) count += 1;
  return count;
}

/**
 * The first `count` code points of `text`; all of it if it has fewer.
 * @param {string} text
 * @param {number} count
 */
export function takeCodePoints(text, count) {
  return text.slice(0, unitIndex(text, count));
}

/**
 * `text` without its first `count` code points.
 * @param {string} text
 * @param {number} count
 */
export function dropCodePoints(text, count) {
  return text.slice(unitIndex(text, count));
}

/**
 * @param {string} text
 * @param {number} count
 */
function unitIndex(text, count) {
  let index = 0;
  for (let left = count; left > 0 && index < text.length; left -= 1) index += unitsAt(text, index);
  return index;
}

/**
 * @param {string} text
 * @param {number} index
 */
function unitsAt(text, index) {
  return /** @type {number} */ (text.codePointAt(index)) > 0xffff ? 2 : 1;
}
