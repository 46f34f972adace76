import { MarkedWord } from "./marked-word.js";
import { Player } from "./player.js";

/** How often the server is told how much was played, besides where each word ends: a cut keeps what was told. */
const REPORT_MS = 100;

/** Plays the sound of a conversation's replies, marks the word that is being spoken, and tells the server how much was played. */
export class Playback {
  #parts;
  #marked = new MarkedWord();
  player = new Player({ onPlayed: () => this.#onPlayed() });
  /** @type {import("../../client/frames.js").Mark[]} */ #marks = [];
  #reportedMs = 0;
  #fromMs = 0;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {string} parts.conversationId
   * @param {(turnId: string) => {prose: HTMLElement | null, text: string}} parts.shown  the element and text of a turn's reply
   */
  constructor(parts) {
    this.#parts = parts;
  }

  /** Begins or resumes a reply. @param {import("../../client/frames.js").AudioReply} frame */
  begin(frame) {
    if (frame.turn_id !== this.player.turnId) this.#marks = [];
    this.#reportedMs = this.#fromMs = frame.from_ms;
    this.player.begin(frame);
  }

  /** @param {import("../../client/frames.js").Marks} frame */
  mark({ turn_id: turnId, marks }) {
    if (turnId === this.player.turnId) this.#marks.push(...marks);
  }

  /** Ends the sound at once. `seenOff`: how much of the text was heard; undefined if the marks do not say it. */
  cut() {
    this.report();
    const seenOff = this.#heard();
    this.silence();
    return { seenOff };
  }

  silence() {
    this.player.stop();
    this.#marked.clear();
    this.#marks = [];
  }

  close() {
    this.player.close();
    this.#marked.clear();
  }

  /** Tells the server how much was played. */
  report() {
    const { turnId, playedMs } = this.player;
    if (turnId === null || playedMs <= this.#reportedMs) return;
    this.#reportedMs = playedMs;
    this.#parts.client.played({ conversationId: this.#parts.conversationId, turnId, audioMs: playedMs });
  }

  #onPlayed() {
    const { turnId, playedMs, isOver } = this.player;
    if (turnId === null) return;
    if (playedMs - this.#reportedMs >= REPORT_MS || isOver || (this.#ended()?.end_ms ?? 0) > this.#reportedMs) this.report();
    const { prose, text } = this.#parts.shown(turnId);
    this.#marked.show(prose, text, this.#marks.findLast(({ start_ms: startMs }) => startMs <= playedMs));
  }

  /** Code points of the reply that were heard, from its marks; a reply that is resumed has none of what was heard before. */
  #heard() {
    const mark = this.#ended();
    if (mark !== undefined) return mark.off + mark.len;
    return this.#marks.length === 0 || this.#fromMs > 0 ? undefined : 0;
  }

  /** The last word that was heard to its end. */
  #ended() {
    const { playedMs } = this.player;
    return this.#marks.findLast(({ end_ms: endMs }) => endMs <= playedMs);
  }
}
