/** @typedef {{element: Element, top: number}} Mark  `top`: px below the top of the view */

/** What is not looked into for a place to hold: lines of code and cells have no blocks in them, and may be thousands. */
const WHOLE = "p, pre, table, svg, math, form";
const DEEPEST = 8;

/** Remembers where what is in view stands, and tells later how far it was moved by what came, went or grew. */
export class Anchor {
  #scroller;
  /** @type {(Mark & {key: string})[]} The items in view, from its top. */ #items = [];
  /** @type {Mark | null} The part of the first one that the view begins with: what is read, where an item is long. */ #part = null;

  /** @param {HTMLElement} scroller */
  constructor(scroller) {
    this.#scroller = scroller;
  }

  /** The first item in view; undefined where there is none. @returns {{key: string, top: number} | undefined} */
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

  /** How far what was in view is below where it was, in px; null where none of it is in the document. */
  moved() {
    const marks = this.#part === null ? this.#items : [this.#part, ...this.#items];
    const mark = marks.find(({ element }) => element.isConnected && element.getClientRects().length > 0);
    if (mark === undefined) return null;
    return mark.element.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top - mark.top;
  }
}

/**
 * The block of an element that the top of the view goes through, or that begins right below it.
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
