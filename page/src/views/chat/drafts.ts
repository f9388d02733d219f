/** What is typed and attached and not sent yet, by conversation; the words also after a reload of this tab. */

import { signal } from "@preact/signals";
import type { Signal } from "@preact/signals";
import { bytes, t } from "../../i18n";
import { forTab } from "../../kept";
import * as chats from "./chats";
import { sees } from "./models";
import { MOST_BYTES, MOST_FILES, read } from "./attachments";
import type { Attachment } from "./types";

export interface Draft {
  words: string;
  files: Attachment[];
  /** Why files were not attached. */
  refused: string[];
}

const drafts = new Map<string, Signal<Draft>>();
const keptAs = (conversation: string) => `foredraft-draft-${conversation}`;

/** The draft of a conversation; "": of a new one. */
export function draftOf(conversation: string): Signal<Draft> {
  const words = () => forTab.get(keptAs(conversation)) ?? "";
  const found = drafts.get(conversation) ?? signal<Draft>({ words: words(), files: [], refused: [] });
  drafts.set(conversation, found);
  return found;
}

export function changeDraft(conversation: string, changed: Partial<Draft>): void {
  const draft = draftOf(conversation);
  draft.value = { ...draft.value, ...changed };
  forTab.set(keptAs(conversation), draft.value.words || null);
}

/** Nothing is typed and attached any more. */
export function clearDraft(conversation: string): void {
  changeDraft(conversation, { words: "", files: [], refused: [] });
}

/** Words and files that were taken out before; before what is there by now. */
export function putBack(conversation: string, words: string, files: readonly Attachment[]): void {
  const now = draftOf(conversation).value;
  changeDraft(conversation, {
    words: [words, now.words].filter((part) => part.trim()).join("\n\n"),
    files: [...files, ...now.files].slice(0, MOST_FILES),
  });
}

/** Files that are being read: those that are given later come after them, however small they are. */
let reading: Promise<void> = Promise.resolve();

/** Attach the files that can be, in the order in which they are given, and say why the others cannot. */
export function attach(conversation: string, given: readonly File[]): Promise<void> {
  const added = reading.then(() => add(conversation, given));
  reading = added.catch(() => undefined);
  return added;
}

async function add(conversation: string, given: readonly File[]): Promise<void> {
  const draft = draftOf(conversation);
  const full = () => draft.value.files.length >= MOST_FILES;
  const refused: string[] = [];
  for (const file of given) {
    const one = full() ? "many" : await read(file, sees(chats.settings.value.model));
    if (typeof one === "object" && !full())
      draft.value = { ...draft.value, files: [...draft.value.files, one] };
    else refused.push(refusal(file.name, typeof one === "object" ? "many" : one));
  }
  draft.value = { ...draft.value, refused };
}

function refusal(name: string, why: Exclude<Awaited<ReturnType<typeof read>>, Attachment> | "many"): string {
  return t(`chat.refused_${why}`, { name, most: bytes(MOST_BYTES), files: MOST_FILES });
}
