/** The models on this machine, those of other programs included. */

import { useState } from "preact/hooks";
import type { Models, StoredModel } from "../../api/schema";
import { ApiError } from "../../api/http";
import { bytes, t } from "../../i18n";
import { Badge, Card, Dialog, Field, Problem } from "../../ui/basics";
import { sourceName } from "./format";
import { deleteStored, serve } from "./state";

export function Stored(props: { models: Models }) {
  const { stored, folder } = props.models;
  return (
    <Card title={t("models.stored")}>
      {stored.length ? (
        <ul class="rows">
          {stored.map((model) => (
            <Row key={model.path} model={model} />
          ))}
        </ul>
      ) : (
        <p class="dim">{t("models.stored_none")}</p>
      )}
      <p class="dim">
        {t("models.folder_is")} <code>{folder}</code>. {t("models.folder_drop")}
      </p>
    </Card>
  );
}

function Row({ model }: { model: StoredModel }) {
  const [asking, setAsking] = useState<"serve" | "delete" | null>(null);
  const kept = keptBecause(model);
  return (
    <li class="model-row" data-stored={model.name}>
      <div class="what">
        <p class="title">
          <span class="name">{model.name}</span>
          {!model.complete && <Badge tone="warn">{t("models.incomplete")}</Badge>}
          {model.served_as.length > 0 && (
            <Badge tone="good">{t("models.served_as", { names: model.served_as.join(", ") })}</Badge>
          )}
          {model.drafts_for.length > 0 && (
            <Badge tone="good">{t("models.drafts_for", { names: model.drafts_for.join(", ") })}</Badge>
          )}
        </p>
        <p class="dim">
          {[sourceName(model.source), model.quantization, bytes(model.size_bytes)]
            .filter(Boolean)
            .join(" · ")}
        </p>
        {kept && <p class="dim">{kept}</p>}
      </div>
      <div class="actions">
        {model.complete && (
          <button type="button" onClick={() => setAsking("serve")}>
            {t("models.serve")}
          </button>
        )}
        <button type="button" class="danger" disabled={kept !== null} onClick={() => setAsking("delete")}>
          {t("models.delete")}
        </button>
      </div>
      {asking === "serve" && <ServeDialog model={model} close={() => setAsking(null)} />}
      {asking === "delete" && <DeleteDialog model={model} close={() => setAsking(null)} />}
    </li>
  );
}

/** Why it cannot be deleted here; null if it can. */
function keptBecause(model: StoredModel): string | null {
  if (model.removable) return null;
  if (model.packaged) return t("models.kept_packaged");
  if (model.served_as.length) return t("models.kept_served", { names: model.served_as.join(", ") });
  if (model.drafts_for.length) return t("models.kept_drafts", { names: model.drafts_for.join(", ") });
  if (model.source !== "foredraft") return t("models.kept_program", { program: sourceName(model.source) });
  return t("models.kept");
}

function ServeDialog(props: { model: StoredModel; close: () => void }) {
  const [name, setName] = useState(clientName(props.model.name));
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const atName = error instanceof ApiError && error.param === "name" ? error.message : null;
  async function go(event: Event): Promise<void> {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await serve({ version: null, path: props.model.path, name: name.trim() || null, values: {} });
      props.close();
    } catch (refused) {
      setError(refused);
      setBusy(false);
    }
  }
  return (
    <Dialog title={t("models.serve_title", { name: props.model.name })} close={props.close}>
      <form class="stack" onSubmit={(event) => void go(event)}>
        <Field label={t("models.serve_name")} note={t("models.serve_name_help")} error={atName}>
          {(attributes) => (
            <input
              {...attributes}
              value={name}
              spellcheck={false}
              autocomplete="off"
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        {error !== null && atName === null && <Problem error={error} />}
        <div class="actions">
          <button class="primary" aria-disabled={busy}>
            {t("models.serve")}
          </button>
          <button type="button" onClick={props.close}>
            {t("shell.cancel")}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function DeleteDialog(props: { model: StoredModel; close: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  async function go(): Promise<void> {
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await deleteStored(props.model.name);
      props.close();
    } catch (refused) {
      setError(refused);
      setBusy(false);
    }
  }
  return (
    <Dialog title={t("models.delete_title", { name: props.model.name })} close={props.close}>
      <p>{t("models.delete_text", { size: bytes(props.model.size_bytes) })}</p>
      <p>
        <code class="path">{props.model.path}</code>
      </p>
      {error !== null && <Problem error={error} />}
      <div class="actions">
        <button type="button" class="danger" aria-disabled={busy} onClick={() => void go()}>
          {t("models.delete_now", { size: bytes(props.model.size_bytes) })}
        </button>
        <button type="button" onClick={props.close}>
          {t("shell.cancel")}
        </button>
      </div>
    </Dialog>
  );
}

/** A name for clients made of a model's: its last part, without what such a name cannot hold. */
function clientName(name: string): string {
  return (name.split("/").at(-1) ?? name).replace(/\s+/g, "-").slice(0, 128);
}
