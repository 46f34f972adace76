/** @typedef {import("./frames.js").ShownCall} ShownCall */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").CallState} CallState */

/** States that a call may still leave. @type {Set<CallState>} */
const OPEN = new Set(["waiting", "running"]);

/** A reply's call of a tool, as far as this client knows it. */
export class Call {
  /** @type {CallState} */ state = "waiting";
  /** @type {string | null} Its result. */ content = null;
  /** @type {string | null} What went wrong instead of a result. */ error = null;
  /** @type {number | null} Its progress, from 0 to 1. */ progress = null;
  /** @type {string} What it is doing, in its own words. */ message = "";

  /** @param {ToolCall | ShownCall} frame  from a live event, or from the history */
  constructor(frame) {
    this.callId = frame.call_id;
    this.index = frame.index;
    this.name = frame.name;
    /** Its arguments, the text of a JSON object. */
    this.args = frame.args;
    /** SHA-256 of `args`, which a decision has to name. */
    this.argsSha256 = frame.args_sha256;
    this.where = frame.where;
    this.needs = frame.needs;
    /** Code points of the reply's text before it. */
    this.off = frame.off;
    /** @type {number | null} Unix milliseconds. */
    this.expiresAt = frame.expires_at ?? null;
    if ("state" in frame) this.take(frame);
  }

  /** Whether its state may still change. */
  get open() {
    return OPEN.has(this.state);
  }

  /** Whether somebody has to allow or deny it. */
  get needsDecision() {
    return this.state === "waiting" && this.needs === "approval";
  }

  /** Takes its new state. @param {import("./frames.js").ToolState | ShownCall} frame */
  take(frame) {
    this.state = frame.state;
    this.content = frame.content ?? null;
    this.error = frame.error ?? null;
    this.args = frame.args ?? this.args;
    this.argsSha256 = frame.args_sha256 ?? this.argsSha256;
  }

  /** Takes its progress. @param {import("./frames.js").Status} frame */
  note(frame) {
    this.progress = frame.progress ?? null;
    this.message = frame.message ?? "";
  }

  /** Marks that its turn has ended, so nobody answers it any more. */
  cancel() {
    if (this.open) this.state = "cancelled";
  }
}
