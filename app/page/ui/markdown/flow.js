import { element } from "../elements/dom.js";
import { blocksOf } from "./blocks/blocks.js";
import { CodeView } from "./code-view.js";
import { MAX_DEPTH, MAX_ITEMS } from "./blocks/containers.js";
import { TableView } from "./table-view.js";
import { DefinitionView, FormulaView, PlainView, RuleView, TextView } from "./text-views.js";

/** @typedef {import("./blocks/blocks.js").Placed} Placed */
/** @typedef {import("./blocks/leaves.js").Block} Block */
/** @typedef {import("./links.js").Links} Links */
/**
 * The view of a block.
 * @typedef {object} View
 * @property {HTMLElement | Text} root
 * @property {(block: any) => void} show
 * @property {(labels: Set<string>) => void} [relink]  the links of these labels have changed
 * @property {() => Iterable<import("./blocks/lines.js").Definition>} [definitions]
 */
/** @typedef {{name: string, placed: Placed, view: View}} Shown */


/** Shows a growing text as a sequence of blocks. Settled blocks are neither read nor shown again. */
export class Flow {
  /** @type {Shown[]} */ #shown = [];
  #settled = 0;
  #text = "";
  #root;
  #links;
  #depth;
  /** @type {PlainView | null} */ #plain = null;

  /** @param {HTMLElement} root @param {Links} links @param {number} depth  the number of quotes and items around it */
  constructor(root, links, depth) {
    this.#root = root;
    this.#links = links;
    this.#depth = depth;
  }

  /** Whether a blank line separates two of the blocks. */
  get loose() {
    return this.#shown.some(({ placed }, index) => index > 0 && placed.gap);
  }

  /** @param {string} text */
  show(text) {
    if (text === this.#text) return;
    if (this.#depth > MAX_DEPTH) return this.#showPlain(text);
    const from = this.#from(text);
    this.#text = text;
    const { blocks, settled } = blocksOf(text, from);
    const first = this.#settled;
    const gap = this.#shown[first]?.placed.gap ?? false;
    blocks.forEach((placed, index) => this.#put(first + index, index === 0 ? { ...placed, gap } : placed));
    this.#truncate(first + blocks.length);
    // The last one is read again: its end tells whether a blank line follows it.
    this.#settled = first + Math.max(0, Math.min(settled, blocks.length - 1));
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    for (const { view } of this.#shown) view.relink?.(labels);
  }

  /** @returns {Generator<import("./blocks/lines.js").Definition>} */
  *definitions() {
    for (const { view } of this.#shown) yield* view.definitions?.() ?? [];
  }

  /** Where reading goes on: behind the settled blocks, or at the start if this text begins otherwise. @param {string} text */
  #from(text) {
    const from = this.#shown[this.#settled]?.placed.start ?? 0;
    if (text.startsWith(this.#text.slice(0, from))) return from;
    this.#truncate(0);
    this.#settled = 0;
    return 0;
  }

  /** @param {string} text */
  #showPlain(text) {
    this.#text = text;
    this.#plain ??= new PlainView();
    this.#plain.show(text);
    this.#root.append(this.#plain.root);
  }

  /** @param {number} index @param {Placed} placed */
  #put(index, placed) {
    const block = continued(placed, this.#shown[index - 1]?.placed.block);
    const name = nameOf(block);
    let shown = this.#shown[index];
    if (shown?.name !== name) {
      this.#truncate(index);
      shown = { name, placed, view: this.#viewOf(block, name) };
      this.#root.append(shown.view.root);
      this.#shown.push(shown);
    }
    shown.placed = { ...placed, block };
    shown.view.show(block);
  }

  /** @param {number} length */
  #truncate(length) {
    for (const { view } of this.#shown.splice(length)) {
      this.#links.stale ||= this.#links.any;
      view.root.remove();
    }
  }

  /** @param {Block} block @param {string} name @returns {View} */
  #viewOf(block, name) {
    const view = this.#made(block, name);
    // Blocks within a block have its direction.
    if (this.#depth === 0 && view.root instanceof HTMLElement && !view.root.hasAttribute("dir")) view.root.dir = "auto";
    return view;
  }

  /** @param {Block} block @param {string} name @returns {View} */
  #made({ kind }, name) {
    switch (kind) {
      case "paragraph":
      case "heading":
        return new TextView(element(/** @type {"p"} */ (name)), this.#links);
      case "rule":
        return new RuleView();
      case "definition":
        return new DefinitionView(this.#links);
      case "code":
        return new CodeView();
      case "formula":
        return new FormulaView();
      case "table":
        return new TableView(this.#links);
      case "quote":
        return new QuoteView(this.#links, this.#depth + 1);
      case "list":
        return new ListView(element(/** @type {"ol" | "ul"} */ (name)), this.#links, this.#depth + 1);
    }
  }
}

/** The name of a block's view. A view of another name can't show the block. @param {Block} block */
function nameOf(block) {
  if (block.kind === "paragraph") return "p";
  if (block.kind === "heading") return `h${block.depth}`;
  if (block.kind === "list") return block.start === null ? "ul" : "ol";
  return block.kind;
}

/** A list that continues the numbers of the full one before it. @param {Placed} placed @param {Block | undefined} before @returns {Block} */
function continued({ block, gap }, before) {
  if (block.kind !== "list" || before?.kind !== "list" || before.items.length < MAX_ITEMS) return block;
  if ((block.start === null) !== (before.start === null)) return block;
  const start = before.start === null ? null : before.start + before.items.length;
  return { ...block, start, loose: block.loose || before.loose || gap };
}

class QuoteView {
  root = element("blockquote");
  #flow;

  /** @param {Links} links @param {number} depth */
  constructor(links, depth) {
    this.#flow = new Flow(this.root, links, depth);
  }

  /** @param {import("./blocks/leaves.js").Quote} block */
  show({ text }) {
    this.#flow.show(text);
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    this.#flow.relink(labels);
  }

  definitions() {
    return this.#flow.definitions();
  }
}

/** A list. If blank lines separate its items, a class gives them the distance of paragraphs, so a change costs nothing. */
class ListView {
  /** @type {{root: HTMLElement, flow: Flow}[]} */ #items = [];
  #links;
  #depth;

  /** @param {HTMLElement} root @param {Links} links @param {number} depth */
  constructor(root, links, depth) {
    this.root = root;
    this.#links = links;
    this.#depth = depth;
  }

  /** @param {import("./blocks/leaves.js").List} block */
  show({ start, items, loose }) {
    if (start !== null && start !== 1) this.root.setAttribute("start", String(start));
    else this.root.removeAttribute("start");
    items.forEach((text, index) => this.#itemAt(index).flow.show(withBox(text)));
    for (const { root } of this.#items.splice(items.length)) root.remove();
    const apart = loose || this.#items.some(({ flow }) => flow.loose);
    if (apart !== this.root.classList.contains("loose")) this.root.classList.toggle("loose", apart);
    if (this.root.classList.length === 0) this.root.removeAttribute("class");
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    for (const { flow } of this.#items) flow.relink(labels);
  }

  *definitions() {
    for (const { flow } of this.#items) yield* flow.definitions();
  }

  /** @param {number} index */
  #itemAt(index) {
    if (index < this.#items.length) return this.#items[index];
    const root = element("li");
    this.#items.push({ root, flow: new Flow(root, this.#links, this.#depth) });
    this.root.append(root);
    return this.#items[index];
  }
}

/** The character for a task's box. @param {string} text */
function withBox(text) {
  return text.replace(/^\[([ xX])\][ \t]+(?=\S)/, (_, mark) => (mark === " " ? "☐ " : "☑ "));
}
