const KEY = "midstream.notifications";
const ON = "on";

/** Notifications of what happens while nobody looks at the page: none until the user switches them on, and the browser allows them. */
class Notifications {
  /** @type {Storage | null} */ #storage = null;
  #chosen = false;

  /** @param {Storage | null} storage  where the user's choice is kept; without one it holds for this visit */
  install(storage) {
    this.#storage = storage;
    this.#chosen = storage?.getItem(KEY) === ON;
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
    return true;
  }

  disable() {
    this.#chosen = false;
    this.#storage?.removeItem(KEY);
  }

  /**
   * Shows one, where they are switched on. Of those with one tag the browser keeps the newest.
   * @param {{title: string, body: string, tag: string, onClick: () => void}} notification
   */
  tell({ title, body, tag, onClick }) {
    if (!this.enabled) return;
    try {
      const shown = new Notification(title, { body, tag });
      shown.onclick = () => {
        shown.close();
        onClick();
      };
    } catch (error) {
      // Chrome on Android shows those of service workers alone.
      if (!(error instanceof TypeError)) throw error;
    }
  }
}

export const notifications = new Notifications();
