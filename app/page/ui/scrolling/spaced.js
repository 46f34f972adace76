import { element } from "../elements/dom.js";

/** @typedef {{name: string, height: number}} Space  `height`: in px, with one gap; `name`: the same as long as the space exists */

/** Lays out elements in order, with empty space for missing ones. Elements that stay are not moved, so they keep focus and selection. */
export class Spaced {
  #root;
  /** @type {Map<string, HTMLElement>} */ #spacers = new Map();
  /** The px between two elements. */
  gap = 0;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#root = root;
    this.measure();
  }

  /** Call when the layout may have changed. */
  measure() {
    this.gap = Number.parseFloat(getComputedStyle(this.#root).rowGap) || 0;
  }

  /** @param {(HTMLElement | Space)[]} parts */
  lay(parts) {
    const nodes = parts.map((one) => (one instanceof HTMLElement ? one : this.#spacer(one)));
    const staying = new Set(nodes);
    for (const child of [...this.#root.children]) if (!staying.has(/** @type {HTMLElement} */ (child))) child.remove();
    for (const [name, spacer] of this.#spacers) if (!staying.has(spacer)) this.#spacers.delete(name);
    let there = this.#root.firstElementChild;
    for (const node of nodes) {
      if (node === there) there = there.nextElementSibling;
      else this.#root.insertBefore(node, there);
    }
  }

  /** Changes the height of a space. @param {Space} space */
  resize({ name, height }) {
    const spacer = this.#spacers.get(name);
    if (spacer !== undefined) spacer.style.height = `${Math.max(0, height - this.gap)}px`;
  }

  /** @param {Space} space */
  #spacer(space) {
    let spacer = this.#spacers.get(space.name);
    if (spacer === undefined) {
      spacer = element("div", { class: "space", "aria-hidden": "true" });
      this.#spacers.set(space.name, spacer);
    }
    this.resize(space);
    return spacer;
  }
}
