/** The conversations on screen: what is kept, what is shown, and what changes it. */

import { batch, computed, effect, signal } from "@preact/signals";
import { forGood } from "../../kept";
import { goTo, route } from "../../route";
import { removalBegins, removalEnds, unfinishedRemovals } from "./removals";
import * as store from "./store";
import type { Conversation, Message, Settings } from "./types";
import { newId } from "./types";

const MODEL_KEPT_AS = "foredraft-chat-model";
const TITLE_CHARACTERS = 60;
/** Changes in other tabs that come within this time are read at once. */
const RELOAD_MS = 100;

/** The newest first. */
export const conversations = signal<Conversation[]>([]);
export const loaded = signal(false);
/** Of the conversation on screen, in order. */
export const messages = signal<Message[]>([]);
/** Why conversations are not being kept. */
export const problem = signal<"quota" | "store" | null>(null);
/** Conversations that were removed just now. */
export const removed = signal<readonly store.Whole[]>([]);

/** The conversation that is begun with the next message. */
const fresh = signal<Settings>(freshSettings());
const shownId = signal("");
/** Null: a new one. */
export const current = computed(
  () => conversations.value.find((conversation) => conversation.id === shownId.value) ?? null,
);
export const settings = computed(() => current.value?.settings ?? fresh.value);

/** What is on screen, by id; "": a new conversation. While the list is read it is what the address names. */
export const place = computed(() => (current.value || !loaded.value ? shownId.value : ""));

/** What is being saved, or could not be: a reading that began before does not undo it. */
const unsaved = {
  conversations: new Map<string, Conversation>(),
  messages: new Map<string, Message>(),
};
/** How to save again what could not be, by id. */
const failed = new Map<string, () => Promise<unknown>>();
/** Ids of conversations and messages that are kept, or were: they are only replaced while they are there. */
const before = new Set<string>();
/** Ids of what this tab removed: what is still being saved or read does not bring it back. */
const gone = new Set<string>();
/** The conversation whose messages have been read. */
const readId = signal("");
let started = false;
let reloading: ReturnType<typeof setTimeout> | undefined;

/** Whether all is read that is on screen: nothing is sent before. */
export const ready = computed(() => loaded.value && (!current.value || readId.value === current.value.id));

/** Load what is kept, once. `stop`: another tab wants what is written in a conversation to end. */
export function start(stop: (conversation: string) => void): void {
  if (started) return;
  started = true;
  unfinishedRemovals().forEach((id) => void removeFromStore(id));
  void reload().then(() => (loaded.value = true));
  store.onNews((news, id) => {
    if (news === "stop") return stop(id);
    if (news === "changed") reloading ||= setTimeout(() => void reload(), RELOAD_MS);
    if (id === shownId.value) void loadMessages(id);
  });
  effect(() => {
    const [view, id] = route.value;
    if (!view || view === "chat") shownId.value = id ?? "";
  });
  effect(() => {
    const id = shownId.value;
    if (messages.peek()[0]?.conversation !== id) messages.value = [];
    if (id) void loadMessages(id);
  });
}

/** Read the list again. */
export async function reload(): Promise<void> {
  clearTimeout(reloading);
  reloading = undefined;
  const read = await kept(store.conversations());
  if (!read) return;
  const all = new Map(read.filter(({ id }) => !gone.has(id)).map((one) => [one.id, one]));
  for (const id of all.keys()) before.add(id);
  for (const one of unsaved.conversations.values()) all.set(one.id, one);
  conversations.value = newestFirst([...all.values()]);
}

async function loadMessages(id: string): Promise<void> {
  const read = await kept(store.messagesOf(id));
  if (shownId.value !== id) return;
  if (!read) return void (readId.value = id);
  const all = new Map(read.filter((message) => !gone.has(message.id)).map((one) => [one.id, one]));
  for (const id of all.keys()) before.add(id);
  for (const mine of [...messages.value, ...unsaved.messages.values()]) {
    const other = all.get(mine.id);
    const waits = unsaved.messages.has(mine.id) && mine.conversation === id;
    if (other ? mine.saved >= other.saved : waits) all.set(mine.id, mine);
  }
  batch(() => {
    messages.value = [...all.values()].sort(store.inOrder);
    readId.value = id;
  });
}

/** The result of using the store; undefined, and `problem` says so, if that fails: the conversation goes on
 * in memory.
 */
export async function kept<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    const result = await work;
    if (!failed.size) problem.value = null;
    return result;
  } catch (error) {
    problem.value = error instanceof DOMException && error.name === "QuotaExceededError" ? "quota" : "store";
    return undefined;
  }
}

/** Keep what `unsaved` has under this id; what could not be kept before is then tried again. False: it is not there
 * any more, so it leaves the screen.
 */
async function save<T extends { id: string }>(
  waiting: Map<string, T>,
  one: T,
  work: (one: T) => Promise<boolean>,
): Promise<boolean> {
  const { id } = one;
  waiting.set(id, one);
  const attempt = work(one).catch((error: unknown) => {
    failed.set(id, async () => {
      const latest = waiting.get(id);
      if (latest) await save(waiting, latest, work);
    });
    throw error;
  });
  const there = await kept(attempt);
  if (there === undefined) return true; // in memory
  before.add(id);
  failed.delete(id);
  if (waiting.get(id) === one) waiting.delete(id);
  void tryAgain();
  return there;
}

let trying = false;

/** Try everything once that could not be kept; the notice stays until nothing is left. */
async function tryAgain(): Promise<void> {
  if (trying) return;
  trying = true;
  for (const retry of [...failed.values()]) await retry();
  trying = false;
  if (!failed.size) problem.value = null;
}

/** Nothing of it is saved any more. */
function forget(id: string): void {
  gone.add(id);
  failed.delete(id);
  unsaved.conversations.delete(id);
  unsaved.messages.delete(id);
}

function newestFirst(all: Conversation[]): Conversation[] {
  return all.sort((one, other) => other.updated - one.updated);
}

function freshSettings(): Settings {
  return { model: forGood.get(MODEL_KEPT_AS) ?? "", system: "", sampling: {} };
}

/** Show an empty conversation. */
export function begin(): void {
  fresh.value = freshSettings();
  goTo("chat");
}

/** Change the settings of the conversation on screen. */
export function change(changed: Partial<Settings>): void {
  if (changed.model !== undefined) forGood.set(MODEL_KEPT_AS, changed.model);
  const whole = { ...settings.value, ...changed };
  if (current.value) update(current.value, { settings: whole });
  else fresh.value = whole;
}

export function rename(conversation: Conversation, title: string): void {
  update(conversation, { title: title.trim() || conversation.title });
}

/** The conversation was used now: it comes first in the list. */
export function touch(id: string): void {
  const found = conversations.value.find((one) => one.id === id);
  if (found) update(found, { updated: Date.now() });
}

function update(conversation: Conversation, changed: Partial<Conversation>): void {
  const whole = { ...conversation, ...changed };
  const others = conversations.value.filter((one) => one.id !== conversation.id);
  conversations.value = newestFirst([...others, whole]);
  void saveConversation(whole, changed);
}

async function saveConversation(whole: Conversation, changed: Partial<Conversation>): Promise<void> {
  const { id } = whole;
  const change = unsaved.conversations.has(id) ? whole : changed; // what came before may not be kept
  const there = await save(unsaved.conversations, whole, (latest) =>
    store.saveConversation(latest, latest === whole ? change : latest, before.has(id)),
  );
  if (!there) conversations.value = conversations.value.filter((one) => one.id !== id);
}

/** Remove a conversation; `undoRemove` brings it back. */
export async function remove(conversation: Conversation): Promise<void> {
  const { id } = conversation;
  if (gone.has(id)) return;
  const shown = id === shownId.value;
  const onScreen = shown ? messages.value : [];
  removalBegins(id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  const removing = removeFromStore(id);
  if (shown) begin();
  const held = (await removing) ?? onScreen;
  removed.value = [...removed.value, { conversation, messages: held }];
}

/** Its messages; undefined if the store fails: then the next start tries again. */
async function removeFromStore(id: string): Promise<Message[] | undefined> {
  forget(id);
  const held = await kept(store.remove(id));
  if (held && gone.has(id)) removalEnds([id]);
  return held;
}

export async function undoRemove(): Promise<void> {
  const back = removed.value;
  const last = back.at(-1)?.conversation;
  if (!last) return;
  removed.value = [];
  for (const { conversation } of back) gone.delete(conversation.id);
  removalEnds(back.map((one) => one.conversation.id));
  const restored = await kept(store.restore(back).then(() => true));
  if (!restored) for (const { conversation } of back) before.delete(conversation.id);
  conversations.value = newestFirst([...conversations.value, ...back.map((one) => one.conversation)]);
  goTo("chat", last.id);
}

/** The conversation on screen; a new one is created, titled with the first words. */
export function opened(words: string): Conversation {
  if (current.value) return current.value;
  const now = Date.now();
  const made = { id: newId(), title: titleOf(words), created: now, updated: now, settings: fresh.value };
  const all = conversations.value;
  const least = all.length >= store.MOST_CONVERSATIONS ? all.at(-1) : undefined;
  batch(() => {
    conversations.value = [made, ...all];
    messages.value = [];
    shownId.value = made.id;
    readId.value = made.id;
  });
  goTo("chat", made.id);
  void saveConversation(made, {});
  if (least) void remove(least);
  return made;
}

function titleOf(words: string): string {
  const line = words.trim().replace(/\s+/g, " ");
  const characters = Array.from(line);
  if (characters.length <= TITLE_CHARACTERS) return line;
  const cut = characters.slice(0, TITLE_CHARACTERS).join("");
  const space = cut.lastIndexOf(" ");
  return `${space > TITLE_CHARACTERS / 2 ? cut.slice(0, space) : cut}…`;
}

/** A message of this conversation after all that are there. */
export function newMessage(conversation: string, role: Message["role"], text: string): Message {
  const last = messages.value.at(-1)?.at ?? 0;
  const now = Date.now();
  return { id: newId(), conversation, at: Math.max(now, last + 1), saved: now, role, text };
}

/** Add or replace a message, on screen and in what is kept. False: it was removed meanwhile, here or in another
 * tab.
 */
export async function put(message: Message): Promise<boolean> {
  const { id, conversation } = message;
  if (gone.has(id) || gone.has(conversation)) return false;
  const saved = { ...message, saved: Date.now() };
  const others = messages.value.filter((one) => one.id !== id);
  const listed = others.length < messages.value.length;
  if (shownId.value === conversation && (listed || !before.has(id)))
    messages.value = [...others, saved].sort(store.inOrder);
  const there = await save(unsaved.messages, saved, (latest) =>
    store.saveMessage(latest, before.has(latest.id)),
  );
  if (!there) messages.value = messages.value.filter((one) => one.id !== id);
  return there;
}

/** Remove a message and all after it. */
export function cutFrom(message: Message): void {
  const cut = messages.value.filter((one) => store.inOrder(one, message) >= 0).map((one) => one.id);
  cut.forEach(forget);
  messages.value = messages.value.filter((one) => !gone.has(one.id));
  void kept(store.removeMessages(message.conversation, cut));
}
