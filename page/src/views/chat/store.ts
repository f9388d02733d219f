/** Conversations in the browser (IndexedDB). Each message is a record of its own, so that two tabs that write to
 * one conversation do not overwrite each other; what a tab has changed the others hear on a channel.
 *
 * One rule between tabs: what has been kept once is only replaced while it is there. So what one tab removed no
 * other tab brings back, whatever it still writes.
 */

import type { Attachment, Conversation, Message } from "./types";

const NAME = "foredraft-chat";
/** The conversations used least lately make room beyond this. */
export const MOST_CONVERSATIONS = 500;

/** Pictures together; beyond this those of the oldest messages go. */
export const MOST_PICTURE_BYTES = 200_000_000;

/** What the tabs tell each other of a conversation: its record and its messages changed, only its messages did, or
 * what is being written in it is to stop.
 */
type News = "changed" | "messages" | "stop";

const channel = new BroadcastChannel(NAME);
let opened: Promise<IDBDatabase> | null = null;

/** Call `listener` with each piece of news from another tab. */
export function onNews(listener: (news: News, conversation: string) => void): void {
  channel.addEventListener("message", ({ data }: MessageEvent<[News, string] | null>) => {
    if (Array.isArray(data)) listener(...data);
  });
}

export function tell(news: News, conversation: string): void {
  channel.postMessage([news, conversation]);
}

/** The newest first. Rejects with a DOMException, as do all functions here. */
export async function conversations(): Promise<Conversation[]> {
  const all = await request<Conversation[]>("readonly", ["conversations"], (store) =>
    store("conversations").getAll(),
  );
  return all.sort((one, other) => other.updated - one.updated);
}

/** The messages of a conversation, in order. */
export async function messagesOf(conversation: string): Promise<Message[]> {
  const all = await request<Message[]>("readonly", ["messages"], (store) =>
    store("messages").index("conversation").getAll(conversation),
  );
  return all.sort(inOrder);
}

export function inOrder(one: Message, other: Message): number {
  return one.at - other.at || (one.id < other.id ? -1 : Number(one.id > other.id));
}

/** Save a conversation's change; what other tabs changed of it meanwhile stays. False: it was kept before, and
 * is not there any more.
 */
export async function saveConversation(
  whole: Conversation,
  change: Partial<Conversation>,
  before: boolean,
): Promise<boolean> {
  let there = true;
  await transaction("readwrite", ["conversations"], (store) => {
    const kept = store("conversations").get(whole.id);
    kept.onsuccess = () => {
      const found = kept.result as Conversation | undefined;
      there = Boolean(found) || !before;
      if (there) store("conversations").put({ ...(found ?? whole), ...change });
    };
  });
  if (there) tell("changed", whole.id);
  return there;
}

/** False: it was kept before, and is not there any more. */
export async function saveMessage(message: Message, before: boolean): Promise<boolean> {
  let there = true;
  await transaction("readwrite", ["messages"], (store) => {
    const key = store("messages").getKey(message.id);
    key.onsuccess = () => {
      there = key.result !== undefined || !before;
      if (there) store("messages").put(message);
    };
  });
  if (there) tell("messages", message.conversation);
  return there;
}

/** Let the pictures of the oldest messages go until the others are within the bound: their names stay. */
export async function boundPictures(most = MOST_PICTURE_BYTES): Promise<void> {
  await transaction("readwrite", ["messages"], (store) => {
    const all = store("messages").getAll();
    all.onsuccess = () => {
      const found = (all.result as Message[]).filter(({ attachments }) =>
        attachments?.some((one) => one.picture),
      );
      let room = most;
      for (const message of found.sort((one, other) => inOrder(other, one))) {
        for (const { picture } of message.attachments ?? []) room -= picture?.size ?? 0;
        if (room < 0)
          store("messages").put({ ...message, attachments: message.attachments?.map(withoutPicture) });
      }
    };
  });
}

function withoutPicture({ picture, ...file }: Attachment): Attachment {
  return picture ? { ...file, dropped: true } : file;
}

export async function removeMessages(conversation: string, ids: string[]): Promise<void> {
  await transaction("readwrite", ["messages"], (store) => ids.forEach((id) => store("messages").delete(id)));
  tell("messages", conversation);
}

/** Remove a conversation; returns its messages, for `restore`. */
export async function remove(conversation: string): Promise<Message[]> {
  const messages = await messagesOf(conversation);
  await transaction("readwrite", ["conversations", "messages"], (store) => {
    store("conversations").delete(conversation);
    const keys = store("messages").index("conversation").getAllKeys(conversation);
    keys.onsuccess = () => keys.result.forEach((key) => store("messages").delete(key));
  });
  tell("changed", conversation);
  return messages;
}

/** A conversation with its messages. */
export interface Whole {
  conversation: Conversation;
  messages: Message[];
}

/** Add conversations. */
export async function restore(all: readonly Whole[]): Promise<void> {
  await transaction("readwrite", ["conversations", "messages"], (store) => {
    for (const { conversation, messages } of all) {
      store("conversations").put(conversation);
      messages.forEach((message) => store("messages").put(message));
    }
  });
  for (const { conversation } of all) tell("changed", conversation.id);
}

/** The conversations with these words in a message. */
export async function withWords(words: string): Promise<Set<string>> {
  const wanted = words.toLocaleLowerCase();
  const found = new Set<string>();
  await transaction("readonly", ["messages"], (store) => {
    const cursor = store("messages").openCursor();
    cursor.onsuccess = () => {
      const at = cursor.result;
      if (at === null) return;
      const message = at.value as Message;
      if (message.text.toLocaleLowerCase().includes(wanted)) found.add(message.conversation);
      at.continue();
    };
  });
  return found;
}

type Stores = (name: string) => IDBObjectStore;

async function transaction(
  mode: IDBTransactionMode,
  names: string[],
  work: (store: Stores) => void,
): Promise<void> {
  const database = await open();
  await new Promise<void>((done, failed) => {
    const running = database.transaction(names, mode);
    running.oncomplete = () => done();
    running.onabort = () => failed(running.error ?? new DOMException("aborted", "AbortError"));
    try {
      work((name) => running.objectStore(name));
    } catch (error) {
      failed(error as Error);
      running.abort();
    }
  });
}

async function request<T>(
  mode: IDBTransactionMode,
  names: string[],
  work: (store: Stores) => IDBRequest,
): Promise<T> {
  const database = await open();
  return new Promise<T>((done, failed) => {
    const running = database.transaction(names, mode);
    const asked = work((name) => running.objectStore(name));
    asked.onsuccess = () => done(asked.result as T);
    asked.onerror = () => failed(asked.error ?? new DOMException("failed", "UnknownError"));
  });
}

function open(): Promise<IDBDatabase> {
  opened ??= new Promise<IDBDatabase>((done, failed) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("conversations", { keyPath: "id" });
      const messages = asked.result.createObjectStore("messages", { keyPath: "id" });
      messages.createIndex("conversation", "conversation");
    };
    asked.onsuccess = () => {
      const closed = () => (opened = null); // the next use opens it again
      asked.result.onclose = closed;
      asked.result.onversionchange = () => {
        asked.result.close(); // which does not call `onclose`
        closed();
      };
      done(asked.result);
    };
    asked.onerror = () => {
      opened = null;
      failed(asked.error ?? new DOMException("failed", "UnknownError"));
    };
  });
  return opened;
}
