import { Backoff } from "./backoff.js";

export const SUBPROTOCOL = "midstream.v1";

/** @enum {string} */
export const LinkState = Object.freeze({
  /** Not opened yet, or closed by `close()`. */
  CLOSED: "closed",
  /** The first attempt is under way. */
  CONNECTING: "connecting",
  /** `ready` was received: frames can be sent. */
  CONNECTED: "connected",
  /** The connection was lost; the client keeps trying. */
  RECONNECTING: "reconnecting",
  /** Several attempts have failed in a row; the client tries less often. */
  OFFLINE: "offline",
  /** The server has refused this client for good; no attempt follows. */
  REFUSED: "refused",
});

/** @enum {number} */
export const CloseCode = Object.freeze({ BYE: 1000, POLICY: 1008, UNAUTHENTICATED: 4401, FORBIDDEN: 4403 });
/** Codes after which another attempt would end the same way. @type {Set<number>} */
const FINAL_CODES = new Set(Object.values(CloseCode));
const OFFLINE_AFTER = 4;
/** An attempt without `ready` by then has failed. */
const READY_WITHIN_MS = 10_000;
/** How long the server may be silent while it owes something. Then it is pinged. */
const QUIET_MS = 2_500;
/** How long after the ping its silence is reported, */
const REPORT_MS = 2_000;
/** and how long after that the connection is given up. One answer may take that long on a slow network. */
const GIVE_UP_MS = 2_000;

/**
 * @typedef {object} LinkStatus
 * @property {string} state           one of LinkState
 * @property {number | null} retryMs  milliseconds until the next attempt, if one is planned
 * @property {number | null} code     the last close code
 * @property {string} reason          the server's reason with it
 * @property {boolean} quiet          whether the server was pinged on an open connection and has not answered yet
 */

/**
 * What is used of a WebSocket. Browsers have it, Node has it from 22 on, and the package `ws`.
 * @typedef {object} SocketLike
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {((event: any) => void) | null} onerror
 * @property {(data: any) => void} send
 * @property {any} binaryType
 * @property {(code?: number) => void} close
 *
 * @typedef {new (url: string, subprotocol: string) => SocketLike} SocketClass
 */

/**
 * One lasting link to the server: opens sockets, says hello, and connects again until it is closed. It notices silence, which
 * browsers may take minutes for: while the server owes something, in seconds. An idle connection is pinged once a heartbeat, so
 * a thousand idle pages cost next to nothing. It knows nothing of conversations. Events: `status` (detail: LinkStatus), `frame` (detail: the decoded frame), and `sound`
 * (detail: the ArrayBuffer of a binary frame).
 */
export class Link extends EventTarget {
  /** @type {LinkStatus} */
  status = { state: LinkState.CLOSED, retryMs: null, code: null, reason: "", quiet: false };
  #url;
  #hello;
  #Socket;
  #backoff;
  /** @type {SocketLike | null} */ #socket = null;
  /** Stands for the current attempt; events of an attempt that was given up are ignored. @type {symbol | null} */
  #attempting = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #retryTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #deadline;
  #awaits;
  #beatMs = 0;
  #heardAt = 0;
  /** Whether the server was pinged, and nothing came since. */ #pinged = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #silenceTimer;
  /** When that timer is due; Infinity if there is none. */ #dueAt = Infinity;

  /**
   * @param {object} options
   * @param {string} options.url
   * @param {() => Promise<object>} options.hello  makes the first frame of each connection; if it fails, so does the attempt
   * @param {SocketClass} [options.Socket]
   * @param {Backoff} [options.backoff]
   * @param {() => boolean} [options.awaits]  whether the server owes something: then its silence is noticed in seconds
   */
  constructor({ url, hello, Socket = globalThis.WebSocket, backoff = new Backoff(), awaits = () => false }) {
    super();
    if (!Socket) {
      throw new TypeError("There is no WebSocket here: give one as `Socket`, as of the package ws, or use Node 22.");
    }
    this.#url = url;
    this.#hello = hello;
    this.#Socket = Socket;
    this.#backoff = backoff;
    this.#awaits = awaits;
  }

  get connected() {
    return this.status.state === LinkState.CONNECTED;
  }

  /** Connects now, even while it waits for the next attempt. */
  open() {
    if (this.#attempting !== null) return;
    clearTimeout(this.#retryTimer);
    if (this.#backoff.attempts === 0) this.#updateStatus({ state: LinkState.CONNECTING });
    void this.#attempt();
  }

  /** Closes the connection until `open` is called. */
  close() {
    clearTimeout(this.#retryTimer);
    this.#drop(1000);
    this.#backoff.reset();
    this.#updateStatus({ state: LinkState.CLOSED });
  }

  /**
   * Sends a frame. False if no connection is open.
   * @param {object} frame
   */
  send(frame) {
    if (!this.connected) return false;
    this.#socket?.send(JSON.stringify(frame));
    this.#watch();
    return true;
  }

  /** Sends a binary frame. False if no connection is open. @param {ArrayBuffer} bytes */
  sendAudio(bytes) {
    if (this.connected) this.#socket?.send(bytes);
    return this.connected;
  }

  /** Pings the server now, if there is reason to doubt the connection. Without an answer the connection is given up. */
  probe() {
    if (!this.connected || this.#pinged) return;
    this.#pinged = true;
    this.send({ type: "ping" });
    this.#arm(Math.min(REPORT_MS, this.#beatMs));
  }

  async #attempt() {
    const attempt = (this.#attempting = Symbol("attempt"));
    this.#deadline = setTimeout(() => this.#silent(), READY_WITHIN_MS);
    let hello;
    try {
      hello = JSON.stringify(await this.#hello());
    } catch (error) {
      if (this.#attempting === attempt) this.#lost(1006, String(error));
      return;
    }
    if (this.#attempting === attempt) this.#dial(hello);
  }

  /** @param {string} hello */
  #dial(hello) {
    const socket = new this.#Socket(this.#url, SUBPROTOCOL);
    this.#socket = socket;
    socket.onopen = () => socket.send(hello);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#receive(JSON.parse(data)) : this.#receiveSound(data));
    socket.onclose = ({ code, reason }) => this.#lost(code, reason);
    socket.onerror = () => {}; // a close follows; without a listener the error of `ws` would end the process, even after `#drop`
  }

  /** @param {any} frame */
  #receive(frame) {
    if (frame.type === "ready" && !this.connected) this.#connected(frame);
    this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
    // Whether more is awaited is known only now.
    if (this.connected) this.#heard();
  }

  /** @param {ArrayBuffer} bytes */
  #receiveSound(bytes) {
    this.#heard();
    this.dispatchEvent(new CustomEvent("sound", { detail: bytes }));
  }

  /** @param {import("./frames.js").Ready} ready */
  #connected(ready) {
    clearTimeout(this.#deadline);
    this.#backoff.reset();
    this.#beatMs = ready.heartbeat_ms;
    this.#heard();
    this.#updateStatus({ state: LinkState.CONNECTED });
  }

  /** Takes that something came. */
  #heard() {
    this.#heardAt = performance.now();
    const wasPinged = this.#pinged;
    this.#pinged = false;
    if (this.status.quiet) this.#updateStatus({ state: LinkState.CONNECTED });
    if (wasPinged) this.#arm(this.#patienceMs);
    else this.#watch();
  }

  /** Takes that something was sent or received, so that an answer may be owed now. */
  #watch() {
    // Most frames change nothing: the current timer checks again when it is due.
    if (!this.#pinged && performance.now() + this.#patienceMs < this.#dueAt) this.#arm(this.#patienceMs);
  }

  get #patienceMs() {
    return this.#awaits() ? Math.min(QUIET_MS, this.#beatMs) : this.#beatMs;
  }

  #onSilence() {
    this.#dueAt = Infinity;
    if (this.status.quiet) return this.#silent();
    if (this.#pinged) {
      this.#arm(Math.min(GIVE_UP_MS, this.#beatMs));
      return this.#updateStatus({ state: LinkState.CONNECTED, quiet: true });
    }
    const leftMs = this.#heardAt + this.#patienceMs - performance.now();
    return leftMs > 0 ? this.#arm(leftMs) : this.probe();
  }

  /** @param {number} ms */
  #arm(ms) {
    clearTimeout(this.#silenceTimer);
    this.#dueAt = performance.now() + ms;
    if (ms !== Infinity) this.#silenceTimer = setTimeout(() => this.#onSilence(), ms);
  }

  #unwatch() {
    clearTimeout(this.#deadline);
    this.#arm(Infinity);
    this.#pinged = false;
  }

  #silent() {
    this.#drop(1000);
    this.#lost(1006, "the server fell silent");
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #lost(code, reason) {
    this.#unwatch();
    this.#socket = this.#attempting = null;
    if (FINAL_CODES.has(code)) return this.#updateStatus({ state: LinkState.REFUSED, code, reason });
    const retryMs = this.#backoff.next();
    const state = this.#backoff.attempts > OFFLINE_AFTER ? LinkState.OFFLINE : LinkState.RECONNECTING;
    this.#retryTimer = setTimeout(() => void this.#attempt(), retryMs);
    return this.#updateStatus({ state, retryMs, code, reason });
  }

  /** @param {number} code */
  #drop(code) {
    this.#unwatch();
    this.#attempting = null;
    if (this.#socket === null) return;
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close(code);
    this.#socket = null;
  }

  /** @param {Partial<LinkStatus> & {state: string}} status */
  #updateStatus(status) {
    this.status = { retryMs: null, code: null, reason: "", quiet: false, ...status };
    this.dispatchEvent(new CustomEvent("status", { detail: this.status }));
  }
}
