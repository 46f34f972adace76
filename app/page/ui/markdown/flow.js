import { element } from "../elements/dom.js";
import { isShown, within } from "./blocks.js";
import { CodeView } from "./code-view.js";
import { TableView } from "./table-view.js";
import { DefinitionView, FormulaView, RuleView, TextView } from "./text-views.js";

/** @typedef {import("./blocks.js").Token} Token */
/** @typedef {import("./blocks.js").Definition} Definition */
/** @typedef {import("./links.js").Links} Links */
/**
 * The view of a block.
 * @typedef {object} View
 * @property {HTMLElement | Text} root
 * @property {(block: any) => void} show
 * @property {(labels: Set<string>) => void} [relink]  the links of these labels have changed
 * @property {() => Iterable<Definition>} [definitions]
 */

/** A sequence of blocks. A block that did not change keeps its elements. */
export class Flow {
  /** @type {{name: string, raw: string, view: View}[]} */ #shown = [];
  #root;
  #links;
  #outermost;

  /** @param {HTMLElement} root @param {Links} links @param {boolean} [outermost] */
  constructor(root, links, outermost = false) {
    this.#root = root;
    this.#links = links;
    this.#outermost = outermost;
  }

  /** @param {Token[]} blocks @param {number} [first]  the blocks before it stay as they are */
  show(blocks, first = 0) {
    const shown = blocks.filter(isShown);
    shown.forEach((block, index) => this.#put(first + index, block));
    this.#truncate(first + shown.length);
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    for (const { view } of this.#shown) view.relink?.(labels);
  }

  /** @returns {Generator<Definition>} */
  *definitions() {
    for (const { view } of this.#shown) yield* view.definitions?.() ?? [];
  }

  /** @param {number} index @param {Token} block */
  #put(index, block) {
    const name = nameOf(block);
    let shown = this.#shown[index];
    if (shown?.name === name && shown.raw === block.raw) return;
    if (shown?.name !== name) {
      this.#truncate(index);
      shown = { name, raw: "", view: this.#viewOf(name) };
      this.#root.append(shown.view.root);
      this.#shown.push(shown);
    }
    shown.raw = block.raw;
    shown.view.show(block);
  }

  /** @param {number} length */
  #truncate(length) {
    for (const { view } of this.#shown.splice(length)) {
      this.#links.stale ||= this.#links.any;
      view.root.remove();
    }
  }

  /** @param {string} name @returns {View} */
  #viewOf(name) {
    const view = this.#made(name);
    // Blocks within a block have its direction.
    if (this.#outermost && view.root instanceof HTMLElement && !view.root.hasAttribute("dir")) view.root.dir = "auto";
    return view;
  }

  /** @param {string} name @returns {View} */
  #made(name) {
    switch (name) {
      case "hr":
        return new RuleView();
      case "def":
        return new DefinitionView(this.#links);
      case "code":
        return new CodeView();
      case "formula":
        return new FormulaView();
      case "table":
        return new TableView(this.#links);
      case "blockquote":
        return new Container(element("blockquote"), this.#links);
      case "ol":
      case "ul":
        return new ListView(element(name), this.#links);
      default:
        return new TextView(element(/** @type {"p"} */ (name)), this.#links);
    }
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

/** A quote, or an item of a list: a block that has blocks within it. */
class Container extends Flow {
  /** @param {HTMLElement} root @param {Links} links */
  constructor(root, links) {
    super(root, links);
    this.root = root;
  }

  /** @param {any} block */
  show(block) {
    super.show(within(block));
  }
}

/** A list. If blank lines separate its items, a class gives them the distance of paragraphs, so a change costs nothing. */
class ListView {
  /** @type {Container[]} */ #items = [];
  #links;

  /** @param {HTMLElement} root @param {Links} links */
  constructor(root, links) {
    this.root = root;
    this.#links = links;
  }

  /** @param {import("./blocks.js").List} block */
  show({ start, items, loose }) {
    if (start !== "" && start !== 1) this.root.setAttribute("start", String(start));
    else this.root.removeAttribute("start");
    for (const { root } of this.#items.splice(items.length)) root.remove();
    items.forEach((item, index) => this.#itemAt(index).show(item));
    if (loose) this.root.className = "loose";
    else this.root.removeAttribute("class");
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    for (const item of this.#items) item.relink(labels);
  }

  *definitions() {
    for (const item of this.#items) yield* item.definitions();
  }

  /** @param {number} index */
  #itemAt(index) {
    if (index < this.#items.length) return this.#items[index];
    const item = new Container(element("li"), this.#links);
    this.#items.push(item);
    this.root.append(item.root);
    return item;
  }
}
