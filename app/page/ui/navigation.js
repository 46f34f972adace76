const LAST_KEY = "midstream.conversation";

/** Decides which conversation is shown: the one in the address, the one that the user chose, or a new one. */
export class Navigation {
  #parts;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {Storage | null} parts.storage  keeps which one was shown last
   * @param {import("./transcript/transcript.js").Transcripts} parts.transcripts
   * @param {import("./screen.js").Screen} parts.screen
   * @param {import("./writing/composer.js").Composer} parts.composer
   * @param {import("./writing/drafts.js").Drafts} parts.drafts
   * @param {import("./pictures/pictures.js").Pictures} parts.pictures
   * @param {() => void} parts.onTurn       the user chose a conversation, perhaps the shown one
   */
  constructor(parts) {
    this.#parts = parts;
    addEventListener("hashchange", () => this.#onAddress());
  }

  /** Shows a conversation. @param {string} conversationId */
  open(conversationId) {
    const { client, storage, transcripts, screen, composer, drafts, onTurn } = this.#parts;
    if (screen.running.length === 0) client.leave(screen.current.conversationId);
    const transcript = transcripts.of(conversationId);
    screen.current = transcript;
    storage?.setItem(LAST_KEY, conversationId);
    if (location.hash !== addressOf(conversationId)) history.pushState(null, "", addressOf(conversationId));
    if (!transcript.loaded || transcript.items().length > 0) client.open(conversationId);
    composer.turnTo(drafts.of(conversationId));
    screen.toEnd();
    screen.ask();
    onTurn();
  }

  /** Shows an empty conversation, where the user can write at once. */
  startAnew() {
    this.open(this.#parts.transcripts.fresh().conversationId);
    this.#parts.composer.focus();
  }

  /** Takes that a conversation is gone, and forgets what was kept of it here. @param {string} conversationId */
  forget(conversationId) {
    this.#parts.transcripts.forget(conversationId);
    this.#parts.drafts.forget(conversationId);
    if (conversationId === this.#parts.screen.current.conversationId) this.startAnew();
  }

  /** Forgets all conversations. */
  clear() {
    this.#parts.storage?.removeItem(LAST_KEY);
    this.#parts.drafts.clear();
    this.#parts.pictures.clear();
  }

  #onAddress() {
    const conversationId = conversationAt(location.hash);
    if (conversationId === null || conversationId === this.#parts.screen.current.conversationId) this.#parts.onTurn();
    else this.open(conversationId);
  }
}

/** The conversation to begin with: the one in the address, else the one that was shown last; null if there is none. @param {Storage | null} storage */
export function shownLast(storage) {
  return conversationAt(location.hash) ?? storage?.getItem(LAST_KEY) ?? null;
}

/** The address of a conversation within the page: `#/` and its id. */

const ADDRESS = /^#\/([A-Za-z0-9._:-]{1,128})$/;

/** @param {string} conversationId */
export function addressOf(conversationId) {
  return `#/${conversationId}`;
}

/** The conversation that an address names; null where it names none. @param {string} hash */
export function conversationAt(hash) {
  return ADDRESS.exec(hash)?.[1] ?? null;
}
