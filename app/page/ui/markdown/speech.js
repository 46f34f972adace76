import { blocksOf } from "./blocks/blocks.js";
import { MAX_DEPTH } from "./blocks/containers.js";
import { cellsOf } from "./blocks/lines.js";
import { piecesOf } from "./blocks/pieces.js";
import { wordsIn } from "./inline.js";
import { Links } from "./links.js";
import { later } from "./slices.js";

/** @typedef {import("./blocks/leaves.js").Block} Block */
/** @typedef {import("./inline.js").Links} Known */

/**
 * A text for those who hear it: words without the marks of Markdown, with a line for each block, item and row.
 * @param {string} markdown
 * @returns {Promise<string>}
 */
export function spoken(markdown) {
  const text = markdown.replaceAll(/\r\n?/g, "\n");
  const links = new Links();
  links.take(blocksOf(text).blocks.flatMap(({ block }) => (block.kind === "definition" ? [block.definition] : [])));
  const lines = linesOf(text, links.known, 0);
  return new Promise((resolve) => gather(lines, [], resolve));
}

/** @param {Iterator<string>} lines @param {string[]} heard @param {(text: string) => void} resolve */
function gather(lines, heard, resolve) {
  const { value, done } = lines.next();
  if (done) return resolve(heard.join("\n"));
  if (value !== "") heard.push(value);
  later.add(() => gather(lines, heard, resolve));
}

/** @param {string} text @param {Known} links @param {number} depth @returns {Generator<string>} */
function* linesOf(text, links, depth) {
  if (depth > MAX_DEPTH) return yield text;
  for (const { block } of blocksOf(text).blocks) yield* linesOfBlock(block, links, depth);
}

/** @param {Block} block @param {Known} links @param {number} depth @returns {Generator<string>} */
function* linesOfBlock(block, links, depth) {
  switch (block.kind) {
    case "paragraph":
    case "heading":
      return yield words(block.text, links);
    case "code":
    case "formula":
      return yield block.text;
    case "table":
      for (const row of [block.head, ...block.rows.map(cellsOf)]) yield row.map((cell) => words(cell, links)).join(", ");
      return;
    case "quote":
      return yield* linesOf(block.text, links, depth + 1);
    case "list":
      for (const item of block.items) yield* linesOf(item, links, depth + 1);
  }
}

/** @param {string} text @param {Known} links */
function words(text, links) {
  return piecesOf(text).map((piece) => wordsIn(piece, links)).join("");
}
