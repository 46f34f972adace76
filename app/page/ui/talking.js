import { ChatError } from "../client/chat-client.js";
import { InputMode } from "./input-mode.js";
import { t } from "./words/translate.js";

/** How the user likes to talk. */
const WAY_KEY = "midstream.talk";

/** @typedef {import("./spoken/voice.js").Voice} Voice */
/** @typedef {import("./input-mode.js").ModeParts & {model: () => string | undefined}} TalkingParts  `model`: that the user chose */

/** Talking. Its button is shown if the server listens. @extends {InputMode<Voice>} */
export class Talking extends InputMode {
  #parts;

  /** @param {TalkingParts} parts */
  constructor(parts) {
    super(parts, { button: "talk", image: "microphone", placeKey: "midstream.talking", make: () => this.#make(), onBegun: (voice) => voice.start() });
    this.#parts = parts;
  }

  /** @param {import("../client/frames.js").Ready} ready */
  know({ features = [] }) {
    this.offer(features.includes("audio"));
  }

  /**
   * Ends the sound of a reply at once; null if it was not being spoken. `seenOff`: how much of its text was heard.
   * @param {import("../client/reply.js").Reply} reply
   */
  cut(reply) {
    return this.session?.cut(reply) ?? null;
  }

  /** After a reload: goes on talking if the browser allows sound without a click; else asks the user for one. */
  async comeBack() {
    if ((await permission()) === "granted" && (await this.start((voice) => voice.canPlay()))) return;
    this.#parts.notices.offer(t("You were talking here before the page was reloaded. Replies are sent as text until you continue."), t("Keep talking"), () => void this.start());
  }

  async #make() {
    const { client, places, current, model } = this.#parts;
    const { Voice } = await import("./spoken/voice.js");
    return new Voice({
      ...{ client, conversationId: current(), model: model() },
      way: places.lasting?.getItem(WAY_KEY) ?? "free",
      onWay: (way) => places.lasting?.setItem(WAY_KEY, way),
      onEnd: (why) => void this.#failed(why),
    });
  }

  /** @param {unknown} why */
  async #failed(why) {
    this.ended();
    const { notices } = this.#parts;
    if (why instanceof ChatError) return notices.report(why);
    if (why === "elsewhere") return notices.show(t("You are talking in this conversation in another tab or on another device now."));
    if (why === "lost") return notices.show(t("The microphone was disconnected. Press the button to continue talking."));
    if (!(why instanceof DOMException)) throw why;
    const { wordsForTrouble } = await import("./spoken/microphone.js");
    return notices.show(wordsForTrouble(why));
  }
}

/** The microphone's permission; "prompt" if the browser does not tell it. */
async function permission() {
  try {
    const { state } = await navigator.permissions.query({ name: /** @type {PermissionName} */ ("microphone") });
    return state;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return "prompt";
  }
}
