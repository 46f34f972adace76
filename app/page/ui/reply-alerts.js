import { ReplyState } from "../client/reply.js";
import { part, element } from "./elements/dom.js";
import { spoken } from "./markdown/speech.js";
import { t } from "./words/translate.js";
import { countCodePoints, dropCodePoints } from "../client/code-points.js";

/** @typedef {import("../client/reply.js").Reply} Reply */
/** @typedef {import("../client/call.js").Call} Call */

/** A text up to the last mark that ends a sentence. */
const WHOLE = /^[^]*(?:[.!?…]["'”’)]*(?=\s|$)|[。！？]["'”’）]*|\n)/u;
/** The pause after an announced sentence. What comes meanwhile is announced together. */
const REST_MS = 1_000;
/** How many sentences stay. Screen readers read those that are added. */
const KEPT = 4;

/**
 * Announces replies. Screen readers are told how one ended, what it says, and which calls ask for permission: once, not word by
 * word; a live translation is announced sentence by sentence, in its language. If a reply ends while the page is hidden, its
 * title gets a mark.
 */
export class ReplyAlerts {
  /** A live region, `polite`. */ #announcer = part("announcer", HTMLElement);
  /** @type {WeakMap<Reply, number>} Code points of live translations that were announced, or were there before. */ #announcedChars = new WeakMap();
  /** @type {WeakSet<Reply>} Live translations whose end was announced. */ #ended = new WeakSet();
  #resting = false;
  /** @type {WeakSet<Reply | Call>} The calls that asked, and the replies that ended. */ #announced = new WeakSet();
  #parts;

  /**
   * @param {object} parts
   * @param {import("./page-title.js").PageTitle} parts.title
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {() => string} parts.current  the id of the conversation that is shown
   */
  constructor(parts) {
    this.#parts = parts;
  }

  /** Call when a reply changed. @param {Reply} reply */
  look(reply) {
    if (reply.conversationId === this.#parts.current()) this.#announce(reply);
    if (hasEnded(reply) && this.#isNew(reply) && document.hidden) this.#parts.title.mark();
    // A refused message shows its own reason. A regenerated reply has no message that could show it.
    if (reply.error !== null && reply.content === null) this.#parts.notices.report(reply.error);
  }

  /** @param {Reply} reply */
  #announce(reply) {
    if (reply.interprets !== null) return this.#announceTranslation(reply);
    for (const call of reply.calls) {
      if (!call.needsDecision || !this.#isNew(call)) continue;
      this.#announcer.textContent = t("{name} needs your permission. Allow or deny it in the conversation.", { name: call.name });
    }
    const goesOn = reply.done === null ? reply.calls.length > 0 : reply.done.reason === "tools";
    if (reply.state === ReplyState.ENDED && !goesOn) void this.#announceEnd(reply);
  }

  /** @param {Reply} reply */
  async #announceEnd(reply) {
    const how = reply.done?.reason === "stop" ? t("Reply") : t("Reply, cut short");
    this.#announcer.textContent = `${how}: ${await spoken(reply.text)}`;
  }

  /** @param {Reply} reply */
  #announceTranslation(reply) {
    if (!this.#announcedChars.has(reply)) this.#announcedChars.set(reply, reply.alignment.at(-1)?.[0] ?? reply.chars);
    if (reply.state === ReplyState.ENDED) this.#announceTranslationEnd(reply);
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
  #announceTranslationEnd(reply) {
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
    this.#announcer.append(line);
    while (this.#announcer.childNodes.length > KEPT) this.#announcer.firstChild?.remove();
  }

  /** Whether it was not announced before. @param {Reply | Call} subject */
  #isNew(subject) {
    if (this.#announced.has(subject)) return false;
    this.#announced.add(subject);
    return true;
  }
}

/** Whether nothing follows; after calls comes the next reply. @param {Reply} reply */
function hasEnded({ open, state, done }) {
  return !open && (state === ReplyState.ENDED ? done !== null && done.reason !== "tools" : true);
}
