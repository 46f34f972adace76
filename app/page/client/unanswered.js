const KEY = "midstream.unanswered";

/** @typedef {Record<string, any>} Frame */
/** @typedef {{messages: {frame: Frame, attachments: import("./frames.js").Attachment[]}[], stops: Frame[]}} Kept */

/** @param {any} value @returns {any[]} */
function listOf(value) {
  return Array.isArray(value) ? value : [];
}

/** Whether it can be sent: another program may have written it. @param {any} frame */
function isRequest(frame) {
  return typeof frame?.type === "string" && typeof frame.conversation_id === "string";
}

/** @param {any} message */
function isMessage(message) {
  return isRequest(message?.frame) && typeof message.frame.client_msg_id === "string" && Array.isArray(message.attachments);
}

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
    const { messages, stops } = Object(this.#parsed());
    return { messages: listOf(messages).filter(isMessage), stops: listOf(stops).filter(isRequest) };
  }

  /** @returns {unknown} */
  #parsed() {
    try {
      return JSON.parse(this.#storage?.getItem(KEY) ?? "null");
    } catch (error) {
      if (error instanceof SyntaxError) return null; // Another program wrote it.
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
