import { countCodePoints, dropCodePoints } from "../client/code-points.js";
import { ReplyState } from "../client/reply.js";
import { element } from "./elements/dom.js";
import { t } from "./words/translate.js";

/** A text up to the last mark that ends a sentence. */
const WHOLE = /^[^]*(?:[.!?…]["'”’)]*(?=\s|$)|[。！？]["'”’）]*|\n)/u;
/** The pause after an announcement. What comes meanwhile is announced together. */
const REST_MS = 1_000;
/** How many sentences stay. Screen readers read those that are added. */
const KEPT = 4;

/** @typedef {import("../client/reply.js").Reply} Reply */

/** Tells screen readers a live translation while it comes: each sentence once, in its language. */
export class SentenceAnnouncer {
  #root;
  /** @type {WeakMap<Reply, number>} Code points that were announced, or were there before. */ #announcedChars = new WeakMap();
  /** @type {WeakSet<Reply>} */ #ended = new WeakSet();
  #resting = false;

  /** @param {HTMLElement} root  a live region, `polite` */
  constructor(root) {
    this.#root = root;
  }

  /** Call when a live translation changed. @param {Reply} reply */
  announce(reply) {
    if (!this.#announcedChars.has(reply)) this.#announcedChars.set(reply, reply.alignment.at(-1)?.[0] ?? reply.chars);
    if (reply.state === ReplyState.ENDED) this.#end(reply);
    else if (!this.#resting) this.#announceWhole(reply);
  }

  /** @param {Reply} reply */
  #announceWhole(reply) {
    const [whole] = WHOLE.exec(this.#behind(reply, reply.visible)) ?? [""];
    if (!/[\p{L}\p{N}]/u.test(whole) || this.#ended.has(reply)) return;
    this.#announceText(reply, whole);
    this.#resting = true;
    setTimeout(() => {
      this.#resting = false;
      this.#announceWhole(reply);
    }, REST_MS);
  }

  /** Announces what is left, and whether the reply is complete. @param {Reply} reply */
  #end(reply) {
    if (this.#ended.has(reply)) return;
    this.#ended.add(reply);
    const rest = this.#behind(reply, reply.text);
    if (rest.trim() !== "") this.#announceText(reply, rest);
    if (reply.done?.reason !== "stop") this.#append(element("span", { text: t("Reply, cut short") }));
  }

  /** The part of a text that was not announced. @param {Reply} reply @param {string} text */
  #behind(reply, text) {
    return dropCodePoints(text, this.#announcedChars.get(reply) ?? 0);
  }

  /** @param {Reply} reply @param {string} text */
  #announceText(reply, text) {
    this.#announcedChars.set(reply, (this.#announcedChars.get(reply) ?? 0) + countCodePoints(text));
    this.#append(element("span", { lang: reply.interprets?.target ?? null, text: `${text.trim()} ` }));
  }

  /** @param {HTMLElement} line */
  #append(line) {
    this.#root.append(line);
    while (this.#root.childNodes.length > KEPT) this.#root.firstChild?.remove();
  }
}
