import { element } from "../elements/dom.js";
import { iconButton } from "../elements/icons.js";
import { t } from "../words/translate.js";

/** @typedef {import("../transcript/arrangement.js").Item} Item */

/** The arrows between a message's branches: ‹ 2/3 ›. Hidden if there is only one. */
export class BranchArrows {
  #back = this.#arrow("back", t("Previous version"), -1);
  #forward = this.#arrow("forward", t("Next version"), 1);
  #place = element("span", { class: "place" });
  root = element("span", { class: "branches", role: "group", hidden: true }, this.#back, this.#place, this.#forward);
  /** @type {string[]} */ #siblings = [];
  #index = 0;
  #onChoose;

  /** @param {(messageId: string) => void} onChoose */
  constructor(onChoose) {
    this.#onChoose = onChoose;
  }

  /** @param {Item} item */
  show({ messageId, siblings, siblingCount, siblingIndex }) {
    this.#siblings = siblings;
    this.#index = siblings.indexOf(messageId ?? "");
    this.root.hidden = this.#index === -1;
    if (this.root.hidden) return;
    const place = `${siblingIndex + 1}/${siblingCount}`;
    if (this.#place.textContent !== place) this.#place.textContent = place;
    this.root.setAttribute("aria-label", t("Version {number} of {count}", { number: siblingIndex + 1, count: siblingCount }));
    this.#back.disabled = this.#index === 0;
    this.#forward.disabled = this.#index === siblings.length - 1;
  }

  /** Focuses an arrow that leads to another version. The one that was pressed may lead nowhere now. */
  focus() {
    (this.#forward.disabled ? this.#back : this.#forward).focus();
  }

  /** @param {string} name @param {string} title @param {number} step */
  #arrow(name, title, step) {
    return iconButton(name, title, { title, onclick: () => this.#onChoose(this.#siblings[this.#index + step]) });
  }
}
