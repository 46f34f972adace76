import { blocksOf, isShown, within, changedLabels, definitionsIn, linksOf, mentions } from "../markdown/blocks.js";
import { element } from "../elements/dom.js";
import { CodeView } from "../markdown/code-view.js";
import { TableView } from "../markdown/table-view.js";
import { formulaElement } from "../markdown/formulas.js";
import { inline } from "../markdown/inline.js";
import { piecesOf } from "../markdown/pieces.js";

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
  /** The definitions of links in all blocks before that place. @type {import("../markdown/blocks.js").Definition[]} */ #definitions = [];
  /** @type {import("../markdown/inline.js").Links} */ #links = {};

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#flow = new Flow(root, { outermost: true });
  }

  /** @param {string} written */
  show(written) {
    const text = written.includes("\r") ? written.replaceAll(/\r\n?/g, "\n") : written;
    if (text === this.#text) return;
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

/** @typedef {import("../markdown/inline.js").Links} Links */
/**
 * The view of a block.
 * @typedef {object} View
 * @property {HTMLElement} root
 * @property {(block: any, links: Links) => void} show
 */

/** A sequence of blocks. A block that did not change keeps its elements. */
class Flow {
  /** @type {{name: string, raw: string, view: View}[]} */ #shown = [];

  #root;
  #outermost;

  /** @param {HTMLElement} root @param {{outermost: boolean}} how */
  constructor(root, { outermost }) {
    this.#root = root;
    this.#outermost = outermost;
  }

  /** @param {Token[]} blocks @param {Links} links @param {number} [first]  the blocks before it stay as they are */
  show(blocks, links, first = 0) {
    blocks.forEach((block, index) => this.#put(first + index, block, links));
    for (const { view } of this.#shown.splice(first + blocks.length)) view.root.remove();
  }

  /** Shows a block again, with new elements. @param {number} index @param {Token} block @param {Links} links */
  renew(index, block, links) {
    const shown = this.#shown[index];
    const view = this.#viewOf(shown.name);
    view.show(block, links);
    shown.view.root.replaceWith(view.root);
    shown.view = view;
  }

  /** @param {number} index @param {Token} block @param {Links} links */
  #put(index, block, links) {
    const name = nameOf(block);
    let shown = this.#shown[index];
    if (shown?.name === name && shown.raw === block.raw) return;
    if (shown?.name !== name) {
      for (const { view } of this.#shown.splice(index)) view.root.remove();
      shown = { name, raw: "", view: this.#viewOf(name) };
      this.#root.append(shown.view.root);
      this.#shown.push(shown);
    }
    shown.raw = block.raw;
    shown.view.show(block, links);
  }

  /** @param {string} name @returns {View} */
  #viewOf(name) {
    const view = viewOf(name);
    // Blocks within a block have its direction.
    if (this.#outermost && !view.root.hasAttribute("dir")) view.root.dir = "auto";
    return view;
  }
}

/** The name of a block's view. A view of another name can't show the block. @param {Token} block */
function nameOf(block) {
  switch (block.type) {
    case "heading":
      return `h${block.depth}`;
    case "list":
      return block.ordered ? "ol" : "ul";
    case "paragraph":
    case "text":
      return "p";
    default:
      return block.type;
  }
}

/** @param {string} name @returns {View} */
function viewOf(name) {
  switch (name) {
    case "hr":
      return { root: element("hr"), show() {} };
    case "code":
      return new CodeView();
    case "formula":
      return formulaView();
    case "table":
      return new TableView();
    case "blockquote":
      return new Container(element("blockquote"));
    case "list_item":
      return new Container(element("li"));
    case "ol":
    case "ul":
      return new ListView(element(name));
    default:
      return new TextView(element(/** @type {"p"} */ (name)));
  }
}

/** A quote, or an item of a list: a block that has blocks within it. */
class Container {
  #flow;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.#flow = new Flow(root, { outermost: false });
  }

  /** @param {any} block @param {Links} links */
  show(block, links) {
    this.#flow.show(within(block), links);
  }
}

/** A list. If blank lines separate its items, a class gives them the distance of paragraphs, so a change costs nothing. */
class ListView {
  #items;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.#items = new Flow(root, { outermost: false });
  }

  /** @param {import("../markdown/blocks.js").List} block @param {Links} links */
  show({ start, items, loose }, links) {
    if (start !== "" && start !== 1) this.root.setAttribute("start", String(start));
    else this.root.removeAttribute("start");
    this.#items.show(items, links);
    if (loose) this.root.className = "loose";
    else this.root.removeAttribute("class");
  }
}

/** A paragraph or a heading. Of a long one that grows, only the last piece is parsed again. */
class TextView {
  /** @type {{text: string, nodes: ChildNode[]}[]} */ #pieces = [];

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** @param {{text: string}} block @param {import("../markdown/inline.js").Links} links */
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

/** A formula of its own; shown as written until it is closed. @returns {View} */
function formulaView() {
  const root = element("div", { class: "formula-block", dir: "ltr" });
  const show = (/** @type {import("../markdown/blocks.js").Formula} */ { text, closed, written }) =>
    root.replaceChildren(closed ? formulaElement({ raw: written, text, display: true }) : written);
  return { root, show };
}
