import { ChatError } from "../../client/chat-client.js";
import { element, part } from "./dom.js";
import { icon, iconButton } from "./icons.js";
import { failureView, wordsFor } from "./words.js";
import { t } from "../words/translate.js";

/** Notices that belong to no message, shown over the composer until they are closed. */
export class Notices {
  #root = part("notices", HTMLElement);

  /** @param {import("./words.js").Failure} failure */
  report(failure) {
    this.#add(wordsFor(failure), failureView(failure));
  }

  /**
   * The answer to a request; null if it failed, which is reported. The page shows a lost connection already.
   * @template Answer
   * @param {Promise<Answer>} request
   * @returns {Promise<Answer | null>}
   */
  async answer(request) {
    try {
      return await request;
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (error.code !== ChatError.DISCONNECTED) this.report(error);
      return null;
    }
  }

  /** Shows words, unless they are empty or shown already. @param {string} words */
  show(words) {
    if (words !== "") this.#add(words, element("span", { text: words }));
  }

  /**
   * Offers something that the user may want. Pressing its button closes the notice.
   * @param {string} words
   * @param {string} label  of the button
   * @param {() => void} act
   */
  offer(words, label, act) {
    const onclick = () => {
      notice?.remove();
      act();
    };
    const button = element("button", { class: "link", type: "button", text: label, onclick });
    const notice = this.#add(words, element("span", {}, `${words} `, button));
  }

  /**
   * @param {string} words
   * @param {HTMLElement} view  the element with the words
   * @returns {HTMLElement | undefined} undefined if they are shown already
   */
  #add(words, view) {
    if (this.#root.textContent?.includes(words)) return undefined;
    const close = iconButton("close", t("Close this notice"), { onclick: () => notice.remove() });
    const notice = element("div", { class: "notice" }, icon("alert"), view, close);
    this.#root.append(notice);
    return notice;
  }

  clear() {
    this.#root.replaceChildren();
  }
}
