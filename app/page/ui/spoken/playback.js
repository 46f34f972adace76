/** Samples a second of replies. The browser resamples all of their sound to the device's rate at once. */
export const RATE = 24_000;
/** The delay of a first part, so that the next one comes in time. */
const MARGIN_S = 0.06;
/** The volume of a reply while somebody speaks over it. */
const DUCKED = 0.2;
/** Seconds in which the volume changes. */
const DUCKING_S = 0.03;
/** Seconds after which the volume comes back, even if the sound continues. */
const DUCKED_S = 3;
/** How often it is checked whether the last part has been heard, since output has a latency. */
const LOOK_MS = 40;
/** How often the server is told how much was played, besides where each word ends: a cut keeps what was told. */
const REPORT_MS = 100;

/** @typedef {{at: number, fromMs: number, ms: number}} Piece  `at`: its beginning, by the audio clock */

/**
 * Plays the sound of a conversation's replies, one at a time and without gaps, and tells the server how much was played. The
 * audio clock tells how much of it was heard.
 */
export class Playback {
  #parts;
  /** @type {import("../../client/frames.js").Mark[]} */ #marks = [];
  #reportedMs = 0;
  #fromMs = 0;
  #context = new AudioContext({ sampleRate: RATE });
  #gain = this.#context.createGain();
  /** @type {Set<AudioBufferSourceNode>} */ #sources = new Set();
  /** The parts that have not been played to their end, and the one before. @type {Piece[]} */ #pieces = [];
  /** When the next part begins. */ #next = 0;
  #stream = 0;
  #got = 0;
  #whole = false;
  /** @type {string | null} The turn whose reply is played; null if there is none. */ turnId = null;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {string} parts.conversationId
   */
  constructor(parts) {
    this.#parts = parts;
    this.#gain.connect(this.#context.destination);
  }

  /** Whether the browser lets the page play sound: it may want a click of the user first. */
  async canPlay() {
    const waited = new Promise((resolve) => setTimeout(resolve, 500));
    await Promise.race([this.#context.resume(), waited]);
    return this.#context.state === "running";
  }

  /** Begins or resumes a reply at a position in milliseconds. @param {import("../../client/frames.js").AudioReply} frame */
  begin({ turn_id: turnId, stream, from_ms: fromMs }) {
    if (turnId !== this.turnId) this.#marks = [];
    this.#stop();
    this.turnId = turnId;
    this.#stream = stream;
    this.#reportedMs = this.#fromMs = this.#got = fromMs;
    void this.#context.resume();
  }

  /** @param {import("../../client/frames.js").Marks} frame */
  mark({ turn_id: turnId, marks }) {
    if (turnId === this.turnId) this.#marks.push(...marks);
  }

  /** Ends the sound at once. `seenOff`: how much of the text was heard; undefined if the marks do not say it. */
  cut() {
    this.report();
    const seenOff = this.#heard();
    this.silence();
    return { seenOff };
  }

  silence() {
    this.#stop();
    this.#marks = [];
  }

  close() {
    this.#stop();
    void this.#context.close();
  }

  /** Tells the server how much was played. */
  report() {
    const { turnId } = this;
    const playedMs = this.#playedMs;
    if (turnId === null || playedMs <= this.#reportedMs) return;
    this.#reportedMs = playedMs;
    this.#parts.client.played({ conversationId: this.#parts.conversationId, turnId, audioMs: playedMs });
  }

  #onPlayed() {
    const playedMs = this.#playedMs;
    if (this.turnId === null) return;
    if (playedMs - this.#reportedMs >= REPORT_MS || this.#isOver || (this.#ended()?.end_ms ?? 0) > this.#reportedMs) this.report();
  }

  /** Code points of the reply that were heard, from its marks; a reply that is resumed has none of what was heard before. */
  #heard() {
    const mark = this.#ended();
    if (mark !== undefined) return mark.off + mark.len;
    return this.#marks.length === 0 || this.#fromMs > 0 ? undefined : 0;
  }

  /** The last word that was heard to its end. */
  #ended() {
    const playedMs = this.#playedMs;
    return this.#marks.findLast(({ end_ms: endMs }) => endMs <= playedMs);
  }

  /** Silences the reply at once. */
  #stop() {
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
    }
    this.#sources.clear();
    this.#pieces = [];
    this.#next = 0;
    this.#whole = false;
    this.turnId = null;
    this.duck(false);
  }

  /** Plays a part after those before. A part of another reply comes too late, and is dropped. @param {import("../../client/sound.js").Sound} sound */
  take({ stream, samples, last = false }) {
    if (this.turnId === null || stream !== this.#stream) return;
    this.#whole = last;
    if (samples.length > 0) this.#play(samples);
    else this.#onPlayed();
  }

  /** Whether all of the reply was heard. */
  get #isOver() {
    return this.#whole && this.#sources.size === 0 && this.#playedMs >= Math.floor(this.#got);
  }

  /** Milliseconds of the reply that were heard. */
  get #playedMs() {
    const now = this.#context.currentTime - (this.#context.outputLatency || this.#context.baseLatency || 0);
    const part = this.#pieces.findLast(({ at }) => at <= now);
    if (part === undefined) return this.#fromMs;
    return Math.floor(Math.min(this.#got, part.fromMs + Math.min(part.ms, (now - part.at) * 1000)) + 1e-6);
  }

  /** Plays the reply softly while somebody speaks over it, for `DUCKED_S` at most. @param {boolean} ducked */
  duck(ducked) {
    const now = this.#context.currentTime;
    const { gain } = this.#gain;
    gain.cancelScheduledValues(now);
    gain.setTargetAtTime(ducked ? DUCKED : 1, now, DUCKING_S);
    if (ducked) gain.setTargetAtTime(1, now + DUCKED_S, DUCKING_S);
  }

  /** @param {Int16Array} samples */
  #play(samples) {
    const buffer = this.#context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(Float32Array.from(samples, (sample) => sample / 32_768), 0);
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#gain);
    source.onended = () => this.#sourceEnded(source);
    this.#sources.add(source);
    const { currentTime } = this.#context;
    const at = this.#next > currentTime ? this.#next : currentTime + MARGIN_S;
    source.start(at);
    this.#next = at + buffer.duration;
    this.#pieces.push({ at, fromMs: this.#got, ms: buffer.duration * 1000 });
    this.#got += buffer.duration * 1000;
  }

  /** @param {AudioBufferSourceNode} source */
  #sourceEnded(source) {
    this.#sources.delete(source);
    const heard = this.#pieces.findLastIndex(({ fromMs }) => fromMs <= this.#playedMs);
    if (heard > 0) this.#pieces.splice(0, heard);
    this.#onPlayed();
    if (this.#sources.size === 0) this.#lookAgain(this.turnId);
  }

  /** @param {string | null} turnId */
  #lookAgain(turnId) {
    if (turnId === null || turnId !== this.turnId || this.#sources.size > 0 || this.#playedMs >= Math.floor(this.#got)) return;
    setTimeout(() => {
      if (turnId !== this.turnId || this.#sources.size > 0) return;
      this.#onPlayed();
      this.#lookAgain(turnId);
    }, LOOK_MS);
  }
}
