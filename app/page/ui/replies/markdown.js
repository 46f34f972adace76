import { blocksOf, isShown } from "../markdown/blocks.js";
import { Flow } from "../markdown/flow.js";
import { changedLabels, definitionsIn, linksOf, mentions } from "../markdown/links.js";

/** @typedef {import("../markdown/blocks.js").Token} Token */

/**
 * Shows Markdown that grows. Finished blocks are parsed once and keep their elements. So selections in them stay, and a long
 * reply costs no more per frame than its last block. A text looks the same however it came.
 */
export class MarkdownView {
  #flow;
  #text = "";
  /** Where reading continues: the blocks before it no longer change, however the text grows. */
  #from = 0;
  /** Those blocks, as far as they are shown. @type {Token[]} */ #settled = [];
  /** The definitions of links in all blocks before that place. @type {import("../markdown/links.js").Definition[]} */ #definitions = [];
  /** @type {import("../markdown/inline.js").Links} */ #links = {};

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#flow = new Flow(root, { outermost: true });
  }

  /** @param {string} written */
  show(written) {
    const text = written.includes("\r") ? written.replaceAll(/\r\n?/g, "\n") : written;
    if (!text.startsWith(this.#text.slice(0, this.#from))) [this.#from, this.#settled, this.#definitions] = [0, [], []];
    this.#text = text;
    const blocks = blocksOf(text.slice(this.#from));
    const links = linksOf([...this.#definitions, ...blocks.flatMap(definitionsIn)]);
    const shown = blocks.filter(isShown);
    this.#flow.show(shown, links, this.#settled.length);
    this.#relink(shown, links);
    this.#settle(blocks);
  }

  /** Shows blocks again whose links have changed. @param {Token[]} open  the blocks after the settled ones @param {import("../markdown/inline.js").Links} links */
  #relink(open, links) {
    const changed = changedLabels(this.#links, links);
    this.#links = links;
    if (changed.size === 0) return;
    for (const [index, block] of [...this.#settled, ...open].entries()) {
      if (mentions(block.raw, changed)) this.#flow.renew(index, block, links);
    }
  }

  /**
   * The last line may still change, and with it the block before it: "1. a\n\n2" becomes one list, and two lines may become a
   * table. So the last shown block that begins before these stays open.
   * @param {Token[]} blocks
   */
  #settle(blocks) {
    const lastLines = this.#text.lastIndexOf("\n", this.#text.lastIndexOf("\n") - 1) + 1;
    let [at, open] = [this.#from, 0];
    for (const [index, block] of blocks.entries()) {
      if (at >= lastLines) break;
      if (isShown(block)) [this.#from, open] = [at, index];
      at += block.raw.length;
    }
    const settled = blocks.slice(0, open);
    this.#settled.push(...settled.filter(isShown));
    this.#definitions.push(...settled.flatMap(definitionsIn));
  }
}
