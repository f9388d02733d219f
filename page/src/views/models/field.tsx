/** One setting: its value, what it is for, whether it differs from the default, and a way back to that. */

import { useId } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { number, t } from "../../i18n";
import { Badge } from "../../ui/basics";
import { focusFirst, having } from "../../ui/focus";
import { edit, valueOf } from "./editing";
import type { Editing } from "./editing";
import { defaultOf, read, same, typed } from "./fields";
import type { FieldName, FormField, Value } from "./fields";
import { help, label } from "./names";

/** What the server said of the fields that it did not take. */
export type Refused = ReadonlyMap<string, string>;

export interface FieldProps {
  model: string;
  editing: Editing;
  locked: boolean;
  refused: Refused;
}

/** The label with its marks, the input, and the sentence below. `names`: the settings that it stands for. */
export function Setting(props: {
  name: FieldName | "cap";
  names: readonly FieldName[];
  form: FieldProps;
  error?: string | null;
  /** Given for groups of inputs, which have no one input to label. */
  group?: boolean;
  note?: ComponentChildren;
  /** Where the settings of these names do not tell. */
  marks?: { differs: boolean; unsaved: boolean };
  reset?: () => void;
  children: (attributes: {
    id: string;
    "aria-describedby": string;
    "aria-invalid": boolean;
  }) => ComponentChildren;
}) {
  const id = useId();
  const { editing, locked, refused, model } = props.form;
  const standard = (name: FieldName) => defaultOf(editing.read, name);
  const marks = props.marks ?? {
    differs: props.names.some((name) => name !== "path" && !same(valueOf(editing, name), standard(name))),
    unsaved: props.names.some((name) => name in editing.edits),
  };
  const error = props.error ?? refused.get(props.name) ?? null;
  const reset =
    props.reset ?? (() => edit(model, Object.fromEntries(props.names.map((name) => [name, standard(name)]))));
  const named = label(props.name);
  const note = props.note ?? help(props.name);
  const Label = props.group ? "span" : "label";
  return (
    <div
      class={`field setting ${error ? "invalid" : ""}`}
      data-field={props.name}
      role={props.group ? "group" : undefined}
      aria-labelledby={props.group ? `${id}-label` : undefined}
    >
      <div class="setting-head">
        <Label id={`${id}-label`} class="label" for={props.group ? undefined : id}>
          {named}
        </Label>
        {marks.differs && <Badge>{t("models.changed")}</Badge>}
        {marks.unsaved && <Badge tone="warn">{t("models.unsaved_mark")}</Badge>}
        {marks.differs && !locked && (
          <button
            type="button"
            class="quiet reset"
            aria-label={t("models.reset_of", { name: named })}
            onClick={() => (reset(), focusFirst(fieldSelector(props.name)))}
          >
            {t("models.reset")}
          </button>
        )}
      </div>
      {props.children({ id, "aria-describedby": `${id}-note`, "aria-invalid": Boolean(error) })}
      <div id={`${id}-note`} class="dim">
        {error && (
          <p class="bad" role="alert">
            {error}
          </p>
        )}
        <p>{note}</p>
      </div>
    </div>
  );
}

/** The input of a setting, or the chosen one of several. */
export function fieldSelector(name: string): string {
  const box = having("data-field", name);
  return ["input:not([type=radio])", "input:checked", "select", "textarea"]
    .map((input) => `${box} ${input}`)
    .join();
}

/** A setting that is one input. */
export function SimpleField(props: { field: FormField; form: FieldProps }) {
  const { field, form } = props;
  const { editing, locked, model } = form;
  const value = valueOf(editing, field.name);
  const set = (value: Value) => edit(model, { [field.name]: value });
  const choices = editing.read.choices[field.name] ?? [];
  return (
    <Setting name={field.name} names={[field.name]} form={form}>
      {(attributes) => {
        if (field.kind === "switch")
          return (
            <input
              {...attributes}
              type="checkbox"
              role="switch"
              disabled={locked}
              checked={value === true}
              onChange={(event) => set(event.currentTarget.checked)}
            />
          );
        if (field.kind === "choice")
          return (
            <select
              {...attributes}
              disabled={locked}
              value={typed(value)}
              onChange={(event) => set(event.currentTarget.value)}
            >
              {[...new Set([...choices, typed(value)])].map((choice) => (
                <option key={choice}>{choice}</option>
              ))}
            </select>
          );
        return <TextInput {...{ attributes, field, form, value, choices }} />;
      }}
    </Setting>
  );
}

function TextInput(props: {
  attributes: { id: string; "aria-describedby": string; "aria-invalid": boolean };
  field: FormField;
  form: FieldProps;
  value: Value;
  choices: string[];
}) {
  const { attributes, field, form, choices } = props;
  const shown = form.editing.texts[field.name] ?? typed(props.value);
  const given = {
    ...attributes,
    readOnly: form.locked,
    value: shown,
    spellcheck: false,
    autocomplete: "off",
    onInput: (event: { currentTarget: { value: string } }) => {
      const text = event.currentTarget.value;
      edit(
        form.model,
        { [field.name]: emptied(read(field.name, text), field, form) },
        { [field.name]: text },
      );
    },
  };
  if (field.kind === "lines") return <textarea {...given} rows={2} />;
  const list = field.kind === "suggest" && choices.length ? `${attributes.id}-choices` : undefined;
  return (
    <>
      <input
        {...given}
        list={list}
        inputMode={field.kind === "whole" || field.kind === "decimal" ? "decimal" : undefined}
        placeholder={placeholder(field, form)}
        title={field.kind === "text" ? shown : undefined}
      />
      {list && (
        <datalist id={list}>
          {choices.map((choice) => (
            <option key={choice} value={choice} />
          ))}
        </datalist>
      )}
    </>
  );
}

/** An empty field means the default, as no setting can be an empty text. */
function emptied(value: Value, field: FormField, form: FieldProps): Value {
  return value === null && field.name !== "path" ? defaultOf(form.editing.read, field.name) : value;
}

/** What every API takes where a request says nothing; for the longest answer each has its own rule. */
const OF_THE_API: Record<string, number> = {
  temperature: 1,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
};

/** What counts while the field is empty. */
function placeholder(field: FormField, form: FieldProps): string | undefined {
  const { recommended } = form.editing.read;
  const name = field.name.replace(/^sampling\./, "");
  const value = field.name.startsWith("sampling.") ? recommended[name] : undefined;
  if (value !== undefined) return t("models.recommended", { value: number(value, 4) });
  const standard = typed(defaultOf(form.editing.read, field.name));
  if (standard || !field.name.startsWith("sampling.")) return standard || undefined;
  const usual = OF_THE_API[name];
  return usual === undefined ? t("models.as_the_api") : t("models.of_the_api", { value: number(usual) });
}
