import { dropCodePoints, takeCodePoints } from "../../client/code-points.js";
import { element, part } from "../elements/dom.js";
import { addressOf } from "./address.js";
import { titleInWords } from "../words/languages.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/frames.js").Hit} Hit */
/** @typedef {import("../../client/frames.js").Found} Found */

/** How long somebody pauses in writing before the search begins. */
const REST_MS = 200;

/** The search for conversations. Its hits take the place of the list. */
export class SearchBox {
  #field = part("find", HTMLInputElement);
  #list = part("listed", HTMLElement);
  #root = part("found", HTMLElement);
  #hits = part("hits", HTMLUListElement);
  #more = part("found-more", HTMLButtonElement);
  #status = part("found-told", HTMLElement);
  #find;
  #onOpen;
  #timer = 0;
  #searching = false;
  /** @type {string | undefined} */ #next = undefined;

  /**
   * @param {object} actions
   * @param {(request: {query: string, before?: string}) => Promise<Found | null>} actions.find  null if the search failed
   * @param {(hit: Hit) => void} actions.onOpen
   */
  constructor({ find, onOpen }) {
    this.#find = find;
    this.#onOpen = onOpen;
    this.#field.addEventListener("input", () => this.#onInput());
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#more.addEventListener("click", () => void this.#look(this.#next));
  }

  get #query() {
    return this.#field.value.trim();
  }

  #onInput() {
    clearTimeout(this.#timer);
    const looks = this.#query !== "";
    this.#list.hidden = looks;
    this.#root.hidden = !looks;
    if (looks) this.#timer = setTimeout(() => void this.#look(), REST_MS);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing || this.#field.value === "") return;
    // Esc stops a running reply if there is nothing else to close.
    event.preventDefault();
    this.#field.value = "";
    this.#onInput();
  }

  /** @param {string} [before]  where the last answer ended; without it, from the newest conversation on */
  async #look(before) {
    if (this.#searching) return; // the query at that time is asked next
    const query = this.#query;
    this.#searching = this.#more.disabled = true;
    const found = await this.#find({ query, before });
    this.#searching = this.#more.disabled = false;
    if (query !== this.#query) return void (this.#query !== "" && this.#look());
    if (found !== null) this.#show(found, before !== undefined);
  }

  /**
   * @param {Found} found
   * @param {boolean} goesOn  the hits are added to those that are shown
   */
  #show({ hits, next }, goesOn) {
    const rows = hits.map((hit) => this.#row(hit));
    if (goesOn) this.#hits.append(...rows);
    else this.#hits.replaceChildren(...rows);
    this.#next = next;
    this.#more.hidden = next === undefined;
    this.#status.textContent = wordsFor(this.#hits.childElementCount, next !== undefined);
    if (goesOn) rows[0]?.querySelector("a")?.focus();
  }

  /** @param {Hit} hit */
  #row(hit) {
    const link = element("a", { href: addressOf(hit.conversation_id), dir: "auto" });
    link.append(element("span", { class: "name", text: titleInWords(hit) || t("New conversation") }));
    if (hit.message_id !== undefined) link.append(element("span", { class: "snippet" }, ...marked(hit)));
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
      event.preventDefault();
      this.#onOpen(hit);
    });
    return element("li", {}, link);
  }
}

/** The snippet with its match marked. @param {Hit} hit */
function marked({ snippet, off, len }) {
  const behind = dropCodePoints(snippet, off);
  return [takeCodePoints(snippet, off), element("mark", { text: takeCodePoints(behind, len) }), dropCodePoints(behind, len)];
}

/**
 * @param {number} hits
 * @param {boolean} more  whether older conversations are still to be searched
 */
function wordsFor(hits, more) {
  if (hits === 0) return more ? t("Nothing found so far.") : t("Nothing found.");
  return hits === 1 ? t("1 conversation") : t("{count} conversations", { count: hits });
}
