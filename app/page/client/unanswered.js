const KEY = "midstream.unanswered";

/** @typedef {Record<string, any>} Frame */
/** @typedef {{messages: {frame: Frame, attachments: import("./frames.js").Attachment[]}[], stops: Frame[]}} Kept */

/** Keeps the messages and stops that the server has not answered yet, so that they outlive a reload. */
export class Unanswered {
  #storage;
  /** Stands for what was written last. */
  #written = "";

  /** @param {Storage | null} storage  one that belongs to the tab: another tab must not send them, too */
  constructor(storage) {
    this.#storage = storage;
  }

  /** What was kept before the reload. @returns {Kept} */
  read() {
    try {
      return JSON.parse(this.#storage?.getItem(KEY) ?? "null") ?? { messages: [], stops: [] };
    } catch (error) {
      if (error instanceof SyntaxError) return { messages: [], stops: [] }; // Another program wrote it.
      throw error;
    }
  }

  /** Call on every change of a reply; it writes only if something was asked or answered. @param {Kept} kept */
  write(kept) {
    const written = JSON.stringify([kept.messages.map(({ frame }) => frame.client_msg_id), kept.stops]);
    if (written === this.#written) return;
    this.#written = written;
    if (kept.messages.length + kept.stops.length === 0) return this.#storage?.removeItem(KEY);
    try {
      this.#storage?.setItem(KEY, JSON.stringify(kept));
    } catch (error) {
      // The browser has no room left. They are sent as long as the page is open.
      if (!(error instanceof DOMException)) throw error;
    }
  }

  /** Forgets them, and keeps none from now on. */
  forget() {
    this.#storage?.removeItem(KEY);
    this.#storage = null;
  }
}
