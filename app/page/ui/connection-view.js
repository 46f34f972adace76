import { CloseCode, LinkState } from "../client/link.js";
import { part } from "./elements/dom.js";

/** @type {Record<string, string>} */
const WORDS = {
  [LinkState.CLOSED]: "Closed",
  [LinkState.CONNECTING]: "Connecting",
  [LinkState.CONNECTED]: "Connected",
  [LinkState.RECONNECTING]: "Reconnecting",
  [LinkState.OFFLINE]: "Offline",
  [LinkState.REFUSED]: "Closed by the service",
};
/** Of a connection that was refused, by its close code. @type {Record<number, string>} */
const REFUSED = {
  [CloseCode.UNAUTHENTICATED]: "A key is needed",
  [CloseCode.FORBIDDEN]: "You are not let in",
};
/** @type {Set<string>} */
const CAN_RETRY = new Set([LinkState.RECONNECTING, LinkState.OFFLINE, LinkState.REFUSED]);

/** Shows the state of the connection: the word is announced to screen readers, the countdown is not. */
export class ConnectionView {
  #root = part("connection", HTMLElement);
  #word = part("connection-text", HTMLElement);
  #wait = part("connection-wait", HTMLElement);
  #retry = part("retry", HTMLButtonElement);
  /** @type {ReturnType<typeof setInterval> | undefined} */ #countdown;

  /** @param {{onRetry: () => void}} actions */
  constructor({ onRetry }) {
    this.#retry.addEventListener("click", onRetry);
  }

  /** @param {import("../client/link.js").LinkStatus} status */
  show({ state, retryMs, code, reason }) {
    this.#root.dataset.state = state;
    this.#root.title = code === null ? "" : `Closed with ${code}${reason === "" ? "" : `: ${reason}`}`;
    const word = (state === LinkState.REFUSED && REFUSED[code ?? 0]) || WORDS[state];
    if (this.#word.textContent !== word) this.#word.textContent = word;
    this.#retry.hidden = !CAN_RETRY.has(state);
    this.#retry.textContent = code === CloseCode.UNAUTHENTICATED ? "Enter a key" : "Try now";
    this.#count(retryMs);
  }

  /** @param {number | null} retryMs */
  #count(retryMs) {
    clearInterval(this.#countdown);
    this.#wait.textContent = "";
    if (retryMs === null || retryMs < 2000) return;
    const at = performance.now() + retryMs;
    const tell = () => {
      const seconds = Math.ceil((at - performance.now()) / 1000);
      this.#wait.textContent = seconds > 0 ? `retry in ${seconds} s` : "";
    };
    this.#countdown = setInterval(tell, 500);
    tell();
  }
}
