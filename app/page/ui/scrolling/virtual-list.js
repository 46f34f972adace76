import { element } from "../elements/dom.js";

/** @typedef {{height: number, nodes: number}} Size  `height`: in px, with the gap below; `nodes`: in the document */
/** @typedef {{name: string, height: number}} Space  `height`: in px, with one gap; `name`: the same as long as the space exists */
/** @typedef {{element: Element, top: number}} Mark  `top`: px below the top of the view */
/**
 * @typedef {object} Source
 * @property {(index: number) => HTMLElement} element         makes the element of an item that comes into the document
 * @property {(key: string) => void} dropped                  the element of an item has left it
 * @property {(index: number) => Size} guess  the size of an item that was never in the document
 */

/** What is always in the document: the view, and half of one on each side, within a number of nodes. */
const NEEDED = { views: 0.5, nodes: 1_500 };
/** What is added in the next frames: a slow scroll finds it ready, and search, copying and reading aloud find more. */
const WANTED = { views: 6, nodes: 900 };
/** Items that a frame adds on each side. */
const STEP = 2;
/** How often a view is filled: wrong guesses may leave a part of it empty until sizes are measured. */
const ROUNDS = 4;
/** The most nodes of a selection that stays in the document when it is out of the view. */
const SELECTED_NODES = 600;
/** Elements that are not searched for the part that is read: code and tables contain no blocks, but maybe thousands of nodes. */
const WHOLE = "p, pre, table, svg, math, form";
const DEEPEST = 8;

/**
 * A list of any length. Only items near the view are in the document. What is read stays in place, whatever comes, goes or
 * grows above it: the space for missing items takes up the difference, else the view is moved.
 */
export class VirtualList {
  #scroller;
  #root;
  #follow;
  #source;
  /** @type {string[]} */ #keys = [];
  /** @type {Size[]} The items' sizes: measured if they were in the document, else guessed. */ #sizes = [];
  /** @type {Map<string, Size>} */ #measured = new Map();
  /** @type {Map<string, number>} */ #indexOf = new Map();
  /** @type {Map<string, HTMLElement>} The elements in the document. */ #elements = new Map();
  /** @type {Span} */ #span = { from: 0, to: 0 };
  /** @type {(Mark & {key: string})[]} The items in view, from the top. */ #inView = [];
  /** @type {Mark | null} The part of the first of them at the top of the view: what is read in a long item. */ #readPart = null;
  /** @type {Map<string, HTMLElement>} The elements that stand for missing items. */ #spacers = new Map();
  /** The px between two elements. */ #gap = 0;
  /** The space right above the span: its items, and how much its height differs from their guessed heights. */
  #lead = { from: 0, to: 0, drift: 0 };
  #frameRequested = false;
  /** Whether all items are in the document, since it is being printed. */
  #whole = false;
  #observer = new ResizeObserver(() => this.#grown());

  /**
   * @param {object} parts
   * @param {HTMLElement} parts.scroller
   * @param {HTMLElement} parts.root       the elements' parent, in the scroller
   * @param {import("./follow.js").Follow} parts.follow
   * @param {Source} parts.source
   */
  constructor({ scroller, root, follow, source }) {
    this.#scroller = scroller;
    this.#root = root;
    this.#follow = follow;
    this.#source = source;
    this.#measureGap();
    new ResizeObserver(() => this.#resized()).observe(scroller);
    addEventListener("beforeprint", () => this.#print(true));
    addEventListener("afterprint", () => this.#print(false));
  }

  /** The indices of the items in the document. */
  get indices() {
    return [...this.#elements.keys()].map((key) => /** @type {number} */ (this.#indexOf.get(key)));
  }

  /** Takes the current items; `place` shows them. @param {string[]} keys */
  arrange(keys) {
    this.#keys = keys;
    this.#indexOf = new Map(keys.map((key, index) => [key, index]));
    for (const key of this.#measured.keys()) if (!this.#indexOf.has(key)) this.#measured.delete(key);
    this.#sizes = keys.map((key, index) => this.#measured.get(key) ?? this.#source.guess(index));
    this.#inView = this.#inView.filter(({ key }) => this.#indexOf.has(key));
    for (const key of this.#elements.keys()) if (!this.#indexOf.has(key)) this.#drop(key);
    this.#span = this.#stillThere();
    this.#lead.drift = 0;
  }

  /** Call when the view was scrolled. */
  scrolled() {
    this.#hold();
    this.place();
  }

  /** Goes to the first item. */
  toStart() {
    this.#follow.following = false;
    this.#scroller.scrollTop = 0;
    this.scrolled();
  }

  /** Brings an item into the middle of the view; returns its element, or null if there is no such item. @param {string} key */
  reveal(key) {
    const index = this.#indexOf.get(key);
    if (index === undefined) return null;
    this.#follow.following = false;
    this.#lead.drift = 0;
    const view = this.#scroller.clientHeight;
    this.#lay(spanAround({ index, top: view / 2 }, view, this.#sizes, { margin: NEEDED.views * view, nodes: NEEDED.nodes }));
    const element = this.#elementOf(key);
    element.scrollIntoView({ block: "center", behavior: "instant" });
    this.scrolled();
    return element;
  }

  /** Updates the document, then brings what was in view back to its place, or the end into view. */
  place() {
    if (this.#whole) return this.#lay({ from: 0, to: this.#keys.length });
    for (let round = 0; round < ROUNDS; round += 1) {
      const span = nextSpan(this.#span, { ...this.#aim(), step: round === 0 ? STEP : 0 });
      if (round > 0 && isSame(span, this.#span)) break;
      this.#lay(span);
      this.#bringBack();
      if (this.#inView.length === 0) this.#hold();
    }
    this.#hold();
    const { needed, wanted } = this.#aim();
    if (!isSame(nextSpan(this.#span, { needed, wanted, step: STEP }), this.#span)) this.#ask();
  }

  /** The items that belong into the document around what is read. */
  #aim() {
    const view = this.#scroller.clientHeight;
    const place = this.#follow.following ? { index: this.#sizes.length, top: view } : this.#place();
    const around = (/** @type {typeof NEEDED} */ { views, nodes }) => spanAround(place, view, this.#sizes, { margin: views * view, nodes });
    const [needed, more] = [around(NEEDED), around(WANTED)];
    return { needed, wanted: { from: Math.min(needed.from, more.from), to: Math.max(needed.to, more.to) } };
  }

  /** The reader's place. After a leap into empty space: the item that would be there. */
  #place() {
    const [first] = this.#inView;
    if (first !== undefined) return { index: this.#indexOf.get(first.key) ?? 0, top: first.top };
    const box = this.#root.getBoundingClientRect();
    const { index, within } = itemAt(this.#sizes, (this.#scroller.getBoundingClientRect().top - box.top) / box.height);
    this.#lead.drift = 0;
    return { index, top: -within };
  }

  /** @param {Span} span */
  #lay(span) {
    const runs = runsOf(span, this.#pinned());
    const main = runs.find(({ from, to }) => from <= span.from && to >= span.to) ?? span;
    const there = new Set(runs.flatMap(({ from, to }) => this.#keys.slice(from, to)));
    for (const key of [...this.#elements.keys()]) if (!there.has(key)) this.#drop(key);
    const fresh = [...there].filter((key) => !this.#elements.has(key));
    this.#span = span;
    this.#put(this.#parts(runs, main));
    for (const key of fresh) this.#measure(key);
  }

  /**
   * @param {Span[]} runs
   * @param {Span} main    the one with what is read
   */
  #parts(runs, main) {
    /** @type {(HTMLElement | Space)[]} */ const parts = [];
    let end = 0;
    for (const run of runs) {
      if (run === main) this.#lead = { from: end, to: run.from, drift: this.#follow.following ? 0 : this.#lead.drift };
      if (run.from > end) parts.push(run === main ? this.#leadSpace() : this.#space(`before ${this.#keys[run.from]}`, end, run.from));
      for (const key of this.#keys.slice(run.from, run.to)) parts.push(this.#elementOf(key));
      end = run.to;
    }
    if (end < this.#keys.length) parts.push(this.#space("tail", end, this.#keys.length));
    return parts;
  }

  /** @param {string} name @param {number} from @param {number} to @returns {Space} */
  #space(name, from, to) {
    return { name, height: total(this.#sizes.slice(from, to), "height") };
  }

  #leadSpace() {
    const { from, to, drift } = this.#lead;
    const { name, height } = this.#space("lead", from, to);
    return { name, height: Math.max(0, height + drift) };
  }

  /** Puts elements and spaces in order. Elements that stay are not moved, so they keep focus and selection. @param {(HTMLElement | Space)[]} parts */
  #put(parts) {
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

  /** @param {Space} space */
  #spacer(space) {
    if (!this.#spacers.has(space.name)) this.#spacers.set(space.name, element("div", { class: "space", "aria-hidden": "true" }));
    this.#resizeSpacer(space);
    return /** @type {HTMLElement} */ (this.#spacers.get(space.name));
  }

  /** @param {Space} space */
  #resizeSpacer({ name, height }) {
    const spacer = this.#spacers.get(name);
    if (spacer !== undefined) spacer.style.height = `${Math.max(0, height - this.#gap)}px`;
  }

  /** @param {string} key */
  #elementOf(key) {
    let element = this.#elements.get(key);
    if (element === undefined) {
      element = this.#source.element(this.#indexOf.get(key) ?? 0);
      this.#elements.set(key, element);
      this.#observer.observe(element);
    }
    return element;
  }

  /** @param {string} key */
  #drop(key) {
    const element = this.#elements.get(key);
    if (element === undefined) return;
    this.#observer.unobserve(element);
    this.#elements.delete(key);
    element.remove();
    this.#source.dropped(key);
  }

  /** Measures an item in the document; returns whether its size has changed. @param {string} key */
  #measure(key) {
    const [index, element] = [this.#indexOf.get(key), this.#elements.get(key)];
    if (index === undefined || element === undefined) return false;
    const height = element.getBoundingClientRect().height + this.#gap;
    const changed = Math.abs(height - this.#sizes[index].height) > 0.5;
    this.#sizes[index] = { height, nodes: element.getElementsByTagName("*").length + 1 };
    this.#measured.set(key, this.#sizes[index]);
    return changed;
  }

  /** Brings the end into view, or what was in view back to where it was. */
  #bringBack() {
    if (this.#follow.following) {
      // At the end nothing is moved, since that would end a smooth scroll that has just begun.
      if (!this.#follow.atEnd) this.#scroller.scrollTop = this.#scroller.scrollHeight;
      return;
    }
    const moved = this.#moved();
    if (moved === 0) return;
    if (this.#takeUp(moved)) return;
    this.#lead.drift = 0;
    this.#resizeSpacer(this.#leadSpace());
    this.#scroller.scrollTop += this.#moved();
    // The view moves by whole pixels.
    this.#takeUp(this.#moved());
  }

  /** Puts a difference into the space above, since moving the view would end a running scroll. @param {number} px */
  #takeUp(px) {
    const { height } = this.#leadSpace();
    if (this.#lead.from === this.#lead.to || height - px < this.#gap) return false;
    this.#lead.drift -= px;
    this.#resizeSpacer(this.#leadSpace());
    return true;
  }

  /** Remembers what is in view, and where. */
  #hold() {
    const { top, bottom } = this.#scroller.getBoundingClientRect();
    this.#inView = [];
    for (const key of this.#keys.slice(this.#span.from, this.#span.to)) {
      const element = this.#elements.get(key);
      const box = element?.getBoundingClientRect();
      if (element === undefined || box === undefined || box.bottom <= top) continue;
      if (box.top >= bottom) break;
      this.#inView.push({ key, element, top: box.top - top });
    }
    const [first] = this.#inView;
    const part = first === undefined ? null : partAt(first.element, top);
    this.#readPart = part && { element: part, top: part.getBoundingClientRect().top - top };
    this.#follow.remember();
  }

  /** How far down what was in view has moved since, in px; 0 if nothing of it is in the document. */
  #moved() {
    const marks = this.#readPart === null ? this.#inView : [this.#readPart, ...this.#inView];
    const mark = marks.find(({ element }) => element.isConnected && element.getClientRects().length > 0);
    if (mark === undefined) return 0;
    return mark.element.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top - mark.top;
  }

  /** What stays in the document wherever the view is: the focused item, and a selection that is not too long. */
  #pinned() {
    const pinned = [this.#indexAt(document.activeElement)];
    const selection = document.getSelection();
    if (selection !== null && !selection.isCollapsed) {
      const ends = [selection.anchorNode, selection.focusNode].map((node) => this.#indexAt(node)).filter((index) => index !== undefined);
      const [from, to] = [Math.min(...ends), Math.max(...ends) + 1];
      const few = ends.length > 0 && total(this.#sizes.slice(from, to), "nodes") <= SELECTED_NODES;
      if (few) pinned.push(...Array.from({ length: to - from }, (_, offset) => from + offset));
    }
    return pinned.filter((index) => index !== undefined);
  }

  /** The item that contains a node. @param {Node | null} node */
  #indexAt(node) {
    if (node === null || !this.#root.contains(node)) return undefined;
    const key = [...this.#elements].find(([, element]) => element.contains(node))?.[0];
    return key === undefined ? undefined : this.#indexOf.get(key);
  }

  /** The current items in the document around what is read. @returns {Span} */
  #stillThere() {
    const [first] = this.#inView;
    const known = this.#follow.following || first === undefined ? Math.max(-1, ...this.indices) : (this.#indexOf.get(first.key) ?? -1);
    if (known === -1) return { from: this.#sizes.length, to: this.#sizes.length };
    const there = new Set(this.indices);
    const span = { from: known, to: known + 1 };
    while (there.has(span.from - 1)) span.from -= 1;
    while (there.has(span.to)) span.to += 1;
    return span;
  }

  /** Takes that an element in the document has changed its size. */
  #grown() {
    const changed = [...this.#elements.keys()].filter((key) => this.#measure(key));
    if (changed.length === 0) return;
    this.#bringBack();
    this.#hold();
    this.#ask();
  }

  #resized() {
    this.#measureGap();
    this.#bringBack();
    this.#hold();
    this.#ask();
  }

  #measureGap() {
    this.#gap = Number.parseFloat(getComputedStyle(this.#root).rowGap) || 0;
  }

  /** @param {boolean} whole */
  #print(whole) {
    this.#whole = whole;
    this.place();
  }

  #ask() {
    if (this.#frameRequested) return;
    this.#frameRequested = true;
    requestAnimationFrame(() => {
      this.#frameRequested = false;
      this.place();
    });
  }
}

/** @param {Span} one @param {Span} other */
function isSame(one, other) {
  return one.from === other.from && one.to === other.to;
}

/**
 * The block of an element at the top of the view: it is cut by the top, or begins right below it.
 * @param {Element} element
 * @param {number} top  of the view
 */
function partAt(element, top) {
  let part = element;
  for (let depth = 0; depth < DEEPEST && part.getBoundingClientRect().top < top && !part.matches(WHOLE); depth += 1) {
    const inner = [...part.children].find((child) => child.getBoundingClientRect().bottom > top);
    if (inner === undefined) break;
    part = inner;
  }
  return part;
}

/** @param {Size[]} sizes @param {"height" | "nodes"} what */
function total(sizes, what) {
  return sizes.reduce((sum, size) => sum + size[what], 0);
}

/**
 * The item at a share of the whole height.
 * @param {Size[]} sizes
 * @param {number} share  from 0 to 1
 * @returns {{index: number, within: number}} `within`: px below the beginning of the item
 */
function itemAt(sizes, share) {
  let within = Math.min(Math.max(share, 0), 1) * total(sizes, "height");
  for (const [index, { height }] of sizes.entries()) {
    if (within < height) return { index, within };
    within -= height;
  }
  return { index: Math.max(0, sizes.length - 1), within: 0 };
}

/** Decides which items of a long list are in the document. Pure: sizes and a place in, spans out. */

/** @typedef {{from: number, to: number}} Span  the items from `from` to before `to` */
/**
 * The place that is read: an item, and its beginning below the top of the view, in px (negative if it begins above).
 * @typedef {{index: number, top: number}} Place
 */

/**
 * The items that cover the view around a place, and the wanted ones above and below it, the nearest first.
 * @param {Place} place
 * @param {number} view      the height of the view, in px
 * @param {Size[]} sizes
 * @param {{margin: number, nodes: number}} wanted  `margin`: px on each side of the view; `nodes`: from this number on no item is added
 * @returns {Span}
 */
function spanAround({ index, top }, view, sizes, { margin, nodes }) {
  const span = { from: index, to: index };
  let [above, below, held] = [-top, top - view, 0];
  for (;;) {
    const [up, down] = [span.from > 0 ? above : Infinity, span.to < sizes.length ? below : Infinity];
    const least = Math.min(up, down);
    if (least === Infinity || least >= margin || (least > 0 && held >= nodes)) return span;
    const next = up < down ? span.from - 1 : span.to;
    const size = sizes[next];
    held += size.nodes;
    if (up < down) [span.from, above] = [next, above + size.height];
    else [span.to, below] = [next + 1, below + size.height];
  }
}

/**
 * The next span on the way to the wanted one: what is needed at once, and a few more items on each side, so that no frame
 * makes many items.
 * @param {Span} current
 * @param {{needed: Span, wanted: Span, step: number}} aim  `wanted` includes `needed`
 * @returns {Span}
 */
function nextSpan(current, { needed, wanted, step }) {
  const apart = current.to < needed.from || current.from > needed.to || current.from === current.to;
  const { from, to } = apart ? needed : current;
  return {
    from: Math.min(needed.from, Math.max(wanted.from, from - step)),
    to: Math.max(needed.to, Math.min(wanted.to, to + step)),
  };
}

/**
 * A span and single items beside it, as separate spans in order.
 * @param {Span} span
 * @param {number[]} pinned
 * @returns {Span[]}
 */
function runsOf(span, pinned) {
  const outside = pinned.filter((index) => index < span.from || index >= span.to);
  const spans = [span, ...outside.map((index) => ({ from: index, to: index + 1 }))].sort((one, other) => one.from - other.from);
  /** @type {Span[]} */ const runs = [];
  for (const { from, to } of spans) {
    const last = runs.at(-1);
    if (last !== undefined && last.to >= from) last.to = Math.max(last.to, to);
    else runs.push({ from, to });
  }
  return runs;
}
