/** The fields that a new key and a changed one have in common. */

import { useState } from "preact/hooks";
import { ApiError } from "../../api/http";
import type { KeyLimits, KeyRow } from "../../api/schema";
import { t } from "../../i18n";
import { Field } from "../../ui/basics";

/** What stands in the inputs. */
interface Entered {
  requests_per_minute: string;
  max_concurrent: string;
  max_priority: string;
  scope: string;
}

function entered(row?: KeyRow): Entered {
  return {
    requests_per_minute: String(row?.requests_per_minute ?? ""),
    max_concurrent: String(row?.max_concurrent ?? ""),
    max_priority: String(row?.max_priority ?? 0),
    scope: row && row.scope !== row.name ? row.scope : "",
  };
}

/** The limits for the server: nothing entered is no limit, and the key's own scope. */
export function limitsOf(values: Entered, row?: KeyRow): Omit<KeyLimits, "version"> {
  const kept = row?.scope === "" ? "" : null; // the scope of `foredraft run` has no name
  return {
    requests_per_minute: whole(values.requests_per_minute),
    max_concurrent: whole(values.max_concurrent),
    max_priority: whole(values.max_priority) ?? 0,
    scope: values.scope || kept,
  };
}

function whole(text: string): number | null {
  return text === "" ? null : Number(text);
}

/** Values, and the error of the field that the server refused. */
export function useEntered(row?: KeyRow) {
  const [values, setValues] = useState(() => entered(row));
  const [error, setError] = useState<unknown>(null);
  const change = (name: keyof Entered) => (event: { currentTarget: HTMLInputElement }) => {
    const text = event.currentTarget.value;
    setValues((before) => ({ ...before, [name]: text }));
  };
  return { values, change, error, setError };
}

/** What the server said about this field. */
export function saidAbout(error: unknown, name: string): string | null {
  return error instanceof ApiError && error.param === name ? error.message : null;
}

const FIELDS = ["name", "requests_per_minute", "max_concurrent", "max_priority", "scope"];

/** Whether an error is about none of the fields. */
export function isOther(error: unknown): boolean {
  return error !== null && !FIELDS.some((name) => saidAbout(error, name));
}

export function LimitFields(props: { form: ReturnType<typeof useEntered>; name: string }) {
  const { values, change, error } = props.form;
  return (
    <div class="limits">
      {(["requests_per_minute", "max_concurrent"] as const).map((name) => (
        <Field key={name} label={t(`keys.${name}`)} error={saidAbout(error, name)}>
          {(attributes) => (
            <input
              {...attributes}
              type="number"
              min={1}
              step={1}
              placeholder={t("keys.no_limit")}
              value={values[name]}
              onInput={change(name)}
            />
          )}
        </Field>
      ))}
      <Field
        label={t("keys.max_priority")}
        note={t("keys.priority_note")}
        error={saidAbout(error, "max_priority")}
      >
        {(attributes) => (
          <input
            {...attributes}
            type="number"
            step={1}
            required
            value={values.max_priority}
            onInput={change("max_priority")}
          />
        )}
      </Field>
      <Field label={t("keys.scope")} note={t("keys.scope_note")} error={saidAbout(error, "scope")}>
        {(attributes) => (
          <input
            {...attributes}
            autocomplete="off"
            spellcheck={false}
            placeholder={props.name}
            value={values.scope}
            onInput={change("scope")}
          />
        )}
      </Field>
    </div>
  );
}
