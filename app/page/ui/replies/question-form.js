import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/call.js").Question} Question */
/**
 * A field of MCP's restricted schemas. The server has checked it.
 * @typedef {object} Field
 * @property {"string" | "number" | "integer" | "boolean" | "array"} type
 * @property {string} [title]
 * @property {string} [description]
 * @property {string[]} [enum]
 * @property {string[]} [enumNames]
 * @property {{const: string, title?: string}[]} [oneOf]
 * @property {{enum?: string[], anyOf?: {const: string, title?: string}[]}} [items]
 * @property {unknown} [default]
 * @property {number} [minimum]
 * @property {number} [maximum]
 * @property {number} [minLength]
 * @property {number} [maxLength]
 * @property {string} [format]
 */
/** @typedef {HTMLInputElement | HTMLSelectElement} Input */

/** Formats of text for which browsers have a keyboard and a check. @type {Record<string, string>} */
const KINDS = { email: "email", uri: "url", date: "date" };

let forms = 0;

/** A question of a running tool: its words, a field for each value that it asks for, and two buttons. */
export class QuestionForm {
  root = element("form", { class: "call-question" });
  /** @type {Map<string, {field: Field, input: Input}>} */ #inputs = new Map();
  #onAnswer;

  /** @param {Question} question @param {(content: string | null) => Promise<unknown>} onAnswer  null: declined */
  constructor(question, onAnswer) {
    this.#onAnswer = onAnswer;
    const { properties = {}, required = [] } = JSON.parse(question.schema);
    const words = element("p", { class: "call-asks", dir: "auto", text: question.message });
    const buttons = element("div", { class: "call-ask" });
    const no = element("button", { class: "plain", type: "button", text: t("Decline"), onclick: () => void this.#answer(null) });
    buttons.append(element("button", { class: "go", type: "submit", text: t("Answer") }), no);
    this.root.append(words, ...this.#fields(properties, new Set(required)), buttons);
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#answer(JSON.stringify(this.#content()));
    });
  }

  /** @param {Record<string, Field>} properties @param {Set<string>} required */
  #fields(properties, required) {
    forms += 1;
    return Object.entries(properties).map(([name, field], place) => {
      const input = inputOf(field, required.has(name));
      input.id = `question-${forms}-${place}`;
      this.#inputs.set(name, { field, input });
      const label = element("label", { for: input.id, dir: "auto", text: field.title ?? name });
      const row = element("div", { class: "call-field" }, label, input);
      if (field.description === undefined) return row;
      const hint = element("p", { id: `${input.id}-hint`, dir: "auto", text: field.description });
      input.setAttribute("aria-describedby", hint.id);
      row.append(hint);
      return row;
    });
  }

  /** The values that were filled in, without empty ones. */
  #content() {
    const filled = [...this.#inputs].map(([name, { field, input }]) => [name, valueOf(field, input)]);
    return Object.fromEntries(filled.filter(([, value]) => value !== undefined));
  }

  /** @param {string | null} content */
  async #answer(content) {
    const parts = this.root.querySelectorAll("button");
    if ([...parts].some((part) => part.ariaDisabled === "true")) return;
    for (const part of parts) part.ariaDisabled = "true";
    await this.#onAnswer(content);
    for (const part of parts) part.ariaDisabled = "false";
  }
}

/** @param {Field} field @param {boolean} required @returns {Input} */
function inputOf(field, required) {
  const choices = choicesOf(field);
  if (choices !== null) return selectOf(field, choices, required);
  if (field.type === "boolean") return element("input", { type: "checkbox", checked: field.default === true });
  const value = field.default === undefined ? null : String(field.default);
  if (field.type === "string") {
    const { minLength = null, maxLength = null } = field;
    const type = KINDS[field.format ?? ""] ?? "text";
    return element("input", { type, value, required, minlength: minLength, maxlength: maxLength, dir: "auto" });
  }
  const step = field.type === "integer" ? 1 : "any";
  return element("input", { type: "number", value, required, step, min: field.minimum ?? null, max: field.maximum ?? null });
}

/** @param {Field} field @returns {[string, string][] | null}  values with their titles; null if the user writes the value */
function choicesOf(field) {
  const titled = field.oneOf ?? field.items?.anyOf;
  if (titled !== undefined) return titled.map((one) => [one.const, one.title ?? one.const]);
  const plain = field.enum ?? field.items?.enum;
  return plain === undefined ? null : plain.map((value, place) => [value, field.enumNames?.[place] ?? value]);
}

/** @param {Field} field @param {[string, string][]} choices @param {boolean} required */
function selectOf(field, choices, required) {
  const multiple = field.type === "array";
  const select = element("select", { multiple, required });
  if (!multiple) select.append(element("option", { value: "", text: "" }));
  const chosen = new Set([field.default].flat());
  for (const [value, text] of choices) select.append(element("option", { value, text, selected: chosen.has(value) }));
  return select;
}

/** @param {Field} field @param {Input} input @returns {unknown}  undefined if it is empty */
function valueOf(field, input) {
  if (field.type === "boolean") return input instanceof HTMLInputElement && input.checked;
  if (input instanceof HTMLSelectElement && input.multiple) {
    const chosen = [...input.selectedOptions].map((option) => option.value);
    return chosen.length === 0 && !input.required ? undefined : chosen;
  }
  if (input.value === "") return undefined;
  return field.type === "string" ? input.value : Number(input.value);
}
