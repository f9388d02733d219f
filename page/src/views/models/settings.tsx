/** The settings of one model: read, changed field by field, saved together. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import { ApiError } from "../../api/http";
import type { Models } from "../../api/schema";
import { isAdmin, session } from "../../api/session";
import { t } from "../../i18n";
import { href } from "../../route";
import { Badge, Card, Loading, Problem } from "../../ui/basics";
import { focusFirst } from "../../ui/focus";
import { ConflictDialog } from "./conflict";
import { discard, editingOf, open, rebase, save } from "./editing";
import type { Conflict, Editing } from "./editing";
import { fieldSelector, SimpleField } from "./field";
import type { FieldProps, Refused } from "./field";
import { countsAtOnce, GROUPS } from "./fields";
import { FileError, ReadOnly } from "./list";
import { refusal } from "./refusal";
import { capError, SpeculationFields } from "./speculation_fields";
import { configured, models, refreshModels } from "./state";

const FIELDS = new Set<string>([
  "speculate",
  "draft_model",
  ...GROUPS.flatMap(({ fields }) => fields.map(({ name }) => name)),
]);

const NONE: Refused = new Map();

/** For how long the bar says that something was saved. */
const SAID_MS = 8000;

export function SettingsView(props: { name: string }) {
  const { name } = props;
  const [error, setError] = useState<unknown>(null);
  const refresh = () => void Promise.all([open(name), refreshModels()]).then(() => setError(null), setError);
  useEffect(refresh, [name]);
  const unread = useTopic<Models>("models", (data) => (models.value = data));
  const editing = editingOf(name);
  const model = configured(name);
  const told = model && [model.speculate, model.draft_model, model.pinned, model.outdated].join();
  useEffect(() => void open(name).catch(() => undefined), [told]); // another tab may have saved
  return (
    <>
      <div class="view-head">
        <h1>
          <span class="name">{name}</span>{" "}
          {model && (
            <Badge tone={model.state === "failed" ? "bad" : undefined}>
              {t(`models.state_${model.state}`)}
            </Badge>
          )}
        </h1>
        <a href={href("models")}>{t("models.all_models")}</a>
      </div>
      {error !== null && <Problem error={error} retry={refresh} />}
      {error === null && unread && <Problem error={unread} />}
      {model?.state === "failed" && model.error && (
        <p class="bad reason" lang="en">
          {model.error}
        </p>
      )}
      {!editing && error === null && <Loading />}
      {editing && (
        <>
          <ReadOnly />
          <FileError />
          {!editing.read.in_file && isAdmin() && (
            <p class="hint">
              {t("models.not_in_file")} <code>{session.value?.settings_file}</code>
            </p>
          )}
          <Form name={name} editing={editing} />
        </>
      )}
    </>
  );
}

function Form(props: { name: string; editing: Editing }) {
  const { name, editing } = props;
  const saving = useSaving(name, editing.edits);
  const form: FieldProps = { model: name, editing, locked: !isAdmin(), refused: saving.refused };
  const box = useRef<HTMLFormElement>(null);
  useEffect(() => {
    focusFirstOf(box.current, saving.refused);
  }, [saving.refused]);
  const wrong = capError(form);
  function submit(event: Event): void {
    event.preventDefault();
    if (wrong) focusField(box.current, "cap");
    else void saving.go();
  }
  return (
    <>
      <form ref={box} class="stack" onSubmit={submit} noValidate>
        <Card title={t("models.group_speculation")}>
          <SpeculationFields form={form} head={(configured(name)?.head ?? null) !== null} />
        </Card>
        {GROUPS.map((group) => (
          <Card key={group.name} title={t(`models.group_${group.name}`)}>
            <div class="settings">
              {group.fields.map((field) => (
                <SimpleField key={field.name} field={field} form={form} />
              ))}
            </div>
          </Card>
        ))}
        {!form.locked && <SaveBar name={name} editing={editing} saving={saving} />}
      </form>
      {saving.conflict && (
        <ConflictDialog
          conflict={saving.conflict}
          editing={editing}
          close={() => saving.settle(null)}
          take={(edits) => {
            if (saving.conflict) rebase(name, saving.conflict.now, edits);
            saving.settle(Object.keys(edits).length ? "save" : "dropped");
          }}
        />
      )}
    </>
  );
}

function SaveBar(props: { name: string; editing: Editing; saving: Saving }) {
  const { saving, editing, name } = props;
  const edited = Object.keys(editing.edits);
  const count = edited.length;
  const open = count > 0 || saving.said !== "" || saving.error !== null;
  function drop(): void {
    if (saving.busy) return;
    discard(name);
    saving.clear();
    focusFirst(...edited.map(fieldSelector));
  }
  return (
    <div class={`save-bar ${open ? "open" : ""} ${count ? "" : "done"}`}>
      <div class="said" role="status">
        {count ? t("models.unsaved", { count }) : saving.said}
      </div>
      {saving.error !== null && <Problem error={saving.error} />}
      {count > 0 && (
        <div class="actions">
          <button class="primary" aria-disabled={saving.busy}>
            {t("models.save")}
          </button>
          <button type="button" aria-disabled={saving.busy} onClick={drop}>
            {t("models.discard")}
          </button>
        </div>
      )}
    </div>
  );
}

interface Saving {
  busy: boolean;
  /** How the last one ended well. */
  said: string;
  refused: Refused;
  error: unknown;
  conflict: Conflict | null;
  go: () => Promise<void>;
  /** The conflict is over: save again, or say that the file's values are shown. */
  settle: (how: "save" | "dropped" | null) => void;
  clear: () => void;
}

function useSaving(name: string, edits: Editing["edits"]): Saving {
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  const [refused, setRefused] = useState(NONE);
  const [error, setError] = useState<unknown>(null);
  const [conflict, setConflict] = useState<Conflict | null>(null);
  useEffect(() => setRefused(NONE), [edits]); // what was refused is being mended
  useEffect(() => {
    const over = said ? setTimeout(() => setSaid(""), SAID_MS) : undefined;
    return () => clearTimeout(over);
  }, [said]);
  function clear(): void {
    setSaid("");
    setRefused(NONE);
    setError(null);
  }
  async function go(): Promise<void> {
    if (busy) return;
    clear();
    setBusy(true);
    try {
      const again = isInMemory(name) && !Object.keys(edits).every(countsAtOnce);
      const met = await save(name);
      setConflict(met);
      if (met) return;
      setSaid(t(again ? "models.saved_reload" : "models.saved"));
      focusFirst(...Object.keys(edits).map(fieldSelector));
    } catch (failed) {
      const found = failed instanceof ApiError ? refusedIn(failed) : NONE;
      setRefused(found);
      if (!found.size) setError(failed);
    } finally {
      setBusy(false);
    }
  }
  function settle(how: "save" | "dropped" | null): void {
    setConflict(null);
    if (how === "save") void go();
    else if (how === "dropped") setSaid(t("models.dropped"));
  }
  return { busy, said, refused, error, conflict, go, settle, clear };
}

function isInMemory(name: string): boolean {
  const state = configured(name)?.state;
  return state === "loaded" || state === "loading";
}

/** What is wrong with each field that the server names. */
function refusedIn({ errors }: ApiError): Refused {
  const found = errors.flatMap(({ param, message }) =>
    param && FIELDS.has(param) ? [[param, refusal(param, withoutPlace(message))] as const] : [],
  );
  return new Map(found);
}

/** What is wrong, without the file and the table that it is in: the field shows that. */
function withoutPlace(message: string): string {
  const place = `${session.value?.settings_file ?? ""}, [models.`;
  return message.startsWith(place) ? message.slice(message.indexOf("]: ") + 3) : message;
}

/** The first of these fields on screen. */
function focusFirstOf(form: HTMLFormElement | null, fields: Refused): void {
  const boxes = [...(form?.querySelectorAll<HTMLElement>("[data-field]") ?? [])];
  const first = boxes.find((box) => fields.has(box.dataset.field ?? ""));
  if (first) focusField(form, first.dataset.field ?? "");
}

function focusField(form: HTMLFormElement | null, field: string): void {
  const input = form?.querySelector<HTMLElement>(fieldSelector(field));
  input?.focus();
  input?.scrollIntoView({ block: "center" });
}
