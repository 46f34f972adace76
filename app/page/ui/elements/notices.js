import { element, icon, part } from "./dom.js";
import { failureView } from "./failure-view.js";
import { wordsFor } from "./words.js";
import { t } from "../words/translate.js";

/** What belongs to no message, shown over the composer until it is closed. */
export class Notices {
  #root = part("notices", HTMLElement);

  /** @param {import("./words.js").Failure} failure */
  tell(failure) {
    this.#add(wordsFor(failure), failureView(failure));
  }

  /** @param {string} words  nothing is shown where they are empty, or shown already */
  say(words) {
    if (words !== "") this.#add(words, element("span", { text: words }));
  }

  /**
   * @param {string} words
   * @param {HTMLElement} view  what shows them
   */
  #add(words, view) {
    if (this.#root.textContent?.includes(words)) return;
    const close = element("button", { class: "quiet", type: "button", "aria-label": t("Close this notice") });
    close.append(icon("close"));
    const notice = element("div", { class: "notice" }, icon("alert"), view, close);
    close.addEventListener("click", () => notice.remove());
    this.#root.append(notice);
  }

  clear() {
    this.#root.replaceChildren();
  }
}
