/** Conversations as a JSON file, and back. */

import { dataUrl, pictureOf } from "./pictures";
import { restore, messagesOf } from "./store";
import type { Whole } from "./store";
import { newId } from "./types";
import type { Attachment, Conversation, Message, Report, Sampling, Segment, Speculation } from "./types";

const FORMAT = "foredraft-chats";
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"] as const;
const MOST_BYTES = 200_000_000;

interface Exported {
  format: typeof FORMAT;
  version: 1;
  conversations: (Conversation & { messages: object[] })[];
}

export async function exported(conversations: Conversation[]): Promise<Blob> {
  const whole: Exported = { format: FORMAT, version: 1, conversations: [] };
  for (const conversation of conversations)
    whole.conversations.push({ ...conversation, messages: await written(await messagesOf(conversation.id)) });
  return new Blob([JSON.stringify(whole, null, 1)], { type: "application/json" });
}

/** Messages as JSON takes them: pictures as data URLs. */
function written(messages: readonly Message[]): Promise<object[]> {
  const file = async ({ picture, ...rest }: Attachment) =>
    picture ? { ...rest, picture: await dataUrl(picture) } : rest;
  return Promise.all(
    messages.map(async (message) =>
      message.attachments
        ? { ...message, attachments: await Promise.all(message.attachments.map(file)) }
        : message,
    ),
  );
}

/** Offer a file for saving. */
export function offer(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Add the conversations of a file beside those that are there, if there is room for that many; returns how many
 * the file has. Null: it is no such file.
 */
export async function imported(file: File, room: number): Promise<number | null> {
  const read = file.size > MOST_BYTES ? null : conversationsOf(await file.text());
  if (read === null) return null;
  if (read.length <= room) await restore(read);
  return read.length;
}

function conversationsOf(text: string): Whole[] | null {
  let given: unknown;
  try {
    given = JSON.parse(text);
  } catch {
    return null;
  }
  const whole = record(given);
  if (whole?.format !== FORMAT || whole.version !== 1 || !Array.isArray(whole.conversations)) return null;
  const read = whole.conversations.map(conversationOf);
  return read.every((one) => one !== null) ? read : null;
}

/** A conversation with an id of its own. Only what is known is taken over: a file can come from anywhere. */
function conversationOf(given: unknown): Whole | null {
  const read = record(given);
  if (read === null || typeof read.title !== "string" || !Array.isArray(read.messages)) return null;
  const settings = record(read.settings) ?? {};
  const conversation: Conversation = {
    id: newId(),
    title: read.title.slice(0, 200),
    created: date(read.created),
    updated: date(read.updated),
    settings: {
      model: text(settings.model),
      system: text(settings.system),
      sampling: samplingOf(settings.sampling),
    },
  };
  const messages = read.messages.map((one, place) => messageOf(one, conversation, place));
  return messages.every((one) => one !== null) ? { conversation, messages } : null;
}

function messageOf(given: unknown, conversation: Conversation, place: number): Message | null {
  const read = record(given);
  if (read === null || typeof read.text !== "string") return null;
  if (read.role !== "user" && read.role !== "assistant") return null;
  const message: Message = {
    id: newId(),
    conversation: conversation.id,
    at: conversation.created + place,
    saved: date(read.saved),
    role: read.role,
    text: read.text,
  };
  if (Array.isArray(read.attachments))
    message.attachments = read.attachments.map(attachmentOf).filter((one) => one !== null);
  if (typeof read.reasoning === "string") message.reasoning = read.reasoning;
  if (typeof read.model === "string") message.model = read.model;
  if (read.role !== "assistant") return message;
  message.state = read.state === "cut" ? "cut" : "done";
  message.origins = originsOf(read.origins);
  message.reasoningOrigins = originsOf(read.reasoningOrigins);
  message.report = reportOf(read.report);
  return message;
}

function originsOf(given: unknown): Segment[] | undefined {
  if (!Array.isArray(given)) return undefined;
  const known = given.every(
    (one: unknown) =>
      Array.isArray(one) && typeof one[0] === "string" && Number.isSafeInteger(one[1]) && one[1] > 0,
  );
  return known ? (given as Segment[]).map(([origin, length]) => [origin, length]) : undefined;
}

const REPORTED = ["tokens", "total", "predictedMs"] as const;

function reportOf(given: unknown): Report | undefined {
  const [read, said] = [record(given), record(record(given)?.speculation)];
  if (!read || !said || !REPORTED.every((name) => Number.isFinite(read[name]))) return undefined;
  const drafters: Speculation["drafters"] = {};
  for (const [name, counts] of Object.entries(record(said.drafters) ?? {})) {
    const { drafts, drafted, accepted } = record(counts) ?? {};
    drafters[name] = {
      drafts: amount(drafts) ?? 0,
      drafted: amount(drafted) ?? 0,
      accepted: amount(accepted) ?? 0,
    };
  }
  return {
    tokens: amount(read.tokens) ?? 0,
    total: amount(read.total) ?? 0,
    predictedMs: amount(read.predictedMs) ?? 0,
    firstMs: amount(read.firstMs),
    notice: typeof read.notice === "string" ? read.notice : null,
    noticeCode: typeof read.noticeCode === "string" ? read.noticeCode : null,
    speculation: {
      active: said.active === true,
      reason: typeof said.reason === "string" ? said.reason : null,
      acceptance_length: amount(said.acceptance_length),
      estimated_speedup: amount(said.estimated_speedup),
      drafters,
      exact: said.exact === true,
      exact_reason: text(said.exact_reason),
    },
  };
}

function amount(given: unknown): number | null {
  return typeof given === "number" && Number.isFinite(given) ? given : null;
}

function attachmentOf(given: unknown): Attachment | null {
  const read = record(given);
  if (read === null || typeof read.name !== "string" || typeof read.text !== "string") return null;
  const picture = pictureOf(read.picture);
  return {
    name: read.name,
    text: read.text,
    bytes: Math.max(0, Math.floor(amount(read.bytes) ?? 0)),
    edit: read.edit === true,
    ...(picture ? { picture } : {}),
    ...(read.dropped === true || (read.picture !== undefined && !picture) ? { dropped: true } : {}),
  };
}

function samplingOf(given: unknown): Sampling {
  const read = record(given) ?? {};
  const sampling: Sampling = {};
  for (const name of SAMPLING) {
    const value = read[name];
    if (typeof value === "number" && Number.isFinite(value)) sampling[name] = value;
  }
  return sampling;
}

function record(given: unknown): Record<string, unknown> | null {
  return typeof given === "object" && given !== null && !Array.isArray(given)
    ? (given as Record<string, unknown>)
    : null;
}

function text(given: unknown): string {
  return typeof given === "string" ? given : "";
}

/** Milliseconds since 1970, not in the future: the newest conversations come first. */
function date(given: unknown): number {
  const now = Date.now();
  return Math.max(0, Math.min(now, Math.floor(amount(given) ?? now)));
}
