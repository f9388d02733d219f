/** Which requests are asked for; kept in the address. */

import type { RequestRow } from "../../api/schema";
import { session } from "../../api/session";
import { t } from "../../i18n";
import { query, setQuery } from "../../route";
import { Announced } from "../../ui/basics";
import { STATES, different } from "./rows";
import type { Filter, State } from "./rows";

/** What the address asks for. */
export function asked(): Filter {
  const state = query.value.get("state") ?? "";
  return {
    text: query.value.get("text") ?? "",
    model: query.value.get("model") ?? "",
    key: query.value.get("key") ?? "",
    state: STATES.includes(state as State) ? (state as State) : "",
  };
}

export function Filters(props: { rows: RequestRow[]; shown: number }) {
  const filter = asked();
  const some = Object.values(filter).some(Boolean);
  const counted = some
    ? t("requests.shown", { n: props.shown, all: props.rows.length })
    : t("requests.total", { n: props.rows.length });
  return (
    <div class="filters" role="search">
      <input
        type="search"
        aria-label={t("requests.search")}
        placeholder={t("requests.search")}
        value={filter.text}
        onInput={(event) => setQuery({ text: event.currentTarget.value })}
      />
      <Choice
        label={t("requests.all_models")}
        name="model"
        chosen={filter.model}
        values={different(props.rows.map((row) => row.model)).map((model) => [model, model])}
      />
      {!session.value?.open && (
        <Choice
          label={t("requests.all_keys")}
          name="key"
          chosen={filter.key}
          values={different(props.rows.map((row) => row.key)).map((key) => [key, key])}
        />
      )}
      <Choice
        label={t("requests.all_states")}
        name="state"
        chosen={filter.state}
        values={STATES.map((state) => [state, t(`requests.state_${state}`)])}
      />
      <span class="dim">{counted}</span>
      <Announced text={some ? counted : ""} on={Object.values(filter).join(" ")} />
      {some && (
        <button type="button" onClick={() => setQuery({ text: "", model: "", key: "", state: "" })}>
          {t("requests.reset")}
        </button>
      )}
    </div>
  );
}

/** `label`: what choosing nothing means. */
function Choice(props: { label: string; name: string; chosen: string; values: [string, string][] }) {
  const known = !props.chosen || props.values.some(([value]) => value === props.chosen);
  const values = known ? props.values : [...props.values, [props.chosen, props.chosen] as const];
  return (
    <select
      aria-label={t(`requests.filter_${props.name as "model" | "key" | "state"}`)}
      value={props.chosen}
      onChange={(event) => setQuery({ [props.name]: event.currentTarget.value })}
    >
      <option value="">{props.label}</option>
      {values.map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
}
