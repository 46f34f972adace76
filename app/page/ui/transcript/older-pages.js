import { LinkState } from "../../client/link.js";
import { part } from "../elements/dom.js";
import { readOlder } from "./pages.js";
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
