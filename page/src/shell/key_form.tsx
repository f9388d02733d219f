/** Asks for the API key that the server wants. It stays on screen until the server takes one. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, keepKey, keyWanted } from "../api/http";
import { loadSession } from "../api/session";
import { t } from "../i18n";
import { Card, Field, Problem } from "../ui/basics";

export function KeyForm() {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const box = useRef<HTMLFormElement>(null);
  const focus = () => box.current?.querySelector("input")?.focus();
  useEffect(focus, []);
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    keepKey(key.trim());
    try {
      await loadSession();
      keyWanted.value = "no";
    } catch (failed) {
      if (!(failed instanceof ApiError && failed.status === 401)) setError(failed);
      setBusy(false);
      focus();
    }
  }
  const refused = keyWanted.value === "refused" && !busy && error === null;
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.key_wanted")}</h1>
      </div>
      <Card>
        <form class="actions" ref={box} onSubmit={(event) => void submit(event)}>
          <Field
            label={t("shell.key_label")}
            note={t("shell.key_note")}
            error={refused ? t("shell.key_refused") : null}
          >
            {(attributes) => (
              <input
                {...attributes}
                type="password"
                autocomplete="off"
                spellcheck={false}
                required
                value={key}
                onInput={(event) => setKey(event.currentTarget.value)}
              />
            )}
          </Field>
          <button class="primary" aria-disabled={busy}>
            {t("shell.key_continue")}
          </button>
        </form>
        {error !== null && <Problem error={error} />}
      </Card>
    </>
  );
}
