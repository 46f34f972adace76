import { part } from "../elements/dom.js";
import { Choices, paramsOf } from "./choices.js";
import { SettingsPanel } from "./settings-panel.js";

/** How replies of the shown conversation are made: what the user chose for it, and the model that follows from that. */
export class ConversationSettings {
  #client;
  #choices;
  #current;
  #panel;
  #label = part("model", HTMLElement);

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("./kept-texts.js").Places} parts.places  where it is kept what was chosen
   * @param {import("./theme.js").Theme} parts.theme
   * @param {() => import("../transcript/transcript.js").Transcript} parts.current
   * @param {() => void} parts.onChange                        something else was chosen
   */
  constructor({ client, places, theme, current, onChange }) {
    this.#client = client;
    this.#choices = new Choices(places);
    this.#current = current;
    this.#panel = new SettingsPanel({
      choice: () => this.#choice,
      onChoose: (choice) => {
        this.#choices.keep(current().conversationId, choice);
        this.show();
        onChange();
      },
      model: () => current().model,
      theme,
    });
  }

  /** What a message of the conversation says of how it is to be answered. */
  get params() {
    return paramsOf(this.#choice);
  }

  /** The model that the next message is asked of; null before that is known. */
  get model() {
    return this.modelInPlaceOf(null);
  }

  /**
   * The model that is asked for another reply in place of one, or in place of a message; null before that is known. It is the
   * one that is chosen, else the one that was asked before, as far as they are served.
   * @param {string | null} messageId  null: for a new message
   */
  modelInPlaceOf(messageId) {
    const { ready } = this.#client;
    const before = messageId === null ? null : this.#current().modelOf(messageId);
    const names = [this.#choice.model, before, this.#current().model, ready?.model];
    const served = names.map((name) => ready?.models?.find((model) => model.name === name));
    return served.find((model) => model !== undefined) ?? null;
  }

  /** @param {import("../../client/frames.js").Ready} ready */
  know(ready) {
    this.#panel.know(ready);
    this.show();
  }

  /** Shows which model answers. */
  show() {
    this.#label.textContent = this.model?.name ?? this.#client.ready?.model ?? "";
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.#choices.forget(conversationId);
  }

  /** Keeps what was chosen for no conversation. */
  clear() {
    this.#choices.clear();
  }

  get #choice() {
    return this.#choices.of(this.#current().conversationId);
  }
}
