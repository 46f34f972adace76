/**
 * The frames of the protocol midstream.v1, as types. Nothing here runs.
 *
 * @typedef {{code: string, message: string, retryable?: boolean, retry_after_ms?: number}} Failure
 *
 * @typedef {object} Limits
 * @property {number} max_frame_bytes
 * @property {number} max_content_chars
 * @property {number} max_new_tokens
 * @property {number} context_tokens
 * @property {number | null} messages_per_minute   null: no limit
 *
 * @typedef {object} Ready
 * @property {"ready"} type
 * @property {string} connection_id
 * @property {string} client_id
 * @property {string} model
 * @property {number} heartbeat_ms
 * @property {Limits} limits
 * @property {{name: string, version: string}} server
 *
 * @typedef {object} Accepted
 * @property {"accepted"} type
 * @property {string} client_msg_id
 * @property {string} conversation_id
 * @property {string} turn_id
 * @property {string} message_id          the user's message
 * @property {string | null} parent_id    the message before it
 * @property {string} epoch
 * @property {number} seq
 * @property {boolean} [duplicate]        this message was accepted before: the text follows from offset 0
 * @property {string} [content]           set where another connection sent the message
 *
 * @typedef {object} Delta
 * @property {"delta"} type
 * @property {string} conversation_id
 * @property {string} turn_id
 * @property {number} first_seq
 * @property {number} seq
 * @property {number} off                 code points of this reply before `text`
 * @property {string} text
 * @property {number} tokens              how many generated tokens are behind `text`
 *
 * @typedef {object} Usage
 * @property {number} prompt_tokens
 * @property {number} cached_tokens
 * @property {number} generated_tokens
 * @property {number} sent_tokens
 * @property {number} wasted_tokens
 *
 * @typedef {{queued_ms: number, first_token_ms: number | null, total_ms: number}} Timing
 *
 * @typedef {object} Done
 * @property {"done"} type
 * @property {string} conversation_id
 * @property {string} turn_id
 * @property {string} message_id          the reply
 * @property {number} seq
 * @property {number} [first_seq]         where it stands for withdrawn pieces too
 * @property {"stop"|"length"|"cancelled"|"timeout"|"interrupted"|"filtered"|"error"} reason
 * @property {number} chars               code points of the reply that are kept
 * @property {boolean} [removed]          the exchange was rolled back
 * @property {Usage} usage
 * @property {Timing} timing
 * @property {string} text_sha256         of the reply as kept, in UTF-8
 * @property {{cause: string, latency_ms: number, steps_after: number | null}} [cancel]
 * @property {Failure} [error]
 * @property {boolean} saved
 *
 * @typedef {object} Message
 * @property {string} message_id
 * @property {string | null} parent_id
 * @property {string[]} [siblings]        all messages that share the parent, this one too
 * @property {string} turn_id
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {string} status              "complete", the reason the reply ended, or "running": the text so far
 * @property {number} created_at          Unix milliseconds
 * @property {Usage} [usage]
 *
 * @typedef {object} History
 * @property {"history"} type
 * @property {string} conversation_id
 * @property {string} epoch
 * @property {number} seq
 * @property {Message[]} messages         oldest first
 * @property {boolean} has_more           older ones exist
 *
 * @typedef {object} ConversationSummary
 * @property {string} conversation_id
 * @property {string} title
 * @property {number} updated_at          Unix milliseconds
 * @property {number} messages
 *
 * @typedef {{type: "conversations", conversations: ConversationSummary[], has_more: boolean}} Conversations
 * @typedef {{type: "cancelled", turn_id: string | null, already: boolean}} Cancelled
 * @typedef {{type: "deleted", conversation_id: string}} Deleted
 *
 * @typedef {object} Status               where a turn without text stands; not numbered
 * @property {"status"} type
 * @property {string} conversation_id
 * @property {string} turn_id
 * @property {"queued"|"prefill"|"retrying"|"fallback"|"unsaved"} state
 * @property {number} [queue_position]    queued: from 1, the next to start
 * @property {number} [progress]          prefill: the share of the prompt that is done, 0 to 1
 *
 * @typedef {{type: "limits", name: string, remaining: number, reset_s: number}} LimitsLeft
 * @typedef {{type: "goaway", drain_ms: number, reason: string}} Goaway
 * @typedef {Failure & {type: "error", ref?: string, retryable: boolean}} ErrorFrame
 */

export {};
