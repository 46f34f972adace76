const KEY = "midstream.notifications";
const ON = "on";
const WORKER = "/static/notification-worker.js";

/** Notifications of what happens while nobody looks at the page: none until the user switches them on, and the browser allows them. */
class Notifications {
  /** @type {Storage | null} */ #storage = null;
  #chosen = false;
  /** @type {Promise<ServiceWorkerRegistration | null>} The worker that shows them, where the browser has one. */ #worker = Promise.resolve(null);

  /** @param {Storage | null} storage  where the user's choice is kept; without one it holds for this visit */
  install(storage) {
    this.#storage = storage;
    this.#chosen = storage?.getItem(KEY) === ON;
    workers()?.addEventListener("message", ({ data }) => turnTo(data.address));
    if (this.enabled) this.#worker = registered();
  }

  /** Whether this browser has them at all. */
  get possible() {
    return "Notification" in globalThis;
  }

  /** Whether the user wants them and the browser shows them. */
  get enabled() {
    return this.#chosen && this.possible && Notification.permission === "granted";
  }

  /** Switches them on: call it when the user asks for them, since the browser then asks the user. False where that is refused. */
  async enable() {
    if (!this.possible || (await Notification.requestPermission()) !== "granted") return false;
    this.#chosen = true;
    this.#storage?.setItem(KEY, ON);
    this.#worker = registered();
    return true;
  }

  disable() {
    this.#chosen = false;
    this.#storage?.removeItem(KEY);
  }

  /**
   * Shows one, where they are switched on; whoever chooses it is led to its address in the page. Of those with one tag the
   * browser keeps the newest.
   * @param {{title: string, body: string, tag: string, address: string}} notification
   */
  async tell({ title, body, tag, address }) {
    if (!this.enabled) return;
    const worker = await this.#worker;
    if (worker?.active) await worker.showNotification(title, { body, tag, data: { address } });
    else tellAlone({ title, body, tag, address });
  }
}

export const notifications = new Notifications();

/** Undefined where the page came over a line that is not secure, or the user's settings forbid them. @returns {ServiceWorkerContainer | undefined} */
function workers() {
  return navigator.serviceWorker;
}

/** The worker that shows them, come or renewed; null where the browser refuses it: the page shows them itself, then. */
async function registered() {
  try {
    return (await workers()?.register(WORKER)) ?? null;
  } catch (error) {
    // Private windows, settings, a network that is gone.
    if (error instanceof DOMException || error instanceof TypeError) return null;
    throw error;
  }
}

/** @param {{title: string, body: string, tag: string, address: string}} notification */
function tellAlone({ title, body, tag, address }) {
  try {
    const shown = new Notification(title, { body, tag });
    shown.onclick = () => {
      shown.close();
      turnTo(address);
    };
  } catch (error) {
    // Chrome for Android shows those of workers alone.
    if (!(error instanceof TypeError)) throw error;
  }
}

/** @param {string} address  within the page */
function turnTo(address) {
  focus();
  location.hash = address;
}
