// The frames of the protocol midstream.v1, generated from the server's types: `make specs` writes this file.

/** Any frame of a client's. */
export type Request = HelloRequest | SendRequest | EditRequest | RegenerateRequest | ContinueRequest | InterpretStartRequest | SourceRequest | CancelRequest | ToolResultRequest | ToolDecisionRequest | ResumeRequest | HistoryRequest | ConversationsRequest | SearchRequest | RenameRequest | ShareRequest | UnshareRequest | DeleteRequest | AckRequest | AuthRefreshRequest | PingRequest | AudioStartRequest | AudioCommitRequest | AudioClearRequest | AudioStopRequest | PlayedRequest;

/** Any frame of the server's. */
export type Frame = Ready | Accepted | Delta | Reasoning | ToolCall | ToolState | SourceText | SourceAck | Done | Removed | Cancelled | ToolAck | Resumed | Gap | Snapshot | History | Conversations | Found | Shared | Titled | Deleted | Pong | Status | LimitsLeft | Goaway | ErrorFrame | AudioStarted | AudioStopped | AudioReply | Speech | Heard | Marks;

/** The first frame. A client without a `client_id` gets one. `features`: what it understands beyond the base. */
export interface HelloRequest {
  type: "hello";
  ref?: string | null;
  client_id?: string | null;
  token?: string | null;
  features?: string[];
}

/** A user's message. `attachments`: ids of images that were uploaded, which stand before the text. */
export interface SendRequest {
  type: "send";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
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
 * How the reply is made. What is left out is as the model or the server has it.
 *
 * `model`: a name or an alias; the conversation keeps it. `reasoning`: `auto`, `off`, or an effort that the model's
 * template knows. `chars_per_s`: how fast text is sent at most, however fast it is made. `target`: the language that the
 * message is translated to, `source`: that it is in, for a model that translates, by its codes.
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

/** The reply is JSON that a schema allows. It always is, whatever `strict` says. */
export interface JsonSchemaFormat {
  type: "json_schema";
  schema: Record<string, unknown>;
  strict?: boolean;
}

/** The reply is some JSON object. */
export interface JsonObjectFormat {
  type: "json_object";
}

/** The reply matches a regular expression as a whole. */
export interface RegexFormat {
  type: "regex";
  pattern: string;
}

/** The reply is a sentence of a grammar in Lark's notation. */
export interface GrammarFormat {
  type: "grammar";
  lark: string;
}

/**
 * What the model may call. `parameters`: a JSON Schema of an object.
 *
 * One of the server's (`where`) is named as `ready.tools` names it; its description and parameters are the server's then.
 */
export interface OfferedTool {
  name: string;
  description?: string;
  parameters?: Record<string, unknown> | null;
  where?: "client" | "server";
  approval?: "always" | "never";
}

/** Another version of a user's message. The old one is kept beside it. `attachments`: as of `send`. */
export interface EditRequest {
  type: "edit";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  message_id: string;
  content: string;
  attachments?: string[];
}

/** Asks for another reply to the same message. The old one is kept beside it. */
export interface RegenerateRequest {
  type: "regenerate";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  message_id: string;
}

/** Asks for more of a reply that was stopped or cut. */
export interface ContinueRequest {
  type: "continue";
  ref?: string | null;
  client_msg_id: string;
  conversation_id?: string;
  on_busy?: "enqueue" | "interrupt" | "reject" | "rollback";
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
  params?: Params;
  tools?: OfferedTool[];
  tool_choice?: string;
  message_id: string;
}

/**
 * Begins a live translation: the user's message is a source that grows by `source`, the reply its translation.
 *
 * `told`: when words of an unfinished sentence are told: once three hypotheses agree, `wait` words behind, or never.
 */
export interface InterpretStartRequest {
  type: "interpret.start";
  ref?: string | null;
  client_msg_id: string;
  target: string;
  source?: string;
  conversation_id?: string;
  input?: "text";
  told?: "agreement" | "segment" | "wait";
  wait?: number;
  model?: string | null;
  parent_id?: string | null;
  on_busy?: "interrupt" | "reject" | "rollback";
  on_disconnect?: "cancel" | "continue";
  grace_s?: number;
}

/** More of what is translated: `text` stands behind `off` characters. `final`: it grows no more. */
export interface SourceRequest {
  type: "source";
  ref?: string | null;
  off: number;
  text: string;
  final?: boolean;
  conversation_id?: string;
  turn_id?: string | null;
}

/** Stops a turn, or all turns of a conversation. */
export interface CancelRequest {
  type: "cancel";
  ref?: string | null;
  turn_id?: string | null;
  conversation_id?: string | null;
  mode?: "keep" | "rollback";
  seen_off?: number | null;
}

/** The result of a call that a client ran: `content`, or an `error`. */
export interface ToolResultRequest {
  type: "tool_result";
  ref?: string | null;
  call_id: string;
  conversation_id?: string | null;
  content?: string | null;
  error?: string | null;
}

/** Allows a call, or denies it. `args_sha256`: the hash of the arguments that the user saw; `args`: run with these instead. */
export interface ToolDecisionRequest {
  type: "tool_decision";
  ref?: string | null;
  call_id: string;
  args_sha256: string;
  decision: "allow" | "deny";
  conversation_id?: string | null;
  args?: string | null;
}

/** Asks for all events after `after_seq` of an epoch, and attaches. */
export interface ResumeRequest {
  type: "resume";
  ref?: string | null;
  conversation_id: string;
  epoch: string;
  after_seq: number;
}

/** Asks for a page of messages, and attaches. `leaf`: makes the branch through that message the active one. */
export interface HistoryRequest {
  type: "history";
  ref?: string | null;
  conversation_id?: string;
  limit?: number;
  before?: string | null;
  leaf?: string | null;
}

/** Asks for the owner's conversations; `before` is the last one of the page before. */
export interface ConversationsRequest {
  type: "conversations";
  ref?: string | null;
  limit?: number;
  before?: string | null;
}

/** Looks for words in the titles and messages of the owner's conversations; `before` is the `next` of the answer before. */
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

/** Makes a link by which others read the active branch as it is now. Sent again, it renews what the link shows. */
export interface ShareRequest {
  type: "share";
  ref?: string | null;
  conversation_id: string;
}

/** Takes back the link of a conversation. */
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

/** Says that all events up to `seq` have arrived. */
export interface AckRequest {
  type: "ack";
  ref?: string | null;
  conversation_id: string;
  seq: number;
}

/** Shows a new token of the same person. */
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
 * Begins to listen for a conversation; its replies are spoken where `output` is given.
 *
 * `grace_s`: how long a reply waits for its listener to come back. `model`: as in `params`.
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

/** The microphone's sound, one channel. */
export interface AudioInput {
  format?: "alaw" | "mulaw" | "pcm16";
  rate?: number;
}

/** The sound of replies, one channel. `voice`: without one, the server's default. */
export interface AudioOutput {
  format?: "alaw" | "mulaw" | "pcm16";
  rate?: number;
  voice?: string | null;
}

/**
 * When the user's turn is over. `none`: by `audio.commit` alone, and speech interrupts nothing.
 *
 * `silence_ms`: so much silence ends it; `unfinished_ms`: so much, where the recognizer knows that the sentence is not over;
 * `threshold`: the share of sound that has to be speech before somebody speaks.
 * `interrupt`: speech over a reply stops it once it has lasted `interrupt_ms`.
 */
export interface TurnDetection {
  type?: "none" | "vad";
  silence_ms?: number;
  unfinished_ms?: number;
  threshold?: number;
  interrupt?: boolean;
  interrupt_ms?: number;
}

/** What was said so far is the message. */
export interface AudioCommitRequest {
  type: "audio.commit";
  ref?: string | null;
  conversation_id?: string;
}

/** What was said so far is forgotten. */
export interface AudioClearRequest {
  type: "audio.clear";
  ref?: string | null;
  conversation_id?: string;
}

/** Ends listening. A reply that is being spoken is cut at what was heard. */
export interface AudioStopRequest {
  type: "audio.stop";
  ref?: string | null;
  conversation_id?: string;
}

/** Says how much of a reply's sound was played, in milliseconds from its beginning. */
export interface PlayedRequest {
  type: "played";
  ref?: string | null;
  turn_id: string;
  audio_ms: number;
  conversation_id?: string;
}

/**
 * Answers `hello` and `auth.refresh`. `features`: what the server has beyond the base.
 *
 * `models`: those that may be named in `params`; `model`: the default, which `limits` are of. `tools`: those that the server
 * runs where a client asks for them. `suggestions`: messages that an empty conversation may begin with.
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
 * A model that may be named. `context_tokens`: its window; null until it is loaded.
 *
 * `unsupported`: the params that it can't follow. `fallbacks`: models that answer where it can't, the first ones first.
 * `features`: what it has beyond text: `tools`, `reasoning`, `format`, `continue`, `images`; `translate`: that it
 * does, and nothing else.
 */
export interface Model {
  name: string;
  aliases?: string[];
  context_tokens?: number;
  unsupported?: string[];
  fallbacks?: string[];
  features?: string[];
}

/** The limits that hold for clients; null: no limit. `max_images`: of one request, none where no model takes any. */
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
 * A turn exists: the user's message is in the history. `parent_id` is the message it answers, null at a root.
 *
 * `queue_position`: its place behind the running turn, 1 being the next. `model`: which one is asked for the reply.
 * `follows`: the turn whose calls are settled now; `message_id` is the reply that made them, and no message is new.
 * `continues`: the reply that goes on, behind the text that it has. `interprets`: its reply is the live translation of its
 * message, which grows by `source` events. `attachments`: the images that the message shows.
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

/** What an interpretation translates from and to: tags of languages (BCP 47); `auto`: whichever the source is. */
export interface Languages {
  source: string;
  target: string;
}

/** An image that a message shows, by its id. `width`, `height`: in pixels. */
export interface Attachment {
  id: string;
  media_type: string;
  width: number;
  height: number;
}

/**
 * Text that follows the turn's text so far. `off`: code points before it; `tokens`: how many are behind it.
 *
 * `src_off`, of an interpretation: how much of its source had been read for the last of it.
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

/** What the model thinks aloud beside its reply. Fields as in `Delta`; `off` counts what was thought before. */
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
 * The model calls a tool. `index` counts the calls of a reply from 0; `off`: code points of the text before it.
 *
 * `args`: the text of a JSON object, whole; `args_sha256`: of that text in UTF-8. `expires_at`: Unix milliseconds, where
 * it waits for a client.
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
 * The state of a call changes. `content` or `error`: its result, once it is done.
 *
 * `args`, `args_sha256`: what it runs with, if whoever allowed it changed the arguments. `question`: what it asks now.
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
  question?: Question;
}

/** Where a call of a tool is. All but `waiting` and `running` are final. */
export type CallState = "cancelled" | "denied" | "done" | "expired" | "lost" | "running" | "waiting";

/**
 * What a running call asks the user. `schema`: of the answer, a flat object, as the text of a JSON Schema.
 *
 * `sha256` stands for this question alone: an answer names it. `expires_at`: Unix milliseconds.
 */
export interface Question {
  message: string;
  schema: string;
  sha256: string;
  expires_at: number;
}

/** The source of an interpretation grew. `off`: code points of it before `text`; `final`: it grows no more. */
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

/** Answers `source`: it was taken, now or before (`already`). `chars`: how much of the source there is; `final`: that is all. */
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
 * The end of a turn; each has one. `chars`: length of the reply as kept; `text_sha256`: the hash of that text in UTF-8.
 *
 * `reasoning_chars`: length of what is kept of its reasoning; `open`: its calls that are not settled.
 * `model`: which one wrote the reply; `requested_model`: the one that was asked for, where another one stood in for it.
 * `follows`: the turn whose calls were settled before it.
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
 * Why a turn ended. `interrupted` means a failure of a part of the service, never the user.
 *
 * `tools`: it called tools, and another turn follows it once their calls are settled.
 */
export type Reason = "cancelled" | "error" | "filtered" | "interrupted" | "length" | "stop" | "timeout" | "tools";

/**
 * Tokens of a turn. `wasted_tokens` were generated but are not in the reply as kept; `reasoning_tokens` are in what it thought.
 *
 * `reasoning_ms`: for how long it thought, where it did and that is known.
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

/** Milliseconds since the turn was accepted; null if the turn ended before that. */
export interface Timing {
  queued_ms: number | null;
  first_token_ms: number | null;
  total_ms: number;
}

/**
 * How a cancel went. `steps_after`: steps of the engine after it; null if the engine did not confirm in time.
 *
 * `precision`: of a spoken reply, whether the cut is at a word that was heard, or at a chunk of several.
 */
export interface CancelFacts {
  cause: Cause;
  latency_ms: number;
  steps_after: number | null;
  precision?: "chunk" | "word";
}

/** Who cancelled a turn. */
export type Cause = "client" | "disconnect" | "drain" | "interrupt" | "operator" | "rollback";

/** Why a turn ended with `error` or `interrupted`, in words for its reader. */
export interface Failure {
  code: string;
  message: string;
  retry_after_ms?: number;
}

/** An exchange that had ended was taken out of the history. */
export interface Removed {
  type: "removed";
  conversation_id: string;
  turn_id: string;
  seq: number;
  first_seq?: number;
}

/** Answers `cancel`: the end of the turn is decided. `already`: it was before. */
export interface Cancelled {
  type: "cancelled";
  ref?: string;
  turn_id: string | null;
  already: boolean;
}

/** Answers `tool_result` and `tool_decision`: it was taken, now or before (`already`). `state`: of the call. */
export interface ToolAck {
  type: "tool_ack";
  ref?: string;
  conversation_id: string;
  call_id: string;
  state: CallState;
  already: boolean;
}

/** The missed events follow, then new ones; not journalled. `live`: the running turn. */
export interface Resumed {
  type: "resumed";
  conversation_id: string;
  ref?: string;
  epoch: string;
  replayed: number;
  live: string | null;
}

/** Some missed events are gone; a snapshot follows. `min_seq`: the oldest event that is still there. */
export interface Gap {
  type: "gap";
  conversation_id: string;
  ref?: string;
  epoch: string;
  min_seq: number;
}

/**
 * The conversation at `seq`: the running turn, if any, and its text so far.
 *
 * `reasoning`, `calls`: what else that reply has so far. If no turn runs, `calls` are those that are open.
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

/** A call as a reply in the history has it. Fields as in `ToolCall` and `ToolState`. */
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
  question?: Question;
}

/**
 * Messages oldest first along the active branch; `seq` is of the last event that they hold. Not journalled.
 *
 * Without a `ref` where nobody asked for it: another branch is the active one.
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
 * A message of a page. `status`: complete, running, or the reason its turn ended; `created_at`: Unix milliseconds.
 *
 * `siblings`: those that share its parent, in the order in which they came, itself too; of many the nearest.
 * `sibling_count`: how many there are; `sibling_index`: how many of them came before this one. `model`: which one wrote it,
 * of a reply. `reasoning`, `calls`: what a reply has beside its text, where it has such; `attachments`: what a user's has.
 * `interprets`: the message is a source, and its replies are translations.
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

/** A row of the list. `updated_at`: Unix milliseconds. */
export interface ConversationSummary {
  conversation_id: string;
  title: string;
  updated_at: number;
  messages: number;
}

/** Answers `search`. `next`: send it as `before` to go on; left out once everything was searched. */
export interface Found {
  type: "found";
  ref?: string;
  hits: Hit[];
  next?: string;
}

/**
 * A conversation that was found. `message_id`: a matching message, of any branch; null: its title matches.
 *
 * `at`, `chars`: the place of the match in `snippet`, in code points. The snippet is of the message, else the title.
 */
export interface Hit {
  conversation_id: string;
  title: string;
  updated_at: number;
  messages: number;
  snippet: string;
  at: number;
  chars: number;
  message_id?: string;
  role?: string;
}

/** Answers `share` and `unshare`. `share_id`: of the link, `/s/{share_id}`; null where nothing is shared now. */
export interface Shared {
  type: "shared";
  ref?: string;
  conversation_id: string;
  share_id?: string;
}

/** The conversation has another title, which the model wrote; not journalled. */
export interface Titled {
  type: "title";
  conversation_id: string;
  title: string;
}

/** The conversation is gone; not journalled. `ref` is set for the one who asked. */
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
 * What a turn waits for, to be shown to people; not journalled.
 *
 * `queue_position` (queued) counts from 1, the next to start; `progress` (prefill, tool) is a share from 0 to 1; `model`
 * (fallback) is the one that answers instead of the one that was asked for. `call_id` and `message` (tool): which call says what.
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

/** A limit has little room left. `name`: the setting's; `reset_s`: seconds until it has more. */
export interface LimitsLeft {
  type: "limits";
  ref?: string;
  name: string;
  remaining: number;
  reset_s: number;
}

/** The server is about to stop: this connection closes 1012 in `drain_ms` at the latest. */
export interface Goaway {
  type: "goaway";
  ref?: string;
  drain_ms: number;
  reason: string;
}

/** A request was refused; it left no trace. */
export interface ErrorFrame {
  type: "error";
  ref?: string;
  code: string;
  message: string;
  retryable: boolean;
  retry_after_ms?: number;
}

/** Answers `audio.start`. `stream`: of the binary frames that the client sends; `voice`: the one that speaks. */
export interface AudioStarted {
  type: "audio.started";
  ref?: string;
  conversation_id: string;
  stream: number;
  voice?: string;
}

/** Listening has ended: by `audio.stop`, or because another connection listens for the conversation now. */
export interface AudioStopped {
  type: "audio.stopped";
  ref?: string;
  conversation_id: string;
  reason: "elsewhere" | "stop";
}

/** The sound of a turn comes in binary frames of this stream. Its first sample is at `from_ms` of the reply. */
export interface AudioReply {
  type: "audio.reply";
  conversation_id: string;
  turn_id: string;
  stream: number;
  format: "alaw" | "mulaw" | "pcm16";
  rate: number;
  from_ms: number;
}

/** The user began to speak, or has stopped, at this time of the sound that came. */
export interface Speech {
  type: "speech";
  conversation_id: string;
  state: "started" | "stopped";
  at_ms: number;
}

/** What the user said. Until it is final, each text begins with the one before. `item`: of what is said between two silences. */
export interface Heard {
  type: "heard";
  conversation_id: string;
  text: string;
  final: boolean;
  item: string;
}

/** When words of a reply are heard: offsets of its text, milliseconds of its sound. */
export interface Marks {
  type: "marks";
  conversation_id: string;
  turn_id: string;
  marks: Mark[];
}

/** A word of a text, with what stands at it without white space, and when it is heard. */
export interface Mark {
  off: number;
  len: number;
  start_ms: number;
  end_ms: number;
}
