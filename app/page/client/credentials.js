const KEY = "midstream.key";

/**
 * The user's key (or JWT) for the service. The browser keeps it until the tab is closed, or for good.
 * The socket gets a single-use ticket for it, so the key itself is only ever sent in a header.
 */
export class Credentials {
  #session;
  #lasting;
  #ticketUrl;
  #request;
  /** @type {string | null} */ #key;
  /** Whether the key was kept for good. */
  #kept;

  /**
   * @param {object} options
   * @param {Storage | null} options.session  forgets with the tab
   * @param {Storage | null} options.lasting  forgets when told to
   * @param {string} options.ticketUrl
   * @param {(url: string, options: RequestInit) => Promise<Response>} [options.request]
   */
  constructor({ session, lasting, ticketUrl, request = (url, options) => fetch(url, options) }) {
    this.#session = session;
    this.#lasting = lasting;
    this.#ticketUrl = ticketUrl;
    this.#request = request;
    const own = session?.getItem(KEY) ?? null;
    this.#key = own ?? lasting?.getItem(KEY) ?? null;
    this.#kept = own === null && this.#key !== null;
  }

  /** The key; null if there is none. */
  get key() {
    return this.#key;
  }

  /** Whether the key outlives the tab. */
  get keptForGood() {
    return this.#kept;
  }

  /**
   * @param {string} key
   * @param {{forGood: boolean}} options
   */
  keep(key, { forGood }) {
    this.forget();
    this.#key = key;
    this.#kept = forGood;
    (forGood ? this.#lasting : this.#session)?.setItem(KEY, key);
  }

  forget() {
    this.#key = null;
    this.#kept = false;
    this.#session?.removeItem(KEY);
    this.#lasting?.removeItem(KEY);
  }

  /**
   * Calls `act` when another tab of this browser has forgotten the key that is kept for good here too.
   * @param {() => void} act
   */
  onForgotten(act) {
    globalThis.addEventListener?.("storage", ({ key, storageArea }) => {
      const ours = storageArea === this.#lasting && (key === KEY || key === null);
      if (ours && this.#kept && this.#lasting?.getItem(KEY) === null) act();
    });
  }

  /**
   * The token of a connection: a ticket, or the key if there are no tickets; undefined without a key.
   * @returns {Promise<string | undefined>}
   */
  async token() {
    if (this.#key === null) return undefined;
    return (await this.#ticket(this.#key)) ?? this.#key;
  }

  /** @param {string} key */
  async #ticket(key) {
    try {
      const answer = await this.#request(this.#ticketUrl, { method: "POST", headers: { Authorization: `Bearer ${key}` } });
      return answer.ok ? (await answer.json()).ticket : null;
    } catch (error) {
      // The network failed; the connection will fail too, and report it.
      if (error instanceof TypeError) return null;
      throw error;
    }
  }
}
