import { element, part } from "../elements/dom.js";
import { COMMON, languageName } from "../words/languages.js";
import { t } from "../words/translate.js";

/** @typedef {{source: string, target: string, publishPolicy: "segment" | "agreement"}} InterpretOptions */

/** The bar over the box: the languages, and when words are shown. */
export class InterpretingBar {
  #source = element("select", { "aria-label": t("From") });
  #target = element("select", { "aria-label": t("Into") });
  #granularity = element("select", { "aria-label": t("Shown") });
  #state = element("p", { class: "voice-state", role: "status" });
  #done = element("button", { class: "link", type: "button", text: t("Finish"), hidden: true });

  /**
   * @param {object} parts
   * @param {InterpretOptions} parts.options
   * @param {(options: InterpretOptions) => void} parts.onOptions
   * @param {() => void} parts.onDone
   */
  constructor({ options, onOptions, onDone }) {
    this.offer({ sources: [...COMMON], targets: [...COMMON] }, options);
    this.#granularity.append(
      element("option", { value: "segment", text: t("Sentence by sentence") }),
      element("option", { value: "agreement", text: t("Word by word") }),
    );
    this.#granularity.value = options.publishPolicy;
    for (const choice of [this.#source, this.#target, this.#granularity]) choice.addEventListener("change", () => onOptions(this.options));
    this.#done.addEventListener("click", onDone);
    const arrow = element("span", { "aria-hidden": "true", text: "→" });
    this.root = element("section", { class: "voice interpreting", "aria-label": t("Live translation") });
    this.root.append(this.#source, arrow, this.#target, this.#granularity, this.#state, this.#done);
    part("composer", HTMLFormElement).before(this.root);
  }

  /** @returns {InterpretOptions} */
  get options() {
    const publishPolicy = this.#granularity.value === "agreement" ? "agreement" : "segment";
    return { source: this.#source.value, target: this.#target.value, publishPolicy };
  }

  /** Offers these languages. @param {{sources: string[], targets: string[]}} languages @param {{source: string, target: string}} chosen */
  offer({ sources, targets }, chosen) {
    const options = (/** @type {string[]} */ tags) => tags.map((tag) => element("option", { value: tag, text: languageName(tag) }));
    this.#source.replaceChildren(...options(["auto", ...sources]));
    this.#target.replaceChildren(...options(targets));
    choose(this.#source, chosen.source);
    choose(this.#target, chosen.target);
  }

  /**
   * @param {import("../../client/frames.js").Languages | null} running  the languages of the running translation
   * @param {"end" | "user" | null} waiting  what the text in the box waits for: the end of the translation, or the user
   */
  update(running, waiting) {
    for (const choice of [this.#source, this.#target, this.#granularity]) choice.disabled = running !== null;
    this.#done.hidden = running === null || waiting === "end";
    if (running !== null) {
      choose(this.#source, running.source);
      choose(this.#target, running.target);
    }
    const words = wordsFor(running !== null, waiting);
    if (this.#state.textContent !== words) this.#state.textContent = words;
  }

  remove() {
    this.root.remove();
  }
}

/** @param {boolean} running @param {"end" | "user" | null} waiting */
function wordsFor(running, waiting) {
  if (waiting === "end") return t("Translating the rest; what you write waits");
  if (waiting === "user") return t("The refused text is in the box again; Enter sends it");
  return running ? t("Translating as you type") : t("Type: a word is translated once you begin the next");
}

/** @param {HTMLSelectElement} choice @param {string} value */
function choose(choice, value) {
  choice.value = value;
  if (choice.value === value) return;
  if (choice.options.length > 0) choice.selectedIndex = 0;
}
