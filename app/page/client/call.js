/** @typedef {import("./frames.js").ShownCall} ShownCall */
/** @typedef {import("./frames.js").ToolCall} ToolCall */
/** @typedef {import("./frames.js").CallState} CallState */
/** @typedef {import("./frames.js").Question} Question */

/** States that something may still move a call out of. @type {Set<CallState>} */
const OPEN = new Set(["waiting", "running"]);

/** A call of a tool by a reply, as far as it is known here. */
export class Call {
  /** @type {CallState} */ state = "waiting";
  /** @type {string | null} What came of it. */ content = null;
  /** @type {string | null} What went wrong instead. */ error = null;
  /** @type {Question | null} What it asks while it runs. */ question = null;
  /** @type {number | null} How far it is, from 0 to 1. */ progress = null;
  /** @type {string} What it does at the moment, in its own words. */ message = "";

  /** @param {ToolCall | ShownCall} frame  as it was told live, or as history has it */
  constructor(frame) {
    this.callId = frame.call_id;
    this.index = frame.index;
    this.name = frame.name;
    /** The text of a JSON object: what it runs with. */
    this.args = frame.args;
    /** Of `args`: a decision has to name it. */
    this.argsSha256 = frame.args_sha256;
    this.where = frame.where;
    this.needs = frame.needs;
    /** Code points of the reply's text before it. */
    this.off = frame.off;
    /** @type {number | null} Unix milliseconds. */
    this.expiresAt = frame.expires_at ?? null;
    if ("state" in frame) this.take(frame);
  }

  /** Whether something may still come of it. */
  get open() {
    return OPEN.has(this.state);
  }

  /** Whether somebody has to allow or deny it. */
  get asks() {
    return this.state === "waiting" && this.needs === "approval";
  }

  /** Takes what became of it. @param {import("./frames.js").ToolState | ShownCall} frame */
  take(frame) {
    this.state = frame.state;
    this.content = frame.content ?? null;
    this.error = frame.error ?? null;
    this.args = frame.args ?? this.args;
    this.argsSha256 = frame.args_sha256 ?? this.argsSha256;
    this.question = frame.question ?? null;
  }

  /** Takes how far it is. @param {import("./frames.js").Status} frame */
  note(frame) {
    this.progress = frame.progress ?? null;
    this.message = frame.message ?? "";
  }

  /** Its turn ended otherwise than by its calls: nobody answers it any more. */
  cancel() {
    if (this.open) this.state = "cancelled";
    this.question = null;
  }
}
