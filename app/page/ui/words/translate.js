import { lastingStorage } from "../settings/storage.js";
import { sentences } from "./sentences.js";

/**
 * The page's words in the user's language. The English sentence is the key; without a translation it is shown itself.
 * Values stand in braces: `t("Delete “{title}”", { title })`.
 */

const KEY = "midstream.language";
/** Languages by their tags, with their own names. */
export const LANGUAGES = Object.freeze({ en: "English", de: "Deutsch", zh: "中文" });

/** @typedef {keyof typeof LANGUAGES} Language */
/** The places of translations among those of a sentence. */
const PLACES = { de: 0, zh: 1 };
/** Attributes with words for people. */
const TRANSLATED_ATTRIBUTES = ["aria-label", "title", "placeholder"];

const storage = lastingStorage();
/** The tag of the page's language. It is fixed from the beginning, since modules translate words as they are loaded. */
export const language = preferred();

/** The language that the user chose; empty for the browser's. */
export function chosenLanguage() {
  const kept = storage?.getItem(KEY) ?? "";
  return isKnown(kept) ? kept : "";
}

/** Keeps the user's choice for the next load of the page. @param {string} chosen  empty for the browser's */
export function chooseLanguage(chosen) {
  if (chosen === "") storage?.removeItem(KEY);
  else storage?.setItem(KEY, chosen);
}

/** Translates the document's words into the user's language. */
export function translateDocument() {
  document.documentElement.lang = language;
  if (language === "en") return;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
    const [, before, english, after] = /** @type {RegExpExecArray} */ (/^(\s*)([\s\S]*?)(\s*)$/.exec(node.nodeValue ?? ""));
    if (english !== "") node.nodeValue = before + t(english.replaceAll(/\s+/g, " ")) + after;
  }
  for (const name of TRANSLATED_ATTRIBUTES) {
    for (const element of document.querySelectorAll(`[${name}]`)) element.setAttribute(name, t(element.getAttribute(name) ?? ""));
  }
}

/**
 * A sentence in the user's language.
 * @param {string} english
 * @param {Record<string, string | number>} [values]
 */
export function t(english, values = {}) {
  const text = language === "en" ? english : (sentences[english]?.[PLACES[language]] ?? english);
  return text.replaceAll(/\{(\w+)\}/g, (all, name) => String(values[name] ?? all));
}

/** A number as the user's language writes it. @param {number} value */
export function number(value) {
  return value.toLocaleString(language);
}

/** @param {string} tag @returns {tag is Language} */
function isKnown(tag) {
  return Object.hasOwn(LANGUAGES, tag);
}

/** @returns {Language} */
function preferred() {
  const tags = [chosenLanguage(), ...navigator.languages].map((tag) => tag.split("-")[0]);
  return tags.find(isKnown) ?? "en";
}
