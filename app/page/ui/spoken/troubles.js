import { t } from "../words/translate.js";

/** Words for why there is no microphone, by the name of the browser's exception. @type {Record<string, string>} */
const WORDS = {
  NotAllowedError: t("This page may not use the microphone. Allow it beside the address of the page, then press the button again."),
  NotFoundError: t("No microphone was found. Connect one, then press the button again."),
  NotReadableError: t("The microphone can't be opened. Another program may be using it."),
  InsecureContextError: t("Browsers give the microphone only to pages that come over HTTPS, or from this device."),
};
/** Names that mean the same. @type {Record<string, string>} */
const SAME = { SecurityError: "NotAllowedError", OverconstrainedError: "NotFoundError", AbortError: "NotReadableError" };

/** Words for why there is no microphone. @param {DOMException} error */
export function wordsForTrouble({ name }) {
  return WORDS[SAME[name] ?? name] ?? WORDS.NotReadableError;
}
