const KEY = "midstream.notifications";
const ON = "on";
const WORKER = "static/notification-worker.js";

/** Notifications while nobody looks at the page. There are none until the user switches them on and the browser allows them. */
class Notifications {
  /** @type {Storage | null} */ #storage = null;
  #chosen = false;
  /** @type {Promise<ServiceWorkerRegistration | null>} The worker that shows them, if the browser has one. */ #worker = Promise.resolve(null);

  /** @param {Storage | null} storage  keeps the user's choice; without it the choice is for this visit */
  install(storage) {
    this.#storage = storage;
    this.#chosen = storage?.getItem(KEY) === ON;
    navigator.serviceWorker?.addEventListener("message", ({ data }) => turnTo(data.address));
    if (this.enabled) this.#worker = registered();
  }

  /** Whether this browser has notifications. */
  get possible() {
    return "Notification" in globalThis;
  }

  /** Whether the user wants them and the browser shows them. */
  get enabled() {
    return this.#chosen && this.possible && Notification.permission === "granted";
  }

  /** Switches them on. Call it when the user asks for them, since the browser then asks the user. False if refused. */
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
   * Shows a notification, if they are on. A click on it leads to its address in the page. Of those with the same tag the
   * browser keeps the newest.
   * @param {{title: string, body: string, tag: string, address: string}} notification
   */
  async notify({ title, body, tag, address }) {
    if (!this.enabled) return;
    const worker = await this.#worker;
    if (worker?.active) await worker.showNotification(title, { body, tag, data: { address } });
    else notifyFromPage({ title, body, tag, address });
  }
}

export const notifications = new Notifications();

/**
 * The registered worker; null if the browser refuses it, and the page shows notifications itself. It has no workers over an
 * insecure connection, or if the user's settings forbid them.
 */
async function registered() {
  try {
    return (await navigator.serviceWorker?.register(WORKER)) ?? null;
  } catch (error) {
    // A private window, settings, or a failed network.
    if (error instanceof DOMException || error instanceof TypeError) return null;
    throw error;
  }
}

/** @param {{title: string, body: string, tag: string, address: string}} notification */
function notifyFromPage({ title, body, tag, address }) {
  try {
    const shown = new Notification(title, { body, tag });
    shown.onclick = () => {
      shown.close();
      turnTo(address);
    };
  } catch (error) {
    // Chrome for Android shows only those of workers.
    if (!(error instanceof TypeError)) throw error;
  }
}

/** @param {string} address  within the page */
function turnTo(address) {
  focus();
  location.hash = address;
}
