import { element } from "../elements/dom.js";
import { sizeOf } from "./message-size.js";
import { wellFormed } from "./typing.js";
import { t } from "../words/translate.js";

let made = 0;

/** The text that is sent: without halves of characters and blanks around it. @param {string} value */
export function textOf(value) {
  return wellFormed(value).trim();
}

/** A note beside a box for messages: says how full the box is when it is nearly full, and when it is too full. */
export class SizeNote {
  #count = element("span");
  #word = element("strong", { role: "status" });
  #field;
  #limits;
  #text;

  /**
   * @param {HTMLTextAreaElement} field
   * @param {() => import("./message-size.js").Limits | null} limits
   * @param {() => string} [text]  the message, if that is more than the text in the box
   */
  constructor(field, limits, text = () => textOf(field.value)) {
    this.#field = field;
    this.#limits = limits;
    this.#text = text;
    made += 1;
    this.root = element("p", { class: "size", id: `size-${made}`, hidden: true }, this.#word, " ", this.#count);
    const described = field.getAttribute("aria-describedby") ?? "";
    field.setAttribute("aria-describedby", `${described} ${this.root.id}`.trim());
    field.addEventListener("input", () => this.fits());
  }

  /** Whether the message can be sent; says so if it can't. */
  fits() {
    const { near, over, words } = sizeOf(this.#text(), this.#limits());
    this.root.hidden = !near;
    this.root.classList.toggle("over", over);
    this.#count.textContent = words;
    const word = over ? t("Too long to be sent.") : "";
    if (this.#word.textContent !== word) this.#word.textContent = word;
    if (over) this.#field.setAttribute("aria-invalid", "true");
    else this.#field.removeAttribute("aria-invalid");
    return !over;
  }
}
