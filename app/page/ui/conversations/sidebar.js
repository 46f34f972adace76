import { part, element } from "../elements/dom.js";
import { SearchBox } from "./search-box.js";
import { titleInWords } from "../words/languages.js";
import { t } from "../words/translate.js";
import { iconButton, icon } from "../elements/icons.js";
import { addressOf } from "./address.js";
import { editTitle } from "./title-field.js";

/** @typedef {import("../../client/frames.js").ConversationSummary} ConversationSummary */

/** @typedef {{id: string, title: string, running: boolean}} Entry */

/** The name of a conversation without a title. */
export const NEW_TITLE = t("New conversation");

const PAGE = 100;
const narrow = matchMedia("(max-width: 52rem)");

/**
 * The owner's conversations, newest first, those of other devices too: lists, searches, begins, renames and deletes them. The
 * list has links (so the browser's history works). On narrow screens the sidebar is a drawer, hidden and out of the tab order
 * until it is opened.
 */
export class Sidebar {
  /** @type {ConversationSummary[]} As the server lists them. */ #entries = [];
  /** Whether there are older ones than these. */
  #hasMore = false;
  #refreshing = false;
  #stale = false;
  #parts;
  #sidebar = part("sidebar", HTMLElement);
  #chat = part("chat", HTMLElement);
  #opener = part("open-sidebar", HTMLButtonElement);
  #closer = part("close-sidebar", HTMLButtonElement);
  #open = false;
  #list = part("conversations", HTMLUListElement);
  #more = part("more", HTMLButtonElement);
  /** What the list shows. */ #shown = "";
  /** Whether a title is being edited in the list, which does not change meanwhile. */ #renaming = false;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {() => void} parts.onNew     the user begins another conversation
   * @param {(hit: import("../../client/frames.js").Hit) => void} parts.onHit  the user chose a hit
   * @param {() => void} parts.onChange  the list has changed
   */
  constructor(parts) {
    const { client, notices, onNew, onHit } = (this.#parts = parts);
    this.#more.addEventListener("click", () => void this.#answered(this.#readMore()));
    new SearchBox({ find: (request) => notices.answer(client.search(request)), onOpen: onHit });
    part("new", HTMLButtonElement).addEventListener("click", onNew);
    this.#closer.append(icon("close"));
    this.#opener.addEventListener("click", () => this.#setOpen(true));
    for (const closer of [this.#closer, part("scrim", HTMLElement)]) closer.addEventListener("click", () => this.#setOpen(false));
    narrow.addEventListener("change", () => this.#showOpen());
    this.#showOpen();
  }

  /** Whether a conversation is listed. @param {string} conversationId */
  has(conversationId) {
    return this.#entries.some(({ conversation_id: id }) => id === conversationId);
  }

  /** A conversation's title in words; undefined if it is unknown. @param {string} conversationId */
  titleOf(conversationId) {
    const listed = this.#entries.find(({ conversation_id: id }) => id === conversationId);
    return listed === undefined ? undefined : titleInWords(listed);
  }

  /**
   * Shows the list.
   * @param {string} current        the conversation that is shown
   * @param {string | null} title  its title; null if it is still empty
   */
  show(current, title) {
    const entries = this.#entries.map((listed) => this.#entry(listed.conversation_id, titleInWords(listed)));
    if (title !== null && !this.has(current)) entries.unshift(this.#entry(current, title));
    this.#more.hidden = !this.#hasMore;
    const key = JSON.stringify([entries, current]);
    if (key === this.#shown || this.#renaming) return;
    this.#shown = key;
    const focused = document.activeElement instanceof HTMLAnchorElement ? document.activeElement.getAttribute("href") : null;
    this.#list.replaceChildren(...entries.map((entry) => this.#row(entry, entry.id === current)));
    if (focused !== null) [...this.#list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }

  /** Asks for the newest conversations. */
  refresh() {
    return this.#answered(this.#readNewest());
  }

  /** @param {string} conversationId @param {string} title */
  rename(conversationId, title) {
    const renaming = this.#parts.client.rename({ conversationId, title });
    return this.#answered(renaming.then((renamed) => this.#replace(conversationId, () => renamed)));
  }

  /** Takes the title that the model wrote. @param {string} conversationId @param {string} title */
  entitle(conversationId, title) {
    this.#replace(conversationId, (entry) => ({ ...entry, title, interprets: undefined }));
  }

  /** Takes that a conversation is gone. @param {string} conversationId */
  remove(conversationId) {
    this.#entries = this.#entries.filter(({ conversation_id: id }) => id !== conversationId);
  }

  /** Closes the sidebar if it lies over the conversation. False if it doesn't. */
  close() {
    if (!this.#open) return false;
    this.#setOpen(false);
    return true;
  }

  /** @param {boolean} open */
  #setOpen(open) {
    this.#open = open;
    this.#showOpen();
    (open ? this.#closer : this.#opener).focus();
  }

  #showOpen() {
    const shown = narrow.matches && this.#open;
    this.#open = shown;
    document.documentElement.classList.toggle("drawer-open", shown);
    this.#opener.setAttribute("aria-expanded", String(shown));
    this.#sidebar.inert = narrow.matches && !shown;
    this.#chat.inert = shown;
  }

  /** @param {string} conversationId @param {(entry: ConversationSummary) => ConversationSummary} change */
  #replace(conversationId, change) {
    this.#entries = this.#entries.map((entry) => (entry.conversation_id === conversationId ? change(entry) : entry));
  }

  /** Calls that come while an answer is awaited share the next one. Raises ChatError. */
  async #readNewest() {
    this.#stale = true;
    if (this.#refreshing) return;
    this.#refreshing = true;
    try {
      while (this.#stale) {
        this.#stale = false;
        this.#takeNewest(await this.#parts.client.conversations({ limit: PAGE }));
      }
    } finally {
      this.#refreshing = false;
    }
  }

  /** @param {import("../../client/frames.js").Conversations} page */
  #takeNewest({ conversations, has_more: hasMore }) {
    const newest = new Set(conversations.map(({ conversation_id: id }) => id));
    const older = hasMore ? this.#entries.filter(({ conversation_id: id }) => !newest.has(id)) : [];
    this.#hasMore = older.length > 0 ? this.#hasMore : hasMore;
    this.#entries = [...conversations, ...older];
  }

  /** Asks for older ones. Raises ChatError. */
  async #readMore() {
    const before = this.#entries.at(-1)?.conversation_id;
    const page = await this.#parts.client.conversations({ limit: PAGE, before });
    this.#entries = [...this.#entries, ...page.conversations];
    this.#hasMore = page.has_more;
  }

  /** @param {string} id @param {string} title */
  #entry(id, title) {
    return { id, title: title || NEW_TITLE, running: this.#parts.client.repliesOf(id).length > 0 };
  }

  /**
   * @param {Entry} entry
   * @param {boolean} current
   */
  #row(entry, current) {
    const link = element("a", { href: addressOf(entry.id), "aria-current": current ? "page" : null, dir: "auto" });
    link.append(element("span", { class: "name", text: entry.title }));
    if (entry.running) link.append(element("span", { class: "running", role: "img", "aria-label": t("A reply is running") }));
    const row = element("li", {}, link);
    const { title } = entry;
    const rename = iconButton("edit", t("Rename “{title}”", { title }), { onclick: () => this.#editTitle(entry, link) });
    const remove = iconButton("trash", t("Delete “{title}”", { title }), { onclick: () => this.#delete(entry) });
    row.append(element("span", { class: "row-tools" }, rename, remove));
    return row;
  }

  /**
   * @param {Entry} entry
   * @param {HTMLElement} link
   */
  #editTitle(entry, link) {
    if (this.#renaming) return;
    this.#renaming = true;
    const onClose = (/** @type {string | null} */ title) => {
      this.#renaming = false;
      this.#shown = ""; // the next `show` shows what came meanwhile
      if (title !== null) void this.rename(entry.id, title);
    };
    editTitle(link, entry.title, { focus: link, onClose });
  }

  /** Deletes a conversation, if the user says so once more. @param {Entry} entry */
  #delete({ id, title }) {
    const dialog = part("confirm", HTMLDialogElement);
    part("confirm-text", HTMLElement).textContent = t("“{title}” and all of its messages will be deleted permanently.", { title });
    part("confirm-no", HTMLButtonElement).onclick = () => dialog.close();
    part("confirm-yes", HTMLButtonElement).onclick = () => {
      dialog.close();
      void this.#parts.notices.answer(this.#parts.client.delete(id));
    };
    dialog.showModal();
  }

  /** @param {Promise<unknown>} request */
  async #answered(request) {
    await this.#parts.notices.answer(request);
    this.#parts.onChange();
  }
}
