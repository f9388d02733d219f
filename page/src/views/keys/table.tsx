/** The keys, their limits and their use; one can be changed in its place, and revoked. */

import { useState } from "preact/hooks";
import { ApiError } from "../../api/http";
import type { KeyRow } from "../../api/schema";
import { moment, number, t } from "../../i18n";
import { Badge, Dialog, Problem } from "../../ui/basics";
import { focusFirst, having } from "../../ui/focus";
import { isOther, LimitFields, limitsOf, useEntered } from "./limits";
import { changeKey, isLast, keys, loadKeys, revokeKey } from "./state";

export function KeyTable(props: { rows: readonly KeyRow[] }) {
  const [changing, setChanging] = useState<string | null>(null);
  const [revoking, setRevoking] = useState<KeyRow | null>(null);
  return (
    <>
      <ul class="keys">
        {props.rows.map((row) => (
          <li key={row.name} class="card" data-key={row.name}>
            <div class="card-head">
              <h2>{row.name}</h2>
              <div class="actions">
                {changing !== row.name && (
                  <button
                    type="button"
                    aria-label={t("keys.change_of", { name: row.name })}
                    onClick={() => (
                      setChanging(row.name),
                      focusFirst(`${having("data-key", row.name)} input`)
                    )}
                  >
                    {t("keys.change")}
                  </button>
                )}
                <button
                  type="button"
                  class="danger"
                  aria-label={t("keys.revoke_of", { name: row.name })}
                  onClick={() => setRevoking(row)}
                >
                  {t("keys.revoke")}
                </button>
              </div>
            </div>
            <Use row={row} />
            {changing === row.name ? (
              <Change
                row={row}
                close={() => (setChanging(null), focusFirst(`${having("data-key", row.name)} button`))}
              />
            ) : (
              <Limits row={row} />
            )}
          </li>
        ))}
      </ul>
      {revoking && (
        <Revoke row={revoking} close={() => (setRevoking(null), focusFirst(".view-head button"))} />
      )}
    </>
  );
}

function Use(props: { row: KeyRow }) {
  const { requests, tokens, running, last_used: last } = props.row;
  return (
    <p class="use">
      <span>{t("keys.requests", { count: requests })}</span>
      <span>{t("keys.tokens", { count: tokens })}</span>
      <span>{last === null ? t("keys.never_used") : t("keys.last_used", { at: moment(last) })}</span>
      {running > 0 && <Badge tone="good">{t("keys.running", { count: running })}</Badge>}
    </p>
  );
}

function Limits(props: { row: KeyRow }) {
  const { row } = props;
  const limit = (value: number | null) => (value === null ? t("keys.no_limit") : number(value));
  const shown = [
    [t("keys.requests_per_minute"), limit(row.requests_per_minute)],
    [t("keys.max_concurrent"), limit(row.max_concurrent)],
    [t("keys.max_priority"), number(row.max_priority)],
    [t("keys.scope"), row.scope === "" ? t("keys.scope_local") : row.scope],
  ];
  return (
    <dl class="limits">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt class="dim">{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Change(props: { row: KeyRow; close: () => void }) {
  const [busy, setBusy] = useState(false);
  const [version, setVersion] = useState(keys.value?.version ?? null);
  const form = useEntered(props.row);
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    form.setError(null);
    try {
      await changeKey(props.row.name, { ...limitsOf(form.values, props.row), version });
      props.close();
    } catch (error) {
      form.setError(error);
      if (error instanceof ApiError && error.code === "settings_conflict") {
        await loadKeys().catch(form.setError);
        setVersion(keys.value?.version ?? null); // it was said: to save again is to overwrite
      }
    } finally {
      setBusy(false);
    }
  }
  return (
    <form class="key-form" onSubmit={(event) => void submit(event)}>
      <LimitFields form={form} name={props.row.name} />
      {isOther(form.error) && <Problem error={form.error} />}
      <div class="actions">
        <button class="primary" aria-disabled={busy}>
          {t("keys.save")}
        </button>
        <button type="button" onClick={props.close}>
          {t("shell.cancel")}
        </button>
      </div>
    </form>
  );
}

function Revoke(props: { row: KeyRow; close: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const { name } = props.row;
  const last = isLast(props.row);
  return (
    <Dialog title={t("keys.revoke_title", { name })} close={props.close}>
      <p>{last ? t("keys.revoke_last") : t("keys.revoke_note")}</p>
      {error !== null && <Problem error={error} />}
      <div class="actions">
        {!last && (
          <button type="button" class="danger" onClick={() => revokeKey(name).then(props.close, setError)}>
            {t("keys.revoke_of", { name })}
          </button>
        )}
        <button type="button" autofocus onClick={props.close}>
          {last ? t("shell.close") : t("shell.cancel")}
        </button>
      </div>
    </Dialog>
  );
}
