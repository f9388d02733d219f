/** "Why is it not faster?", answered from what the last rounds of a model were like. */

import { percent, t, times } from "../../i18n";
import type { Key } from "../../i18n";
import { href } from "../../route";
import { busy, findingsOf } from "./findings";
import { isModel, stagesOf } from "./drafters";
import { CODES, reasonOf, reasonText } from "../../ui/reasons";
import type { Code, Reason } from "../../ui/reasons";
import type { Round } from "./rounds";
import { FASTER } from "./says";
import type { ModelSpeculation } from "../../api/schema";

interface Props {
  name: string;
  state: ModelSpeculation;
  rounds: readonly Round[];
  speedup: number | null;
}

/** The reasons that a reader can do something about, or wait for. */
const ADVISED = CODES.filter((code) => code !== "nothing_paid");
/** Reasons of fewer rounds than this share are left out. */
const OFTEN = 0.05;

export function Why(props: Props) {
  const found = reasonsOf(props);
  const findings = findingsOf(props.state, props.rounds, props.speedup);
  const others = ADVISED.filter((code) => !found.some(({ reason }) => reason.code === code));
  const faster = props.speedup !== null && props.speedup >= FASTER;
  return (
    <section class="why">
      <h3>{t("speculation.why_title")}</h3>
      {faster && <p>{t("speculation.why_faster", { speedup: times(props.speedup!) })}</p>}
      {!found.length && !findings.length && !faster && (
        <p>{t(props.speedup === null ? "speculation.why_unknown" : "speculation.why_nothing")}</p>
      )}
      <dl>
        {busy(props.state) && (
          <div>
            <dt>{t("speculation.finding_busy", { count: props.state.idle_threads })}</dt>
            <dd>{t("speculation.do_busy")}</dd>
          </div>
        )}
        {findings.map(({ name, bad, shares, advice }) => (
          <div key={name}>
            <dt class={bad ? "bad" : ""}>{t(`speculation.finding_${name}` as Key, shares)}</dt>
            {advice !== null && <dd>{t(`speculation.do_${advice}` as Key)}</dd>}
          </div>
        ))}
        {found.map(({ reason, share }) => (
          <div key={reason.text}>
            <dt>
              {reasonText(reason)}
              {share !== null && (
                <span class="dim"> {t("speculation.in_rounds", { share: percent(share) })}</span>
              )}
            </dt>
            {reason.code !== null && reason.code !== "nothing_paid" && (
              <Advice code={reason.code} model={props.name} state={props.state} />
            )}
          </div>
        ))}
      </dl>
      <details>
        <summary>{t("speculation.why_others", { count: others.length })}</summary>
        <dl>
          {others.map((code) => (
            <div key={code}>
              <dt>{t(`drafting.reason_${code}`)}</dt>
              <Advice code={code} model={props.name} state={props.state} />
            </div>
          ))}
        </dl>
      </details>
    </section>
  );
}

/** Those for which a source of drafts that needs nothing to copy is the way out. */
const WANT_DRAFT_MODEL: readonly Code[] = ["nothing_found", "back_off", "not_worth", "no_drafter"];
const WANT_SETTINGS: readonly Code[] = ["turned_off", "no_cells", "shared", "drafters_failed"];

function Advice(props: { code: (typeof ADVISED)[number]; model: string; state: ModelSpeculation }) {
  const chosen = stagesOf(props.state).some(isModel) || props.state.head !== null;
  const link =
    WANT_DRAFT_MODEL.includes(props.code) && !chosen
      ? t("speculation.choose_draft_model")
      : WANT_SETTINGS.includes(props.code)
        ? t("speculation.open_settings")
        : null;
  return (
    <dd>
      {t(`speculation.why_${props.code}`)} {link !== null && <a href={href("models", props.model)}>{link}</a>}
    </dd>
  );
}

/** Why nothing was drafted, with the share of the last rounds, the most frequent first; of a model that cannot
 * speculate at all, why. */
function reasonsOf(props: Props): { reason: Reason; share: number | null }[] {
  const { reason: text, reason_code: code, code: doing } = props.state.summary;
  const lasting = doing === "off" || doing === "no_drafters" ? reasonOf(text, code) : null;
  const counts = new Map<string, { reason: Reason; count: number }>();
  for (const round of props.rounds) {
    for (const reason of round.drafted ? [] : round.reasons) {
      const { count } = counts.get(reason.text) ?? { count: 0 };
      counts.set(reason.text, { reason, count: count + 1 });
    }
  }
  const counted = [...counts.values()]
    .sort((one, other) => other.count - one.count)
    .map(({ reason, count }) => ({ reason, share: count / props.rounds.length }))
    .filter(({ share }) => share >= OFTEN);
  if (lasting !== null) return [{ reason: lasting, share: null }];
  if (props.rounds.length) return counted;
  return [{ reason: { text: "", code: "not_decoded" }, share: null }];
}
