import { element } from "../elements/dom.js";
import { languageName } from "../words/languages.js";
import { alignedRows } from "./aligned-rows.js";

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
