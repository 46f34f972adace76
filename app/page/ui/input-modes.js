import { Talking } from "./talking.js";
import { Translating } from "./translating.js";

/** Ways to enter words other than written messages: talking and live translation. One of them at a time. */
export class InputModes {
  /**
   * @param {Omit<ConstructorParameters<typeof Talking>[0], "onBegin" | "model">
   *   & Omit<ConstructorParameters<typeof Translating>[0], "onBegin" | "model">
   *   & {settings: import("./settings/conversation-settings.js").ConversationSettings}} parts
   */
  constructor({ settings, ...parts }) {
    this.talking = new Talking({
      ...parts,
      model: () => settings.params?.model ?? undefined,
      onBegin: () => this.translating.stop(),
    });
    this.translating = new Translating({ ...parts, model: () => settings.model, onBegin: () => this.talking.stop() });
  }

  /** @param {import("../client/frames.js").Ready} ready */
  know(ready) {
    this.talking.know(ready);
    this.translating.know(ready);
  }

  /** Call when another conversation may be shown: each of the two belongs to one. */
  turned() {
    this.talking.turned();
    this.translating.turned();
  }

  stop() {
    this.talking.stop();
    this.translating.stop();
  }
}
