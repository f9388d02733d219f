/** A key that was just made, which the server shows this once. */

import { useEffect, useRef } from "preact/hooks";
import type { MadeKey } from "../../api/schema";
import { t } from "../../i18n";
import { Card, CopyButton } from "../../ui/basics";
import { focusFirst } from "../../ui/focus";
import { made } from "./state";

export function Made(props: { made: MadeKey }) {
  const { name, key, admin_key: admin } = props.made;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => box.current?.focus(), [key]);
  return (
    <Card title={t("keys.made", { name })} class="made">
      <div tabIndex={-1} ref={box} role="status" class="made-keys">
        <p class="warn">{t("keys.once")}</p>
        <Secret label={t("keys.key_of", { name })} text={key} />
        <Secret label={t("keys.try_it")} text={example(key)} class="example" />
        {admin !== null && (
          <>
            <Secret label={t("keys.admin_key")} text={admin} />
            <p>{t("keys.admin_made")}</p>
            <p class="dim">{t("keys.admin_used")}</p>
          </>
        )}
      </div>
      <div class="actions">
        <button type="button" onClick={() => ((made.value = null), focusFirst(".view-head button"))}>
          {t("keys.kept")}
        </button>
      </div>
    </Card>
  );
}

/** A request with the key, for a shell. */
function example(key: string): string {
  const body = '{"messages": [{"role": "user", "content": "Hello"}]}';
  const url = new URL("v1/chat/completions", location.href.split("#")[0]);
  return `curl ${url} -H 'Authorization: Bearer ${key}' -H 'Content-Type: application/json' -d '${body}'`;
}

function Secret(props: { label: string; text: string; class?: string }) {
  return (
    <div class={`secret ${props.class ?? ""}`}>
      <strong>{props.label}</strong>
      <div class="actions">
        <code>{props.text}</code>
        <CopyButton text={() => props.text} />
      </div>
    </div>
  );
}
