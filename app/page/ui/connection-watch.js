import { LinkState } from "../client/chat-client.js";
import { ConnectionView } from "./connection-view.js";

/** Shows the state of the connection, and has it checked when the network changes or somebody comes back to the page. */
export class ConnectionWatch {
  #client;
  #view;
  #onLook;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {() => void} parts.onLook  somebody looks at the page again while there is a connection
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

  /** The network came, went or changed, so the connection may be dead. */
  #onNetwork() {
    this.#view.show(this.#client.connection);
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
}

/** Chromium's information on the network; undefined in other browsers. @returns {EventTarget | undefined} */
function networkInformation() {
  return /** @type {{connection?: EventTarget}} */ (navigator).connection;
}
