import { element } from "../elements/dom.js";
import { formulaElement } from "./formulas.js";
import { inline } from "./inline.js";
import { mentions } from "./links.js";
import { piecesOf } from "./pieces.js";

/** Views of blocks with lines of text, and of empty ones. */

/** @typedef {import("./links.js").Links} Links */
/** @typedef {{text: string, nodes: ChildNode[]}} Piece */

/** A paragraph or a heading. Of a long one that grows, only the last piece is parsed again. */
export class TextView {
  /** @type {Piece[]} */ #pieces = [];
  #links;

  /** @param {HTMLElement} root @param {Links} links */
  constructor(root, links) {
    this.root = root;
    this.#links = links;
  }

  /** @param {{text: string}} block */
  show({ text }) {
    const texts = piecesOf(text.trimEnd());
    const differs = texts.findIndex((piece, index) => piece !== this.#pieces[index]?.text);
    for (const { nodes } of this.#pieces.splice(differs === -1 ? texts.length : differs)) for (const node of nodes) node.remove();
    for (const piece of texts.slice(this.#pieces.length)) this.#pieces.push({ text: piece, nodes: this.#put(piece, null) });
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    for (const piece of this.#pieces) {
      if (piece.nodes.length === 0 || !mentions(piece.text, labels)) continue;
      const mark = document.createTextNode("");
      piece.nodes[0].before(mark);
      for (const node of piece.nodes) node.remove();
      piece.nodes = this.#put(piece.text, mark);
      mark.remove();
    }
  }

  /** @param {string} text @param {ChildNode | null} before */
  #put(text, before) {
    const made = inline(text, this.#links.known);
    const nodes = made instanceof DocumentFragment ? [...made.childNodes] : [made];
    this.root.insertBefore(made, before);
    return nodes;
  }
}

/** A formula of its own; shown as written until it is closed. */
export class FormulaView {
  root = element("div", { class: "formula-block", dir: "ltr" });
  #key = "";

  /** @param {import("./blocks.js").Formula} block */
  show({ text, closed, written }) {
    const key = `${closed} ${written}`;
    if (key === this.#key) return;
    this.#key = key;
    this.root.replaceChildren(closed ? formulaElement({ raw: written, text, display: true }) : written);
  }
}

export class RuleView {
  root = element("hr");

  show() {}
}

/** The definition of a link, which is not shown. */
export class DefinitionView {
  root = document.createTextNode("");
  /** @type {import("./blocks.js").Definition[]} */ #definitions = [];
  #links;

  /** @param {Links} links */
  constructor(links) {
    this.#links = links;
  }

  /** @param {import("./blocks.js").Definition} block */
  show(block) {
    this.#links.stale = true;
    this.#definitions = [block];
  }

  definitions() {
    return this.#definitions;
  }
}
