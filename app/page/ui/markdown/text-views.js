import { element } from "../elements/dom.js";
import { formulaElement } from "./formulas.js";
import { inline } from "./inline.js";
import { piecesOf } from "./pieces.js";

/** Views of blocks with lines of text. */

/** A paragraph or a heading. Of a long one that grows, only the last piece is parsed again. */
export class TextView {
  /** @type {{text: string, nodes: ChildNode[]}[]} */ #pieces = [];

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** @param {{text: string}} block @param {import("./inline.js").Links} links */
  show({ text }, links) {
    const texts = piecesOf(text.trimEnd());
    const differs = texts.findIndex((piece, index) => piece !== this.#pieces[index]?.text);
    for (const { nodes } of this.#pieces.splice(differs === -1 ? texts.length : differs)) for (const node of nodes) node.remove();
    for (const piece of texts.slice(this.#pieces.length)) {
      const made = inline(piece, links);
      this.#pieces.push({ text: piece, nodes: made instanceof DocumentFragment ? [...made.childNodes] : [made] });
      this.root.append(made);
    }
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
