/** Makes a key. */

import { useRef, useState } from "preact/hooks";
import { t } from "../../i18n";
import { Card, Field, Problem } from "../../ui/basics";
import { isOther, LimitFields, limitsOf, saidAbout, useEntered } from "./limits";
import { isOpen, makeKey } from "./state";

export function NewKeyForm(props: { close: () => void }) {
  const [name, setName] = useState("");
  const [busy, setBusy] = useState(false);
  const form = useEntered();
  const input = useRef<HTMLInputElement>(null);
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    form.setError(null);
    try {
      await makeKey({ name: name.trim(), ...limitsOf(form.values) });
      props.close();
    } catch (error) {
      form.setError(error);
      input.current?.focus();
    } finally {
      setBusy(false);
    }
  }
  return (
    <Card title={t("keys.new")}>
      <form class="key-form" onSubmit={(event) => void submit(event)}>
        {isOpen() && <p class="warn">{t("keys.first_key")}</p>}
        <Field label={t("keys.name")} note={t("keys.name_note")} error={saidAbout(form.error, "name")}>
          {(attributes) => (
            <input
              {...attributes}
              ref={input}
              autofocus
              required
              autocomplete="off"
              spellcheck={false}
              maxLength={64}
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        <details>
          <summary>{t("keys.limits")}</summary>
          <LimitFields form={form} name={name} />
        </details>
        {isOther(form.error) && <Problem error={form.error} />}
        <div class="actions">
          <button class="primary" aria-disabled={busy}>
            {t("keys.make")}
          </button>
          <button type="button" onClick={props.close}>
            {t("shell.cancel")}
          </button>
        </div>
      </form>
    </Card>
  );
}
