const NAME = "spoken-word";

/**
 * Marks the word of a reply that is being spoken. It makes no element, so the view of the text does not notice. Browsers
 * without the CSS Custom Highlight API mark nothing.
 */
export class MarkedWord {
  #possible = globalThis.CSS?.highlights !== undefined;
  #shown = -1;

  /**
   * @param {HTMLElement | null} prose  the element with the reply; null if it is not on the screen
   * @param {string} text               of the reply
   * @param {import("../../client/frames.js").Mark | undefined} mark
   */
  show(prose, text, mark) {
    if (!this.#possible || mark === undefined || prose === null) return this.clear();
    if (mark.off === this.#shown) return;
    const range = rangeOf(prose, text, mark);
    if (range === null) return this.clear();
    this.#shown = mark.off;
    CSS.highlights.set(NAME, new Highlight(range));
  }

  clear() {
    this.#shown = -1;
    if (this.#possible) CSS.highlights.delete(NAME);
  }
}

/**
 * The place of a word of the text on the screen. Marks of Markdown are missing there, so the word is found by how often the
 * same letters come before it.
 * @param {HTMLElement} prose
 * @param {string} text
 * @param {import("../../client/frames.js").Mark} mark
 */
function rangeOf(prose, text, { off, len }) {
  const chars = [...text];
  const word = chars.slice(off, off + len).join("").trim();
  if (word === "") return null;
  const before = chars.slice(0, off).join("").split(word).length - 1;
  const shown = prose.textContent ?? "";
  let at = -1;
  for (let count = 0; count <= before; count += 1) {
    at = shown.indexOf(word, at + 1);
    if (at === -1) return null;
    if (count < before) at += word.length - 1;
  }
  return rangeAt(prose, at, at + word.length);
}

/** @param {HTMLElement} prose @param {number} start @param {number} end  UTF-16 units of its text */
function rangeAt(prose, start, end) {
  const range = document.createRange();
  const texts = document.createTreeWalker(prose, NodeFilter.SHOW_TEXT);
  let passed = 0;
  for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
    const length = node.nodeValue?.length ?? 0;
    if (start >= passed && start < passed + length) range.setStart(node, start - passed);
    if (end <= passed + length) {
      range.setEnd(node, end - passed);
      return range;
    }
    passed += length;
  }
  return null;
}
