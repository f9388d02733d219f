/** How a model speculates: automatic, off, or in the reader's own words; the longest draft; the draft model. */

import { t } from "../../i18n";
import { DRAFTERS, aboutDrafter, drafterColour } from "../../ui/drafters";
import { DraftChoice } from "./drafts";
import { edit, setOwn, valueOf } from "./editing";
import type { Editing } from "./editing";
import { Setting } from "./field";
import type { FieldProps } from "./field";
import { chosenOf, fitsAnOption, isCap, LONGEST_CAP, namedIn, written } from "./speculation";
import type { Chosen, Mode, Written } from "./speculation";

const MODES: readonly Mode[] = ["auto", "off", "own"];
/** The options that a reader may want to set, of those that have such. */
const OPTIONS: Record<string, string> = {
  "draft-model": "model, max, min, min-p, ctx, translate",
  heads: "model, max, min-p, window",
};

/** What the two settings say, as the fields show it. */
function chosenIn({ editing }: FieldProps): Chosen {
  const settings = settingsIn(editing, editing.edits);
  const typed = editing.texts.speculate;
  if (editing.own) return inOwnWords(settings);
  const chosen = chosenOf(settings);
  return typed === undefined ? chosen : { ...chosen, cap: typed };
}

function inOwnWords({ speculate, draft_model }: Written): Chosen {
  return { mode: "own", cap: "", draftModel: draft_model, text: speculate };
}

function settingsIn(editing: Editing, edits: Editing["edits"]): Written {
  const value = (name: string) => valueOf({ ...editing, edits }, name) as string | null;
  return { speculate: value("speculate") ?? "", draft_model: value("draft_model") };
}

/** What is wrong with the longest draft: the server takes it with the string, and sees it on loading only. */
export function capError(form: FieldProps): string | null {
  const { mode, cap } = chosenIn(form);
  if (mode !== "auto" || !cap.trim() || isCap(cap)) return null;
  return t("models.cap_wrong", { longest: LONGEST_CAP });
}

export function SpeculationFields(props: { form: FieldProps; head: boolean }) {
  const { form, head } = props;
  const chosen = chosenIn(form);
  const saved = chosenOf(settingsIn(form.editing, {}));
  function choose(change: Partial<Chosen>): void {
    const next = { ...startingFrom(change.mode ?? chosen.mode), ...change };
    if (change.mode) setOwn(form.model, change.mode === "own");
    edit(
      form.model,
      { ...written(next, head) },
      next.mode === "auto" && next.cap.trim() ? { speculate: next.cap } : {},
    );
  }
  /** What the other fields say in a mode: in the reader's words the text of before, after "off" what was saved. */
  function startingFrom(mode: Mode): Chosen {
    if (mode === "own") return inOwnWords(settingsIn(form.editing, form.editing.edits));
    return mode === "auto" && chosen.mode === "off" && saved.mode === "auto" ? saved : chosen;
  }
  return (
    <>
      <Setting
        name="speculate"
        names={["speculate"]}
        form={form}
        group
        note={t(`models.field_speculate_help_${chosen.mode}`)}
        marks={{
          differs: chosen.mode !== "auto",
          unsaved: chosen.mode === "own" ? chosen.text !== saved.text : chosen.mode !== saved.mode,
        }}
        reset={() => choose({ mode: "auto" })}
      >
        {(attributes) => (
          <>
            <div class="choices">
              {MODES.map((mode) => (
                <label key={mode} class="tick">
                  <input
                    type="radio"
                    name={`${attributes.id}-mode`}
                    disabled={form.locked}
                    checked={chosen.mode === mode}
                    onChange={() => choose({ mode })}
                  />
                  {t(`models.mode_${mode}`)}
                </label>
              ))}
            </div>
            {chosen.mode === "own" && (
              <input
                {...attributes}
                class="mono"
                aria-label={t("models.own_text")}
                readOnly={form.locked}
                spellcheck={false}
                autocomplete="off"
                value={chosen.text}
                onInput={(event) => choose({ text: event.currentTarget.value })}
              />
            )}
            {chosen.mode === "own" && <Drafters />}
          </>
        )}
      </Setting>
      {chosen.mode === "auto" && (
        <Setting
          name="cap"
          names={[]}
          form={form}
          error={capError(form)}
          marks={{ differs: chosen.cap !== "", unsaved: chosen.cap !== saved.cap }}
          reset={() => choose({ cap: "" })}
          note={
            chosen.draftModel !== null && !fitsAnOption(chosen.draftModel)
              ? t("models.cap_without_draft")
              : t("models.field_cap_help")
          }
        >
          {(attributes) => (
            <input
              {...attributes}
              inputMode="numeric"
              readOnly={form.locked}
              autocomplete="off"
              placeholder={t("models.cap_none")}
              value={chosen.cap}
              onInput={(event) => choose({ cap: event.currentTarget.value })}
            />
          )}
        </Setting>
      )}
      <DraftChoice
        form={form}
        chosen={chosen.draftModel}
        saved={saved.draftModel}
        off={chosen.mode === "off"}
        named={chosen.mode === "own" ? namedIn(chosen.text) : null}
        choose={(draftModel) => choose({ draftModel })}
      />
    </>
  );
}

/** The drafters, in a sentence each. */
function Drafters() {
  return (
    <details>
      <summary>{t("models.drafters")}</summary>
      <dl class="drafters">
        {DRAFTERS.map((key) => {
          const name = key.replace(/_/g, "-");
          return (
            <div key={key}>
              <dt>
                <i style={{ background: `var(${drafterColour(name)})` }} aria-hidden="true" />{" "}
                <code>{name}</code>
              </dt>
              <dd>
                {aboutDrafter(name)}
                {OPTIONS[name] && `. ${t("models.drafter_options", { options: OPTIONS[name] })}`}
              </dd>
            </div>
          );
        })}
      </dl>
    </details>
  );
}
