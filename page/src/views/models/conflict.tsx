/** Two changes of the same settings: each value that was saved elsewhere, beside the reader's own. */

import { useState } from "preact/hooks";
import { t } from "../../i18n";
import { Dialog } from "../../ui/basics";
import { changedIn, changedTwice } from "./editing";
import type { Conflict, Editing } from "./editing";
import { flat, typed } from "./fields";
import type { Value } from "./fields";
import { label } from "./names";

type Side = "file" | "mine";

export function ConflictDialog(props: {
  conflict: Conflict;
  editing: Editing;
  close: () => void;
  /** Go on with these changes of what the file says now. */
  take: (edits: Record<string, Value>) => void;
}) {
  const { conflict, editing } = props;
  const now = flat(conflict.now.values);
  const changed = changedIn(conflict);
  const mine = Object.keys(editing.edits);
  const both = changedTwice(conflict, editing.edits);
  const theirs = changed.filter((name) => !both.includes(name));
  const only = mine.filter((name) => !changed.includes(name));
  const [sides, setSides] = useState<Record<string, Side>>({});
  const edits = Object.fromEntries(
    mine
      .filter((name) => !both.includes(name) || sides[name] === "mine")
      .map((name) => [name, editing.edits[name] ?? null]),
  );
  const undecided = both.some((name) => !(name in sides));
  return (
    <Dialog title={t("models.conflict")} close={props.close}>
      <p>{t("models.conflict_text")}</p>
      {both.map((name) => (
        <fieldset key={name} class="sides" data-conflict={name}>
          <legend>{label(name)}</legend>
          {(["file", "mine"] as const).map((side) => (
            <label key={side} class="option">
              <input
                type="radio"
                name={`conflict-${name}`}
                checked={sides[name] === side}
                onChange={() => setSides({ ...sides, [name]: side })}
              />
              <span>
                {t(`models.conflict_${side}`)}{" "}
                <Shown value={side === "file" ? now[name] : editing.edits[name]} />
              </span>
            </label>
          ))}
        </fieldset>
      ))}
      {theirs.length > 0 && <Others title={t("models.conflict_theirs")} names={theirs} values={now} />}
      {only.length > 0 && <Others title={t("models.conflict_only")} names={only} values={editing.edits} />}
      <div class="actions">
        <button type="button" class="primary" disabled={undecided} onClick={() => props.take(edits)}>
          {t("models.conflict_save")}
        </button>
        <button type="button" onClick={() => props.take({})}>
          {t("models.conflict_drop")}
        </button>
        <button type="button" class="quiet" onClick={props.close}>
          {t("shell.cancel")}
        </button>
      </div>
    </Dialog>
  );
}

/** Changes that do not meet one of the other side. */
function Others(props: { title: string; names: string[]; values: Record<string, Value> }) {
  return (
    <div>
      <p class="dim">{props.title}</p>
      <ul class="values">
        {props.names.map((name) => (
          <li key={name}>
            {label(name)}: <Shown value={props.values[name]} />
          </li>
        ))}
      </ul>
    </div>
  );
}

function Shown(props: { value: Value | undefined }) {
  const text = typed(props.value).replace(/\n/g, ", ");
  return text ? <code>{text}</code> : <em class="dim">{t("models.no_value")}</em>;
}
