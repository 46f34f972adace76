import { lastingStorage } from "../settings/storage.js";
import { words as chinese } from "./chinese.js";
import { words as german } from "./german.js";

/**
 * The page's words in the user's language. A sentence is known by its English; what has no translation stays English.
 * Values stand in braces: `t("Delete “{title}”", { title })`.
 */

const KEY = "midstream.language";
/** Languages by their tags, with the names that their speakers know. */
export const LANGUAGES = Object.freeze({ en: "English", de: "Deutsch", zh: "中文" });

/** @typedef {keyof typeof LANGUAGES} Language */
/** @type {Record<Language, Record<string, string>>} */
const CATALOGS = { en: {}, de: german, zh: chinese };
/** Attributes whose values people read or hear. */
const SAID = ["aria-label", "title", "placeholder"];

const storage = lastingStorage();
/** The tag of the language that is shown, from the beginning on: words are made as the modules are. */
export const language = preferred();

/** The language that the user chose; empty where the browser's holds. */
export function chosenLanguage() {
  const kept = storage?.getItem(KEY) ?? "";
  return isKnown(kept) ? kept : "";
}

/** Keeps the user's choice; the page speaks it when it is loaded next. @param {string} chosen  empty: the browser's */
export function chooseLanguage(chosen) {
  if (chosen === "") storage?.removeItem(KEY);
  else storage?.setItem(KEY, chosen);
}

/** Says in the user's language what the document says. */
export function translateDocument() {
  document.documentElement.lang = language;
  if (language === "en") return;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
    const [, before, english, after] = /** @type {RegExpExecArray} */ (/^(\s*)([\s\S]*?)(\s*)$/.exec(node.nodeValue ?? ""));
    if (english !== "") node.nodeValue = before + t(english.replaceAll(/\s+/g, " ")) + after;
  }
  for (const name of SAID) {
    for (const element of document.querySelectorAll(`[${name}]`)) element.setAttribute(name, t(element.getAttribute(name) ?? ""));
  }
}

/**
 * A sentence in the user's language.
 * @param {string} english
 * @param {Record<string, string | number>} [values]
 */
export function t(english, values = {}) {
  return (CATALOGS[language][english] ?? english).replaceAll(/\{(\w+)\}/g, (all, name) => String(values[name] ?? all));
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
