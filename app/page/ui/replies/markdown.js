import { Flow } from "../markdown/flow.js";
import { Links } from "../markdown/links.js";

/**
 * Shows Markdown that grows. Finished blocks are parsed once and keep their elements. So selections in them stay, and a long
 * reply costs no more per frame than its last block. A text looks the same however it came.
 */
export class MarkdownView {
  #links = new Links();
  #flow;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#flow = new Flow(root, this.#links, 0);
  }

  /** @param {string} text */
  show(text) {
    this.#flow.show(text.includes("\r") ? text.replaceAll(/\r\n?/g, "\n") : text);
    if (!this.#links.stale) return;
    const moved = this.#links.take(this.#flow.definitions());
    if (moved.size > 0) this.#flow.relink(moved);
  }
}
