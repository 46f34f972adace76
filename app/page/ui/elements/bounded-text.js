import { element } from "./dom.js";
import { number, t } from "../words/translate.js";

/** UTF-16 units that are shown at first, and that each press adds: a browser lays them out without a pause. */
const FIRST = 2000;
const MORE = 20_000;

/** A text of any length: its beginning, and a button for more. Text is set as text, never as markup. */
export class BoundedText {
  #shown = document.createTextNode("");
  #more = element("button", { class: "link", type: "button", hidden: true, onclick: () => this.#showTo(this.#shown.length + MORE) });
  #text = "";

  /** @param {string} label  its name for those who don't see it */
  constructor(label) {
    const frame = element("pre", { tabindex: 0, role: "group", "aria-label": label, dir: "auto" }, this.#shown);
    this.root = element("div", { class: "bounded" }, frame, this.#more);
  }

  /** @param {string} text */
  show(text) {
    if (text === this.#text) return;
    this.#text = text;
    this.#showTo(FIRST);
  }

  /** @param {number} end */
  #showTo(end) {
    this.#shown.data = this.#text.slice(0, whole(this.#text, end));
    const left = this.#text.length - this.#shown.length;
    this.#more.hidden = left === 0;
    this.#more.textContent = t("Show more ({count} characters left)", { count: number(left) });
  }
}

/** Where to cut without halving a character. @param {string} text @param {number} end */
function whole(text, end) {
  const unit = text.charCodeAt(end - 1);
  return unit >= 0xd800 && unit < 0xdc00 ? end + 1 : end;
}
