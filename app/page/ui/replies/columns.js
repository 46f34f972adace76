import { element } from "../elements/dom.js";
import { languageName } from "../words/languages.js";
import { countCodePoints } from "../../client/code-points.js";

/** Two columns that scroll together: each sentence of a source beside its translation. On a phone one is above the other. */
export class Columns {
  #head = element("div", { class: "pair head", "aria-hidden": "true" });
  #rows = element("div", { class: "pairs" });
  #languages = "";
  root = element("div", { class: "columns" }, this.#head, this.#rows);

  /** @param {{source: string, text: string, alignment: import("../../client/reply.js").Reply["alignment"], interprets: import("../../client/frames.js").Languages}} item */
  show({ source, text, alignment, interprets }) {
    this.#name(interprets);
    const rows = alignedRows(source, text, alignment);
    while (this.#rows.children.length > rows.length) this.#rows.lastElementChild?.remove();
    rows.forEach((row, index) => {
      const pair = this.#rows.children[index] ?? this.#append(interprets);
      write(pair.children[0], row.source);
      write(pair.children[1], row.text);
    });
  }

  /** @param {import("../../client/frames.js").Languages} languages */
  #append({ source, target }) {
    const original = element("p", { class: "source", dir: "auto", lang: source === "auto" ? null : source });
    const pair = element("div", { class: "pair" }, original, element("p", { class: "target", dir: "auto", lang: target }));
    this.#rows.append(pair);
    return pair;
  }

  /** @param {import("../../client/frames.js").Languages} languages */
  #name({ source, target }) {
    if (this.#languages === `${source} ${target}`) return;
    this.#languages = `${source} ${target}`;
    this.#head.replaceChildren(element("span", { text: languageName(source) }), element("span", { text: languageName(target) }));
  }
}

/** @param {Element} place @param {string} text */
function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** A sentence with what follows it up to the next one; or a line. */
const SENTENCE = /[^.!?…。！？\n]*(?:[.!?…]+["'”’)]*(?=\s|$)\s*|[。！？]+["'”’）]*\s*|\n+|[.!?…]+|$)/gu;

/** @typedef {{source: string, text: string}} Row */

/**
 * A source and its translation side by side: a row for each sentence of the source. Text that came live stands beside what
 * had been read for it. Text from the history is aligned sentence by sentence. Pure; offsets are code points.
 * @param {string} source
 * @param {string} text
 * @param {[start: number, end: number, sourceChars: number][]} alignment  in order: the text from `start` to `end` translates the source up to `sourceChars`
 * @returns {Row[]}
 */
export function alignedRows(source, text, alignment) {
  const sentences = sentencesOf(source);
  if (sentences.length === 0) return text === "" ? [] : [{ source: "", text }];
  const rows = sentences.map((sentence) => ({ source: sentence, text: "" }));
  let end = 0;
  const ends = sentences.map((sentence) => (end += countCodePoints(sentence)));
  const chars = [...text];
  const [first] = alignment;
  const known = first === undefined ? chars.length : first[0];
  const latest = first === undefined ? rows.length - 1 : rowAt(ends, first[2]);
  sentencesOf(chars.slice(0, known).join("")).forEach((sentence, index) => {
    rows[Math.min(index, latest)].text += sentence;
  });
  let offset = known;
  for (const [, until, read] of alignment) {
    rows[rowAt(ends, read)].text += chars.slice(offset, until).join("");
    offset = Math.max(offset, until);
  }
  rows[rows.length - 1].text += chars.slice(offset).join("");
  return rows;
}

/** @param {string} text */
function sentencesOf(text) {
  return [...text.matchAll(SENTENCE)].map(([sentence]) => sentence).filter((sentence) => sentence !== "");
}

/** The row that reading had reached. @param {number[]} ends @param {number} read */
function rowAt(ends, read) {
  const index = ends.findIndex((end) => read <= end);
  return index === -1 ? ends.length - 1 : index;
}
