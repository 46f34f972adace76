import { element, part } from "../elements/dom.js";
import { LANGUAGES, chooseLanguage, chosenLanguage, t } from "../words/translate.js";
import { Kept } from "./kept.js";

/**
 * The user's settings for one conversation. Missing ones are the server's.
 * @typedef {object} Choice
 * @property {string} [model]
 * @property {string} [system]        the system prompt; empty: none
 * @property {number} [temperature]   0 to 2
 * @property {number} [maxTokens]     the most tokens of one reply
 * @property {number} [pace]          characters a second
 * @property {string} [reasoning]     `auto`, `off`, or an effort that the model knows
 */

/** Choices are short, so those of many conversations are kept. */
const BOUNDS = { most: 5_000, units: 1_000_000 };
/** Which of them are numbers. */
const NUMBERS = new Set(["temperature", "maxTokens", "pace"]);

/** The settings of the shown conversation, the model that follows from them, and the dialog for them and for the look of the page. */
export class ConversationSettings {
  /** @type {Kept<Choice>} */ #choices;
  #parts;
  #label = part("model", HTMLElement);
  #dialog = part("settings", HTMLDialogElement);
  #controls = {
    model: part("setting-model", HTMLSelectElement),
    system: part("setting-system", HTMLTextAreaElement),
    temperature: part("setting-temperature", HTMLInputElement),
    maxTokens: part("setting-tokens", HTMLInputElement),
    reasoning: part("setting-reasoning", HTMLSelectElement),
    pace: part("setting-pace", HTMLSelectElement),
  };
  #theme = part("setting-theme", HTMLSelectElement);
  #language = part("setting-language", HTMLSelectElement);

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("./kept.js").Places} parts.places  keeps what was chosen
   * @param {import("./theme.js").Theme} parts.theme
   * @param {() => import("../transcript/transcript.js").Transcript} parts.current
   * @param {() => void} parts.onChange                        the choice has changed
   */
  constructor(parts) {
    this.#parts = parts;
    this.#choices = new Kept("midstream.conversation-settings", parts.places, BOUNDS);
    for (const [tag, name] of Object.entries(LANGUAGES)) this.#language.append(element("option", { value: tag, text: name, lang: tag }));
    part("settings-form", HTMLFormElement).addEventListener("submit", (event) => this.#submit(event));
    this.#controls.model.addEventListener("change", () => this.#fitToModel());
    part("settings-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    part("settings-reset", HTMLButtonElement).addEventListener("click", () => this.#fill({}));
    for (const opener of document.querySelectorAll("[data-opens=settings]")) opener.addEventListener("click", () => this.#open());
  }

  /** The parameters of the conversation's next message. @returns {import("../../client/frames.js").Params | undefined} */
  get params() {
    const { model, system, temperature, maxTokens, pace, reasoning } = this.#choice;
    const params = { model, system, temperature, max_new_tokens: maxTokens, chars_per_s: pace, reasoning };
    return Object.values(params).some((value) => value !== undefined) ? params : undefined;
  }

  /** The model for the next message; null before it is known. */
  get model() {
    return this.modelInPlaceOf(null);
  }

  /**
   * The model for a regenerated reply or an edited message; null before it is known. It is the chosen one, else the one that
   * was asked before, if they are served.
   * @param {string | null} messageId  null: for a new message
   */
  modelInPlaceOf(messageId) {
    const { ready } = this.#parts.client;
    const before = messageId === null ? null : this.#parts.current().modelOf(messageId);
    const names = [this.#choice.model, before, this.#parts.current().model, ready?.model];
    const served = names.map((name) => ready?.models?.find((model) => model.name === name));
    return served.find((model) => model !== undefined) ?? null;
  }

  /** Shows which model answers. */
  show() {
    this.#label.textContent = this.model?.name ?? this.#parts.client.ready?.model ?? "";
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#choices.keep(conversationId, null);
  }

  /** Forgets all choices. */
  clear() {
    this.#choices.clear();
  }

  /** @returns {Choice} */
  get #choice() {
    return this.#choices.of(this.#parts.current().conversationId) ?? {};
  }

  #open() {
    this.#fill(this.#choice);
    this.#theme.value = this.#parts.theme.chosen;
    this.#language.value = chosenLanguage();
    this.#dialog.showModal();
  }

  /** @param {Choice} choice */
  #fill(choice) {
    const models = (this.#parts.client.ready?.models ?? []).filter(({ features }) => !(features?.includes("translate") ?? false));
    const unchanged = element("option", { value: "", text: t("Default model") });
    this.#controls.model.replaceChildren(unchanged, ...models.map(({ name }) => element("option", { value: name, text: name })));
    rowOf(this.#controls.model).hidden = models.length < 2;
    for (const [name, control] of Object.entries(this.#controls)) control.value = String(choice[/** @type {keyof Choice} */ (name)] ?? "");
    this.#fitToModel();
  }

  /** Shows the settings that the chosen model supports. */
  #fitToModel() {
    const { ready } = this.#parts.client;
    const { model: chosen, temperature, maxTokens, reasoning } = this.#controls;
    const named = chosen.value || (this.#parts.current().model ?? ready?.model);
    const model = ready?.models?.find(({ name }) => name === named);
    temperature.disabled = model?.unsupported?.includes("temperature") ?? false;
    maxTokens.max = String(model?.context_tokens ?? ready?.limits.max_new_tokens ?? "");
    rowOf(reasoning).hidden = !(model?.features?.includes("reasoning") ?? false);
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const choice = this.#filledIn();
    this.#choices.keep(this.#parts.current().conversationId, Object.keys(choice).length > 0 ? choice : null);
    this.show();
    this.#parts.onChange();
    this.#parts.theme.choose(this.#theme.value);
    this.#dialog.close();
    if (this.#language.value === chosenLanguage()) return;
    chooseLanguage(this.#language.value);
    location.reload(); // drafts stay, and a running reply is resumed
  }

  /** @returns {Choice} */
  #filledIn() {
    const before = this.#choice;
    /** @type {Record<string, string | number>} */ const choice = {};
    for (const [name, control] of Object.entries(this.#controls)) {
      // One that is not offered now, as before the first connection, keeps its old value.
      const value = rowOf(control).hidden ? before[/** @type {keyof Choice} */ (name)] : control.value.trim();
      // A system prompt stays with the conversation until an empty one removes it.
      const empty = value === "" && (name !== "system" || before.system === undefined);
      if (value !== undefined && !empty && !control.disabled) choice[name] = NUMBERS.has(name) ? Number(value) : value;
    }
    return choice;
  }
}

/** The panel's row of a control. @param {HTMLElement} control */
function rowOf(control) {
  return /** @type {HTMLElement} */ (control.closest(".setting"));
}
