import { LinkState } from "../../client/link.js";
import { part } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** @typedef {import("./transcript.js").Transcript} Transcript */

const OFFER = t("Show earlier messages");
const LOADING = t("Loading earlier messages");

/** Loads older messages when the reader comes near the first loaded one. The button is for the keyboard, and after failures. */
export class OlderPages {
  #button = part("older", HTMLButtonElement);
  #scroller = part("scroller", HTMLElement);
  #parts;
  /** @type {Set<Transcript>} Transcripts whose page is awaited. */ #loading = new Set();
  /** @type {Set<Transcript>} Transcripts whose last page failed: the user asks for it again. */ #failed = new Set();

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {() => Transcript} parts.current  the one that is shown
   * @param {() => void} parts.onCame         older messages have come
   */
  constructor(parts) {
    this.#parts = parts;
    this.#button.addEventListener("click", () => void this.#load(this.#parts.current()));
  }

  /** Shows whether there are older messages. */
  show() {
    const transcript = this.#parts.current();
    const loading = this.#loading.has(transcript);
    if (!transcript.hasMore && document.activeElement === this.#button) this.#scroller.focus();
    this.#button.hidden = !transcript.hasMore;
    this.#button.setAttribute("aria-disabled", String(loading));
    const word = loading ? LOADING : OFFER;
    if (this.#button.textContent !== word) this.#button.textContent = word;
  }

  /** Call on a new connection: pages that failed may be asked for automatically again. */
  again() {
    this.#failed.clear();
  }

  /** Call when the reader is near the first message. */
  near() {
    const transcript = this.#parts.current();
    const connected = this.#parts.client.connection.state === LinkState.CONNECTED;
    if (connected && transcript.hasMore && !this.#failed.has(transcript)) void this.#load(transcript);
  }

  /** @param {Transcript} transcript */
  async #load(transcript) {
    if (this.#loading.has(transcript)) return;
    this.#loading.add(transcript);
    this.show();
    const { oldest } = transcript;
    await this.#parts.notices.answer(readOlder(this.#parts.client, transcript, () => true));
    this.#loading.delete(transcript);
    if (transcript.hasMore && transcript.oldest === oldest) this.#failed.add(transcript);
    else this.#failed.delete(transcript);
    this.#parts.onCame();
  }
}

/** @typedef {import("../../client/frames.js").History} History */

/** Messages of a page: the most that the service gives. */
export const PAGE = 200;

/**
 * Pages of a conversation's history, newest first, until there are no older ones. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {object} options
 * @param {string} options.conversationId
 * @param {string} [options.before]  a message, for the pages before it; without it, from the end of the active branch
 * @returns {AsyncGenerator<History, void, void>}
 */
export async function* pagesOf(client, { conversationId, before }) {
  for (;;) {
    const page = await client.history({ conversationId, before, limit: PAGE });
    yield page;
    if (!page.has_more || page.messages.length === 0) return;
    before = page.messages[0].message_id;
  }
}

/**
 * Reads older messages into a transcript until `enough`, or until there are no more. Raises ChatError.
 * @param {import("../../client/chat-client.js").ChatClient} client
 * @param {import("./transcript.js").Transcript} transcript
 * @param {() => boolean} enough  asked before each further page
 */
export async function readOlder(client, transcript, enough) {
  let { oldest: before } = transcript;
  if (!transcript.hasMore) return;
  for await (const page of pagesOf(client, { conversationId: transcript.conversationId, before })) {
    if (transcript.oldest !== before) return; // Another branch may be shown by now.
    transcript.prepend(page);
    if (enough()) return;
    before = transcript.oldest;
  }
}
