/** What a conversation is, as it is kept in the browser and exported. */

/** Who proposed the next characters of a text: [drafter or "target", UTF-16 units]. */
export type Segment = [origin: string, length: number];

export interface Attachment {
  name: string;
  /** "" of a picture. */
  text: string;
  bytes: number;
  picture?: Blob;
  /** It was a picture, which had to make room for others. */
  dropped?: boolean;
  /** It is to be edited: it is also sent as the prediction of the answer. */
  edit: boolean;
}

/** Why an answer ended. `lost`: the connection broke, or the page was closed. */
export type State = "running" | "done" | "cut" | "stopped" | "lost" | "failed";

export interface DrafterCounts {
  drafts: number;
  drafted: number;
  accepted: number;
}

export interface Speculation {
  active: boolean;
  reason: string | null;
  /** Missing in conversations of an earlier version. */
  reason_code?: string | null;
  acceptance_length: number | null;
  estimated_speedup: number | null;
  drafters: Record<string, DrafterCounts>;
  exact: boolean;
  exact_reason: string;
}

/** What the server says about an answer that ended. */
export interface Report {
  tokens: number;
  total: number;
  predictedMs: number;
  /** From sending to the first text, as this page saw it; with loading the model. Null in a race: there the
   * prompt was read before.
   */
  firstMs: number | null;
  speculation: Speculation;
  notice: string | null;
  /** Missing in conversations of an earlier version. */
  noticeCode?: string | null;
}

export interface Message {
  id: string;
  conversation: string;
  /** Milliseconds since 1970; it orders the messages. */
  at: number;
  /** When it was saved last; an answer that runs is saved every second. */
  saved: number;
  role: "user" | "assistant";
  text: string;
  attachments?: Attachment[];
  reasoning?: string;
  reasoningMs?: number;
  origins?: Segment[];
  reasoningOrigins?: Segment[];
  model?: string;
  state?: State;
  error?: { message: string; code: string | null; status: number };
  report?: Report;
  /** It was ended because it only repeated itself. */
  repeated?: boolean;
  /** `report` is of the part that was written after "Continue". */
  continued?: boolean;
}

export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  seed?: number;
}

export interface Settings {
  /** "" is the server's default model. */
  model: string;
  system: string;
  sampling: Sampling;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  settings: Settings;
}

/** `crypto.randomUUID` is not there where the page comes over plain HTTP from another computer. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, "0")).join("");
}
