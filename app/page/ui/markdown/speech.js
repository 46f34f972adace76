import { blocksOf, within, definitionsIn, linksOf } from "./blocks.js";
import { wordsIn } from "./inline.js";
import { piecesOf } from "./pieces.js";
import { later } from "./slices.js";

/** @typedef {import("./blocks.js").Token} Token */
/** @typedef {import("./inline.js").Links} Known */

/**
 * A text for those who hear it: words without the marks of Markdown, with a line for each block, item and row.
 * @param {string} markdown
 * @returns {Promise<string>}
 */
export function spoken(markdown) {
  const blocks = blocksOf(markdown.replaceAll(/\r\n?/g, "\n"));
  const lines = linesOf(blocks, linksOf(blocks.flatMap(definitionsIn)));
  return new Promise((resolve) => gather(lines, [], resolve));
}

/** @param {Iterator<string>} lines @param {string[]} heard @param {(text: string) => void} resolve */
function gather(lines, heard, resolve) {
  const { value, done } = lines.next();
  if (done) return resolve(heard.join("\n"));
  if (value !== "") heard.push(value);
  later.add(() => gather(lines, heard, resolve));
}

/** @param {Token[]} blocks @param {Known} links @returns {Generator<string>} */
function* linesOf(blocks, links) {
  for (const block of blocks) {
    if (block.type === "paragraph" || block.type === "text" || block.type === "heading") yield words(block.text, links);
    else if (block.type === "code" || block.type === "formula") yield block.text;
    else if (block.type === "blockquote") yield* linesOf(within(block), links);
    else if (block.type === "list") for (const item of block.items) yield* linesOf(within(item), links);
    else if (block.type === "table") {
      for (const row of [block.header, ...block.rows]) yield row.map((/** @type {any} */ { text }) => words(text, links)).join(", ");
    }
  }
}

/** @param {string} text @param {Known} links */
function words(text, links) {
  return piecesOf(text).map((piece) => wordsIn(piece, links)).join("");
}
