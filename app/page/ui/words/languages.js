import { language, t } from "./translate.js";

/** The languages that are offered if a model does not list its own. */
export const COMMON = Object.freeze(["ar", "zh", "nl", "en", "fr", "de", "hi", "it", "ja", "ko", "pl", "pt", "ru", "es", "tr", "uk"]);

const names = new Intl.DisplayNames(language, { type: "language" });

/** A language's name in the user's language. @param {string} tag  of BCP 47, or `auto` */
export function languageName(tag) {
  if (tag === "auto") return t("Any language");
  try {
    return names.of(tag) ?? tag;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return tag;
  }
}

/**
 * The tag of a language from a model's own code: `zho_Hans` is `zh`. Null if it is unknown.
 * @param {string} code
 */
export function tagOf(code) {
  try {
    const { language: tag } = new Intl.Locale(code.replaceAll("_", "-"));
    return names.of(tag) === tag ? null : tag;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return null;
  }
}

/**
 * A conversation's title as it is shown. That of a live translation names its languages.
 * @param {{title: string, interprets?: import("../../client/frames.js").Languages}} titled
 */
export function titleInWords({ title, interprets }) {
  if (interprets === undefined) return title;
  return `${languageName(interprets.source)} → ${languageName(interprets.target)}`;
}
