/** The line under an answer: how fast it was, and why. */

import { duration, number, percent, t, times } from "../../i18n";
import { href } from "../../route";
import { noticeText } from "../../ui/notices";
import { whyNothing } from "../../ui/reasons";
import { modelOf, models } from "./models";
import type { Message, Report } from "./types";

export function Closing(props: { message: Message }) {
  const { message } = props;
  const { report } = message;
  const full = report && report.total >= (modelOf(message.model ?? "")?.max_model_len ?? Infinity) - 1;
  const why = report?.notice
    ? noticeText(report.notice, report.noticeCode ?? null)
    : whyEnded(message, Boolean(full));
  return (
    <>
      {why && <p class={message.state === "failed" ? "ended bad" : "ended warn"}>{why}</p>}
      {report && <Figures report={report} continued={Boolean(message.continued)} />}
    </>
  );
}

function whyEnded(message: Message, full: boolean): string | null {
  switch (message.state) {
    case "cut":
      if (message.repeated) return t("chat.ended_repeated");
      return t(full ? "chat.ended_full" : "chat.ended_cut");
    case "stopped":
      return t("chat.ended_stopped");
    case "lost":
      return t("chat.ended_lost");
    case "failed":
      return `${message.error?.message ?? ""} ${hint(message.error?.code ?? null, message.error?.status ?? 0)}`;
    default:
      return null;
  }
}

/** What to do about an error, beside what the server says. */
function hint(code: string | null, status: number): string {
  if (code === "context_length_exceeded") return t("chat.hint_context");
  if (code === "model_not_found" && models.value?.length) return t("chat.hint_model");
  if (status === 401) return t("chat.hint_key");
  return "";
}

function Figures(props: { report: Report; continued: boolean }) {
  const { tokens, predictedMs, firstMs, speculation } = props.report;
  const counts = Object.values(speculation.drafters);
  const drafted = counts.reduce((sum, one) => sum + one.drafted, 0);
  const accepted = counts.reduce((sum, one) => sum + one.accepted, 0);
  const why = whyNothing(speculation.reason, speculation.reason_code ?? null);
  return (
    <p class="figures-line">
      {props.continued && <span>{t("chat.continued_part")}</span>}
      <span>{t("chat.tokens", { count: tokens })}</span>
      {predictedMs > 0 && <span>{t("chat.rate", { rate: number((1e3 * tokens) / predictedMs, 1) })}</span>}
      {firstMs !== null && (
        <span title={t("chat.first_token_note")}>{t("chat.first_token", { time: duration(firstMs) })}</span>
      )}
      {speculation.active ? (
        <>
          <span title={t("chat.drafted_note", { tokens, drafted, accepted })}>
            {t("chat.drafted", { share: percent(tokens ? Math.min(1, accepted / tokens) : 0) })}
          </span>
          <span title={t("chat.accepted_note", { drafted, accepted })}>
            {t("chat.accepted", { share: percent(drafted ? accepted / drafted : 0) })}
          </span>
          {speculation.acceptance_length !== null && (
            <span>{t("chat.per_forward", { count: speculation.acceptance_length })}</span>
          )}
          {speculation.estimated_speedup !== null && <Speedup value={speculation.estimated_speedup} />}
        </>
      ) : (
        why && <span>{t("chat.nothing_drafted", { reason: why })}</span>
      )}
      <span class={speculation.exact ? "good" : "warn"} title={speculation.exact_reason}>
        {t(speculation.exact ? "chat.exact" : "chat.not_exact")}
      </span>
      <a href={href("speculation")}>{t("chat.why")}</a>
    </p>
  );
}

function Speedup(props: { value: number }) {
  const { value } = props;
  if (value === 1) return <span title={t("chat.speedup_note")}>{t("chat.as_fast")}</span>;
  return (
    <strong class={value > 1 ? "good" : ""} title={t("chat.speedup_note")}>
      {t("chat.speedup", { times: times(value) })}
    </strong>
  );
}
