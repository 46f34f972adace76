import { ChatError } from "../../client/chat-client.js";
import { Microphone } from "./microphone.js";
import { Playback, RATE } from "./playback.js";
import { element, part } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** The wanted samples a second of the microphone: recognizers use no more. */
const HEARD_RATE = 16_000;
/** Pieces of 20 ms that are sent after the button is released, since that is before the last word ends. */
const TAIL_PIECES = 10;
/** Seconds that a reply waits for a page that is reloaded. */
const GRACE_S = 20;
/** Words for the state of the conversation. */
const STATES = Object.freeze({
  starting: t("Starting the microphone"),
  listening: t("Listening"),
  waiting: t("Hold the button while you speak"),
  hearing: t("You are being heard"),
  understanding: t("One moment"),
  replying: t("Replying. Speak to interrupt"),
  replyingAlone: t("Replying"),
  away: t("Waiting for the connection"),
  nothing: t("Nothing was understood. Say it again"),
});

/** Ways to talk, as stored. */
const Way = Object.freeze({ FREE: "free", HOLD: "hold" });

/**
 * One spoken conversation, from one press of the button to the next. It sends the microphone's sound, plays the replies, and
 * tells the server how much was played. Its bar over the box has the microphone's level, the state, the words as they are
 * heard, and the way to talk.
 */
export class Voice {
  #parts;
  #level = element("span");
  #state = element("p", { class: "voice-state", role: "status" });
  #heard = element("p", { class: "voice-heard", dir: "auto" });
  #way = element("select", { "aria-label": t("Way of talking"), onchange: () => void this.#restart() });
  #button = element("button", { class: "hold", type: "button", "aria-pressed": "false", text: t("Hold to talk") });
  #bar = element("section", { class: "voice", "aria-label": t("Voice chat") });
  #playback;
  /** @type {Microphone | null} */ #microphone = null;
  /** The microphone's stream; 0 while the server does not listen. */ #stream = 0;
  #seq = 0;
  /** Whether the server is being asked to listen. */ #requesting = false;
  /** Whether what is being said began over a reply. */ #over = false;
  /** Pieces that may still be sent while the button is held, or after that. */ #left = 0;
  #listeners = new AbortController();

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {string} parts.conversationId
   * @param {string | undefined} parts.model
   * @param {string} parts.way
   * @param {(way: string) => void} parts.onWay         the user chose another way to talk
   * @param {(why: unknown) => void} parts.onEnd        why it has ended by itself: a DOMException, a ChatError, "elsewhere" or "lost"
   */
  constructor(parts) {
    this.#parts = parts;
    this.#playback = new Playback(parts);
    this.#way.append(element("option", { value: Way.FREE, text: t("Hands-free") }), element("option", { value: Way.HOLD, text: t("Hold to talk") }));
    this.#way.value = parts.way;
    this.#button.hidden = !this.#holds;
    this.#button.addEventListener("pointerdown", (event) => {
      this.#button.setPointerCapture(event.pointerId);
      this.#hold(true);
    });
    for (const type of ["pointerup", "pointercancel", "blur"]) this.#button.addEventListener(type, () => this.#hold(false));
    this.#button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press must not open a menu
    for (const type of /** @type {const} */ (["keydown", "keyup"])) this.#button.addEventListener(type, (event) => this.#onKey(event));
    const meter = element("span", { class: "voice-level", "aria-hidden": "true" }, this.#level);
    this.#bar.append(meter, this.#state, this.#heard, this.#way, this.#button);
    part("composer", HTMLFormElement).before(this.#bar);
    this.#showState("starting");
  }

  /** Whether the user holds the button while speaking. */
  get #holds() {
    return this.#way.value === Way.HOLD;
  }

  get conversationId() {
    return this.#parts.conversationId;
  }

  /** Whether it can begin without a click of the user, as after a reload. */
  canPlay() {
    return this.#playback.canPlay();
  }

  /** Asks for the microphone, and begins. `onEnd` is called with what went wrong. */
  async start() {
    const { client } = this.#parts;
    const { signal } = this.#listeners;
    client.addEventListener("speech", (event) => this.#take(/** @type {CustomEvent} */ (event).detail), { signal });
    client.addEventListener("sound", (event) => this.#playback.take(/** @type {CustomEvent} */ (event).detail), { signal });
    client.addEventListener("reply", (event) => this.#look(/** @type {CustomEvent} */ (event).detail.reply), { signal });
    client.addEventListener("connection", () => this.#onConnection(), { signal });
    client.addEventListener("ready", () => void this.#begin(), { signal });
    const onLost = () => this.#fail("lost");
    try {
      const opened = await Microphone.open({ rate: HEARD_RATE, onSound: (samples, level) => this.#hear(samples, level), onLost });
      if (signal.aborted) return opened.close();
      this.#microphone = opened;
    } catch (error) {
      return this.#fail(error);
    }
    await this.#begin();
    if (this.#holds) this.#button.focus();
  }

  /** Ends the conversation. A reply that is being spoken is cut at what was heard. */
  stop() {
    if (this.#listeners.signal.aborted) return;
    this.#playback.report();
    if (this.#stream !== 0) this.#parts.client.stopAudio(this.conversationId).catch(lostIsWell);
    this.#close();
  }

  /**
   * Ends the sound of a reply at once; null if it was not being spoken here. `seenOff`: how much of its text was heard;
   * undefined if its voice has no marks.
   * @param {import("../../client/reply.js").Reply} reply
   * @returns {{seenOff: number | undefined} | null}
   */
  cut(reply) {
    if (reply.turnId === null || reply.turnId !== this.#playback.turnId) return null;
    return this.#cut();
  }

  #cut() {
    const cut = this.#playback.cut();
    this.#rest();
    return cut;
  }

  async #begin() {
    if (this.#microphone === null || this.#requesting) return;
    if (this.#parts.client.connection.state !== "connected") return this.#showState("away");
    const way = this.#way.value;
    this.#requesting = true;
    try {
      await this.#listen();
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (!error.lost) this.#fail(error);
    } finally {
      this.#requesting = false;
    }
    if (this.#way.value !== way) await this.#restart();
  }

  async #listen() {
    const { conversationId, model } = this.#parts;
    const type = /** @type {"none" | "vad"} */ (this.#holds ? "none" : "vad");
    const request = { conversationId, input: { rate: this.#microphone?.rate }, turn_detection: { type }, grace_s: GRACE_S, model };
    const { stream } = await this.#ask({ ...request, output: { rate: RATE } });
    if (this.#listeners.signal.aborted) return;
    [this.#stream, this.#seq] = [stream, 0];
    this.#rest();
  }

  /** Asks the server to listen. If it has no voice, it is asked again without output, and replies are only shown. @param {Parameters<import("../../client/chat-client.js").ChatClient["startAudio"]>[0]} request */
  async #ask(request) {
    try {
      return await this.#parts.client.startAudio(request);
    } catch (error) {
      if (!(error instanceof ChatError) || error.code !== "bad_params" || !error.message.startsWith("`output`")) throw error;
      return this.#parts.client.startAudio({ ...request, output: undefined });
    }
  }

  /** Takes the way to talk that the user chose. */
  async #restart() {
    this.#button.hidden = !this.#holds;
    this.#parts.onWay(this.#way.value);
    this.#left = 0;
    if (this.#stream === 0) return;
    this.#stream = 0;
    this.#silence();
    await this.#parts.client.stopAudio(this.conversationId).catch(lostIsWell);
    await this.#begin();
    if (this.#holds) this.#button.focus();
  }

  /** @param {boolean} held */
  #hold(held) {
    if ((this.#button.getAttribute("aria-pressed") === "true") === held) return;
    this.#button.setAttribute("aria-pressed", String(held));
    if (!held) {
      this.#left = this.#stream === 0 ? 0 : TAIL_PIECES;
      return;
    }
    if (this.#stream === 0) return;
    this.#left = Infinity;
    this.#showHeard("", false);
    this.#showState("hearing");
    if (this.#playback.turnId === null) return;
    this.#parts.client.cancel({ conversationId: this.conversationId, ...this.#cut() }).catch(lostIsWell);
    this.#showState("hearing");
  }

  /** @param {Int16Array} samples @param {number} level */
  #hear(samples, level) {
    this.#level.style.transform = `scaleX(${level.toFixed(2)})`;
    if (this.#stream === 0) return;
    if (this.#holds && this.#left <= 0) return;
    this.#seq += 1;
    this.#parts.client.sendAudio({ stream: this.#stream, seq: this.#seq, samples });
    if (!this.#holds) return;
    this.#left -= 1;
    if (this.#left > 0) return;
    this.#parts.client.commitAudio(this.conversationId);
    this.#showState("understanding");
  }

  /** @param {import("../../client/frames.js").AudioReply | import("../../client/frames.js").AudioStopped | import("../../client/frames.js").Speech | import("../../client/frames.js").Transcript | import("../../client/frames.js").Marks} frame */
  #take(frame) {
    if (frame.conversation_id !== this.conversationId) return;
    switch (frame.type) {
      case "audio.reply":
        this.#playback.begin(frame);
        return this.#showState(this.#holds ? "replyingAlone" : "replying");
      case "marks":
        return this.#playback.mark(frame);
      case "speech":
        this.#playback.duck(frame.state === "started");
        if (frame.state === "started") {
          this.#over = this.#playback.turnId !== null;
          this.#showHeard("", false);
        }
        return this.#showState(frame.state === "started" ? "hearing" : "understanding");
      case "transcript":
        this.#showHeard(frame.text, frame.final);
        if (frame.final && (frame.text === "" || this.#playback.turnId !== null)) this.#rest(this.#over ? undefined : "nothing");
        return;
      case "audio.stopped":
        if (frame.reason === "elsewhere") this.#fail("elsewhere");
    }
  }

  /** Takes a change of a reply. @param {import("../../client/reply.js").Reply} reply */
  #look(reply) {
    if (reply.conversationId !== this.conversationId || reply.open || reply.done?.removed === true) return;
    if (reply.turnId !== null && reply.turnId === this.#playback.turnId) this.#silence();
    else if (this.#playback.turnId === null && reply.own === false) this.#rest();
  }

  #silence() {
    this.#playback.silence();
    this.#rest();
  }

  /** @param {"nothing"} [why] */
  #rest(why) {
    if (this.#stream === 0) return;
    if (this.#playback.turnId !== null) return this.#showState(this.#holds ? "replyingAlone" : "replying");
    this.#showState(why ?? (this.#holds ? "waiting" : "listening"));
  }

  /** @param {keyof typeof STATES} state */
  #showState(state) {
    this.#bar.dataset.state = state;
    if (this.#state.textContent !== STATES[state]) this.#state.textContent = STATES[state];
  }

  /** Shows the words so far, and whether they are final. @param {string} text @param {boolean} final */
  #showHeard(text, final) {
    this.#heard.textContent = text;
    this.#heard.classList.toggle("final", final);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    if (!event.repeat) this.#hold(event.type === "keydown");
  }

  #onConnection() {
    if (this.#parts.client.connection.state === "connected") return;
    this.#stream = this.#left = 0;
    this.#playback.silence();
    this.#showState("away");
  }

  /** @param {unknown} why */
  #fail(why) {
    if (this.#listeners.signal.aborted) return;
    this.#close();
    this.#parts.onEnd(why);
  }

  #close() {
    this.#listeners.abort();
    this.#stream = 0;
    this.#microphone?.close();
    this.#playback.close();
    this.#bar.remove();
  }
}

/** Ignores that a request failed, as on a lost connection: then the server ends by itself what was asked. @param {unknown} error */
function lostIsWell(error) {
  if (!(error instanceof ChatError)) throw error;
}
