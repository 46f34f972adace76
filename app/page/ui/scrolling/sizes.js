/** @typedef {{height: number, nodes: number}} Size  `height`: in px, with the gap below; `nodes`: in the document */

/** The sizes of a list's items: measured if they were in the document, else guessed. */
export class Sizes {
  /** @type {Map<string, Size>} */ #measured = new Map();
  /** @type {string[]} */ #keys = [];
  /** @type {Size[]} */ #sizes = [];

  get count() {
    return this.#sizes.length;
  }

  /**
   * Takes the current items. Sizes of others are forgotten.
   * @param {string[]} keys
   * @param {(index: number) => Size} guess
   */
  arrange(keys, guess) {
    /** @type {Map<string, Size>} */ const measured = new Map();
    this.#keys = keys;
    this.#sizes = keys.map((key, index) => {
      const size = this.#measured.get(key);
      if (size !== undefined) measured.set(key, size);
      return size ?? guess(index);
    });
    this.#measured = measured;
  }

  /** @param {number} index @param {Size} size */
  measure(index, size) {
    this.#sizes[index] = size;
    this.#measured.set(this.#keys[index], size);
  }

  /** @param {number} index */
  of(index) {
    return this.#sizes[index];
  }

  /** The height of the items from `from` to before `to`, in px. @param {number} from @param {number} to */
  between(from, to) {
    let height = 0;
    for (let index = from; index < to; index += 1) height += this.#sizes[index].height;
    return height;
  }

  /** The number of nodes of the items from `from` to before `to`. @param {number} from @param {number} to */
  nodesBetween(from, to) {
    let nodes = 0;
    for (let index = from; index < to; index += 1) nodes += this.#sizes[index].nodes;
    return nodes;
  }

  /**
   * The item at a share of the whole height.
   * @param {number} share  from 0 to 1
   * @returns {{index: number, within: number}} `within`: px below the beginning of the item
   */
  at(share) {
    let within = Math.min(Math.max(share, 0), 1) * this.between(0, this.count);
    for (const [index, { height }] of this.#sizes.entries()) {
      if (within < height) return { index, within };
      within -= height;
    }
    return { index: Math.max(0, this.count - 1), within: 0 };
  }
}
