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
const QUIET = { state: "quiet", word: t("Server not responding") };
/** How long the page says that the connection is back. */
const BACK_MS = 4_000;
/** @type {Set<string>} */
const CAN_RETRY = new Set([LinkState.RECONNECTING, LinkState.OFFLINE, LinkState.REFUSED]);

/**
 * Shows the state of the connection, and has it checked when the network changes or somebody comes back to the page. Screen
 * readers hear the word, not the countdown. An open connection is shown as a dot, with a word for a moment after it was lost.
 */
export class ConnectionView {
  #root = part("connection", HTMLElement);
  #chat = part("chat", HTMLElement);
  #word = part("connection-text", HTMLElement);
  #wait = part("connection-wait", HTMLElement);
  #retry = part("retry", HTMLButtonElement);
  #client;
  #onLook;
  /** @type {ReturnType<typeof setInterval> | undefined} */ #countdown;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #back;
  /** Whether it was lost since it was last open. */
  #wasAway = false;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {() => void} parts.onLook  somebody looks at the page again while there is a connection
   */
  constructor({ client, onLook }) {
    this.#client = client;
    this.#onLook = onLook;
    this.#retry.addEventListener("click", () => client.connect());
    client.addEventListener("connection", () => this.#show(client.connection));
    for (const change of ["online", "offline"]) addEventListener(change, () => this.#onNetwork());
    // Chromium's information on the network; other browsers have none.
    /** @type {{connection?: EventTarget}} */ (navigator).connection?.addEventListener("change", () => this.#onNetwork());
    document.addEventListener("visibilitychange", () => this.#onVisible());
  }

  /** The network came, went or changed, so the connection may be dead. */
  #onNetwork() {
    this.#show(this.#client.connection);
    if (navigator.onLine) this.#client.connect();
    this.#client.probe();
  }

  /** The page may have slept. Other devices may have begun conversations meanwhile. */
  #onVisible() {
    if (document.hidden) return;
    this.#client.connect();
    this.#client.probe();
    if (this.#client.connection.state === LinkState.CONNECTED) this.#onLook();
  }

  /** @param {import("../client/link.js").LinkStatus} status */
  #show(status) {
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
