/** The settings of a conversation: system prompt and sampling. */

import { useEffect, useState } from "preact/hooks";
import { number, t } from "../../i18n";
import { Dialog, Field } from "../../ui/basics";
import { numberIn } from "../../ui/typed";
import * as chats from "./chats";
import { defaultsOf, modelOf, USUAL } from "./models";
import type { Sampling } from "./types";

interface Bounds {
  min: number;
  max?: number;
  step: number | "any";
  /** What counts where nothing is set. */
  usual?: number;
}

const FIELDS: Record<keyof Sampling, Bounds> = {
  temperature: { min: 0, max: 2, step: "any", usual: USUAL.temperature },
  top_p: { min: 0.001, max: 1, step: "any", usual: USUAL.top_p },
  top_k: { min: 0, step: 1, usual: 0 },
  min_p: { min: 0, max: 1, step: "any", usual: 0 },
  max_tokens: { min: 1, step: 1 },
  seed: { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
};

export function SettingsDialog(props: { close: () => void }) {
  const { model, system, sampling } = chats.settings.value;
  const [defaults, setDefaults] = useState<Sampling>({});
  const name = modelOf(model)?.id;
  useEffect(() => {
    if (name) void defaultsOf(name).then((read) => setDefaults(read ?? {}));
  }, [name]);
  return (
    <Dialog title={t("chat.settings")} close={props.close}>
      <Field label={t("chat.system")} note={t("chat.system_note")}>
        {(attributes) => (
          <textarea
            {...attributes}
            rows={4}
            value={system}
            onInput={(event) => chats.change({ system: event.currentTarget.value })}
          />
        )}
      </Field>
      <div class="sampling">
        {(Object.keys(FIELDS) as (keyof Sampling)[]).map((field) => (
          <NumberField
            key={field}
            field={field}
            value={sampling[field]}
            usual={defaults[field] ?? FIELDS[field].usual}
            change={(value) => {
              const { [field]: _, ...others } = chats.settings.value.sampling;
              chats.change({ sampling: value === undefined ? others : { ...others, [field]: value } });
            }}
          />
        ))}
      </div>
      <div class="actions">
        <button type="button" class="primary" onClick={props.close}>
          {t("shell.close")}
        </button>
        <button type="button" onClick={() => chats.change({ system: "", sampling: {} })}>
          {t("chat.settings_reset")}
        </button>
      </div>
    </Dialog>
  );
}

/** A number, or nothing: then the placeholder counts. What is not valid is said and not used. */
function NumberField(props: {
  field: keyof Sampling;
  value: number | undefined;
  usual: number | undefined;
  change: (value: number | undefined) => void;
}) {
  const { field, value, usual } = props;
  const bounds = FIELDS[field];
  const [last, setLast] = useState<{ text: string; gives: number | undefined } | null>(null);
  const typed = last?.gives === value ? last?.text : undefined; // else it was changed elsewhere since
  const wrong = typed !== undefined && !fits(typed, bounds);
  return (
    <Field
      label={t(`chat.${field}`)}
      error={wrong ? t("chat.wrong_number", { range: rangeOf(bounds) }) : null}
    >
      {(attributes) => (
        <input
          {...attributes}
          inputMode="decimal"
          value={typed ?? value ?? ""}
          placeholder={
            usual === undefined
              ? t(field === "seed" ? "chat.seed_usual" : "chat.max_tokens_usual")
              : number(usual, 3)
          }
          onInput={(event) => {
            const text = event.currentTarget.value.trim();
            const right = fits(text, bounds);
            const gives = numberIn(text) ?? undefined;
            const known = (before: typeof last) => (before && before !== last ? before.gives : value);
            setLast((before) => ({ text, gives: right ? gives : known(before) }));
            if (right) props.change(gives);
          }}
        />
      )}
    </Field>
  );
}

function fits(text: string, { min, max, step }: Bounds): boolean {
  if (text === "") return true;
  const value = numberIn(text);
  return (
    value !== null &&
    value >= min &&
    value <= (max ?? Infinity) &&
    (step === "any" || Number.isSafeInteger(value))
  );
}

function rangeOf({ min, max, step }: Bounds): string {
  const least = number(min, 3);
  if (max === undefined || step === 1) return t("chat.range_whole", { min: least });
  return t("chat.range", { min: least, max: number(max) });
}
