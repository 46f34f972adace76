import { part, element } from "../elements/dom.js";
import { SearchBox } from "./search-box.js";
import { titleInWords } from "../words/languages.js";
import { t } from "../words/translate.js";
import { iconButton, icon } from "../elements/icons.js";
import { addressOf } from "../navigation.js";
import { editTitle } from "./title-field.js";

/** @typedef {import("../../client/frames.js").ConversationSummary} ConversationSummary */

/** The name of a conversation without a title. */
export const NEW_TITLE = t("New conversation");

const PAGE = 100;

/** The owner's conversations, newest first, those of other devices too: lists, searches, begins, renames and deletes them. */
export class Sidebar {
  /** @type {ConversationSummary[]} As the server lists them. */ #entries = [];
  /** Whether there are older ones than these. */
  #hasMore = false;
  #refreshing = false;
  #stale = false;
  #parts;
  #list;
  #drawer = new Drawer();

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
    this.#list = new ConversationList({
      onRename: ({ id }, title) => void this.rename(id, title),
      onDelete: (entry) => this.#delete(entry),
      onMore: () => void this.#answered(this.#more()),
    });
    new SearchBox({ find: (request) => notices.answer(client.search(request)), onOpen: onHit });
    part("new", HTMLButtonElement).addEventListener("click", onNew);
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
    this.#list.show(entries, { current, hasMore: this.#hasMore });
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
    return this.#drawer.close();
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
  async #more() {
    const before = this.#entries.at(-1)?.conversation_id;
    const page = await this.#parts.client.conversations({ limit: PAGE, before });
    this.#entries = [...this.#entries, ...page.conversations];
    this.#hasMore = page.has_more;
  }

  /** @param {string} id @param {string} title */
  #entry(id, title) {
    return { id, title: title || NEW_TITLE, running: this.#parts.client.repliesOf(id).length > 0 };
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

/** @typedef {{id: string, title: string, running: boolean}} Entry */
/**
 * @typedef {object} ListActions
 * @property {(entry: Entry) => void} onDelete
 * @property {(entry: Entry, title: string) => void} onRename
 * @property {() => void} onMore                              older conversations are asked for
 */

/** The list of conversations: links to switch (so the browser's history works), and buttons to rename and delete. */
class ConversationList {
  #root = part("conversations", HTMLUListElement);
  #more = part("more", HTMLButtonElement);
  #actions;
  #shown = "";
  /** Whether a title is being edited; the list does not change meanwhile. */
  #renaming = false;

  /** @param {ListActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#more.addEventListener("click", actions.onMore);
  }

  /**
   * @param {Entry[]} entries
   * @param {{current: string, hasMore: boolean}} state
   */
  show(entries, { current, hasMore }) {
    this.#more.hidden = !hasMore;
    const key = JSON.stringify([entries, current]);
    if (key === this.#shown || this.#renaming) return;
    this.#shown = key;
    const focused = focusedAddress();
    this.#root.replaceChildren(...entries.map((entry) => this.#row(entry, entry.id === current)));
    if (focused !== null) refocus(this.#root, focused);
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
    const rename = iconButton("edit", t("Rename “{title}”", { title }), { onclick: () => this.#rename(entry, link) });
    const remove = iconButton("trash", t("Delete “{title}”", { title }), { onclick: () => this.#actions.onDelete(entry) });
    row.append(element("span", { class: "row-tools" }, rename, remove));
    return row;
  }

  /**
   * @param {Entry} entry
   * @param {HTMLElement} link
   */
  #rename(entry, link) {
    if (this.#renaming) return;
    this.#renaming = true;
    const onClose = (/** @type {string | null} */ title) => {
      this.#renaming = false;
      this.#shown = ""; // the next `show` shows what came meanwhile
      if (title !== null) this.#actions.onRename(entry, title);
    };
    editTitle(link, entry.title, { focus: link, onClose });
  }
}

function focusedAddress() {
  const focused = document.activeElement;
  return focused instanceof HTMLAnchorElement ? focused.getAttribute("href") : null;
}

/**
 * @param {HTMLElement} root
 * @param {string} address
 */
function refocus(root, address) {
  const link = [...root.querySelectorAll("a")].find((candidate) => candidate.getAttribute("href") === address);
  link?.focus();
}

const narrow = matchMedia("(max-width: 52rem)");

/** The sidebar. On narrow screens it is a drawer, hidden and out of the tab order until it is opened. */
class Drawer {
  #sidebar = part("sidebar", HTMLElement);
  #chat = part("chat", HTMLElement);
  #scrim = part("scrim", HTMLElement);
  #opener = part("open-sidebar", HTMLButtonElement);
  #closer = part("close-sidebar", HTMLButtonElement);
  #open = false;

  constructor() {
    this.#closer.append(icon("close"));
    this.#opener.addEventListener("click", () => this.#set(true));
    this.#closer.addEventListener("click", () => this.#set(false));
    this.#scrim.addEventListener("click", () => this.#set(false));
    narrow.addEventListener("change", () => this.#apply());
    this.#apply();
  }

  /** Closes the drawer. False if it was not open. */
  close() {
    if (!this.#open) return false;
    this.#set(false);
    return true;
  }

  /** @param {boolean} open */
  #set(open) {
    this.#open = open;
    this.#apply();
    (open ? this.#closer : this.#opener).focus();
  }

  #apply() {
    const shown = narrow.matches && this.#open;
    this.#open = shown;
    document.documentElement.classList.toggle("drawer-open", shown);
    this.#opener.setAttribute("aria-expanded", String(shown));
    this.#sidebar.inert = narrow.matches && !shown;
    this.#chat.inert = shown;
  }
}
