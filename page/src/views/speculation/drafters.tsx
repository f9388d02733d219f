/** Who can draft, in a line each, and what became of it since the model was loaded. */

import { duration, percent, t } from "../../i18n";
import { Bar } from "../../ui/basics";
import { aboutDrafter, drafterColour } from "../../ui/drafters";
import type { ModelSpeculation } from "../../api/schema";

const AUTO = ["suffix", "recycle", "prediction", "grammar"];

/** The names of the stages of the speculation string. */
export function stagesOf(state: ModelSpeculation): string[] {
  return state.configured.split(";").map((stage) => stage.split(":")[0]?.trim() ?? "");
}

/** Whether a drafter is a network that writes ahead, and needs nothing to copy. */
export function isModel(name: string): boolean {
  return name === "draft-model" || name === "heads";
}

/** Those of the speculation string, and all that have drafted; the most useful first. */
function namesOf(state: ModelSpeculation): string[] {
  const named = stagesOf(state).flatMap((name) => (name === "auto" ? AUTO : name === "off" ? [] : [name]));
  const all = [...new Set([...Object.keys(state.drafters), ...named, ...(state.head ? ["heads"] : [])])];
  const accepted = (name: string) => state.drafters[name]?.accepted ?? 0;
  return all.sort((one, other) => accepted(other) - accepted(one));
}

export function Drafters(props: { state: ModelSpeculation }) {
  const names = namesOf(props.state);
  if (!names.length) return null;
  return (
    <>
      <h3>{t("speculation.drafters")}</h3>
      <ul class="who-drafts">
        {names.map((name) => (
          <DrafterRow key={name} name={name} state={props.state} />
        ))}
      </ul>
    </>
  );
}

function DrafterRow(props: { name: string; state: ModelSpeculation }) {
  const { name, state } = props;
  const totals = state.drafters[name];
  const share = totals?.drafted ? totals.accepted / totals.drafted : null;
  const said =
    totals && share !== null
      ? t("speculation.accepted_of", {
          accepted: totals.accepted,
          count: totals.drafted,
          share: percent(share),
        })
      : unverified(name, state);
  return (
    <li style={{ "--accent": `var(${drafterColour(name)})` }}>
      <p>
        <span class="swatch" style={{ background: "var(--accent)" }} />
        <strong>{name}</strong> {aboutDrafter(name)}
      </p>
      <p class="dim">
        {said}
        {share !== null && ` · ${t("speculation.drafting_took", { time: duration(totals!.ms) })}`}
      </p>
      {share !== null && <Bar share={share} label={`${name}: ${said}`} />}
    </li>
  );
}

/** Why nothing of a drafter was verified: of a draft model, what is known of its cost. */
function unverified(name: string, state: ModelSpeculation): string {
  const auto = stagesOf(state).includes("auto");
  if (name !== "draft-model" || !auto) return t("speculation.not_yet");
  const { plain_ms: plain, draft_token_ms } = state;
  const cost = draft_token_ms[name];
  if (cost === undefined || plain === null) return t("speculation.draft_model_unmeasured");
  const costs = { cost: duration(cost), plain: duration(plain) };
  return t(cost < plain ? "speculation.draft_model_unlikely" : "speculation.draft_model_costly", costs);
}
