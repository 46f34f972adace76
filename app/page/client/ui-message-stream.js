import { countCodePoints, takeCodePoints } from "./code-points.js";
import { ChatError } from "./errors.js";
import { ReplyState } from "./reply.js";

/** @typedef {import("./reply.js").Reply} Reply */
/** @typedef {import("./call.js").Call} Call */
/** @typedef {import("./frames.js").Message} Message */
/** @typedef {{type: string} & Record<string, unknown>} UIMessageChunk  a chunk of the AI SDK's UI message stream */

/** @type {Record<string, string>} */
const FINISH_REASONS = { stop: "stop", length: "length", filtered: "content-filter", tools: "tool-calls" };
/** @type {Record<string, string>} */
const CALL_ENDS = {
  cancelled: "The call was cancelled.",
  expired: "The call was not answered in time.",
  lost: "The call was started; its outcome is unknown.",
};

const GONE = "The reply ended while there was no connection; reload the chat.";
const LOST = "A part of this reply did not arrive; reload the chat.";
const INTERRUPTED = "The reply was interrupted.";

/** Whether a call waits for its client. @param {Call} call */
export function waitsForClient(call) {
  return call.open && (call.where === "client" || call.needsDecision);
}

/** The id of an approval. It names the arguments that are shown, so no others can be meant. @param {Call} call */
export function approvalId({ callId, argsSha256 }) {
  return `${callId}.${argsSha256}`;
}

/** A result for a front end: a JSON object or list as such, all else as text. @param {string} content */
function outputOf(content) {
  if (!/^[[{]/.test(content)) return content;
  try {
    return JSON.parse(content);
  } catch {
    return content;
  }
}

/** The chunk for the end of a call; null if it goes on. @param {Call} call @returns {UIMessageChunk | null} */
export function outcomeOf(call) {
  const named = { toolCallId: call.callId, ...(call.where === "server" && { providerExecuted: true }) };
  if (call.open) return null;
  if (call.state === "denied") return { type: "tool-output-denied", toolCallId: call.callId };
  if (call.state === "done" && call.error === null) {
    return { type: "tool-output-available", ...named, output: outputOf(call.content ?? "") };
  }
  return { type: "tool-output-error", ...named, errorText: call.error ?? CALL_ENDS[call.state] };
}

/**
 * Tells replies as one message of the AI SDK: a reply is a step, and the one that follows calls is the next step. What is
 * new in a reply becomes chunks, however it came: live, merged, or after a lost connection.
 */
export class UIMessageStream {
  /** @type {ReadableStream<UIMessageChunk>} */ readable;
  /** @type {Reply | null} The reply that is streamed now. */ reply = null;
  /** @type {ReadableStreamDefaultController<UIMessageChunk>} */ #controller;
  /** @type {string | null} */ #messageId;
  /** @type {(() => void)[]} */ #whenOver = [];
  /** @type {{type: string, id: string} | null} The open part. */ #part = null;
  /** @type {Map<string, {ended: boolean, settled: boolean}>} The calls that were streamed: whether their ends were, and whether the client settles them. */
  #calls = new Map();
  /** Whether it has ended. */ over = false;
  #begun = false;
  #inStep = false;
  #parts = 0;
  /** What was sent of the reply. */ #sent = { thought: "", text: "" };

  /** @param {{messageId?: string}} [options]  `messageId`: of a message that goes on */
  constructor({ messageId } = {}) {
    this.#messageId = messageId ?? null;
    this.#controller = /** @type {any} */ (null);
    this.readable = new ReadableStream({
      start: (controller) => {
        this.#controller = controller;
      },
      cancel: () => this.#end(),
    });
  }

  /** Code points of the reply's text that were streamed. */
  get streamedChars() {
    return countCodePoints(this.#sent.text);
  }

  /** @param {() => void} then  called once it is over */
  whenOver(then) {
    this.#whenOver.push(then);
  }

  /** Tells a reply of the history that has ended: a step before those to come. @param {Message} message @param {Call[]} calls */
  past(message, calls) {
    this.#begin(message.turn_id);
    this.#forget();
    this.#step();
    this.#writeReply(message.reasoning ?? "", message.content, calls);
    this.#leave();
  }

  /**
   * Continues with a reply whose calls its client answers. The message has all else of it.
   * @param {Reply} reply
   * @param {string[]} settled  the calls that the client settles; the server may tell that later
   */
  goOn(reply, settled) {
    this.reply = reply;
    this.#sent = { thought: reply.reasoning.text, text: reply.text };
    for (const { callId, open } of reply.calls) this.#calls.set(callId, { ended: !open, settled: settled.includes(callId) });
  }

  /** Tells what is new of a reply: the current one, or the one that follows its calls. @param {Reply} reply */
  take(reply) {
    if (this.over) return;
    if (reply !== this.reply) {
      if (this.reply !== null && this.#inStep) this.#leave();
      this.reply = reply;
      this.#forget();
    }
    if (reply.error !== null) return this.fail(reply.error);
    if (reply.state === ReplyState.WITHDRAWN) return this.fail(new ChatError(ChatError.DISCONNECTED, GONE));
    if (reply.turnId === null) return;
    this.#grow(reply);
    if (reply.done !== null && reply.chars < reply.done.chars) {
      // A part of the text is missing: what was streamed must not look like the whole.
      this.#leave();
      return this.#finish({ type: "error", errorText: LOST });
    }
    if (reply.state === ReplyState.ENDED && reply.done !== null) this.#conclude(reply.done);
    else this.pause();
  }

  /** Ends if all that is open waits for its client. */
  pause() {
    const open = this.reply?.calls.filter((call) => call.open) ?? [];
    const waits = open.every((call) => waitsForClient(call) && !this.#calls.get(call.callId)?.settled);
    if (this.reply?.state !== ReplyState.CALLING || open.length === 0 || !waits) return;
    if (this.#inStep) this.#leave();
    this.#begin(this.reply.turnId ?? "");
    this.#finish({ type: "finish", finishReason: "tool-calls" });
  }

  /** Ends as the last reply in the history did. @param {Message} message @param {Call[]} calls */
  ended({ status }, calls) {
    if (status === "cancelled") return this.#finish({ type: "abort", reason: "stopped" });
    if (status === "error" || status === "interrupted") return this.#finish({ type: "error", errorText: INTERRUPTED });
    const reason = calls.some((call) => call.open) ? "tools" : status === "complete" ? "stop" : status;
    this.#finish({ type: "finish", finishReason: FINISH_REASONS[reason] ?? "other" });
  }

  /** Ends with an error, which the reader gets. @param {Error} error */
  fail(error) {
    if (this.over) return;
    this.#controller.error(error);
    this.#end();
  }

  /** Ends at once: the reader wants no more. */
  close() {
    if (this.over) return;
    this.#controller.close();
    this.#end();
  }

  /** @param {Reply} reply */
  #grow(reply) {
    const stepEnded = this.#calls.size > 0 && !this.#inStep;
    if (!stepEnded) {
      this.#begin(/** @type {string} */ (reply.turnId));
      this.#step();
      if (!reply.text.startsWith(this.#sent.text) || !reply.reasoning.text.startsWith(this.#sent.thought)) {
        // Less of the reply is kept than was streamed.
        this.#close();
        this.#put({ type: "reset-step" });
        this.#forget();
      }
      this.#writeReply(reply.reasoning.text, reply.text, reply.calls);
    }
    this.#writeOutcomes(reply.calls);
    if (reply.state === ReplyState.CALLING && this.#inStep) this.#leave();
  }

  /** Begins with another reply, or with the same one from its start. */
  #forget() {
    this.#sent = { thought: "", text: "" };
    this.#calls.clear();
  }

  /** @param {string} reasoning @param {string} text @param {Call[]} calls */
  #writeReply(reasoning, text, calls) {
    this.#write("reasoning", reasoning.slice(this.#sent.thought.length));
    this.#sent.thought = reasoning;
    for (const call of calls.filter(({ callId }) => !this.#calls.has(callId))) {
      const before = takeCodePoints(text, call.off);
      if (before.length > this.#sent.text.length) this.#writeText(before);
      this.#close();
      this.#writeCall(call);
    }
    this.#writeText(text);
    this.#writeOutcomes(calls);
  }

  /** @param {string} text */
  #writeText(text) {
    this.#write("text", text.slice(this.#sent.text.length));
    this.#sent.text = text;
  }

  /** @param {Call} call */
  #writeCall(call) {
    const { callId: toolCallId, name: toolName, where } = call;
    const by = where === "server" ? { providerExecuted: true } : {};
    this.#put({ type: "tool-input-available", toolCallId, toolName, input: JSON.parse(call.args), ...by });
    if (call.needsDecision) this.#put({ type: "tool-approval-request", approvalId: approvalId(call), toolCallId });
    this.#calls.set(toolCallId, { ended: false, settled: false });
  }

  /** @param {Call[]} calls */
  #writeOutcomes(calls) {
    for (const call of calls) {
      const entry = this.#calls.get(call.callId);
      const outcome = outcomeOf(call);
      if (outcome === null || entry === undefined || entry.ended) continue;
      this.#close();
      this.#begin(this.reply?.turnId ?? "");
      this.#put(outcome);
      entry.ended = true;
    }
  }

  /** @param {import("./frames.js").Done} done */
  #conclude(done) {
    if (done.reason === "tools") return; // The reply that follows goes on.
    this.#leave();
    const { turn_id: turnId, reason, chars, text_sha256: textSha256, usage, model, cancel } = done;
    const stopped = cancel === undefined ? {} : { cause: cancel.cause, stepsAfter: cancel.steps_after };
    const tokens = { promptTokens: usage.prompt_tokens, generatedTokens: usage.generated_tokens };
    const midstream = { turnId, reason, chars, textSha256, ...tokens, model, ...stopped };
    this.#put({ type: "message-metadata", messageMetadata: { midstream } });
    if (reason === "cancelled") return this.#finish({ type: "abort", reason: cancel?.cause ?? "stopped" });
    if (reason !== "error" && reason !== "interrupted") {
      return this.#finish({ type: "finish", finishReason: FINISH_REASONS[reason] ?? "other" });
    }
    this.#finish({ type: "error", errorText: done.error?.message ?? INTERRUPTED });
  }

  /** @param {string} turnId */
  #begin(turnId) {
    if (this.#begun) return;
    this.#begun = true;
    this.#put({ type: "start", messageId: this.#messageId ?? turnId });
  }

  #step() {
    if (this.#inStep) return;
    this.#inStep = true;
    this.#put({ type: "start-step" });
  }

  #leave() {
    this.#close();
    if (this.#inStep) this.#put({ type: "finish-step" });
    this.#inStep = false;
  }

  /** @param {"text" | "reasoning"} type @param {string} delta */
  #write(type, delta) {
    if (delta === "") return;
    if (this.#part?.type !== type) {
      this.#close();
      this.#parts += 1;
      this.#part = { type, id: `${type}-${this.#parts}` };
      this.#put({ type: `${type}-start`, id: this.#part.id });
    }
    this.#put({ type: `${type}-delta`, id: /** @type {{id: string}} */ (this.#part).id, delta });
  }

  #close() {
    if (this.#part !== null) this.#put({ type: `${this.#part.type}-end`, id: this.#part.id });
    this.#part = null;
  }

  /** @param {UIMessageChunk} chunk */
  #put(chunk) {
    if (!this.over) this.#controller.enqueue(chunk);
  }

  /** @param {UIMessageChunk} last */
  #finish(last) {
    this.#put(last);
    this.close();
  }

  #end() {
    this.over = true;
    for (const then of this.#whenOver) then();
  }
}
