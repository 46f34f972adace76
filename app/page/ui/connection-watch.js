import { LinkState } from "../client/chat-client.js";
import { ConnectionView } from "./connection-view.js";

/** Shows how the connection stands, and has it looked after when the network changes or somebody comes back to the page. */
export class ConnectionWatch {
  #client;
  #view;
  #onLook;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {() => void} parts.onLook  somebody looks at the page again, and there is a connection
   */
  constructor({ client, onLook }) {
    this.#client = client;
    this.#onLook = onLook;
    this.#view = new ConnectionView({ onRetry: () => client.connect() });
    client.addEventListener("connection", () => this.#view.show(client.connection));
    for (const change of ["online", "offline"]) addEventListener(change, () => this.#onNetwork());
    networkInformation()?.addEventListener("change", () => this.#onNetwork());
    document.addEventListener("visibilitychange", () => this.#onVisible());
  }

  /** The network is said to have come, gone or become another one: what stood on it may not stand any more. */
  #onNetwork() {
    this.#view.show(this.#client.connection);
    if (navigator.onLine) this.#client.connect();
    this.#client.probe();
  }

  /** The page may have slept, and other devices may have begun conversations meanwhile. */
  #onVisible() {
    if (document.hidden) return;
    this.#client.connect();
    this.#client.probe();
    if (this.#client.connection.state === LinkState.CONNECTED) this.#onLook();
  }
}

/** What Chromium knows of the network; undefined elsewhere. @returns {EventTarget | undefined} */
function networkInformation() {
  return /** @type {{connection?: EventTarget}} */ (navigator).connection;
}
