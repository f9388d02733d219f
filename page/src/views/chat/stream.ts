/** POST /v1/chat/completions as a stream: the body, and the pieces of the answer. */

import { ApiError, send } from "../../api/http";
import { eventsOf } from "../../api/sse";
import { contentOf, prediction } from "./attachments";
import { withoutThoughts } from "./thinking";
import type { Message, Segment, Settings, Speculation } from "./types";

export interface Piece {
  text: string;
  reasoning: boolean;
  origins: Segment[];
}

export interface Ending {
  finish: string | null;
  /** It was ended because it only repeated itself any more. */
  repeated: boolean;
  tokens: number;
  total: number;
  predictedMs: number;
  speculation: Speculation | null;
  notice: string | null;
  noticeCode: string | null;
}

interface Chunk {
  error?: { message: string; code?: string | null };
  choices?: {
    delta: { content?: string; reasoning_content?: string };
    origins?: [string, number][];
    finish_reason: string | null;
    stop_reason?: string;
  }[];
  usage?: { completion_tokens: number; total_tokens: number } | null;
  timings?: { predicted_ms: number };
  speculation?: Speculation;
  notice?: string;
  notice_code?: string | null;
}

export type Body = Record<string, unknown>;

/** The body for the answer after `history`. `continues`: the last message is the beginning of that answer. */
export async function bodyOf(
  settings: Settings,
  history: readonly Message[],
  continues: boolean,
): Promise<Body> {
  const messages: object[] = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const [place, message] of history.entries()) {
    const begun = continues && place === history.length - 1;
    if (message.role === "user")
      messages.push({ role: "user", content: await contentOf(message.text, message.attachments ?? []) });
    else if (message.text || message.reasoning)
      messages.push({
        role: "assistant",
        content: begun ? message.text : withoutThoughts(message.text),
        ...(message.reasoning ? { reasoning_content: message.reasoning } : {}),
      });
  }
  const asked = history.findLast((message) => message.role === "user");
  const expected = prediction(asked?.attachments ?? []);
  const { max_tokens, ...sampling } = settings.sampling;
  return {
    ...(settings.model ? { model: settings.model } : {}),
    messages,
    stop_repetition: true,
    ...sampling,
    ...(max_tokens === undefined ? {} : { max_completion_tokens: max_tokens }),
    ...(expected === null ? {} : { prediction: { type: "content", content: expected } }),
    ...(continues ? { continue_final_message: true, add_generation_prompt: false } : {}),
  };
}

/** The pieces of an answer as they come; returns how it ended. Throws as `send`, and ApiError for an error in
 * the middle of the stream (`status` 0).
 */
export async function* answer(body: Body, signal: AbortSignal): AsyncGenerator<Piece, Ending> {
  const options = { include_usage: true, include_origins: true };
  const response = await send("v1/chat/completions", {
    method: "POST",
    body: { ...body, stream: true, stream_options: options },
    signal,
  });
  const ending: Ending = {
    finish: null,
    repeated: false,
    tokens: 0,
    total: 0,
    predictedMs: 0,
    speculation: null,
    notice: null,
    noticeCode: null,
  };
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") return ending;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new ApiError(0, chunk.error.code ?? null, null, chunk.error.message);
    for (const choice of chunk.choices ?? []) {
      ending.finish = choice.finish_reason ?? ending.finish;
      ending.repeated ||= choice.stop_reason === "repetition";
      const { content, reasoning_content } = choice.delta;
      const text = content || reasoning_content;
      if (text) yield { text, reasoning: !content, origins: segments(text, choice.origins ?? []) };
    }
    if (chunk.usage) {
      ending.tokens = chunk.usage.completion_tokens;
      ending.total = chunk.usage.total_tokens;
      ending.predictedMs = chunk.timings?.predicted_ms ?? 0;
      ending.speculation = chunk.speculation ?? null;
      ending.notice = chunk.notice ?? null;
      ending.noticeCode = chunk.notice_code ?? null;
    }
  }
  throw new TypeError("the stream ended early");
}

/** Origins by UTF-16 units, from those by code points. */
function segments(text: string, origins: [string, number][]): Segment[] {
  const found: Segment[] = [];
  let at = 0;
  for (const [origin, characters] of origins) {
    const from = at;
    for (let left = characters; left > 0 && at < text.length; left--)
      at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
    found.push([origin, at - from]);
  }
  if (at < text.length) found.push(["target", text.length - at]);
  return found;
}

/** Add segments to those before them. */
export function extend(all: Segment[], more: readonly Segment[]): void {
  for (const [origin, length] of more) {
    const last = all.at(-1);
    if (last?.[0] === origin) last[1] += length;
    else if (length) all.push([origin, length]);
  }
}
