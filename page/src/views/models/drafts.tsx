/** The draft model, from a list that says which ones fit, and why others do not. */

import { useEffect, useId, useState } from "preact/hooks";
import { call, part } from "../../api/http";
import type { DraftCandidate, DraftCandidates } from "../../api/schema";
import { isAdmin } from "../../api/session";
import { bytes, percent, t } from "../../i18n";
import { href } from "../../route";
import { Badge, Problem } from "../../ui/basics";
import { Setting } from "./field";
import type { FieldProps } from "./field";

const TONES = { fits: "good", possible: "warn", translation: "warn", no: "bad" } as const;
/** With a larger share of the model's parameters a draft model seldom pays. */
const PAYS = 0.25;

export function DraftChoice(props: {
  form: FieldProps;
  chosen: string | null;
  saved: string | null;
  /** Nothing drafts. */
  off: boolean;
  /** The one that the speculation string names; then there is nothing to choose. */
  named: string | null;
  choose: (value: string | null) => void;
}) {
  const { form, off, named, choose } = props;
  const chosen = named ?? props.chosen;
  const group = useId();
  const { found, error, again } = useCandidates(form.model);
  const models = found?.filter((one) => one.kind === "model") ?? [];
  const heads = found?.filter((one) => one.kind === "head") ?? [];
  const isChosen = (one: DraftCandidate) =>
    chosen !== null && (one.value === chosen || (one.used && chosen === props.saved)); // a file has many names
  const fitting = models.filter((one) => one.fits !== "no" || isChosen(one));
  const others = models.filter((one) => !fitting.includes(one));
  const unlisted = chosen !== null && found !== null && !models.some(isChosen);
  const disabled = form.locked || off || named !== null;
  const option = (one: DraftCandidate) => (
    <Option
      key={`${one.kind} ${one.name}`}
      group={group}
      one={one}
      checked={!off && isChosen(one)}
      disabled={disabled || one.fits === "no"}
      choose={() => choose(one.value)}
    />
  );
  return (
    <Setting
      name="draft_model"
      names={["draft_model"]}
      form={form}
      group
      note={t(
        off ? "models.draft_model_off" : named ? "models.draft_named" : "models.field_draft_model_help",
      )}
      marks={{ differs: props.chosen !== null, unsaved: props.chosen !== props.saved }}
      reset={() => choose(null)}
    >
      {() => (
        <>
          {error !== null && <Problem error={error} retry={again} />}
          {found === null && error === null && <p class="dim">{t("models.looking_for_drafts")}</p>}
          <div class="options">
            <label class="option">
              <input
                type="radio"
                name={group}
                disabled={disabled}
                checked={off || chosen === null}
                onChange={() => choose(null)}
              />
              <span>{t("models.draft_none")}</span>
            </label>
            {unlisted && (
              <label class="option">
                <input type="radio" name={group} checked={!off} disabled={disabled} />
                <span>
                  <span class="name">{chosen}</span>{" "}
                  {named === null && <small class="dim">{t("models.draft_unlisted")}</small>}
                </span>
              </label>
            )}
            {fitting.map(option)}
          </div>
          {found !== null && models.length === 0 && <p class="dim">{t("models.draft_no_models")}</p>}
          {found !== null && fitting.length === 0 && (
            <p class="dim">
              {t("models.draft_needed")} {isAdmin() && <a href={href("models")}>{t("models.hub")}</a>}
            </p>
          )}
          {others.length > 0 && (
            <details>
              <summary>{t("models.draft_others", { count: others.length })}</summary>
              <div class="options">{others.map(option)}</div>
            </details>
          )}
          {heads.length > 0 && (
            <details open={heads.some((head) => head.used)}>
              <summary>{t("models.heads", { count: heads.length })}</summary>
              <ul class="options">
                {heads.map((head) => (
                  <li key={head.name} class="option">
                    <span>
                      <span class="name">{head.name}</span>{" "}
                      {head.used && <Badge tone="good">{t("models.head_used")}</Badge>} <Fit one={head} />
                    </span>
                  </li>
                ))}
              </ul>
            </details>
          )}
        </>
      )}
    </Setting>
  );
}

function Option(props: {
  group: string;
  one: DraftCandidate;
  checked: boolean;
  disabled: boolean;
  choose: () => void;
}) {
  const { one } = props;
  return (
    <label class={`option ${one.fits === "no" ? "no" : ""}`} data-draft={one.name}>
      <input
        type="radio"
        name={props.group}
        checked={props.checked}
        disabled={props.disabled}
        onChange={props.choose}
      />
      <span>
        <span class="name">{one.name}</span> <Fit one={one} />
      </span>
    </label>
  );
}

/** Whether it fits, how large it is, and the reason in words. */
function Fit({ one }: { one: DraftCandidate }) {
  const fit = one.fits === "fits" && (one.share ?? 0) > PAYS ? "possible" : one.fits;
  return (
    <>
      <Badge tone={TONES[fit]}>{t(`models.fit_${fit}`)}</Badge>{" "}
      <small class="dim">
        {bytes(one.size_bytes)}
        {one.share !== null && ` · ${t("models.draft_share", { share: percent(one.share, 1) })}`}
        {` · ${why(one)}`}
      </small>
    </>
  );
}

const CODES = [
  "same_vocabulary",
  "translated",
  "vocabulary",
  "size",
  "memory",
  "itself",
  "incomplete",
  "unreadable",
  "recurrent",
  "head",
] as const;

/** The reasons in the reader's language; the server's own sentence for one that is not known here. */
function why(one: DraftCandidate): string {
  if (one.kind === "head" && one.fits === "no") return t("models.why_head_other");
  return [one.code, ...one.also]
    .map((said) => {
      const code = CODES.find((code) => code === said);
      return code ? t(`models.why_${code}`) : one.why;
    })
    .join(" · ");
}

function useCandidates(model: string) {
  const [found, setFound] = useState<DraftCandidate[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setError(null);
    call<DraftCandidates>(`console/models/${part(model)}/drafts`, { signal: stop.signal }).then(
      ({ candidates }) => setFound(candidates),
      (refused: unknown) => {
        if (!stop.signal.aborted) setError(refused);
      },
    );
    return () => stop.abort();
  }, [model, round]);
  return { found, error, again: () => setRound((round) => round + 1) };
}
