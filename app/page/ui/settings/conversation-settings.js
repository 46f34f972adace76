import { part } from "../elements/dom.js";
import { Choices, paramsOf } from "./choices.js";
import { SettingsPanel } from "./settings-panel.js";

/** The settings of the shown conversation: what the user chose, and the model that follows from it. */
export class ConversationSettings {
  #client;
  #choices;
  #current;
  #panel;
  #label = part("model", HTMLElement);

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("./kept-texts.js").Places} parts.places  keeps what was chosen
   * @param {import("./theme.js").Theme} parts.theme
   * @param {() => import("../transcript/transcript.js").Transcript} parts.current
   * @param {() => void} parts.onChange                        the choice has changed
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

  /** The parameters of the conversation's next message. */
  get params() {
    return paramsOf(this.#choice);
  }

  /** The model for the next message; null before it is known. */
  get model() {
    return this.modelInPlaceOf(null);
  }

  /**
   * The model for a regenerated reply or an edited message; null before it is known. It is the chosen one, else the one that
   * was asked before, if they are served.
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

  /** Forgets all choices. */
  clear() {
    this.#choices.clear();
  }

  get #choice() {
    return this.#choices.of(this.#current().conversationId);
  }
}
