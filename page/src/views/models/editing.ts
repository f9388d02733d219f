/** Unsaved changes of models' settings. They outlive the view, not the page. */

import { signal } from "@preact/signals";
import { ApiError, call, part } from "../../api/http";
import type { ModelSettingsReply } from "../../api/schema";
import { flat, nested, same } from "./fields";
import type { Value } from "./fields";
import { isCap } from "./speculation";
import { refreshModels } from "./state";

/** `read`: what the server said, with the version to change. `edits`: values by field that differ from it.
 * `texts`: what is typed in fields, which says more than the value ("1." on the way to "1.5"); for `speculate`
 * the longest draft. `own`: the reader writes the speculation string. */
export interface Editing {
  read: ModelSettingsReply;
  edits: Record<string, Value>;
  texts: Record<string, string>;
  own: boolean;
}

/** A change of the file from elsewhere, found on saving. */
export interface Conflict {
  before: Record<string, Value>;
  now: ModelSettingsReply;
}

/** By model, whose name may be any. */
const all = signal<ReadonlyMap<string, Editing>>(new Map());

export function editingOf(name: string): Editing | undefined {
  return all.value.get(name);
}

export function isUnsaved(name: string): boolean {
  return Object.keys(all.value.get(name)?.edits ?? {}).length > 0;
}

export function valueOf(editing: Editing, name: string): Value {
  if (name in editing.edits) return editing.edits[name] ?? null;
  return flat(editing.read.values)[name] ?? null;
}

/** Change values. `texts`: what was typed for them; fields without are shown as their values. */
export function edit(model: string, values: Record<string, Value>, texts: Record<string, string> = {}): void {
  const editing = all.value.get(model);
  if (!editing) return;
  const typed = Object.entries(editing.texts).filter(([name]) => !(name in values));
  put(model, {
    ...editing,
    edits: { ...editing.edits, ...values },
    texts: { ...Object.fromEntries(typed), ...texts },
  });
}

export function setOwn(model: string, own: boolean): void {
  const editing = all.value.get(model);
  if (editing) put(model, { ...editing, own });
}

export function discard(model: string): void {
  const editing = all.value.get(model);
  if (editing) put(model, { read: editing.read, edits: {}, texts: {}, own: false });
}

/** Use what the server says now as the base of these changes. */
export function rebase(model: string, read: ModelSettingsReply, edits: Record<string, Value>): void {
  const own = Object.keys(edits).length > 0 && (all.value.get(model)?.own ?? false);
  put(model, { read, edits, texts: {}, own });
}

/** The values that were changed elsewhere. */
export function changedIn({ before, now }: Conflict): string[] {
  const values = flat(now.values);
  return Object.keys({ ...before, ...values }).filter((name) => !same(before[name], values[name]));
}

/** Those of them that the reader has changed to something else: which one counts is to be chosen. */
export function changedTwice(conflict: Conflict, edits: Record<string, Value>): string[] {
  const values = flat(conflict.now.values);
  return changedIn(conflict).filter((name) => name in edits && !same(edits[name], values[name]));
}

function put(model: string, editing: Editing): void {
  const saved = flat(editing.read.values);
  const edits = Object.entries(editing.edits).filter(([name, value]) => !same(saved[name], value));
  all.value = new Map(all.value).set(model, { ...editing, edits: Object.fromEntries(edits) });
}

/** Read the settings, unless there are unsaved changes of what was read before. What is typed but not valid yet
 * stays. Throws as `send`. */
export async function open(model: string): Promise<void> {
  if (isUnsaved(model)) return;
  const read = await call<ModelSettingsReply>(address(model));
  const before = all.value.get(model);
  if (isUnsaved(model)) return;
  const cap = before?.texts.speculate;
  put(model, {
    read,
    edits: {},
    texts: cap === undefined || isCap(cap) ? {} : { speculate: cap },
    own: before?.own ?? false,
  });
}

/** Save the changes, and nothing else. Returns what was changed elsewhere meanwhile, if it is the same
 * settings: then nothing was saved. Other changes of the file stay. Throws as `send`. */
export async function save(model: string, tries = 3): Promise<Conflict | null> {
  const editing = all.value.get(model);
  if (!editing) return null;
  const body = { version: editing.read.version, values: nested(editing.edits) };
  try {
    rebase(model, await call<ModelSettingsReply>(address(model), { method: "PUT", body }), {});
    await refreshModels().catch(() => undefined);
    return null;
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "settings_conflict") throw error;
    const now = await call<ModelSettingsReply>(address(model));
    const conflict = { before: flat(editing.read.values), now };
    if (changedTwice(conflict, editing.edits).length || tries < 2) return conflict;
    put(model, { ...editing, read: now });
    return save(model, tries - 1);
  }
}

/** Keep a model loaded, or not; unsaved changes of its other settings stay so. Throws as `send`. */
export async function setPinned(model: string, pinned: boolean): Promise<void> {
  const { version } = await call<ModelSettingsReply>(address(model));
  const body = { version, values: { pinned } };
  const read = await call<ModelSettingsReply>(address(model), { method: "PUT", body });
  const editing = all.value.get(model);
  if (editing?.read.version === version) put(model, { ...editing, read });
  await refreshModels();
}

function address(model: string): string {
  return `console/models/${part(model)}/settings`;
}

addEventListener("beforeunload", (event) => {
  if ([...all.value.keys()].some(isUnsaved)) event.preventDefault();
});
