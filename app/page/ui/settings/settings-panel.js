import { element, part } from "../elements/dom.js";
import { LANGUAGES, chooseLanguage, chosenLanguage, t } from "../words/translate.js";
import { notifications } from "./notifications.js";

/** @typedef {import("./choices.js").Choice} Choice */
/** @typedef {import("../../client/frames.js").Ready} Ready */
/** @typedef {import("../../client/frames.js").Model} Model */

/** The dialog for a conversation's settings, and for the look of the page. */
export class SettingsPanel {
  #dialog = part("settings", HTMLDialogElement);
  #form = part("settings-form", HTMLFormElement);
  #model = part("setting-model", HTMLSelectElement);
  #system = part("setting-system", HTMLTextAreaElement);
  #temperature = part("setting-temperature", HTMLInputElement);
  #tokens = part("setting-tokens", HTMLInputElement);
  #reasoning = part("setting-reasoning", HTMLSelectElement);
  #pace = part("setting-pace", HTMLSelectElement);
  #theme = part("setting-theme", HTMLSelectElement);
  #language = part("setting-language", HTMLSelectElement);
  #notify = part("setting-notify", HTMLInputElement);
  #lasting = "";
  #actions;
  /** @type {Ready | null} */ #ready = null;

  /**
   * @param {object} actions
   * @param {() => Choice} actions.choice            of the shown conversation
   * @param {(choice: Choice) => void} actions.onChoose
   * @param {() => string | null} actions.model      the model that wrote last in it
   * @param {import("./theme.js").Theme} actions.theme
   */
  constructor(actions) {
    this.#actions = actions;
    for (const [tag, name] of Object.entries(LANGUAGES)) this.#language.append(element("option", { value: tag, text: name, lang: tag }));
    this.#form.addEventListener("submit", (event) => this.#submit(event));
    this.#model.addEventListener("change", () => this.#fitToModel());
    this.#notify.addEventListener("change", () => void this.#switchNotifications());
    part("settings-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    part("settings-reset", HTMLButtonElement).addEventListener("click", () => this.#fill({}));
    for (const opener of document.querySelectorAll("[data-opens=settings]")) {
      opener.addEventListener("click", () => this.open());
    }
  }

  /** @param {Ready} ready */
  know(ready) {
    this.#ready = ready;
  }

  open() {
    this.#fill(this.#actions.choice());
    this.#theme.value = this.#actions.theme.chosen;
    this.#language.value = chosenLanguage();
    rowOf(this.#notify).hidden = !notifications.possible;
    this.#notify.checked = notifications.enabled;
    this.#dialog.showModal();
  }

  /** @param {Choice} choice */
  #fill(choice) {
    const models = (this.#ready?.models ?? []).filter(({ features }) => !(features?.includes("translate") ?? false));
    const lasting = this.#actions.model() ?? this.#ready?.model ?? "";
    const unchanged = element("option", { value: "", text: t("Unchanged") });
    this.#model.replaceChildren(unchanged, ...models.map(({ name }) => element("option", { value: name, text: name })));
    this.#model.value = choice.model ?? "";
    this.#lasting = lasting;
    rowOf(this.#model).hidden = models.length < 2;
    this.#system.value = choice.system ?? "";
    this.#temperature.value = written(choice.temperature);
    this.#tokens.value = written(choice.maxTokens);
    this.#pace.value = written(choice.pace);
    this.#fitToModel();
    this.#reasoning.value = choice.reasoning ?? "";
  }

  /** Shows the settings that the chosen model supports. */
  #fitToModel() {
    const named = this.#model.value || this.#lasting;
    const model = this.#ready?.models?.find(({ name }) => name === named);
    const unsupported = new Set(model?.unsupported ?? []);
    this.#temperature.disabled = unsupported.has("temperature");
    this.#tokens.max = written(model?.context_tokens ?? this.#ready?.limits.max_new_tokens ?? undefined);
    rowOf(this.#reasoning).hidden = !(model?.features?.includes("reasoning") ?? false);
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    this.#actions.onChoose(this.#choice());
    this.#actions.theme.choose(this.#theme.value);
    this.#dialog.close();
    if (this.#language.value === chosenLanguage()) return;
    chooseLanguage(this.#language.value);
    location.reload(); // drafts stay, and a running reply is resumed
  }

  /** Switches notifications at once, since the browser may ask the user. */
  async #switchNotifications() {
    if (this.#notify.checked) this.#notify.checked = await notifications.enable();
    else notifications.disable();
  }

  /** @returns {Choice} */
  #choice() {
    const before = this.#actions.choice();
    const system = this.#system.value.trim();
    return {
      ...valueIn("model", this.#model, before.model),
      // A system prompt stays with the conversation until an empty one removes it.
      ...(system === "" && before.system === undefined ? {} : { system }),
      ...numberIn("temperature", this.#temperature),
      ...numberIn("maxTokens", this.#tokens),
      ...(this.#pace.value === "" ? {} : { pace: Number(this.#pace.value) }),
      ...valueIn("reasoning", this.#reasoning, before.reasoning),
    };
  }
}

/** The panel's row of a control. @param {HTMLElement} control */
function rowOf(control) {
  return /** @type {HTMLElement} */ (control.closest(".setting"));
}

/**
 * A control's value. One that is not offered now, as before the first connection, keeps its old value.
 * @param {string} name
 * @param {HTMLSelectElement} control
 * @param {string | undefined} before
 */
function valueIn(name, control, before) {
  const value = rowOf(control).hidden ? before : control.value;
  return value ? { [name]: value } : {};
}

/** @param {number | undefined} value */
function written(value) {
  return value === undefined ? "" : String(value);
}

/**
 * @param {string} name
 * @param {HTMLInputElement} field
 */
function numberIn(name, field) {
  return field.value === "" || field.disabled ? {} : { [name]: field.valueAsNumber };
}
