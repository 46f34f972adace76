import { element, part } from "../elements/dom.js";

/** The welcome in an empty conversation. */
export class Welcome {
  #root = part("welcome", HTMLElement);
  #list = part("suggestions", HTMLUListElement);
  #onChoose;

  /** @param {{onChoose: (text: string) => void}} actions */
  constructor({ onChoose }) {
    this.#onChoose = onChoose;
  }

  /** Shows the server's suggestions for a first message. @param {string[]} texts */
  suggest(texts) {
    this.#list.hidden = texts.length === 0;
    this.#list.replaceChildren(...texts.map((text) => this.#row(text)));
  }

  /** @param {string} text */
  #row(text) {
    return element("li", {}, element("button", { type: "button", text, dir: "auto", onclick: () => this.#onChoose(text) }));
  }

  /** @param {boolean} empty */
  show(empty) {
    this.#root.hidden = !empty;
  }
}
