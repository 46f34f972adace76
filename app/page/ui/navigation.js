import { addressOf, conversationAt } from "./conversations/address.js";

const LAST_KEY = "midstream.conversation";

/** Decides which conversation is shown: the one in the address, the one that the user chose, or a new one. */
export class Navigation {
  #client;
  #storage;
  #transcripts;
  #screen;
  #composer;
  #drafts;
  #pictures;
  #onTurn;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {Storage | null} parts.storage  keeps which one was shown last
   * @param {import("./transcript/transcripts.js").Transcripts} parts.transcripts
   * @param {import("./screen.js").Screen} parts.screen
   * @param {import("./writing/composer.js").Composer} parts.composer
   * @param {import("./writing/drafts.js").Drafts} parts.drafts
   * @param {import("./pictures/pictures.js").Pictures} parts.pictures
   * @param {() => void} parts.onTurn       the user chose a conversation, perhaps the shown one
   */
  constructor({ client, storage, transcripts, screen, composer, drafts, pictures, onTurn }) {
    this.#client = client;
    this.#storage = storage;
    this.#transcripts = transcripts;
    this.#screen = screen;
    this.#composer = composer;
    this.#drafts = drafts;
    this.#pictures = pictures;
    this.#onTurn = onTurn;
    addEventListener("hashchange", () => this.#onAddress());
  }

  /** Shows a conversation. @param {string} conversationId */
  open(conversationId) {
    if (this.#screen.running.length === 0) this.#client.leave(this.#screen.current.conversationId);
    const transcript = this.#transcripts.of(conversationId);
    this.#screen.current = transcript;
    this.#storage?.setItem(LAST_KEY, conversationId);
    if (location.hash !== addressOf(conversationId)) history.pushState(null, "", addressOf(conversationId));
    if (!transcript.loaded || transcript.items().length > 0) this.#client.open(conversationId);
    this.#composer.turnTo(this.#drafts.of(conversationId));
    this.#screen.toEnd();
    this.#screen.ask();
    this.#onTurn();
  }

  /** Shows an empty conversation, where the user can write at once. */
  startAnew() {
    this.open(this.#transcripts.fresh().conversationId);
    this.#composer.focus();
  }

  /** Takes that a conversation is gone, and forgets what was kept of it here. @param {string} conversationId */
  forget(conversationId) {
    this.#transcripts.forget(conversationId);
    this.#drafts.forget(conversationId);
    if (conversationId === this.#screen.current.conversationId) this.startAnew();
  }

  /** Forgets all conversations. */
  clear() {
    this.#storage?.removeItem(LAST_KEY);
    this.#drafts.clear();
    this.#pictures.clear();
  }

  #onAddress() {
    const conversationId = conversationAt(location.hash);
    if (conversationId === null || conversationId === this.#screen.current.conversationId) this.#onTurn();
    else this.open(conversationId);
  }
}

/** The conversation to begin with: the one in the address, else the one that was shown last; null if there is none. @param {Storage | null} storage */
export function shownLast(storage) {
  return conversationAt(location.hash) ?? storage?.getItem(LAST_KEY) ?? null;
}
