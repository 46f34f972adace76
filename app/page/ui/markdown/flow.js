import { element } from "../elements/dom.js";
import { within } from "./blocks.js";
import { CodeView } from "./code-view.js";
import { TableView } from "./table-view.js";
import { FormulaView, TextView } from "./text-views.js";

/** @typedef {import("./blocks.js").Token} Token */
/** @typedef {import("./inline.js").Links} Links */
/**
 * The view of a block.
 * @typedef {object} View
 * @property {HTMLElement} root
 * @property {(block: any, links: Links) => void} show
 */

/** A sequence of blocks. A block that did not change keeps its elements. */
export class Flow {
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
      return new FormulaView();
    case "table":
      return new TableView();
    case "blockquote":
      return new Container(element("blockquote"));
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
  /** @type {Container[]} */ #items = [];

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** @param {import("./blocks.js").List} block @param {Links} links */
  show({ start, items, loose }, links) {
    if (start !== "" && start !== 1) this.root.setAttribute("start", String(start));
    else this.root.removeAttribute("start");
    for (const { root } of this.#items.splice(items.length)) root.remove();
    items.forEach((item, index) => this.#itemAt(index).show(item, links));
    if (loose) this.root.className = "loose";
    else this.root.removeAttribute("class");
  }

  /** @param {number} index */
  #itemAt(index) {
    if (index < this.#items.length) return this.#items[index];
    const item = new Container(element("li"));
    this.#items.push(item);
    this.root.append(item.root);
    return item;
  }
}
