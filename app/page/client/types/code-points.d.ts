/** Lengths and cuts in Unicode code points, which the protocol counts in (JavaScript strings count UTF-16 units). */
/** @param {string} text */
export declare function countCodePoints(text: string): number;
/**
 * The first `count` code points of `text`; all of it if it has fewer.
 * @param {string} text
 * @param {number} count
 */
export declare function takeCodePoints(text: string, count: number): string;
/**
 * `text` without its first `count` code points.
 * @param {string} text
 * @param {number} count
 */
export declare function dropCodePoints(text: string, count: number): string;
