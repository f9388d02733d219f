/** What became of drafts: by drafter, and by how deep they were right. */

import type { Overview } from "../../api/schema";
import { duration, number, percent, t } from "../../i18n";
import { Bar, Card } from "../../ui/basics";
import { drafterColour } from "../../ui/drafters";
import { byDepth } from "./figures";

export function ByDrafter(props: { overview: Overview }) {
  const rows = Object.entries(props.overview.totals.drafters)
    .filter(([, totals]) => totals.drafted)
    .sort((one, other) => other[1].accepted - one[1].accepted);
  return (
    <Card title={t("overview.by_drafter")}>
      {!rows.length && <p class="dim">{t("overview.no_drafts")}</p>}
      <ul class="accepted-by">
        {rows.map(([name, totals]) => {
          const share = totals.accepted / totals.drafted;
          const said = t("overview.accepted_of", {
            accepted: totals.accepted,
            count: totals.drafted,
            share: percent(share),
          });
          return (
            <li key={name} style={{ "--accent": `var(${drafterColour(name)})` }}>
              <strong>{name}</strong>
              <span class="dim">{said}</span>
              <Bar share={share} label={`${name}: ${said}`} />
              <small class="dim">
                {t("overview.drafts_in", { count: totals.drafts, time: duration(totals.ms) })}
              </small>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}

const SHOWN = 16;

export function ByDepth(props: { overview: Overview }) {
  const shares = byDepth(props.overview).slice(0, SHOWN);
  return (
    <Card title={t("overview.by_depth")}>
      {!shares.length ? (
        <p class="dim">{t("overview.no_drafts")}</p>
      ) : (
        <>
          <p class="dim">{t("overview.by_depth_note", { count: props.overview.totals.drafts })}</p>
          <ol class="depths">
            {shares.map((share, depth) => (
              <li key={depth} title={t("overview.depth_share", { share: percent(share), count: depth + 1 })}>
                <span class="visually-hidden">
                  {t("overview.depth_share", { share: percent(share), count: depth + 1 })}
                </span>
                <span aria-hidden="true" class="share">
                  {percent(share)}
                </span>
                <span aria-hidden="true" class="column">
                  <span style={{ height: `${100 * share}%` }} />
                </span>
                <span aria-hidden="true" class="dim">
                  {number(depth + 1)}
                </span>
              </li>
            ))}
          </ol>
        </>
      )}
    </Card>
  );
}
