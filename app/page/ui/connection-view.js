import { CloseCode, LinkState } from "../client/link.js";
import { part } from "./elements/dom.js";
import { t } from "./words/translate.js";

/** @type {Record<string, string>} */
const WORDS = {
  [LinkState.CLOSED]: t("Closed"),
  [LinkState.CONNECTING]: t("Connecting"),
  [LinkState.CONNECTED]: t("Connected"),
  [LinkState.RECONNECTING]: t("Reconnecting"),
  [LinkState.OFFLINE]: t("Offline"),
  [LinkState.REFUSED]: t("Closed by the service"),
};
/** Words for a refused connection, by its close code. @type {Record<number, string>} */
const REFUSED = {
  [CloseCode.UNAUTHENTICATED]: t("A key is needed"),
  [CloseCode.FORBIDDEN]: t("Access denied"),
};
/** The state that is shown for an open connection whose other side is silent. */
const QUIET = { state: "quiet", word: t("No answer") };
/** How long the page says that the connection is back. */
const BACK_MS = 4_000;
/** @type {Set<string>} */
const CAN_RETRY = new Set([LinkState.RECONNECTING, LinkState.OFFLINE, LinkState.REFUSED]);

/**
 * Shows the state of the connection. Screen readers hear the word, not the countdown. An open connection is shown as a dot,
 * with a word for a moment after it was lost.
 */
export class ConnectionView {
  #root = part("connection", HTMLElement);
  #chat = part("chat", HTMLElement);
  #word = part("connection-text", HTMLElement);
  #wait = part("connection-wait", HTMLElement);
  #retry = part("retry", HTMLButtonElement);
  /** @type {ReturnType<typeof setInterval> | undefined} */ #countdown;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #back;
  /** Whether it was lost since it was last open. */
  #wasAway = false;

  /** @param {{onRetry: () => void}} actions */
  constructor({ onRetry }) {
    this.#retry.addEventListener("click", onRetry);
  }

  /** @param {import("../client/link.js").LinkStatus} status */
  show(status) {
    const { state, retryMs, code, reason } = status;
    const { state: shown, word } = shownStateOf(status);
    this.#root.dataset.state = shown;
    // A class instead of `:has`, which would be evaluated again for each new element of a reply.
    this.#chat.classList.toggle("unheard", shown !== LinkState.CONNECTED && shown !== LinkState.CONNECTING);
    this.#root.title = code === null ? word : `${t("Closed with {code}", { code })}${reason === "" ? "" : `: ${reason}`}`;
    if (this.#word.textContent !== word) this.#word.textContent = word;
    this.#showBack(shown);
    this.#retry.hidden = !CAN_RETRY.has(state);
    this.#retry.textContent = code === CloseCode.UNAUTHENTICATED ? t("Enter a key") : t("Try now");
    this.#count(retryMs);
  }

  /** @param {string} state  as it is shown */
  #showBack(state) {
    if (state !== LinkState.CONNECTED) {
      this.#wasAway ||= state !== LinkState.CONNECTING;
      return;
    }
    if (!this.#wasAway) return;
    this.#wasAway = false;
    clearTimeout(this.#back);
    this.#root.dataset.back = "";
    this.#back = setTimeout(() => delete this.#root.dataset.back, BACK_MS);
  }

  /** @param {number | null} retryMs */
  #count(retryMs) {
    clearInterval(this.#countdown);
    this.#wait.textContent = "";
    if (retryMs === null || retryMs < 2000) return;
    const at = performance.now() + retryMs;
    const update = () => {
      const seconds = Math.ceil((at - performance.now()) / 1000);
      this.#wait.textContent = seconds > 0 ? t("retry in {seconds} s", { seconds }) : "";
    };
    this.#countdown = setInterval(update, 500);
    update();
  }
}

/** A connection's state, and a word for it. @param {import("../client/link.js").LinkStatus} status */
function shownStateOf({ state, code, quiet }) {
  if (quiet) return QUIET;
  // If the browser knows that there is no network, four attempts are not needed.
  const offline = state === LinkState.RECONNECTING && !navigator.onLine;
  const shown = offline ? LinkState.OFFLINE : state;
  return { state: shown, word: (shown === LinkState.REFUSED && REFUSED[code ?? 0]) || WORDS[shown] };
}
