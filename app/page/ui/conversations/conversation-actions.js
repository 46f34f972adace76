import { copyButton } from "../elements/copy-button.js";
import { part } from "../elements/dom.js";
import { t } from "../words/translate.js";
import { editTitle } from "./title-field.js";
import { pagesOf } from "../transcript/transcript.js";

/** The menu of the shown conversation: renames, shares, exports and prints it. */
export class ConversationActions {
  #menu = part("menu", HTMLElement);
  #button = part("menu-button", HTMLButtonElement);
  #title = part("title", HTMLElement);
  #shared = part("share", HTMLDialogElement);
  #link = part("share-link", HTMLInputElement);
  #parts;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {() => string} parts.current                                    the id of the conversation that is shown
   * @param {(conversationId: string, title: string) => void} parts.onRename
   */
  constructor(parts) {
    this.#parts = parts;
    for (const button of this.#menu.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.#menu.hidePopover();
        void this.#do(button.dataset.action ?? "");
      });
    }
    this.#link.after(copyButton(t("Copy the link"), () => this.#link.value));
    part("share-done", HTMLButtonElement).addEventListener("click", () => this.#shared.close());
  }

  /** @param {boolean} anything  whether something was said in the conversation */
  offer(anything) {
    this.#button.hidden = !anything;
    const share = /** @type {HTMLButtonElement} */ (this.#menu.querySelector("[data-action=share]"));
    share.hidden = !(this.#parts.client.ready?.features?.includes("share") ?? false);
  }

  /** @param {string} action */
  async #do(action) {
    const { client, notices, current } = this.#parts;
    if (action === "rename") return this.#rename();
    if (action === "share") return this.#share();
    if (action === "print") return globalThis.print();
    const messages = await notices.answer(readAll(client, current()));
    const format = action === "json" ? "json" : "markdown";
    if (messages !== null) save(format, { title: this.#title.textContent ?? "", messages });
  }

  /** Shows the link of the conversation, which can be copied or revoked. */
  async #share() {
    const { client, notices, current } = this.#parts;
    const conversationId = current();
    const shareId = await notices.answer(client.share(conversationId));
    if (shareId === null) return;
    part("share-stop", HTMLButtonElement).onclick = () => {
      void notices.answer(client.unshare(conversationId));
      this.#shared.close();
    };
    this.#link.value = new URL(`s/${shareId}`, location.href).href;
    this.#shared.showModal();
    this.#link.select();
  }

  /** Lets the user edit the title in its place. */
  #rename() {
    const conversationId = this.#parts.current();
    const onClose = (/** @type {string | null} */ title) => {
      if (title !== null) this.#parts.onRename(conversationId, title);
    };
    editTitle(this.#title, this.#title.textContent ?? "", { focus: this.#button, onClose });
  }
}

/** A conversation as a file: its active branch, as the server keeps it. */

/** @typedef {import("../../client/frames.js").Message} Message */
/** @typedef {{title: string, messages: Message[]}} Conversation */

/** @type {Record<string, {extension: string, type: string, write: (conversation: Conversation) => string}>} */
const FORMATS = {
  markdown: { extension: "md", type: "text/markdown", write: markdownOf },
  json: { extension: "json", type: "application/json", write: jsonOf },
};

/**
 * Every message of a conversation's active branch, oldest first. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {string} conversationId
 * @returns {Promise<Message[]>}
 */
async function readAll(client, conversationId) {
  /** @type {Message[][]} */ const pages = [];
  for await (const { messages } of pagesOf(client, { conversationId })) pages.unshift(messages);
  return pages.flat();
}

/**
 * Saves a conversation as a file.
 * @param {"markdown" | "json"} format
 * @param {Conversation} conversation
 */
function save(format, conversation) {
  const { extension, type, write } = FORMATS[format];
  const url = URL.createObjectURL(new Blob([write(conversation)], { type: `${type};charset=utf-8` }));
  const link = Object.assign(document.createElement("a"), { href: url, download: `${fileName(conversation.title)}.${extension}` });
  link.click();
  // The browser reads it only after this task.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** @param {Conversation} conversation */
function markdownOf({ title, messages }) {
  const parts = messages.map((message) => `## ${message.role === "user" ? t("You") : t("Reply")}\n\n${bodyOf(message)}`);
  return `${[`# ${title}`, ...parts].join("\n\n")}\n`;
}

/** @param {Message} message */
function bodyOf({ content, reasoning, calls = [], attachments = [], status }) {
  const thought = reasoning ? [`<details><summary>Thought</summary>\n\n${reasoning}\n\n</details>`] : [];
  const called = calls.map(({ name, args, content: result, error }) => `> Called \`${name}\` with \`${args}\`: ${result ?? error ?? "no result"}`);
  const cut = status === "complete" || status === "running" ? [] : [`*(${status})*`];
  const shown = attachments.map(({ media_type: type, width, height }) => `*(${type}, ${width} × ${height})*`);
  return [...thought, ...shown, content, ...called, ...cut].filter(Boolean).join("\n\n");
}

/** @param {Conversation} conversation */
function jsonOf({ title, messages }) {
  const exported = messages.map(({ role, content, status, created_at: at, model, reasoning, calls, attachments }) => {
    return { role, content, status, created_at: new Date(at).toISOString(), model, reasoning, calls, attachments };
  });
  return `${JSON.stringify({ title, messages: exported }, null, 2)}\n`;
}

/** A title as a valid file name. @param {string} title */
function fileName(title) {
  const name = title.replaceAll(/[\p{Cc}\p{Cf}<>:"/\\|?*]/gu, " ").replaceAll(/\s+/g, " ").trim();
  return [...name].slice(0, 80).join("").replace(/[. ]+$/, "") || "conversation";
}
