import { ChatError } from "../../client/chat-client.js";
import { countCodePoints, dropCodePoints, takeCodePoints } from "../../client/code-points.js";
import { element, part } from "../elements/dom.js";
import { COMMON, languageName } from "../words/languages.js";
import { t } from "../words/translate.js";

/** The most code points of one growth. A frame takes more; a long pasted text is sent in parts. */
const MOST_AT_ONCE = 8_000;
/** How long a growth waits that the server could not take at the moment. Then it is sent again. */
const AGAIN_MS = 1_000;
/** The part of a text whose words are whole: a blank or a mark follows them. */
const WHOLE = /^[^]*(?:\s|[。！？，、；：])/u;

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {{source: string, target: string, publishPolicy: "segment" | "agreement"}} InterpretOptions */

/**
 * The live translation in one conversation: takes words as they are written, and extends the source by them. Its bar over the
 * box has the languages, and when words are shown.
 */
export class Interpreter {
  #parts;
  #from = element("select", { "aria-label": t("From") });
  #into = element("select", { "aria-label": t("Into") });
  #granularity = element("select", { "aria-label": t("Shown") });
  #choices = [this.#from, this.#into, this.#granularity];
  #state = element("p", { class: "voice-state", role: "status" });
  #done = element("button", { class: "link", type: "button", text: t("Finish"), hidden: true, onclick: () => this.#finish() });
  #bar = element("section", { class: "voice interpreting", "aria-label": t("Live translation") });
  /** @type {Reply | null} The running translation. */ #reply = null;
  /** The source as far as it was written, and how much of it the server has. */
  #source = "";
  #known = 0;
  #final = false;
  #growing = false;
  /** Whether refused text is in the box again. It is taken when the user sends it, not with the next key. */ #held = false;
  #listeners = new AbortController();

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {string} parts.conversationId
   * @param {InterpretOptions} parts.options
   * @param {() => string | undefined} parts.model
   * @param {(options: InterpretOptions) => void} parts.onOptions
   * @param {(text: string) => void} parts.onRest         text that was taken and will not be translated
   * @param {(error: ChatError) => void} parts.onTrouble
   */
  constructor(parts) {
    this.#parts = parts;
    this.#granularity.append(
      element("option", { value: "segment", text: t("Sentence by sentence") }),
      element("option", { value: "agreement", text: t("Word by word") }),
    );
    this.#granularity.value = parts.options.publishPolicy;
    this.#offer({ sources: [...COMMON], targets: [...COMMON] }, parts.options);
    for (const choice of this.#choices) choice.addEventListener("change", () => parts.onOptions(this.#options));
    const arrow = element("span", { "aria-hidden": "true", text: "→" });
    this.#bar.append(this.#from, arrow, this.#into, this.#granularity, this.#state, this.#done);
    part("composer", HTMLFormElement).before(this.#bar);
    const { signal } = this.#listeners;
    parts.client.addEventListener("reply", (event) => this.#look(/** @type {CustomEvent} */ (event).detail.reply), { signal });
    parts.client.addEventListener("ready", () => void this.#grow(), { signal });
    for (const reply of parts.client.repliesOf(parts.conversationId)) this.#look(reply);
  }

  get conversationId() {
    return this.#parts.conversationId;
  }

  /** Offers the languages that the model has. @param {{sources: string[], targets: string[]}} languages */
  offer(languages) {
    this.#offer(languages, this.#options);
  }

  /** @param {{sources: string[], targets: string[]}} languages @param {{source: string, target: string}} chosen */
  #offer({ sources, targets }, chosen) {
    const options = (/** @type {string[]} */ tags) => tags.map((tag) => element("option", { value: tag, text: languageName(tag) }));
    this.#from.replaceChildren(...options(["auto", ...sources]));
    this.#into.replaceChildren(...options(targets));
    this.#choose(chosen);
    this.#updateBar();
  }

  /** @returns {InterpretOptions} */
  get #options() {
    const publishPolicy = this.#granularity.value === "agreement" ? "agreement" : "segment";
    return { source: this.#from.value, target: this.#into.value, publishPolicy };
  }

  /**
   * Takes the whole words of a text that is being written. Returns their length in UTF-16 units: 0 while the end of the text
   * before is awaited.
   * @param {string} text
   * @param {{all: boolean}} how  whether it is a line, so that all of it is whole
   */
  take(text, { all }) {
    if (this.#final || this.#reply?.stopping || (this.#held && !all)) return 0;
    const [words] = all ? [text] : (WHOLE.exec(text) ?? [""]);
    if (words.trim() === "" && this.#reply === null) return 0;
    if (words === "") return 0;
    this.#held = false;
    if (this.#reply !== null) this.#updateBar();
    else {
      const { client, conversationId, model } = this.#parts;
      this.#follow(client.interpret({ conversationId, onBusy: "interrupt", model: model(), ...this.#options }));
    }
    this.#source += all ? `${words}\n` : words;
    void this.#grow();
    return words.length;
  }

  stop() {
    this.#listeners.abort();
    if (!this.#growing) this.#giveBack(); // else all of it is on its way
    this.#bar.remove();
  }

  #finish() {
    this.#final = true;
    this.#updateBar();
    void this.#grow();
  }

  /** Sends what the server does not have. What was lost with a connection is sent again on the next one. */
  async #grow() {
    if (this.#growing) return;
    this.#growing = true;
    try {
      while (await this.#growOnce());
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (!error.lost) this.#refused(error);
    } finally {
      this.#growing = false;
    }
  }

  /** Gives back what the server will never take. The server's source counts. @param {ChatError} error */
  #refused(error) {
    if (error.retryable) return void setTimeout(() => void this.#grow(), error.retryAfterMs ?? AGAIN_MS);
    this.#giveBack();
    // A full source ends here; the text in the box begins the next one.
    this.#final = error.code === "content_too_long" && this.#reply !== null;
    this.#updateBar();
    this.#parts.onTrouble(error);
    if (this.#final) setTimeout(() => void this.#grow());
  }

  /** Gives back text that was taken, but that the server does not have. */
  #giveBack() {
    const source = this.#reply?.content ?? "";
    const has = this.#source.startsWith(source) ? countCodePoints(source) : 0;
    const rest = dropCodePoints(this.#source, Math.max(this.#known, has));
    this.#source = source;
    this.#known = countCodePoints(source);
    if (rest.trim() === "") return;
    this.#held = true;
    this.#parts.onRest(rest);
  }

  async #growOnce() {
    const reply = this.#reply;
    const rest = dropCodePoints(this.#source, this.#known);
    const most = takeCodePoints(rest, MOST_AT_ONCE);
    const text = most === rest ? rest : (WHOLE.exec(most)?.[0] ?? most);
    const final = this.#final && text === rest;
    if (reply === null || reply.turnId === null || !reply.open || reply.stopping || (text === "" && !final)) return false;
    if (this.#parts.client.connection.state !== "connected") return false;
    const { chars, final: ended } = await this.#parts.client.appendSource({ conversationId: this.conversationId, off: this.#known, text, final });
    if (this.#reply === reply) this.#known = Math.max(this.#known, Math.min(chars, countCodePoints(this.#source)));
    return !ended;
  }

  /** @param {Reply} reply */
  #look(reply) {
    if (reply.conversationId !== this.conversationId || reply.interprets === null) return;
    if (reply.open && !reply.stopping && this.#reply === null) {
      // One that runs already: after a reload, or begun by another device. Of one that is continued, the history brings the source.
      if (reply.content !== null || reply.continues === null) this.#follow(reply);
    }
    if (reply !== this.#reply) return;
    if (!reply.open) this.#detach(reply);
    else void this.#grow();
  }

  /** @param {Reply | null} reply */
  #follow(reply) {
    this.#reply = reply;
    this.#source = reply?.content ?? "";
    this.#known = countCodePoints(this.#source);
    this.#final = false;
    this.#updateBar();
  }

  /** @param {Reply} reply */
  #detach({ error }) {
    this.#giveBack();
    this.#follow(null);
    if (error !== null) this.#parts.onTrouble(error);
  }

  #updateBar() {
    const languages = this.#reply?.interprets ?? null;
    for (const choice of this.#choices) choice.disabled = languages !== null;
    this.#done.hidden = languages === null || this.#final;
    if (languages !== null) this.#choose(languages);
    const words = this.#wordsFor(languages !== null);
    if (this.#state.textContent !== words) this.#state.textContent = words;
  }

  /** @param {boolean} running */
  #wordsFor(running) {
    if (this.#final) return t("Translating the rest; what you write waits");
    if (this.#held) return t("The refused text is in the box again; Enter sends it");
    return running ? t("Translating as you type") : t("Type: a word is translated once you begin the next");
  }

  /** Chooses languages. The first of a list stands for one that is not offered. @param {{source: string, target: string}} languages */
  #choose({ source, target }) {
    for (const [choice, value] of /** @type {const} */ ([[this.#from, source], [this.#into, target]])) {
      choice.value = value;
      if (choice.value !== value && choice.options.length > 0) choice.selectedIndex = 0;
    }
  }
}
