/** @typedef {{element: Element, top: number}} Mark  `top`: px below the top of the view */

/** Elements that are not searched for an anchor: code and tables contain no blocks, but maybe thousands of nodes. */
const WHOLE = "p, pre, table, svg, math, form";
const DEEPEST = 8;

/** Remembers the positions of what is in view. It tells later how far changes have moved it. */
export class Anchor {
  #scroller;
  /** @type {(Mark & {key: string})[]} The items in view, from the top. */ #items = [];
  /** @type {Mark | null} The part of the first item at the top of the view: what is read in a long item. */ #part = null;

  /** @param {HTMLElement} scroller */
  constructor(scroller) {
    this.#scroller = scroller;
  }

  /** The first item in view; undefined if there is none. @returns {{key: string, top: number} | undefined} */
  get first() {
    return this.#items[0];
  }

  /** Takes what is in view. @param {Iterable<[string, Element]>} elements  items in order, with their keys */
  hold(elements) {
    const { top, bottom } = this.#scroller.getBoundingClientRect();
    this.#items = [];
    for (const [key, element] of elements) {
      const box = element.getBoundingClientRect();
      if (box.bottom <= top) continue;
      if (box.top >= bottom) break;
      this.#items.push({ key, element, top: box.top - top });
    }
    const [first] = this.#items;
    const part = first === undefined ? null : partAt(first.element, top);
    this.#part = part && { element: part, top: part.getBoundingClientRect().top - top };
  }

  /** Forgets items that are gone. @param {(key: string) => boolean} isThere */
  keep(isThere) {
    this.#items = this.#items.filter(({ key }) => isThere(key));
  }

  /** How far down things have moved since, in px; null if none of them is in the document. */
  moved() {
    const marks = this.#part === null ? this.#items : [this.#part, ...this.#items];
    const mark = marks.find(({ element }) => element.isConnected && element.getClientRects().length > 0);
    if (mark === undefined) return null;
    return mark.element.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top - mark.top;
  }
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
