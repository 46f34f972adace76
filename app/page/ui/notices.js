import { element, icon, part } from "./dom.js";
import { wordsFor } from "./words.js";

/** What belongs to no message, shown over the composer until it is closed. */
export class Notices {
  #root = part("notices", HTMLElement);

  /** @param {import("./words.js").Failure} failure */
  tell(failure) {
    this.say(wordsFor(failure));
  }

  /** @param {string} words  nothing is shown where they are empty, or shown already */
  say(words) {
    if (words === "" || this.#root.textContent?.includes(words)) return;
    const close = element("button", { class: "quiet", type: "button", "aria-label": "Close this notice" });
    close.append(icon("close"));
    const notice = element("div", { class: "notice" }, icon("alert"), element("span", { text: words }), close);
    close.addEventListener("click", () => notice.remove());
    this.#root.append(notice);
  }

  clear() {
    this.#root.replaceChildren();
  }
}
