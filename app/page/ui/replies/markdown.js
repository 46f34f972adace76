import { blocksOf, isShown } from "../markdown/blocks.js";
import { Flow } from "../markdown/flow.js";
import { Links } from "../markdown/links.js";

/**
 * Shows Markdown that grows. Finished blocks are parsed once and keep their elements. So selections in them stay, and a long
 * reply costs no more per frame than its last block. A text looks the same however it came.
 */
export class MarkdownView {
  #links = new Links();
  #flow;
  #text = "";
  /** Where reading continues: the blocks before it no longer change, however the text grows. */
  #from = 0;
  #settled = 0;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#flow = new Flow(root, this.#links, true);
  }

  /** @param {string} written */
  show(written) {
    const text = written.includes("\r") ? written.replaceAll(/\r\n?/g, "\n") : written;
    if (!text.startsWith(this.#text.slice(0, this.#from))) [this.#from, this.#settled] = [0, 0];
    this.#text = text;
    const blocks = blocksOf(text.slice(this.#from));
    this.#flow.show(blocks, this.#settled);
    this.#settle(blocks);
    if (!this.#links.stale) return;
    const moved = this.#links.take(this.#flow.definitions());
    if (moved.size > 0) this.#flow.relink(moved);
  }

  /**
   * The last line may still change, and with it the block before it: "1. a\n\n2" becomes one list, and two lines may become a
   * table. So the last block that begins before these stays open.
   * @param {import("../markdown/blocks.js").Token[]} blocks
   */
  #settle(blocks) {
    const lastLines = this.#text.lastIndexOf("\n", this.#text.lastIndexOf("\n") - 1) + 1;
    let at = this.#from;
    let index = this.#settled;
    for (const block of blocks) {
      if (at >= lastLines) return;
      if (isShown(block)) [this.#from, this.#settled] = [at, index++];
      at += block.raw.length;
    }
  }
}
