/** The same prompt with and without speculation, one after the other, shown on one clock.
 *
 * Two requests at once share forwards, so each runs alone. `auto` runs first: a plain run drafts nothing, so it
 * takes nothing from the answer that `auto` left behind, whereas `auto` could draft all of the plain one's. Before
 * both the prompt is read once, so that neither has a shorter way to its first token. Times are of decoding.
 */

import { signal } from "@preact/signals";
import { call } from "../../api/http";
import { isRunning } from "./answers";
import * as chats from "./chats";
import { putBack } from "./drafts";
import { withUsual } from "./models";
import { Paced } from "./paced";
import { inOrder } from "./store";
import { answer, bodyOf, extend } from "./stream";
import type { Body, Ending } from "./stream";
import type { Attachment, Message, Report, Segment, Settings } from "./types";

/** One text that arrived: milliseconds after the first, UTF-16 units of text in all. */
type Arrival = [ms: number, length: number];

export interface Lane {
  text: string;
  origins: Segment[];
  arrivals: Arrival[];
  ending: Ending | null;
}

export type Phase = "reading" | "auto" | "plain" | "done" | "stopped" | "failed";

export interface Race {
  /** "": a new one, which is made when the answer is kept. */
  conversation: string;
  phase: Phase;
  auto: Lane;
  plain: Lane;
  /** Milliseconds on the clock of the plain run; both are shown by it. */
  clock: number;
  /** What both answer. `fresh`: it is not in the conversation yet. */
  asked: Message;
  fresh: boolean;
  greedy: boolean;
  /** Other requests ran beside it: the times are disturbed. */
  disturbed: boolean;
  error: unknown;
}

export const race = signal<Race | null>(null);
let stopper = new AbortController();

const lane = (): Lane => ({ text: "", origins: [], arrivals: [], ending: null });

function lastAsked(): Message | undefined {
  return chats.messages.value.findLast((message) => message.role === "user");
}

/** Nothing else is asked meanwhile: it would disturb the times. */
export function isRacing(): boolean {
  return race.value !== null && ["reading", "auto", "plain"].includes(race.value.phase);
}

/** With words, or with the last question of this conversation. */
export function canRace(words: string, files: readonly Attachment[]): boolean {
  return !isRacing() && chats.ready.value && Boolean(words.trim() || files.length || lastAsked());
}

export function startRace(words: string, files: Attachment[]): void {
  const fresh = Boolean(words.trim() || files.length);
  const conversation = chats.current.value?.id ?? "";
  const asked = fresh ? chats.newMessage(conversation, "user", words) : lastAsked();
  if (!asked || isRunning(conversation)) return;
  if (fresh && files.length) asked.attachments = files;
  closeRace();
  const history = [...chats.messages.value.filter((message) => inOrder(message, asked) < 0), asked];
  const settings = chats.settings.value;
  stopper = new AbortController();
  race.value = {
    conversation,
    phase: "reading",
    auto: lane(),
    plain: lane(),
    clock: 0,
    asked,
    fresh,
    greedy: settings.sampling.seed === undefined,
    disturbed: false,
    error: null,
  };
  void run(settings, history, stopper.signal);
}

/** Stop the race of a conversation. */
export function stopRace(conversation: string): void {
  if (race.value?.conversation === conversation) stopper.abort();
}

/** Back to the chat: words that were not asked before are in their field again. */
export function closeRace(): void {
  stopper.abort();
  const over = race.value;
  race.value = null;
  if (over?.fresh) putBack(over.conversation, over.asked.text, over.asked.attachments ?? []);
}

/** What the server said about a run that has ended. */
export function reportOf({ ending }: Lane): Report | undefined {
  if (!ending?.speculation) return undefined;
  const { tokens, total, predictedMs, speculation, notice, noticeCode } = ending;
  return { tokens, total, predictedMs, firstMs: null, speculation, notice, noticeCode };
}

/** Whether the answer can be added: nothing has been asked since, and the question is still there. */
export function canKeep({ asked, fresh }: Race): boolean {
  const [next, ...others] = chats.messages.value.filter((message) => inOrder(message, asked) > 0);
  if (fresh) return !next;
  const there = chats.messages.value.some((message) => message.id === asked.id);
  return there && !others.length && next?.role !== "user";
}

/** Add the answer of the race to the conversation, which is on screen. */
export function keepAnswer(): void {
  const { value } = race;
  if (value?.phase !== "done" || !canKeep(value)) return;
  race.value = null;
  const { asked, auto } = value;
  const { id } = chats.opened(asked.text || (asked.attachments?.[0]?.name ?? ""));
  const next = chats.messages.value.find((message) => inOrder(message, asked) > 0);
  if (value.fresh) void chats.put({ ...asked, conversation: id });
  else if (next) chats.cutFrom(next);
  const made = chats.newMessage(id, "assistant", auto.text);
  const state = auto.ending?.finish === "length" ? "cut" : "done";
  const { origins, ending } = auto;
  void chats.put({ ...made, state, origins, repeated: ending?.repeated, report: reportOf(auto) });
  chats.touch(id);
}

async function run(settings: Settings, history: Message[], signal: AbortSignal): Promise<void> {
  try {
    const sampled = await bodyOf(await withUsual(settings), history, false);
    const body = settings.sampling.seed === undefined ? { ...sampled, temperature: 0 } : sampled;
    const { prediction: _, max_completion_tokens: __, ...prompt } = body;
    const first = { ...prompt, max_completion_tokens: 1, speculate: "off" };
    await call("v1/chat/completions", { method: "POST", body: first, signal });
    for (const phase of ["auto", "plain"] as const) {
      change({ phase, disturbed: race.value?.disturbed || (await othersRun()) });
      await runLane(phase, { ...body, speculate: phase === "auto" ? "auto" : "off" }, signal);
    }
    change({ phase: "done", clock: Infinity, disturbed: race.value?.disturbed || (await othersRun()) });
  } catch (error) {
    change({ phase: signal.aborted ? "stopped" : "failed", error, clock: Infinity });
  }
}

async function runLane(name: "auto" | "plain", body: Body, signal: AbortSignal): Promise<void> {
  const made = lane();
  let began = 0;
  const paced = new Paced(() => {
    change({ [name]: { ...made }, clock: began ? performance.now() - began : 0 });
    paced.show(); // the clock runs
  });
  paced.show();
  try {
    const pieces = answer(body, signal);
    for (;;) {
      const { done, value } = await pieces.next();
      if (done) {
        made.ending = value;
        return;
      }
      began ||= performance.now();
      made.text += value.text;
      extend(made.origins, value.origins);
      made.arrivals.push([performance.now() - began, made.text.length]);
    }
  } finally {
    paced.stop();
    change({ [name]: { ...made } });
  }
}

/** Whether requests of others run on any model. */
async function othersRun(): Promise<boolean> {
  const state = await call<Record<string, { requests: { running: number } }>>("v1/speculation");
  return Object.values(state).some(({ requests }) => requests.running > 0);
}

function change(changed: Partial<Race>): void {
  if (race.value) race.value = { ...race.value, ...changed };
}

/** How much of the automatic run's text there was at that time of its own. */
export function shownAt(lane: Lane, clock: number): number {
  let [low, high] = [0, lane.arrivals.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((lane.arrivals[middle]?.[0] ?? 0) <= clock) low = middle + 1;
    else high = middle;
  }
  return lane.arrivals[low - 1]?.[1] ?? 0;
}

export interface Result {
  autoMs: number;
  plainMs: number;
  autoRate: number;
  plainRate: number;
  /** Speed of `auto` ÷ speed of plain. */
  ratio: number;
  /** Draft tokens that were accepted. */
  accepted: number;
  /** They cannot save as much: without them there had been as many rounds more, and no more. */
  noise: boolean;
  /** Where the texts differ first, in UTF-16 units; null: they are the same. */
  differs: number | null;
}

/** By this factor two runs of the same work may differ. */
const MEASURED = 1.05;

/** Null until both have ended. */
export function resultOf({ auto, plain }: Race): Result | null {
  if (!auto.ending || !plain.ending) return null;
  const rate = ({ tokens, predictedMs }: Ending) => (predictedMs ? (1e3 * tokens) / predictedMs : 0);
  const [autoRate, plainRate] = [rate(auto.ending), rate(plain.ending)];
  const ratio = plainRate ? autoRate / plainRate : 0;
  const { tokens, speculation } = auto.ending;
  const drafters = Object.values(speculation?.drafters ?? {});
  const accepted = drafters.reduce((sum, one) => sum + one.accepted, 0);
  return {
    autoMs: auto.ending.predictedMs,
    plainMs: plain.ending.predictedMs,
    autoRate,
    plainRate,
    ratio,
    accepted,
    noise: accepted < tokens && ratio > MEASURED * (tokens / (tokens - accepted)),
    differs: firstDifference(auto.text, plain.text),
  };
}

function firstDifference(one: string, other: string): number | null {
  if (one === other) return null;
  let at = 0;
  while (at < one.length && one[at] === other[at]) at++;
  return at;
}
