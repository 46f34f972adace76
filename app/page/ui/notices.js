import { element, icon, part } from "./dom.js";

/** Failures that belong to no message, shown over the composer until they are closed. */
export class Notices {
  #root = part("notices", HTMLElement);

  /** @param {{code: string, message: string}} failure */
  tell({ code, message }) {
    const words = `${message} (${code})`;
    if (this.#root.textContent?.includes(words)) return;
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
