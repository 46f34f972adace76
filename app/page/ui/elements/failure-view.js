import { element } from "./dom.js";
import { detailOf, wordsFor } from "./words.js";
import { t } from "../words/translate.js";

/** A failure in plain words, with the service's own words and its code behind them. @param {import("./words.js").Failure} failure */
export function failureView(failure) {
  return element("div", { class: "failure" }, element("span", { text: wordsFor(failure) }), " ", detailView(failure));
}

/** @param {import("./words.js").Failure} failure */
export function detailView(failure) {
  const detail = element("span", { class: "detail-text", text: detailOf(failure) });
  return element("details", { class: "detail" }, element("summary", { text: t("Details") }), detail);
}
