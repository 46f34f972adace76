// The frames of the protocol midstream.v1, generated from the server's types: `make specs` writes this file.

/** Any frame of a client's. */
export type Request = HelloRequest | SendRequest | EditRequest | RegenerateRequest | ContinueRequest | InterpretStartRequest | SourceRequest | CancelRequest | ToolResultRequest | ToolDecisionRequest | ResumeRequest | HistoryRequest | ConversationsRequest | SearchRequest | RenameRequest | ShareRequest | UnshareRequest | DeleteRequest | AckRequest | AuthRefreshRequest | PingRequest | AudioStartRequest | AudioCommitRequest | AudioClearRequest | AudioStopRequest | PlayedRequest;

/** Any frame of the server's. */
export type Frame = Ready | Accepted | Delta | Reasoning | ToolCall | ToolState | SourceText | SourceAck | Done | Removed | Cancelled | ToolAck | Resumed | Gap | Snapshot | History | Conversations | Found | Shared | Titled | Deleted | Pong | Status | LimitsLeft | Goaway | ErrorFrame | AudioStarted | AudioStopped | AudioReply | Speech | Transcript | Marks;

/** The first frame. `client_id`: if it is missing, the server assigns one. */
export interface HelloRequest {
  type: "hello";
  ref?: string | null;
  client_id?: string | null;
  token?: string | null;
  features?: string[];
}

/**
 * A user's message. `parent_id`: the message that this one follows; null: none.
 *
 * `seen_off`: if an `interrupt` ends a reply, how many characters of that reply the user has seen. `seen_turn_id`: the turn of
 * the interrupted reply. `tools`: for this turn and for the turns that follow its calls. `tool_choice`: `auto`,
 * `none`, `required`, or the name of a tool that must be called. `attachments`: ids of uploaded images, which the model sees
 * before the text.
 */
export interface SendRequest {
  type: "send";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  seen_off?: number | null;
  seen_turn_id?: string | null;
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  content: string;
  attachments?: string[];
  parent_id?: string | null;
}

/**
 * How to generate the reply. Missing fields take the defaults of the model or the server.
 *
 * `model`: a model's name or alias, which later messages of the conversation use, too. `reasoning`: `auto`, `off`, or an
 * effort that the model's template knows. `chars_per_s`: the highest rate at which text is sent; 0: as fast as generated.
 * `target`: the language to translate the message to, by a code that the translation model knows. `source`: the language to
 * translate the message from.
 */
export interface Params {
  max_new_tokens?: number | null;
  do_sample?: boolean | null;
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  repetition_penalty?: number | null;
  seed?: number | null;
  stop?: string[];
  max_time_s?: number | null;
  system?: string | null;
  model?: string | null;
  format?: JsonSchemaFormat | JsonObjectFormat | RegexFormat | GrammarFormat | null;
  reasoning?: string | null;
  chars_per_s?: number | null;
  target?: string | null;
  source?: string | null;
}

/** The reply is JSON that matches the schema, even if `strict` is false. */
export interface JsonSchemaFormat {
  type: "json_schema";
  schema: Record<string, unknown>;
  strict?: boolean;
}

/** The reply is a JSON object. */
export interface JsonObjectFormat {
  type: "json_object";
}

/** The whole reply matches a regular expression. */
export interface RegexFormat {
  type: "regex";
  pattern: string;
}

/** The whole reply matches a grammar in Lark's notation. */
export interface GrammarFormat {
  type: "grammar";
  lark: string;
}

/**
 * A tool that the model may call. `parameters`: a JSON Schema of an object.
 *
 * `where`: `client` tools run in the client. A `server` tool is one of `ready.tools`, and has the server's description and
 * parameters.
 */
export interface OfferedTool {
  name: string;
  description?: string;
  parameters?: Record<string, unknown> | null;
  where?: "client" | "server";
  approval?: "always" | "never";
}

/** A new version of a user's message. The old version is kept. */
export interface EditRequest {
  type: "edit";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  seen_off?: number | null;
  seen_turn_id?: string | null;
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  message_id: string;
  content: string;
  attachments?: string[];
}

/** Asks for another reply to the same message. The old reply is kept. */
export interface RegenerateRequest {
  type: "regenerate";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  seen_off?: number | null;
  seen_turn_id?: string | null;
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  message_id: string;
}

/** Asks for the rest of a reply that was stopped or cut off. */
export interface ContinueRequest {
  type: "continue";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  seen_off?: number | null;
  seen_turn_id?: string | null;
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  message_id: string;
}

/**
 * Begins a live translation. The user's message is the source, which `source` frames extend. The reply is its translation.
 *
 * `publish_policy`: which words of an unfinished sentence are sent. `agreement`: the words that three attempts in a row share.
 * `wait`: as many words as the source has so far, minus `wait_words`. `segment`: no words.
 */
export interface InterpretStartRequest {
  type: "interpret.start";
  ref?: string | null;
  client_msg_id: string;
  target: string;
  source?: string;
  conversation_id?: string;
  input?: "text";
  publish_policy?: "agreement" | "segment" | "wait";
  wait_words?: number;
  model?: string | null;
  parent_id?: string | null;
  on_busy?: "interrupt" | "reject" | "rollback";
  seen_off?: number | null;
  seen_turn_id?: string | null;
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
}

/**
 * More of a translation's source. `off`: how many characters of the source precede `text`.
 *
 * `final`: the source is complete now.
 */
export interface SourceRequest {
  type: "source";
  ref?: string | null;
  off: number;
  text: string;
  final?: boolean;
  conversation_id?: string;
  turn_id?: string | null;
}

/**
 * Stops a turn (`turn_id`), the turn that answers a message (`client_msg_id`), or all turns of a conversation.
 *
 * `seen_off`: how many characters of the reply the user has seen.
 */
export interface CancelRequest {
  type: "cancel";
  ref?: string | null;
  turn_id?: string | null;
  client_msg_id?: string | null;
  conversation_id?: string | null;
  mode?: "keep" | "rollback";
  seen_off?: number | null;
}

/** The result of a tool call that the client ran: `content`, or an `error`. */
export interface ToolResultRequest {
  type: "tool_result";
  ref?: string | null;
  call_id: string;
  conversation_id?: string | null;
  content?: string | null;
  error?: string | null;
}

/**
 * Allows or denies a call. `args`: arguments to run the call with instead.
 *
 * `args_sha256`: the hash of the arguments that the user saw.
 */
export interface ToolDecisionRequest {
  type: "tool_decision";
  ref?: string | null;
  call_id: string;
  args_sha256: string;
  decision: "allow" | "deny";
  conversation_id?: string | null;
  args?: string | null;
}

/** Attaches the connection to a conversation, and requests all events of an `epoch` after `after_seq`. */
export interface ResumeRequest {
  type: "resume";
  ref?: string | null;
  conversation_id: string;
  epoch: string;
  after_seq: number;
}

/**
 * Attaches the connection to a conversation, and asks for a page of its messages.
 *
 * `before`: the oldest message of the previous page. `leaf`: the message whose branch becomes active.
 */
export interface HistoryRequest {
  type: "history";
  ref?: string | null;
  conversation_id?: string;
  limit?: number;
  before?: string | null;
  leaf?: string | null;
}

/** Asks for the owner's conversations. `before`: the last conversation of the previous page. */
export interface ConversationsRequest {
  type: "conversations";
  ref?: string | null;
  limit?: number;
  before?: string | null;
}

/** Searches the titles and messages of the owner's conversations. `before`: the `next` of the previous answer. */
export interface SearchRequest {
  type: "search";
  ref?: string | null;
  query: string;
  limit?: number;
  before?: string | null;
}

/** Gives a conversation another title. */
export interface RenameRequest {
  type: "rename";
  ref?: string | null;
  conversation_id: string;
  title: string;
}

/** Makes a public link to the active branch as it is now. Another `share` updates what the link shows. */
export interface ShareRequest {
  type: "share";
  ref?: string | null;
  conversation_id: string;
}

/** Revokes the link of a conversation. */
export interface UnshareRequest {
  type: "unshare";
  ref?: string | null;
  conversation_id: string;
}

/** Removes a conversation. */
export interface DeleteRequest {
  type: "delete";
  ref?: string | null;
  conversation_id: string;
}

/** Confirms that all events up to `seq` have arrived. */
export interface AckRequest {
  type: "ack";
  ref?: string | null;
  conversation_id: string;
  seq: number;
}

/** Replaces the connection's token with a new one of the same owner. */
export interface AuthRefreshRequest {
  type: "auth.refresh";
  ref?: string | null;
  token: string;
}

/** Asks for a `pong` with the same `t`. */
export interface PingRequest {
  type: "ping";
  ref?: string | null;
  t?: number | string | null;
}

/**
 * Makes the server listen to the user in a conversation.
 *
 * `output`: the sound of replies, one channel. If it is missing, replies are not spoken. `model`: a model's name or alias.
 * `grace_s`: seconds that a reply waits for its listener to reconnect.
 */
export interface AudioStartRequest {
  type: "audio.start";
  ref?: string | null;
  conversation_id?: string;
  input?: AudioInput;
  output?: AudioOutput | null;
  turn_detection?: TurnDetection;
  language?: string | null;
  model?: string | null;
  grace_s?: number;
}

/** The sound of the microphone, one channel. */
export interface AudioInput {
  format?: "alaw" | "mulaw" | "pcm16";
  rate?: number;
}

/** The sound of replies, one channel. `voice`: by default the server's first voice. */
export interface AudioOutput {
  format?: "alaw" | "mulaw" | "pcm16";
  rate?: number;
  voice?: string | null;
}

/**
 * How the end of the user's turn is detected.
 *
 * `type`: with `none`, only `audio.commit` ends the turn, and speech interrupts nothing. `silence_ms`: the silence that ends
 * the turn. `finished_ms`: the same if the sentence seems complete. `unfinished_ms`: the same if the sentence seems
 * incomplete. `threshold`: the share of sound that must be speech for the user to count as speaking. `interrupt`: whether the
 * user's words end a running reply once they have lasted `interrupt_ms`. The word "Stop" ends the reply at once.
 */
export interface TurnDetection {
  type?: "none" | "vad";
  silence_ms?: number;
  finished_ms?: number;
  unfinished_ms?: number;
  threshold?: number;
  interrupt?: boolean;
  interrupt_ms?: number;
}

/** Ends the current utterance (the words since the last silence), which becomes a message. */
export interface AudioCommitRequest {
  type: "audio.commit";
  ref?: string | null;
  conversation_id?: string;
}

/** Drops the current utterance. */
export interface AudioClearRequest {
  type: "audio.clear";
  ref?: string | null;
  conversation_id?: string;
}

/** Makes the server stop listening. A reply that is being spoken is cut off after the text that was heard. */
export interface AudioStopRequest {
  type: "audio.stop";
  ref?: string | null;
  conversation_id?: string;
}

/** Reports how much of a reply's sound was played, in milliseconds from its beginning. */
export interface PlayedRequest {
  type: "played";
  ref?: string | null;
  turn_id: string;
  audio_ms: number;
  conversation_id?: string;
}

/**
 * Answers `hello` and `auth.refresh`. `model`: the default model, to which the `limits` apply.
 *
 * `suggestions`: messages to begin an empty conversation with.
 */
export interface Ready {
  type: "ready";
  ref?: string;
  connection_id: string;
  client_id: string;
  features: string[];
  model: string;
  models: Model[];
  heartbeat_ms: number;
  resume_ttl_s: number;
  limits: Limits;
  server: ServerFacts;
  tools?: ServerTool[];
  suggestions?: string[];
}

/**
 * A model that requests may name. `context_tokens`: the model's context window; null until the model is loaded.
 *
 * `unsupported`: the `params` that the model does not support. `fallbacks`: the models to try, in order, if this one can't
 * answer. `features`: what the model supports besides text: `tools`, `reasoning`, `format`, `continue`, `images`. A model with
 * `translate` only translates.
 */
export interface Model {
  name: string;
  aliases?: string[];
  context_tokens?: number;
  unsupported?: string[];
  fallbacks?: string[];
  features?: string[];
}

/** The limits for clients; null: no limit. `max_images`: images per request; 0 if no model accepts images. */
export interface Limits {
  max_frame_bytes: number;
  max_content_chars: number;
  max_new_tokens: number;
  context_tokens: number;
  max_active_turns: number;
  max_queued_turns: number;
  messages_per_minute: number | null;
  max_tool_rounds: number;
  max_images: number;
  max_image_bytes: number;
}

/** The name and the version of the server. */
export interface ServerFacts {
  name: string;
  version: string;
}

/** A tool that the server runs. */
export interface ServerTool {
  name: string;
  description: string;
  approval: "always" | "never";
}

/**
 * A turn begins: the user's message is in the history. `queue_position`: the turn's place in the queue; 1 is next.
 *
 * `parent_id`: the message before the user's message; null: there is none. `model`: the model that will write the reply.
 * `follows`: the turn that this turn follows because its calls are settled. Then there is no new message, and `message_id` is
 * the reply with the calls. `continues`: the reply that the turn continues. `interprets`: if present, the message is the
 * source of a live translation, and `source` events extend it.
 */
export interface Accepted {
  type: "accepted";
  conversation_id: string;
  client_msg_id: string;
  turn_id: string;
  message_id: string;
  epoch: string;
  seq: number;
  first_seq?: number;
  queue_position?: number;
  ref?: string;
  duplicate?: boolean;
  content?: string;
  parent_id: string | null;
  model?: string;
  follows?: string;
  continues?: string;
  interprets?: Languages;
  attachments?: Attachment[];
}

/** The languages of a live translation, as tags (BCP 47). A source of `auto` may be any language. */
export interface Languages {
  source: string;
  target: string;
}

/** An image in a message. Width and height are in pixels. */
export interface Attachment {
  id: string;
  media_type: string;
  width: number;
  height: number;
}

/**
 * More text of a turn's reply. `off`: the length of the reply before `text`.
 *
 * `src_off`: in a live translation, how many characters of the source had been read when this text ended.
 */
export interface Delta {
  type: "delta";
  conversation_id: string;
  turn_id: string;
  seq: number;
  first_seq: number;
  off: number;
  text: string;
  tokens: number;
  src_off?: number;
}

/** More of the model's reasoning, which is not part of the reply. `off`: the length of the reasoning before `text`. */
export interface Reasoning {
  type: "reasoning";
  conversation_id: string;
  turn_id: string;
  seq: number;
  first_seq: number;
  off: number;
  text: string;
  tokens: number;
}

/**
 * The model calls a tool. `index`: the call's number in the reply, from 0. `off`: the length of the reply before the call.
 *
 * `args`: the arguments, a JSON object as text. `args_sha256`: the SHA-256 of `args` in UTF-8. `expires_at`: until when the
 * call waits for a client, in Unix milliseconds.
 */
export interface ToolCall {
  type: "tool_call";
  conversation_id: string;
  turn_id: string;
  seq: number;
  call_id: string;
  index: number;
  name: string;
  args: string;
  args_sha256: string;
  where: "client" | "server";
  needs: "approval" | "none";
  off: number;
  tokens: number;
  first_seq?: number;
  expires_at?: number;
}

/**
 * A call has a new state. `content`: the result of a call that is done. `error`: the error of a call that is done.
 *
 * `args`: the arguments that the call runs with, if the decision changed them. `args_sha256`: the hash of those arguments.
 */
export interface ToolState {
  type: "tool_state";
  conversation_id: string;
  turn_id: string;
  seq: number;
  call_id: string;
  state: CallState;
  first_seq?: number;
  content?: string;
  error?: string;
  args?: string;
  args_sha256?: string;
}

/** The state of a tool call. All but `waiting` and `running` are final. */
export type CallState = "cancelled" | "denied" | "done" | "expired" | "lost" | "running" | "waiting";

/** The source of a live translation grew. `off`: the length of the source before `text`. `final`: the source is complete. */
export interface SourceText {
  type: "source";
  conversation_id: string;
  turn_id: string;
  seq: number;
  off: number;
  text: string;
  final?: boolean;
  first_seq?: number;
}

/**
 * Answers `source`. `already`: whether the text had arrived before. `chars`: the length of the source.
 *
 * `final`: the source is complete.
 */
export interface SourceAck {
  type: "source_ack";
  ref?: string;
  conversation_id: string;
  turn_id: string;
  chars: number;
  final: boolean;
  already: boolean;
}

/**
 * The end of a turn. Every turn has one. `chars`: the length of the stored reply.
 *
 * `text_sha256`: the SHA-256 of the stored reply in UTF-8. `reasoning_chars`: the length of the stored reasoning. `open`: the
 * ids of the reply's unsettled calls. `model`: the model that wrote the reply. `requested_model`: the requested model, if a
 * fallback wrote the reply. `follows`: the turn whose calls this turn follows. `saved`: whether the end is stored. `removed`:
 * whether the message and its reply were removed from the history.
 */
export interface Done {
  type: "done";
  conversation_id: string;
  turn_id: string;
  message_id: string;
  seq: number;
  reason: Reason;
  chars: number;
  usage: Usage;
  timing: Timing;
  text_sha256: string;
  saved: boolean;
  first_seq?: number;
  removed?: boolean;
  cancel?: CancelFacts;
  error?: Failure;
  model?: string;
  requested_model?: string;
  reasoning_chars?: number;
  open?: string[];
  follows?: string;
}

/**
 * Why a turn ended. `interrupted`: a part of the service failed, or stopped; the user did nothing.
 *
 * `tools`: it called tools, and another turn follows once their calls are settled.
 */
export type Reason = "cancelled" | "error" | "filtered" | "interrupted" | "length" | "stop" | "timeout" | "tools";

/**
 * Tokens of a turn. `wasted_tokens`: generated tokens that are not in the stored reply.
 *
 * `acked_tokens`: tokens whose events the client confirmed with `ack`. `reasoning_ms`: the duration of the reasoning, if
 * known.
 */
export interface Usage {
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  sent_tokens: number;
  wasted_tokens: number;
  acked_tokens?: number;
  reasoning_tokens?: number;
  reasoning_ms?: number;
}

/** Milliseconds since the turn was accepted; null for a stage that the turn did not reach. */
export interface Timing {
  queued_ms: number | null;
  first_token_ms: number | null;
  total_ms: number;
}

/**
 * The outcome of a cancel. `steps_after`: engine steps after the cancel; null if the engine did not confirm in time.
 *
 * `precision`: for a spoken reply, whether the end is exact to the word, or only to a chunk of several words.
 */
export interface CancelFacts {
  cause: Cause;
  latency_ms: number;
  steps_after: number | null;
  precision?: "chunk" | "word";
}

/** Who cancelled a turn. */
export type Cause = "client" | "disconnect" | "drain" | "interrupt" | "operator" | "rollback";

/** Why a turn ended with `error` or `interrupted`, in words for the user. */
export interface Failure {
  code: string;
  message: string;
  retry_after_ms?: number;
}

/** A message and its reply were removed from the history, after the turn had ended. */
export interface Removed {
  type: "removed";
  conversation_id: string;
  turn_id: string;
  seq: number;
  first_seq?: number;
}

/** Answers `cancel` once the turn's end is decided. `already`: whether the turn had ended or been cancelled before. */
export interface Cancelled {
  type: "cancelled";
  ref?: string;
  turn_id: string | null;
  already: boolean;
}

/**
 * Answers a `tool_result` or `tool_decision` that took effect.
 *
 * `already`: whether the same result or decision had taken effect before.
 */
export interface ToolAck {
  type: "tool_ack";
  ref?: string;
  conversation_id: string;
  call_id: string;
  state: CallState;
  already: boolean;
}

/**
 * Answers `resume`. The missed events follow, then new ones. Not journalled. `live`: the running turn.
 *
 * `replayed`: how many events were missed.
 */
export interface Resumed {
  type: "resumed";
  conversation_id: string;
  ref?: string;
  epoch: string;
  replayed: number;
  live: string | null;
}

/** Some missed events are no longer kept. A `snapshot` follows. `min_seq`: the oldest event that is kept. */
export interface Gap {
  type: "gap";
  conversation_id: string;
  ref?: string;
  epoch: string;
  min_seq: number;
}

/**
 * The state of the conversation at `seq`: the running turn, if any, and its text so far.
 *
 * `reasoning`: the turn's reasoning so far. `calls`: the turn's calls so far. If no turn runs, they are the conversation's
 * open calls.
 */
export interface Snapshot {
  type: "snapshot";
  conversation_id: string;
  epoch: string;
  seq: number;
  turn_id: string | null;
  text: string;
  reasoning?: string;
  calls?: ShownCall[];
}

/** A reply's tool call, in the history. The fields are those of `tool_call` and `tool_state`. */
export interface ShownCall {
  call_id: string;
  index: number;
  name: string;
  args: string;
  args_sha256: string;
  where: "client" | "server";
  needs: "approval" | "none";
  off: number;
  state: CallState;
  expires_at?: number;
  content?: string;
  error?: string;
}

/**
 * Messages of the active branch, oldest first. Not journalled. Sent without `ref` if another branch became active.
 *
 * `seq`: the last event that the messages include.
 */
export interface History {
  type: "history";
  conversation_id: string;
  epoch: string;
  seq: number;
  messages: Message[];
  has_more: boolean;
  ref?: string;
}

/**
 * A message of the page. `status`: `complete`, `running`, or the reason why the message's turn ended.
 *
 * `created_at`: Unix milliseconds. `siblings`: the messages with the same parent, including this one, oldest first. If there
 * are many, only the nearest are listed. `sibling_index`: how many siblings are older than this message. `model`: the model
 * that wrote the reply. `interprets`: the message is the source of live translations.
 */
export interface Message {
  message_id: string;
  parent_id: string | null;
  siblings: string[];
  sibling_count: number;
  sibling_index: number;
  turn_id: string;
  role: "assistant" | "user";
  content: string;
  status: string;
  created_at: number;
  usage: Usage | null;
  model: string | null;
  reasoning?: string;
  calls?: ShownCall[];
  interprets?: Languages;
  attachments?: Attachment[];
}

/** Answers `conversations`. */
export interface Conversations {
  type: "conversations";
  ref?: string;
  conversations: ConversationSummary[];
  has_more: boolean;
}

/**
 * A conversation of the list. `updated_at`: Unix milliseconds.
 *
 * `interprets`: the languages of a live translation, to show while nobody has changed the title.
 */
export interface ConversationSummary {
  conversation_id: string;
  title: string;
  updated_at: number;
  messages: number;
  interprets?: Languages;
}

/** Answers `search`. `next`: the `before` for the next page; missing once everything was searched. */
export interface Found {
  type: "found";
  ref?: string;
  hits: Hit[];
  next?: string;
}

/**
 * A conversation that was found. `message_id`: a matching message, of any branch; null: only the title matches.
 *
 * `snippet`: a part of the matching message, or of the title. `off`: where the match begins in the snippet, in code points.
 * `len`: the length of the match.
 */
export interface Hit {
  conversation_id: string;
  title: string;
  updated_at: number;
  messages: number;
  interprets?: Languages;
  snippet: string;
  off: number;
  len: number;
  message_id?: string;
  role?: string;
}

/** Answers `share` and `unshare`. `share_id`: the id in the link `/s/{share_id}`; null if nothing is shared. */
export interface Shared {
  type: "shared";
  ref?: string;
  conversation_id: string;
  share_id?: string;
}

/** The model wrote a title for the conversation. Not journalled. */
export interface Titled {
  type: "title";
  conversation_id: string;
  title: string;
}

/** The conversation was deleted. Not journalled. Only the connection that sent `delete` gets a `ref`. */
export interface Deleted {
  type: "deleted";
  conversation_id: string;
  ref?: string;
}

/** Answers `ping`. */
export interface Pong {
  type: "pong";
  ref?: string;
  t?: number | string;
}

/**
 * What a turn is waiting for, to show to the user. Not journalled.
 *
 * `queue_position`: in the state `queued`, the turn's place; 1 starts next. `progress`: in `prefill` and `tool`, a fraction
 * from 0 to 1. `model`: in `fallback`, the model that answers instead of the requested model. `message`: in `tool`, what the
 * call `call_id` reports.
 */
export interface Status {
  type: "status";
  conversation_id: string;
  turn_id: string;
  state: "fallback" | "prefill" | "queued" | "retrying" | "tool" | "unsaved";
  queue_position?: number;
  progress?: number;
  model?: string;
  call_id?: string;
  message?: string;
}

/** A limit is nearly reached. `reset_s`: seconds until more is allowed. */
export interface LimitsLeft {
  type: "limits";
  ref?: string;
  name: string;
  remaining: number;
  reset_s: number;
}

/** The server is about to stop. It closes this connection with code 1012 within `drain_ms`. */
export interface Goaway {
  type: "goaway";
  ref?: string;
  drain_ms: number;
  reason: string;
}

/** A request was refused, and had no effect. */
export interface ErrorFrame {
  type: "error";
  ref?: string;
  code: string;
  message: string;
  retryable: boolean;
  retry_after_ms?: number;
}

/** Answers `audio.start`. `stream`: the number to use in the client's binary frames. */
export interface AudioStarted {
  type: "audio.started";
  ref?: string;
  conversation_id: string;
  stream: number;
  voice?: string;
}

/** Listening has ended: by `audio.stop`, or because another connection now listens in the conversation. */
export interface AudioStopped {
  type: "audio.stopped";
  ref?: string;
  conversation_id: string;
  reason: "elsewhere" | "stop";
}

/** A turn's sound follows in binary frames of `stream`. `from_ms`: the first sample's place in the reply's sound. */
export interface AudioReply {
  type: "audio.reply";
  conversation_id: string;
  turn_id: string;
  stream: number;
  format: "alaw" | "mulaw" | "pcm16";
  rate: number;
  from_ms: number;
}

/** The user began or stopped speaking, `at_ms` into the received sound. */
export interface Speech {
  type: "speech";
  conversation_id: string;
  state: "started" | "stopped";
  at_ms: number;
}

/**
 * The user's words. Until a text is `final`, each text extends the previous one.
 *
 * `utterance_id`: the same for all texts between two silences.
 */
export interface Transcript {
  type: "transcript";
  conversation_id: string;
  text: string;
  final: boolean;
  utterance_id: string;
}

/** When words of a reply are heard: their places in the reply's text, and their times in its sound. */
export interface Marks {
  type: "marks";
  conversation_id: string;
  turn_id: string;
  marks: Mark[];
}

/** A word of a text with the punctuation next to it, and its time. */
export interface Mark {
  off: number;
  len: number;
  start_ms: number;
  end_ms: number;
}
